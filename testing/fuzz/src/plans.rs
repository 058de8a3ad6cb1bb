//! Plans: valid ones of every strategy and of the generators of `conformance`, and what
//! careless or hostile changes make of them.

use crate::graphs::{Resize, doubled, resized, resizes};
use crate::machines::{self, Change, changed};
use crate::numbers::numbers;
use conformance::choices::{Choices, choices};
use conformance::plans::{Case, cases, mutate};
use planner_core::plan::{ArenaPlacement, Part, Pool, Prediction, Resident};
use planner_core::planner::swap::Threshold;
use planner_core::planner::{
    Auto, Lms, Order, PlanningError, Repeats, Request, Strategy as Planner, Weights, Window,
};
use planner_core::{Graph, Kind, Launched, Machine, OpId, Step, TensorId};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use spillway::swapping::{self, Swap};
use spillway::{placing, planning};
use workloads::format::{write_graph, write_machine, write_plan};
use workloads::{OwnedMachine, OwnedPlacements, OwnedPlan};

/// The files that `spillway check` takes, and names for them.
#[must_use]
pub fn files(case: &Case) -> Vec<(&'static str, Vec<u8>)> {
    let machine = named("fuzzed", case.machine);
    let mut plan = case.plan.clone();
    (plan.graph, plan.machine) = (case.graph.name.clone(), machine.name.clone());
    plan.strategy = "fuzzed".to_owned();
    vec![
        ("graph.json", write_graph(&case.graph)),
        ("machine.json", write_machine(&machine)),
        ("plan.json", write_plan(&plan)),
    ]
}

/// The machine with a name.
#[must_use]
pub fn named(name: &str, machine: Machine) -> OwnedMachine {
    OwnedMachine::new(name, machine)
}

/// Plans that are valid, and plans that a corruption of `conformance` and mutations of this
/// module have made something else.
pub fn plans() -> impl Strategy<Value = Case> {
    let valid = prop_oneof![3 => cases().boxed(), 1 => planned().boxed()];
    (valid, prop::option::of(choices(8)), vec(mutations(), 0..=3)).prop_map(
        |(case, corruption, mutations)| {
            // First, since it uses the ledger: sizes are still plausible.
            let case = corruption.into_iter().fold(case, corrupted);
            mutations.into_iter().fold(case, mutated)
        },
    )
}

fn corrupted(mut case: Case, mut choices: Choices) -> Case {
    if let Ok(graph) = case.graph.graph()
        && !case.plan.steps.is_empty()
    {
        case.plan = mutate(&graph, &case.machine, &case.plan, &mut choices);
    }
    case
}

/// How to plan.
#[derive(Clone, Copy, Debug)]
pub enum How {
    /// By a strategy of the core.
    Strategy(Planner),
    /// In size classes.
    Swap(Threshold),
}

/// Every strategy, with parameters of every size.
pub fn strategies() -> impl Strategy<Value = How> {
    let few = || prop::option::of(numbers().prop_map(|number| number as u32));
    let flag = any::<bool>;
    let lms = (few(), few()).prop_map(|given| {
        let mut lms = Lms::new();
        (lms.threshold, lms.ahead) = given;
        Planner::Lms(lms)
    });
    let window = (prop::option::of(numbers()), flag()).prop_map(|given| {
        let mut window = Window::new();
        (window.bytes, window.published) = given;
        Planner::Window(window)
    });
    let weights = (flag(), flag()).prop_map(|(published, activations)| {
        Planner::Weights(Weights::new().with_published(published).with_activations(activations))
    });
    let order = select(vec![Order::Given, Order::Free]);
    let repeats = select(vec![Repeats::Never, Repeats::Allowed]);
    let auto = (0..=6u32, order, repeats).prop_map(|(effort, order, repeats)| {
        Planner::Auto(Auto::new().with_effort(effort).with_order(order).with_repeats(repeats))
    });
    let plain = select(vec![
        Planner::InCore,
        Planner::OnDemand,
        Planner::Fit,
        Planner::Vdnn,
        Planner::WeightsUndiscounted,
        Planner::LayerToLayer,
    ]);
    let threshold = prop_oneof![Just(Threshold::RoundTrip), numbers().prop_map(Threshold::Ns)];
    prop_oneof![
        3 => plain.prop_map(How::Strategy),
        1 => lms.prop_map(How::Strategy),
        1 => window.prop_map(How::Strategy),
        1 => weights.prop_map(How::Strategy),
        2 => auto.prop_map(How::Strategy),
        1 => threshold.prop_map(How::Swap),
    ]
}

