//! Requested, mapped and wasted bytes, which are always kept apart.

#![expect(
    clippy::indexing_slicing,
    reason = "tensors, pools and pieces are those of the checked plan, and the arrays have an \
              entry for each"
)]

use crate::graph::{Graph, Kind, Launched, OpId, TensorId};
use crate::pieces::Pieces;
use crate::plan::{Location, Part, Plan, PlanError, Step};
use crate::residency::Residency;
use crate::scratch::{Limits, Scratch, total, words};

/// Device memory of a plan, in list order, and the bytes that it moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Bytes of the arena, and the maximum over the steps of the bytes of objects held after a
    /// step; a launch counts with its workspace.
    pub peak_bytes: u64,
    /// The first step after which the peak is reached.
    pub peak_step: u32,
    /// Bytes of the tensors that are live then.
    pub requested_bytes: u64,
    /// The number of tensors and workspaces that hold objects then, at least in part.
    pub allocations: u64,
    /// Internal fragmentation: the maximum over the steps of the bytes of objects that are held but
    /// not filled.
    pub most_internal_waste_bytes: u64,
    /// The mean over all steps.
    pub mean_internal_waste_bytes: u64,
    /// Bytes copied to the device in one iteration.
    pub h2d_bytes: u64,
    /// Bytes copied to the host in one iteration.
    pub d2h_bytes: u64,
    /// Host bytes for every state, input and output that moves or that an op on the host uses.
    pub host_lasting_bytes: u64,
    /// The parts of states and inputs that move.
    pub host_parts_bytes: u64,
    /// Host bytes for every temporary that moves or that an op on the host uses, each with a slot
    /// of its own.
    pub host_temporary_bytes: u64,
}

impl Footprint {
    /// Pinned host memory with a slot of its own for every tensor that moves; a
    /// [`HostLayout`](crate::HostLayout) may need less.
    #[must_use]
    pub const fn host_bytes(&self) -> u64 {
        // All tensors together fit into 64 bits, so the sum cannot overflow.
        self.host_lasting_bytes.saturating_add(self.host_temporary_bytes)
    }

    /// The peak less the requested bytes: unused arena, and unfilled objects.
    #[must_use]
    pub const fn waste_bytes(&self) -> u64 {
        self.peak_bytes.saturating_sub(self.requested_bytes)
    }
}

/// Words of scratch that [`measure`] needs, by [`Limits::of_plan`], without the table of pieces.
#[must_use]
pub const fn scratch_words(limits: &Limits) -> usize {
    total([
        Residency::scratch_words(limits),
        words::<u8>(limits.tensors),
        words::<u32>(limits.pieces),
        words::<u32>(limits.tensors),
        words::<u64>(limits.tensors),
    ])
}

/// Walks the list three times. O(steps + operands).
///
/// # Errors
/// A list that breaks a rule of residency.
pub fn measure(pieces: &Pieces<'_>, scratch: &mut Scratch<'_>) -> Result<Footprint, PlanError> {
    let (graph, plan) = (pieces.graph(), pieces.plan());
    let mut walk = Walk::new(graph, plan, pieces, &mut scratch.reborrow())?;
    for (at, step) in (0..).zip(plan.steps) {
        walk.step(at, step)?;
        walk.measure_step(at);
        walk.end_step(at, step);
    }
    walk.add_temporaries();
    let mean_bytes = walk.wasted_bytes.checked_div(plan.steps.len() as u128).unwrap_or(0);
    // A mean of 64-bit numbers fits into 64 bits.
    walk.footprint.mean_internal_waste_bytes = mean_bytes as u64;
    Ok(walk.footprint)
}

/// The tensor moves, or an op on the host uses it.
const ON_HOST: u8 = 1;
const LIVE: u8 = 2;
/// The current launch reads the tensor.
const READ: u8 = 4;

struct Walk<'w, 'a> {
    graph: &'w Graph<'w>,
    plan: &'w Plan<'w>,
    pieces: &'w Pieces<'w>,
    residency: Residency<'a>,
    flags: &'a mut [u8],
    /// For each piece, a later piece, or itself, such that all pieces before it have been copied.
    next_uncopied: &'a mut [u32],
    /// The step of each tensor's last read.
    last_read: &'a mut [u32],
    /// Bytes of objects held.
    held_bytes: u128,
    /// The resident bytes of each tensor.
    resident_bytes: &'a mut [u64],
    requested_bytes: u64,
    /// The requested bytes in the arena.
    arena_requested_bytes: u64,
    allocations: u64,
    /// The internal waste, summed over the steps so far.
    wasted_bytes: u128,
    footprint: Footprint,
}

