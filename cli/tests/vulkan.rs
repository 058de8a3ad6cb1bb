//! Plans on a real Vulkan device, where there is one.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{Folder, Ran};
use serde_json::Value;
use std::process::ExitCode;

const TESTS: [(&str, fn()); 3] = [
    ("a_plan_with_placements_maps_nothing_on_the_way", placed),
    ("a_plan_without_maps_as_it_goes", unplaced),
    ("a_real_device_takes_no_seed", no_seed),
];

/// Small work in chunks so small that many make a tensor.
const WORK: &str = "gpt:batch=1,layers=4,width=256,sequence=64,vocabulary=1000";
const MACHINE: &str = r#"{"format":"spillway.machine.v1","name":"small chunks",
    "device_bytes":1073741824,"host_bytes":1073741824,"chunk_bytes":65536,
    "h2d_bytes_per_s":12000000000,"d2h_bytes_per_s":12000000000,"transfer_latency_ns":10000,
    "map_ns_per_chunk":0,"unmap_ns_per_chunk":0}"#;

fn run(more: &[&str]) -> Ran {
    let folder = Folder::new();
    folder.write("machine.json", MACHINE);
    let run = ["run", WORK, "-m", "machine.json", "-b", "35%", "--iterations", "3", "--json"];
    folder.run(&[&run[..], more].concat())
}

fn main() -> ExitCode {
    test_harness::with_device(missing(), TESTS)
}

/// Why no device can be used, as the program says it.
fn missing() -> Option<String> {
    let devices = Folder::new().run(&["devices", "--json"]).done().json();
    let first = |list: &str, reason: &str| {
        let entries = devices[list].as_array().unwrap().iter();
        let entries = entries.filter(|entry| entry["backend"] == "vulkan");
        let reasons = entries.map(|entry| &entry[reason]);
        reasons.filter_map(Value::as_str).next().map(str::to_owned)
    };
    let is_usable = |one: &Value| one["backend"] == "vulkan" && one["refusal"].is_null();
    let usable = devices["devices"].as_array().unwrap().iter().any(is_usable);
    if usable { None } else { first("unavailable", "reason").or(first("devices", "refusal")) }
}

fn placed() {
    let ran = run(&["--backend", "vulkan"]).done().json();
    assert_eq!(ran["backend"], "vulkan");
    assert_eq!(ran["map_calls_per_iteration"], 0.0, "{ran}");
    assert!(ran["setup_map_calls"].as_u64() > Some(100), "{ran}");
    assert_eq!(ran["digests_match"], true);
    assert_eq!(ran["digest"], ran["in_core_digest"]);
    let simulated = run(&[]).done().json();
    assert_eq!(ran["digest"], simulated["digest"]);
}

fn unplaced() {
    let ran = run(&["--backend", "vulkan", "--no-placements"]).done().json();
    assert!(ran["map_calls_per_iteration"].as_f64() > Some(100.0), "{ran}");
    assert_eq!(ran["digests_match"], true);
}

fn no_seed() {
    run(&["--backend", "vulkan", "--seed", "1"]).fails(2, &["--seed"]);
}
