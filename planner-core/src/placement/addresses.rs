//! The device offsets of everything that a plan with fixed objects uses, for runtimes that allocate
//! once and map nothing: the arena and the pools lie one after the other in one slab.

#![expect(
    clippy::indexing_slicing,
    reason = "pieces, pools and tensors are those of the verified plan"
)]

use crate::graph::{Graph, Launched, OpId, TensorId};
use crate::machine::Machine;
use crate::pieces::Pieces;
use crate::plan::{Part, Placements, Plan, PlanError, Resident, Step};
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};
use crate::verify::Verified;
use core::cell::Cell;
use core::fmt;

/// No number of the placements; no step.
const NONE: u32 = u32::MAX;

/// The owner of bytes at an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Holder {
    /// A tensor.
    Tensor(TensorId),
    /// The workspace of an op.
    Workspace(OpId),
}

/// Bytes that a step uses and that lie at consecutive offsets. Consecutive objects of a tensor form
/// one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The position of the step in [`Schedule::steps`](crate::Schedule), counted over all
    /// iterations that the placements cover. `None` for parts that are resident at the start.
    pub entry: Option<u32>,
    /// The owner of the bytes.
    pub holder: Holder,
    /// The offset of the bytes in the tensor or the workspace.
    pub first_byte: u64,
    /// The offset of the bytes in the slab.
    pub offset_bytes: u64,
    /// The number of bytes.
    pub bytes: u64,
}

