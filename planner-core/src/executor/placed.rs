//! Objects at the places that the plan says, mapped once before the plan runs.

#![expect(
    clippy::indexing_slicing,
    reason = "the verifier has checked the placements, and numbers of runs and ranges come from \
              `find_or_add`"
)]

use super::Fault;
use super::layout::Layout;
use super::spares::{Mapper, Row};
use crate::allocations::{self, Event, NO_SLOT, Taker, walk};
use crate::backend::{Chunks, DeviceAddress, Paging};
use crate::graph::TensorId;
use crate::pieces::Pieces;
use crate::plan::{Part, Placements, PlanError};
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};
use bytemuck::{Pod, Zeroable};
use core::iter;
use core::ops::Range;

/// No range.
const NONE: u32 = u32::MAX;

/// Objects of consecutive slots of the placements.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Run {
    /// The first slot, or [`NO_SLOT`] if nothing is mapped.
    first_slot: u32,
    count: u32,
}

/// The objects of a plan with placements, and the ranges in which they are mapped once.
///
/// Each tensor has a virtual range for each set of objects that it has at some launch or copy, and
/// each workspace has a range for each of its sets. If the objects of a set are consecutive, and a
/// range of the device can hold the pool, the range is a part of one mapping of the whole pool: it
/// needs no mapping of its own, and page table entries are warm for all such ranges after the first
/// access. A chunk may be mapped in many other ranges; the verifier has proved that no two of them
/// are in use at the same time. The address of a tensor changes only when it gets objects.
#[derive(Debug)]
pub(super) struct Placed<'a> {
    placements: Placements<'a>,
    /// The number of the next allocation.
    next: u32,
    /// The number of allocations before the first iteration.
    at_start: u32,
    /// The range of each allocation.
    range_of: &'a mut [u32],
    ranges: Ranges<'a>,
    /// The mapping of each whole pool.
    whole: &'a mut [Whole],
}

/// A whole pool at consecutive addresses.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Whole {
    /// The number of ranges that are a part of it. If zero, the pool is not mapped as a whole.
    ranges: u64,
    /// The address, after it is mapped.
    address: u64,
}

/// A virtual range.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Mapped {
    first_run: u32,
    /// The run after its last run.
    end_run: u32,
    pool: u32,
    /// Another range of the same tensor or workspace, or [`NONE`].
    next: u32,
}

/// All ranges.
#[derive(Debug)]
struct Ranges<'a> {
    /// The address of each range, after it is mapped.
    address: &'a mut [u64],
    mapped: &'a mut [Mapped],
    len: usize,
    runs: &'a mut [Run],
    runs_len: usize,
    /// The last range of each tensor, and after the tensors of each workspace.
    last: &'a mut [u32],
}

#[expect(
    clippy::arithmetic_side_effects,
    reason = "the verifier has checked residency and placements, which number allocations and slots \
              in 32 bits; other numbers are bytes in a pool or count entries of arrays"
)]
impl<'a> Placed<'a> {
    /// `runs` bounds the number of runs in all ranges together.
    pub(super) const fn scratch_words(limits: &Limits, runs: usize) -> usize {
        total([
            words::<u32>(limits.objects),
            words::<Mapped>(limits.objects),
            words::<u64>(limits.objects),
            words::<Run>(runs),
            words::<u32>(limits.tensors.saturating_add(limits.ops)),
            words::<Whole>(limits.pools),
            allocations::scratch_words(limits),
        ])
    }

