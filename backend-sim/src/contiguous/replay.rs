//! Follows a plan's allocations and releases, in list order, in contiguous memory.

use super::{Allocator, Block};
use planner_core::plan::Location;
use planner_core::{Graph, Launched, Part, Plan, PlanError, Step, TensorId};
use std::fmt;

/// Memory that a plan takes. Each figure in bytes has its own peak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The most bytes that the allocator had taken from the device at a time.
    pub reserved_bytes: u64,
    /// The most bytes in held blocks at a time.
    pub used_bytes: u64,
    /// The most requested bytes at a time.
    pub requested_bytes: u64,
    /// Segments taken from the driver in the last iteration. 0 once the cache has settled.
    /// Otherwise segments go back to the driver for the new ones, and on a real device that waits
    /// for all work in flight.
    pub segments_per_iteration: u64,
}

impl Usage {
    /// External fragmentation in bytes: the bytes taken from the device beyond the most that was in
    /// use at a time.
    #[must_use]
    pub const fn external_bytes(&self) -> u64 {
        self.reserved_bytes - self.used_bytes
    }
}

/// Why contiguous memory cannot follow a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplayError {
    /// The plan moves a part of a tensor, but contiguous memory holds a tensor as a whole.
    Part {
        /// The position of the step.
        location: Location,
        /// The tensor.
        tensor: TensorId,
    },
    /// The device is full.
    OutOfMemory {
        /// The number of iterations that were completed.
        iterations: u64,
        /// The position of the step in the next iteration.
        location: Location,
        /// The size of the block that was asked for.
        bytes: u64,
    },
    /// The plan is not valid.
    Plan(PlanError),
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Part { location, tensor } => write!(
                f,
                "{location}: {tensor} is moved in parts; contiguous memory needs a strategy that \
                 moves whole tensors: in-core, on-demand, fit, vdnn, lms or window"
            ),
            Self::OutOfMemory { iterations, location, bytes } => write!(
                f,
                "{location}, after {iterations} iterations: {bytes} contiguous bytes do not fit"
            ),
            Self::Plan(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ReplayError {}

impl From<PlanError> for ReplayError {
    fn from(error: PlanError) -> Self {
        Self::Plan(error)
    }
}

/// Follows a plan for some iterations: resident tensors, prefetches, tensors that launches write,
/// workspaces and evicts. Each takes effect at once. The plan's arena is one block. O((steps +
/// operands) log tensors) per iteration.
///
/// # Errors
/// The plan moves parts of tensors, is not valid, or does not fit.
pub fn replay(
    graph: &Graph<'_>,
    plan: &Plan<'_>,
    iterations: u64,
    allocator: &mut impl Allocator,
) -> Result<Usage, ReplayError> {
    let mut walk = Walk {
        graph,
        plan,
        allocator,
        held: graph.tensors().iter().map(|_| None).collect(),
        in_arena: vec![false; graph.tensors().len()],
        iterations: 0,
        requested_bytes: 0,
        usage: Usage::default(),
    };
    walk.start()?;
    for _ in 0..iterations {
        let before = walk.allocator.segments_taken();
        for (at, step) in (0..).zip(plan.steps) {
            walk.step(Location::Step(at), step)?;
        }
        walk.iterations += 1;
        walk.usage.segments_per_iteration = walk.allocator.segments_taken() - before;
    }
    Ok(walk.usage)
}

struct Walk<'w, A> {
    graph: &'w Graph<'w>,
    plan: &'w Plan<'w>,
    allocator: &'w mut A,
    /// The block of each tensor that is on the device.
    held: Vec<Option<Block>>,
    in_arena: Vec<bool>,
    iterations: u64,
    requested_bytes: u64,
    usage: Usage,
}

