//! The virtual ranges of tensors and workspaces, used in rotation.

#![expect(
    clippy::indexing_slicing,
    reason = "`first` has an entry for each owner and one more, and `of` yields ranges below the \
              total"
)]

use super::Fault;
use super::layout::Layout;
use super::spares::Mapper;
use crate::backend::{DeviceAddress, Paging};
use crate::graph::{Graph, OpId, TensorId};
use crate::plan::Step;
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};
use bytemuck::{Pod, Zeroable};
use core::ops::Range;

/// The number of ranges that a tensor rotates through, and so of iterations before a range is used
/// again.
///
/// Before the host reuses a range, it blocks until the steps that used the range last have ended,
/// so the work that it enqueues next starts after steps of three iterations ago. This does not
/// lengthen the period `P` of a host that never blocks. A longer period would need a cycle of waits
/// that takes more than `P` for each iteration that it spans. Cut the cycle at each block of the
/// host, and leave out smaller cycles in between, which take at most `P` for each iteration. The
/// rest between two blocks passes no step twice, so it takes at most the work of one iteration on
/// all three streams, which is at most `3 * P`; and each block spans three iterations.
pub(super) const ITERATIONS_AHEAD: usize = 3;

/// A virtual range.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Virtual {
    address: u64,
    /// How many unmappings must be done until no piece that may leave is mapped in the range.
    unmaps: u64,
}

/// The ranges of all tensors and of all workspaces.
///
/// A tensor moves to its next range when a piece of it comes back, and a workspace at each launch.
/// So a tensor that never leaves the device has one range, and any other tensor has
/// [`ITERATIONS_AHEAD`] ranges for each time that it comes back in an iteration.
#[derive(Debug)]
pub(super) struct Ranges<'a> {
    /// The first range of each owner, and at the end the number of ranges. Owners are the tensors,
    /// and after them the ops.
    first: &'a mut [u64],
    /// The range in use of each owner.
    current: &'a mut [u64],
    ranges: &'a mut [Virtual],
    tensors: usize,
}

/// The owner of ranges.
#[derive(Clone, Copy, Debug)]
pub(super) enum Owner {
    Tensor(TensorId),
    /// The workspace of an op.
    Workspace(OpId),
}

#[expect(
    clippy::arithmetic_side_effects,
    reason = "owners are entries of arrays, and have a range each and a few for each step"
)]
impl<'a> Ranges<'a> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        let owners = limits.tensors.saturating_add(limits.ops);
        // A tensor has one range, or some for each evict; a workspace has some for each launch.
        let most = limits.steps.saturating_mul(ITERATIONS_AHEAD).saturating_add(limits.tensors);
        total([
            words::<u64>(owners.saturating_add(1)),
            words::<u64>(owners),
            words::<Virtual>(most),
        ])
    }

    /// Counts the ranges, without calling the device.
    pub(super) fn new(
        layout: &Layout<'_>,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let graph = layout.verified.graph();
        let tensors = graph.tensors().len();
        let owners = tensors + graph.ops().len();
        let first = scratch.take(owners + 1, 0)?;
        let current = scratch.take(owners, 0)?;
        count(layout, first, current);
        let mut total = 0;
        for (first, current) in first.iter_mut().zip(&mut *current) {
            (*first, *current, total) = (total, total, total + *first);
        }
        first[owners] = total;
        let ranges =
            scratch.take(usize::try_from(total).unwrap_or(usize::MAX), Virtual::zeroed())?;
        Ok(Self { first, current, ranges, tensors })
    }

    /// Reserves the addresses of all ranges.
    pub(super) fn set_up<B: Paging>(
        &mut self,
        layout: &mut Layout<'_>,
        mapper: &mut Mapper<'_, '_, B>,
    ) -> Result<(), Fault<B::Error>> {
        let graph = *layout.verified.graph();
        for owner in owners(&graph) {
            for range in self.of(owner) {
                self.ranges[range].address = mapper.reserve(chunks(layout, owner))?.0;
                if let Owner::Tensor(tensor) = owner {
                    layout.address[tensor.index()] = self.current(owner).0;
                }
            }
        }
        Ok(())
    }

    /// The address and the number of chunks of each range.
    pub(super) fn all(&self, layout: &Layout<'_>) -> impl Iterator<Item = (u64, u64)> {
        owners(layout.verified.graph()).flat_map(move |owner| {
            let ranges = self.ranges[self.of(owner)].iter();
            ranges.map(move |range| (range.address, chunks(layout, owner)))
        })
    }

    const fn index(&self, owner: Owner) -> usize {
        match owner {
            Owner::Tensor(tensor) => tensor.index(),
            Owner::Workspace(op) => self.tensors + op.index(),
        }
    }

    /// The ranges of an owner.
    fn of(&self, owner: Owner) -> Range<usize> {
        let index = self.index(owner);
        self.first[index] as usize..self.first[index + 1] as usize
    }

    /// The addresses of an owner's ranges.
    pub(super) fn addresses(&self, owner: Owner) -> impl Iterator<Item = DeviceAddress> {
        self.ranges[self.of(owner)].iter().map(|range| DeviceAddress(range.address))
    }

    /// The address of an owner's range in use.
    pub(super) fn current(&self, owner: Owner) -> DeviceAddress {
        DeviceAddress(self.ranges[self.current[self.index(owner)] as usize].address)
    }

    /// How many unmappings must be done until the range in use is clear of pieces that left.
    pub(super) fn unmaps(&self, owner: Owner) -> u64 {
        self.ranges[self.current[self.index(owner)] as usize].unmaps
    }

    /// Records that the last unmapping put off lies in the range in use.
    pub(super) fn note_unmap(&mut self, owner: Owner, put_off: u64) {
        self.ranges[self.current[self.index(owner)] as usize].unmaps = put_off;
    }

    /// Moves an owner to its next range, which is the range that it has not used for longest.
    pub(super) fn advance(&mut self, owner: Owner) {
        let (index, range) = (self.index(owner), self.of(owner));
        let next = self.current[index] + 1;
        self.current[index] = if next == range.end as u64 { range.start as u64 } else { next };
    }
}

