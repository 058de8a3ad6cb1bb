//! Files that take more memory than there is, and text that is none.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::Folder;
use std::fs;
use std::process::Command;

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
