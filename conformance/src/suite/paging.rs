//! [`Paging`]: chunks, ranges, and the mappings of chunks in ranges.

use super::Rig;
use super::failure::{Outcome, ensure};
use super::rig::{A, B, C, COPY};
use integrity::Backend;
use planner_core::Stream;
use planner_core::backend::{BackendError, Chunks, DeviceAddress, ErrorKind, Paging, Streams};

/// Chunks have the size that the machine names, which is not 0.
pub fn chunks_have_the_size_of_the_machine<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    let (device, machine) = (rig.chunk_bytes(), rig.machine().chunk_bytes);
    ensure!(device > 0 && device == machine, "chunks of {device} bytes on a machine of {machine}");
    Ok(())
}

/// If a device has too little memory for some chunks, it refuses them as
/// [`ErrorKind::OutOfDeviceMemory`]. It creates none of them, and can create fewer afterwards.
pub fn too_many_chunks_are_out_of_memory<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    for count in [u64::MAX, u64::MAX / rig.chunk_bytes()] {
        match rig.device().create(count) {
            Ok(()) => ensure!(false, "the device has {count} chunks"),
            Err(error) => {
                let kind = error.kind();
                ensure!(kind == ErrorKind::OutOfDeviceMemory, "{error} is of kind {kind:?}");
            }
        }
    }
    rig.set_up()?;
    rig.works()
}

/// Ranges do not overlap, and none begins at 0.
pub fn ranges_lie_apart<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let chunk = rig.chunk_bytes();
    let mut ranges = Vec::new();
    for chunks in [1, 3, 1, 2, 7] {
        let at = rig.device().reserve(chunks)?;
        ranges.push(at.0..at.0 + chunks * chunk);
    }
    ranges.sort_by_key(|range| range.start);
    ensure!(ranges[0].start > 0, "a range begins at 0, the address that stands for no operand");
    for pair in ranges.windows(2) {
        ensure!(pair[0].end <= pair[1].start, "{:x?} and {:x?} overlap", pair[0], pair[1]);
    }
    Ok(())
}

/// A plan may have ten thousand ranges and more. They do not overlap, and the last of them works.
pub fn ten_thousand_ranges<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    const RANGES: usize = 10_000;
    rig.set_up()?;
    let bytes = 3 * rig.chunk_bytes();
    let mut starts = Vec::new();
    for _ in 0..RANGES {
        starts.push(rig.device().reserve(3)?.0);
    }
    let last = DeviceAddress(starts[RANGES - 1]);
    starts.sort_unstable();
    for pair in starts.windows(2) {
        ensure!(pair[0] + bytes <= pair[1], "ranges at {:#x} and {:#x} overlap", pair[0], pair[1]);
    }
    rig.device().map(last, Chunks { first: 0, count: 3 })?;
    let sent = rig.fill(rig.slot(A), 1)?;
    rig.put(rig.slot(A), last)?;
    rig.get(last, rig.slot(B))?;
    rig.expect(rig.slot(B), &sent, "the bytes in the last of many ranges")
}

/// A request for more addresses than exist is an error.
pub fn too_long_ranges_are_refused<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    for chunks in [u64::MAX, u64::MAX / rig.chunk_bytes()] {
        ensure!(
            rig.device().reserve(chunks).is_err(),
            "the device reserves {chunks} chunks of addresses"
        );
    }
    rig.works()
}

/// Copies and launches can read and write mapped ranges.
pub fn what_is_mapped_can_be_read_and_written<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let (from, to) = (rig.scattered(3)?, rig.scattered(3)?);
    let sent = rig.fill(rig.slot(A), 1)?;
    rig.put(rig.slot(A), from)?;
    rig.launch(COPY, &[from], &[to])?;
    rig.finish(Stream::Compute)?;
    rig.get(to, rig.slot(B))?;
    rig.expect(rig.slot(B), &rig.computed(COPY, &[&sent]), "the bytes computed")
}

