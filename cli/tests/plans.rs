//! From work to a plan, its proof and its results; and what is refused on the way.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use crate::common::{Folder, Ran, SMALL};
use serde_json::{Value, json};
use std::fs;
use std::process::Command;

/// Plans some small work at half of what it needs.
fn planned(folder: &Folder, strategy: &str) -> Value {
    let arguments = ["plan", SMALL, "-b", "50%", "-s", strategy, "-o", "plan.json", "--json"];
    folder.run(&arguments).done().json()
}

/// Changes the plan file.
fn edit(folder: &Folder, change: impl Fn(&mut Value)) {
    let mut plan: Value =
        serde_json::from_slice(&fs::read(folder.path("plan.json")).unwrap()).unwrap();
    change(&mut plan);
    folder.write("plan.json", serde_json::to_vec(&plan).unwrap());
}

fn check(folder: &Folder) -> Ran {
    folder.run(&["check", SMALL, "plan.json"])
}

#[test]
fn a_plan_is_checked_and_run() {
    for strategy in ["on-demand", "fit", "vdnn", "lms", "window", "auto"] {
        let folder = Folder::new();
        let figures = planned(&folder, strategy);
        assert!(check(&folder).done().stdout.starts_with("valid: "));
        let checked = folder.run(&["check", SMALL, "plan.json", "--json"]).done().json();
        assert_eq!(checked["valid"], true);
        let arguments = ["run", SMALL, "--plan", "plan.json", "--iterations", "8", "--json"];
        let ran = folder.run(&arguments).done().json();
        for field in ["period_ns", "peak_bytes", "waste_bytes", "h2d_bytes", "min_feasible_bytes"] {
            assert!(figures[field].is_u64(), "{field}");
            assert_eq!(figures[field], checked[field], "{field}");
            assert_eq!(figures[field], ran[field], "{field}");
        }
        assert_eq!(ran["digests_match"], true);
        assert_eq!(ran["digest"], ran["in_core_digest"]);
    }
}

/// A chain of four layers, of which one has to be away.
const CHAIN: &str = r#"{"format": "spillway.chain.v1", "name": "four", "device_bytes": 5249,
"bandwidth_bytes_per_s": 10000000000, "input_bytes": 50, "layers": [
{"forward_ns": 100, "backward_ns": 300, "weight_bytes": 1000, "activation_bytes": 50},
{"forward_ns": 100, "backward_ns": 300, "weight_bytes": 1000, "activation_bytes": 50},
{"forward_ns": 100, "backward_ns": 300, "weight_bytes": 1000, "activation_bytes": 50},
{"forward_ns": 100, "backward_ns": 300, "weight_bytes": 1000, "activation_bytes": 50}]}"#;

#[test]
fn a_graph_with_collectives_is_planned_checked_and_run() {
    let folder = Folder::new();
    let (state, made) = (json!({ "bytes": 4096, "kind": "state" }), "temporary");
    let mut tensors = vec![state.clone(), state, json!({ "bytes": 4096, "kind": made })];
    tensors.push(json!({ "bytes": 4096, "kind": made }));
    let gather = |from: u32, to: u32| {
        json!({ "name": format!("gather {from}"), "time_ns": 4000, "reads": [from], "writes": [to],
                "collective": true, "repeatable": true })
    };
    let layer = |of: u32| json!({ "name": "layer", "time_ns": 5000, "reads": [of], "writes": [] });
    for (at, tensor) in tensors.iter_mut().enumerate() {
        tensor["name"] = json!(format!("tensor {at}"));
    }
    let ops = [gather(0, 2), layer(2), gather(1, 3), layer(3)];
    let graph =
        json!({ "format": "spillway.graph.v1", "name": "gathers", "tensors": tensors, "ops": ops });
    folder.write("graph.json", serde_json::to_vec(&graph).unwrap());
    let plan = ["plan", "graph.json", "-m", "rtx4090", "-o", "plan.json"];
    assert_eq!(folder.run(&[&plan[..], &["--json"]].concat()).done().json()["period_ns"], 10_000);
    assert!(folder.run(&["check", "graph.json", "plan.json"]).done().stdout.starts_with("valid: "));
    folder.run(&["run", "graph.json", "-m", "rtx4090", "--plan", "plan.json"]).done();
    folder.run(&["compare", "graph.json", "-m", "rtx4090", "-b", "min"]).done();
    let with_certificate = [&plan[..4], &["--certificate", "certificate.json"]].concat();
    folder.run(&with_certificate).done();
    let check = ["check", "graph.json", "plan.json", "--certificate", "certificate.json"];
    let checked = folder.run(&check).done().stdout;
    assert!(checked.contains("can beat 10.0 µs (10000 ns) in the given order"), "{checked}");
    assert!(checked.contains("this plan takes no longer"), "{checked}");
}

