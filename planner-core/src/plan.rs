//! Plans. A plan is untrusted: planners, files and embedders make plans, and only
//! [`verify`](crate::verify()) turns a plan into something that may run. `docs/format.md` defines
//! each field, and says when a plan is valid.

use crate::graph::{Graph, Launched, OpId, TensorId};
use crate::scratch::{BufferTooShort, Limits, OutOfScratch};
use core::fmt;

/// A tensor, or a range of a tensor's objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    /// The tensor.
    pub tensor: TensorId,
    /// The first object of the range.
    pub first: u64,
    /// Number of objects in the range, or [`Part::ALL`].
    pub count: u64,
}

impl Part {
    /// The count that stands for all objects of the tensor.
    pub const ALL: u64 = u64::MAX;

    /// The whole tensor.
    #[must_use]
    pub const fn whole(tensor: TensorId) -> Self {
        Self { tensor, first: 0, count: Self::ALL }
    }

    /// Whether this is the whole tensor, whatever its number of objects.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.count == Self::ALL
    }
}

/// One step of the list, which repeats for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Allocate device memory, then copy the host value to the device. For an input, after the last
    /// launch in the list that reads it, copies the next iteration's value.
    Prefetch(Part),
    /// Run an op on the device, for the first time in an iteration or again. Allocates the written
    /// tensors that are not resident, and the op's workspace.
    Launch(Launched),
    /// Run an op on the host, for the first and only time in an iteration. It reads and writes the
    /// host copies of its tensors, and takes no device memory.
    Host(OpId),
    /// Copy from the device to the host. The part stays resident.
    Offload(Part),
    /// Free the device memory.
    Evict(Part),
}

impl Step {
    /// The first launch of an op in an iteration.
    #[must_use]
    pub const fn launch(op: OpId) -> Self {
        Self::Launch(Launched::first(op))
    }

    /// A later launch of an op in an iteration.
    #[must_use]
    pub const fn repeat(op: OpId) -> Self {
        Self::Launch(Launched::repeat(op))
    }

    /// The part that a step moves or frees; `None` if the step runs an op.
    #[must_use]
    pub const fn part(&self) -> Option<Part> {
        match *self {
            Self::Prefetch(part) | Self::Offload(part) | Self::Evict(part) => Some(part),
            Self::Launch(_) | Self::Host(_) => None,
        }
    }

    /// The launch of a step that runs an op, on the device or on the host; `None` for other steps.
    /// An op on the host always runs for the first time.
    #[must_use]
    pub const fn launched(&self) -> Option<Launched> {
        match *self {
            Self::Launch(launched) => Some(launched),
            Self::Host(op) => Some(Launched::first(op)),
            Self::Prefetch(_) | Self::Offload(_) | Self::Evict(_) => None,
        }
    }
}

/// A part that is on the device when an iteration starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// The tensor, or the part of it.
    pub part: Part,
    /// Whether the host holds the same value.
    pub host_copy: bool,
}

/// A pool of device memory, in objects of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Size of an object in bytes, not zero.
    pub object_bytes: u64,
    /// Number of objects.
    pub count: u64,
}

/// The fixed offset of a small tensor in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaPlacement {
    /// The tensor.
    pub tensor: TensorId,
    /// The offset from the start of the arena.
    pub offset_bytes: u64,
}

/// The figures that a plan predicts for itself; see [`predict`](crate::timeline::predict).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prediction {
    /// Time from one iteration to the next in the steady state.
    pub period_ns: u64,
    /// The sum of all op times on the device, each op once, also for ops that run on the host.
    pub compute_ns: u64,
    /// The time of all repeats.
    pub repeat_ns: u64,
    /// The sum of the host times of the ops that run on the host.
    pub host_ns: u64,
    /// Bytes of the arena, and the maximum over the steps of the bytes of objects held after a
    /// step.
    pub peak_bytes: u64,
    /// Bytes copied to the device in one iteration.
    pub h2d_bytes: u64,
    /// Bytes copied to the host in one iteration.
    pub d2h_bytes: u64,
    /// Pinned host memory that the plan needs.
    pub host_bytes: u64,
}