/// A range of several chunks holds its chunks in order.
pub fn chunks_are_mapped_in_order<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let chunk = rig.chunk_bytes();
    let at = rig.mapped(Chunks { first: 4, count: 2 })?;
    let sent = rig.fill(rig.host(A, 0..2 * chunk), 1)?;
    rig.put(rig.host(A, 0..2 * chunk), at)?;
    for (first, half) in [(4, 0..chunk), (5, chunk..2 * chunk)] {
        let one = rig.mapped(Chunks { first, count: 1 })?;
        rig.get(one, rig.host(B, half))?;
    }
    rig.expect(rig.host(B, 0..2 * chunk), &sent, "two chunks, one by one")
}

/// A chunk keeps the bytes that were last written to it, also after it is unmapped and mapped
/// elsewhere.
pub fn chunks_keep_what_is_written<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let chunk = rig.chunk_bytes();
    let sent = rig.fill(rig.host(A, 0..2 * chunk), 1)?;
    let at = rig.mapped(Chunks { first: 4, count: 2 })?;
    rig.put(rig.host(A, 0..2 * chunk), at)?;
    rig.device().unmap(at, 2)?;
    let second = rig.mapped(Chunks { first: 5, count: 1 })?;
    let first = rig.mapped(Chunks { first: 4, count: 1 })?;
    rig.get(first, rig.host(B, 0..chunk))?;
    rig.get(second, rig.host(B, chunk..2 * chunk))?;
    rig.expect(rig.host(B, 0..2 * chunk), &sent, "two chunks that were mapped anew")
}

/// After a range is mapped again, copies and launches see its new chunks.
pub fn remapping_shows_other_chunks<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let (at, to) = (rig.mapped(Chunks { first: 8, count: 3 })?, rig.range(3)?);
    rig.fill(rig.slot(A), 1)?;
    rig.put(rig.slot(A), at)?;
    rig.launch(COPY, &[at], &[to])?;
    rig.finish(Stream::Compute)?;
    rig.device().unmap(at, 3)?;
    rig.device().map(at, Chunks { first: 11, count: 3 })?;
    let elsewhere = rig.mapped(Chunks { first: 11, count: 3 })?;
    let sent = rig.fill(rig.slot(B), 2)?;
    rig.put(rig.slot(B), elsewhere)?;
    rig.launch(COPY, &[at], &[to])?;
    rig.finish(Stream::Compute)?;
    rig.get(at, rig.slot(C))?;
    rig.expect(rig.slot(C), &sent, "a range that was mapped anew")?;
    rig.get(to, rig.slot(C))?;
    rig.expect(rig.slot(C), &rig.computed(COPY, &[&sent]), "the bytes computed from it")
}

/// One chunk may be mapped at several addresses. If an upload writes through one address, a
/// download reads the same bytes through any other, once a point orders the two.
pub fn what_is_mapped_twice_is_one_chunk<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let chunk = rig.chunk_bytes();
    let one = rig.mapped(Chunks { first: 4, count: 2 })?;
    let other = rig.mapped(Chunks { first: 5, count: 1 })?;
    let mut sent = rig.fill(rig.host(A, 0..2 * chunk), 1)?;
    rig.put(rig.host(A, 0..2 * chunk), one)?;
    let anew = rig.fill(rig.host(B, 0..chunk), 2)?;
    rig.put(rig.host(B, 0..chunk), other)?;
    sent[chunk as usize..].copy_from_slice(&anew);
    rig.get(one, rig.host(A, 0..2 * chunk))?;
    let what = "a chunk that was written under its other address";
    rig.expect(rig.host(A, 0..2 * chunk), &sent, what)
}

