//! A judge of plans that follows `docs/format.md` sentence by sentence.
//!
//! It tracks every object of every tensor through eight iterations, one after the other. It is slow
//! and simple on purpose, and meant for graphs of a few tensors with a few objects each.

mod arena;
pub mod host;
mod layout;
mod order;
mod placements;
pub mod switch;
mod times;
mod values;

use layout::Layout;
use order::Order;
use planner_core::plan::Location;
use planner_core::{Graph, Kind, Launched, Machine, Part, Plan, Step, TensorId};
use std::collections::BTreeSet;
use std::fmt;

pub(crate) use placements::Allocation;
pub use planner_core::plan::Prediction;

/// The number of iterations that are followed. The format times eight iterations.
pub const ITERATIONS: u32 = 8;

/// The figures of a valid plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// The exact figures. `host_bytes` gives every tensor that moves its own slot. The format also
    /// accepts other figures.
    pub prediction: Prediction,
    /// The least and the most that a plan may state as `host_bytes`. The least counts the parts of
    /// states and inputs that move. The most counts all states, inputs and outputs, and the
    /// temporaries that move or that ops on the host touch.
    pub accepted_host_bytes: (u64, u64),
    /// The least and the most bytes that the host layout can take. If the host has an amount
    /// between them, this judge cannot tell whether the layout fits, and accepts.
    pub host_layout_bytes: (u64, u64),
    /// The first step after which the plan holds the most bytes of objects.
    pub first_peak_step: usize,
    /// The bytes of these objects that tensors and workspaces fill.
    pub requested_bytes_at_peak: u64,
    /// Internal fragmentation after each step: the held bytes that nothing fills, and their bound
    /// by equation 2 of Hayakawa & Narihira.
    pub waste_bytes: Vec<[u128; 2]>,
    /// When each step runs: all steps of the first iteration, then all steps of the second, and so
    /// on.
    pub timeline: Vec<Event>,
}

/// One step of one iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The iteration, counted from 1.
    pub iteration: u32,
    /// The position in the list.
    pub step: usize,
    /// When it starts. An evict starts when it completes.
    pub start_ns: u64,
    /// When it ends. An evict ends when it completes.
    pub end_ns: u64,
    /// If releases grant memory to the step, the number of iterations since the last of them is
    /// listed.
    pub memory_lag: Option<u32>,
}

/// A rule that a plan breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The place of the error. `None` for sums over the whole plan.
    pub location: Option<Location>,
    /// What is wrong.
    pub message: String,
}

impl Violation {
    fn at(location: Location, message: impl Into<String>) -> Self {
        Self { location: Some(location), message: message.into() }
    }

    fn of_plan(message: impl Into<String>) -> Self {
        Self { location: None, message: message.into() }
    }