    /// Finds all ranges, without calling the device. Takes at most as much scratch as it can use.
    pub(super) fn new(
        layout: &Layout<'_>,
        placements: Placements<'a>,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, PlanError> {
        let allocations = placements.ends.len();
        let (graph, pieces) = (layout.verified.graph(), &layout.pieces);
        let (mut at_start, mut most_runs) = (0, 0usize);
        walk(graph, layout.plan(), pieces, placements.iterations, scratch, |event| {
            if let Event::Take { at, first, .. } = event {
                at_start += u32::from(at == 0);
                most_runs = most_runs.saturating_add(first.len());
            }
            Ok(())
        })?;
        let range_of = scratch.take(allocations, NONE)?;
        let address = scratch.take(allocations, 0)?;
        let mapped = scratch.take(allocations, Mapped::zeroed())?;
        let last = scratch.take(graph.tensors().len() + graph.ops().len(), NONE)?;
        let whole = scratch.take(layout.plan().pools.len(), Whole::zeroed())?;
        let limits = Limits { pieces: pieces.len(), ..Limits::default() };
        let free_words = scratch.free_words().saturating_sub(allocations::scratch_words(&limits));
        let most_runs = most_runs.min(free_words / words::<Run>(1)).min(u32::MAX as usize);
        let runs = scratch.take(most_runs, Run { first_slot: NO_SLOT, count: 0 })?;
        let mut ranges = Ranges { address, mapped, len: 0, runs, runs_len: 0, last };
        // Ranges of whole tensors come first: a later allocation of a part of the tensor can use
        // such a range, since nothing accesses the rest.
        for whole in [true, false] {
            walk(graph, layout.plan(), pieces, placements.iterations, scratch, |event| {
                if let Event::Take { location, allocation, taker, pool, slots, first, .. } = event
                    && layout.has_ranges(pool)
                    && first.contains(&NO_SLOT) != whole
                {
                    if let Taker::Tensor(tensor) = taker
                        && pieces.of(tensor).any(|piece| is_too_long(pieces, tensor, piece))
                    {
                        return Err(PlanError::Overflow(location));
                    }
                    let runs = first.iter().zip(0..).map(|(&first_slot, piece)| {
                        // Checked for tensors; a workspace has slots for all of its objects.
                        let count = match taker {
                            Taker::Tensor(tensor) => {
                                let piece = pieces.of(tensor).start + piece;
                                pieces.range(tensor, piece).1 as u32
                            }
                            Taker::Workspace(_) => slots.len() as u32,
                        };
                        Run { first_slot, count }
                    });
                    let owner = match taker {
                        Taker::Tensor(tensor) => tensor.index(),
                        Taker::Workspace(op) => graph.tensors().len() + op.index(),
                    };
                    let range = ranges.find_or_add(placements, owner, pool, runs)?;
                    range_of[allocation as usize] = range;
                }
                Ok(())
            })?;
        }
        for mapped in &ranges.mapped[..ranges.len] {
            let runs = ranges.runs[mapped.runs()].iter().copied();
            let fits_range = layout.fits_range(mapped.pool as usize);
            let is_in_whole = fits_range && in_one_row(placements, runs).is_some();
            whole[mapped.pool as usize].ranges += u64::from(is_in_whole);
        }
        Ok(Self { placements, next: 0, at_start, range_of, ranges, whole })
    }

    /// Reserves and maps all ranges.
    pub(super) fn set_up<B: Paging>(
        &mut self,
        layout: &Layout<'_>,
        mapper: &mut Mapper<'_, '_, B>,
    ) -> Result<(), Fault<B::Error>> {
        let placements = self.placements;
        for (pool, whole) in self.whole.iter_mut().enumerate().filter(|(_, whole)| whole.ranges > 0)
        {
            whole.address = layout.map_pool(mapper, pool)?;
        }
        let Ranges { address, mapped, len, runs, .. } = &mut self.ranges;
        for (address, mapped) in address.iter_mut().zip(&mapped[..*len]) {
            let (runs, pool) = (runs[mapped.runs()].iter().copied(), mapped.pool as usize);
            if let Some(first) = in_whole(self.whole, placements, pool, runs.clone()) {
                let offset_bytes = first * layout.object_bytes(pool);
                *address = self.whole[pool].address.saturating_add(offset_bytes);
                continue;
            }
            *address = mapper.map(rows(layout, placements, pool, runs))?.0;
        }
        Ok(())
    }

