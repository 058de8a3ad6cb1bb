//! Names come from files, and files from anywhere: none reaches a terminal or a page as it is.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use crate::common::{Folder, Ran, SMALL};
use serde_json::{Value, json};
use std::fs;

/// Clears the screen, makes a line of its own, turns the text around, and never ends.
const BAD: &str = "\u{1b}[2J\nFAKE\u{202e}\u{9b}é\u{200b}";

/// What `BAD` is to look like.
const ESCAPED: &str = "\\u{1b}[2J\\nFAKE\\u{202e}\\u{9b}é\\u{200b}";

fn bad(name: &str) -> String {
    format!("{BAD}{name}{}", "x".repeat(10_000))
}

/// No character but line breaks that a terminal would obey or not show, and no line that is
/// long or somebody else's.
fn assert_clean(text: &str, longest: usize) {
    let is_bad = |c: char| {
        c.is_control() && c != '\n'
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
    };
    let start: String = text.chars().take(3000).collect();
    assert!(!text.contains(is_bad), "{start:?}");
    for line in text.lines() {
        assert!(line.chars().count() <= longest && !line.starts_with("FAKE"), "{start:?}");
    }
}

/// A run of which both streams are clean.
fn clean(folder: &Folder, arguments: &[&str], status: i32) -> Ran {
    let ran = folder.run(arguments);
    // JSON has whole names.
    let is_json = ran.stdout.starts_with('{');
    assert_clean(&ran.stdout, if is_json { usize::MAX } else { 1000 });
    assert_clean(&ran.stderr, 3000);
    assert_eq!(ran.status, status, "{}", ran.stderr);
    ran
}

fn write_json(folder: &Folder, name: &str, value: &Value) {
    folder.write(name, serde_json::to_vec(value).unwrap());
}

fn read_json(folder: &Folder, name: &str) -> Value {
    serde_json::from_slice(&fs::read(folder.path(name)).unwrap()).unwrap()
}

/// A training step, a machine and a plan, of which every string is bad.
fn bad_files() -> Folder {
    let folder = Folder::new();
    folder
        .run(&[
            "model",
            "gpt:batch=1,layers=2,width=128,sequence=128,vocabulary=100",
            "-o",
            "g.json",
        ])
        .done();
    let mut graph = read_json(&folder, "g.json");
    graph["name"] = bad("graph").into();
    for list in ["tensors", "ops"] {
        for (at, entry) in graph[list].as_array_mut().unwrap().iter_mut().enumerate() {
            entry["name"] = bad(&format!("{list}{at}")).into();
        }
    }
    write_json(&folder, "g.json", &graph);
    let machine = json!({
        "format": "spillway.machine.v1", "name": bad("machine"),
        "device_bytes": 1_u64 << 34, "host_bytes": 1_u64 << 36, "chunk_bytes": 1 << 16,
        "h2d_bytes_per_s": 12_000_000_000_u64, "d2h_bytes_per_s": 12_000_000_000_u64,
        "transfer_latency_ns": 10_000, "map_ns_per_chunk": 0, "unmap_ns_per_chunk": 0,
    });
    write_json(&folder, "m.json", &machine);
    let plan = ["plan", "g.json", "-m", "m.json", "-s", "on-demand", "-b", "60%", "-o", "p.json"];
    let summary = clean(&folder, &plan, 0).stdout;
    assert!(summary.starts_with(ESCAPED) && summary.contains('…'), "{summary}");
    folder
}

#[test]
fn no_command_prints_a_name_as_it_is() {
    let folder = bad_files();
    let mut plan = read_json(&folder, "p.json");
    plan["strategy"] = bad("strategy").into();
    write_json(&folder, "p.json", &plan);
    let on = ["-m", "m.json"];
    for json in [&[][..], &["--json"]] {
        let with = |arguments: &[&str]| clean(&folder, &[arguments, &on, json].concat(), 0);
        with(&["plan", "g.json", "-b", "60%"]);
        with(&["check", "g.json", "p.json"]);
        with(&["run", "g.json", "--plan", "p.json", "--iterations", "2"]);
        with(&["compare", "g.json", "-b", "60%,1KiB", "-s", "fit,on-demand"]);
        let infeasible = [&["plan", "g.json", "-b", "1KiB"][..], &on, json].concat();
        let infeasible = clean(&folder, &infeasible, 1);
        assert!(infeasible.stderr.contains("too small: op ") && infeasible.stderr.contains("FAKE"));
    }
    // Which of both names is meant shows at their ends too.
    let ends = clean(&folder, &["check", "g.json", "p.json"], 1).stderr;
    assert!(ends.contains(&format!("\"{ESCAPED}machine")), "{ends}");
    clean(&folder, &["check", SMALL, "p.json", "-m", "m.json"], 1);
    clean(&folder, &["run", SMALL, "--plan", "p.json", "-m", "m.json"], 1);
    clean(&folder, &[&["export", "chain", "g.json", "-o", "c.json"][..], &on].concat(), 0);
    clean(&folder, &[&["export", "chain", "g.json"][..], &on].concat(), 0);
    clean(&folder, &["import", "chain", "c.json", "-o", "c.graph.json"], 0);
    clean(&folder, &["import", "chain", "c.json"], 0);
    clean(&folder, &["plan", "c.json", "-s", "weights", "-b", "60%"], 0);
}

