//! A judge of plans that follows `docs/format.md` sentence by sentence.
//!
//! It tracks every object of every tensor and follows eight iterations one after the other.
//! That is slow and simple on purpose: it is meant for graphs of a few tensors with a few
//! objects each.

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

/// Iterations that are written out; the format times eight.
pub const ITERATIONS: u32 = 8;

/// What a valid plan does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// The exact figures. Its `host_bytes` gives every tensor that is moved a slot of its
    /// own, which is one of several figures that the format accepts.
    pub prediction: Prediction,
    /// The least and the most that a plan may state as `host_bytes`: what is moved of states
    /// and inputs, and all states, inputs and outputs with the temporaries that are moved or that ops
    /// on the host touch.
    pub accepted_host_bytes: (u64, u64),
    /// The least and the most bytes that the host layout can take. Between them this judge
    /// cannot tell whether the layout fits the host, and accepts.
    pub host_layout_bytes: (u64, u64),
    /// The first step after which the most bytes of objects are held.
    pub first_peak_step: usize,
    /// Bytes that tensors and workspaces really fill of the objects held there.
    pub requested_bytes_at_peak: u64,
    /// Internal fragmentation after each step: bytes held less those filled, and what that
    /// stays below by equation 2 of Hayakawa & Narihira.
    pub waste_bytes: Vec<[u128; 2]>,
    /// When each step runs: all steps of the first iteration, then of the second, and so on.
    pub timeline: Vec<Event>,
}

/// One step of one iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The iteration, counted from 1.
    pub iteration: u32,
    /// The position in the list.
    pub step: usize,
    /// When it starts; for an evict, when it completes.
    pub start_ns: u64,
    /// When it ends; for an evict, when it completes.
    pub end_ns: u64,
    /// Where memory is granted by releases: how many iterations back the last of them is
    /// listed.
    pub memory_lag: Option<u32>,
}

/// A rule that a plan breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Where; nowhere in particular for sums over the whole plan.
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

/// Judges a plan: every rule of the format, and that its predictions are exact.
///
/// # Errors
/// The first rule found broken.
pub fn judge(
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &Plan<'_>,
) -> Result<Judgement, Violation> {
    let judgement = measure(graph, machine, plan)?;
    check_prediction(machine, &plan.predicted, &judgement)?;
    Ok(judgement)
}

/// Judges a plan by every rule but its predictions, which are ignored.
///
/// # Errors
/// The first rule found broken.
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

/// All allocations of this many iterations of a plan that keeps the rules, in the order of
/// placements; its own are ignored.
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

/// What is held less what is filled of it; and the bound, by the largest objects.
fn waste_bytes(plan: &Plan<'_>, record: &values::StepRecord) -> [u128; 2] {
    let largest_bytes = plan.pools.iter().map(|pool| pool.object_bytes).max().unwrap_or(0);
    let bound_bytes = record.allocations as u128 * u128::from(largest_bytes);
    [record.held_bytes - u128::from(record.requested_bytes), bound_bytes]
}

/// The exact figures, and the step at which the peak is first reached.
fn predict(
    layout: &Layout<'_>,
    records: &[values::StepRecord],
    timeline: &[Event],
) -> Result<(Prediction, usize), Violation> {
    let (graph, plan) = (layout.graph, layout.plan);
    let mut transferred_bytes = [0u64; 2];
    let mut transfers_ns = [0u64; 2];
    let mut host_ns = 0;
    let (mut peak_bytes, mut first_peak_step) = (0, 0);
    for (record, event) in records.iter().zip(timeline).take(plan.steps.len()) {
        if let Some(direction) = record.direction() {
            add(&mut transferred_bytes[direction], record.bytes)?;
            add(&mut transfers_ns[direction], event.end_ns - event.start_ns)?;
        }
        if matches!(record.action, Step::Host(_)) {
            add(&mut host_ns, event.end_ns - event.start_ns)?;
        }
        if record.held_bytes > peak_bytes {
            (peak_bytes, first_peak_step) = (record.held_bytes, record.step);
        }
    }
    peak_bytes += u128::from(plan.arena_bytes);
    let [h2d_bytes, d2h_bytes] = transferred_bytes;
    let host_bytes = on_host_bytes(graph, plan, |_| true);
    let [upload_ns, download_ns] = transfers_ns;
    let longest_ns = upload_ns.max(download_ns).max(host_ns);
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

/// The time of the repeats.
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

/// A quarter of the time from the end of all launches and steps on the host of the fourth iteration
/// to that of the eighth, rounded down.
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

/// Bytes of the tensors of certain kinds of which the list moves something or that an op on the host
/// touches, each once.
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

/// Bytes of the states, inputs and outputs that are moved or touched on the host, with such
/// temporaries: at least those in use at the same time, at most all of them.
fn host_layout_bytes(graph: &Graph<'_>, plan: &Plan<'_>) -> (u64, u64) {
    let lasting_bytes = on_host_bytes(graph, plan, |kind| kind != Kind::Temporary);
    let (load_bytes, sum_bytes) = host::load_bytes(&host::temporaries(graph, plan));
    (lasting_bytes + load_bytes, lasting_bytes + sum_bytes)
}

/// What a plan may state as `host_bytes`.
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

/// `predicted` is exact, but for `host_bytes`, which lies in its interval and within the
/// machine's host memory.
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
