//! Which queue serves what.

use ash::vk::QueueFlags;

/// A queue: its family, and its index there.
pub(crate) type Place = (u32, u32);

/// The queues of the three streams, in their order, and the one that binds pages. Several may
/// be the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    pub(crate) streams: [Place; 3],
    pub(crate) binding: Place,
}

/// Chooses among families, each with what it can do and how many queues it has: copies on
/// queues that do nothing else where there are such, each stream on a queue of its own where
/// there are enough. None where nothing computes or nothing binds pages.
pub(crate) fn choose(families: &[(QueueFlags, u32)]) -> Option<Places> {
    let with = |flags: QueueFlags| {
        let families = (0..).zip(families).filter(move |(_, family)| family.0.contains(flags));
        families.map(|(index, &(_, count))| (index, count))
    };
    let (compute, count) = with(QueueFlags::COMPUTE).next()?;
    let only_copies = |&(index, _): &(u32, u32)| {
        let others = QueueFlags::TRANSFER | QueueFlags::SPARSE_BINDING;
        others.contains(families[index as usize].0)
    };
    let queue = |family, count: u32, index: u32| (family, index.min(count.saturating_sub(1)));
    let [upload, download] = match with(QueueFlags::TRANSFER).find(only_copies) {
        Some((family, count)) => [queue(family, count, 0), queue(family, count, 1)],
        None => [queue(compute, count, 1), queue(compute, count, 2)],
    };
    let streams = [(compute, 0), upload, download];
    let binding = || with(QueueFlags::SPARSE_BINDING);
    let mut queues =
        binding().flat_map(|(family, count)| (0..count).map(move |index| (family, index)));
    let unused = queues.find(|queue| !streams.contains(queue));
    let binding = unused.or_else(|| binding().next().map(|(family, _)| (family, 0)))?;
    Some(Places { streams, binding })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: QueueFlags = QueueFlags::from_raw(
        QueueFlags::GRAPHICS.as_raw() | QueueFlags::COMPUTE.as_raw() | COPY.as_raw(),
    );
    const COPY: QueueFlags =
        QueueFlags::from_raw(QueueFlags::TRANSFER.as_raw() | QueueFlags::SPARSE_BINDING.as_raw());

    fn chosen(families: &[(QueueFlags, u32)]) -> ([Place; 3], Place) {
        let Places { streams, binding } = choose(families).unwrap();
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

    #[test]
    fn there_must_be_a_queue_that_binds_and_one_that_computes() {
        assert_eq!(choose(&[(QueueFlags::COMPUTE | QueueFlags::TRANSFER, 1)]), None);
        assert_eq!(choose(&[(COPY, 1)]), None);
    }
}
