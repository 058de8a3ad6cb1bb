//! Plans on CUDA, with the emulated driver.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use crate::common::{Folder, Ran};
use emulated_cuda::Emulated;
use serde_json::Value;
use std::fs;

/// Small chunks, for small work.
const SMALL_CHUNKS: (&str, &str) = ("EMULATED_CUDA_GRANULARITY", "4096");
/// Work with few bytes: emulated kernels are slow.
const WORK: &str = "gpt:layers=3,width=128,vocabulary=256,sequence=32,batch=1";
const RUN: [&str; 7] = ["run", WORK, "--backend", "cuda", "--json", "-b", "35%"];

/// Runs the program with the emulated driver, which delays work at random.
fn run(arguments: &[&str]) -> Ran {
    let driver = Emulated::built_path();
    let driver = ("SPILLWAY_CUDA_DRIVER", driver.to_str().unwrap());
    let variables = [driver, SMALL_CHUNKS, ("EMULATED_CUDA_SEED", "1")];
    let run = [&RUN[..], &["--machine", "machine.json"], arguments].concat();
    Folder::with_small_chunks().run_in(&variables, &run)
}

#[test]
fn a_plan_with_placements_maps_nothing_on_the_way() {
    let folder = Folder::new();
    let trace = folder.path("t.json");
    let ran = run(&["--iterations", "3", "--trace", trace.to_str().unwrap()]).done().json();
    assert_eq!(ran["backend"], "cuda");
    steps_are_timed(&serde_json::from_slice(&fs::read(trace).unwrap()).unwrap());
    assert_eq!(ran["map_calls_per_iteration"], 0.0, "{ran}");
    assert!(ran["setup_map_calls"].as_u64() > Some(0));
    assert_eq!(ran["digests_match"], true);
    assert_eq!(ran["digest"], ran["in_core_digest"]);
    let simulated = Folder::new().run(&["run", WORK, "--json", "--iterations", "3"]).done().json();
    assert_eq!(ran["digest"], simulated["digest"]);
}

/// The trace has the steps of each stream as predicted, and as the device timed them.
fn steps_are_timed(trace: &Value) {
    let events = trace["traceEvents"].as_array().unwrap();
    for stream in [1, 2, 3] {
        let on_track = |event: &&Value| event["ph"] == "X" && event["tid"] == stream;
        let slices = |pid| events.iter().filter(on_track).filter(move |event| event["pid"] == pid);
        let steps = slices(2).filter(|event| !event["args"]["planned_ns"].is_null());
        assert!(steps.count() > 10 && slices(1).count() > 10, "stream {stream}");
        assert!(slices(2).any(|event| event["dur"].as_f64() > Some(0.0)), "stream {stream}");
    }
}

#[test]
fn a_plan_without_maps_as_it_goes() {
    let ran = run(&["--iterations", "2", "--no-placements"]).done().json();
    assert!(ran["map_calls_per_iteration"].as_f64() > Some(1.0), "{ran}");
    assert_eq!(ran["digests_match"], true);
}

#[test]
fn iterations_run_as_graphs() {
    let ran = run(&["--iterations", "6", "--graph"]).done().json();
    assert_eq!(ran["map_calls_per_iteration"], 0.0, "{ran}");
    assert_eq!(ran["digests_match"], true);
    // A graph waits for the one before it.
    assert!(ran["graph_period_ns"].as_u64() >= ran["period_ns"].as_u64(), "{ran}");
}

#[test]
fn what_no_graph_can_hold_is_refused() {
    run(&["--graph", "--no-placements"]).fails_with_output(1, &["a CUDA graph cannot map memory"]);
    run(&["--graph", "--iterations", "1"]).fails_with_output(1, &["run at least that many"]);
    run(&["--seed", "1"]).fails(2, &["--seed"]);
}

#[test]
fn devices_are_listed() {
    let driver = Emulated::built_path();
    let driver = [("SPILLWAY_CUDA_DRIVER", driver.to_str().unwrap())];
    let devices = Folder::new().run_in(&driver, &["devices"]).done().stdout;
    assert!(devices.contains("cuda: emulated CUDA device, no GPU\n"), "{devices}");
    assert!(devices.contains("pages of 2.00 MiB"), "{devices}");
}