#[test]
fn a_chain_is_planned_on_its_own_machine() {
    let folder = Folder::new();
    folder.write("four.chain.json", CHAIN);
    for strategy in ["weights", "weights-undiscounted", "layer-to-layer", "auto"] {
        let plan = ["plan", "four.chain.json", "-s", strategy, "-o", "plan.json", "--json"];
        let figures = folder.run(&plan).done().json();
        assert_eq!((&figures["machine"], &figures["budget_bytes"]), (&json!("four"), &json!(5249)));
        assert_eq!(figures["cycle_ns"].is_u64(), strategy != "auto");
        folder.run(&["check", "four.chain.json", "plan.json"]).done();
        let run = ["run", "four.chain.json", "--plan", "plan.json", "--json"];
        assert_eq!(folder.run(&run).done().json()["digests_match"], true);
    }
    let published = ["plan", "four.chain.json", "-s", "weights", "--set", "variant=published"];
    folder.run(&published).done();
    let compared = folder.run(&["compare", "four.chain.json", "-b", "100%"]).done();
    assert!(compared.stdout.contains("weights-undiscounted"));
    folder.run(&["import", "chain", "four.chain.json", "-o", "graph.json"]).done();
    folder.run(&["plan", "graph.json", "-s", "weights", "-b", "min"]).done();
}

#[test]
fn an_imported_graph_gets_other_names() {
    let folder = Folder::new();
    folder.write("four.chain.json", CHAIN);
    folder.run(&["import", "chain", "four.chain.json", "-o", "graph.json"]).done();
    let names = |file: &str| {
        let graph: Value = serde_json::from_slice(&fs::read(folder.path(file)).unwrap()).unwrap();
        let of = |field: &str| graph[field].as_array().unwrap().iter().map(|t| t["name"].clone());
        of("tensors").chain(of("ops")).collect::<Vec<_>>()
    };
    let before = names("graph.json");
    let (first, last) = (before[0].as_str().unwrap(), before[before.len() - 1].as_str().unwrap());
    folder.write("names.tsv", format!("{first}\tdecoder.0.weight\n{last}\tthe last op\n"));
    let import = ["import", "chain", "four.chain.json", "--names", "names.tsv", "-o", "named.json"];
    folder.run(&import).done();
    let after = names("named.json");
    assert_eq!(
        (&after[0], &after[after.len() - 1]),
        (&json!("decoder.0.weight"), &json!("the last op"))
    );
    assert_eq!(after[1..after.len() - 1], before[1..before.len() - 1]);
    folder.write("names.tsv", "nobody\tx\n");
    folder.run(&import).fails(2, &["names.tsv: line 1: no tensor or op is named \"nobody\""]);
}

#[test]
fn a_training_step_is_planned_as_a_chain() {
    let folder = Folder::new();
    let model = "gpt:batch=1,layers=2,sequence=16,width=64,vocabulary=99";
    let export = ["export", "chain", model, "--recompute", "-o", "gpt.chain.json"];
    let summary = folder.run(&export).done().stdout;
    assert!(summary.contains("in layers") && summary.contains("optimizer"), "{summary}");
    for more in [&[][..], &["--set", "activations=yes"]] {
        // To fix objects of a byte each takes its time.
        let plan = [
            "plan",
            "gpt.chain.json",
            "-s",
            "weights",
            "-b",
            "60%",
            "--no-placements",
            "-o",
            "plan.json",
        ];
        folder.run(&[&plan[..], more].concat()).done();
        folder.run(&["check", "gpt.chain.json", "plan.json"]).done();
        let run = ["run", "gpt.chain.json", "--plan", "plan.json", "--json"];
        assert_eq!(folder.run(&run).done().json()["digests_match"], true);
    }
    let stored = folder.run(&["export", "chain", "gpt.chain.json"]).done().stdout;
    assert!(stored.starts_with('{') && stored.contains("spillway.chain.v1"), "{stored}");
    let inference = ["export", "chain", "resnet50:batch=1,mode=inference"];
    folder.run(&inference).fails(1, &["not a training step"]);
}

