//! Weight offloading: the published figures, a second implementation, and every rule of plans.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;
mod naive;

use common::{ALL, BETTER, PUBLISHED, WITH_ACTIVATIONS, plan, run, run_graph};
use conformance::chains::{chains, chains_in_microseconds, smallest_bytes};
use conformance::shortest::shortest_period_units;
use planner_core::planner::{PlanningError, Request, Strategy};
use planner_core::{Kind, Machine, OpId};
use proptest::prelude::*;
use spillway::planning;
use workloads::chain::Layer;
use workloads::{OwnedChain, OwnedGraph};

const LAYER: Layer = Layer {
    forward_ns: 100,
    backward_ns: 300,
    weight_bytes: 1000,
    activation_bytes: 50,
    optimizer_bytes: 0,
};

fn chain(layers: &[Layer], device_bytes: u64) -> OwnedChain {
    OwnedChain {
        name: "chain".to_owned(),
        device_bytes,
        bandwidth_bytes_per_s: 10_000_000_000,
        input_bytes: 50,
        layers: layers.to_vec(),
    }
}

proptest! {
    #![proptest_config(conformance::seeds::config(256))]
    #[test]
    fn the_published_cycles_are_those_of_a_second_implementation(chain in chains(9)) {
        let [discounted, undiscounted] = naive::cycles_ns(&chain).unwrap();
        prop_assert_eq!(plan(&chain, PUBLISHED).unwrap().0, discounted);
        prop_assert_eq!(plan(&chain, Strategy::WeightsUndiscounted).unwrap().0, undiscounted);
    }

    /// But for the input, which the published schedule does not move.
    #[test]
    fn a_plan_takes_no_longer_than_its_cycle(chain in chains(9)) {
        let chain = OwnedChain { input_bytes: 0, ..chain };
        let (cycle_ns, published) = plan(&chain, PUBLISHED).unwrap();
        let period_ns = published.predicted.period_ns;
        prop_assert!(period_ns <= cycle_ns, "{} above {}", period_ns, cycle_ns);
        let better = plan(&chain, BETTER).unwrap().1.predicted.period_ns;
        prop_assert!(better <= period_ns);
    }
}

proptest! {
    #![proptest_config(conformance::seeds::config(30))]
    /// Periods of other than whole microseconds may be between two of the search.
    #[test]
    fn no_plan_of_whole_weights_beats_the_shortest(chain in chains_in_microseconds()) {
        let shortest = shortest_period_units(&chain, 1000);
        for strategy in ALL.into_iter().filter(|strategy| *strategy != WITH_ACTIVATIONS) {
            let (cycle_ns, plan) = plan(&chain, strategy).unwrap();
            let period = plan.predicted.period_ns.div_ceil(1000);
            prop_assert!(shortest <= period, "{strategy:?}: {shortest} above {period}");
            prop_assert!(1000 * shortest <= cycle_ns);
        }
    }
}

/// With memory for both weights and a gradient nothing moves. Else neither weight is there
/// while the other runs backward: between those ops one goes and one comes, 3 us. The first
/// comes back, and the second goes, in 3 us while the forward ops run, of which one waits.
#[test]
fn the_shortest_period_of_two_layers() {
    let layer = |times: u64| Layer {
        forward_ns: 1000 * times,
        backward_ns: 1000 * times,
        weight_bytes: 3000,
        ..Layer::default()
    };
    let chain = |layers: &[Layer], device_bytes| OwnedChain {
        bandwidth_bytes_per_s: 1_000_000_000,
        input_bytes: 0,
        ..chain(layers, device_bytes)
    };
    assert_eq!(shortest_period_units(&chain(&[layer(2); 2], 9000), 1000), 8);
    assert_eq!(shortest_period_units(&chain(&[layer(2); 2], 8000), 1000), 8 + 3 + 1);
    assert_eq!(shortest_period_units(&chain(&[layer(3); 2], 8000), 1000), 12 + 3);
}

