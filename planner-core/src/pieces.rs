//! The table of pieces: the place of each tensor, and the pieces into which a plan cuts it.
//!
//! A tensor is cut where a range of the plan begins or ends, and all state is kept for each piece:
//! a plan that moves whole tensors has one piece for each, whatever its number of objects. Building
//! the table checks the plan's structure (ids, ranges, pools, budget, arena offsets), so that later
//! walks over the list can rely on it.

#![expect(
    clippy::indexing_slicing,
    reason = "building the table checks all ids and ranges of the plan; functions on a tensor or \
              op panic on a foreign one"
)]

use crate::graph::{Graph, Kind, Launched, OpId, TensorId};
use crate::machine::Machine;
use crate::plan::{Location, Part, Plan, PlanError, Step};
use crate::ranges::Span;
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};
use core::ops::Range;

/// The tensor is not in the arena.
const NOT_IN_ARENA: u32 = u32::MAX;
/// The number of operands in a word of flags.
const BITS: usize = u64::BITS as usize;

/// The pieces of all tensors under one plan.
///
/// Functions that take a tensor, an op or a part panic if the [graph](Self::graph) has no such
/// tensor or op; [`range`](Self::range) and [`pool_objects`](Self::pool_objects) panic if there is
/// no such piece.
#[derive(Debug)]
pub struct Pieces<'a> {
    graph: Graph<'a>,
    plan: Plan<'a>,
    /// The position of each tensor in the plan's arena.
    arena_position: &'a [u32],
    /// The first piece of each tensor, and at the end the number of pieces.
    first_piece: &'a [u32],
    /// The first object of each piece.
    first_object: &'a [u64],
    /// The number of objects of each tensor; an arena tensor counts as one.
    objects: &'a [u64],
    /// A bit for each operand, set if repeats do not access it. No bit is set in a plan without
    /// repeats.
    left_alone: &'a [u64],
}

impl<'a> Pieces<'a> {
    /// Words of scratch that [`Pieces::new`] needs, by [`Limits::of_plan`].
    #[must_use]
    pub const fn scratch_words(limits: &Limits) -> usize {
        total([
            words::<u32>(limits.tensors),
            words::<u32>(limits.tensors.saturating_add(1)),
            words::<u64>(limits.pieces),
            words::<u64>(limits.tensors),
            limits.operands.div_ceil(BITS),
            words::<u32>(limits.tensors),
        ])
    }

    /// Checks the plan's structure and cuts the tensors. O(steps log steps + operands).
    ///
    /// # Errors
    /// The first defect.
    pub fn new(
        graph: &Graph<'a>,
        machine: &Machine,
        plan: &Plan<'a>,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, PlanError> {
        plan.check_iterations()?;
        let entries = plan.steps.len().checked_mul(plan.iterations() as usize);
        if entries.is_none_or(|entries| entries >= u32::MAX as usize) {
            return Err(PlanError::TooManySteps);
        }
        if plan.placements.is_some_and(|table| !table.is_table()) {
            return Err(PlanError::PlacementTable);
        }
        if plan.steps.is_empty() {
            // A graph has ops. After this check, every iteration takes time.
            return Err(PlanError::NeverLaunched(OpId(0)));
        }
        check_budget(machine, plan)?;
        let tensors = graph.tensors().len();
        let arena_position = scratch.take(tensors, NOT_IN_ARENA)?;
        read_arena(graph, machine, plan, arena_position)?;
        let objects = scratch.take(tensors, 1u64)?;
        count_objects(graph, machine, plan, arena_position, objects)?;
        debug_assert!(
            objects.iter().try_fold(0u64, |sum, &count| sum.checked_add(count)).is_some(),
            "no tensor has more objects than bytes, and all bytes together fit into 64 bits"
        );
        let first_piece = scratch.take(tensors.saturating_add(1), 0u32)?;
        let first_object = cut(graph, plan, arena_position, objects, first_piece, scratch)?;
        let left_alone = scratch.take(graph.operands().len().div_ceil(BITS), 0u64)?;
        let is_repeat = |step: &Step| matches!(step, Step::Launch(launched) if launched.is_repeat);
        if plan.steps.iter().any(is_repeat) {
            find_left_alone(graph, left_alone, &mut scratch.reborrow())?;
        }
        Ok(Self {
            graph: *graph,
            plan: *plan,
            arena_position,
            first_piece,
            first_object,
            objects,
            left_alone,
        })
    }

