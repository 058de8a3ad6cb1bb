//! Plans and proves in one buffer.

use crate::error::{Code, Error};
use crate::memory::{Memory, array_bytes};
use crate::work::{Work, given, given_sized};
use core::ptr;
use planner_core::plan::{ArenaPlacement, Pool, Resident};
use planner_core::planner::{self, Output, PlanningError, Request};
use planner_core::schedule::Scheduled;
use planner_core::{
    Graph, Kind, Limits, Machine, Op, OpId, Part, Plan, Scratch, Step, Tensor, TensorId, lower,
    verify,
};
use spillway_c_types::sized::{self, Versioned};
use spillway_c_types::steps::StepDescription;

/// A range of a tensor that is on the device when an iteration starts. Later versions add no
/// fields.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResidentDescription {
    /// The tensor.
    pub tensor: u32,
    /// The first object of the range.
    pub first_object: u64,
    /// The number of objects. The largest number stands for all.
    pub object_count: u64,
}

/// A tensor at a fixed offset. Later versions add no fields.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaDescription {
    /// The tensor.
    pub tensor: u32,
    /// Its offset in the arena.
    pub offset_bytes: u64,
}

/// A proved plan. Its arrays lie in the caller's buffer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PlanDescription {
    /// The size of this struct, which the caller sets.
    pub struct_bytes: usize,
    /// The steps of one iteration, which repeat forever.
    pub steps: *const StepDescription,
    /// The number of steps.
    pub step_count: usize,
    /// The ranges that are on the device when an iteration starts.
    pub resident: *const ResidentDescription,
    /// The number of ranges.
    pub resident_count: usize,
    /// The tensors in the arena.
    pub arena: *const ArenaDescription,
    /// The number of tensors in the arena.
    pub arena_count: usize,
    /// The size of the arena.
    pub arena_bytes: u64,
    /// The size of an object of each pool. All tensors outside of the arena take objects from a
    /// pool. The second pool is empty if all tensors take chunks.
    pub object_bytes: [u64; 2],
    /// The number of objects of each pool.
    pub object_counts: [u64; 2],
    /// The pool of each tensor. Null if all tensors are in pool 0.
    pub tensor_pool: *const u32,
    /// The time from one iteration to the next in steady state.
    pub period_ns: u64,
    /// The sum of all op times, each op once.
    pub compute_ns: u64,
    /// The most device memory that is held at a time.
    pub peak_bytes: u64,
    /// The size of the pinned host memory.
    pub host_bytes: u64,
}

// SAFETY: it is `repr(C)`, begins with its size, and all its bytes may be zero.
unsafe impl Versioned for PlanDescription {}

/// Limits with which any plan of a graph can be made and proved.
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

/// Returns the size of the buffer that is needed to plan a graph with these numbers of tensors, ops
/// and operands: a few kilobytes for each operand. Returns the largest number if no memory is so
/// large.
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

/// Plans, proves the plan, and describes it in `plan`. The plan's arrays lie in `memory`, which
/// must have the size that `spillway_core_memory_bytes` returns. Any alignment will do.
///
/// # Safety
/// The pointers are as `spillway_core.h` requires, and `memory` points to `memory_bytes` bytes.
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
    let written = match made {
        // SAFETY: not null, so it points to one struct.
        Ok(made) => unsafe { sized::write(plan, &made, "the plan") }.map_err(Error::from),
        Err(failure) => Err(failure),
    };
    match written {
        Ok(()) => Code::Ok,
        Err(failure) => {
            if !error.is_null() {
                // SAFETY: as above.
                unsafe { error.write(failure) };
            }
            failure.code
        }
    }
}

/// # Safety
/// The condition of [`spillway_core_plan`].
unsafe fn make(
    work: *const Work,
    memory: *mut u8,
    memory_bytes: usize,
) -> Result<PlanDescription, Error> {
    // SAFETY: the caller's promise.
    let (work, arrays, machine, strategy) = unsafe {
        let work = given_sized(work, "the work")?;
        given(memory, "memory")?;
        (work, work.arrays()?, work.machine()?, work.strategy()?)
    };
    let step_bytes = size_of::<StepDescription>();
    if work.step_bytes != step_bytes {
        let given = work.step_bytes;
        let sentence = format_args!("step_bytes is {given}, but a step has {step_bytes} bytes");
        return Err(Error::new(Code::Argument, sentence));
    }
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
    let limits = limits(tensors, ops, operands);
    let tensors = memory.take(tensors, Tensor::new(1, Kind::State)).ok_or_else(short)?;
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

/// The arrays in the form for C.
struct Described<'m> {
    steps: &'m mut [StepDescription],
    resident: &'m mut [ResidentDescription],
    arena: &'m mut [ArenaDescription],
}

impl<'m> Lists<'m> {
    fn new(memory: &mut Memory<'m>, limits: &Limits) -> Option<Self> {
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
                steps: memory.take(limits.steps, StepDescription::empty())?,
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

/// Lowers and proves a plan. Returns the time of each step.
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
            *to = StepDescription::new(step, entry);
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
            struct_bytes: size_of::<PlanDescription>(),
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
