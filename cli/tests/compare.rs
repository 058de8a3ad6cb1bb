//! Strategies and budgets side by side; and budgets that are too small, explained.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use crate::common::{Folder, SMALL};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;

const STRATEGIES: [&str; 11] = [
    "in-core",
    "on-demand",
    "fit",
    "groups",
    "vdnn",
    "lms",
    "window",
    "checkpoint",
    "checkpoint-offload",
    "auto",
    "swap",
];

fn compare(folder: &Folder, more: &[&str]) -> Value {
    folder.run(&[&["compare", SMALL, "--json"], more].concat()).done().json()
}

fn rows(compared: &Value) -> Vec<&Value> {
    compared["rows"].as_array().unwrap().iter().collect()
}

/// The row of a strategy and a budget is what `plan` says, but for its wall time.
#[test]
fn rows_are_those_of_plan() {
    let folder = Folder::new();
    let compared = compare(&folder, &["-b", "60%,30%", "-s", "fit,window"]);
    assert_eq!(rows(&compared).len(), 4);
    for (row, (strategy, budget)) in rows(&compared).into_iter().zip([
        ("fit", "60%"),
        ("fit", "30%"),
        ("window", "60%"),
        ("window", "30%"),
    ]) {
        let arguments = ["plan", SMALL, "-s", strategy, "-b", budget, "--json"];
        let planned = folder.run(&arguments).done().json();
        let fields = planned.as_object().unwrap().iter();
        for (field, value) in fields.filter(|(field, _)| *field != "format") {
            assert!(row.get(field).is_some(), "{field}");
            assert!(field == "planning_ns" || &row[field] == value, "{strategy} {budget} {field}");
        }
        assert_eq!(row["reason"], json!(null));
    }
}

#[test]
fn all_strategies_and_the_usual_budgets_are_the_default() {
    let compared = compare(&Folder::new(), &[]);
    let budgets = compared["budgets"].as_array().unwrap();
    let shown: Vec<_> = budgets.iter().map(|budget| budget["budget"].as_str().unwrap()).collect();
    assert_eq!(shown, ["100 %", "75 %", "50 %", "35 %", "25 %", "min"]);
    let rows = rows(&compared);
    assert_eq!(rows.len(), STRATEGIES.len() * budgets.len());
    for (at, row) in rows.iter().enumerate() {
        assert_eq!(row["strategy"], STRATEGIES[at / budgets.len()]);
        let column = at % budgets.len();
        assert_eq!(row["budget_bytes"], budgets[column]["budget_bytes"]);
        let any_order_ns = &compared["bounds"][0]["period_ns"][column];
        let bound_ns = &row["lower_bound_ns"];
        // The bounds of the table are for plans that run each op once.
        let repeats = row["repeats"].as_u64().unwrap_or(0) > 0;
        assert!(repeats || bound_ns.as_u64() >= any_order_ns.as_u64(), "{row}");
        let order = if row["reordered"] == false { "given" } else { "any" };
        assert_eq!(row["lower_bound_order"], order, "{row}");
        let needs_more = row["min_feasible_bytes"].as_u64() > row["budget_bytes"].as_u64();
        assert_eq!(row["feasible"], !needs_more, "{row}");
        assert_eq!(row["reason"].is_string(), needs_more, "{row}");
        assert!(needs_more || row["period_ns"].as_u64() >= bound_ns.as_u64());
        assert!(row.get("lp_bound_ns").is_none(), "nobody asked");
    }
    // `min` is the least that any of them can do with.
    assert_eq!(rows[5]["feasible"], false, "in-core");
    assert_eq!(rows[11]["feasible"], true, "on-demand");
    assert_eq!(rows[11]["budget_bytes"], rows[11]["min_feasible_bytes"]);
    assert_eq!(compared["in_core_period_ns"], compared["compute_ns"]);
}