    /// The graph.
    #[must_use]
    pub const fn graph(&self) -> &Graph<'a> {
        &self.graph
    }

    /// The plan.
    #[must_use]
    pub const fn plan(&self) -> &Plan<'a> {
        &self.plan
    }

    /// The tensors of [`Graph::read_by`], each with its position in [`Graph::operands`]; O(1) each.
    pub(crate) fn reads_at(
        &self,
        launched: Launched,
    ) -> impl Iterator<Item = (usize, TensorId)> + use<'a> {
        let (reads, left_alone) = (self.graph.reads(launched.op), self.left_alone);
        let first = self.graph.op(launched.op).first_operand as usize;
        let is_left_alone = move |at: usize| left_alone[at / BITS] >> (at % BITS) & 1 != 0;
        (first..)
            .zip(reads.iter().copied())
            .filter(move |&(at, _)| !(launched.is_repeat && is_left_alone(at)))
    }

    /// The tensors of [`Graph::read_by`], in O(1) each.
    pub fn read_by(&self, launched: Launched) -> impl Iterator<Item = TensorId> + use<'a> {
        self.reads_at(launched).map(|(_, tensor)| tensor)
    }

    /// The tensors of [`Graph::operands_by`], in O(1) each.
    pub fn operands_by(&self, launched: Launched) -> impl Iterator<Item = TensorId> + use<'a> {
        self.read_by(launched).chain(self.graph.written_by(launched))
    }

    /// The number of pieces of all tensors together.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.first_object.len()
    }

    /// Whether there are no tensors.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.first_object.is_empty()
    }

    /// The offset in the arena of a tensor that lies there.
    #[must_use]
    pub fn arena_offset_bytes(&self, tensor: TensorId) -> Option<u64> {
        let position = self.arena_position[tensor.index()];
        self.plan.arena.get(position as usize).map(|placement| placement.offset_bytes)
    }

    /// Whether a tensor lies in the arena.
    #[must_use]
    pub fn in_arena(&self, tensor: TensorId) -> bool {
        self.arena_position[tensor.index()] != NOT_IN_ARENA
    }

    /// The number of objects of a tensor. An arena tensor counts as one object, though it takes no
    /// object of a pool.
    #[must_use]
    pub fn objects(&self, tensor: TensorId) -> u64 {
        self.objects[tensor.index()]
    }

    /// The pool of a tensor that is not in the arena.
    #[must_use]
    pub fn pool(&self, tensor: TensorId) -> usize {
        self.plan.tensor_pool.get(tensor.index()).map_or(0, |&pool| pool as usize)
    }

    /// The pool of an op's workspace, and the number of objects that it takes there; `None` if the
    /// op has no workspace.
    #[must_use]
    pub fn workspace(&self, graph: &Graph<'_>, op: OpId) -> Option<(usize, u64)> {
        let bytes = graph.op(op).workspace_bytes;
        let pool = self.plan.workspace_pool.get(op.index()).map_or(0, |&pool| pool as usize);
        let objects = bytes.div_ceil(self.plan.pools.get(pool)?.object_bytes);
        (bytes > 0).then_some((pool, objects))
    }

    /// The pieces of a tensor.
    #[must_use]
    pub fn of(&self, tensor: TensorId) -> Range<usize> {
        let index = tensor.index();
        self.first_piece[index] as usize..self.first_piece[index.saturating_add(1)] as usize
    }

    /// Whether a tensor has more than one piece.
    #[inline]
    pub(crate) fn is_cut(&self, tensor: TensorId) -> bool {
        self.of(tensor).len() > 1
    }

    /// The pieces of a part that the plan names.
    #[must_use]
    pub fn of_part(&self, part: Part) -> Range<usize> {
        let all = self.of(part.tensor);
        if part.is_whole() {
            return all;
        }
        let starts = &self.first_object[all.clone()];
        let end = part.first.saturating_add(part.count);
        let from = starts.partition_point(|&start| start < part.first);
        let to = starts.partition_point(|&start| start < end);
        all.start.saturating_add(from)..all.start.saturating_add(to)
    }

    /// The pieces of a part, as a span of its tensor's pieces.
    #[inline]
    pub(crate) fn span(&self, part: Part) -> Span {
        match part.is_whole() {
            true => self.whole(part.tensor),
            false => Span::new(&self.of(part.tensor), &self.of_part(part)),
        }
    }

    /// All pieces of a tensor.
    #[inline]
    pub(crate) fn whole(&self, tensor: TensorId) -> Span {
        Span::whole(&self.of(tensor))
    }

    /// One piece, as a span of its tensor's pieces.
    pub(crate) fn span_of(&self, tensor: TensorId, piece: usize) -> Span {
        Span::new(&self.of(tensor), &(piece..piece.saturating_add(1)))
    }

    /// The objects of one piece of a tensor: the first one, and their number.
    #[must_use]
    pub fn range(&self, tensor: TensorId, piece: usize) -> (u64, u64) {
        let first = self.first_object[piece];
        let next = piece.saturating_add(1);
        let end = if next == self.of(tensor).end {
            self.objects(tensor)
        } else {
            self.first_object[next]
        };
        (first, end.saturating_sub(first))
    }

    /// The number of pool objects that one piece of a tensor takes; zero in the arena.
    #[must_use]
    pub fn pool_objects(&self, tensor: TensorId, piece: usize) -> u64 {
        if self.in_arena(tensor) { 0 } else { self.range(tensor, piece).1 }
    }

    /// The number of objects of a part.
    #[must_use]
    pub fn part_objects(&self, part: Part) -> u64 {
        if part.is_whole() { self.objects(part.tensor) } else { part.count }
    }

    /// Whether a part has every object of its tensor.
    #[must_use]
    pub fn covers_tensor(&self, part: Part) -> bool {
        part.is_whole() || (part.first == 0 && part.count == self.objects(part.tensor))
    }

    /// Whether a prefetch may arrive while the last value is still read: this holds for a whole
    /// input outside the arena, which has two address ranges.
    #[must_use]
    pub fn arrives_beside(&self, graph: &Graph<'_>, part: Part) -> bool {
        graph.tensor(part.tensor).kind == Kind::Input
            && !self.in_arena(part.tensor)
            && self.covers_tensor(part)
    }

    /// The offset of a part in its tensor.
    #[must_use]
    pub fn offset_bytes(&self, part: Part) -> u64 {
        if self.covers_tensor(part) {
            return 0;
        }
        part.first.saturating_mul(self.plan.pools[self.pool(part.tensor)].object_bytes)
    }

    /// The bytes of a tensor that a part holds.
    #[must_use]
    pub fn part_bytes(&self, graph: &Graph<'_>, part: Part) -> u64 {
        let bytes = graph.tensor(part.tensor).bytes;
        if self.covers_tensor(part) {
            return bytes;
        }
        let object_bytes = self.plan.pools[self.pool(part.tensor)].object_bytes;
        let from = part.first.saturating_mul(object_bytes).min(bytes);
        let to = part.first.saturating_add(part.count).saturating_mul(object_bytes).min(bytes);
        to.saturating_sub(from)
    }
}

