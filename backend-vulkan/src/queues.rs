//! Chooses a queue for each stream.

use ash::vk::QueueFlags;
use std::cmp::Reverse;

/// A queue: its family, and its index there.
pub type QueueIndex = (u32, u32);

/// The queues that serve a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queues {
    /// The queues of the compute, upload and download streams. Streams on the same queue do not
    /// overlap.
    pub streams: [QueueIndex; 3],
    /// The queue that binds pages. It may also serve a stream.
    pub binding: QueueIndex,
}

impl Queues {
    /// The number of different queues.
    #[must_use]
    pub fn count(&self) -> usize {
        let mut queues = [&self.streams[..], &[self.binding]].concat();
        queues.sort_unstable();
        queues.dedup();
        queues.len()
    }
}

const STREAMS: u32 = 3;

/// Chooses among families, each with its abilities and its number of queues. Each stream gets its
/// own queue if any combination allows it. Otherwise compute is the last to share its queue. Copies
/// prefer families that only copy, and then a family other than that of compute. `None` if no
/// family computes or no family binds pages.
pub(crate) fn choose(families: &[(QueueFlags, u32)]) -> Option<Queues> {
    let has = |(family, _): QueueIndex, flags| families[family as usize].0.contains(flags);
    let only_copies = |(family, _): QueueIndex| {
        let flags = families[family as usize].0;
        let others = QueueFlags::TRANSFER | QueueFlags::SPARSE_BINDING | QueueFlags::PROTECTED;
        flags.contains(QueueFlags::TRANSFER) && others.contains(flags)
    };
    // A family that computes or draws can also copy, even if it does not say so.
    let copies = |&queue: &QueueIndex| {
        let either = QueueFlags::COMPUTE | QueueFlags::GRAPHICS;
        only_copies(queue) || families[queue.0 as usize].0.intersects(either)
    };
    let queues = (0..).zip(families).flat_map(|(family, &(_, count))| {
        (0..count.min(STREAMS + 1)).map(move |index| (family, index))
    });
    let queues: Vec<QueueIndex> = queues.collect();
    let of_copies: Vec<_> = queues.iter().copied().filter(copies).collect();
    let merit = |&[compute, upload, download]: &[QueueIndex; 3]| {
        let both = [upload, download];
        let count = |is: &dyn Fn(QueueIndex) -> bool| both.iter().filter(|&&copy| is(copy)).count();
        let alone = count(&|copy| copy != compute);
        let distinct = (alone == 2 && upload != download, alone);
        (distinct, count(&only_copies), count(&|copy| copy.0 != compute.0))
    };
    let computing = queues.iter().copied().filter(|&queue| has(queue, QueueFlags::COMPUTE));
    let combinations = computing.flat_map(|compute| {
        let pairs = of_copies.iter().flat_map(|&up| of_copies.iter().map(move |&down| (up, down)));
        pairs.map(move |(upload, download)| [compute, upload, download])
    });
    // The first of the best combinations.
    let streams = combinations.min_by_key(|streams| Reverse(merit(streams)))?;
    let mut binding =
        queues.iter().copied().filter(|&queue| has(queue, QueueFlags::SPARSE_BINDING));
    let unused = binding.clone().find(|queue| !streams.contains(queue));
    Some(Queues { streams, binding: unused.or_else(|| binding.next())? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: QueueFlags = QueueFlags::from_raw(
        QueueFlags::GRAPHICS.as_raw() | QueueFlags::COMPUTE.as_raw() | COPY.as_raw(),
    );
    const COPY: QueueFlags =
        QueueFlags::from_raw(QueueFlags::TRANSFER.as_raw() | QueueFlags::SPARSE_BINDING.as_raw());

    fn chosen(families: &[(QueueFlags, u32)]) -> ([QueueIndex; 3], QueueIndex) {
        let Queues { streams, binding } = choose(families).unwrap();
        (streams, binding)
    }

    #[test]
    fn one_queue_serves_all() {
        assert_eq!(chosen(&[(ALL, 1)]), ([(0, 0); 3], (0, 0)));
    }

    #[test]
    fn copies_have_their_own_family_where_there_is_one() {
        let families = [(ALL, 16), (COPY, 2), (QueueFlags::COMPUTE | COPY, 8)];
        assert_eq!(chosen(&families), ([(0, 0), (1, 0), (1, 1)], (0, 1)));
        let decoder = (COPY | QueueFlags::VIDEO_DECODE_KHR, 1);
        assert_eq!(chosen(&[(ALL, 3), decoder]), ([(0, 0), (0, 1), (0, 2)], (1, 0)));
    }

    #[test]
    fn pages_are_bound_on_another_family_where_only_that_can() {
        let graphics = QueueFlags::GRAPHICS | QueueFlags::COMPUTE | QueueFlags::TRANSFER;
        let families = [(graphics, 1), (QueueFlags::SPARSE_BINDING, 1)];
        assert_eq!(chosen(&families), ([(0, 0); 3], (1, 0)));
    }

    const DRAW: QueueFlags = QueueFlags::from_raw(
        QueueFlags::GRAPHICS.as_raw()
            | QueueFlags::COMPUTE.as_raw()
            | QueueFlags::TRANSFER.as_raw(),
    );
    const ASYNC: QueueFlags =
        QueueFlags::from_raw(QueueFlags::COMPUTE.as_raw() | QueueFlags::TRANSFER.as_raw());
    const BIND: (QueueFlags, u32) = (QueueFlags::SPARSE_BINDING, 1);

    /// The families of RADV without its transfer queue.
    #[test]
    fn copies_use_asynchronous_compute() {
        let chosen = |count| chosen(&[(DRAW, 1), (ASYNC, count), BIND]);
        assert_eq!(chosen(4), ([(0, 0), (1, 0), (1, 1)], (2, 0)));
        assert_eq!(chosen(2), ([(0, 0), (1, 0), (1, 1)], (2, 0)));
        // Compute keeps its own queue.
        assert_eq!(chosen(1), ([(0, 0), (1, 0), (1, 0)], (2, 0)));
    }

    /// The families of RADV with its transfer queue.
    #[test]
    fn one_copy_queue_and_asynchronous_compute_serve_both_directions() {
        let chosen = |count| chosen(&[(DRAW, 1), (ASYNC, 4), (QueueFlags::TRANSFER, count), BIND]);
        assert_eq!(chosen(2), ([(0, 0), (2, 0), (2, 1)], (3, 0)));
        assert_eq!(chosen(1), ([(0, 0), (1, 0), (2, 0)], (3, 0)));
    }

    #[test]
    fn a_family_that_computes_copies_without_saying_so() {
        let families = [(QueueFlags::GRAPHICS | QueueFlags::COMPUTE, 3), BIND];
        assert_eq!(chosen(&families), ([(0, 0), (0, 1), (0, 2)], (1, 0)));
    }

    #[test]
    fn queues_are_counted_once() {
        let queues = Queues { streams: [(0, 0), (1, 0), (0, 0)], binding: (1, 0) };
        assert_eq!(queues.count(), 2);
    }

    #[test]
    fn there_must_be_a_queue_that_binds_and_one_that_computes() {
        assert_eq!(choose(&[(QueueFlags::COMPUTE | QueueFlags::TRANSFER, 1)]), None);
        assert_eq!(choose(&[(COPY, 1)]), None);
    }
}
