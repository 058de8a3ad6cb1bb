//! The suite's checks of graphs, of large tensors in kernels and of what a drop frees are held to what
//! they say: each finds a bug that it is meant to find.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

#[allow(dead_code, reason = "the tests use only a part")]
mod common;
mod watched;

use conformance::suite::{Bench, Check, checks, graph_checks};
use integrity::Backend;
use watched::{Bug, Watched};

#[test]
fn each_check_finds_its_mutant() {
    let (emulated, integrity, _) = common::emulated();
    // As much as large tensors take.
    emulated.resize(8 << 30, 4096);
    let machine = integrity.find().unwrap().machine;
    let freeing = "devices::a_failed_wait_frees_nothing_in_use";
    let large = "large::kernels_take_offsets_beyond_32_bits";
    let found = |bug: Bug| -> Vec<&str> {
        let watched = Watched { integrity: integrity.clone(), emulated, bug };
        let bench = Bench { backend: &watched, machine, order: 0 };
        let others = checks().into_iter();
        let others = others.filter(|check: &Check<_>| [freeing, large].contains(&check.name));
        let checks = graph_checks().into_iter().chain(others);
        let failed = checks.filter(|check| check.run_in_order(&bench).is_err());
        let names = failed.map(|check| check.name).collect();
        // What has ended a context ends no other.
        emulated.restart();
        names
    };
    assert_eq!(found(Bug::None), [""; 0]);
    let freezing =
        ["kernels_find_their_iteration", "graphs_run_collectives", "host_ops_find_their_iteration"];
    assert_eq!(found(Bug::FreezesTheIteration), freezing.map(|name| format!("graphs::{name}")));
    let losing = found(Bug::LosesGraphs);
    for name in [
        "graphs_copy_over_mappings_and_aliases",
        "graphs_run_ops_on_the_host",
        "graphs_run_collectives",
    ] {
        assert!(losing.contains(&&*format!("graphs::{name}")), "{losing:?}");
    }
    assert_eq!(found(Bug::TakesAnyGraph), ["graphs::foreign_and_late_graphs_are_refused"]);
    let waiting = found(Bug::WaitsBeforeOpening);
    assert_eq!(waiting, ["graphs::another_device_works_beside_a_capture"]);
    assert!(found(Bug::UnmapsBeforeTheEnd).contains(&freeing));
    assert_eq!(found(Bug::CutsOffsets), [large]);
}