#[test]
fn work_that_is_no_chain_is_refused_by_strategies_for_chains() {
    let folder = Folder::new();
    folder
        .run(&["plan", SMALL, "-s", "weights"])
        .fails(1, &["chains of layers only", "fc.bias.sgd", "`spillway export chain` converts"]);
    let compared = folder.run(&["compare", SMALL, "-b", "50%", "--no-placements"]).done();
    assert!(!compared.stdout.contains("weights"));
}

#[test]
fn auto_says_whether_it_reorders_ops() {
    let folder = Folder::new();
    let plan = |more: &[&str]| {
        let arguments = ["plan", SMALL, "-b", "50%", "-o", "plan.json"];
        folder.run(&[&arguments[..], more].concat()).done()
    };
    assert!(plan(&[]).stdout.contains("another order"));
    let free = plan(&["--json"]).json();
    assert_eq!(free["reordered"], true);
    check(&folder).done();
    assert!(!plan(&["--set", "order=given"]).stdout.contains("another order"));
    let given = plan(&["--set", "order=given", "--json"]).json();
    assert_eq!(given["reordered"], false);
    assert!(free["period_ns"].as_u64() < given["period_ns"].as_u64());
}

#[test]
fn plan_prints_the_figures_of_the_contract() {
    let folder = Folder::new();
    let figures = planned(&folder, "window");
    let number = |field: &str| figures[field].as_u64().unwrap_or_else(|| panic!("{field}"));
    assert_eq!(figures["graph"], format!("{SMALL},mode=training,tflops=14,memory_gb_s=800"));
    assert_eq!(
        (&figures["strategy"], &figures["machine"]),
        (&json!("window"), &json!("v100-pcie3"))
    );
    assert_eq!(figures["feasible"], true);
    assert_eq!(number("budget_bytes"), number("in_core_peak_bytes") / 2);
    assert!(number("min_feasible_bytes") < number("budget_bytes"));
    assert!(number("lower_bound_ns") <= number("period_ns"));
    assert_eq!(figures["lower_bound_order"], "given");
    let gap = number("period_ns") as f64 / number("lower_bound_ns") as f64 - 1.0;
    assert_eq!(figures["gap"], gap);
    let busy_ns = number("compute_ns") + number("repeat_ns");
    assert_eq!(number("stall_ns"), number("period_ns") - busy_ns);
    assert_eq!(number("repeats") > 0, number("repeat_ns") > 0);
    assert_eq!(number("waste_bytes"), number("peak_bytes") - number("requested_peak_bytes"));
    assert!(number("peak_bytes") <= number("budget_bytes"));
    for sum in ["h2d_bytes", "d2h_bytes"] {
        let kinds = figures[format!("{sum}_by_kind")].as_object().unwrap();
        assert_eq!(kinds.values().map(|bytes| bytes.as_u64().unwrap()).sum::<u64>(), number(sum));
    }
    assert!(number("host_bytes") > 0 && number("planning_ns") > 0);
    let plan: Value = serde_json::from_slice(&fs::read(folder.path("plan.json")).unwrap()).unwrap();
    assert_eq!(plan["steps"].as_array().unwrap().len() as u64, number("steps"));
    for field in ["period_ns", "compute_ns", "peak_bytes", "h2d_bytes", "d2h_bytes", "host_bytes"] {
        assert_eq!(plan["predicted"][field], figures[field], "{field}");
    }
}

#[test]
fn run_prints_the_figures_of_the_contract() {
    let folder = Folder::new();
    let run = |more: &[&str]| {
        let arguments = [&["run", SMALL, "-b", "min", "--json"], more].concat();
        folder.run(&arguments).done().json()
    };
    let ran = run(&[]);
    assert_eq!((&ran["backend"], &ran["iterations"]), (&json!("sim"), &json!(10)));
    assert_eq!(ran["device"], "simulated v100-pcie3");
    assert!(ran["measured_period_ns"].as_u64() >= ran["period_ns"].as_u64());
    let mapped = run(&["--no-placements"]);
    assert!(mapped["map_calls_per_iteration"].as_f64().unwrap() > 1.0);
    assert_eq!(mapped["digest"], ran["digest"]);
    assert_eq!(ran["digest"].as_str().unwrap().len(), 16);
    assert_eq!(ran["digest"], ran["reference_digest"]);
    assert_eq!(ran["planning_ns"].as_u64().map(|ns| ns > 0), Some(true));
    assert_eq!(run(&["--seed", "7"])["digest"], ran["digest"]);
    assert_ne!(run(&["--iterations", "1"])["digest"], ran["digest"]);
}