impl Prediction {
    /// The cost that makes one plan better than another: the period, then the bytes over both
    /// links.
    #[must_use]
    pub const fn cost(&self) -> (u64, u64) {
        (self.period_ns, self.h2d_bytes.saturating_add(self.d2h_bytes))
    }
}

/// A plan: one iteration, which repeats for ever.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// Device memory that arena and pools may take together.
    pub budget_bytes: u64,
    /// Size of the arena in bytes.
    pub arena_bytes: u64,
    /// The tensors in the arena and their offsets.
    pub arena: &'a [ArenaPlacement],
    /// The pools.
    pub pools: &'a [Pool],
    /// The pool of each tensor; empty if all are in pool 0.
    pub tensor_pool: &'a [u32],
    /// The pool of each op's workspace; empty if all are in pool 0.
    pub workspace_pool: &'a [u32],
    /// The parts on the device when an iteration starts.
    pub resident_at_start: &'a [Resident],
    /// The steps, in list order.
    pub steps: &'a [Step],
    /// Fixed physical objects for every allocation. Without them, memory is assigned in list order.
    pub placements: Option<Placements<'a>>,
    /// The predicted figures.
    pub predicted: Prediction,
}

impl Plan<'_> {
    /// The figures alone: budget, arena size and prediction, with empty lists. The owner of a
    /// plan's buffers can put the lists back.
    #[must_use]
    pub const fn without_lists(&self) -> Plan<'static> {
        let Self { budget_bytes, arena_bytes, predicted, .. } = *self;
        Plan {
            budget_bytes,
            arena_bytes,
            arena: &[],
            pools: &[],
            tensor_pool: &[],
            workspace_pool: &[],
            resident_at_start: &[],
            steps: &[],
            placements: None,
            predicted,
        }
    }

    /// Checks the number of iterations that the placements cover. This number bounds the scratch
    /// that functions on the plan take.
    ///
    /// # Errors
    /// [`PlanError::PlacementIterations`].
    pub fn check_iterations(&self) -> Result<(), PlanError> {
        Placements::check_iterations(self.iterations())
    }

    /// The number of iterations after which everything repeats, placements included.
    #[must_use]
    pub fn iterations(&self) -> u32 {
        self.placements.map_or(1, |placements| placements.iterations)
    }
}

/// The objects of every allocation of a plan, over one or more iterations. Allocations are numbered
/// in list order. First comes one for each entry of `resident_at_start`; then, iteration by
/// iteration, one for each prefetch, and for each launch one for each written tensor that is not
/// fully resident, in the op's order, and one for its workspace. Arena tensors have no allocations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placements<'a> {
    /// The number of iterations that the objects cover before they repeat: 1 to
    /// [`Placements::MOST_ITERATIONS`].
    pub iterations: u32,
    /// Object numbers within their pools, allocation by allocation. The first number of an
    /// allocation belongs to its first newly allocated object, and so on.
    pub objects: &'a [u64],
    /// For each allocation, the index in `objects` after its last number.
    pub ends: &'a [u32],
}

impl<'a> Placements<'a> {
    /// The most iterations that placements may cover.
    pub const MOST_ITERATIONS: u32 = 64;

    /// Checks that placements may cover this many iterations.
    pub(crate) fn check_iterations(iterations: u32) -> Result<(), PlanError> {
        match iterations {
            1..=Self::MOST_ITERATIONS => Ok(()),
            _ => Err(PlanError::PlacementIterations(iterations)),
        }
    }

    /// The objects of one allocation; empty if there is no such allocation.
    #[must_use]
    pub fn of(&self, allocation: u32) -> &'a [u64] {
        let end = |at: u32| self.ends.get(at as usize).map_or(0, |&end| end as usize);
        let first = allocation.checked_sub(1).map_or(0, end);
        self.objects.get(first..end(allocation)).unwrap_or_default()
    }

    /// Whether the ends are sorted and the last one is the number of objects.
    pub(crate) fn is_table(&self) -> bool {
        let last = self.ends.last().map_or(0, |&end| end as usize);
        self.ends.is_sorted() && last == self.objects.len()
    }
}