    /// Calls `visit` with the address, the number of chunks and the mapped rows of each address
    /// range.
    pub(super) fn each_range(
        &self,
        layout: &Layout<'_>,
        mut visit: impl FnMut(u64, u64, &mut dyn Iterator<Item = Row>),
    ) {
        for (address, chunks) in self.whole_pools(layout) {
            visit(address, chunks.count, &mut layout.rows(chunks));
        }
        for (address, mapped) in self.own_ranges() {
            let (runs, pool) = (self.runs_of(mapped), mapped.pool as usize);
            let count: u64 = runs.clone().map(|run| u64::from(run.count)).sum();
            // Objects of pieces that are not on the device count too, and may exceed 64 bits.
            let chunks = count.saturating_mul(layout.chunks_per_object(pool));
            visit(address, chunks, &mut rows(layout, self.placements, pool, runs));
        }
    }

    /// The address and the chunks of each pool that is mapped as a whole.
    fn whole_pools(&self, layout: &Layout<'_>) -> impl Iterator<Item = (u64, Chunks)> {
        let pools = self.whole.iter().enumerate().filter(|(_, whole)| whole.ranges > 0);
        pools.map(|(pool, whole)| (whole.address, layout.chunks_of(pool)))
    }

    /// The ranges outside pools that are mapped as a whole, with their addresses.
    fn own_ranges(&self) -> impl Iterator<Item = (u64, Mapped)> {
        let Ranges { address, mapped, len, .. } = &self.ranges;
        let ranges = address.iter().copied().zip(mapped[..*len].iter().copied());
        ranges.filter(|&(_, mapped)| {
            let (runs, pool) = (self.runs_of(mapped), mapped.pool as usize);
            in_whole(self.whole, self.placements, pool, runs).is_none()
        })
    }

    fn runs_of(&self, mapped: Mapped) -> impl Iterator<Item = Run> + Clone {
        self.ranges.runs[mapped.runs()].iter().copied()
    }

    /// Calls `visit` with each run of objects that a piece has now, as the first object and a
    /// count.
    pub(super) fn each_run(
        &self,
        layout: &Layout<'_>,
        tensor: TensorId,
        piece: usize,
        mut visit: impl FnMut(u64, u64),
    ) {
        let Ranges { address, mapped, runs, last, .. } = &self.ranges;
        let (pool, now) = (layout.pieces.pool(tensor), layout.address[tensor.index()]);
        if !layout.has_ranges(pool) {
            return visit(layout.object_of_address(pool, now), 1);
        }
        let mut range = last[tensor.index()] as usize;
        while let Some(known) = mapped.get(range).filter(|_| address[range] != now) {
            range = known.next as usize;
        }
        if let Some(known) = mapped.get(range) {
            let run = runs[known.runs()][piece - layout.pieces.of(tensor).start];
            for (first, count) in in_a_row(objects(self.placements, iter::once(run))) {
                if let Some(first) = first {
                    visit(first, count);
                }
            }
        }
    }

    /// Allocates objects for the `pieces` of a tensor that have no object.
    pub(super) fn allocate(
        &mut self,
        layout: &mut Layout<'_>,
        tensor: TensorId,
        pieces: Range<usize>,
    ) {
        let all = layout.pieces.of(tensor).len();
        let resident = layout.resident[tensor.index()] as usize;
        let resident = if pieces.len() == all { all } else { resident + pieces.len() };
        layout.resident[tensor.index()] = resident as u32;
        layout.address[tensor.index()] = self.take(layout, layout.pieces.pool(tensor)).0;
    }

    /// The address of the next allocation of the plan.
    pub(super) fn take(&mut self, layout: &Layout<'_>, pool: usize) -> DeviceAddress {
        if self.next as usize == self.range_of.len() {
            self.next = self.at_start;
        }
        let allocation = self.next;
        self.next += 1;
        let range = self.range_of[allocation as usize];
        DeviceAddress(match self.ranges.address.get(range as usize) {
            Some(&address) => address,
            None => {
                let objects = self.placements.of(allocation);
                layout.object_address(pool, objects.first().copied().unwrap_or(0))
            }
        })
    }

    /// Frees the objects of a part.
    pub(super) fn evict(layout: &mut Layout<'_>, part: Part) {
        let pieces = layout.pieces.of_part(part).len();
        layout.resident[part.tensor.index()] -= pieces as u32;
    }
}