/// Why there are no offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AddressError {
    /// The plan does not fix its objects.
    NotPlaced,
    /// The working memory is too small.
    Scratch(OutOfScratch),
    /// The plan breaks a rule. A verified plan never does.
    Plan(PlanError),
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPlaced => {
                write!(f, "the plan does not fix its objects, so it has no addresses")
            }
            Self::Scratch(error) => error.fmt(f),
            Self::Plan(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for AddressError {}

impl From<OutOfScratch> for AddressError {
    fn from(error: OutOfScratch) -> Self {
        Self::Scratch(error)
    }
}

impl From<PlanError> for AddressError {
    fn from(error: PlanError) -> Self {
        match error {
            PlanError::Scratch(error) => Self::Scratch(error),
            other => Self::Plan(other),
        }
    }
}

/// Words of scratch that [`addresses`] needs, by [`Limits::of_plan`].
#[must_use]
pub const fn addresses_scratch_words(limits: &Limits) -> usize {
    total([
        Pieces::scratch_words(limits),
        words::<u32>(limits.pieces),
        words::<u32>(limits.tensors),
        words::<u64>(limits.pools),
    ])
}

/// Calls `visit` with the runs of the parts resident at the start, then with the runs that each
/// step uses: for a copy, the part; for a launch, each tensor once, then the workspace. Steps come
/// in order, and so do the bytes of a tensor. Returns the size of the slab in bytes, which is
/// within the budget: the arena, then each pool, each rounded up to chunks. O(pieces + object
/// numbers) for each step.
///
/// # Errors
/// A plan without placements; too little scratch.
pub fn addresses(
    verified: &Verified<'_>,
    scratch: &mut Scratch<'_>,
    visit: impl FnMut(Run),
) -> Result<u64, AddressError> {
    let mut scratch = scratch.reborrow();
    let mut walk = Walk::new(verified, &mut scratch, visit)?;
    walk.start();
    walk.iterate(u32::MAX);
    Ok(walk.slab_bytes)
}

/// Calls `visit` with the runs of the parts that are resident after a number of iterations, which
/// are the same parts as at the start. O(pieces + object numbers) for each step.
///
/// # Errors
/// The errors of [`addresses`].
pub(crate) fn resident_after(
    verified: &Verified<'_>,
    iterations: u64,
    scratch: &mut Scratch<'_>,
    mut visit: impl FnMut(Resident, Run),
) -> Result<(), AddressError> {
    let mut scratch = scratch.reborrow();
    let seen = Cell::new(None);
    let mut walk = Walk::new(verified, &mut scratch, |run| {
        if let Some(resident) = seen.get() {
            visit(resident, run);
        }
    })?;
    walk.start();
    let covered = u64::from(walk.placements.iterations);
    walk.iterate(iterations.checked_rem(covered).unwrap_or(0) as u32);
    for &resident in verified.plan().resident_at_start {
        seen.set(Some(resident));
        walk.visit_part(None, resident.part);
    }
    Ok(())
}

/// Finds the offset of each pool in the slab, and the size of the slab. The plan is within its
/// budget, so nothing overflows.
fn lay_out(machine: &Machine, plan: &Plan<'_>, base_bytes: &mut [u64]) -> u64 {
    let rounded = |bytes| machine.round_up_to_chunks(bytes).unwrap_or(u64::MAX);
    let mut end_bytes = rounded(plan.arena_bytes);
    for (base, pool) in base_bytes.iter_mut().zip(plan.pools) {
        *base = end_bytes;
        let pool_bytes = rounded(pool.object_bytes.saturating_mul(pool.count));
        end_bytes = end_bytes.saturating_add(pool_bytes);
    }
    end_bytes
}

struct Walk<'w, 'v, S> {
    graph: &'w Graph<'v>,
    pieces: Pieces<'w>,
    slab_bytes: u64,
    placements: Placements<'w>,
    /// The offset of each pool.
    base_bytes: &'w [u64],
    /// The first number of each resident piece.
    number: &'w mut [u32],
    /// The last launch at which each tensor was visited.
    seen_at: &'w mut [u32],
    /// The number of the next allocated object.
    next: u32,
    visit: S,
}

#[expect(
    clippy::arithmetic_side_effects,
    reason = "the plan is verified: its placements are numbered in 32 bits, its pools fit into the \
              budget, and objects begin within their tensor"
)]
impl<'w, 'v, S: FnMut(Run)> Walk<'w, 'v, S> {
    fn new(
        verified: &'w Verified<'v>,
        scratch: &mut Scratch<'w>,
        visit: S,
    ) -> Result<Self, AddressError> {
        let (graph, machine, plan) = (verified.graph(), verified.machine(), verified.plan());
        let placements = plan.placements.ok_or(AddressError::NotPlaced)?;
        let pieces = Pieces::new(graph, machine, plan, scratch)?;
        let base_bytes = scratch.take(plan.pools.len(), 0u64)?;
        let slab_bytes = lay_out(machine, plan, base_bytes);
        let number = scratch.take(pieces.len(), NONE)?;
        let seen_at = scratch.take(graph.tensors().len(), NONE)?;
        Ok(Self {
            graph,
            pieces,
            slab_bytes,
            placements,
            base_bytes,
            number,
            seen_at,
            next: 0,
            visit,
        })
    }

    fn start(&mut self) {
        let resident_at_start = self.pieces.plan().resident_at_start;
        for resident in resident_at_start {
            self.take(resident.part);
            self.visit_part(None, resident.part);
        }
    }

    /// Walks a number of iterations, at most as many as have placements of their own.
    fn iterate(&mut self, iterations: u32) {
        let iterations = iterations.min(self.placements.iterations);
        let plan_steps = self.pieces.plan().steps;
        let steps = (0..iterations).flat_map(|_| plan_steps);
        for (entry, step) in (0..).zip(steps) {
            self.step(entry, step);
        }
    }

    fn step(&mut self, entry: u32, step: &Step) {
        match *step {
            Step::Prefetch(part) => {
                self.take(part);
                self.visit_part(Some(entry), part);
            }
            Step::Offload(part) => self.visit_part(Some(entry), part),
            Step::Evict(part) => self.number[self.pieces.of_part(part)].fill(NONE),
            Step::Launch(launched) => self.launch(entry, launched),
            Step::Host(_) => {}
        }
    }

