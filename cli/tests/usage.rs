//! Bad usage and malformed files: exit status 2, and a message that says where.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use crate::common::{Folder, SMALL};
use workloads::format::compress;

const GRAPH: &str = r#"{"format":"spillway.graph.v1","name":"g","tensors":[{"name":"w","bytes":4,"kind":"state"}],"ops":[{"name":"o","time_ns":1,"reads":[0],"writes":[]}]}"#;

#[test]
fn bad_usage_has_status_2() {
    let folder = Folder::new();
    for (arguments, words) in [
        (&[][..], "Usage"),
        (&["fly"], "unrecognized subcommand"),
        (&["plan"], "<WORK>"),
        (&["plan", SMALL, "--budget", "lots"], "a budget is a size"),
        (&["plan", SMALL, "--budget", "-5%"], "--budget"),
        (
            &["plan", SMALL, "--strategy", "magic"],
            "lms, window, weights, weights-undiscounted, layer-to-layer, checkpoint, checkpoint-offload, split, optimizer-offload, auto, ",
        ),
        (&["plan", SMALL, "--set", "bytes=1"], "auto has no parameter"),
        (&["plan", SMALL, "-s", "window", "--set", "size=1"], "it has bytes, variant"),
        (&["plan", SMALL, "-m", "cray"], "built-in machines are v100-pcie3"),
        (&["plan", SMALL, "-m", "cray.json"], "cray.json: cannot be read"),
        (&["plan", SMALL, "-o", "-", "--json"], "standard output"),
        (&["run", SMALL, "--iterations", "0"], "--iterations"),
        (&["run", SMALL, "--backend", "abacus"], "[possible values: sim, vulkan, cuda]"),
        (&["conformance"], "--backend"),
        (&["conformance", "--backend", "abacus"], "[possible values: sim, host, vulkan, cuda]"),
        (&["run", SMALL, "--plan", "p.json", "--budget", "min"], "cannot be used with"),
        (&["run", "-", "--plan", "-"], "only one of WORK and PLAN"),
        (&["check", "-", "-"], "only one of WORK, PLAN and the certificate"),
        (&["check", SMALL], "<PLAN>"),
        (&["model", "resnet51"], "known are resnet50"),
        (&["model", "resnet50:batch=0"], "batch must be an integer"),
        (&["plan", "resnet50:size=3"], "it has batch"),
        (&["import", "slides", "c.json"], "unrecognized subcommand"),
        (&["import", "pytorch", "t.json", "--device", "tpu"], "cuda, cpu"),
    ] {
        folder.run(arguments).fails(2, &[words]);
    }
    assert!(folder.files().is_empty());
}

#[test]
fn the_help_names_the_commands() {
    let folder = Folder::new();
    let help = folder.run(&["--help"]).done().stdout;
    assert!(help.contains("\n  import "), "{help}");
}

/// The loader is shown a driver that is none, so that a machine's own does not matter.
#[test]
fn where_there_is_no_cuda_a_sentence_says_so() {
    let folder = Folder::new();
    let nowhere = [("SPILLWAY_CUDA_DRIVER", "nowhere/libcuda.so")];
    folder.run_in(&nowhere, &["run", SMALL, "--backend", "cuda"]).fails(1, &["nowhere/libcuda.so"]);
    let devices = folder.run_in(&nowhere, &["devices"]).done().stdout;
    assert!(devices.contains("\ncuda: no device: nowhere/libcuda.so"), "{devices}");
    folder.run(&["run", SMALL, "--graph"]).fails(2, &["--graph needs the backend cuda"]);
}

