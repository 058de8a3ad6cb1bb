//! Plans and proves in one buffer.

use crate::error::{Code, Error};
use crate::memory::{Memory, array_bytes};
use crate::work::{Work, given};
use core::ptr;
use planner_core::plan::{ArenaPlacement, Pool, Resident};
use planner_core::planner::{self, Output, PlanningError, Request};
use planner_core::schedule::Scheduled;
use planner_core::{
    Graph, Kind, Launched, Limits, Machine, Op, OpId, Part, PerStream, Plan, Scratch, Step, Tensor,
    TensorId, lower, verify,
};

/// Allocates device memory for a range of a tensor, and copies its value in.
pub const SPILLWAY_CORE_PREFETCH: u32 = 0;
/// Runs an op. What it writes is allocated where it is not on the device, and so is its workspace.
pub const SPILLWAY_CORE_LAUNCH: u32 = 1;
/// Copies a range of a tensor to the host; it stays on the device.
pub const SPILLWAY_CORE_OFFLOAD: u32 = 2;
/// Gives back the device memory of a range of a tensor.
pub const SPILLWAY_CORE_EVICT: u32 = 3;
/// Runs an op on the host: on the host's copies of its tensors, and without device memory. Of an input,
/// that is the value of this iteration.
pub const SPILLWAY_CORE_HOST_RUN: u32 = 4;

/// No step: there is nothing to wait for.
pub const SPILLWAY_CORE_NONE: u32 = u32::MAX;
/// All objects of a tensor.
pub const SPILLWAY_CORE_ALL: u64 = u64::MAX;

/// What must have ended on a stream before a step starts.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitDescription {
    /// The position of the awaited step among those of its stream, or `SPILLWAY_CORE_NONE`.
    pub index: u32,
    /// How many iterations back that step lies. Where that is before the first, there is nothing to
    /// wait for.
    pub iterations_back: u32,
}

/// One step. Steps are enqueued in the order of the list: launches on stream 0, prefetches on stream 1,
/// offloads on stream 2, host runs on stream 3.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepDescription {
    /// `SPILLWAY_CORE_PREFETCH`, `_LAUNCH`, `_OFFLOAD`, `_EVICT` or `_HOST_RUN`.
    pub kind: u32,
    /// The op of a launch or of a host run, else the tensor.
    pub id: u32,
    /// The first object of the range; 0 of an op.
    pub first_object: u64,
    /// How many objects, or `SPILLWAY_CORE_ALL`; 0 of an op.
    pub object_count: u64,
    /// Whether the op has been launched before in this iteration: 1, or 0.
    pub is_repeat: u8,
    /// The position among the steps of its stream. An evict is on no stream: `SPILLWAY_CORE_NONE`.
    pub index: u32,
    /// What it waits for on each stream, by number. For an evict: what must have ended before its
    /// memory is free.
    pub waits: [WaitDescription; 4],
}

/// What is on the device when an iteration starts.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResidentDescription {
    /// The tensor.
    pub tensor: u32,
    /// The first object of the range.
    pub first_object: u64,
    /// How many objects, or `SPILLWAY_CORE_ALL`.
    pub object_count: u64,
}

/// A tensor at a fixed offset.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaDescription {
    /// The tensor.
    pub tensor: u32,
    /// Where it begins in the arena.
    pub offset_bytes: u64,
}

