//! Writes a list by simulating the chosen gaps in time.
//!
//! The simulation follows the three streams op by op. A value whose gap has begun is evicted as
//! soon as the host holds it. Offloads start when their link is idle; offloads of gaps that have
//! begun come first. Prefetches start when their link is idle and memory allows, in the order of
//! the ops that need them. A prefetch may come as early as the slack of all ops up to the op that
//! needs it allows. The last of a few iterations is kept.

#![expect(
    clippy::indexing_slicing,
    reason = "tensors, ops and slots are those of the sequence, and the arrays have an entry for \
              each"
)]

mod upload;
mod victims;

use super::builder::Builder;
use super::gaps::Gaps;
use super::heap::Heap;
use super::list::{Lengths, Stuck};
use super::memory::CHUNKS;
use super::positions;
use super::pressure::{FULL, Pressure};
use super::tree::MinTree;
use crate::graph::{Kind, TensorId};
use crate::machine::{Direction, Machine, MachineParameters};
use crate::schedule::{PerStream, Stream};
use crate::scratch::{Limits, Scratch, total, words};
use crate::sequence::{LaunchId, Sequence};
use victims::Victims;

/// The number of simulated iterations. A balance: with more, the end of the list matches its start
/// better, but planning takes longer in proportion.
const ITERATIONS: u32 = 4;

/// The most segments of all gaps together, unless each would be larger than the pool divided by
/// [`POOL_SEGMENTS`]. This bounds the steps of a list if chunks are tiny or a link has no latency. A balance:
/// each segment takes time to plan, but large segments free scarce memory late. With a 64th of the pool,
/// plans of random decoders in tight memory were up to 3 % longer.
const MOST_SEGMENTS: u64 = 1024;
const POOL_SEGMENTS: u64 = 256;

/// The steps of each segment of a gap: an offload, an evict and a prefetch.
const SEGMENT_STEPS: u64 = 3;

/// The steps of a gap in addition to its whole segments: one segment for the remainder and one for
/// a half-empty chunk.
const GAP_STEPS: u64 = 2 * SEGMENT_STEPS;

/// The entries of a queue of transfers for each tensor, including outdated entries.
const ENTRIES: usize = 3;

/// The largest power of two by which segments can grow if a list is too long: then each is a whole gap.
pub(super) const MOST_COARSER: u32 = MOST_SEGMENTS.ilog2();

/// The size and order of transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace {
    /// The least time of a transfer with more to follow, in latencies. Long segments lose less time
    /// to the latency, short segments free memory sooner.
    pub(super) segment_latencies: u64,
    /// Whether half-empty last chunks come back just in time instead of with their tensor, since
    /// they take memory for few bytes.
    pub(super) tails_in_time: bool,
    /// The power of two by which segments are larger, because the list has no room for more steps.
    pub(super) coarser: u32,
}

/// The most offloads in flight at one time. A balance: more may start early, but the queue takes
/// stack.
const UNDER_WAY: usize = 256;

pub(super) const fn scratch_words(limits: &Limits) -> usize {
    total([
        Gaps::working_words(limits),
        words::<u64>(limits.ops),
        Heap::scratch_words(limits.tensors.saturating_mul(ENTRIES)).saturating_mul(3),
        Heap::scratch_words(limits.tensors),
        words::<u64>(limits.tensors).saturating_mul(7),
        Victims::scratch_words(limits),
    ])
}

/// An offload in flight.
#[derive(Clone, Copy, Debug)]
struct Copying {
    end_ns: u64,
    tensor: TensorId,
    /// After it ends, the host holds the value from this object on.
    from: u64,
}

