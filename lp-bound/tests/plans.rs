//! No valid plan beats a bound, on random graphs and plans.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use conformance::graphs::{graphs, machines};
use conformance::plans::cases;
use planner_core::Launched;
use planner_core::bounds::BoundOrder as Bounded;
use planner_core::plan::Step;
use planner_core::planner::{Auto, Order, Repeats, Request, Strategy as Planner, Window};
use proptest::prelude::*;
use spillway::planning;
use workloads::{OwnedGraph, OwnedPlan};

const STRATEGIES: [Planner; 6] = [
    Planner::OnDemand,
    Planner::Window(Window::new()),
    Planner::Auto(Auto::new().with_effort(9).with_order(Order::Given).with_repeats(Repeats::Never)),
    Planner::Auto(Auto::new().with_effort(9).with_repeats(Repeats::Never)),
    Planner::Auto(Auto::new().with_effort(9).with_order(Order::Given)),
    Planner::CheckpointOffload,
];

#[cfg(feature = "highs")]
fn given_order_ns(
    graph: &planner_core::Graph<'_>,
    machine: &planner_core::Machine,
    budget_bytes: u64,
    on_pages: bool,
) -> u64 {
    let pages = on_pages.then(|| lp_bound::Pages::of(machine));
    let options = lp_bound::Options { pages };
    lp_bound::period_ns(graph, machine, budget_bytes, options).unwrap().period_ns
}

/// The least bound for plans with repeats, with every op repeatable that may repeat. It also holds
/// for plans without repeats. The linear program refuses collectives.
fn check_with_repeats(
    graph: &OwnedGraph,
    machine: &planner_core::Machine,
    budget_bytes: u64,
    period_ns: u64,
    in_order: bool,
) -> Result<(), TestCaseError> {
    let mut graph = graph.clone();
    let ops: Vec<_> = graph.graph().unwrap().op_ids().collect();
    ops.into_iter().for_each(|op| graph.set_repeatable(op));
    let graph = graph.graph().unwrap();
    for order in [Bounded::Any, Bounded::Given] {
        let bound_ns = planning::lower_bound_repeats_ns(&graph, machine, budget_bytes, order);
        let bound_ns = bound_ns.unwrap();
        let holds = bound_ns <= period_ns || (order == Bounded::Given && !in_order);
        prop_assert!(holds, "repeats, {order:?}: {bound_ns} > {period_ns}");
    }
    #[cfg(feature = "highs")]
    if in_order && !graph.has_collectives() {
        let bound = lp_bound::period_with_repeats_ns(&graph, machine, budget_bytes).unwrap();
        prop_assert!(bound.period_ns <= period_ns, "repeats: {bound:?} > {period_ns}");
    }
    Ok(())
}

fn runs_in_order(plan: &OwnedPlan) -> bool {
    let launched = plan.steps.iter().filter_map(|step| match step {
        Step::Launch(Launched { op, is_repeat: false }) => Some(op.0),
        _ => None,
    });
    launched.is_sorted()
}

/// Whether all tensors of at least a chunk lie in pools of chunks. States may stay in the arena.
#[cfg(feature = "highs")]
fn is_on_pages(graph: &OwnedGraph, machine: &planner_core::Machine, plan: &OwnedPlan) -> bool {
    let chunk_bytes = machine.chunk_bytes;
    let fits_the_arena = |placed: &planner_core::plan::ArenaPlacement| {
        let tensor = &graph.tensors[placed.tensor.index()];
        tensor.bytes < chunk_bytes || tensor.kind == planner_core::Kind::State
    };
    let mut pools = plan.pools.iter().filter(|pool| pool.count > 0);
    pools.all(|pool| pool.object_bytes.is_multiple_of(chunk_bytes))
        && plan.arena.iter().all(fits_the_arena)
}

/// Whether a plan launches each op once, as the bounds without repeats require.
fn runs_once(plan: &OwnedPlan) -> bool {
    let is_repeat = |step: &Step| matches!(step, Step::Launch(Launched { is_repeat: true, .. }));
    !plan.steps.iter().any(is_repeat)
}

