//! Calls of planners and bounds: any graph, machine and budget, output buffers of any length. What
//! is planned is valid.

use super::call_with_scratch;
use crate::case::Files;
use crate::fault::{Fault, returns};
use crate::graphs::graphs;
use crate::judge::{Verdict, judge};
use crate::machines::machines;
use crate::numbers::{numbers, numbers_u32};
use crate::plans::{self, How, strategies};
use conformance::plans::Case;
use planner_core::bounds::{self, BoundOrder};
use planner_core::plan::{ArenaPlacement, Part, Pool, Resident};
use planner_core::planner::swap::{self, Classes};
use planner_core::planner::{self, Join, Output, Request, list_schedule, list_schedule_words};
use planner_core::{Graph, Limits, Machine, OpId, Plan, Step, TensorId};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use spillway::swapping::OwnedClasses;
use workloads::{OwnedGraph, OwnedPlan};

/// Buffers for lists are no longer than this.
const MOST_STEPS: usize = 2048;

/// What such calls are made with.
#[derive(Clone, Debug)]
pub struct Input {
    graph: OwnedGraph,
    machine: Machine,
    how: How,
    budget: Budget,
    /// How much of the working memory that is enough is lent.
    permille: usize,
    /// How much of each output buffer is lent.
    buffer_permille: [usize; 8],
    classes: OwnedClasses,
    join: Join,
}

#[derive(Clone, Copy, Debug)]
enum Budget {
    Is(u64),
    BeyondLeast(u64),
}

/// Any input.
pub fn inputs() -> impl Strategy<Value = Input> {
    let chains = conformance::chains::chains(5).prop_map(|chain| chain.graph());
    let graphs = prop_oneof![3 => graphs().boxed(), 1 => chains.boxed()];
    let machines = prop_oneof![conformance::graphs::machines().boxed(), machines().boxed()];
    let budget = prop_oneof![
        1 => numbers().prop_map(Budget::Is),
        3 => (0..=8192u64).prop_map(Budget::BeyondLeast)
    ];
    let permille = || prop_oneof![3 => Just(1000usize), 1 => 0..=1000usize];
    let buffer_permille = prop_oneof![
        2 => Just([1000; 8]),
        1 => proptest::array::uniform8(permille())
    ];
    let by_states = |batches, overlaps: bool| Join::ByStates {
        set_bytes: 1 << 20,
        counts_copies: !overlaps,
        batches,
        overlaps,
    };
    let join = prop_oneof![
        select(vec![Join::Light, Join::All, Join::CopiesFirst]),
        (select(vec![u32::MAX, 2, 0]), any::<bool>())
            .prop_map(move |(batches, overlaps)| by_states(batches, overlaps))
    ];
    let sizes = (permille(), buffer_permille);
    (graphs, machines, strategies(), budget, sizes, classes(), join).prop_map(
        |(graph, machine, how, budget, (permille, buffer_permille), classes, join)| Input {
            graph,
            machine,
            how,
            budget,
            permille,
            buffer_permille,
            classes,
            join,
        },
    )
}

/// Size classes: tables of any length, which name any class.
fn classes() -> impl Strategy<Value = OwnedClasses> {
    let pool =
        (numbers(), numbers()).prop_map(|(object_bytes, count)| Pool { object_bytes, count });
    let table = || vec(numbers_u32(), 0..=12);
    (vec(pool, 0..=4), table(), table()).prop_map(|(pools, tensor_pool, workspace_pool)| {
        OwnedClasses { pools, tensor_pool, workspace_pool }
    })
}

/// The files, without a plan, and all of the input in words.
#[must_use]
pub fn files(input: &Input) -> Files {
    let (graph, machine) = (input.graph.clone(), input.machine);
    let mut files = plans::files(&Case { graph, machine, plan: OwnedPlan::default() });
    files.truncate(2);
    files.push(("input.txt", format!("{input:#?}").into_bytes()));
    files
}