impl Mapped {
    const fn runs(self) -> Range<usize> {
        self.first_run as usize..self.end_run as usize
    }
}

impl Ranges<'_> {
    /// Finds a range of an owner that maps all objects of `runs` at their offsets, or adds a new
    /// range.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`runs_len` and `len` count entries of arrays"
    )]
    fn find_or_add(
        &mut self,
        placements: Placements<'_>,
        owner: usize,
        pool: usize,
        runs: impl Iterator<Item = Run> + Clone,
    ) -> Result<u32, OutOfScratch> {
        let mut range = self.last[owner];
        while let Some(mapped) = self.mapped.get(range as usize) {
            let known = self.runs[mapped.runs()].iter().copied();
            let wanted = objects(placements, runs.clone());
            if wanted.zip(objects(placements, known)).all(|(wanted, known)| match wanted {
                None => true,
                wanted => wanted == known,
            }) {
                return Ok(range);
            }
            range = mapped.next;
        }
        let first_run = self.runs_len as u32;
        for run in runs {
            let slot = self.runs.get_mut(self.runs_len);
            *slot.ok_or(OutOfScratch { needed_words: words::<Run>(1), free_words: 0 })? = run;
            self.runs_len += 1;
        }
        let (end_run, next) = (self.runs_len as u32, self.last[owner]);
        self.mapped[self.len] = Mapped { first_run, end_run, pool: pool as u32, next };
        self.last[owner] = self.len as u32;
        self.len += 1;
        Ok(self.last[owner])
    }
}

/// Whether a piece has more objects than 32 bits count. It then was never on the device, since
/// placements are numbered in 32 bits.
fn is_too_long(pieces: &Pieces<'_>, tensor: TensorId, piece: usize) -> bool {
    u32::try_from(pieces.range(tensor, piece).1).is_err()
}

/// The first object of runs that are a part of the mapping of their whole pool. `None` for other runs.
fn in_whole(
    whole: &[Whole],
    placements: Placements<'_>,
    pool: usize,
    runs: impl Iterator<Item = Run> + Clone,
) -> Option<u64> {
    if whole[pool].ranges > 0 { in_one_row(placements, runs) } else { None }
}

/// The first object of runs, if all their objects are mapped and consecutive.
fn in_one_row(placements: Placements<'_>, runs: impl Iterator<Item = Run> + Clone) -> Option<u64> {
    let mut rows = in_a_row(objects(placements, runs));
    let (first, _) = rows.next()?;
    first.filter(|_| rows.next().is_none())
}

/// The device's chunks that back runs, as rows.
fn rows(
    layout: &Layout<'_>,
    placements: Placements<'_>,
    pool: usize,
    runs: impl Iterator<Item = Run> + Clone,
) -> impl Iterator<Item = Row> + Clone {
    layout.rows_of_objects(pool, in_a_row(objects(placements, runs)))
}

/// Joins consecutive objects into pairs of the first object, or `None` if nothing is mapped, and a
/// count.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "objects are numbered below the count of their pool, and are counted one by one"
)]
fn in_a_row(
    objects: impl Iterator<Item = Option<u64>> + Clone,
) -> impl Iterator<Item = (Option<u64>, u64)> + Clone {
    let mut objects = objects.peekable();
    iter::from_fn(move || {
        let first = objects.next()?;
        let mut count = 1;
        while objects.next_if_eq(&first.map(|first| first + count)).is_some() {
            count += 1;
        }
        Some((first, count))
    })
}

/// The objects of runs, one by one.
fn objects(
    placements: Placements<'_>,
    runs: impl Iterator<Item = Run> + Clone,
) -> impl Iterator<Item = Option<u64>> + Clone {
    runs.flat_map(move |Run { first_slot, count }| {
        (0..count).map(move |at| {
            let slot = first_slot.checked_add(at).filter(|_| first_slot != NO_SLOT)?;
            placements.objects.get(slot as usize).copied()
        })
    })
}