impl Limits {
    /// The sizes of a plan, for lowering, predicting, verifying, placing and running it. O(steps).
    #[must_use]
    pub fn of_plan(graph: &Graph<'_>, plan: &Plan<'_>) -> Self {
        let at_start = plan.resident_at_start.iter().map(|entry| entry.part);
        let parts = at_start.chain(plan.steps.iter().filter_map(Step::part));
        let ranges = parts.filter(|part| !part.is_whole()).count();
        let graph = Self::of_graph(graph);
        Self {
            steps: plan.steps.len(),
            pieces: graph.tensors.saturating_add(ranges.saturating_mul(2)),
            pools: plan.pools.len(),
            // A plan with more iterations is rejected before it needs the memory.
            iterations: plan.iterations().min(Placements::MOST_ITERATIONS) as usize,
            objects: plan.placements.map_or(0, |placements| placements.objects.len()),
            ..graph
        }
    }
}

/// A position in a plan, for errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// A position in [`Plan::steps`].
    Step(u32),
    /// A position in [`Plan::resident_at_start`].
    Start(u32),
    /// A position in [`Plan::arena`].
    Arena(u32),
    /// A position in [`Plan::pools`].
    Pool(u32),
    /// After the last step, when the next iteration begins.
    End,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Step(at) => write!(f, "step {at}"),
            Self::Start(at) => write!(f, "resident_at_start[{at}]"),
            Self::Arena(at) => write!(f, "arena.placements[{at}]"),
            Self::Pool(at) => write!(f, "pools[{at}]"),
            Self::End => write!(f, "the end of the list"),
        }
    }
}

