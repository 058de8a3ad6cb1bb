//! No valid plan beats what prices prove, whatever the prices.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use conformance::chains::chains_in_microseconds;
use conformance::graphs::{graphs, machines};
use conformance::plans::cases;
use conformance::shortest::shortest_period_units;
use planner_core::bounds::Order;
use planner_core::bounds::priced::{ONE, Price};
use planner_core::plan::Step;
use planner_core::planner::{self, Auto, Host, Repeats, Request, Strategy as Planner, Window};
use planner_core::{Machine, OpId};
use proptest::collection::vec;
use proptest::prelude::*;
use spillway::certificate::{find, prove};
use spillway::planning;
use workloads::{OwnedCertificate, OwnedGraph, OwnedMachine, OwnedPlan, machines};

const KINDS: [(Order, bool); 4] =
    [(Order::Given, true), (Order::Given, false), (Order::Any, true), (Order::Any, false)];

/// Random prices: of each interval, the memory for up to some uploads, and any shares.
fn prices() -> impl Strategy<Value = Vec<[u64; 3]>> {
    let share = || prop_oneof![Just(0), Just(ONE), 0..=ONE];
    vec((0..=8u64, share(), share()).prop_map(|(memory, up, down)| [memory, up, down]), 1..12)
}

fn named(machine: &Machine) -> OwnedMachine {
    OwnedMachine { machine: *machine, ..machines::builtin("v100-pcie3").unwrap() }
}

/// The same certificate with other prices and, in the given order, other marks.
fn with_prices(
    found: &OwnedCertificate,
    machine: &Machine,
    ops: u32,
    random: &[[u64; 3]],
) -> OwnedCertificate {
    let mut certificate = found.clone();
    if certificate.order == Order::Given {
        let step = (ops as usize / random.len()).max(1);
        certificate.marks = (0..ops).step_by(step).map(OpId).collect();
    }
    let byte = ONE * 1_000_000_000 / machine.h2d_bytes_per_s.max(1);
    let price = |at: usize| {
        let [memory, upload, download] = random[at % random.len()];
        Price { memory: memory * byte / 4, upload, download: download.min(ONE - upload) }
    };
    certificate.intervals = (0..=certificate.marks.len()).map(price).collect();
    certificate.bound_ns = 0;
    certificate
}

/// Whether the plans of a certificate include one.
fn includes(certificate: &OwnedCertificate, plan: &OwnedPlan) -> bool {
    let launched = || plan.steps.iter().filter_map(Step::launched);
    let first = launched().filter(|launched| !launched.is_repeat);
    let in_order = first.map(|launched| launched.op.0).is_sorted();
    let once = !launched().any(|launched| launched.is_repeat);
    (in_order || certificate.order == Order::Any) && (once || certificate.repeats)
}

fn check(
    graph: &OwnedGraph,
    machine: &Machine,
    plan: &OwnedPlan,
    random: &[[u64; 3]],
) -> Result<(), TestCaseError> {
    // Certificates are for plans that run every op on the device.
    prop_assume!(!plan.steps.iter().any(|step| matches!(step, Step::Host(_))));
    let ops = graph.ops.len() as u32;
    let named = named(machine);
    let period_ns = plan.predicted.period_ns;
    for (order, repeats) in KINDS {
        let found = find(graph, &named, plan.budget_bytes, (order, repeats)).unwrap();
        if !includes(&found, plan) {
            continue;
        }
        for certificate in [with_prices(&found, machine, ops, random), found] {
            let bound_ns = prove(graph, &named, &certificate).unwrap();
            prop_assert!(bound_ns <= period_ns, "{bound_ns} > {period_ns}: {certificate:?}");
        }
    }
    Ok(())
}

const STRATEGIES: [Planner; 6] = [
    Planner::OnDemand,
    Planner::Window(Window { bytes: None, published: false }),
    auto(planner::Order::Given, Repeats::Never),
    auto(planner::Order::Free, Repeats::Never),
    auto(planner::Order::Free, Repeats::Allowed),
    Planner::CheckpointOffload,
];

const fn auto(order: planner::Order, repeats: Repeats) -> Planner {
    Planner::Auto(Auto { effort: Some(9), order, repeats, host: Host::Never })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn no_random_plan_beats_a_certificate(case in cases(), random in prices()) {
        check(&case.graph, &case.machine, &case.plan, &random)?;
    }

    /// The optimum of all schedules that move whole weights.
    #[test]
    fn the_shortest_schedule_of_a_chain_does_not(
        chain in chains_in_microseconds(),
        random in prices(),
    ) {
        let shortest_ns = 1000 * shortest_period_units(&chain, 1000);
        let (graph, machine) = (chain.graph(), chain.machine().unwrap());
        let found = find(&graph, &machine, chain.device_bytes, (Order::Given, true)).unwrap();
        let ops = graph.ops.len() as u32;
        for certificate in [with_prices(&found, &machine.machine, ops, &random), found] {
            let bound_ns = prove(&graph, &machine, &certificate).unwrap();
            prop_assert!(bound_ns <= shortest_ns, "{bound_ns} > {shortest_ns}: {certificate:?}");
        }
    }

    #[test]
    fn no_planner_beats_a_certificate(
        mut owned in graphs(),
        machine in machines(),
        spare_bytes in 0..4096u64,
        random in prices(),
        is_repeatable in any::<bool>(),
    ) {
        owned.ops.iter_mut().for_each(|op| op.host_ns = None);
        if is_repeatable {
            owned.ops.iter_mut().for_each(|op| op.repeatable = true);
        }
        let graph = owned.graph().unwrap();
        for strategy in STRATEGIES {
            let request = |budget_bytes| Request { graph: &graph, machine: &machine, budget_bytes };
            let (least_bytes, _) = planning::min_feasible(&request(0), strategy).unwrap();
            let plan = planning::plan(&request(least_bytes + spare_bytes), strategy).unwrap();
            check(&owned, &machine, &plan, &random)?;
        }
    }
}