/// With placements, nothing is mapped during the run, and nothing else costs time.
#[test]
fn fixed_objects_are_mapped_before_the_first_iteration() {
    for strategy in ["on-demand", "fit", "vdnn", "lms", "window", "auto"] {
        let folder = Folder::new();
        let figures = planned(&folder, strategy);
        assert!(figures["placement_iterations"].as_u64() > Some(0), "{figures}");
        assert_eq!(figures["unplaced"], Value::Null);
        let run = ["run", SMALL, "--plan", "plan.json", "--json"];
        let ran = folder.run(&run).done().json();
        assert_eq!(ran["map_calls_per_iteration"], 0.0);
        assert_eq!(ran["measured_period_ns"], figures["period_ns"], "{strategy}");
        assert!(ran["setup_map_calls"].as_u64() >= ran["setup_virtual_ranges"].as_u64());
        assert!(ran["setup_mapping_ns"].as_u64() > Some(0));
        let run = ["run", SMALL, "-b", "50%", "-s", strategy, "--no-placements", "--json"];
        let mapped = folder.run(&run).done().json();
        assert_eq!(mapped["placement_iterations"], Value::Null);
        assert_eq!(figures["mapping_ns"], 0);
        assert!(mapped["mapping_ns"].as_u64() > Some(0));
        assert!(mapped["map_calls_per_iteration"].as_f64() > Some(1.0));
        let (placed_ns, plain_ns) = (figures["period_ns"].as_u64(), mapped["period_ns"].as_u64());
        assert!(placed_ns.unwrap() <= plain_ns.unwrap() + plain_ns.unwrap() / 100);
    }
}

#[test]
fn wrong_placements_are_refused_with_the_step() {
    let folder = Folder::new();
    planned(&folder, "window");
    let whole = fs::read(folder.path("plan.json")).unwrap();
    edit(&folder, |plan| plan["placements"][40][0] = json!(1_000_000));
    check(&folder).fails(1, &["plan.json: ", "placements[40] names object 1000000 of a pool of "]);
    folder.write("plan.json", &whole);
    edit(&folder, |plan| plan["placements"][40] = json!([]));
    check(&folder).fails(1, &["placements[40] names 0 objects, and "]);
    folder.write("plan.json", &whole);
    edit(&folder, |plan| {
        plan["placements"].as_array_mut().unwrap().pop();
    });
    check(&folder).fails(1, &["plan.json: step ", "names 0 objects"]);
    folder.write("plan.json", &whole);
    edit(&folder, |plan| {
        let placements = plan["placements"].as_array_mut().unwrap();
        let (first, rest) = placements.split_first_mut().unwrap();
        let count = first.as_array().unwrap().len();
        let alike = rest.iter_mut().find(|other| other.as_array().unwrap().len() == count);
        alike.unwrap().clone_from(first);
    });
    check(&folder).fails(1, &["plan.json: ", "lies in other objects than at the start"]);
    folder.write("plan.json", &whole);
    edit(&folder, |plan| plan["placement_iterations"] = json!(1_000_000_000));
    check(&folder).fails(1, &["plan.json: "]);
}

/// What is measured is the steady state, however long that lasts.
#[test]
fn more_iterations_measure_the_same() {
    let folder = Folder::new();
    let measured = |iterations: &str| {
        let run = ["run", SMALL, "-b", "40%", "-s", "vdnn", "--no-placements", "--json"];
        folder.run(&[&run[..], &["--iterations", iterations]].concat()).done().json()
    };
    let (few, many) = (measured("8"), measured("20"));
    assert_eq!(few["measured_period_ns"], many["measured_period_ns"]);
    assert_eq!(few["measured_period_ns"], few["period_ns"]);
    let calls = |ran: &Value| ran["map_calls_per_iteration"].as_f64().unwrap();
    assert!((calls(&few) / calls(&many) - 1.0).abs() < 0.02, "{few} {many}");
}