/// The rule of the format that a plan breaks, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanError {
    /// Working memory or output is too small for a plan of this size.
    Scratch(OutOfScratch),
    /// An output buffer is too short.
    BufferTooShort(BufferTooShort),
    /// The plan has more than 2^32 - 2 steps.
    TooManySteps,
    /// A size or a time exceeds 64 bits.
    Overflow(Location),
    /// The budget exceeds the device's memory.
    BudgetAboveDevice {
        /// The plan's budget.
        budget_bytes: u64,
        /// The machine's memory.
        device_bytes: u64,
    },
    /// Arena and pools exceed the budget.
    PoolsAboveBudget {
        /// Bytes of arena and pools, each rounded up to chunks.
        needed_bytes: u64,
        /// The plan's budget.
        budget_bytes: u64,
    },
    /// The plan needs more pinned host memory than the machine allows.
    HostMemory {
        /// Bytes that the plan needs.
        needed_bytes: u64,
        /// Bytes that the machine has.
        host_bytes: u64,
    },
    /// A predicted figure is wrong.
    Prediction {
        /// The name of the figure.
        figure: &'static str,
        /// The predicted value.
        claimed: u64,
        /// The exact value.
        exact: u64,
    },
    /// The predicted pinned host memory is impossible.
    HostPrediction {
        /// The predicted value.
        claimed_bytes: u64,
        /// The least that the plan needs.
        least_bytes: u64,
        /// The most that the plan can use.
        most_bytes: u64,
    },
    /// The tensor does not exist.
    UnknownTensor(Location, TensorId),
    /// The op does not exist.
    UnknownOp(Location, OpId),
    /// `tensor_pool` or `workspace_pool` has the wrong length.
    PoolTable {
        /// Its length.
        length: usize,
        /// The number of tensors or ops.
        expected: usize,
    },
    /// A tensor is in a pool that does not exist.
    TensorWithoutPool(TensorId),
    /// A workspace is in a pool that does not exist.
    WorkspaceWithoutPool(OpId),
    /// The object size of a pool is zero, or is not a multiple of the chunk although a tensor or
    /// workspace takes more than one object.
    ObjectSize(Location),
    /// The range is empty, or reaches past the tensor's last object.
    Range {
        /// Where the range is.
        location: Location,
        /// The tensor.
        tensor: TensorId,
        /// Number of the tensor's objects.
        objects: u64,
    },
    /// The tensor is listed in the arena twice.
    TwiceInArena(Location, TensorId),
    /// The offset is no multiple of 256 (or of a smaller chunk).
    Misaligned(Location),
    /// The tensor reaches past the end of the arena.
    OutsideArena(Location),
    /// Two tensors whose values live at the same time share bytes of the arena.
    ArenaOverlap(TensorId, TensorId),
    /// An input that is never read, or written after its last read, lies in the arena.
    ArenaInput(TensorId),
    /// An op writes an input in the arena before its prefetch.
    ArenaInputAbsent(Location, TensorId),
    /// A state in the arena is not listed in `resident_at_start`.
    ArenaStateNotResident(TensorId),
    /// The step does something that arena tensors do not allow.
    ArenaStep(Location, TensorId),
    /// A temporary or an output is listed in `resident_at_start`.
    NoValueAtStart(Location, TensorId),
    /// The op runs on the host, but has no time there.
    NotOnHost(Location, OpId),
    /// The op runs on the host, but one of its tensors lies in the arena.
    HostArena {
        /// Where the step is.
        location: Location,
        /// The op.
        op: OpId,
        /// The tensor.
        tensor: TensorId,
    },
    /// The op runs on the host, but the host does not hold the current value of a tensor that it
    /// reads.
    HostReads {
        /// Where the step is.
        location: Location,
        /// The op.
        op: OpId,
        /// The tensor.
        tensor: TensorId,
    },
    /// The op has two first launches.
    LaunchedTwice(Location, OpId),
    /// The op is launched again, but it is not repeatable.
    NotRepeatable(Location, OpId),
    /// The op is repeated before its first launch.
    RepeatedTooEarly(Location, OpId),
    /// A repeat would read another value than the first launch of the op did.
    RepeatReads {
        /// Where the step is.
        location: Location,
        /// The op.
        op: OpId,
        /// The tensor that holds another value, or no value.
        tensor: TensorId,
    },
    /// The op never runs.
    NeverLaunched(OpId),
    /// The op runs before another op that it depends on through this tensor.
    Dependency {
        /// Where the step is.
        location: Location,
        /// The op that runs too early or too late.
        op: OpId,
        /// The tensor whose value would be wrong.
        tensor: TensorId,
    },
    /// The part is resident and must not be.
    AlreadyResident(Location, TensorId),
    /// The part is not resident and must be.
    NotResident(Location, TensorId),
    /// The device copy does not hold the value that is needed: the current value, for the first
    /// launch of an op; or, for an offload, the current value or one that a later launch reads.
    NoValue(Location, TensorId),
    /// An offload of an input whose next value the host already has.
    NextInput(Location, TensorId),
    /// The host copy holds neither the current value nor one that a later launch reads.
    NoHostCopy(Location, TensorId),
    /// The only copy of a value that is still needed would be lost.
    ValueLost(Location, TensorId),
    /// The pool has too few objects for this step.
    PoolFull {
        /// The step.
        location: Location,
        /// The pool.
        pool: u32,
        /// Number of objects held, including the objects that the step allocates.
        held: u64,
        /// Number of objects of the pool.
        count: u64,
    },
    /// The number of iterations that the placements cover is zero, or more than
    /// [`Placements::MOST_ITERATIONS`].
    PlacementIterations(u32),
    /// The ends of the placements do not match their objects.
    PlacementTable,
    /// There are more or fewer placements than allocations.
    PlacementCount {
        /// Number of placements.
        placements: u64,
        /// Number of allocations in all iterations that the placements cover.
        allocations: u64,
    },
    /// A placement names another number of objects than its allocation takes.
    PlacementSize {
        /// The step that allocates.
        location: Location,
        /// The number of the allocation.
        allocation: u32,
        /// Number of objects that it names.
        named: u64,
        /// Number of objects that the allocation takes.
        taken: u64,
    },
    /// A placement names an object that the pool does not have.
    UnknownObject {
        /// The step that allocates.
        location: Location,
        /// The number of the allocation.
        allocation: u32,
        /// The object.
        object: u64,
        /// Number of objects of the pool.
        count: u64,
    },
    /// A placement names an object that already has a holder.
    TwoHolders {
        /// The step that allocates.
        location: Location,
        /// The number of the allocation.
        allocation: u32,
        /// The object.
        object: u64,
    },
    /// After the iterations that the placements cover, the tensor is in other objects than at the
    /// start.
    PlacementEnd(TensorId),
}