/// A plan that was proved. What it points to lies in the caller's buffer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PlanDescription {
    /// The steps of one iteration, which repeat for ever.
    pub steps: *const StepDescription,
    /// How many.
    pub step_count: usize,
    /// What is on the device when an iteration starts.
    pub resident: *const ResidentDescription,
    /// How many.
    pub resident_count: usize,
    /// The tensors that lie in the arena.
    pub arena: *const ArenaDescription,
    /// How many.
    pub arena_count: usize,
    /// The size of the arena.
    pub arena_bytes: u64,
    /// The pools, from which all other tensors take objects: their size and number. The second has
    /// none if all tensors take chunks.
    pub object_bytes: [u64; 2],
    /// How many objects each pool has.
    pub object_counts: [u64; 2],
    /// The pool of each tensor; null where it is pool 0 for all.
    pub tensor_pool: *const u32,
    /// Time from one iteration to the next, once under way.
    pub period_ns: u64,
    /// The sum of all op times, each op once.
    pub compute_ns: u64,
    /// The most device memory that is held.
    pub peak_bytes: u64,
    /// Pinned host memory.
    pub host_bytes: u64,
}

/// Sizes with which any plan of a graph can be made and proved.
const fn limits(tensors: usize, ops: usize, operands: usize) -> Limits {
    let graph = Limits { ops, operands, tensors, pools: 2, iterations: 1, ..LIMITS };
    graph.with_steps(graph.max_steps())
}

const LIMITS: Limits = Limits {
    ops: 0,
    operands: 0,
    tensors: 0,
    steps: 0,
    pieces: 0,
    pools: 0,
    iterations: 0,
    objects: 0,
};

/// Returns the size of the buffer that planning a graph of so many tensors, ops and operands takes: a
/// few kilobytes for each operand. The largest number there is where no memory has as much.
#[unsafe(no_mangle)]
pub const extern "C" fn spillway_core_memory_bytes(
    tensors: usize,
    ops: usize,
    operands: usize,
) -> usize {
    let limits = limits(tensors, ops, operands);
    let mut words = planner::scratch_words(&limits);
    let others = [
        lower::scratch_words(&limits),
        verify::scratch_words(&limits),
        Graph::scratch_words(tensors),
    ];
    let mut at = 0;
    while at < others.len() {
        words = if others[at] > words { others[at] } else { words };
        at += 1;
    }
    let parts = [
        array_bytes::<Tensor>(tensors),
        array_bytes::<Op>(ops),
        array_bytes::<TensorId>(operands),
        array_bytes::<Step>(limits.steps),
        array_bytes::<Resident>(tensors.saturating_mul(2)),
        array_bytes::<ArenaPlacement>(tensors),
        array_bytes::<u32>(tensors),
        array_bytes::<Scheduled>(limits.steps),
        array_bytes::<StepDescription>(limits.steps),
        array_bytes::<ResidentDescription>(tensors.saturating_mul(2)),
        array_bytes::<ArenaDescription>(tensors),
        array_bytes::<u64>(words),
    ];
    let (mut bytes, mut at) = (0usize, 0);
    while at < parts.len() {
        bytes = bytes.saturating_add(parts[at]);
        at += 1;
    }
    bytes
}

/// Plans, proves the plan, and writes where it lies in `memory`, which must have the bytes that
/// `spillway_core_memory_bytes` says, at any alignment.
///
/// # Safety
/// The pointers are as `spillway_core.h` says; `memory` points to so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_core_plan(
    work: *const Work,
    memory: *mut u8,
    memory_bytes: usize,
    plan: *mut PlanDescription,
    error: *mut Error,
) -> Code {
    let made = match plan.is_null() {
        true => Err(Error::new(Code::Argument, "plan is null")),
        // SAFETY: the caller's promise.
        false => unsafe { make(work, memory, memory_bytes) },
    };
    match made {
        Ok(made) => {
            // SAFETY: not null, so it points to one value, which may be uninitialised.
            unsafe { plan.write(made) };
            Code::Ok
        }
        Err(failure) => {
            if !error.is_null() {
                // SAFETY: the same.
                unsafe { error.write(failure) };
            }
            failure.code
        }
    }
}