#[expect(
    clippy::arithmetic_side_effects,
    reason = "no byte is counted twice at a time or released twice, since residency is checked; the \
              bytes of a graph fit into 64 bits, and the bytes of its objects, over all steps, into \
              128"
)]
impl<'w, 'a> Walk<'w, 'a> {
    fn new(
        graph: &'w Graph<'w>,
        plan: &'w Plan<'w>,
        pieces: &'w Pieces<'w>,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, PlanError> {
        let residency = Residency::at_start(graph, plan, pieces, scratch)?;
        let mut walk = Self {
            graph,
            plan,
            pieces,
            residency,
            flags: scratch.take(graph.tensors().len(), 0u8)?,
            next_uncopied: scratch.take(pieces.len(), 0u32)?,
            last_read: scratch.take(graph.tensors().len(), 0u32)?,
            held_bytes: 0,
            resident_bytes: scratch.take(graph.tensors().len(), 0u64)?,
            requested_bytes: 0,
            arena_requested_bytes: 0,
            allocations: 0,
            wasted_bytes: 0,
            footprint: Footprint::default(),
        };
        for (at, next) in (0..).zip(&mut *walk.next_uncopied) {
            *next = at;
        }
        walk.find_last_reads();
        walk.start();
        Ok(walk)
    }

    fn find_last_reads(&mut self) {
        for (at, step) in (0..).zip(self.plan.steps) {
            let Some(launched) = step.launched() else { continue };
            for tensor in self.pieces.read_by(launched) {
                self.last_read[tensor.index()] = at;
            }
        }
    }

    fn start(&mut self) {
        for entry in self.plan.resident_at_start {
            let tensor = entry.part.tensor;
            if self.pieces.in_arena(tensor) {
                self.live(tensor);
                continue;
            }
            self.held_bytes += self.object_bytes(tensor, self.pieces.part_objects(entry.part));
            self.grow(tensor, self.pieces.part_bytes(self.graph, entry.part));
        }
    }

    /// Marks a state, input or output in the arena as live, if it is not yet.
    fn live(&mut self, tensor: TensorId) {
        let flags = &mut self.flags[tensor.index()];
        if *flags & LIVE == 0 {
            *flags |= LIVE;
            self.requested_bytes += self.graph.tensor(tensor).bytes;
            self.arena_requested_bytes += self.graph.tensor(tensor).bytes;
        }
    }

    /// The bytes of some objects of a tensor's pool.
    fn object_bytes(&self, tensor: TensorId, objects: u64) -> u128 {
        let pool = self.plan.pools[self.pieces.pool(tensor)];
        u128::from(objects) * u128::from(pool.object_bytes)
    }

    /// Adds resident bytes of a tensor, if any.
    fn grow(&mut self, tensor: TensorId, bytes: u64) {
        self.requested_bytes += bytes;
        let resident_bytes = &mut self.resident_bytes[tensor.index()];
        self.allocations += u64::from(*resident_bytes == 0 && bytes > 0);
        *resident_bytes += bytes;
    }

    fn shrink(&mut self, tensor: TensorId, bytes: u64) {
        self.requested_bytes -= bytes;
        let resident_bytes = &mut self.resident_bytes[tensor.index()];
        *resident_bytes -= bytes;
        self.allocations -= u64::from(*resident_bytes == 0);
    }

    fn step(&mut self, at: u32, step: &Step) -> Result<(), PlanError> {
        let location = Location::Step(at);
        match *step {
            Step::Prefetch(part) => {
                self.footprint.h2d_bytes = self.moved(part, self.footprint.h2d_bytes, location)?;
                if self.pieces.in_arena(part.tensor) {
                    self.live(part.tensor);
                    return Ok(());
                }
                let objects = self.residency.allocate(self.pieces, part, location)?;
                self.held_bytes += self.object_bytes(part.tensor, objects);
                self.grow(part.tensor, self.pieces.part_bytes(self.graph, part));
            }
            Step::Offload(part) => {
                self.footprint.d2h_bytes = self.moved(part, self.footprint.d2h_bytes, location)?;
            }
            Step::Evict(part) => {
                let objects = self.residency.release(self.pieces, part, location)?;
                self.held_bytes -= self.object_bytes(part.tensor, objects);
                self.shrink(part.tensor, self.pieces.part_bytes(self.graph, part));
            }
            Step::Launch(launched) => self.launch(launched),
            Step::Host(op) => {
                for &tensor in self.graph.operands_of(op) {
                    self.needs_host(tensor);
                }
            }
        }
        Ok(())
    }

    /// Counts the host bytes of a tensor that moves or that an op on the host uses.
    fn needs_host(&mut self, tensor: TensorId) {
        let flags = &mut self.flags[tensor.index()];
        if *flags & ON_HOST == 0 {
            *flags |= ON_HOST;
            // Each tensor is counted once, so the sum cannot overflow.
            let tensor = self.graph.tensor(tensor);
            match tensor.kind {
                Kind::Temporary => self.footprint.host_temporary_bytes += tensor.bytes,
                _ => self.footprint.host_lasting_bytes += tensor.bytes,
            }
        }
    }

    fn moved(&mut self, part: Part, sum_bytes: u64, location: Location) -> Result<u64, PlanError> {
        self.needs_host(part.tensor);
        if !self.graph.tensor(part.tensor).kind.is_made() {
            let pieces = self.pieces.of_part(part);
            let mut piece = self.uncopied_from(pieces.start);
            while piece < pieces.end {
                self.next_uncopied[piece] += 1;
                let (first, count) = self.pieces.range(part.tensor, piece);
                let part = Part { first, count, ..part };
                self.footprint.host_parts_bytes += self.pieces.part_bytes(self.graph, part);
                piece = self.uncopied_from(piece + 1);
            }
        }
        let bytes = self.pieces.part_bytes(self.graph, part);
        sum_bytes.checked_add(bytes).ok_or(PlanError::Overflow(location))
    }

    /// The first piece at or after `piece` that has not been copied.
    fn uncopied_from(&mut self, mut piece: usize) -> usize {
        while let Some(&next) = self.next_uncopied.get(piece).filter(|&&n| n as usize != piece) {
            // Path halving: many such walks take hardly longer than one step each.
            if let Some(&after) = self.next_uncopied.get(next as usize) {
                self.next_uncopied[piece] = after;
            }
            piece = next as usize;
        }
        piece
    }

    fn launch(&mut self, launched: Launched) {
        for tensor in self.graph.written_by(launched) {
            if self.pieces.in_arena(tensor) {
                if self.graph.tensor(tensor).kind == Kind::Output {
                    self.live(tensor);
                }
                continue;
            }
            let objects = self.residency.write(self.pieces, tensor);
            self.held_bytes += self.object_bytes(tensor, objects);
            let bytes = self.graph.tensor(tensor).bytes;
            self.grow(tensor, bytes - self.resident_bytes[tensor.index()]);
        }
        let op = launched.op;
        if let Some(held_bytes) = self.workspace_held_bytes(op) {
            self.held_bytes += held_bytes;
            self.requested_bytes += self.graph.op(op).workspace_bytes;
            self.allocations += 1;
        }
    }

    /// Bytes of the objects of an op's workspace; `None` if it has no workspace.
    fn workspace_held_bytes(&self, op: OpId) -> Option<u128> {
        let (pool, objects) = self.pieces.workspace(self.graph, op)?;
        Some(u128::from(objects) * u128::from(self.plan.pools[pool].object_bytes))
    }

    fn measure_step(&mut self, at: u32) {
        let objects_bytes = u64::try_from(self.held_bytes).unwrap_or(u64::MAX);
        let filled_bytes = self.requested_bytes - self.arena_requested_bytes;
        let waste_bytes = objects_bytes.saturating_sub(filled_bytes);
        let most_bytes = &mut self.footprint.most_internal_waste_bytes;
        *most_bytes = waste_bytes.max(*most_bytes);
        self.wasted_bytes += u128::from(waste_bytes);
        let bytes = self.plan.arena_bytes.saturating_add(objects_bytes);
        if at == 0 || bytes > self.footprint.peak_bytes {
            self.footprint.peak_bytes = bytes;
            self.footprint.peak_step = at;
            self.footprint.requested_bytes = self.requested_bytes;
            self.footprint.allocations = self.allocations;
        }
    }

    /// Removes memory that a launch holds only while it runs.
    fn end_step(&mut self, at: u32, step: &Step) {
        let Step::Launch(launched) = *step else { return };
        let op = launched.op;
        if let Some(held_bytes) = self.workspace_held_bytes(op) {
            self.held_bytes -= held_bytes;
            self.requested_bytes -= self.graph.op(op).workspace_bytes;
            self.allocations -= 1;
        }
        for tensor in self.pieces.read_by(launched) {
            let dies = self.graph.tensor(tensor).kind == Kind::Input
                && self.last_read[tensor.index()] == at
                && self.flags[tensor.index()] & LIVE != 0;
            if dies {
                self.flags[tensor.index()] &= !LIVE;
                self.requested_bytes -= self.graph.tensor(tensor).bytes;
                self.arena_requested_bytes -= self.graph.tensor(tensor).bytes;
            }
        }
    }

    /// Counts the temporaries in the arena with a span that covers the peak.
    fn add_temporaries(&mut self) {
        let peak = self.footprint.peak_step;
        // The start of the last span of each tensor; reads are no longer needed.
        let begin = &mut *self.last_read;
        begin.fill(u32::MAX);
        for (at, step) in (0..).zip(self.plan.steps) {
            let Step::Launch(launched) = *step else { continue };
            for tensor in self.pieces.read_by(launched) {
                self.flags[tensor.index()] |= READ;
            }
            for tensor in self.graph.written_by(launched) {
                if self.flags[tensor.index()] & READ == 0 {
                    begin[tensor.index()] = at;
                }
            }
            for tensor in self.pieces.operands_by(launched) {
                self.flags[tensor.index()] &= !READ;
                let is_counted = self.flags[tensor.index()] & LIVE != 0;
                let is_temporary = self.graph.tensor(tensor).kind == Kind::Temporary;
                let covers = begin[tensor.index()] <= peak && peak <= at;
                if covers && is_temporary && self.pieces.in_arena(tensor) && !is_counted {
                    self.flags[tensor.index()] |= LIVE;
                    self.footprint.requested_bytes += self.graph.tensor(tensor).bytes;
                }
            }
        }
    }
}
