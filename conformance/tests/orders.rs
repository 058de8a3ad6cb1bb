//! Plans that run ops in a better order than the given one.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use conformance::graphs::{Layer, legal_order, training_graph, untidy_graphs};
use planner_core::planner::{
    Auto, Join, Order, Request, Strategy as Planner, list_schedule, list_schedule_words,
};
use planner_core::{
    Graph, Launched, Limits, Machine, MachineParameters, OpId, Scratch, Step, TensorId,
};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use spillway::planning;
use std::collections::BTreeMap;
use workloads::OwnedPlan;
use zoo::models;

const MACHINE: Machine = {
    let Ok(machine) = Machine::new(
        MachineParameters::new()
            .with_device_bytes(1 << 30)
            .with_host_bytes(1 << 30)
            .with_chunk_bytes(256)
            .with_h2d_bytes_per_s(2_000_000_000)
            .with_d2h_bytes_per_s(2_000_000_000)
            .with_transfer_latency_ns(100),
    ) else {
        panic!("the machine is not sound")
    };
    machine
};

fn plan(graph: &Graph<'_>, budget_bytes: u64, order: Order) -> OwnedPlan {
    let request = Request { graph, machine: &MACHINE, budget_bytes };
    planning::plan(&request, Planner::Auto(Auto::new().with_order(order))).unwrap()
}

fn is_reordered(plan: &OwnedPlan) -> bool {
    let launched = plan.steps.iter().filter_map(|step| match step {
        Step::Launch(Launched { op, .. }) => Some(*op),
        _ => None,
    });
    !launched.is_sorted()
}

/// A step of eight layers with all updates at its end needs its gradients until then.
#[test]
fn updates_at_the_end_are_run_earlier() {
    let layer = Layer {
        weight_bytes: 8192,
        activation_bytes: 2048,
        forward_ns: 4000,
        workspace_bytes: 0,
        has_momentum: true,
    };
    let tidy = training_graph(2048, &[layer; 8]);
    let updates_an_input = |op: usize| op >= 8 && op % 2 == 1;
    let keys: Vec<_> = (0..tidy.ops.len()).map(|op| u16::from(updates_an_input(op))).collect();
    let late = tidy.in_order(&legal_order(&tidy.graph().unwrap(), &keys));
    let graph = late.graph().unwrap();
    let peak_bytes = planning::in_core_peak_bytes(&graph, &MACHINE).unwrap();
    let given = plan(&graph, peak_bytes / 2, Order::Given);
    let free = plan(&graph, peak_bytes / 2, Order::Free);
    assert!(!is_reordered(&given) && is_reordered(&free));
    assert_eq!(free.predicted.period_ns, free.predicted.compute_ns);
    assert!(5 * given.predicted.period_ns > 7 * given.predicted.compute_ns);
}

/// The same graphs in every run. What a sample of lists comes to picks the order, so now and
/// then the given one would have been a little better.
#[test]
fn untidy_graphs_gain() {
    const GRAPHS: usize = 200;
    let mut runner = TestRunner::deterministic();
    let mut sample = || untidy_graphs(4..=8).new_tree(&mut runner).unwrap().current();
    let (mut reordered, mut better, mut worse) = (0, 0, 0);
    for _ in 0..GRAPHS {
        let untidy = sample();
        let graph = untidy.graph().unwrap();
        let request = Request { graph: &graph, machine: &MACHINE, budget_bytes: 0 };
        let (least_bytes, _) =
            planning::min_feasible(&request, Planner::Auto(Auto::default())).unwrap();
        let peak_bytes = planning::in_core_peak_bytes(&graph, &MACHINE).unwrap();
        let budget_bytes = least_bytes.max(peak_bytes / 2);
        let given_ns = plan(&graph, budget_bytes, Order::Given).predicted.period_ns;
        let free = plan(&graph, budget_bytes, Order::Free);
        let free_ns = free.predicted.period_ns;
        reordered += usize::from(is_reordered(&free));
        better += usize::from(free_ns < given_ns);
        worse += usize::from(free_ns > given_ns);
        assert!(100 * free_ns <= 105 * given_ns, "{free_ns} {given_ns}");
    }
    assert!(2 * reordered > GRAPHS && better > 5 * worse, "{reordered} {better} {worse}");
}

/// The last writer of each tensor, and the op that has written each tensor that an op reads.
#[derive(Debug, Default, PartialEq)]
struct Writers {
    last: BTreeMap<TensorId, OpId>,
    read: BTreeMap<(OpId, TensorId), Option<OpId>>,
}

impl Writers {
    fn of(graph: &Graph<'_>, order: &[OpId]) -> Self {
        let Self { mut last, mut read } = Self::default();
        for &op in order {
            let reads = graph.reads(op).iter();
            read.extend(reads.map(|&tensor| ((op, tensor), last.get(&tensor).copied())));
            last.extend(graph.writes(op).iter().map(|&tensor| (tensor, op)));
        }
        Self { last, read }
    }
}

/// All ops read the same values in every order.
#[test]
fn joined_ops_keep_all_dependencies() {
    let mut runner = TestRunner::deterministic();
    let untidy = (0..50).map(|_| untidy_graphs(4..=8).new_tree(&mut runner).unwrap().current());
    let decoders = [(2, ""), (3, ",optimizer=sgd"), (4, ",rank=4"), (7, ",head=tied")];
    let decoders = decoders.map(|(micro, more)| {
        let size = "layers=3,width=64,heads=4,kv_heads=2,hidden=128,vocabulary=256,sequence=32";
        models::generate(&format!("llama:{size},micro={micro}{more}")).unwrap()
    });
    let mut rearranged = 0;
    for owned in untidy.chain(decoders) {
        let graph = owned.graph().unwrap();
        let given: Vec<_> = graph.op_ids().collect();
        let expected = Writers::of(&graph, &given);
        let limits = Limits::of_graph(&graph);
        let mut memory = vec![0; list_schedule_words(&limits)];
        let by_states = [(1, false), (1, true), (2, true), (4, true), (u32::MAX, true)];
        let by_states = by_states.map(|(batches, overlaps)| Join::ByStates {
            set_bytes: 20_000,
            counts_copies: overlaps,
            batches,
            overlaps,
        });
        for join in [Join::Light, Join::All, Join::CopiesFirst].into_iter().chain(by_states) {
            let mut order = given.clone();
            list_schedule(&graph, join, &mut order, &mut Scratch::new(&mut memory)).unwrap();
            assert_eq!(Writers::of(&graph, &order), expected, "{join:?} of {}", owned.name);
            rearranged += usize::from(!order.is_sorted());
            order.sort_unstable();
            assert_eq!(order, given);
        }
    }
    assert!(rearranged > 100, "{rearranged} orders");
}