/// # Safety
/// That of [`spillway_core_plan`].
unsafe fn make(
    work: *const Work,
    memory: *mut u8,
    memory_bytes: usize,
) -> Result<PlanDescription, Error> {
    // SAFETY: the caller's promise.
    let (work, arrays, strategy) = unsafe {
        let work = given(work, "work")?;
        given(memory, "memory")?;
        (work, work.arrays()?, work.strategy()?)
    };
    let (tensors, ops, operands) = (arrays.tensors.len(), arrays.ops.len(), arrays.operands.len());
    let needed_bytes = spillway_core_memory_bytes(tensors, ops, operands);
    let short = || {
        let sentence =
            format_args!("the buffer has {memory_bytes} bytes, but needs {needed_bytes}");
        Error::new(Code::BufferTooShort, sentence)
    };
    if memory_bytes < needed_bytes {
        return Err(short());
    }
    // SAFETY: the caller's promise.
    let mut memory = unsafe { Memory::new(memory, memory_bytes) };
    let machine = work.machine()?;
    let limits = limits(tensors, ops, operands);
    let tensors = memory.take(tensors, Tensor { bytes: 1, kind: Kind::State }).ok_or_else(short)?;
    let ops = memory.take(ops, Op::default()).ok_or_else(short)?;
    let operands = memory.take(operands, TensorId(0)).ok_or_else(short)?;
    arrays.write(tensors, ops, operands)?;
    let lists = Lists::new(&mut memory, &limits).ok_or_else(short)?;
    let mut scratch = memory.rest();
    let graph = Graph::new(tensors, ops, operands, &mut scratch)
        .map_err(|error| Error::new(Code::Graph, error))?;
    let request = Request { graph: &graph, machine: &machine, budget_bytes: work.budget_bytes };
    let mut pools = [Pool { object_bytes: 1, count: 0 }; 2];
    let output = Output {
        steps: lists.steps,
        resident: lists.resident,
        arena: lists.arena,
        pools: &mut pools,
        tensor_pool: lists.tensor_pool,
    };
    let plan = planner::plan(&request, strategy, output, &mut scratch).map_err(of_planning)?;
    let proved = prove(&graph, &machine, &plan, lists.entries, &mut scratch)?;
    Ok(lists.described.describe(&plan, proved))
}

/// The arrays of a plan.
struct Lists<'m> {
    steps: &'m mut [Step],
    resident: &'m mut [Resident],
    arena: &'m mut [ArenaPlacement],
    tensor_pool: &'m mut [u32],
    entries: &'m mut [Scheduled],
    described: Described<'m>,
}

/// The same for C.
struct Described<'m> {
    steps: &'m mut [StepDescription],
    resident: &'m mut [ResidentDescription],
    arena: &'m mut [ArenaDescription],
}

impl<'m> Lists<'m> {
    fn new(memory: &mut Memory<'m>, limits: &Limits) -> Option<Self> {
        const WAIT: WaitDescription =
            WaitDescription { index: SPILLWAY_CORE_NONE, iterations_back: 0 };
        const STEP: StepDescription = StepDescription {
            kind: 0,
            id: 0,
            first_object: 0,
            object_count: 0,
            is_repeat: 0,
            index: 0,
            waits: [WAIT; 4],
        };
        let none = ResidentDescription { tensor: 0, first_object: 0, object_count: 0 };
        let part = Part::whole(TensorId(0));
        let residents = limits.tensors.checked_mul(2)?;
        let nowhere = ArenaPlacement { tensor: TensorId(0), offset_bytes: 0 };
        Some(Self {
            steps: memory.take(limits.steps, Step::launch(OpId(0)))?,
            resident: memory.take(residents, Resident { part, host_copy: false })?,
            arena: memory.take(limits.tensors, nowhere)?,
            tensor_pool: memory.take(limits.tensors, 0)?,
            entries: memory.take(limits.steps, Scheduled::EMPTY)?,
            described: Described {
                steps: memory.take(limits.steps, STEP)?,
                resident: memory.take(residents, none)?,
                arena: memory
                    .take(limits.tensors, ArenaDescription { tensor: 0, offset_bytes: 0 })?,
            },
        })
    }
}

