//! Files that kept a command busy, or took all memory.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::Folder;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// A folder of shared cases; none, which is said, where it is not there.
fn case(name: &str) -> Option<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/cases").join(name);
    let found = path.is_dir();
    if !found {
        eprintln!("skipped: there is no {}", path.display());
    }
    found.then(|| path.to_str().unwrap().to_owned())
}

#[test]
fn large_counts_are_judged_at_once() {
    let Some(case) = case("hang") else { return };
    for (graph, plan) in [("graph", "plan"), ("graph20", "plan20")] {
        let [graph, plan, machine] =
            [graph, plan, "machine"].map(|name| format!("{case}/{name}.json"));
        let start = Instant::now();
        let ran = Folder::new().run(&["check", &graph, &plan, "-m", &machine]);
        // It took 24 s and more; a busy machine may take its time to start a process.
        assert!(start.elapsed() < Duration::from_secs(5));
        assert_eq!(ran.status, 1);
        assert!(ran.stderr.contains("is resident already"), "{}", ran.stderr);
    }
}

#[test]
fn too_many_placement_iterations_are_refused() {
    let Some(case) = case("memory") else { return };
    let [graph, machine] = ["graph", "machine"].map(|name| format!("{case}/{name}.json"));
    for iterations in ["20000000", "100000000"] {
        let plan = format!("{case}/b_plan_{iterations}.json");
        let ran = Folder::new().run(&["check", &graph, &plan, "-m", &machine]);
        assert_eq!(ran.status, 1);
        let expected = format!("placement_iterations is {iterations}, and must be 1 to 64");
        assert!(ran.stderr.contains(&expected), "{}", ran.stderr);
    }
}

/// Files whose values take more memory than there is.
#[cfg(target_os = "linux")]
#[test]
fn files_that_memory_is_too_small_for_are_refused() {
    let folder = Folder::new();
    let plan = r#"{"format": "spillway.plan.v1", "graph": "g", "machine": "m", "strategy": "x",
        "budget_bytes": 1, "pools": [], "resident_at_start": [], "predicted": {}, "steps": ["#;
    folder.write("plan.json", format!("{plan}{}[]]}}", "[],".repeat(4 << 20)));
    let trace = r#"{"nodes": [{"id": 1, "name": "a", "parent": 1, "outputs": [], "inputs": ["#;
    folder.write("trace.json", format!("{trace}{}[]]}}]}}", "[],".repeat(4 << 20)));
    let commands = [
        vec!["check", common::SMALL, "plan.json"],
        vec!["import", "pytorch", "trace.json"],
        vec!["import", "pytorch", "trace.json", "--kineto", "trace.json"],
    ];
    for mebibytes in [40, 80, 160, 320] {
        for command in &commands {
            let program = env!("CARGO_BIN_EXE_spillway");
            let shell = format!("ulimit -v {}; exec {program} \"$@\"", mebibytes << 10);
            let ran = Command::new("sh")
                .args(["-c", &shell, "sh"])
                .args(command)
                .current_dir(folder.path("."))
                .output()
                .unwrap();
            let stderr = String::from_utf8_lossy(&ran.stderr);
            assert_eq!(ran.status.code(), Some(2), "{mebibytes} MiB: {stderr}");
            let said = stderr.contains("out of memory") || stderr.contains("cannot be had");
            assert!(said && stderr.starts_with("error: "), "{mebibytes} MiB: {stderr}");
        }
    }
}

#[test]
fn invalid_text_is_refused_in_every_file() {
    let folder = Folder::new();
    fs::write(folder.path("bad.json"), b"{\"x\": \"\xff\"}").unwrap();
    let small = common::SMALL;
    for command in [
        vec!["check", "bad.json", "plan.json"],
        vec!["check", small, "bad.json"],
        vec!["plan", small, "-b", "50%", "-m", "bad.json"],
        vec!["import", "chain", "bad.json"],
        vec!["import", "pytorch", "bad.json"],
    ] {
        let ran = folder.run(&command);
        assert_eq!(ran.status, 2, "{command:?}");
        assert!(ran.stderr.contains("line 1 column 8: invalid UTF-8"), "{}", ran.stderr);
    }
}