/// The same for launches. If one launch writes through one address, the next reads the same bytes
/// through another, on one stream or after a wait.
pub fn launches_see_through_aliases<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let [one, other] = [(); 2].map(|()| Chunks { first: 8, count: 3 });
    let (one, other) = (rig.mapped(one)?, rig.mapped(other)?);
    let (from, to) = (rig.range(3)?, rig.range(3)?);
    let sent = rig.fill(rig.slot(A), 1)?;
    rig.keep_busy(Stream::Upload)?;
    rig.send(A, from)?;
    rig.order(Stream::Upload, Stream::Compute)?;
    rig.launch(COPY, &[from], &[one])?;
    rig.signal(Stream::Compute)?;
    rig.launch(COPY, &[other], &[to])?;
    rig.order(Stream::Compute, Stream::Download)?;
    rig.fetch(other, B)?;
    rig.get(to, rig.slot(C))?;
    let written = rig.computed(COPY, &[&sent]);
    rig.expect(rig.slot(B), &written, "the bytes fetched through an alias")?;
    rig.expect(rig.slot(C), &rig.computed(COPY, &[&written]), "the bytes read through an alias")
}

/// One chunk lies in eight ranges. After one range is unmapped, the others stay mapped.
pub fn aliases_are_unmapped_one_by_one<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let chunk = rig.chunk_bytes();
    let mut aliases = Vec::new();
    for _ in 0..8 {
        aliases.push(rig.mapped(Chunks { first: 4, count: 1 })?);
    }
    let mut seed = 1;
    while let [gone, others @ ..] = &aliases[..] {
        let sent = rig.fill(rig.host(A, 0..chunk), seed)?;
        rig.put(rig.host(A, 0..chunk), *gone)?;
        rig.device().unmap(*gone, 1)?;
        for &other in others {
            rig.get(other, rig.host(B, 0..chunk))?;
            rig.expect(rig.host(B, 0..chunk), &sent, "an alias of a range that was unmapped")?;
        }
        aliases.remove(0);
        seed += 1;
    }
    Ok(())
}

/// One call unmaps several adjacent mappings, and their addresses can be mapped again.
pub fn neighbours_are_unmapped_together<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let at = rig.scattered(4)?;
    rig.device().unmap(at, 4)?;
    ensure!(rig.device().unmap(at, 4).is_err(), "the device unmaps the same range twice");
    rig.device().map(at, Chunks { first: 8, count: 4 })?;
    let sent = rig.fill(rig.slot(A), 1)?;
    rig.put(rig.slot(A), at)?;
    rig.get(at, rig.slot(B))?;
    rig.expect(rig.slot(B), &sent, "a range that was unmapped and mapped again")
}

/// It is an error to map outside of a range, beyond its end, or at an address that is not a whole
/// number of chunks from its start.
pub fn mapping_outside_of_ranges_is_refused<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let chunk = rig.chunk_bytes();
    let at = rig.device().reserve(3)?;
    let mut refuse = |offset: u64, count, what: &str| {
        let at = DeviceAddress(at.0.wrapping_add(offset));
        let mapped = rig.device().map(at, Chunks { first: 0, count });
        ensure!(mapped.is_err(), "the device maps chunks {what}");
        Ok(())
    };
    refuse(1, 1, "a byte after a chunk's start")?;
    refuse(chunk / 2, 1, "in the middle of a chunk")?;
    refuse(0, 4, "beyond the end of a range that they fill")?;
    refuse(2 * chunk, 2, "over the end of a range")?;
    refuse(0, 1 << 40, "far over the end of a range")?;
    refuse(at.0.wrapping_neg(), 1, "at address 0")?;
    refuse((u64::MAX - chunk + 1).wrapping_sub(at.0), 1, "at the end of all addresses")?;
    rig.works()
}

/// Chunks that were not created cannot be mapped.
pub fn chunks_that_do_not_exist_are_refused<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let at = rig.device().reserve(2)?;
    let created = rig.created();
    for first in [created, created - 1, u64::MAX - 1, u64::MAX] {
        let mapped = rig.device().map(at, Chunks { first, count: 2 });
        ensure!(mapped.is_err(), "the device maps chunk {first} and the next, but has {created}");
    }
    rig.works()
}