/// Each step of a valid plan is left out, in turn, and more is put wrong.
#[test]
fn no_verdict_prints_a_name_as_it_is() {
    let folder = bad_files();
    let plan = read_json(&folder, "p.json");
    let steps = plan["steps"].as_array().unwrap();
    for at in (0..steps.len()).step_by(1 + steps.len() / 12) {
        let mut cut = plan.clone();
        cut["steps"].as_array_mut().unwrap().remove(at);
        write_json(&folder, "cut.json", &cut);
        let said = clean(&folder, &["check", "g.json", "cut.json", "-m", "m.json"], 1).stderr;
        assert!(said.starts_with("error: cut.json: "), "{said}");
    }
    for (field, value) in [
        ("graph", json!(bad("other"))),
        ("machine", json!(bad("other"))),
        ("steps", json!([[bad("step"), 1]])),
        ("pools", json!(bad("pools"))),
        ("format", json!(bad("format"))),
    ] {
        let mut wrong = plan.clone();
        wrong[field] = value;
        write_json(&folder, "wrong.json", &wrong);
        let status = if ["graph", "machine"].contains(&field) { 1 } else { 2 };
        for command in
            [&["check", "g.json", "wrong.json"][..], &["run", "g.json", "--plan", "wrong.json"]]
        {
            let said = clean(&folder, &[command, &["-m", "m.json"]].concat(), status).stderr;
            assert!(said.contains("FAKE") && said.lines().count() == 1, "{said}");
        }
    }
    let mut graph = read_json(&folder, "g.json");
    graph["ops"][0]["reads"] = json!([4_000_000]);
    write_json(&folder, "range.json", &graph);
    assert!(clean(&folder, &["plan", "range.json"], 2).stderr.contains("op 0 (\"\\u{1b}"));
    graph["tensors"][0]["kind"] = bad("kind").into();
    write_json(&folder, "kind.json", &graph);
    let said = clean(&folder, &["plan", "kind.json"], 2).stderr;
    assert!(said.contains("tensors[0].kind") && said.contains("line 1 column"), "{said}");
}

#[test]
fn pages_and_pictures_are_escaped_in_their_own_ways() {
    let folder = bad_files();
    let work = ["g.json", "-m", "m.json", "-b", "60%"];
    let plan = ["plan", "-s", "on-demand", "--report", "r.html", "--trace", "t.json"];
    clean(&folder, &[&plan[..], &work].concat(), 0);
    clean(&folder, &[&["compare", "-s", "fit", "--plot", "f.svg"], &work[..]].concat(), 0);
    for file in ["r.html", "f.svg"] {
        let page = fs::read_to_string(folder.path(file)).unwrap();
        // Curves are long lines.
        assert_clean(&page, 100_000);
        assert!(page.contains(ESCAPED) && !page.contains(&"x".repeat(200)), "{file}");
    }
    let trace = fs::read_to_string(folder.path("t.json")).unwrap();
    assert_clean(trace.trim_end(), usize::MAX);
    let trace: Value = serde_json::from_str(&trace).unwrap();
    for event in trace["traceEvents"].as_array().unwrap() {
        for name in [&event["name"], &event["args"]["name"], &event["args"]["what"]] {
            assert_clean(name.as_str().unwrap_or_default(), 400);
        }
    }
}

/// Values stay what they were.
#[test]
fn json_is_safe_to_print_and_says_the_same() {
    let folder = bad_files();
    let arguments = ["plan", "g.json", "-m", "m.json", "-b", "60%", "--json"];
    let figures = clean(&folder, &arguments, 0).json();
    assert_eq!(figures["graph"], bad("graph"));
    assert_eq!(figures["machine"], bad("machine"));
    let plan = [&arguments[..6], &["-o", "-"]].concat();
    let plan: Value = serde_json::from_str(&clean(&folder, &plan, 0).stdout).unwrap();
    assert_eq!(plan["graph"], bad("graph"));
}

