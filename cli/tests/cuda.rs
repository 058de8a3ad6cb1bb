//! Plans on CUDA, with the emulated driver.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{Folder, Ran, SMALL};
use emulated_cuda::Emulated;

const RUN: [&str; 7] = ["run", SMALL, "--backend", "cuda", "--json", "-b", "35%"];

/// Runs the program with the emulated driver, which delays work at random.
fn run(arguments: &[&str]) -> Ran {
    let driver = Emulated::built_path();
    let driver = ("SPILLWAY_CUDA_DRIVER", driver.to_str().unwrap());
    let variables = [driver, ("EMULATED_CUDA_SEED", "1")];
    Folder::new().run_in(&variables, &[&RUN[..], arguments].concat())
}

#[test]
fn a_plan_with_placements_maps_nothing_on_the_way() {
    let ran = run(&["--iterations", "3"]).done().json();
    assert_eq!(ran["backend"], "cuda");
    assert_eq!(ran["map_calls_per_iteration"], 0.0, "{ran}");
    assert!(ran["setup_map_calls"].as_u64() > Some(0));
    assert_eq!(ran["digests_match"], true);
    assert_eq!(ran["digest"], ran["in_core_digest"]);
    let simulated = Folder::new().run(&["run", SMALL, "--json", "--iterations", "3"]).done().json();
    assert_eq!(ran["digest"], simulated["digest"]);
}

#[test]
fn a_plan_without_maps_as_it_goes() {
    let ran = run(&["--iterations", "2", "--no-placements"]).done().json();
    assert!(ran["map_calls_per_iteration"].as_f64() > Some(1.0), "{ran}");
    assert_eq!(ran["digests_match"], true);
}

#[test]
fn iterations_run_as_graphs() {
    let ran = run(&["--iterations", "5", "--graph"]).done().json();
    assert_eq!(ran["map_calls_per_iteration"], 0.0, "{ran}");
    assert_eq!(ran["digests_match"], true);
    // A graph waits for the one before it.
    assert!(ran["graph_period_ns"].as_u64() >= ran["period_ns"].as_u64(), "{ran}");
}

#[test]
fn what_no_graph_can_hold_is_refused() {
    run(&["--graph", "--no-placements"]).fails(1, &["maps as it goes"]);
    run(&["--graph", "--iterations", "1"]).fails(1, &["run at least those"]);
    run(&["--seed", "1"]).fails(2, &["--seed"]);
}

#[test]
fn devices_are_listed() {
    let driver = Emulated::built_path();
    let driver = [("SPILLWAY_CUDA_DRIVER", driver.to_str().unwrap())];
    let devices = Folder::new().run_in(&driver, &["devices"]).done().stdout;
    assert!(devices.contains("cuda: emulated CUDA device, no GPU\n"), "{devices}");
}