fn location_of(position: usize, make: impl Fn(u32) -> Location) -> Location {
    make(u32::try_from(position).unwrap_or(u32::MAX))
}

/// Checks that arena and pools, each rounded up to chunks, fit into the budget, and the budget into
/// the device.
fn check_budget(machine: &Machine, plan: &Plan<'_>) -> Result<(), PlanError> {
    let Plan { budget_bytes, arena_bytes, .. } = *plan;
    if budget_bytes > machine.device_bytes {
        let device_bytes = machine.device_bytes;
        return Err(PlanError::BudgetAboveDevice { budget_bytes, device_bytes });
    }
    let too_much = |needed_bytes| PlanError::PoolsAboveBudget { needed_bytes, budget_bytes };
    let mut needed_bytes = machine.round_up_to_chunks(arena_bytes).ok_or(too_much(u64::MAX))?;
    for (at, pool) in plan.pools.iter().enumerate() {
        if pool.object_bytes == 0 {
            return Err(PlanError::ObjectSize(location_of(at, Location::Pool)));
        }
        needed_bytes = pool
            .object_bytes
            .checked_mul(pool.count)
            .and_then(|bytes| machine.round_up_to_chunks(bytes))
            .and_then(|bytes| needed_bytes.checked_add(bytes))
            .ok_or(too_much(u64::MAX))?;
    }
    if needed_bytes > budget_bytes { Err(too_much(needed_bytes)) } else { Ok(()) }
}

