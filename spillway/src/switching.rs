//! The functions of [`planner_core::switch`] with allocation added.

use crate::error::Error;
use crate::graph::Graph;
use crate::growth::{buffer, lengthen};
use crate::names::Names;
use crate::plan::Plan;
use crate::planning;
use planner_core::executor::SetUp;
use planner_core::plan::Prediction;
use planner_core::scratch::Buffer;
use planner_core::switch::{
    self, Capacity, ChunkRun, Held, Holding, Memory, SharedState, Switch, SwitchError,
    SwitchOutput, SwitchPrediction, SwitchStep, TensorBytes, VerifiedSwitch,
};
use planner_core::{
    Executor, HostLayout, Kind, Limits, Machine, PlanError, Scratch, TensorId, Verified,
};
use std::collections::HashMap;
use workloads::{OwnedGraph, OwnedPlan, Shown};

/// The cost of a switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SwitchFigures {
    /// Bytes of states that stay on the device.
    pub kept_bytes: u64,
    /// Bytes copied to the device, of states and of inputs.
    pub h2d_bytes: u64,
    /// Bytes copied to the host.
    pub d2h_bytes: u64,
    /// Time of all copies, with both links in use at the same time.
    pub time_ns: u64,
    /// Time to map and unmap chunks, by the [machine](planner_core::Machine), before the copies. Ahead of a
    /// run, it is an upper bound.
    pub mapping_ns: u64,
}

impl SwitchFigures {
    /// Combines the copies and the mapping of a switch.
    pub(crate) fn new(copied: SwitchPrediction, set_up: SetUp, machine: &Machine) -> Self {
        let SwitchPrediction { kept_bytes, h2d_bytes, d2h_bytes, time_ns } = copied;
        let mapping_ns = set_up.time_ns(machine);
        Self { kept_bytes, h2d_bytes, d2h_bytes, time_ns, mapping_ns }
    }
}

/// A switch that owns its lists.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OwnedSwitch {
    /// The chunks of the device for the second plan.
    pub chunks: Vec<ChunkRun>,
    /// The steps: bytes that stay, and bytes that move.
    pub steps: Vec<SwitchStep>,
    /// The predicted cost.
    pub predicted: SwitchPrediction,
}

impl OwnedSwitch {
    /// The switch for the core.
    #[must_use]
    pub fn switch(&self) -> Switch<'_> {
        let Self { chunks, steps, predicted } = self;
        Switch { chunks, steps, predicted: *predicted }
    }
}

/// Pairs the states of two graphs by name. If both are the same graph, pairs each state with itself.
///
/// # Errors
/// [`Error::States`] names a state that only one graph has, that has different sizes, or that shares its name
/// with another state.
pub fn shared_states(from: &Graph, to: &Graph) -> Result<Vec<SharedState>, Error> {
    let (one, other) = (from.owned(), to.owned());
    if one.tensors == other.tensors && one.tensor_names == other.tensor_names {
        let same = |id| SharedState { from: id, to: id };
        return Ok(states(one).map(|(id, _)| same(id)).collect());
    }
    let mut missing = by_name(one)?;
    let mut shared = Vec::with_capacity(missing.len());
    let alone = |graph: &Graph, id| {
        Error::States(format!(
            "{} is a state of the graph {:?} alone: declare it in both, even if no op uses it",
            Names::new(graph.owned(), &[]).tensor(id),
            Shown::name(graph.name()),
        ))
    };
    by_name(other)?;
    for (to_id, name) in states(other) {
        let from_id = missing.remove(name).ok_or_else(|| alone(to, to_id))?;
        let bytes = [one.tensors[from_id.index()].bytes, other.tensors[to_id.index()].bytes];
        if bytes[0] != bytes[1] {
            let name = Shown::name(name);
            let [from, to] = bytes;
            return Err(Error::States(format!(
                "the state {name:?} has {from} bytes in one graph and {to} in the other"
            )));
        }
        shared.push(SharedState { from: from_id, to: to_id });
    }
    match missing.into_values().min() {
        Some(id) => Err(alone(from, id)),
        None => Ok(shared),
    }
}

