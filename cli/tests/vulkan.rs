//! Plans on a real Vulkan device, where there is one.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{Folder, SMALL};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use serde_json::{Value, json};
use std::process::ExitCode;

const TESTS: [(&str, fn()); 3] = [
    ("a_plan_with_placements_maps_nothing_on_the_way", placed),
    ("a_plan_without_maps_as_it_goes", unplaced),
    ("a_real_device_takes_no_seed", no_seed),
];

const RUN: [&str; 9] =
    ["run", SMALL, "--backend", "vulkan", "--json", "-b", "35%", "--iterations", "2"];

fn main() -> ExitCode {
    let missing = missing();
    let is_required =
        std::env::var_os("SPILLWAY_REQUIRE_DEVICES").is_some_and(|value| value != "0");
    let trials = TESTS.map(|(name, test)| {
        let missing = missing.clone();
        Trial::ignorable_test(name, move || match missing {
            Some(reason) if is_required => Err(Failed::from(format!("no device: {reason}"))),
            Some(reason) => Ok(Completion::ignored_with(format!("no device: {reason}"))),
            None => {
                test();
                Ok(Completion::Completed)
            }
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.into()).exit_code()
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
    let ran = Folder::new().run(&RUN).done().json();
    assert_eq!(ran["backend"], "vulkan");
    assert_eq!(ran["map_calls_per_iteration"], 0.0, "{ran}");
    assert!(ran["setup_map_calls"].as_u64() > Some(0));
    assert_eq!(ran["digests_match"], true);
    assert_eq!(ran["digest"], ran["in_core_digest"]);
    let simulated = Folder::new().run(&["run", SMALL, "--json", "--iterations", "2"]).done().json();
    assert_eq!(ran["digest"], simulated["digest"]);
}

fn unplaced() {
    let ran = Folder::new().run(&[&RUN[..], &["--no-placements"]].concat()).done().json();
    assert!(ran["map_calls_per_iteration"].as_f64() > Some(1.0), "{ran}");
    assert_eq!(ran["digests_match"], json!(true));
}

fn no_seed() {
    Folder::new().run(&[&RUN[..], &["--seed", "1"]].concat()).fails(2, &["--seed"]);
}