impl From<BufferTooShort> for PlanError {
    fn from(error: BufferTooShort) -> Self {
        Self::BufferTooShort(error)
    }
}

impl From<OutOfScratch> for PlanError {
    fn from(error: OutOfScratch) -> Self {
        Self::Scratch(error)
    }
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scratch(error) => error.fmt(f),
            Self::BufferTooShort(error) => error.fmt(f),
            Self::TooManySteps => write!(f, "the plan has more than 2^32 - 2 steps"),
            Self::Overflow(location) => write!(f, "{location}: a size or a time exceeds 64 bits"),
            Self::BudgetAboveDevice { budget_bytes, device_bytes } => write!(
                f,
                "the budget of {budget_bytes} bytes is more than the device's {device_bytes}"
            ),
            Self::PoolsAboveBudget { needed_bytes, budget_bytes } => write!(
                f,
                "arena and pools take {needed_bytes} bytes, more than the budget of {budget_bytes}"
            ),
            Self::HostMemory { needed_bytes, host_bytes } => write!(
                f,
                "the plan needs {needed_bytes} bytes of pinned host memory, the machine has \
                 {host_bytes}"
            ),
            Self::Prediction { figure, claimed, exact } => {
                write!(f, "predicted.{figure} is {claimed}, but the plan's is {exact}")
            }
            Self::HostPrediction { claimed_bytes, least_bytes, most_bytes } => write!(
                f,
                "predicted.host_bytes is {claimed_bytes}, not between {least_bytes} and \
                 {most_bytes}"
            ),
            Self::UnknownTensor(location, tensor) => write!(f, "{location}: there is no {tensor}"),
            Self::UnknownOp(location, op) => write!(f, "{location}: there is no {op}"),
            Self::PoolTable { length, expected } => {
                write!(f, "a pool table has {length} entries; it must be empty or have {expected}")
            }
            Self::TensorWithoutPool(tensor) => {
                write!(f, "{tensor} is in a pool that does not exist")
            }
            Self::WorkspaceWithoutPool(op) => {
                write!(f, "the workspace of {op} is in a pool that does not exist")
            }
            Self::ObjectSize(location) => write!(
                f,
                "{location}: object_bytes must not be zero, and must be a multiple of the chunk \
                 if a tensor or a workspace takes more than one object"
            ),
            Self::Range { location, tensor, objects } => {
                write!(
                    f,
                    "{location}: the range must be a part of the {objects} objects of {tensor}"
                )
            }
            Self::TwiceInArena(location, tensor) => {
                write!(f, "{location}: {tensor} has an offset in the arena already")
            }
            Self::Misaligned(location) => {
                write!(f, "{location}: the offset must be a multiple of 256, or of a smaller chunk")
            }
            Self::OutsideArena(location) => {
                write!(f, "{location}: the tensor reaches past the end of the arena")
            }
            Self::ArenaOverlap(one, other) => {
                write!(f, "{one} and {other} share bytes of the arena while both are in use")
            }
            Self::ArenaInput(tensor) => write!(
                f,
                "{tensor} is an input that is never read or written after its last read, and \
                 may not lie in the arena"
            ),
            Self::ArenaInputAbsent(location, tensor) => write!(
                f,
                "{location}: {tensor} is an input in the arena and needs its prefetch before an op \
                 writes it"
            ),
            Self::ArenaStateNotResident(tensor) => write!(
                f,
                "{tensor} is a state in the arena and must be listed in resident_at_start"
            ),
            Self::ArenaStep(location, tensor) => {
                write!(f, "{location}: {tensor} lies in the arena, where this step is not allowed")
            }
            Self::NoValueAtStart(location, tensor) => write!(
                f,
                "{location}: {tensor} is a temporary or an output and has no value at the start"
            ),
            Self::NotOnHost(location, op) => {
                write!(f, "{location}: {op} has no time on the host (host_ns) and cannot run there")
            }
            Self::HostArena { location, op, tensor } => write!(
                f,
                "{location}: {op} cannot run on the host, because {tensor} lies in the arena"
            ),
            Self::HostReads { location, op, tensor } => write!(
                f,
                "{location}: {op} runs on the host, which does not hold the current value of {tensor}"
            ),
            Self::LaunchedTwice(location, op) => write!(f, "{location}: {op} has run already"),
            Self::NotRepeatable(location, op) => {
                write!(f, "{location}: {op} is launched again, but it is not repeatable")
            }
            Self::RepeatedTooEarly(location, op) => {
                write!(f, "{location}: {op} is repeated before its first launch")
            }
            Self::RepeatReads { location, op, tensor } => write!(
                f,
                "{location}: {op} is launched again, but {tensor} does not hold the value that its \
                 first launch read"
            ),
            Self::NeverLaunched(op) => write!(f, "{op} never runs"),
            Self::Dependency { location, op, tensor } => {
                write!(f, "{location}: {op} runs out of order with another op that uses {tensor}")
            }
            Self::AlreadyResident(location, tensor) => {
                write!(f, "{location}: {tensor} is resident already, at least in part")
            }
            Self::NotResident(location, tensor) => {
                write!(f, "{location}: {tensor} is not resident, at least in part")
            }
            Self::NoValue(location, tensor) => {
                write!(f, "{location}: the device does not hold the current value of {tensor}")
            }
            Self::NextInput(location, tensor) => write!(
                f,
                "{location}: no op reads {tensor} from here on: the host has the next value of this \
                 input, which is not offloaded"
            ),
            Self::NoHostCopy(location, tensor) => {
                write!(
                    f,
                    "{location}: the host does not hold the current value of {tensor}, nor one that \
                     is read later"
                )
            }
            Self::ValueLost(location, tensor) => write!(
                f,
                "{location}: {tensor} is needed later, and the host has no copy of its value"
            ),
            Self::PoolFull { location, pool, held, count } => {
                write!(f, "{location}: pool {pool} would hold {held} objects and has {count}")
            }
            Self::PlacementIterations(iterations) => write!(
                f,
                "placement_iterations is {iterations}; it must be from 1 to {}",
                Placements::MOST_ITERATIONS
            ),
            Self::PlacementTable => {
                write!(f, "the ends of the placements do not match their objects")
            }
            Self::PlacementCount { placements, allocations } => {
                write!(f, "there are {placements} placements for {allocations} allocations")
            }
            Self::PlacementSize { location, allocation, named, taken } => write!(
                f,
                "{location}: placements[{allocation}] names {named} objects, and {taken} are taken"
            ),
            Self::UnknownObject { location, allocation, object, count } => write!(
                f,
                "{location}: placements[{allocation}] names object {object} of a pool of {count}"
            ),
            Self::TwoHolders { location, allocation, object } => write!(
                f,
                "{location}: placements[{allocation}] names object {object}, which is in use \
                 already"
            ),
            Self::PlacementEnd(tensor) => write!(
                f,
                "at the end of the iterations that placements cover, {tensor} lies in other \
                 objects than at the start"
            ),
        }
    }
}

impl core::error::Error for PlanError {}