#[test]
fn the_table_has_a_line_a_strategy_and_one_for_the_bound() {
    let folder = Folder::new();
    let arguments = ["compare", SMALL, "-s", "in-core,lms,in-core", "-b", "200%,50%"];
    let table = folder.run(&arguments).done().stdout;
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let lines: Vec<_> = table.lines().map(words).filter(|line| !line.is_empty()).collect();
    let line = |head: &str| lines.iter().find(|line| line[0] == head).unwrap();
    assert_eq!(lines.iter().filter(|line| line[0] == "in-core").count(), 1, "asked for twice");
    assert_eq!(line("budget")[1..], ["200", "%", "50", "%"]);
    assert_eq!(line("in-core")[1..3], ["1.000", "needs"]);
    assert_eq!(line("lms")[1], "1.000");
    let slower: f64 = line("lms")[2].parse().unwrap();
    assert_eq!(line("bound,")[..3], ["bound,", "any", "order"]);
    let bound: f64 = line("bound,")[4].parse().unwrap();
    assert!(1.0 < slower && bound <= slower, "{table}");
    assert!(table.ends_with("Bounds are for plans that run each op once.\n"), "{table}");
}

/// Whatever the order of the budgets.
#[test]
fn more_memory_never_makes_auto_slower() {
    let folder = Folder::new();
    let number = |row: &Value, field: &str| row[field].as_u64().unwrap();
    for work in [SMALL, "resnet50:batch=3,image=64", "resnet50:batch=2,image=64,mode=inference"] {
        let budgets = "98%,90%,88%,74%,72%,44%,42%,30%,32%,46%,48%";
        let arguments = ["compare", work, "-s", "auto", "-b", budgets, "--json"];
        let compared = folder.run(&arguments).done().json();
        let columns = compared["budgets"].as_array().unwrap();
        let mut rows = rows(&compared);
        for (row, column) in rows.iter().zip(columns) {
            assert_eq!(row["budget_bytes"], column["budget_bytes"]);
        }
        rows.retain(|row| row["feasible"] == true);
        rows.sort_by_key(|row| number(row, "budget_bytes"));
        for pair in rows.windows(2) {
            let (less_ns, more_ns) = (number(pair[0], "period_ns"), number(pair[1], "period_ns"));
            assert!(more_ns <= less_ns, "{} and {}", pair[0], pair[1]);
        }
    }
}

#[cfg(not(feature = "lp"))]
#[test]
fn the_linear_program_is_not_in_every_build() {
    let arguments = ["compare", SMALL, "--bound", "lp"];
    Folder::new().run(&arguments).fails(2, &["--bound lp", "built without", "--features lp"]);
}

#[cfg(feature = "lp")]
#[test]
fn the_linear_program_is_a_better_bound_for_the_given_order() {
    let folder = Folder::new();
    let more = ["-s", "on-demand,auto", "-b", "70%,1%,30%", "--bound", "lp"];
    let compared = compare(&folder, &more);
    let lp = &compared["bounds"][1];
    assert_eq!(lp["name"], "lp bound, given order");
    assert_eq!(lp["period_ns"][1], json!(null), "no plan");
    let mut given = 0;
    for (at, row) in rows(&compared).into_iter().enumerate() {
        if at % 3 == 1 {
            assert_eq!((&row["feasible"], &row["gap"]), (&json!(false), &json!(null)));
            continue;
        }
        if row["reordered"] == true {
            assert!(row.get("lp_bound_ns").is_none(), "not a bound for its order: {row}");
            continue;
        }
        given += 1;
        assert_eq!(row["lp_bound_ns"], lp["period_ns"][at % 3]);
        let number = |field: &str| row[field].as_f64().unwrap();
        assert!(number("lower_bound_ns") <= number("lp_bound_ns"), "{row}");
        assert!(number("lp_bound_ns") <= number("period_ns"), "{row}");
        let gap = number("period_ns") / number("lp_bound_ns") - 1.0;
        assert!((number("gap") - gap).abs() < 1e-9, "{row}");
    }
    assert!(given >= 2, "on-demand keeps the order");
    let cheap_ns = compared["bounds"][0]["period_ns"][2].as_f64();
    assert!(lp["period_ns"][2].as_f64() > cheap_ns, "{compared}");
    let arguments = [&["compare", SMALL, "--plot", "f.svg"][..], &more].concat();
    let table = folder.run(&arguments).done().stdout;
    assert!(table.lines().any(|line| line.contains("lp bound, given order")), "{table}");
    let svg = fs::read_to_string(folder.path("f.svg")).unwrap();
    assert!(svg.contains("lp bound, given order"), "{svg}");
}