fn states(graph: &OwnedGraph) -> impl Iterator<Item = (TensorId, &str)> {
    let tensors = (0..).map(TensorId).zip(graph.tensors.iter().zip(&graph.tensor_names));
    let states = tensors.filter(|(_, (tensor, _))| tensor.kind == Kind::State);
    states.map(|(id, (_, name))| (id, name.as_str()))
}

fn by_name(graph: &OwnedGraph) -> Result<HashMap<&str, TensorId>, Error> {
    let mut ids = HashMap::new();
    for (id, name) in states(graph) {
        if ids.insert(name, id).is_some() {
            return Err(Error::States(format!(
                "two states of the graph {:?} have the name {:?}",
                Shown::name(&graph.name),
                Shown::name(name),
            )));
        }
    }
    Ok(ids)
}

/// Writes the memory that a running plan holds between two iterations to `out`; see [`Executor::holding`].
///
/// # Errors
/// The process has too little memory.
pub fn holding<'h>(
    executor: &Executor<'h>,
    out: &'h mut Vec<Held>,
) -> Result<Holding<'h>, SwitchError> {
    if let Err(short) = executor.holding(out) {
        lengthen(out, short.needed, Held::EMPTY)?;
    }
    Ok(executor.holding(out)?)
}

/// Writes the memory that a plan holds after a number of iterations, ahead of a run, to `out`; see
/// [`Holding::between_iterations`].
///
/// # Errors
/// The process has too little memory.
pub fn holding_of<'h>(
    verified: &Verified<'h>,
    iterations: u64,
    capacity: Capacity,
    out: &'h mut Vec<Held>,
) -> Result<Holding<'h>, SwitchError> {
    let mut memory = buffer(Holding::scratch_words(&limits(verified)), 0)?;
    let scratch = &mut Scratch::new(&mut memory);
    match Holding::between_iterations(verified, iterations, capacity, out, scratch) {
        Err(SwitchError::BufferTooShort(short)) => lengthen(out, short.needed, Held::EMPTY)?,
        Err(error) => return Err(error),
        Ok(_) => {}
    }
    Holding::between_iterations(verified, iterations, capacity, out, scratch)
}

/// Returns the memory that a plan needs on the device and on the host; see [`Capacity::of`].
///
/// # Errors
/// The process has too little memory.
pub fn capacity(verified: &Verified<'_>) -> Result<Capacity, PlanError> {
    let mut memory = buffer(HostLayout::scratch_words(&limits(verified)), 0)?;
    Capacity::of(verified, &mut Scratch::new(&mut memory))
}

/// Returns the plan with an arena that follows the layout of another plan; see [`switch::keep_offsets`]. A
/// larger arena takes unused objects from the pool. Returns `None` if there are too few of them.
///
/// # Errors
/// The errors of [`switch::keep_offsets`], except for buffers that are too short.
pub fn keep_offsets(
    from: &Verified<'_>,
    to: &Verified<'_>,
    plan: &OwnedPlan,
    states: &[SharedState],
) -> Result<Option<OwnedPlan>, SwitchError> {
    let (graph, machine) = (to.graph(), to.machine());
    let words = switch::keep_offsets_scratch_words(&limits(from), &limits(to));
    let mut memory = buffer(words, 0)?;
    let mut plan = plan.clone();
    let scratch = &mut Scratch::new(&mut memory);
    plan.arena_bytes = switch::keep_offsets(from, to, states, &mut plan.arena, scratch)?;
    let mut scheduled = planning::schedule(graph, machine, &plan.plan());
    if let Err(PlanError::PoolsAboveBudget { needed_bytes, budget_bytes }) = scheduled {
        if !take_unused(&mut plan, needed_bytes - budget_bytes) {
            return Ok(None);
        }
        scheduled = planning::schedule(graph, machine, &plan.plan());
    }
    match scheduled {
        Err(PlanError::PoolsAboveBudget { .. }) => Ok(None),
        Err(error) => Err(error.into()),
        Ok(schedule) => {
            let schedule = schedule.schedule();
            let (exact, _) = planning::predict(graph, machine, &plan.plan(), &schedule)?;
            plan.predicted = Prediction { host_bytes: plan.predicted.host_bytes, ..exact };
            Ok(Some(plan))
        }
    }
}