struct Paced<'b, 's, 'p> {
    builder: Builder<'b>,
    gaps: &'s Gaps<'s>,
    /// The free objects of each pool at each op, less prefetches that came early.
    slack: MinTree<'s>,
    planned_slack: &'s mut [i64],
    /// Tensors to prefetch, by the op that needs them.
    uploads: Heap<'s>,
    /// Tensors whose half-empty last chunk is to be prefetched, just in time.
    tails: Heap<'s>,
    /// The time at which each op started in the last iteration.
    started_ns: &'s mut [u64],
    /// Tensors to offload, by the time at which their gap began or will begin.
    downloads: Heap<'s>,
    copying: heapless::Deque<Copying, UNDER_WAY>,
    /// The time at which each stream has done all listed steps.
    free_ns: PerStream<u64>,
    arrived_ns: &'s mut [u64],
    copied_ns: &'s mut [u64],
    /// Tensors that the host writes, by the time at which it has written them.
    made: Heap<'s>,
    made_ns: &'s mut [u64],
    /// If there are collectives, the time at which a launch has written each tensor.
    written_ns: &'s mut [u64],
    /// The time at which the host has written all values that launches of the same iteration read.
    urgent_ns: u64,
    /// The objects that stay during the gap that has begun; all objects if no gap has begun.
    kept: &'s mut [u64],
    /// The op that ends the gap, counted over all iterations.
    gap_end: &'s mut [u64],
    /// The objects of the current value that the host will need.
    wanted: &'s mut [u64],
    /// The time at which memory that was freed by force is available.
    forced_ns: u64,
    victims: Victims<'s>,
    iteration: u32,
    /// The pressure on each link in this iteration.
    seen: &'s mut Pressure<'p>,
    pace: Pace,
    /// The least number of objects of a segment.
    least_segment: u64,
}