/// Two temporaries of a byte more than a chunk take four chunks on pages, and far less in the arena.
#[cfg(feature = "highs")]
#[test]
fn the_bound_on_pages_holds_for_plans_on_pages_only() {
    use planner_core::{Kind, Machine, MachineParameters};

    let mut owned = OwnedGraph::new("arena");
    let state = owned.push_tensor("state", 1404, Kind::State);
    let temporaries = ["first", "second"].map(|name| owned.push_tensor(name, 513, Kind::Temporary));
    owned.push_op("make", 100, 0, &[], &temporaries);
    owned.push_op("update", 100, 0, &[state], &[state]);
    owned.push_op("use", 100, 0, &temporaries, &[]);
    let machine = Machine::new(
        MachineParameters::new()
            .with_device_bytes(1 << 30)
            .with_host_bytes(1 << 30)
            .with_chunk_bytes(512)
            .with_h2d_bytes_per_s(200_000_000)
            .with_d2h_bytes_per_s(200_000_000)
            .with_transfer_latency_ns(1_000),
    )
    .unwrap();
    let (graph, budget_bytes) = (owned.graph().unwrap(), 3072);
    let request = Request { graph: &graph, machine: &machine, budget_bytes };
    let plan = planning::plan(&request, STRATEGIES[2]).unwrap();
    let period_ns = plan.predicted.period_ns;
    let [bytes_ns, pages_ns] =
        [false, true].map(|on_pages| given_order_ns(&graph, &machine, budget_bytes, on_pages));
    assert!(bytes_ns <= period_ns, "{bytes_ns} > {period_ns}");
    assert!(period_ns < pages_ns, "{period_ns} >= {pages_ns}");
    assert!(!is_on_pages(&owned, &machine, &plan));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_random_plan_beats_a_bound(case in cases()) {
        // The bounds assume that all ops run on the device.
        prop_assume!(!case.plan.steps.iter().any(|step| matches!(step, Step::Host(_))));
        let graph = case.graph.graph().unwrap();
        let (period_ns, budget_bytes) = (case.plan.predicted.period_ns, case.plan.budget_bytes);
        let cheap_ns =
            |order| planning::lower_bound_ns(&graph, &case.machine, budget_bytes, order).unwrap();
        let in_order = runs_in_order(&case.plan);
        check_with_repeats(&case.graph, &case.machine, budget_bytes, period_ns, in_order)?;
        if !runs_once(&case.plan) {
            return Ok(());
        }
        let bound_ns = cheap_ns(Bounded::Any);
        prop_assert!(bound_ns <= period_ns, "any order: {bound_ns} > {period_ns}");
        if in_order {
            let bound_ns = cheap_ns(Bounded::Given);
            prop_assert!(bound_ns <= period_ns, "links, given order: {bound_ns} > {period_ns}");
            #[cfg(feature = "highs")]
            if !graph.has_collectives() {
                let bound_ns = given_order_ns(&graph, &case.machine, budget_bytes, false);
                prop_assert!(bound_ns <= period_ns, "given order: {bound_ns} > {period_ns}");
            }
        }
    }

    #[test]
    fn no_planner_beats_a_bound(
        mut owned in graphs(),
        machine in machines(),
        spare_bytes in 0..4096u64,
    ) {
        owned.ops.iter_mut().for_each(|op| op.host_ns = None);
        let graph = owned.graph().unwrap();
        for strategy in STRATEGIES {
            let request = |budget_bytes| Request { graph: &graph, machine: &machine, budget_bytes };
            let (least_bytes, _) = planning::min_feasible(&request(0), strategy).unwrap();
            let budget_bytes = least_bytes + spare_bytes;
            let plan = planning::plan(&request(budget_bytes), strategy).unwrap();
            let period_ns = plan.predicted.period_ns;
            let in_order = runs_in_order(&plan);
            check_with_repeats(&owned, &machine, budget_bytes, period_ns, in_order)?;
            if !runs_once(&plan) {
                continue;
            }
            for order in [Bounded::Any, Bounded::Given] {
                let bound_ns =
                    planning::lower_bound_ns(&graph, &machine, budget_bytes, order).unwrap();
                let holds = bound_ns <= period_ns || (order == Bounded::Given && !in_order);
                prop_assert!(holds, "{order:?}: {bound_ns} > {period_ns}");
            }
            #[cfg(feature = "highs")]
            for on_pages in [false, true] {
                let is_bounded = in_order && !graph.has_collectives();
                if !is_bounded || (on_pages && !is_on_pages(&owned, &machine, &plan)) {
                    continue;
                }
                let bound_ns = given_order_ns(&graph, &machine, budget_bytes, on_pages);
                prop_assert!(bound_ns <= period_ns, "{on_pages}: {bound_ns} > {period_ns}");
            }
        }
    }
}