/// Makes the only pool smaller by this many bytes, if no allocation uses its last objects.
fn take_unused(plan: &mut OwnedPlan, bytes: u64) -> bool {
    let ([pool], Some(placements)) = (plan.pools.as_mut_slice(), &plan.placements) else {
        return false;
    };
    let used = placements.objects.iter().max().map_or(0, |last| last + 1);
    match pool.count.checked_sub(bytes.div_ceil(pool.object_bytes)) {
        Some(count) if count >= used => {
            pool.count = count;
            true
        }
        _ => false,
    }
}

/// A switch that is proved ahead of a run, with the memory held before it and the plan after it.
pub(crate) struct Ahead<'a> {
    pub(crate) holding: Holding<'a>,
    pub(crate) to: &'a Verified<'a>,
    pub(crate) states: &'a [SharedState],
    pub(crate) planned: &'a OwnedSwitch,
}

/// Plans and proves a switch from one plan to another, after a number of iterations. Passes it to `see`.
pub(crate) fn ahead<T>(
    from: &Plan,
    iterations: u64,
    to: &Plan,
    on_device: Memory,
    see: impl FnOnce(&Ahead<'_>) -> Result<T, Error>,
) -> Result<T, Error> {
    let states = &shared_states(from.graph(), to.graph())?;
    let both_need = from.capacity().max(to.capacity());
    let (from, to) = (from.verified(), to.verified());
    let mut held = Vec::new();
    let holding = holding_of(from, iterations, both_need, &mut held)?;
    let planned = &plan(&holding, to, states, on_device)?;
    prove(&holding, to, states, &planned.switch())?;
    see(&Ahead { holding, to, states, planned })
}

/// Plans a switch; see [`switch::plan`].
///
/// # Errors
/// The errors of [`switch::plan`], except for buffers that are too short.
pub fn plan(
    holding: &Holding<'_>,
    to: &Verified<'_>,
    states: &[SharedState],
    on_device: Memory,
) -> Result<OwnedSwitch, SwitchError> {
    const CHUNK: ChunkRun = ChunkRun { first: 0, device_first: 0, count: 0 };
    const STEP: SwitchStep =
        SwitchStep::Keep(TensorBytes { tensor: TensorId(0), first_byte: 0, bytes: 0 });
    let [from_limits, to_limits] = [holding.verified(), to].map(limits);
    let entries = holding.entries().len();
    let mut memory = buffer(switch::scratch_words(&from_limits, &to_limits, entries), 0)?;
    let (mut chunks, mut steps) = (Vec::new(), Vec::new());
    loop {
        let output = SwitchOutput { chunks: &mut chunks, steps: &mut steps };
        let scratch = &mut Scratch::new(&mut memory);
        let planned = switch::plan(holding, to, states, on_device, output, scratch);
        match planned.map(|it| (it.chunks.len(), it.steps.len(), it.predicted)) {
            Err(SwitchError::BufferTooShort(short)) => match short.buffer {
                Buffer::Chunks => lengthen(&mut chunks, short.needed, CHUNK)?,
                _ => lengthen(&mut steps, short.needed, STEP)?,
            },
            Err(error) => return Err(error),
            Ok((chunk_runs, step_count, predicted)) => {
                chunks.truncate(chunk_runs);
                steps.truncate(step_count);
                return Ok(OwnedSwitch { chunks, steps, predicted });
            }
        }
    }
}

/// Proves a switch safe; see [`switch::verify`].
///
/// # Errors
/// The errors of [`switch::verify`], except for buffers that are too short.
pub fn prove<'a, 'b>(
    holding: &Holding<'a>,
    to: &Verified<'b>,
    states: &'a [SharedState],
    switch: &Switch<'a>,
) -> Result<VerifiedSwitch<'a, 'b>, SwitchError> {
    let [from_limits, to_limits] = [holding.verified(), to].map(limits);
    let words = switch::verify_scratch_words(
        &from_limits,
        &to_limits,
        holding.entries().len(),
        switch.chunks.len(),
        switch.steps.len(),
    );
    let mut memory = buffer(words, 0)?;
    switch::verify(holding, to, states, switch, &mut Scratch::new(&mut memory))
}

fn limits(verified: &Verified<'_>) -> Limits {
    Limits::of_plan(verified.graph(), verified.plan())
}
