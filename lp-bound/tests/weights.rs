//! Compares the integer program for chains with optima worked out by hand, and with plans.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]
#![cfg(feature = "highs")]

use conformance::chains::{chains, chains_in_microseconds};
use conformance::shortest::shortest_period_units;
use lp_bound::{WeightOptions, weights_period_ns};
use planner_core::planner::{Request, Strategy as Planner, Weights};
use proptest::prelude::*;
use spillway::planning;
use workloads::OwnedChain;
use workloads::chain::Layer;

const WHOLE: WeightOptions = WeightOptions { whole: true, gap: 1e-6, most_s: 20.0 };
const PARTS: WeightOptions = WeightOptions { whole: false, ..WHOLE };

fn bound_ns(chain: &OwnedChain, options: WeightOptions) -> u64 {
    weights_period_ns(chain, options).unwrap().period_ns
}

fn period_ns(chain: &OwnedChain, strategy: Planner) -> u64 {
    let owned = chain.graph();
    let (graph, machine) = (owned.graph().unwrap(), chain.machine().unwrap().machine);
    let request = Request { graph: &graph, machine: &machine, budget_bytes: chain.device_bytes };
    planning::plan(&request, strategy).unwrap().predicted.period_ns
}

/// Three equal layers, with or without memory for a fourth weight, as a gradient needs.
#[test]
fn what_has_to_move_takes_its_time() {
    let layer = Layer {
        forward_ns: 1_000_000,
        backward_ns: 1_000_000,
        weight_bytes: 10_000_000,
        ..Layer::default()
    };
    let chain = |device_bytes, bandwidth_bytes_per_s| OwnedChain {
        name: "three".to_owned(),
        device_bytes,
        bandwidth_bytes_per_s,
        input_bytes: 0,
        layers: vec![layer; 3],
    };
    let idle_free = bound_ns(&chain(40_000_000, 10_000_000_000), WHOLE);
    assert_eq!(idle_free, 6_000_000);
    // One of the others is away at each backward op, and no one is at all three: two uploads
    // of 10 ms.
    assert!(bound_ns(&chain(30_000_000, 1_000_000_000), WHOLE) >= 19_990_000);
    assert!(weights_period_ns(&chain(19_000_000, 1_000_000_000), WHOLE).is_err());
}

/// The program may cut transfers, and so needs no triples of the same sum; no schedule of whole
/// weights is without idle time here.
#[test]
fn the_program_may_cut_what_the_theorem_does_not() {
    let chain = OwnedChain::three_partition(&[6, 6, 6, 6, 7, 9]).unwrap();
    assert_eq!(bound_ns(&chain, WHOLE), 4_000_000_000);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn no_plan_beats_the_program(chain in chains(5)) {
        let chain = OwnedChain { input_bytes: 0, ..chain };
        prop_assume!(chain.layers.iter().any(|layer| layer.forward_ns + layer.backward_ns > 0));
        let (whole, parts) = (bound_ns(&chain, WHOLE), bound_ns(&chain, PARTS));
        prop_assert!(parts <= whole + whole / 100_000 + 1);
        for published in [true, false] {
            let period_ns = period_ns(&chain, Planner::Weights(Weights::new().with_published(published)));
            prop_assert!(whole <= period_ns, "{} above {}", whole, period_ns);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]
    #[test]
    fn the_program_never_exceeds_the_shortest_period(chain in chains_in_microseconds()) {
        prop_assume!(chain.layers.iter().any(|layer| layer.forward_ns + layer.backward_ns > 0));
        let shortest_ns = 1000 * shortest_period_units(&chain, 1000);
        let bound_ns = bound_ns(&chain, WHOLE);
        prop_assert!(bound_ns <= shortest_ns, "{} above {}", bound_ns, shortest_ns);
    }
}
