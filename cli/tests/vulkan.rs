//! Plans on a real Vulkan device, where there is one.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{Folder, Ran};
use serde_json::Value;
use std::process::ExitCode;

const TESTS: [(&str, fn()); 5] = [
    ("a_plan_with_placements_maps_nothing_on_the_way", placed),
    ("a_plan_without_maps_as_it_goes", unplaced),
    ("a_real_device_takes_no_seed", no_seed),
    ("the_environment_sets_the_limit_of_addresses", limit_of_addresses),
    ("a_wrong_limit_of_addresses_is_refused", wrong_limit_of_addresses),
];

/// Small work whose tensors have many [small chunks](Folder::with_small_chunks).
const WORK: &str = "gpt:batch=1,layers=4,width=256,sequence=64,vocabulary=1000";

fn run(more: &[&str]) -> Ran {
    run_in(&[], more)
}

fn run_in(variables: &[(&str, &str)], more: &[&str]) -> Ran {
    let folder = Folder::with_small_chunks();
    let run = ["run", WORK, "-m", "machine.json", "-b", "35%", "--iterations", "3", "--json"];
    folder.run_in(variables, &[&run[..], more].concat())
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

const SPARSE_BYTES: &str = "SPILLWAY_VULKAN_SPARSE_BYTES";

/// The first Vulkan device of the list, and the list as text.
fn devices_with(bytes: &str) -> (Value, String) {
    let run = |more: &[&str]| {
        Folder::new().run_in(&[(SPARSE_BYTES, bytes)], &[&["devices"], more].concat()).done()
    };
    let devices = run(&["--json"]).json();
    let mut devices = devices["devices"].as_array().unwrap().iter();
    let first = devices.find(|device| device["backend"] == "vulkan").unwrap();
    (first.clone(), run(&[]).stdout)
}

fn limit_of_addresses() {
    let (device, text) = devices_with("");
    assert_eq!(device["address_space_bytes"], device["reported_address_space_bytes"]);
    assert!(!text.contains("the driver reports"), "{text}");
    let (device, text) = devices_with("8388608");
    assert_eq!(device["address_space_bytes"], 8 << 20);
    assert_eq!(device["range_bytes"], 8 << 20);
    assert_ne!(device["reported_address_space_bytes"], 8 << 20);
    assert!(text.contains("8.00 MiB of sparse addresses (the driver reports "), "{text}");
    let on_vulkan = ["--backend", "vulkan"];
    let refused = run_in(&[(SPARSE_BYTES, "8388608")], &on_vulkan);
    refused.fails_with_output(1, &["no addresses are left", SPARSE_BYTES, "8388608 bytes"]);
    let ran = run_in(&[(SPARSE_BYTES, "17179869184")], &on_vulkan).done().json();
    assert_eq!(ran["digests_match"], true);
}

fn wrong_limit_of_addresses() {
    for (bytes, reason) in [("0", "and not 0"), ("8388609", "a multiple of the device's pages")] {
        let refused = run_in(&[(SPARSE_BYTES, bytes)], &["--backend", "vulkan"]);
        refused.fails_with_output(1, &[SPARSE_BYTES, bytes, reason]);
        let (device, text) = devices_with(bytes);
        assert!(device["refusal"].as_str().unwrap().contains(reason), "{device}");
        assert!(text.contains("cannot be used: SPILLWAY_VULKAN_SPARSE_BYTES"), "{text}");
    }
    let refused = run_in(&[(SPARSE_BYTES, "4GiB")], &["--backend", "vulkan"]);
    refused.fails(2, &[SPARSE_BYTES, "4GiB", "must be a number of bytes"]);
}