/// Free mapping calls leave nothing that a prediction does not know.
#[test]
fn a_run_measures_what_was_predicted() {
    let folder = Folder::new();
    let machine = r#"{"format":"spillway.machine.v1","name":"m","device_bytes":1073741824,"host_bytes":9000000000,"chunk_bytes":65536,"h2d_bytes_per_s":9000000000,"d2h_bytes_per_s":9000000000,"transfer_latency_ns":10,"map_ns_per_chunk":0,"unmap_ns_per_chunk":0}"#;
    folder.write("m.json", machine);
    for strategy in ["in-core", "on-demand"] {
        let budget = if strategy == "in-core" { "1GiB" } else { "40%" };
        let arguments = ["run", SMALL, "-m", "m.json", "-b", budget, "-s", strategy, "--json"];
        let ran = folder.run(&arguments).done().json();
        assert_eq!(ran["measured_period_ns"], ran["period_ns"], "{strategy}");
    }
}

/// The simulated device knows what memory should hold, and holds no bytes.
#[test]
fn work_is_rehearsed_that_is_larger_than_the_memory_of_the_machine() {
    let program = env!("CARGO_BIN_EXE_spillway");
    let arguments = "run llama:billions=70,layers=2,micro=2 -m rtx4090 -b 16GiB --set effort=0 \
                     --iterations 2 --json";
    let limited = format!("ulimit -v 2000000 && exec {program} {arguments}");
    let output = Command::new("sh").args(["-c", &limited]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let ran: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(ran["in_core_peak_bytes"].as_u64() > Some(60 << 30), "{}", ran["in_core_peak_bytes"]);
    assert_eq!((&ran["digest"], &ran["digests_match"]), (&ran["in_core_digest"], &json!(true)));
}

#[test]
fn a_plan_needs_no_more_than_the_hosts_memory() {
    let folder = Folder::new();
    let arguments = ["plan", SMALL, "-b", "20%", "-s", "window", "--json"];
    let figures = folder.run(&arguments).done().json();
    let packed_bytes = figures["host_bytes"].as_u64().unwrap();
    let unshared_bytes = figures["host_unshared_bytes"].as_u64().unwrap();
    assert!(packed_bytes < unshared_bytes);
    let plan = |host_bytes: u64, more: &[&str]| {
        let machine = format!(
            r#"{{"format":"spillway.machine.v1","name":"m","device_bytes":17179869184,"host_bytes":{host_bytes},"chunk_bytes":2097152,"h2d_bytes_per_s":12000000000,"d2h_bytes_per_s":12000000000,"transfer_latency_ns":10000,"map_ns_per_chunk":0,"unmap_ns_per_chunk":0}}"#
        );
        folder.write("m.json", machine);
        let arguments = ["run", SMALL, "-m", "m.json", "-b", "20%", "-s", "window"];
        folder.run(&[&arguments[..], more].concat())
    };
    let just = plan(packed_bytes, &["--json"]).done().json();
    assert_eq!((&just["host_bytes"], &just["digests_match"]), (&json!(packed_bytes), &json!(true)));
    let shown = plan(packed_bytes, &[]).done().stdout;
    assert!(shown.contains(" pinned; ") && shown.contains("a whole slot for each tensor"));
    let has = format!("({} bytes); a host with this much memory is enough", packed_bytes - 1);
    plan(packed_bytes - 1, &[]).fails(1, &["bytes) of pinned host memory, the machine has ", &has]);
    let states = "other states, for which the host has no memory";
    plan(1000, &[]).fails(1, &["the budget of 74.7 MiB", "is too small: op ", states]);
}

#[test]
fn the_same_input_gives_the_same_file() {
    let folder = Folder::new();
    for strategy in ["in-core", "on-demand", "fit", "vdnn", "lms", "window", "auto"] {
        let budget = if strategy == "in-core" { "16GiB" } else { "60%" };
        for file in ["one.json", "other.json", "one.json.gz", "other.json.gz"] {
            folder.run(&["plan", SMALL, "-b", budget, "-s", strategy, "-o", file]).done();
        }
        let read = |file: &str| fs::read(folder.path(file)).unwrap();
        assert_eq!(read("one.json"), read("other.json"));
        assert_eq!(read("one.json.gz"), read("other.json.gz"));
        assert!(read("one.json.gz").len() < read("one.json").len());
    }
}

#[test]
fn graphs_and_plans_come_through_pipes() {
    let folder = Folder::new();
    let graph = folder.run(&["model", SMALL]).done();
    assert!(graph.stderr.contains("temporaries"), "{}", graph.stderr);
    let plan = folder.run_with(&["plan", "-", "-b", "50%", "-o", "-"], graph.stdout.as_bytes());
    let plan = plan.done();
    assert!(plan.stderr.contains("proved safe"), "{}", plan.stderr);
    folder.run_with(&["check", SMALL, "-"], plan.stdout.as_bytes()).done();
    folder.run(&["model", SMALL, "-o", "g.json.gz"]).done();
    folder.run_with(&["run", "g.json.gz", "--plan", "-"], plan.stdout.as_bytes()).done();
    folder.run_with(&["plan", "-"], b"").fails(2, &["standard input: the file is empty"]);
}

#[test]
fn a_model_is_one_even_beside_a_file_of_its_name() {
    let folder = Folder::new();
    folder.write("resnet50", "no graph");
    folder.run(&["plan", "resnet50"]).done();
    folder.run(&["plan", "./resnet50"]).fails(2, &["error: ./resnet50: "]);
}

#[test]
fn an_infeasible_budget_names_the_op_and_the_least_that_will_do() {
    let folder = Folder::new();
    let least = folder.run(&["plan", SMALL, "--json"]).done().json()["min_feasible_bytes"].clone();
    let below = (least.as_u64().unwrap() - 1).to_string();
    for command in ["plan", "run"] {
        let ran = folder.run(&[command, SMALL, "-b", &below]);
        ran.fails(1, &["is too small: op ", "(\"", &format!("({least} bytes)")]);
    }
    let arguments = ["plan", SMALL, "-b", &below, "-o", "p.json", "--json", "--report", "r.html"];
    let ran = folder.run(&arguments).fails_with_output(1, &["too small"]);
    let figures = ran.json();
    assert_eq!((&figures["feasible"], &figures["min_feasible_bytes"]), (&json!(false), &least));
    for unknown in ["period_ns", "stall_ns", "peak_bytes", "h2d_bytes", "host_bytes", "steps"] {
        assert_eq!(figures.get(unknown), Some(&Value::Null), "{unknown}");
    }
    assert!(folder.files().is_empty());
    for strategy in ["in-core", "on-demand", "fit", "vdnn", "lms", "window", "auto"] {
        folder.run(&["plan", SMALL, "-b", "min", "-s", strategy]).done();
    }
}

/// A graph far smaller than a chunk.
#[test]
fn all_of_the_memory_is_enough_for_small_work() {
    let folder = Folder::new();
    folder.write(
        "g.json",
        r#"{"format":"spillway.graph.v1","name":"g","tensors":[{"name":"w","bytes":1,"kind":"state"}],"ops":[{"name":"o","time_ns":1,"reads":[0],"writes":[0]}]}"#,
    );
    for strategy in ["in-core", "auto", "lms", "checkpoint"] {
        let plan = |budget| folder.run(&["plan", "g.json", "-b", budget, "-s", strategy, "--json"]);
        let figures = plan("100%").done().json();
        assert_eq!(figures["in_core_peak_bytes"], 1);
        assert_eq!(figures["budget_bytes"], 2 << 20);
        let method = if strategy == "auto" { "in-core" } else { strategy };
        assert_eq!(figures["method"], method);
        plan("99%").fails_with_output(1, &["the budget of 0 B"]);
    }
}

#[test]
fn a_share_without_its_sign_is_explained() {
    let folder = Folder::new();
    folder
        .run(&["plan", SMALL, "-b", "35"])
        .fails(1, &["the budget of 35 B", "35% is a share", "min the smallest budget"]);
}

#[test]
fn a_budget_above_the_device_is_refused() {
    let folder = Folder::new();
    let ran = folder.run(&["plan", SMALL, "-b", "17GiB", "--json"]);
    let ran = ran.fails_with_output(1, &["18253611008", "17179869184"]);
    assert_eq!(ran.json()["feasible"], false);
}

#[test]
fn a_plan_for_something_else_names_both() {
    let folder = Folder::new();
    planned(&folder, "auto");
    let other = "resnet50:batch=3,image=64";
    for arguments in [&["check", other, "plan.json"][..], &["run", other, "--plan", "plan.json"]] {
        folder.run(arguments).fails(1, &["plan.json: ", "batch=2", "batch=3"]);
    }
    let nvlink = ["-m", "v100-nvlink"];
    for arguments in [&["check", SMALL, "plan.json"][..], &["run", SMALL, "--plan", "plan.json"]] {
        let ran = folder.run(&[arguments, &nvlink].concat());
        ran.fails(1, &["plan.json: ", "\"v100-pcie3\"", "\"v100-nvlink\""]);
    }
    edit(&folder, |plan| plan["machine"] = json!("abacus"));
    check(&folder).fails(1, &["\"abacus\"", "\"v100-pcie3\""]);
}

#[test]
fn the_machine_of_a_plan_is_found() {
    let folder = Folder::new();
    folder.run(&["plan", SMALL, "-m", "v100-nvlink", "-o", "plan.json"]).done();
    let checked = folder.run(&["check", SMALL, "plan.json", "--json"]).done().json();
    assert_eq!(checked["machine"], "v100-nvlink");
    let run = ["run", SMALL, "--plan", "plan.json", "--iterations", "1", "--json"];
    assert_eq!(folder.run(&run).done().json()["machine"], "v100-nvlink");
}

#[test]
fn a_plan_without_a_step_is_refused_with_the_step() {
    let folder = Folder::new();
    planned(&folder, "on-demand");
    let position = |plan: &Value, what: &str| {
        let steps = plan["steps"].as_array().unwrap();
        steps.iter().position(|step| step[0] == what).unwrap()
    };
    edit(&folder, |plan| {
        let offload = position(plan, "offload");
        plan["steps"].as_array_mut().unwrap().remove(offload);
    });
    check(&folder).fails(1, &["plan.json: step ", "evict of tensor ", "(\""]);
    folder.run(&["run", SMALL, "--plan", "plan.json"]).fails(1, &["plan.json: step "]);
    let ran = folder.run(&["check", SMALL, "plan.json", "--json"]).fails_with_output(1, &["step"]);
    assert_eq!(ran.json()["valid"], false);
    assert!(ran.json()["reason"].as_str().unwrap().starts_with("step "));
}

#[test]
fn ids_out_of_range_are_refused_with_the_step() {
    let folder = Folder::new();
    planned(&folder, "on-demand");
    edit(&folder, |plan| plan["steps"][3] = json!(["prefetch", 99999]));
    check(&folder).fails(1, &["step 3", "there is no tensor 99999"]);
    edit(&folder, |plan| plan["steps"][3] = json!(["launch", 99999]));
    check(&folder).fails(1, &["step 3", "there is no op 99999"]);
    edit(&folder, |plan| plan["steps"] = json!([]));
    check(&folder).fails(1, &["never runs", "op 0 (\""]);
}

#[test]
fn promises_must_be_exact() {
    for field in ["period_ns", "compute_ns", "peak_bytes", "h2d_bytes", "d2h_bytes"] {
        let folder = Folder::new();
        planned(&folder, "window");
        edit(&folder, |plan| {
            let figure = &mut plan["predicted"][field];
            *figure = json!(figure.as_u64().unwrap() + 1);
        });
        check(&folder).fails(1, &[&format!("predicted.{field} is ")]);
    }
    let folder = Folder::new();
    planned(&folder, "window");
    edit(&folder, |plan| plan["predicted"]["host_bytes"] = json!(0));
    check(&folder).fails(1, &["predicted.host_bytes"]);
}

#[test]
fn parameters_reach_the_strategy() {
    let folder = Folder::new();
    let moved = |settings: &[&str]| {
        let arguments = ["plan", SMALL, "-b", "40%", "-s", "window", "--json"];
        folder.run(&[&arguments[..], settings].concat()).done().json()["d2h_bytes"].as_u64()
    };
    let sized = ["--set", "bytes=32MiB"];
    assert!(moved(&sized) < moved(&[&sized[..], &["--set", "variant=published"]].concat()));
    assert_ne!(moved(&sized), moved(&["--set", "bytes=1"]));
}

#[test]
fn files_that_cannot_be_written_leave_nothing() {
    let folder = Folder::new();
    folder
        .run(&["plan", SMALL, "-o", "no/plan.json"])
        .fails(1, &["no/plan.json: cannot be written"]);
    folder.run(&["model", SMALL, "-o", "no/g.json"]).fails(1, &["no/g.json: cannot be written"]);
    folder.run(&["plan", SMALL, "--trace", "no/t"]).fails(1, &["no/t: cannot be written"]);
    assert!(folder.files().is_empty());
}

/// What no plan in the given order can beat, one in another order may.
#[test]
fn a_bound_is_for_the_order_of_its_plan() {
    let folder = Folder::new();
    let op = |id: usize| json!({ "name": "f", "time_ns": 1000, "reads": [], "writes": [id] });
    let tensor = json!({ "name": "t", "bytes": 4096, "kind": "temporary" });
    let graph = json!({
        "format": "spillway.graph.v1",
        "name": "twins",
        "tensors": [tensor, tensor],
        "ops": [op(0), op(1)],
    });
    folder.write("g.json", serde_json::to_vec(&graph).unwrap());
    folder.run(&["plan", "g.json", "-o", "plan.json"]).done();
    let order = || {
        let checked = folder.run(&["check", "g.json", "plan.json", "--json"]).done().json();
        checked["lower_bound_order"].as_str().unwrap().to_owned()
    };
    assert_eq!(order(), "given");
    edit(&folder, |plan| {
        for step in plan["steps"].as_array_mut().unwrap() {
            step[1] = json!(1 - step[1].as_u64().unwrap());
        }
    });
    assert_eq!(order(), "any");
}

/// What `plan` finds, `check` adds up again, with a plan and without.
#[test]
fn a_certificate_is_checked() {
    let folder = Folder::new();
    let arguments = ["plan", SMALL, "-b", "50%", "-o", "plan.json", "--certificate", "bound.json"];
    folder.run(&arguments).done();
    let figures = folder.run(&["plan", SMALL, "-b", "50%", "--json"]).done().json();
    let alone = ["check", SMALL, "--certificate", "bound.json"];
    assert!(folder.run(&alone).done().stdout.starts_with("proved: no plan"));
    let proved = folder.run(&[&alone[..], &["--json"]].concat()).done().json();
    let bound_ns = proved["certificate"]["bound_ns"].as_u64().unwrap();
    assert!(figures["compute_ns"].as_u64().unwrap() <= bound_ns);
    assert!(bound_ns <= figures["lower_bound_ns"].as_u64().unwrap());
    let both = ["check", SMALL, "plan.json", "--certificate", "bound.json"];
    let text = folder.run(&both).done().stdout;
    assert!(text.starts_with("valid: ") && text.contains("\nproved: "), "{text}");
    let with_plan = folder.run(&[&both[..], &["--json"]].concat()).done().json();
    assert_eq!(with_plan["certificate"], proved["certificate"]);

    let certificate: Value =
        serde_json::from_slice(&fs::read(folder.path("bound.json")).unwrap()).unwrap();
    let refused = |field: &str, value: Value, status, text: &str| {
        let mut changed = certificate.clone();
        changed[field] = value;
        folder.write("changed.json", serde_json::to_vec(&changed).unwrap());
        let arguments = ["check", SMALL, "plan.json", "--certificate", "changed.json"];
        folder.run(&arguments).fails(status, &["changed.json", text]);
    };
    refused("bound_ns", json!(bound_ns + 1), 1, "it claims that no plan takes less than");
    refused("graph", json!("other"), 1, "the certificate is for the graph");
    refused("machine", json!("other"), 1, "the certificate is for the machine");
    refused("marks", json!([]), 2, "0 marks need 1 intervals");
    refused("order", json!("none"), 2, "order");
    refused("intervals", json!([{"memory": 0, "upload": -1, "download": 0}]), 2, "intervals[0]");
    // What holds for less memory says nothing of a plan that has more.
    let less = ["plan", SMALL, "-b", "40%", "--certificate", "less.json"];
    folder.run(&less).done();
    let arguments = ["check", SMALL, "plan.json", "--certificate", "less.json"];
    folder
        .run(&arguments)
        .fails(1, &["the certificate does not hold for this plan: its budget is smaller"]);
    folder.run(&["check", SMALL]).fails(2, &["<PLAN>"]);
}