/// Makes all calls.
///
/// # Errors
/// The first that does not return, or a plan that is not valid.
pub fn check(input: &Input) -> Result<(), Fault> {
    let Ok(graph) = input.graph.graph() else { return Ok(()) };
    let limits = Limits {
        ops: graph.ops().len(),
        operands: graph.operands().len(),
        tensors: graph.tensors().len(),
        pieces: graph.tensors().len(),
        pools: 2,
        ..Limits::default()
    };
    let strategy = match input.how {
        How::Strategy(strategy) => Some(strategy),
        How::Swap(_) => None,
    };
    let mut least_bytes = 0;
    if let Some(strategy) = strategy {
        let request = Request { graph: &graph, machine: &input.machine, budget_bytes: 0 };
        let mut arena = vec![PLACEMENT; part(limits.tensors, input.buffer_permille[0])];
        let words = planner::scratch_words(&limits);
        call_with_scratch("planner::min_feasible", words, input.permille, |scratch| {
            let found = planner::min_feasible(&request, strategy, &mut arena, scratch);
            (least_bytes, _) = unless_short(found, arena.len() < limits.tensors, (0, OpId(0)))?;
            Ok::<_, planner::PlanningError>(())
        })?;
        call_with_scratch("planner::cycle_ns", words, input.permille, |scratch| {
            let cycle_ns = planner::cycle_ns(&request, strategy, &mut arena, scratch);
            unless_short(cycle_ns, arena.len() < limits.tensors, None)
        })?;
    }
    let budget_bytes = match input.budget {
        Budget::Is(bytes) => bytes,
        Budget::BeyondLeast(bytes) => least_bytes.saturating_add(bytes),
    };
    let request = Request { graph: &graph, machine: &input.machine, budget_bytes };
    check_bounds(input, &request, &limits)?;
    check_order(input, &graph, &limits)?;
    check_plan(input, &request, &limits)?;
    check_swap(input, &request, &limits)?;
    check_owned(input, &request)
}

const PLACEMENT: ArenaPlacement = ArenaPlacement { tensor: TensorId(0), offset_bytes: 0 };

fn part(len: usize, permille: usize) -> usize {
    len * permille / 1000
}

/// Ignores errors where an output buffer was too short.
fn unless_short<T>(
    result: Result<T, planner::PlanningError>,
    is_short: bool,
    otherwise: T,
) -> Result<T, planner::PlanningError> {
    if is_short { Ok(result.unwrap_or(otherwise)) } else { result }
}

fn check_bounds(input: &Input, request: &Request<'_>, limits: &Limits) -> Result<(), Fault> {
    let (graph, machine) = (request.graph, request.machine);
    let words = bounds::scratch_words(limits);
    call_with_scratch("in_core_peak_bytes", words, input.permille, |scratch| {
        bounds::in_core_peak_bytes(graph, machine, scratch)
    })?;
    for order in [BoundOrder::Given, BoundOrder::Any] {
        call_with_scratch("bounds::period_ns", words, input.permille, |scratch| {
            bounds::period_ns(graph, machine, request.budget_bytes, order, scratch)
        })?;
    }
    Ok(())
}

fn check_order(input: &Input, graph: &Graph<'_>, limits: &Limits) -> Result<(), Fault> {
    let mut order = vec![OpId(7); part(limits.ops, input.buffer_permille[6])];
    call_with_scratch("list_schedule", list_schedule_words(limits), input.permille, |scratch| {
        list_schedule(graph, input.join, &mut order, scratch)
    })
}