#[test]
fn a_device_is_measured_for_plans_to_be_made_for_it() {
    let driver = Emulated::built_path();
    let variables = [
        ("SPILLWAY_CUDA_DRIVER", driver.to_str().unwrap()),
        SMALL_CHUNKS,
        ("EMULATED_CUDA_MEMORY", "134217728"),
        ("EMULATED_CUDA_H2D_BYTES_PER_S", "2000000000"),
        ("EMULATED_CUDA_D2H_BYTES_PER_S", "1000000000"),
    ];
    let folder = Folder::new();
    let measured =
        ["measure", "-o", "machine.json", "--chunk", "64KiB", "--host", "64MiB", "--json"];
    let measured = folder.run_in(&variables, &measured).done().json();
    assert_eq!(measured["machine"], "emulated-cuda-device-no-gpu");
    assert_eq!(measured["chunk_bytes"], 65536);
    let up = measured["h2d_bytes_per_s"].as_f64().unwrap();
    assert!(up > measured["d2h_bytes_per_s"].as_f64().unwrap(), "{measured}");
    assert!(measured["device_bytes"].as_u64() <= Some(134_217_728), "{measured}");
    assert_eq!(measured["host_bytes"], 67_108_864);
    let file: Value =
        serde_json::from_slice(&fs::read(folder.path("machine.json")).unwrap()).unwrap();
    assert_eq!(
        [&file["launch_ns"], &file["wait_ns"]],
        [&measured["launch_ns"], &measured["wait_ns"]]
    );
    let run = [&RUN[..], &["--iterations", "2", "--machine", "machine.json"]].concat();
    let ran = folder.run_in(&variables, &run).done().json();
    assert_eq!(ran["machine"], measured["machine"]);
    assert_eq!(ran["digests_match"], true);
    folder.run_in(&variables, &["measure", "--chunk", "1000"]).fails(1, &["granularity of 4096"]);
    folder.run_in(&variables, &["measure", "--host", "0"]).fails(2, &["a size such as 64GiB"]);
    folder.run_in(&variables, &["measure", "-o", "-", "--json"]).fails(2, &["only one output"]);
}

#[test]
fn links_that_contend_are_measured_alone_and_together() {
    let driver = Emulated::built_path();
    let variables = [
        ("SPILLWAY_CUDA_DRIVER", driver.to_str().unwrap()),
        ("EMULATED_CUDA_MEMORY", "134217728"),
        ("EMULATED_CUDA_H2D_BYTES_PER_S", "1500000000"),
        ("EMULATED_CUDA_D2H_BYTES_PER_S", "1500000000"),
        ("EMULATED_CUDA_D2H_BOTH_BYTES_PER_S", "500000000"),
        // Rows of more than so many calls cannot be enqueued ahead.
        ("EMULATED_CUDA_QUEUE_DEPTH", "100"),
    ];
    let folder = Folder::new();
    let measured = folder.run_in(&variables, &["measure", "-o", "machine.json", "--json"]);
    let measured = measured.done().json();
    let file: Value =
        serde_json::from_slice(&fs::read(folder.path("machine.json")).unwrap()).unwrap();
    let speed = |name: &str| file[name].as_f64().unwrap();
    let [alone, both] = [speed("one_way_d2h_bytes_per_s"), speed("d2h_bytes_per_s")];
    // Where the host is busy, some copies of a row run alone.
    assert!(alone > 1.5 * both, "{file}");
    assert_eq!(measured["one_way_bytes_per_s"][1], file["one_way_d2h_bytes_per_s"]);
    assert_eq!(measured["both_ways_bytes_per_s"][1], file["d2h_bytes_per_s"]);
    let mut larger = file.clone();
    larger["device_bytes"] = (1u64 << 30).into();
    folder.write("larger.json", larger.to_string());
    let work = "densenet121:batch=1,image=32";
    let planned = folder.run(&["plan", work, "-b", "35%", "--machine", "larger.json"]).done();
    assert!(planned.stdout.contains("(both in use); one way "), "{}", planned.stdout);
}

#[test]
fn a_device_is_picked_by_its_number() {
    let driver = Emulated::built_path();
    let with = |device| {
        let driver = ("SPILLWAY_CUDA_DRIVER", driver.to_str().unwrap());
        let run = [&RUN[..], &["--machine", "machine.json", "--iterations", "1"]].concat();
        Folder::with_small_chunks()
            .run_in(&[driver, SMALL_CHUNKS, ("SPILLWAY_CUDA_DEVICE", device)], &run)
    };
    with("0").done();
    with("1").fails_with_output(
        1,
        &["there is no CUDA device 1; there is 0 (emulated CUDA device, no GPU)"],
    );
    with("the first").fails(2, &["SPILLWAY_CUDA_DEVICE", "a device number from 0 on"]);
}