/// Plans of strategies, on plausible graphs and machines, some with fixed objects. Where there
/// is none, a plan without steps.
fn planned() -> impl Strategy<Value = Case> {
    let (graphs, machines) = (conformance::graphs::graphs(), conformance::graphs::machines());
    (graphs, machines, strategies(), 0..=8192u64, any::<bool>()).prop_map(
        |(owned, machine, how, spare_bytes, is_placed)| {
            let plan = owned.graph().ok().and_then(|graph| {
                let plan = plan_with_spare(&graph, &machine, how, spare_bytes).ok()?;
                let placed = placing::place(&graph, &machine, &plan, u64::MAX);
                Some(placed.ok().filter(|_| is_placed).unwrap_or(plan))
            });
            Case { graph: owned, machine, plan: plan.unwrap_or_default() }
        },
    )
}

/// A plan for this many bytes more than a strategy needs.
///
/// # Errors
/// Those of the strategy.
pub fn plan_with_spare(
    graph: &Graph<'_>,
    machine: &Machine,
    how: How,
    spare_bytes: u64,
) -> Result<OwnedPlan, PlanningError> {
    let request = |budget_bytes| Request { graph, machine, budget_bytes };
    match how {
        How::Strategy(strategy) => {
            let (least_bytes, _) = planning::min_feasible(&request(0), strategy)?;
            planning::plan(&request(least_bytes.saturating_add(spare_bytes)), strategy)
        }
        How::Swap(threshold) => {
            let swap = Swap::default().with_threshold(threshold);
            let (least_bytes, _) = swapping::min_feasible(&request(0), &swap)?;
            swapping::plan(&request(least_bytes.saturating_add(spare_bytes)), &swap)
        }
    }
}

/// What is done to a case.
#[derive(Clone, Copy, Debug)]
enum Mutation {
    /// Another number somewhere in the plan.
    Number(usize, NewNumber),
    /// A copy of an input to the host, anywhere.
    OffloadInput(usize, usize),
    /// A copy of a tensor to the host, whole or of some objects, anywhere.
    Offload {
        /// Where in the list.
        at: usize,
        /// Which tensor.
        tensor: usize,
        /// The first object and how many; all where there are none.
        objects: Option<(u64, u64)>,
    },
    /// No prefetch of some tensor.
    NoPrefetch(usize),
    /// One of the launches once more, anywhere.
    LaunchAgain {
        /// Which launch.
        launch: usize,
        /// Where in the list.
        at: usize,
    },
    /// One of the launches as a repeat where it was none, and the reverse.
    OtherLaunch(usize),
    /// One of the first launches on the host where it was on the device, and the reverse; the op may
    /// then run there, where it says so.
    OtherPlace(usize, bool),
    /// One of the ops repeatable where it was not, and the reverse.
    OtherOp(usize),
    /// This many sixty-fourths of the host memory that the plan wants.
    LittleHost(u64),
    /// Another machine.
    Machine(Change),
    /// Another graph.
    Graph(Resize),
    /// All bytes everywhere, times two so often, in objects that are as much larger or, where it
    /// says so, in as many more.
    Bytes(u32, bool),
}

#[derive(Clone, Copy, Debug)]
enum NewNumber {
    Is(u64),
    Plus(i64),
}

fn mutations() -> impl Strategy<Value = Mutation> {
    let new = prop_oneof![numbers().prop_map(NewNumber::Is), (-2..=2i64).prop_map(NewNumber::Plus)];
    // The first numbers are those that all of the plan hangs on.
    let at = prop_oneof![0..16usize, 0..500usize];
    prop_oneof![
        5 => (at, new).prop_map(|(at, new)| Mutation::Number(at, new)),
        2 => (0..64usize, 0..64usize).prop_map(|(at, tensor)| Mutation::OffloadInput(at, tensor)),
        5 => (0..64usize, 0..64usize, prop::option::weighted(0.3, (0..3u64, 1..3u64)))
            .prop_map(|(at, tensor, objects)| Mutation::Offload { at, tensor, objects }),
        1 => (0..64usize).prop_map(Mutation::NoPrefetch),
        2 => (0..64usize, 0..64usize)
            .prop_map(|(launch, at)| Mutation::LaunchAgain { launch, at }),
        1 => (0..64usize).prop_map(Mutation::OtherLaunch),
        2 => (0..64usize, any::<bool>()).prop_map(|(at, may)| Mutation::OtherPlace(at, may)),
        1 => (0..64usize).prop_map(Mutation::OtherOp),
        2 => (0..=64u64).prop_map(Mutation::LittleHost),
        2 => machines::changes().prop_map(Mutation::Machine),
        1 => resizes().prop_map(Mutation::Graph),
        2 => (0..=50u32, any::<bool>()).prop_map(|(times, more)| Mutation::Bytes(times, more)),
    ]
}