#[test]
fn arguments_and_paths_are_escaped() {
    let folder = Folder::new();
    let long = bad("");
    let spec = format!("resnet50:{long}=1");
    for argument in [BAD, &long, &format!("--{BAD}"), &format!("--{long}"), &spec] {
        for arguments in [
            &[argument][..],
            &["plan", argument],
            &["plan", SMALL, argument],
            &["plan", SMALL, "-b", argument],
            &["plan", SMALL, "-s", argument],
            &["plan", SMALL, "-m", argument],
            &["plan", SMALL, "-s", "window", "--set", argument],
            &["plan", SMALL, "-s", "window", "--set", &format!("{argument}=1")],
            &["run", SMALL, "--backend", argument],
            &["run", SMALL, "--iterations", argument],
            &["compare", SMALL, "-s", argument],
            &["import", argument],
            &["import", "pytorch", "t.json", "--device", argument],
            &["model", argument],
            &["conformance", "--backend", argument],
            &["measure", "--chunk", argument],
            &["help", argument],
        ] {
            let said = clean(&folder, arguments, 2).stderr;
            assert!(said.contains("FAKE"), "{said}");
        }
    }
    let path = format!("{BAD}.json");
    let (missing, folderless) = (format!("no{path}"), format!("{BAD}/o.json"));
    folder.write(&path, "{}");
    for (arguments, status) in [
        (&["plan", path.as_str()][..], 2),
        (&["plan", &missing], 2),
        (&["plan", SMALL, "-m", &path], 2),
        (&["check", SMALL, &path], 2),
        (&["run", SMALL, "--plan", &missing], 2),
        (&["import", "pytorch", &path], 2),
        (&["import", "chain", &missing], 2),
        (&["plan", SMALL, "-o", &folderless], 1),
        (&["plan", SMALL, "-o", &path, "--report", &path], 2),
        (&["plan", &path, "-o", &path], 2),
    ] {
        let said = clean(&folder, arguments, status).stderr;
        assert!(said.contains(ESCAPED), "{said}");
    }
}

/// A trace of three steps, each an operator and notes of the given name.
fn trace(name: &str) -> Value {
    let tensor = |storage: u64| json!([storage + 100, storage, 0, 4, 4, "cuda:0"]);
    let mut nodes = vec![];
    let mut node = |name: String, parent: u64, schema: String, tensors: [Vec<Value>; 2]| {
        let id = nodes.len() as u64 + 1;
        let columns = |of: Value| tensors.each_ref().map(|t| json!(vec![of.clone(); t.len()]));
        let (shapes, types) = (columns(json!([4])), columns(json!("Tensor(float)")));
        nodes.push(json!({
            "name": name, "id": id, "rf_id": id + 500, "parent": parent, "tid": 1,
            "op_schema": schema, "inputs": tensors[0], "input_shapes": shapes[0],
            "input_types": types[0], "outputs": tensors[1], "output_shapes": shapes[1],
            "output_types": types[1],
        }));
        id
    };
    let root = "[pytorch|profiler|execution_trace|process]".to_owned();
    node(root, 1, String::new(), [vec![], vec![]]);
    for step in 1..4 {
        let parent = node(format!("ProfilerStep#{step}{name}"), 1, String::new(), [vec![], vec![]]);
        node(format!("Torch-Compiled Region{name}"), parent, String::new(), [vec![], vec![]]);
        let schema = format!("aten::relu{name}(Tensor self) -> Tensor");
        node(format!("aten::relu{name}"), parent, schema, [vec![tensor(1)], vec![tensor(2)]]);
    }
    json!({ "schema": "1.0.1", "nodes": nodes })
}

#[test]
fn an_import_prints_no_name_as_it_is() {
    let folder = Folder::new();
    write_json(&folder, "t.json", &trace(&bad("")));
    let import = ["import", "pytorch", "t.json"];
    let name = bad("name");
    let imported = clean(&folder, &[&import[..], &["-o", "g.json", "--name", &name]].concat(), 0);
    assert!(imported.stdout.starts_with(ESCAPED), "{}", imported.stdout);
    assert!(read_json(&folder, "g.json").to_string().contains("FAKE"));
    let warned = clean(&folder, &import, 0).stderr;
    assert!(warned.contains("the first is Torch-Compiled Region"), "{warned}");
    for field in ["id", "inputs", "parent"] {
        let mut wrong = trace(&bad(""));
        wrong["nodes"][6][field] = bad(field).into();
        write_json(&folder, "wrong.json", &wrong);
        clean(&folder, &["import", "pytorch", "wrong.json"], 2);
    }
}

/// A driver that is not there is named by the environment.
#[test]
fn devices_are_named_as_safely() {
    let folder = Folder::new();
    for (variable, value) in
        [("SPILLWAY_CUDA_DRIVER", bad("/driver")), ("SPILLWAY_CUDA_DEVICE", bad(""))]
    {
        for arguments in [&["devices"][..], &["measure"], &["run", SMALL, "--backend", "cuda"]] {
            let ran = folder.run_in(&[(variable, value.as_str())], arguments);
            assert_clean(&ran.stdout, 1000);
            assert_clean(&ran.stderr, 1000);
            assert!(ran.stdout.contains("FAKE") || ran.stderr.contains("FAKE"), "{ran:?}");
        }
    }
}