/// Without a driver, or without a loader to look for one.
#[test]
fn where_there_is_no_vulkan_a_sentence_says_so() {
    let folder = Folder::new();
    let none = [
        ("VK_DRIVER_FILES", "none.json"),
        ("VK_ICD_FILENAMES", "none.json"),
        ("SPILLWAY_REQUIRE_DEVICES", "0"),
    ];
    let run = ["run", SMALL, "--backend", "vulkan"];
    folder.run_in(&none, &run).fails(1, &["Vulkan"]);
    let checked = folder.run_in(&none, &["conformance", "--backend", "vulkan", "--json"]);
    let checked = checked.fails_with_output(1, &["vulkan has no device"]).json();
    assert_eq!(checked["passed"].as_array().map(Vec::len), Some(0));
    assert!(checked["ignored"][0]["reason"].as_str().unwrap().contains("Vulkan"), "{checked}");
    let devices = folder.run_in(&none, &["devices", "--json"]).done().json();
    assert_eq!(devices["devices"].as_array().map(Vec::len), Some(0));
    assert_eq!(devices["unavailable"][0]["backend"], "vulkan");
    let shown = folder.run_in(&none, &["devices"]).done().stdout;
    assert!(shown.contains("vulkan: no device: "), "{shown}");
}

/// The JSON object has the message from standard error, with what is known.
#[test]
fn with_json_every_status_1_has_an_object() {
    let folder = Folder::new();
    folder.run(&["plan", SMALL, "-o", "plan.json"]).done();
    let nowhere =
        [("SPILLWAY_CUDA_DRIVER", "nowhere/libcuda.so"), ("VK_DRIVER_FILES", "none.json")];
    let other = "resnet50:batch=1,image=32";
    let commands: [(&[&str], &[&str]); 10] = [
        (&["plan", SMALL, "-b", "1MiB"], &["min_feasible_bytes"]),
        (&["plan", SMALL, "-s", "weights"], &[]),
        (&["plan", SMALL, "-o", "no/plan.json"], &[]),
        (&["check", other, "plan.json"], &["in_core_peak_bytes"]),
        (&["run", other, "--plan", "plan.json"], &["in_core_peak_bytes"]),
        (&["run", SMALL, "-b", "1MiB"], &["min_feasible_bytes"]),
        (&["run", SMALL, "--plan", "plan.json", "--backend", "cuda"], &["period_ns"]),
        (&["compare", SMALL, "--strategies", "fit", "--plot", "no/f.svg"], &[]),
        (&["conformance", "--backend", "cuda"], &["backend", "passed"]),
        (&["measure"], &[]),
    ];
    for (command, known) in commands {
        let ran = folder.run_in(&nowhere, &[command, &["--json"]].concat());
        let ran = ran.fails_with_output(1, &[]);
        let report = ran.json();
        let reason = report["reason"].as_str().unwrap_or_else(|| panic!("{ran:?}"));
        assert!(!reason.is_empty() && ran.stderr.contains(reason), "{ran:?}");
        assert!(known.iter().all(|&figure| !report[figure].is_null()), "{known:?} in {ran:?}");
    }
    folder.run(&["check", SMALL, "none.json", "--json"]).fails(2, &["none.json"]);
}