    fn overflow() -> Self {
        Self::of_plan("a size or a time exceeds 64 bits")
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.location {
            Some(location) => write!(f, "{location}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for Violation {}

/// Judges a plan by every rule of the format, and checks that its predictions are exact.
///
/// # Errors
/// The first broken rule.
pub fn judge(
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &Plan<'_>,
) -> Result<Judgement, Violation> {
    let judgement = measure(graph, machine, plan)?;
    check_prediction(machine, &plan.predicted, &judgement)?;
    Ok(judgement)
}

/// Judges a plan by every rule except its predictions, which are ignored.
///
/// # Errors
/// The first broken rule.
pub fn measure(
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &Plan<'_>,
) -> Result<Judgement, Violation> {
    check_ids(graph, plan)?;
    let order = Order::check(graph, plan)?;
    let layout = Layout::check(graph, machine, plan)?;
    arena::check(graph, machine, plan, &order)?;
    let records = values::walk(&layout, &order)?;
    let changes = placements::follow(&layout, &records)?;
    let timeline = times::run(&layout, machine, &records, changes.as_ref())?;
    let (prediction, first_peak_step) = predict(&layout, &records, &timeline)?;
    let host_layout_bytes = host_layout_bytes(graph, plan);
    if host_layout_bytes.0 > machine.host_bytes {
        return Err(Violation::of_plan("the machine has too little pinned host memory"));
    }
    Ok(Judgement {
        prediction,
        accepted_host_bytes: accepted_host_bytes(&layout, &records),
        host_layout_bytes,
        first_peak_step,
        requested_bytes_at_peak: records[first_peak_step].requested_bytes,
        waste_bytes: records[..plan.steps.len()]
            .iter()
            .map(|record| waste_bytes(plan, record))
            .collect(),
        timeline,
    })
}

/// All allocations of `iterations` iterations of a plan that keeps the rules, in the order of
/// placements. The plan's own placements are ignored.
pub(crate) fn allocations(
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &Plan<'_>,
    iterations: u32,
) -> Result<Vec<Allocation>, Violation> {
    let plan = Plan { placements: None, ..*plan };
    measure(graph, machine, &plan)?;
    let layout = Layout::check(graph, machine, &plan)?;
    let records = values::walk(&layout, &Order::check(graph, &plan)?)?;
    placements::allocations(&layout, &records, iterations)
}

fn check_ids(graph: &Graph<'_>, plan: &Plan<'_>) -> Result<(), Violation> {
    let known = |location, tensor: TensorId| match graph.tensors().get(tensor.index()) {
        Some(_) => Ok(()),
        None => Err(Violation::at(location, format!("there is no {tensor}"))),
    };
    for (location, placement) in (0..).map(Location::Arena).zip(plan.arena) {
        known(location, placement.tensor)?;
    }
    for (location, resident) in (0..).map(Location::Start).zip(plan.resident_at_start) {
        known(location, resident.part.tensor)?;
    }
    for (location, step) in (0..).map(Location::Step).zip(plan.steps) {
        match *step {
            Step::Prefetch(part) | Step::Offload(part) | Step::Evict(part) => {
                known(location, part.tensor)?;
            }
            Step::Launch(Launched { op, .. }) | Step::Host(op)
                if op.index() >= graph.ops().len() =>
            {
                return Err(Violation::at(location, format!("there is no {op}")));
            }
            Step::Launch(_) | Step::Host(_) => {}
        }
    }
    Ok(())
}

/// The held bytes that nothing fills, and their bound, which counts one largest object per
/// allocation.
fn waste_bytes(plan: &Plan<'_>, record: &values::StepRecord) -> [u128; 2] {
    let largest_bytes = plan.pools.iter().map(|pool| pool.object_bytes).max().unwrap_or(0);
    let bound_bytes = record.allocations as u128 * u128::from(largest_bytes);
    [record.held_bytes - u128::from(record.requested_bytes), bound_bytes]
}

/// The exact figures, and the first step at the peak.
fn predict(
    layout: &Layout<'_>,
    records: &[values::StepRecord],
    timeline: &[Event],
) -> Result<(Prediction, usize), Violation> {
    let (graph, plan) = (layout.graph, layout.plan);
    let mut transferred_bytes = [0u64; 2];
    let mut transfers_ns = [0u64; 2];
    let (mut host_ns, mut network_ns) = (0, 0);
    let (mut peak_bytes, mut first_peak_step) = (0, 0);
    for (record, event) in records.iter().zip(timeline).take(plan.steps.len()) {
        if let Some(direction) = record.direction() {
            add(&mut transferred_bytes[direction], record.bytes)?;
            add(&mut transfers_ns[direction], event.end_ns - event.start_ns)?;
        }
        if matches!(record.action, Step::Host(_)) {
            add(&mut host_ns, event.end_ns - event.start_ns)?;
        }
        if matches!(record.action, Step::Launch(Launched { op, .. }) if graph.op(op).collective) {
            add(&mut network_ns, event.end_ns - event.start_ns)?;
        }
        if record.held_bytes > peak_bytes {
            (peak_bytes, first_peak_step) = (record.held_bytes, record.step);
        }
    }
    peak_bytes += u128::from(plan.arena_bytes);
    let [h2d_bytes, d2h_bytes] = transferred_bytes;
    let host_bytes = on_host_bytes(graph, plan, |_| true);
    let [upload_ns, download_ns] = transfers_ns;
    let longest_ns = upload_ns.max(download_ns).max(host_ns).max(network_ns);
    let prediction = Prediction {
        period_ns: longest_ns.max(iteration_ns(plan, timeline)),
        compute_ns: graph.compute_ns(),
        repeat_ns: repeat_ns(graph, plan)?,
        host_ns,
        peak_bytes: u64::try_from(peak_bytes).map_err(|_| Violation::overflow())?,
        h2d_bytes,
        d2h_bytes,
        host_bytes,
    };
    Ok((prediction, first_peak_step))
}

/// The time of all repeats.
fn repeat_ns(graph: &Graph<'_>, plan: &Plan<'_>) -> Result<u64, Violation> {
    let mut sum_ns = 0;
    for step in plan.steps {
        if let Step::Launch(Launched { op, is_repeat: true }) = *step {
            add(&mut sum_ns, graph.op(op).time_ns)?;
        }
    }
    Ok(sum_ns)
}

fn add(sum: &mut u64, term: u64) -> Result<(), Violation> {
    *sum = sum.checked_add(term).ok_or_else(Violation::overflow)?;
    Ok(())
}

/// A quarter of the time between the fourth and the eighth iteration, rounded down. Each iteration
/// counts to the end of all its launches and steps on the host.
fn iteration_ns(plan: &Plan<'_>, timeline: &[Event]) -> u64 {
    let ops_end_ns = |iteration: u32| {
        let runs_op = |event: &&Event| {
            event.iteration == iteration
                && matches!(plan.steps[event.step], Step::Launch(_) | Step::Host(_))
        };
        timeline.iter().filter(runs_op).map(|event| event.end_ns).max().unwrap_or(0)
    };
    (ops_end_ns(8) - ops_end_ns(4)) / 4
}

/// The bytes of all tensors of certain kinds that the list moves or that an op on the host touches.
/// Each tensor counts once.
fn on_host_bytes(graph: &Graph<'_>, plan: &Plan<'_>, counts: impl Fn(Kind) -> bool) -> u64 {
    let tensors = |step: &Step| match *step {
        Step::Prefetch(Part { tensor, .. }) | Step::Offload(Part { tensor, .. }) => vec![tensor],
        Step::Host(op) => graph.touches(op).collect(),
        Step::Launch(_) | Step::Evict(_) => Vec::new(),
    };
    let on_host: BTreeSet<TensorId> = plan.steps.iter().flat_map(tensors).collect();
    let on_host = on_host.into_iter().map(|tensor| graph.tensor(tensor));
    on_host.filter(|tensor| counts(tensor.kind)).map(|tensor| tensor.bytes).sum()
}

/// The bytes of all states, inputs and outputs that move or that the host touches, and of such
/// temporaries. The least counts the temporaries in use at the same time, the most counts all of
/// them.
fn host_layout_bytes(graph: &Graph<'_>, plan: &Plan<'_>) -> (u64, u64) {
    let lasting_bytes = on_host_bytes(graph, plan, |kind| kind != Kind::Temporary);
    let (load_bytes, sum_bytes) = host::load_bytes(&host::temporaries(graph, plan));
    (lasting_bytes + load_bytes, lasting_bytes + sum_bytes)
}

/// The figures that a plan may state as `host_bytes`.
fn accepted_host_bytes(layout: &Layout<'_>, records: &[values::StepRecord]) -> (u64, u64) {
    let (graph, plan) = (layout.graph, layout.plan);
    let moved = records.iter().filter_map(|record| match record.action {
        Step::Prefetch(part) | Step::Offload(part) => {
            let objects = record.objects.clone();
            Some(objects.map(move |object| (part.tensor, object)))
        }
        Step::Launch(_) | Step::Host(_) | Step::Evict(_) => None,
    });
    let moved: BTreeSet<(TensorId, u64)> = moved.flatten().collect();
    let is_kept = |tensor| matches!(graph.tensor(tensor).kind, Kind::State | Kind::Input);
    let lasting_objects = moved.into_iter().filter(|&(tensor, _)| is_kept(tensor));
    let least_bytes = lasting_objects
        .map(|(tensor, object)| layout.copied_bytes(tensor, &(object..object + 1)))
        .sum();
    let lasting = graph.tensors().iter().filter(|tensor| tensor.kind != Kind::Temporary);
    let temporaries_bytes = on_host_bytes(graph, plan, |kind| kind == Kind::Temporary);
    let most_bytes = lasting.map(|tensor| tensor.bytes).sum::<u64>() + temporaries_bytes;
    (least_bytes, most_bytes)
}

/// Checks that `predicted` is exact, except for `host_bytes`, which must lie in its interval and
/// fit the machine's host memory.
fn check_prediction(
    machine: &Machine,
    predicted: &Prediction,
    judgement: &Judgement,
) -> Result<(), Violation> {
    let exact = Prediction { host_bytes: predicted.host_bytes, ..judgement.prediction };
    if *predicted != exact {
        return Err(Violation::of_plan(format!("predicted is {predicted:?}, exact is {exact:?}")));
    }
    let (least_bytes, most_bytes) = judgement.accepted_host_bytes;
    if !(least_bytes..=most_bytes).contains(&predicted.host_bytes) {
        return Err(Violation::of_plan(format!(
            "predicted host_bytes is {}, not from {least_bytes} to {most_bytes}",
            predicted.host_bytes
        )));
    }
    if predicted.host_bytes > machine.host_bytes {
        return Err(Violation::of_plan("the plan states more host memory than the machine has"));
    }
    Ok(())
}