#[test]
fn with_memory_enough_nothing_moves_but_the_input() {
    let roomy = chain(&[LAYER; 4], 6000);
    for strategy in [PUBLISHED, BETTER, Strategy::WeightsUndiscounted] {
        let (cycle_ns, plan) = plan(&roomy, strategy).unwrap();
        assert_eq!((cycle_ns, plan.predicted.h2d_bytes, plan.predicted.d2h_bytes), (1600, 50, 0));
    }
    let (cycle_ns, plan) = plan(&roomy, Strategy::LayerToLayer).unwrap();
    assert_eq!(cycle_ns, 1600 + 4 * 2 * 100);
    assert_eq!((plan.predicted.h2d_bytes, plan.predicted.d2h_bytes), (8 * 1000 + 50, 4 * 1000));
}

/// One byte less than all weights, all activations and a gradient: one weight leaves, around
/// the top of the chain, the last that helps at both.
#[test]
fn the_last_of_equally_good_layers_leaves() {
    let tight = chain(&[LAYER; 4], 4 * 1000 + 5 * 50 + 1000 - 1);
    let (_, plan) = plan(&tight, PUBLISHED).unwrap();
    let moved: Vec<_> = plan
        .steps
        .iter()
        .filter_map(|step| match step {
            planner_core::Step::Offload(part) => {
                Some(tight.graph().tensor_names[part.tensor.index()].clone())
            }
            _ => None,
        })
        .collect();
    assert_eq!(moved, ["w3"]);
}

#[test]
fn odd_chains_are_planned_and_run() {
    let without_weight = Layer { weight_bytes: 0, ..LAYER };
    let without_time = Layer { forward_ns: 0, backward_ns: 0, ..LAYER };
    let without_activation = Layer { activation_bytes: 0, ..LAYER };
    let with_momentum = Layer { optimizer_bytes: 1000, ..LAYER };
    let with_adam = Layer { optimizer_bytes: 2000, ..LAYER };
    let only_optimizer = Layer { weight_bytes: 0, optimizer_bytes: 700, ..LAYER };
    let bare = Layer { weight_bytes: 0, activation_bytes: 0, ..LAYER };
    for layers in [
        &[LAYER][..],
        &[bare],
        &[without_time],
        &[LAYER; 6],
        &[without_time; 6],
        &[without_weight; 3],
        &[without_activation; 5],
        &[with_adam],
        &[with_momentum; 5],
        &[only_optimizer, with_momentum, without_time, with_adam, LAYER],
        &[LAYER, without_weight, LAYER, without_time, bare, LAYER, without_activation],
    ] {
        let smallest = smallest_bytes(&chain(layers, 0));
        for device_bytes in [smallest, smallest + 700, smallest + 2500] {
            let chain = chain(layers, device_bytes);
            for strategy in ALL {
                run(&chain, &plan(&chain, strategy).unwrap().1);
            }
        }
    }
}

#[test]
fn memory_that_no_layer_fits_is_named() {
    let layers = [LAYER, Layer { weight_bytes: 3000, ..LAYER }, LAYER];
    let smallest = 3 * 50 + 2 * 3000;
    for strategy in ALL.into_iter().filter(|strategy| *strategy != WITH_ACTIVATIONS) {
        assert!(plan(&chain(&layers, smallest), strategy).is_ok());
        let error = plan(&chain(&layers, smallest - 1), strategy).unwrap_err();
        let named = PlanningError::Infeasible { min_feasible_bytes: smallest, op: OpId(4) };
        assert_eq!(error, named);
    }
}

/// With memory for fewer activations than there are, some leave, down to those of one op.
#[test]
fn activations_leave_where_they_may() {
    let layer = Layer { weight_bytes: 100, activation_bytes: 1000, ..LAYER };
    let of = |device_bytes| OwnedChain { input_bytes: 1000, ..chain(&[layer; 6], device_bytes) };
    // All activations, a weight and its gradient; or those that one op reads and writes.
    let error = plan(&of(7199), BETTER).unwrap_err();
    let named = PlanningError::Infeasible { min_feasible_bytes: 7200, op: OpId(6) };
    assert_eq!(error, named);
    for device_bytes in [2200, 2500, 3500, 7199] {
        let chain = of(device_bytes);
        let (_, plan) = plan(&chain, WITH_ACTIVATIONS).unwrap();
        run(&chain, &plan);
        // The input needs no copy.
        let moved = plan.predicted.d2h_bytes + chain.input_bytes;
        assert!(moved >= 7200 - device_bytes, "{moved}");
    }
    let none = plan(&of(20_000), WITH_ACTIVATIONS).unwrap().1.predicted;
    assert_eq!((none.d2h_bytes, none.h2d_bytes), (0, 1000));
    let error = plan(&of(2199), WITH_ACTIVATIONS).unwrap_err();
    assert!(matches!(error, PlanningError::Infeasible { min_feasible_bytes: 2200, .. }), "{error}");
}