/// Writes the list of chosen gaps.
pub(super) fn write(
    builder: Builder<'_>,
    gaps: &Gaps<'_>,
    pace: Pace,
    seen: &mut Pressure<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<Lengths, Stuck> {
    let mut scratch = scratch.reborrow();
    let (sequence, tensors) = (builder.task.sequence, builder.task.sequence.tensors().len());
    let hosted = if sequence.host_steps().is_empty() { 0 } else { tensors };
    let exchanged = if sequence.graph().has_collectives() { tensors } else { 0 };
    let entries = tensors.saturating_mul(ENTRIES);
    let planned_slack = gaps.planned_slack(builder.task, builder.memory, &mut scratch)?;
    let least_segment = least_segment(&builder, gaps).saturating_mul(1 << pace.coarser);
    let mut paced = Paced {
        builder,
        gaps,
        slack: MinTree::new(planned_slack.iter().copied(), &mut scratch)?,
        planned_slack,
        uploads: Heap::new(entries, &mut scratch)?,
        tails: Heap::new(entries, &mut scratch)?,
        started_ns: scratch.take(sequence.len(), 0)?,
        downloads: Heap::new(entries, &mut scratch)?,
        copying: heapless::Deque::new(),
        free_ns: PerStream::all(0),
        arrived_ns: scratch.take(tensors, 0)?,
        copied_ns: scratch.take(tensors, 0)?,
        made: Heap::new(hosted, &mut scratch)?,
        made_ns: scratch.take(hosted, 0)?,
        written_ns: scratch.take(exchanged, 0)?,
        urgent_ns: 0,
        kept: scratch.take(tensors, u64::MAX)?,
        gap_end: scratch.take(tensors, u64::MAX)?,
        wanted: scratch.take(tensors, 0)?,
        forced_ns: 0,
        victims: Victims::new(tensors, &mut scratch)?,
        iteration: 0,
        seen,
        pace,
        least_segment,
    };
    paced.iterations()?;
    paced.builder.finish()
}

/// The least number of objects of a segment by [`MOST_SEGMENTS`] and [`POOL_SEGMENTS`], and, by an estimate,
/// with which the list fits into its buffer. O(operands).
fn least_segment(builder: &Builder<'_>, gaps: &Gaps<'_>) -> u64 {
    let (room, sequence) = (builder.room() as u64, builder.task.sequence);
    let moved = (0..gaps.len()).map(|slot| gaps.moved(slot)).filter(|&moved| moved > 0);
    let (count, objects) = moved.fold((0u64, 0u64), |(count, objects), moved| {
        (count.saturating_add(1), objects.saturating_add(moved))
    });
    let others = sequence.len().saturating_add(sequence.tensors().len()) as u64;
    let others = others.saturating_add(count.saturating_mul(GAP_STEPS));
    let left = room.saturating_sub(others).max(room / 4);
    let for_room = objects.div_ceil((left / SEGMENT_STEPS).max(1));
    let pool = builder.memory.pool_objects(CHUNKS);
    objects.div_ceil(MOST_SEGMENTS).min(pool / POOL_SEGMENTS).max(for_room).max(1)
}

impl<'b> Paced<'b, '_, '_> {
    fn sequence(&self) -> &'b Sequence<'b> {
        self.builder.task.sequence
    }

    fn machine(&self) -> &'b Machine {
        self.builder.task.machine
    }

    fn objects(&self, tensor: TensorId) -> u64 {
        self.builder.memory.objects(tensor)
    }

    /// The position of an op, counted over all iterations.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "iterations are at most `ITERATIONS`, and launches are numbered in 31 bits"
    )]
    fn position(&self, op: LaunchId, later: bool) -> u64 {
        (u64::from(self.iteration) + u64::from(later)) * self.sequence().len() as u64
            + u64::from(op.0)
    }

    fn iterations(&mut self) -> Result<(), Stuck> {
        for (iteration, op) in self.sequence().iterations(ITERATIONS) {
            self.iteration = iteration;
            if op == LaunchId(0) {
                self.end_iteration();
            }
            self.builder.reach(op);
            self.run_on_host();
            self.op(op)?;
        }
        Ok(())
    }

    /// Evicts outputs, which are never resident at the start of an iteration.
    fn end_iteration(&mut self) {
        for &Copying { tensor, .. } in &self.copying {
            if self.builder.task.sequence.tensor(tensor).kind == Kind::Output {
                self.builder.evict(tensor);
            }
        }
    }

    fn op(&mut self, op: LaunchId) -> Result<(), Stuck> {
        let stream = self.sequence().stream(op);
        let is_collective = stream == Stream::Network;
        // A collective takes no time of compute.
        let time_ns = if is_collective { 0 } else { self.sequence().time_ns(op) };
        let now_ns = self.free_ns[Stream::Compute];
        let until_ns = now_ns.saturating_add(time_ns.max(1));
        self.forced_ns = now_ns;
        self.finish_copies(now_ns)?;
        self.download(now_ns, until_ns)?;
        self.upload(op, now_ns, until_ns)?;
        self.fetch(op, now_ns)?;
        for pool in 0..self.builder.memory.pools() {
            self.free(op, pool, self.builder.launch_objects(op, pool))?;
        }
        let moved_ns = self.start_ns(op);
        let ready_ns = self.read_ns(op).max(self.free_ns[stream]);
        let start_ns = moved_ns.max(ready_ns);
        // Compute does not wait for a collective to start.
        let compute_ns = if is_collective { now_ns } else { start_ns };
        if compute_ns > now_ns {
            // While the op waits, the links need not.
            self.finish_copies(compute_ns)?;
            self.download(now_ns, compute_ns.saturating_add(time_ns.max(1)))?;
            self.upload(op, compute_ns, compute_ns.saturating_add(time_ns.max(1)))?;
        }
        self.record_pressure(op, now_ns, !is_collective && moved_ns > ready_ns);
        self.started_ns[op.index()] = compute_ns;
        self.builder.launch_alone(op)?;
        let end_ns = start_ns.saturating_add(self.sequence().time_ns(op));
        self.free_ns[stream] = end_ns;
        self.write(op, end_ns);
        self.leave_outputs(op);
        self.give_back(op);
        self.run_on_host();
        for &tensor in self.sequence().operands_of(op) {
            self.enter_victim(tensor);
        }
        // For the next iteration, no prefetch has come early yet.
        for pool in 0..self.builder.memory.pools() {
            let at = positions::of(pool, op.index(), self.sequence().len());
            self.slack.set(at, self.planned_slack[at]);
        }
        self.begin_gaps(op)
    }

    /// Simulates the offloads of outputs, which are evicted after their last value has been copied.
    fn leave_outputs(&mut self, op: LaunchId) {
        for &tensor in self.sequence().writes(op) {
            if self.builder.is_final(tensor, op) {
                let bytes = self.sequence().tensor(tensor).bytes;
                let copy_ns = self.machine().transfer_ns(Direction::DeviceToHost, bytes);
                let free_ns = self.free_ns[Stream::Compute].max(self.free_ns[Stream::Download]);
                let end_ns = free_ns.saturating_add(copy_ns.unwrap_or(u64::MAX / 16));
                self.free_ns[Stream::Download] = end_ns;
                self.copied_ns[tensor.index()] = end_ns;
                if !self.builder.is_needed(tensor) && !self.builder.memory.in_arena(tensor) {
                    let _ = self.copying.push_back(Copying { end_ns, tensor, from: 0 });
                }
            }
        }
    }

    /// Evicts the operands of an op that nothing needs any more, except outputs that are still
    /// being copied.
    fn give_back(&mut self, op: LaunchId) {
        for &tensor in self.sequence().operands_of(op) {
            if !self.builder.is_needed(tensor) && !self.is_leaving(tensor) {
                self.builder.evict(tensor);
            }
        }
    }

    /// Whether a tensor is an output that will be evicted once it has been copied.
    fn is_leaving(&self, tensor: TensorId) -> bool {
        self.sequence().tensor(tensor).kind == Kind::Output
            && self.copying.iter().any(|copying| copying.tensor == tensor)
    }

    /// Lists and simulates the ops on the host that may run after the listed steps.
    fn run_on_host(&mut self) {
        while let Some(op) = self.builder.next_on_host() {
            self.builder.list_on_host(op);
            let sequence = self.sequence();
            let graph = sequence.graph();
            let copied = graph.reads(op).iter().map(|tensor| self.copied_ns[tensor.index()]);
            let arrived = graph.writes(op).iter().map(|tensor| self.arrived_ns[tensor.index()]);
            let start_ns = copied.chain(arrived).fold(self.free_ns[Stream::Host], u64::max);
            let end_ns = start_ns.saturating_add(graph.op(op).host_ns.unwrap_or(0));
            self.free_ns[Stream::Host] = end_ns;
            for &tensor in graph.writes(op) {
                if sequence.is_completed_by(op, tensor) {
                    let later = !sequence.is_made_first(tensor);
                    let next = self.builder.first_op(tensor);
                    self.gap_end[tensor.index()] = self.position(next, later);
                    self.made_ns[tensor.index()] = end_ns;
                    self.urgent_ns = if later { self.urgent_ns } else { end_ns };
                    self.made.push(end_ns, tensor.0);
                }
            }
        }
    }

    /// The time at which the host has written the value of a tensor.
    fn made_ns(&self, tensor: TensorId) -> u64 {
        self.made_ns.get(tensor.index()).copied().unwrap_or(0)
    }

    /// The earliest start of an op.
    fn start_ns(&self, op: LaunchId) -> u64 {
        let sequence = self.sequence();
        let arrived = sequence.operands_of(op).iter().map(|tensor| self.arrived_ns[tensor.index()]);
        let copied = sequence.writes(op).iter().map(|tensor| self.copied_ns[tensor.index()]);
        arrived.chain(copied).fold(self.forced_ns, u64::max)
    }

    /// The time at which launches have written all operands of an op, if there are collectives.
    fn read_ns(&self, op: LaunchId) -> u64 {
        let of = |tensor: &TensorId| self.written_ns.get(tensor.index()).copied().unwrap_or(0);
        self.sequence().operands_of(op).iter().map(of).fold(0, u64::max)
    }

    fn write(&mut self, op: LaunchId, end_ns: u64) {
        for tensor in self.sequence().writes(op) {
            if let Some(written_ns) = self.written_ns.get_mut(tensor.index()) {
                *written_ns = end_ns;
            }
        }
    }

    /// Records the pressure on each link at an op, if the link has work left: full if the op waits
    /// for transfers, otherwise half.
    fn record_pressure(&mut self, op: LaunchId, now_ns: u64, waits: bool) {
        let pressure = |free_ns: u64| match (free_ns > now_ns, waits) {
            (true, true) => FULL,
            (true, false) => FULL / 2,
            (false, _) => 0,
        };
        self.seen.up[op.index()] = pressure(self.free_ns[Stream::Upload]);
        self.seen.down[op.index()] = pressure(self.free_ns[Stream::Download]);
    }

    /// Evicts the tensors whose copies have ended by `now_ns`.
    fn finish_copies(&mut self, now_ns: u64) -> Result<(), Stuck> {
        while let Some(&Copying { tensor, from, .. }) =
            self.copying.front().filter(|copying| copying.end_ns <= now_ns)
        {
            self.copying.pop_front();
            self.evict(tensor, from)?;
        }
        while let Some((_, id)) = self.made.top().filter(|&(made_ns, _)| made_ns <= now_ns) {
            self.made.pop();
            self.uploads.push(self.gap_end[id as usize], id);
        }
        Ok(())
    }

    /// Evicts the objects from `from` on that the gap does not keep; the whole tensor if its value
    /// is not needed.
    fn evict(&mut self, tensor: TensorId, from: u64) -> Result<(), Stuck> {
        if !self.builder.is_needed(tensor) {
            self.builder.evict(tensor);
            return Ok(());
        }
        let kept = self.kept[tensor.index()];
        if kept < self.builder.held(tensor) {
            self.builder.evict_from(tensor, from.max(kept));
            if self.builder.held(tensor) <= kept {
                self.uploads.push(self.gap_end[tensor.index()], tensor.0);
            }
        }
        Ok(())
    }

    /// The time to move the objects `from..to` of a tensor.
    fn transfer_ns(&self, direction: Direction, tensor: TensorId, from: u64, to: u64) -> u64 {
        let bytes = self.builder.memory.bytes(self.builder.task, tensor, from, to);
        self.machine().transfer_ns(direction, bytes).unwrap_or(u64::MAX / 16)
    }

    /// The number of objects of a segment: a few segments in flight hide the latency. Limited from
    /// below, so that the list is not too long.
    fn segment(&self, bytes_per_s: u64) -> u64 {
        let MachineParameters { transfer_latency_ns, chunk_bytes, .. } = **self.machine();
        let span_ns =
            u128::from(transfer_latency_ns).saturating_mul(self.pace.segment_latencies.into());
        let bytes = span_ns.saturating_mul(bytes_per_s.into()) / 1_000_000_000;
        let objects = bytes.checked_div(chunk_bytes.into()).unwrap_or(0);
        u64::try_from(objects).unwrap_or(u64::MAX).max(self.least_segment)
    }

    /// Offloads tensors while the download link would be idle.
    fn download(&mut self, now_ns: u64, until_ns: u64) -> Result<(), Stuck> {
        let segment = self.segment(self.machine().d2h_bytes_per_s);
        while self.free_ns[Stream::Download] < until_ns && !self.copying.is_full() {
            let Some((key, id)) = self.downloads.pop() else { return Ok(()) };
            let tensor = TensorId(id);
            let from = self.objects(tensor).saturating_sub(self.wanted(tensor));
            let to = self.builder.first_copied(tensor);
            if from >= to || !self.builder.is_needed(tensor) {
                continue;
            }
            let left = to.saturating_sub(from);
            let some = if left > segment.saturating_mul(2) { segment } else { left };
            self.copy(tensor, to.saturating_sub(some), now_ns)?;
            if some < left {
                self.downloads.push(key, id);
            }
        }
        Ok(())
    }

    /// The objects of a tensor that the host needs at the end of its gap or later.
    fn wanted(&self, tensor: TensorId) -> u64 {
        let leaving = self.objects(tensor).saturating_sub(self.kept[tensor.index()]);
        self.wanted[tensor.index()].max(leaving)
    }

    /// Offloads a tensor from an object on; returns the end time.
    fn copy(&mut self, tensor: TensorId, from: u64, now_ns: u64) -> Result<u64, Stuck> {
        let to = self.builder.first_copied(tensor);
        let duration_ns = self.transfer_ns(Direction::DeviceToHost, tensor, from, to);
        self.builder.offload_from(tensor, from);
        let free_ns = &mut self.free_ns[Stream::Download];
        *free_ns = now_ns.max(*free_ns).saturating_add(duration_ns);
        self.copied_ns[tensor.index()] = *free_ns;
        let end_ns = *free_ns;
        // The caller sees a full queue, or evicts at once what does not enter it.
        let _ = self.copying.push_back(Copying { end_ns, tensor, from });
        Ok(end_ns)
    }

    /// Prefetches the operands that an op still misses.
    fn fetch(&mut self, op: LaunchId, now_ns: u64) -> Result<(), Stuck> {
        for &tensor in self.sequence().operands_of(op) {
            self.kept[tensor.index()] = u64::MAX;
        }
        for &tensor in self.sequence().reads(op) {
            let made_ns = self.made_ns(tensor);
            if made_ns > now_ns && !self.builder.is_resident(tensor) {
                // While the host writes it, the link need not wait.
                self.finish_copies(made_ns.saturating_sub(1))?;
                self.upload(op, now_ns, made_ns)?;
            }
            let missing = self.builder.missing(tensor);
            if missing > 0 {
                self.free(op, self.builder.pool(tensor), missing)?;
                self.prefetch(tensor, missing, now_ns.max(self.forced_ns))?;
            }
        }
        Ok(())
    }

    /// Frees memory of a pool by force: evicts tensors in flight to the host, then tensors that
    /// wait to be offloaded, and at last any tensor that the op does not use.
    fn free(&mut self, op: LaunchId, pool: usize, objects: u64) -> Result<(), Stuck> {
        while self.builder.free_objects(pool) < objects {
            if let Some(Copying { end_ns, tensor, from }) = self.copying.pop_front() {
                let before = self.builder.free_objects(pool);
                self.evict(tensor, from)?;
                if self.builder.free_objects(pool) > before {
                    self.forced_ns = self.forced_ns.max(end_ns);
                }
            } else if let Some((_, id)) = self.downloads.pop() {
                let tensor = TensorId(id);
                let kept = self.kept[tensor.index()];
                if kept < self.builder.held(tensor) && self.builder.is_needed(tensor) {
                    self.copy(tensor, kept, self.forced_ns)?;
                }
            } else {
                self.evict_any(op, pool)?;
            }
        }
        Ok(())
    }

    /// Evicts the tensor of a pool whose next use is last, among the tensors that an op does not
    /// use.
    fn evict_any(&mut self, op: LaunchId, pool: usize) -> Result<(), Stuck> {
        let (victim, next) = self.victim(op, pool).ok_or(Stuck::NoMemory)?;
        self.gap_end[victim.index()] = next;
        self.kept[victim.index()] = 0;
        let end_ns = self.copy(victim, 0, self.forced_ns)?;
        self.forced_ns = self.forced_ns.max(end_ns);
        self.evict(victim, 0)
    }

    /// Begins the gaps after an op: evicts, or queues offloads and prefetches.
    fn begin_gaps(&mut self, op: LaunchId) -> Result<(), Stuck> {
        let sequence = self.sequence();
        let first_write = sequence.first_write(op);
        let now = self.position(op, false);
        for (slot, &tensor) in sequence.slots(op).zip(sequence.operands_of(op)) {
            let index = tensor.index();
            let (next, later) = self.gaps.next_use(slot);
            if self.builder.memory.in_arena(tensor) || (next == op && !later) {
                continue;
            }
            self.gap_end[index] = self.position(next, later);
            if !self.builder.is_needed(tensor) {
                let comes_anew = sequence.tensor(tensor).kind == Kind::Input
                    && later
                    && !sequence.is_made_by_host(tensor);
                if comes_anew && self.builder.reads_first(tensor) {
                    self.uploads.push(self.gap_end[index], tensor.0);
                }
                continue;
            }
            if slot >= first_write {
                self.wanted[index] = self.gaps.offloaded(slot);
            }
            let moved = self.gaps.moved(slot);
            if moved > 0 {
                self.kept[index] = self.objects(tensor).saturating_sub(moved);
            }
            if moved > 0 && self.builder.copied(tensor) >= moved {
                // Copies that have started but not ended do not count yet.
                if self.copied_ns[index] <= self.free_ns[Stream::Compute] {
                    self.evict(tensor, self.kept[index])?;
                }
            } else if moved > 0 {
                self.downloads.push(now, tensor.0);
            } else if slot >= first_write && self.wanted[index] > 0 {
                self.downloads.push(now.saturating_add(sequence.len() as u64), tensor.0);
            }
        }
        Ok(())
    }
}