fn mutated(mut case: Case, mutation: Mutation) -> Case {
    let plan = &mut case.plan;
    match mutation {
        Mutation::Number(at, new) => set_number(plan, at, new),
        Mutation::OffloadInput(at, tensor) => {
            let tensors = case.graph.tensors.iter().enumerate();
            let inputs = tensors.filter(|(_, tensor)| tensor.kind == Kind::Input);
            let ids: Vec<usize> = inputs.map(|(id, _)| id).collect();
            if let Some(&id) = ids.get(tensor % ids.len().max(1)) {
                let step = Step::Offload(Part::whole(TensorId(id as u32)));
                plan.steps.insert(at % (plan.steps.len() + 1), step);
            }
        }
        Mutation::Offload { at, tensor, objects } => {
            let tensor = TensorId((tensor % case.graph.tensors.len().max(1)) as u32);
            let some = |(first, count)| Part { tensor, first, count };
            let part = objects.map_or(Part::whole(tensor), some);
            plan.steps.insert(at % (plan.steps.len() + 1), Step::Offload(part));
        }
        Mutation::NoPrefetch(tensor) => {
            let id = TensorId((tensor % case.graph.tensors.len().max(1)) as u32);
            let brings = |step: &Step| matches!(step, Step::Prefetch(part) if part.tensor == id);
            plan.steps.retain(|step| !brings(step));
        }
        Mutation::LaunchAgain { launch, at } => {
            if let Some(Launched { op, .. }) = nth_launch(plan, launch).copied() {
                plan.steps.insert(at % (plan.steps.len() + 1), Step::repeat(op));
            }
        }
        Mutation::OtherLaunch(launch) => {
            if let Some(launched) = nth_launch(plan, launch) {
                launched.is_repeat = !launched.is_repeat;
            }
        }
        Mutation::OtherPlace(at, may) => {
            let mut firsts: Vec<&mut Step> = plan.steps.iter_mut().collect();
            firsts.retain(|step| step.launched().is_some_and(|launched| !launched.is_repeat));
            let count = firsts.len().max(1);
            let Some(step) = firsts.into_iter().nth(at % count) else { return case };
            let Some(Launched { op, .. }) = step.launched() else { return case };
            let is_on_host = matches!(step, Step::Host(_));
            *step = if is_on_host { Step::launch(op) } else { Step::Host(op) };
            if let Some(op) = case.graph.ops.get_mut(op.index()).filter(|_| may) {
                op.host_ns.get_or_insert(op.time_ns / 2);
                op.collective = false;
            }
        }
        Mutation::OtherOp(op) => {
            let ops = case.graph.ops.len().max(1);
            if let Some(op) = case.graph.ops.get_mut(op % ops) {
                op.repeatable = !op.repeatable;
                op.collective = !op.collective && op.host_ns.is_none();
            }
        }
        Mutation::LittleHost(share) => {
            let host_bytes = plan.predicted.host_bytes.saturating_mul(share) / 64;
            case.machine = case.machine.with_host_bytes(host_bytes);
        }
        Mutation::Machine(change) => case.machine = changed(case.machine, change),
        Mutation::Graph(resize) => case.graph = resized(case.graph, resize),
        Mutation::Bytes(doublings, more_objects) => return larger(case, doublings, more_objects),
    }
    case
}

/// One of the launches, counted around; none where there are none.
fn nth_launch(plan: &mut OwnedPlan, number: usize) -> Option<&mut Launched> {
    let mut launches: Vec<&mut Launched> = plan
        .steps
        .iter_mut()
        .filter_map(|step| match step {
            Step::Launch(launched) => Some(launched),
            _ => None,
        })
        .collect();
    let count = launches.len().max(1);
    (number % count < launches.len()).then(|| launches.swap_remove(number % count))
}