/// A range that overlaps a mapping cannot be mapped, and the mapping stays.
pub fn mapping_twice_is_refused<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let chunk = rig.chunk_bytes();
    let at = rig.device().reserve(4)?;
    rig.device().map(DeviceAddress(at.0 + chunk), Chunks { first: 4, count: 2 })?;
    let sent = rig.fill(rig.host(A, 0..2 * chunk), 1)?;
    rig.put(rig.host(A, 0..2 * chunk), DeviceAddress(at.0 + chunk))?;
    for (first, count) in [(0, 2), (0, 4), (1, 1), (1, 2), (2, 1), (2, 2)] {
        let address = DeviceAddress(at.0 + first * chunk);
        let mapped = rig.device().map(address, Chunks { first: 8, count });
        ensure!(
            mapped.is_err(),
            "the device maps {count} chunks at {first}, but 1 and 2 are mapped"
        );
    }
    rig.get(DeviceAddress(at.0 + chunk), rig.host(B, 0..2 * chunk))?;
    rig.expect(rig.host(B, 0..2 * chunk), &sent, "a mapping over which another was refused")?;
    for free in [0, 3] {
        rig.device().map(DeviceAddress(at.0 + free * chunk), Chunks { first: 8, count: 1 })?;
    }
    rig.works()
}

/// A range that is not completely mapped cannot be unmapped.
pub fn unmapping_what_is_not_mapped_is_refused<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let half = rig.half_mapped()?;
    ensure!(rig.device().unmap(half, 2).is_err(), "the device unmaps a partly mapped range");
    let second = DeviceAddress(half.0 + rig.chunk_bytes());
    ensure!(
        rig.device().unmap(second, 1).is_err(),
        "the device unmaps a range that was never mapped"
    );
    ensure!(rig.device().unmap(DeviceAddress(0), 1).is_err(), "the device unmaps address 0");
    rig.device().unmap(half, 1)?;
    ensure!(rig.device().unmap(half, 1).is_err(), "the device unmaps the same range twice");
    rig.works()
}

/// A mapping is unmapped as a whole. To unmap a part of it is refused, and the mapping stays.
pub fn unmapping_a_part_is_refused<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let chunk = rig.chunk_bytes();
    let at = rig.mapped(Chunks { first: 4, count: 3 })?;
    let sent = rig.fill(rig.slot(A), 1)?;
    rig.put(rig.slot(A), at)?;
    for (first, count) in [(0, 1), (0, 2), (1, 1), (1, 2), (2, 1)] {
        let part = DeviceAddress(at.0 + first * chunk);
        ensure!(rig.device().unmap(part, count).is_err(), "the device unmaps {count} of 3 chunks");
    }
    rig.get(at, rig.slot(B))?;
    rig.expect(rig.slot(B), &sent, "a mapping whose parts cannot be unmapped")?;
    Ok(rig.device().unmap(at, 3)?)
}

/// Mapping and unmapping take effect at once, while streams work on other ranges.
pub fn mapping_does_not_disturb_work<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let (from, to) = (rig.range(3)?, rig.range(3)?);
    let sent = rig.fill(rig.slot(A), 1)?;
    rig.put(rig.slot(A), from)?;
    rig.keep_busy(Stream::Compute)?;
    rig.launch(COPY, &[from], &[to])?;
    let point = rig.signal(Stream::Compute)?;
    for round in 0..8 {
        let at = rig.mapped(Chunks { first: 16, count: 2 })?;
        rig.put(rig.host(A, 0..4 + round), at)?;
        rig.device().unmap(at, 2)?;
    }
    rig.device().block_until(point)?;
    rig.get(to, rig.slot(B))?;
    rig.expect(rig.slot(B), &rig.computed(COPY, &[&sent]), "the bytes computed meanwhile")
}