/// What an optimizer keeps leaves first: away between all ops but one, for two transfers.
#[test]
fn what_the_optimizer_keeps_leaves_before_weights() {
    let momentum = Layer { optimizer_bytes: 1000, ..LAYER };
    let all = 4 * 2000 + 5 * 50 + 1000;
    let tight = chain(&[momentum; 4], all - 3000);
    let (_, plan) = plan(&tight, PUBLISHED).unwrap();
    run(&tight, &plan);
    let offloaded = plan.steps.iter().filter_map(|step| match step {
        planner_core::Step::Offload(part) => Some(part.tensor),
        _ => None,
    });
    let names = tight.graph().tensor_names;
    let mut offloaded: Vec<_> = offloaded.map(|tensor| names[tensor.index()].clone()).collect();
    offloaded.sort();
    assert_eq!(offloaded, ["s1", "s2", "s3", "s4"]);
}

/// Chunks of a machine round sizes up, and small tensors lie in the arena.
#[test]
fn a_chain_runs_on_pages() {
    let layers = [Layer { weight_bytes: 10_000, ..LAYER }; 5];
    let chain = chain(&layers, 0);
    let owned = chain.graph();
    let graph = owned.graph().unwrap();
    let machine = Machine::new(
        (*chain.machine().unwrap().machine)
            .with_device_bytes(1 << 30)
            .with_chunk_bytes(4096)
            .with_transfer_latency_ns(20),
    )
    .unwrap();
    for strategy in ALL {
        let request = |budget_bytes| Request { graph: &graph, machine: &machine, budget_bytes };
        let (smallest, _) = planning::min_feasible(&request(0), strategy).unwrap();
        let plan = planning::plan(&request(smallest), strategy).unwrap();
        assert!(!plan.arena.is_empty() && plan.predicted.h2d_bytes > 10_000);
        run_graph(graph, machine, &plan);
    }
}

#[test]
fn work_that_is_no_chain_is_refused_with_the_op() {
    let refused = |graph: &OwnedGraph, op: u32| {
        let graph = graph.graph().unwrap();
        let machine = chain(&[], 1 << 20).machine().unwrap().machine;
        let request = Request { graph: &graph, machine: &machine, budget_bytes: 1 << 20 };
        for strategy in ALL {
            let no_chain = PlanningError::NoChain { op: OpId(op) };
            assert_eq!(planning::plan(&request, strategy).unwrap_err(), no_chain);
            assert_eq!(planning::min_feasible(&request, strategy).unwrap_err(), no_chain);
        }
    };
    let whole = chain(&[LAYER; 3], 0).graph();
    let mut odd = whole.clone();
    odd.push_op("more", 1, 0, &[], &[]);
    refused(&odd, 6);
    let mut tied = OwnedGraph::new("tied");
    let weight = tied.push_tensor("w", 10, Kind::State);
    for name in ["F1", "F2"] {
        tied.push_op(name, 1, 0, &[weight], &[]);
    }
    for name in ["B2", "B1"] {
        tied.push_op(name, 1, 10, &[weight], &[weight]);
    }
    refused(&tied, 1);
    let mut skips = OwnedGraph::new("skips");
    let first = skips.push_tensor("a1", 10, Kind::Temporary);
    let second = skips.push_tensor("a2", 10, Kind::Temporary);
    skips.push_op("F1", 1, 0, &[], &[first]);
    skips.push_op("F2", 1, 0, &[first], &[second]);
    skips.push_op("B2", 1, 0, &[second], &[first]);
    skips.push_op("B1", 1, 0, &[first], &[]);
    refused(&skips, 2);
}
