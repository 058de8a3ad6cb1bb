//! Files that take more memory than there is, and text that is none.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use crate::common;
use crate::common::Folder;
use std::fs;
use std::process::Command;

/// Runs the program with little memory. Returns its status, none if it aborts, and what it says.
#[cfg(target_os = "linux")]
fn run_within(folder: &Folder, mebibytes: u64, command: &[&str]) -> (Option<i32>, String) {
    let program = env!("CARGO_BIN_EXE_spillway");
    let shell = format!("ulimit -v {}; exec {program} \"$@\"", mebibytes << 10);
    let ran = Command::new("sh")
        .args(["-c", &shell, "sh"])
        .args(command)
        .current_dir(folder.path("."))
        .output()
        .unwrap();
    (ran.status.code(), String::from_utf8_lossy(&ran.stderr).into_owned())
}

/// A graph that can be read in less memory than planning takes.
#[cfg(target_os = "linux")]
#[test]
fn plans_that_memory_is_too_small_for_are_refused() {
    let folder = Folder::new();
    let tensors = vec![r#"{"name": "t", "bytes": 1048576, "kind": "state"}"#; 30_000].join(",");
    let op = |at| format!(r#"{{"name": "o", "time_ns": 1, "reads": [{at}], "writes": []}}"#);
    let ops = (0..30_000).map(op).collect::<Vec<_>>().join(",");
    let format = r#""format": "spillway.graph.v1", "name": "g""#;
    folder.write("g.json", format!(r#"{{{format}, "tensors": [{tensors}], "ops": [{ops}]}}"#));
    let command = ["plan", "g.json", "-b", "64MiB", "-s", "window", "-o", "p.json"];
    let mut refused = 0;
    for mebibytes in (30..100).step_by(5) {
        let (status, stderr) = run_within(&folder, mebibytes, &command);
        assert!([Some(0), Some(1), Some(2)].contains(&status), "{mebibytes} MiB: {stderr}");
        let said = stderr.starts_with("error: working memory is too small");
        assert_eq!(said, status == Some(1), "{mebibytes} MiB: {stderr}");
        refused += u32::from(said);
    }
    assert!(refused > 0, "planning always had the memory");
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
            let (status, stderr) = run_within(&folder, mebibytes, command);
            assert_eq!(status, Some(2), "{mebibytes} MiB: {stderr}");
            let said = stderr.contains("out of memory") || stderr.contains("cannot be allocated");
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
