//! Compares the linear program with recorded bounds.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use lp_bound::{Options, period_ns};
use planner_core::{Machine, MachineParameters};
use std::process::ExitCode;
use test_harness::shared;
use workloads::format;

fn main() -> ExitCode {
    test_harness::with_shared(
        &["graphs"],
        &[("recorded_bounds_are_reproduced", recorded_bounds_are_reproduced)],
    )
}

/// The recorded bounds leave out tensors of less than 64 KiB, and are lower by those.
fn recorded_bounds_are_reproduced() {
    let recorded = std::fs::read_to_string(shared("graphs/lower_bounds.json")).unwrap();
    let recorded: serde_json::Value = serde_json::from_str(&recorded).unwrap();
    let name = "resnet50_et";
    let file = format::load(shared(&format!("graphs/{name}.graph.json.gz"))).unwrap();
    let owned = format::read_graph(&file).unwrap();
    let graph = owned.graph().unwrap();
    for (percent, gigabytes) in [(75, 12), (35, 12), (25, 12), (50, 50), (35, 50), (25, 50)] {
        let entry = &recorded[format!("{name}/{percent}/{gigabytes}")];
        let expected = entry["period_over_compute"].as_f64().unwrap();
        let per_s = gigabytes * 1_000_000_000;
        let machine = Machine::new(
            MachineParameters::new()
                .with_device_bytes(1 << 40)
                .with_host_bytes(1 << 40)
                .with_chunk_bytes(1 << 10)
                .with_h2d_bytes_per_s(per_s)
                .with_d2h_bytes_per_s(per_s),
        )
        .unwrap();
        let budget_bytes = entry["budget_bytes"].as_u64().unwrap();
        let found = period_ns(&graph, &machine, budget_bytes, Options::default()).unwrap();
        let found = found.period_ns as f64 / graph.compute_ns() as f64;
        assert!(
            (found - expected).abs() < 0.0017 && found > expected - 1e-4,
            "{percent} % at {gigabytes} GB/s: {found} for {expected}"
        );
    }
}