/// Marks the operands that repeats leave alone: the reads of states, inputs and outputs that the
/// same repeatable op also writes.
fn find_left_alone(
    graph: &Graph<'_>,
    left_alone: &mut [u64],
    scratch: &mut Scratch<'_>,
) -> Result<(), OutOfScratch> {
    let written_by = scratch.take(graph.tensors().len(), u32::MAX)?;
    for id in graph.op_ids().filter(|&id| graph.op(id).repeatable) {
        for &tensor in graph.writes(id) {
            let is_kept = graph.tensor(tensor).kind != Kind::Temporary;
            written_by[tensor.index()] = if is_kept { id.0 } else { u32::MAX };
        }
        let first = graph.op(id).first_operand as usize;
        for (at, tensor) in (first..).zip(graph.reads(id)) {
            let is_left_alone = written_by[tensor.index()] == id.0;
            left_alone[at / BITS] |= u64::from(is_left_alone) << (at % BITS);
        }
    }
    Ok(())
}

fn read_arena(
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &Plan<'_>,
    arena_position: &mut [u32],
) -> Result<(), PlanError> {
    let alignment_bytes = machine.chunk_bytes.min(256);
    for (at, placement) in plan.arena.iter().enumerate() {
        let location = location_of(at, Location::Arena);
        let tensor = placement.tensor;
        let slot = arena_position
            .get_mut(tensor.index())
            .ok_or(PlanError::UnknownTensor(location, tensor))?;
        if *slot != NOT_IN_ARENA {
            return Err(PlanError::TwiceInArena(location, tensor));
        }
        *slot = at as u32;
        if !placement.offset_bytes.is_multiple_of(alignment_bytes) {
            return Err(PlanError::Misaligned(location));
        }
        let end = placement.offset_bytes.checked_add(graph.tensor(tensor).bytes);
        if end.is_none_or(|end| end > plan.arena_bytes) {
            return Err(PlanError::OutsideArena(location));
        }
    }
    Ok(())
}

fn count_objects(
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &Plan<'_>,
    arena_position: &[u32],
    objects: &mut [u64],
) -> Result<(), PlanError> {
    for (length, expected) in [
        (plan.tensor_pool.len(), graph.tensors().len()),
        (plan.workspace_pool.len(), graph.ops().len()),
    ] {
        if length != 0 && length != expected {
            return Err(PlanError::PoolTable { length, expected });
        }
    }
    let exists = |pool: &u32| (*pool as usize) < plan.pools.len();
    let wrong = |table: &[u32]| table.iter().position(|pool| !exists(pool)).map(|at| at as u32);
    if let Some(tensor) = wrong(plan.tensor_pool) {
        return Err(PlanError::TensorWithoutPool(TensorId(tensor)));
    }
    if let Some(op) = wrong(plan.workspace_pool) {
        return Err(PlanError::WorkspaceWithoutPool(OpId(op)));
    }
    let pool_of = |table: &[u32], index: usize| table.get(index).map_or(0, |&p| p as usize);
    let count = |pool: usize, bytes: u64| {
        let object_bytes = plan.pools.get(pool)?.object_bytes;
        let count = bytes.div_ceil(object_bytes);
        let fits = count <= 1 || object_bytes.is_multiple_of(machine.chunk_bytes);
        Some(if fits {
            Ok(count)
        } else {
            Err(PlanError::ObjectSize(location_of(pool, Location::Pool)))
        })
    };
    for (id, tensor) in graph.tensor_ids().zip(graph.tensors()) {
        if arena_position[id.index()] == NOT_IN_ARENA {
            let pool = pool_of(plan.tensor_pool, id.index());
            objects[id.index()] =
                count(pool, tensor.bytes).ok_or(PlanError::TensorWithoutPool(id))??;
        }
    }
    for (id, op) in graph.op_ids().zip(graph.ops()) {
        if op.workspace_bytes > 0 {
            let pool = pool_of(plan.workspace_pool, id.index());
            count(pool, op.workspace_bytes).ok_or(PlanError::WorkspaceWithoutPool(id))??;
        }
    }
    Ok(())
}