impl<A: Allocator> Walk<'_, A> {
    fn start(&mut self) -> Result<(), ReplayError> {
        for (at, placement) in (0..).zip(self.plan.arena) {
            let location = Location::Arena(at);
            self.check(location, placement.tensor)?;
            self.in_arena[placement.tensor.index()] = true;
        }
        if self.plan.arena_bytes > 0 {
            self.take(Location::Arena(0), self.plan.arena_bytes)?;
        }
        for (at, entry) in (0..).zip(self.plan.resident_at_start) {
            self.bring(Location::Start(at), entry.part)?;
        }
        Ok(())
    }

    fn step(&mut self, location: Location, step: &Step) -> Result<(), ReplayError> {
        match *step {
            Step::Prefetch(part) => self.bring(location, part),
            Step::Launch(launched) => self.launch(location, launched),
            Step::Host(_) => Ok(()),
            Step::Offload(part) => self.whole(location, part).map(drop),
            Step::Evict(part) => {
                let tensor = self.whole(location, part)?;
                let block = self.held[tensor.index()].take();
                let block = block.ok_or(PlanError::NotResident(location, tensor))?;
                self.give(block, self.graph.tensor(tensor).bytes);
                Ok(())
            }
        }
    }

    fn launch(&mut self, location: Location, launched: Launched) -> Result<(), ReplayError> {
        let op = launched.op;
        if op.index() >= self.graph.ops().len() {
            return Err(PlanError::UnknownOp(location, op).into());
        }
        for tensor in self.graph.written_by(launched) {
            if !self.in_arena[tensor.index()] && self.held[tensor.index()].is_none() {
                let block = self.take(location, self.graph.tensor(tensor).bytes)?;
                self.held[tensor.index()] = Some(block);
            }
        }
        let workspace_bytes = self.graph.op(op).workspace_bytes;
        if workspace_bytes > 0 {
            let block = self.take(location, workspace_bytes)?;
            self.give(block, workspace_bytes);
        }
        Ok(())
    }

    /// Allocates a tensor, unless it lies in the arena.
    fn bring(&mut self, location: Location, part: Part) -> Result<(), ReplayError> {
        let tensor = self.whole(location, part)?;
        if self.in_arena[tensor.index()] {
            return Ok(());
        }
        if self.held[tensor.index()].is_some() {
            return Err(PlanError::AlreadyResident(location, tensor).into());
        }
        let block = self.take(location, self.graph.tensor(tensor).bytes)?;
        self.held[tensor.index()] = Some(block);
        Ok(())
    }

    fn check(&self, location: Location, tensor: TensorId) -> Result<(), ReplayError> {
        let known = tensor.index() < self.graph.tensors().len();
        if known { Ok(()) } else { Err(PlanError::UnknownTensor(location, tensor).into()) }
    }

    /// Returns the tensor of a part that is the whole tensor.
    fn whole(&self, location: Location, part: Part) -> Result<TensorId, ReplayError> {
        let Part { tensor, first, count } = part;
        self.check(location, tensor)?;
        let pool = self.plan.tensor_pool.get(tensor.index()).map_or(0, |&pool| pool as usize);
        let object_bytes = self.plan.pools.get(pool).map_or(1, |pool| pool.object_bytes.max(1));
        let objects = self.graph.tensor(tensor).bytes.div_ceil(object_bytes);
        let whole = part.is_whole() || (first == 0 && count == objects);
        if whole { Ok(tensor) } else { Err(ReplayError::Part { location, tensor }) }
    }

    fn take(&mut self, location: Location, bytes: u64) -> Result<Block, ReplayError> {
        let iterations = self.iterations;
        let full = ReplayError::OutOfMemory { iterations, location, bytes };
        let block = self.allocator.allocate(bytes).ok_or(full)?;
        self.requested_bytes += bytes;
        let peak = |most: &mut u64, now: u64| *most = now.max(*most);
        peak(&mut self.usage.reserved_bytes, self.allocator.reserved_bytes());
        peak(&mut self.usage.used_bytes, self.allocator.used_bytes());
        peak(&mut self.usage.requested_bytes, self.requested_bytes);
        Ok(block)
    }

    fn give(&mut self, block: Block, bytes: u64) {
        self.allocator.release(block);
        self.requested_bytes -= bytes;
    }
}