#[test]
fn malformed_work_is_named_with_the_place() {
    let folder = Folder::new();
    let whole = compress(GRAPH.as_bytes());
    folder.write("empty.json", "");
    folder.write("text.json", "hello");
    folder.write("cut.json", &GRAPH[..GRAPH.len() / 2]);
    folder.write("cut.json.gz", &whole[..whole.len() - 9]);
    folder.write("other.json", GRAPH.replace("graph.v1", "graph.v2"));
    folder.write("kind.json", GRAPH.replace(r#""kind":"state""#, r#""kind":"weight""#));
    folder.write("range.json", GRAPH.replace("[0]", "[7]"));
    folder.write("bytes.json", GRAPH.replace(r#""bytes":4"#, r#""bytes":0"#));
    folder.write("machine.json", r#"{"format":"spillway.machine.v1"}"#);
    for (file, words) in [
        ("missing.json", &["cannot be read"][..]),
        ("empty.json", &["the file is empty"]),
        ("text.json", &["line 1 column 1"]),
        ("cut.json", &["line 1 column"]),
        ("cut.json.gz", &["gzip data is damaged"]),
        ("other.json", &["spillway.graph.v2", "unknown"]),
        ("kind.json", &["tensors[0].kind", "weight"]),
        ("range.json", &["op 0 (\"o\")", "tensor 7"]),
        ("bytes.json", &["tensor 0 (\"w\")", "zero bytes"]),
        ("machine.json", &["spillway.machine.v1", "spillway.graph.v1 is expected"]),
        (".", &["cannot be read"]),
    ] {
        for arguments in
            [&["plan", file, "-o", "plan.json"][..], &["check", file, "p"], &["run", file]]
        {
            let ran = folder.run(arguments).fails(2, words);
            assert!(ran.stderr.starts_with(&format!("error: {file}: ")), "{ran:?}");
            assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
        }
    }
    assert!(!folder.path("plan.json").exists());
}

#[test]
fn malformed_plans_and_machines_are_named_with_the_place() {
    let folder = Folder::new();
    folder.run(&["plan", SMALL, "-o", "plan.json"]).done();
    let plan = std::fs::read_to_string(folder.path("plan.json")).unwrap();
    folder.write("empty.json", "");
    folder.write("step.json", plan.replacen("\"launch\"", "\"lunch\"", 1));
    folder.write("graph.json", GRAPH);
    let machine = r#"{"format":"spillway.machine.v1","name":"m","device_bytes":1,"host_bytes":1,"chunk_bytes":0,"h2d_bytes_per_s":1,"d2h_bytes_per_s":1,"transfer_latency_ns":0,"map_ns_per_chunk":0,"unmap_ns_per_chunk":0}"#;
    folder.write("chunk.json", machine);
    for (file, words) in [
        ("missing.json", &["cannot be read"][..]),
        ("empty.json", &["the file is empty"]),
        ("step.json", &["steps[", "lunch"]),
        ("graph.json", &["spillway.plan.v1 is expected"]),
    ] {
        folder.run(&["check", SMALL, file]).fails(2, words).fails(2, &[file]);
        folder.run(&["run", SMALL, "--plan", file]).fails(2, words).fails(2, &[file]);
    }
    folder.run(&["plan", SMALL, "-m", "chunk.json"]).fails(2, &["chunk.json", "chunk_bytes"]);
}

#[test]
fn what_a_chain_lacks_is_named() {
    let folder = Folder::new();
    folder.write("chain.json", r#"{"format":"spillway.chain.v1","name":"c"}"#);
    folder.run(&["plan", "chain.json"]).fails(2, &["chain.json: ", "missing field `device_bytes`"]);
}

#[test]
fn lists_need_nothing_else() {
    let folder = Folder::new();
    for arguments in [
        &["plan", "--machine", "list"][..],
        &["run", "-m", "list"],
        &["check", "--machine=list"],
        &["plan", SMALL, "--machine", "list", "--json"],
    ] {
        let list = folder.run(arguments).done().stdout;
        assert!(list.contains("v100-pcie3 (default)") && list.contains("h200-pcie5"), "{list}");
    }
    let models = folder.run(&["model", "list"]).done().stdout;
    assert!(models.contains("resnet152") && models.contains("batch=32"), "{models}");
    folder.run(&["--version"]).done();
}

/// A reader that goes away early is not an error, and certainly no panic.
#[cfg(unix)]
#[test]
fn a_closed_pipe_is_quiet() {
    use std::process::{Command, Stdio};
    for arguments in [&["model", "resnet152"][..], &["plan", SMALL, "--json"], &["model", "list"]] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_spillway"))
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() && !stderr.contains("panicked"), "{arguments:?}: {stderr}");
    }
}

#[test]
fn traces_that_make_no_sense_are_named() {
    let folder = Folder::new();
    folder.write("empty.json", "");
    folder.write("text.json", "no trace");
    folder.write("nodes.json", r#"{"nodes":[]}"#);
    folder.write("cut.json.gz", [0x1f, 0x8b, 8]);
    for file in ["missing.json", "empty.json", "text.json", "nodes.json", "cut.json.gz"] {
        let ran = folder.run(&["import", "pytorch", file, "-o", "g.json"]).fails(2, &[]);
        assert!(ran.stderr.starts_with(&format!("error: {file}: ")), "{ran:?}");
        assert!(!folder.path("g.json").exists());
    }
}
