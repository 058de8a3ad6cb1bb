//! Real graphs and traces.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::Folder;
use serde_json::Value;
use std::process::ExitCode;

fn main() -> ExitCode {
    test_harness::with_shared(
        &["data", "graphs"],
        &[
            (
                "recorded_graphs_are_planned_checked_and_run",
                recorded_graphs_are_planned_checked_and_run,
            ),
            ("traces_become_the_recorded_graphs", traces_become_the_recorded_graphs),
            (
                "an_import_without_a_file_goes_down_the_pipe",
                an_import_without_a_file_goes_down_the_pipe,
            ),
            ("traces_of_another_run_are_named", traces_of_another_run_are_named),
        ],
    )
}

fn shared(path: &str) -> String {
    test_harness::shared(path).into_os_string().into_string().unwrap()
}

fn recorded_graphs_are_planned_checked_and_run() {
    for name in ["resnet50_et", "linear_et"] {
        let graph = shared(&format!("graphs/{name}.graph.json.gz"));
        for strategy in ["window", "on-demand"] {
            for budget in ["50%", "min"] {
                round_trip(&graph, strategy, budget);
            }
        }
    }
}

fn round_trip(graph: &str, strategy: &str, budget: &str) {
    let folder = Folder::new();
    folder.run(&["plan", graph, "-s", strategy, "-b", budget, "-o", "plan.json"]).done();
    let check = folder.run(&["check", graph, "plan.json"]).done();
    assert!(check.stdout.contains("all memory is mapped before the first "), "{}", check.stdout);
    let run = ["run", graph, "--plan", "plan.json", "--iterations", "3", "--json"];
    let ran = folder.run(&run).done().json();
    assert_eq!(ran["digests_match"], true);
    let seeded = folder.run(&[&run[..], &["--seed", "1"]].concat()).done().json();
    assert_eq!(seeded["digest"], ran["digest"]);
}

fn traces_become_the_recorded_graphs() {
    let folder = Folder::new();
    for (trace, kineto, graph) in [
        ("resnet50_1gpu_et", None, "resnet50_et"),
        ("linear_et", Some("linear_kineto"), "linear_et"),
    ] {
        let trace = shared(&format!("data/{trace}.json.gz"));
        let kineto = kineto.map(|name| shared(&format!("data/{name}.json.gz")));
        let mut arguments = vec!["import", "pytorch", &trace, "--name", graph, "-o", "g.json"];
        if let Some(kineto) = &kineto {
            arguments.extend(["--kineto", kineto]);
        }
        let summary = folder.run(&arguments).done().stdout;
        assert!(summary.contains("in-core") && summary.contains("temporaries"), "{summary}");
        assert_eq!(summary.contains("kernels"), kineto.is_some(), "{summary}");
        let known = shared(&format!("graphs/{graph}.graph.json.gz"));
        let known = workloads::format::load(known).unwrap();
        let made = workloads::format::load(folder.path("g.json")).unwrap();
        let ops = |bytes: &[u8]| {
            let graph: Value = serde_json::from_slice(bytes).unwrap();
            graph["ops"].as_array().unwrap().len()
        };
        assert_eq!(ops(&made), ops(&known), "{graph}");
        assert_ne!(made.len(), 0);
    }
}

fn an_import_without_a_file_goes_down_the_pipe() {
    let folder = Folder::new();
    let trace = shared("data/linear_et.json.gz");
    let imported = folder.run(&["import", "pytorch", &trace]).done();
    assert!(imported.stderr.contains("roofline estimates"), "{}", imported.stderr);
    let plan = ["plan", "-", "-b", "50%", "--json"];
    let figures = folder.run_with(&plan, imported.stdout.as_bytes()).done().json();
    assert_eq!(figures["graph"], "linear_et");
}

fn traces_of_another_run_are_named() {
    let folder = Folder::new();
    folder.write("text.json", "no trace");
    let trace = shared("data/linear_et.json.gz");
    let import = ["import", "pytorch", &trace, "--kineto"];
    folder.run(&[&import[..], &["text.json"]].concat()).fails(2, &["error: text.json: "]);
    let other = shared("data/linear_kineto.json.gz");
    let resnet = shared("data/resnet50_1gpu_et.json.gz");
    let mixed = folder.run(&["import", "pytorch", &resnet, "--kineto", &other]);
    mixed.fails(1, &["linear_kineto", "resnet50_1gpu_et"]);
}