fn of_planning(error: PlanningError) -> Error {
    let code = match error {
        PlanningError::Infeasible { .. } => Code::Infeasible,
        PlanningError::Scratch(_) | PlanningError::BufferTooShort(_) => Code::BufferTooShort,
        _ => Code::NoPlan,
    };
    Error::new(code, error)
}

/// Lowers and proves a plan; returns when each step runs.
fn prove<'e>(
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &Plan<'_>,
    entries: &'e mut [Scheduled],
    scratch: &mut Scratch<'_>,
) -> Result<&'e [Scheduled], Error> {
    let schedule = lower(graph, machine, plan, entries, scratch)
        .map_err(|error| Error::new(Code::NoPlan, error))?;
    verify(graph, machine, plan, &schedule, scratch)
        .map_err(|error| Error::new(Code::NoPlan, error))?;
    Ok(schedule.steps)
}

impl Described<'_> {
    fn describe(self, plan: &Plan<'_>, schedule: &[Scheduled]) -> PlanDescription {
        for (to, (step, entry)) in self.steps.iter_mut().zip(plan.steps.iter().zip(schedule)) {
            *to = of_step(step, entry);
        }
        for (to, from) in self.resident.iter_mut().zip(plan.resident_at_start) {
            let Part { tensor, first, count } = from.part;
            *to =
                ResidentDescription { tensor: tensor.0, first_object: first, object_count: count };
        }
        for (to, from) in self.arena.iter_mut().zip(plan.arena) {
            *to = ArenaDescription { tensor: from.tensor.0, offset_bytes: from.offset_bytes };
        }
        let pool =
            |at: usize| plan.pools.get(at).map_or((0, 0), |pool| (pool.object_bytes, pool.count));
        let [(chunk_bytes, chunks), (slab_bytes, slabs)] = [pool(0), pool(1)];
        let tensor_pool = match plan.tensor_pool {
            [] => ptr::null(),
            pools => pools.as_ptr(),
        };
        PlanDescription {
            steps: self.steps.as_ptr(),
            step_count: plan.steps.len(),
            resident: self.resident.as_ptr(),
            resident_count: plan.resident_at_start.len(),
            arena: self.arena.as_ptr(),
            arena_count: plan.arena.len(),
            arena_bytes: plan.arena_bytes,
            object_bytes: [chunk_bytes, slab_bytes],
            object_counts: [chunks, slabs],
            tensor_pool,
            period_ns: plan.predicted.period_ns,
            compute_ns: plan.predicted.compute_ns,
            peak_bytes: plan.predicted.peak_bytes,
            host_bytes: plan.predicted.host_bytes,
        }
    }
}

fn of_step(step: &Step, entry: &Scheduled) -> StepDescription {
    let PerStream(waits) = entry.waits().map(|wait| match wait {
        Some(wait) => WaitDescription { index: wait.index, iterations_back: wait.iterations_back },
        None => WaitDescription { index: SPILLWAY_CORE_NONE, iterations_back: 0 },
    });
    let index = entry.stream().map_or(SPILLWAY_CORE_NONE, |_| entry.index());
    let of_part = |kind, part: Part| (kind, part.tensor.0, [part.first, part.count], false);
    let (kind, id, [first_object, object_count], is_repeat) = match *step {
        Step::Prefetch(part) => of_part(SPILLWAY_CORE_PREFETCH, part),
        Step::Offload(part) => of_part(SPILLWAY_CORE_OFFLOAD, part),
        Step::Evict(part) => of_part(SPILLWAY_CORE_EVICT, part),
        Step::Host(op) => (SPILLWAY_CORE_HOST_RUN, op.0, [0, 0], false),
        Step::Launch(Launched { op, is_repeat }) => (SPILLWAY_CORE_LAUNCH, op.0, [0, 0], is_repeat),
    };
    let is_repeat = u8::from(is_repeat);
    StepDescription { kind, id, first_object, object_count, is_repeat, index, waits }
}