fn owners(graph: &Graph<'_>) -> impl Iterator<Item = Owner> + use<> {
    let (tensors, ops) = (graph.tensor_ids(), graph.op_ids());
    tensors.map(Owner::Tensor).chain(ops.map(Owner::Workspace))
}

/// The number of chunks of each range of an owner.
fn chunks(layout: &Layout<'_>, owner: Owner) -> u64 {
    let (pool, objects) = match owner {
        Owner::Tensor(tensor) => (layout.pieces.pool(tensor), layout.pieces.objects(tensor)),
        Owner::Workspace(op) => {
            layout.pieces.workspace(layout.verified.graph(), op).unwrap_or_default()
        }
    };
    // The chunks of a tensor that is never resident may exceed 64 bits.
    objects.saturating_mul(layout.chunks_per_object(pool))
}

/// Counts the ranges of each owner. Sets `left` to zero for all tensors.
#[expect(clippy::arithmetic_side_effects, reason = "there are a few ranges for each step")]
fn count(layout: &Layout<'_>, counts: &mut [u64], left: &mut [u64]) {
    let graph = layout.verified.graph();
    let (of_tensors, of_ops) = counts.split_at_mut(graph.tensors().len());
    let ahead = ITERATIONS_AHEAD as u64;
    for step in layout.plan().steps {
        match *step {
            // An evict before the first prefetch needs no further range.
            Step::Evict(part) => {
                let has_left = core::mem::replace(&mut left[part.tensor.index()], 1);
                of_tensors[part.tensor.index()] += if has_left == 0 { ahead } else { 0 };
            }
            Step::Prefetch(part) => left[part.tensor.index()] = 0,
            Step::Launch(launched) => {
                for tensor in graph.written_by(launched) {
                    left[tensor.index()] = 0;
                }
                if let Some((pool, _)) = layout.pieces.workspace(graph, launched.op)
                    && layout.has_ranges(pool)
                {
                    of_ops[launched.op.index()] += ahead;
                }
            }
            Step::Offload(_) | Step::Host(_) => {}
        }
    }
    for (tensor, count) in graph.tensor_ids().zip(of_tensors) {
        let has_ranges =
            !layout.pieces.in_arena(tensor) && layout.has_ranges(layout.pieces.pool(tensor));
        *count = if has_ranges { (*count).max(1) } else { 0 };
    }
}