#[test]
fn the_plot_is_one_well_formed_image() {
    let folder = Folder::new();
    let arguments = ["compare", SMALL, "-s", "all", "--budgets", "90%,40%", "--plot", "f.svg"];
    folder.run(&arguments).done();
    assert_eq!(folder.files(), ["f.svg"]);
    let svg = fs::read_to_string(folder.path("f.svg")).unwrap();
    assert_balanced(&svg);
    assert!(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
    assert_eq!(svg.matches("http").count(), 1, "nothing is fetched");
    for strategy in STRATEGIES {
        let shown = |end: &str| svg.matches(&format!("\">{strategy}{end}")).count();
        assert_eq!(shown("<") + shown(" "), 1, "{strategy} in the legend");
    }
    // Two plans a strategy, but none in-core, and one of plain checkpointing; and a mark in the
    // legend for each.
    assert_eq!(svg.matches("<title>").count(), 1 + 19);
    assert_eq!(svg.matches("class=\"marker\"").count(), 19 + 11);
    assert!(svg.contains("in-core (from "));
    let colours: BTreeSet<_> = svg.split("<g stroke=\"").skip(1).map(|g| &g[..7]).collect();
    assert_eq!(colours.len(), 11, "one for each: {colours:?}");
    assert!(!svg.contains("NaN") && !svg.contains("inf"));
}

/// Every element is closed, in order, and no text holds what a name may have brought in.
fn assert_balanced(svg: &str) {
    let mut open = Vec::new();
    for tag in svg.split('<').skip(1) {
        let (tag, text) = tag.split_once('>').unwrap();
        assert!(!text.contains('>'), "{text}");
        let name = tag.split_whitespace().next().unwrap();
        match name.strip_prefix('/') {
            Some(closed) => assert_eq!(open.pop(), Some(closed)),
            None if tag.ends_with('/') => {}
            None => open.push(name),
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn names_cannot_break_the_plot() {
    let folder = Folder::new();
    let graph = json!({
        "format": "spillway.graph.v1",
        "name": "<g> & \"co\"",
        "tensors": [{ "name": "w", "bytes": 4_194_304, "kind": "state" }],
        "ops": [{ "name": "f", "time_ns": 0, "reads": [0], "writes": [0] }],
    });
    folder.write("g.json", serde_json::to_vec(&graph).unwrap());
    let ran = folder.run(&["compare", "g.json", "--plot", "f.svg"]).done();
    assert!(ran.stdout.contains("<g> & \"co\""), "a table shows names as they are");
    let svg = fs::read_to_string(folder.path("f.svg")).unwrap();
    assert_balanced(&svg);
    // All strategies take the same time, so the lines lie on each other.
    assert!(svg.matches(" over\"").count() > 8, "{svg}");
}

#[test]
fn nonsense_is_refused() {
    let folder = Folder::new();
    for (more, words) in [
        (["-s", "magic"], "optimizer-offload, auto, swap, joint, or all"),
        (["-b", "50%,x"], "a percentage"),
        (["-m", "nowhere"], "built-in machines are"),
    ] {
        let arguments = [&["compare", SMALL][..], &more].concat();
        folder.run(&arguments).fails(2, &[words]);
    }
    let both = ["compare", SMALL, "--json", "--plot", "-"];
    folder.run(&both).fails(2, &["standard output"]);
}

/// The op that needs the smallest budget, and what of it is there: largest first.
#[test]
fn a_budget_that_is_too_small_is_explained() {
    let folder = Folder::new();
    let plan = |strategy: &str, budget: &str| {
        folder.run(&["plan", "resnet50:batch=16", "-s", strategy, "-b", budget])
    };
    let failed = plan("fit", "1MiB").fails(1, &["fit: the budget", "is too small: op "]);
    let parts: Vec<_> = failed.stderr.lines().skip(1).collect();
    assert!(!parts.is_empty() && parts.iter().all(|part| part.contains("iB  ")), "{failed:?}");
    assert!(parts[0].contains("tensor "), "{failed:?}");
    let failed = plan("in-core", "1MiB").fails(1, &["in-core: the budget", " more"]);
    assert_eq!(failed.stderr.lines().count(), 1 + 6 + 1);
    let least = plan("fit", "min").done();
    assert_eq!(least.stderr, "");
}