    fn launch(&mut self, entry: u32, launched: Launched) {
        for tensor in self.graph.written_by(launched) {
            self.take(Part::whole(tensor));
        }
        for tensor in self.pieces.operands_by(launched) {
            if core::mem::replace(&mut self.seen_at[tensor.index()], entry) != entry {
                self.visit_part(Some(entry), Part::whole(tensor));
            }
        }
        if let Some((pool, count)) = self.pieces.workspace(self.graph, launched.op) {
            let bytes = self.graph.op(launched.op).workspace_bytes;
            let first = self.next;
            self.next += count as u32;
            let mut runs = Joined::new(Some(entry), Holder::Workspace(launched.op), bytes);
            self.visit_objects(&mut runs, pool, 0, first, count);
            runs.end(&mut self.visit);
        }
    }

    /// Allocates objects for each piece of a part that has none.
    fn take(&mut self, part: Part) {
        if self.pieces.in_arena(part.tensor) {
            return;
        }
        for piece in self.pieces.of_part(part) {
            if self.number[piece] == NONE {
                self.number[piece] = self.next;
                self.next += self.pieces.range(part.tensor, piece).1 as u32;
            }
        }
    }

    fn visit_part(&mut self, entry: Option<u32>, part: Part) {
        let tensor = part.tensor;
        let (holder, bytes) = (Holder::Tensor(tensor), self.graph.tensor(tensor).bytes);
        if let Some(offset_bytes) = self.pieces.arena_offset_bytes(tensor) {
            return (self.visit)(Run { entry, holder, first_byte: 0, offset_bytes, bytes });
        }
        let mut runs = Joined::new(entry, holder, bytes);
        for piece in self.pieces.of_part(part) {
            let (first_object, count) = self.pieces.range(tensor, piece);
            let number = self.number[piece];
            self.visit_objects(&mut runs, self.pieces.pool(tensor), first_object, number, count);
        }
        runs.end(&mut self.visit);
    }

    /// Adds the objects of consecutive numbers of the placements, which hold a tensor starting at
    /// object `held`.
    fn visit_objects(
        &mut self,
        runs: &mut Joined,
        pool: usize,
        held: u64,
        number: u32,
        count: u64,
    ) {
        let object_bytes = self.pieces.plan().pools[pool].object_bytes;
        let objects = self.placements.objects.get(number as usize..).unwrap_or_default();
        for (held, &object) in (held..held + count).zip(objects) {
            let offset_bytes = self.base_bytes[pool] + object * object_bytes;
            runs.add(held * object_bytes, offset_bytes, object_bytes, &mut self.visit);
        }
    }
}

/// Joins objects at consecutive offsets.
struct Joined {
    run: Run,
    /// The size of the tensor or the workspace.
    whole_bytes: u64,
}

impl Joined {
    const fn new(entry: Option<u32>, holder: Holder, whole_bytes: u64) -> Self {
        let run = Run { entry, holder, first_byte: 0, offset_bytes: 0, bytes: 0 };
        Self { run, whole_bytes }
    }

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "a run ends within its tensor and within the budget"
    )]
    fn add(
        &mut self,
        first_byte: u64,
        offset_bytes: u64,
        object_bytes: u64,
        visit: &mut impl FnMut(Run),
    ) {
        let bytes = object_bytes.min(self.whole_bytes.saturating_sub(first_byte));
        let run = &mut self.run;
        if run.bytes > 0
            && run.first_byte + run.bytes == first_byte
            && run.offset_bytes + run.bytes == offset_bytes
        {
            run.bytes += bytes;
            return;
        }
        self.end(visit);
        self.run = Run { first_byte, offset_bytes, bytes, ..self.run };
    }

    fn end(&self, visit: &mut impl FnMut(Run)) {
        if self.run.bytes > 0 {
            visit(self.run);
        }
    }
}
