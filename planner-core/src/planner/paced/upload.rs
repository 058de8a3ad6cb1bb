//! Prefetches ahead of need, as early as memory allows.

#![expect(clippy::indexing_slicing, reason = "positions are those of ops in an iteration")]

use super::Paced;
use crate::graph::{Kind, TensorId};
use crate::machine::Direction;
use crate::planner::builder::Builder;
use crate::planner::heap::Heap;
use crate::planner::list::Stuck;
use crate::planner::memory::CHUNKS;
use crate::planner::positions::{self, Ranges};
use crate::schedule::Stream;
use crate::sequence::LaunchId;

/// An op that starts within this many latencies is near. A balance: with fewer, a segment in flight
/// delays it; with more, half-empty chunks come back too early.
const NEAR_LATENCIES: u64 = 300;

/// A tensor to prefetch.
#[derive(Clone, Copy, Debug)]
struct Due {
    tensor: TensorId,
    /// The op that needs it, counted over all iterations.
    end: u64,
}

impl Paced<'_, '_, '_> {
    /// Prefetches ahead of need while the upload link would be idle and memory allows.
    pub(super) fn upload(&mut self, op: LaunchId, now_ns: u64, until_ns: u64) -> Result<(), Stuck> {
        while self.free_ns[Stream::Upload] < until_ns {
            let tail = Self::next(&mut self.tails, &self.builder, self.gap_end);
            let tail_is_due = tail.is_some_and(|tail| self.is_near(op, tail.end));
            let found = match Self::next(&mut self.uploads, &self.builder, self.gap_end) {
                Some(body) if !tail_is_due => self.upload_body(op, now_ns, body, tail.is_some())?,
                _ => match tail {
                    Some(tail) => self.upload_some(op, now_ns, tail, 1, 1)?,
                    None => return Ok(()),
                },
            };
            if !found {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The first entry of a queue that is still to be prefetched.
    fn next(queue: &mut Heap<'_>, builder: &Builder<'_>, gap_end: &[u64]) -> Option<Due> {
        loop {
            let (end, id) = queue.top()?;
            let tensor = TensorId(id);
            let is_missing = builder.missing(tensor) > 0 && builder.has_rest_on_host(tensor);
            if is_missing && end == gap_end[tensor.index()] {
                return Some(Due { tensor, end });
            }
            queue.pop();
        }
    }

    /// The op at a position, counted over all iterations.
    fn op_at(&self, position: u64) -> usize {
        position.checked_rem(self.sequence().len() as u64).unwrap_or(0) as usize
    }

    /// Whether an op ahead comes so soon that its transfers must not wait.
    fn is_near(&self, op: LaunchId, end: u64) -> bool {
        let end = self.op_at(end);
        // Assumes the same distance as in the last iteration.
        let ahead_ns = self.started_ns[end].saturating_sub(self.started_ns[op.index()]);
        ahead_ns <= NEAR_LATENCIES.saturating_mul(self.machine().transfer_latency_ns)
    }

    /// Prefetches a tensor, except its half-empty chunk if that is to come just in time. Then it
    /// prefetches in segments, so that such chunks need not wait long.
    fn upload_body(
        &mut self,
        op: LaunchId,
        now_ns: u64,
        due: Due,
        in_segments: bool,
    ) -> Result<bool, Stuck> {
        let Due { tensor, end } = due;
        let data = self.sequence().tensor(tensor);
        let missing = self.builder.missing(tensor);
        if data.kind == Kind::Input && !self.sequence().is_made_by_host(tensor) {
            return self.upload_some(op, now_ns, due, missing, missing);
        }
        let segment = self.segment(self.machine().h2d_bytes_per_s);
        let is_half_empty = self.builder.pool(tensor) == CHUNKS
            && !data.bytes.is_multiple_of(self.machine().chunk_bytes);
        let has_tail = is_half_empty && self.pace.tails_in_time;
        if has_tail && missing == 1 {
            self.uploads.pop();
            self.tails.push(end, tensor.0);
            return Ok(true);
        }
        let body = missing.saturating_sub(has_tail.into());
        let most = if in_segments { body.min(segment) } else { body };
        let most = self.before_urgent(tensor, now_ns, most);
        self.upload_some(op, now_ns, due, body.min(segment).min(most), most)
    }

    /// The number of objects, rounded to the nearest, that arrive before the host has written a
    /// value for which the device waits, so that this value need not wait for the link.
    fn before_urgent(&self, tensor: TensorId, now_ns: u64, objects: u64) -> u64 {
        let start_ns = self.free_ns[Stream::Upload].max(now_ns);
        let Some(left_ns) = self.urgent_ns.checked_sub(start_ns).filter(|&left_ns| left_ns > 0)
        else {
            return objects;
        };
        let held = self.builder.held(tensor);
        let time_ns = |count| {
            let to = held.saturating_add(count);
            self.transfer_ns(Direction::HostToDevice, tensor, held, to)
        };
        let (one_ns, all_ns) = (time_ns(1), time_ns(objects));
        if all_ns <= left_ns {
            return objects;
        }
        let others_ns = all_ns.saturating_sub(one_ns);
        let each_ns = others_ns.checked_div(objects.saturating_sub(1)).unwrap_or(0);
        let left_ns = left_ns.saturating_add(each_ns / 2);
        let Some(left_ns) = left_ns.checked_sub(one_ns) else { return 0 };
        left_ns.checked_div(each_ns).unwrap_or(left_ns).saturating_add(1).min(objects)
    }

    /// Prefetches as many objects as memory allows, within limits.
    fn upload_some(
        &mut self,
        op: LaunchId,
        now_ns: u64,
        Due { tensor, end }: Due,
        least: u64,
        most: u64,
    ) -> Result<bool, Stuck> {
        let spare = self.spare(op, end, self.builder.pool(tensor));
        if spare < least || most == 0 {
            return Ok(false);
        }
        let some = most.min(spare);
        self.prefetch(tensor, some, now_ns)?;
        for (from, to) in self.ahead(op, end, self.builder.pool(tensor)) {
            self.slack.subtract(from, to, some);
        }
        Ok(true)
    }

    /// The ops of a pool from `op` up to the op that ends a gap.
    fn ahead(&self, op: LaunchId, end: u64, pool: usize) -> Ranges {
        let ops = self.sequence().len();
        let (from, end) = (op.index(), self.op_at(end));
        let ranges = if end > from { [(from, end), (0, 0)] } else { [(from, ops), (0, end)] };
        positions::ranges(pool, ranges, ops)
    }

    /// The number of objects of a pool that may be taken from here to the end of a gap.
    fn spare(&self, op: LaunchId, end: u64, pool: usize) -> u64 {
        let taken = self.builder.launch_objects(op, pool);
        let now = self.builder.free_objects(pool).saturating_sub(taken);
        let ahead = self.ahead(op, end, pool).map(|(from, to)| self.slack.min(from, to));
        now.min(u64::try_from(ahead[0].min(ahead[1])).unwrap_or(0))
    }

    pub(super) fn prefetch(
        &mut self,
        tensor: TensorId,
        objects: u64,
        now_ns: u64,
    ) -> Result<(), Stuck> {
        let made_ns = self.made_ns(tensor);
        let held = self.builder.held(tensor);
        let to = held.saturating_add(objects);
        let duration_ns = self.transfer_ns(Direction::HostToDevice, tensor, held, to);
        self.builder.prefetch_to(tensor, to)?;
        self.enter_victim(tensor);
        let free_ns = &mut self.free_ns[Stream::Upload];
        *free_ns = now_ns.max(made_ns).max(*free_ns).saturating_add(duration_ns);
        self.arrived_ns[tensor.index()] = *free_ns;
        Ok(())
    }
}