fn check_plan(input: &Input, request: &Request<'_>, limits: &Limits) -> Result<(), Fault> {
    let How::Strategy(strategy) = input.how else { return Ok(()) };
    let steps = limits.max_steps().min(MOST_STEPS);
    let limits = limits.with_steps(steps);
    let small = |len: usize, array: usize| part(len, input.buffer_permille[array]);
    let tensors = limits.tensors;
    let mut list = vec![Step::launch(OpId(0)); small(steps, 0)];
    let mut resident =
        vec![Resident { part: Part::whole(TensorId(0)), host_copy: false }; small(2 * tensors, 2)];
    let mut arena = vec![PLACEMENT; small(tensors, 3)];
    let mut pools = vec![Pool { object_bytes: 1, count: 0 }; small(2, 4)];
    let mut tensor_pool = vec![0; small(tensors, 5)];
    let output = Output {
        steps: &mut list,
        resident: &mut resident,
        arena: &mut arena,
        pools: &mut pools,
        tensor_pool: &mut tensor_pool,
    };
    let mut planned = None;
    let is_short = input.buffer_permille != [1000; 8];
    call_with_scratch(
        "planner::plan",
        planner::scratch_words(&limits),
        input.permille,
        |scratch| {
            let plan = planner::plan(request, strategy, output, scratch);
            planned = unless_short(plan.map(|plan| Some(OwnedPlan::from(&plan))), is_short, None)?;
            Ok::<_, planner::PlanningError>(())
        },
    )?;
    is_valid(input, planned)
}

/// What a planner makes is valid, and promises what it does.
fn is_valid(input: &Input, planned: Option<OwnedPlan>) -> Result<(), Fault> {
    let Some(plan) = planned else { return Ok(()) };
    let case = Case { graph: input.graph.clone(), machine: input.machine, plan };
    match judge(&case)? {
        Verdict::Valid => Ok(()),
        verdict => {
            let detail = format!("{:?} plans what is {verdict:?}", input.how);
            Err(Fault::new("an invalid plan is planned", detail))
        }
    }
}

fn check_swap(input: &Input, request: &Request<'_>, limits: &Limits) -> Result<(), Fault> {
    let How::Swap(threshold) = input.how else { return Ok(()) };
    let graph = request.graph;
    let first_fit = OwnedClasses::first_fit(graph, input.classes.pools.clone());
    returns("Classes::bytes", || {
        let counts = input.classes.tensor_pool.iter().map(|&count| u64::from(count));
        Classes::bytes(&first_fit.pools, counts, request.machine)
    })?;
    for classes in [&input.classes, &first_fit] {
        let steps = limits.max_steps().min(MOST_STEPS);
        let limits = Limits { pools: classes.pools.len(), ..limits.with_steps(steps) };
        let mut list = vec![Step::launch(OpId(0)); part(steps, input.buffer_permille[0])];
        let nothing = Resident { part: Part::whole(TensorId(0)), host_copy: false };
        let mut resident = vec![nothing; part(limits.tensors, input.buffer_permille[2])];
        let is_short = input.buffer_permille != [1000; 8];
        let words = swap::scratch_words(&limits);
        call_with_scratch("swap::estimate_ns", words, input.permille, |scratch| {
            let output = swap::SwapOutput { steps: &mut list, resident: &mut resident };
            let ns = swap::estimate_ns(request, classes.classes(), threshold, output, scratch);
            unless_short(ns, is_short, 0)
        })?;
        let mut planned = None;
        call_with_scratch("swap::plan", words, input.permille, |scratch| {
            let output = swap::SwapOutput { steps: &mut list, resident: &mut resident };
            let plan = swap::plan(request, classes.classes(), threshold, output, scratch);
            let owned = plan.map(|plan: Plan<'_>| Some(OwnedPlan::from(&plan)));
            planned = unless_short(owned, is_short, None)?;
            Ok::<_, planner::PlanningError>(())
        })?;
        is_valid(input, planned)?;
    }
    Ok(())
}

/// The same with buffers that grow.
fn check_owned(input: &Input, request: &Request<'_>) -> Result<(), Fault> {
    let spare_bytes = match input.budget {
        Budget::Is(bytes) | Budget::BeyondLeast(bytes) => bytes,
    };
    let planned = returns("planning", || {
        plans::plan_with_spare(request.graph, request.machine, input.how, spare_bytes)
    })?;
    is_valid(input, planned.ok())
}