/// Checks that every op exists, and that each op that runs on the host may run there and uses no
/// tensor of the arena.
fn check_ops(graph: &Graph<'_>, plan: &Plan<'_>, arena_position: &[u32]) -> Result<(), PlanError> {
    for (at, step) in plan.steps.iter().enumerate() {
        let Some(Launched { op, .. }) = step.launched() else { continue };
        let location = location_of(at, Location::Step);
        if op.index() >= graph.ops().len() {
            return Err(PlanError::UnknownOp(location, op));
        }
        if !matches!(step, Step::Host(_)) {
            continue;
        }
        if graph.op(op).host_ns.is_none() {
            return Err(PlanError::NotOnHost(location, op));
        }
        let in_arena = |tensor: &&TensorId| arena_position[tensor.index()] != NOT_IN_ARENA;
        if let Some(&tensor) = graph.operands_of(op).iter().find(in_arena) {
            return Err(PlanError::HostArena { location, op, tensor });
        }
    }
    Ok(())
}

/// All parts in a plan, with their locations.
fn parts<'p>(plan: &Plan<'p>) -> impl Iterator<Item = (Location, Part)> + use<'p> {
    let starts = plan.resident_at_start.iter().enumerate();
    let steps = plan.steps.iter().enumerate();
    starts
        .map(|(at, entry)| (location_of(at, Location::Start), entry.part))
        .chain(steps.filter_map(|(at, step)| Some((location_of(at, Location::Step), step.part()?))))
}

/// Checks all parts, then sorts and counts the cuts. Returns the first object of each piece.
fn cut<'a>(
    graph: &Graph<'_>,
    plan: &Plan<'a>,
    arena_position: &[u32],
    objects: &[u64],
    first_piece: &mut [u32],
    scratch: &mut Scratch<'a>,
) -> Result<&'a [u64], PlanError> {
    check_ops(graph, plan, arena_position)?;
    let mut pieces = graph.tensors().len();
    let counts = &mut first_piece[1..];
    for (location, part) in parts(plan) {
        let Part { tensor, first, count } = part;
        let &objects =
            objects.get(tensor.index()).ok_or(PlanError::UnknownTensor(location, tensor))?;
        if part.is_whole() {
            continue;
        }
        if arena_position[tensor.index()] != NOT_IN_ARENA {
            return Err(PlanError::ArenaStep(location, tensor));
        }
        let end = first.checked_add(count).filter(|&end| first < end && end <= objects);
        let end = end.ok_or(PlanError::Range { location, tensor, objects })?;
        let cuts = u32::from(first > 0).saturating_add(u32::from(end < objects));
        counts[tensor.index()] = counts[tensor.index()].saturating_add(cuts);
        pieces = pieces.saturating_add(cuts as usize);
    }
    if pieces >= u32::MAX as usize {
        return Err(PlanError::TooManySteps);
    }
    let starts = scratch.take(pieces, 0u64)?;
    fill_cuts(plan, objects, first_piece, starts);
    let used = sort_cuts(first_piece, starts);
    Ok(&starts[..used])
}

/// Writes each tensor's cuts, unsorted, after its first piece, which starts at object 0.
/// Afterwards, `first_piece[t + 1]` is the end of tensor `t` in `starts`.
fn fill_cuts(plan: &Plan<'_>, objects: &[u64], first_piece: &mut [u32], starts: &mut [u64]) {
    let free = &mut first_piece[1..];
    let mut end = 0u32;
    for slot in &mut *free {
        // The tensor's next free slot, after its piece at object 0.
        let next = end.saturating_add(1);
        end = next.saturating_add(core::mem::replace(slot, next));
    }
    for (_, part) in parts(plan).filter(|(_, part)| !part.is_whole()) {
        let slot = &mut free[part.tensor.index()];
        for cut in [part.first, part.first.saturating_add(part.count)] {
            if cut > 0 && cut < objects[part.tensor.index()] {
                starts[*slot as usize] = cut;
                *slot = slot.saturating_add(1);
            }
        }
    }
}

/// Sorts each tensor's cuts, and removes repeated cuts and the slots that they leave. Returns the
/// number of pieces.
fn sort_cuts(first_piece: &mut [u32], starts: &mut [u64]) -> usize {
    let (mut from, mut used) = (0, 0usize);
    for slot in &mut first_piece[1..] {
        let end = *slot as usize;
        starts[from..end].sort_unstable();
        let first = used;
        for at in from..end {
            if starts[first..used].last() != Some(&starts[at]) {
                starts[used] = starts[at];
                used = used.saturating_add(1);
            }
        }
        from = end;
        *slot = used as u32;
    }
    used
}