fn set_number(plan: &mut OwnedPlan, at: usize, new: NewNumber) {
    let mut count = 0;
    each_number(plan, &mut |number| {
        count += 1;
        number
    });
    let (at, mut next) = (at % count.max(1), 0);
    each_number(plan, &mut |number| {
        next += 1;
        match new {
            _ if next - 1 != at => number,
            NewNumber::Is(new) => new,
            NewNumber::Plus(offset) => number.wrapping_add_signed(offset),
        }
    });
}

/// Passes each number of a plan through `change`, those first that occur once.
fn each_number(plan: &mut OwnedPlan, change: &mut impl FnMut(u64) -> u64) {
    fn narrow(number: &mut u32, change: &mut impl FnMut(u64) -> u64) {
        *number = change(u64::from(*number)) as u32;
    }
    fn part(part: &mut Part, change: &mut impl FnMut(u64) -> u64) {
        let Part { tensor: TensorId(tensor), first, count } = part;
        narrow(tensor, change);
        *first = change(*first);
        *count = change(*count);
    }
    plan.budget_bytes = change(plan.budget_bytes);
    plan.arena_bytes = change(plan.arena_bytes);
    if let Some(placements) = &mut plan.placements {
        narrow(&mut placements.iterations, change);
    }
    for Pool { object_bytes, count } in &mut plan.pools {
        *object_bytes = change(*object_bytes);
        *count = change(*count);
    }
    let Prediction {
        period_ns,
        compute_ns,
        repeat_ns,
        host_ns,
        peak_bytes,
        h2d_bytes,
        d2h_bytes,
        host_bytes,
    } = &mut plan.predicted;
    let bytes = [peak_bytes, h2d_bytes, d2h_bytes, host_bytes];
    for figure in [period_ns, compute_ns, repeat_ns, host_ns].into_iter().chain(bytes) {
        *figure = change(*figure);
    }
    for ArenaPlacement { tensor: TensorId(tensor), offset_bytes } in &mut plan.arena {
        narrow(tensor, change);
        *offset_bytes = change(*offset_bytes);
    }
    plan.tensor_pool.iter_mut().chain(&mut plan.workspace_pool).for_each(|it| narrow(it, change));
    plan.resident_at_start.iter_mut().for_each(|Resident { part: it, .. }| part(it, change));
    for step in &mut plan.steps {
        match step {
            Step::Launch(Launched { op: OpId(op), .. }) | Step::Host(OpId(op)) => {
                narrow(op, change);
            }
            Step::Prefetch(it) | Step::Offload(it) | Step::Evict(it) => part(it, change),
        }
    }
    if let Some(OwnedPlacements { objects, ends, .. }) = &mut plan.placements {
        objects.iter_mut().for_each(|number| *number = change(*number));
        ends.iter_mut().for_each(|end| narrow(end, change));
    }
}

/// The same case with larger bytes: what was valid and fits 64 bits is valid.
fn larger(case: Case, doublings: u32, more_objects: bool) -> Case {
    let Case { graph, machine, mut plan } = case;
    let twice = |number| doubled(number, doublings);
    plan.budget_bytes = twice(plan.budget_bytes);
    plan.arena_bytes = twice(plan.arena_bytes);
    plan.arena.iter_mut().for_each(|it| it.offset_bytes = twice(it.offset_bytes));
    let larger = [
        Change::Device(twice(machine.device_bytes)),
        Change::Host(twice(machine.host_bytes)),
        Change::Up(twice(machine.h2d_bytes_per_s)),
        Change::Down(twice(machine.d2h_bytes_per_s)),
    ];
    let mut machine = larger.into_iter().fold(machine, changed);
    if more_objects {
        plan.pools.iter_mut().for_each(|pool| pool.count = twice(pool.count));
        each_part(&mut plan, |part| {
            (part.first, part.count) = (twice(part.first), twice(part.count));
        });
    } else {
        plan.pools.iter_mut().for_each(|pool| pool.object_bytes = twice(pool.object_bytes));
        machine = changed(machine, Change::Chunk(twice(machine.chunk_bytes)));
    }
    Case { graph: resized(graph, Resize::Bytes(doublings)), machine, plan }
}

/// Changes each range of a plan.
fn each_part(plan: &mut OwnedPlan, change: impl Fn(&mut Part)) {
    let residents = plan.resident_at_start.iter_mut().map(|resident| &mut resident.part);
    let moved = plan.steps.iter_mut().filter_map(|step| match step {
        Step::Prefetch(part) | Step::Offload(part) | Step::Evict(part) => Some(part),
        Step::Launch(_) | Step::Host(_) => None,
    });
    residents.chain(moved).filter(|part| !part.is_whole()).for_each(change);
}
