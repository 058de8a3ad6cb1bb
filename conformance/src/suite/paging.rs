//! [`Paging`]: chunks, ranges, and what is mapped where.

use super::Rig;
use super::failure::{Outcome, ensure};
use super::rig::{A, B, C, COPY};
use integrity::Backend;
use planner_core::Stream;
use planner_core::backend::{BackendError, Chunks, DeviceAddress, ErrorKind, Paging, Streams};

/// Chunks are as large as the machine says, and more than nothing.
pub fn chunks_have_the_size_of_the_machine<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    let (device, machine) = (rig.chunk_bytes(), rig.machine().chunk_bytes);
    ensure!(device > 0 && device == machine, "chunks of {device} bytes on a machine of {machine}");
    Ok(())
}

/// More chunks than the device has memory are refused as [`ErrorKind::OutOfDeviceMemory`]; then
/// none has been created, and fewer can be.
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
    ensure!(ranges[0].start > 0, "a range begins at 0, which stands for an operand to leave alone");
    for pair in ranges.windows(2) {
        ensure!(pair[0].end <= pair[1].start, "{:x?} and {:x?} overlap", pair[0], pair[1]);
    }
    Ok(())
}

/// Plans have ten thousand ranges, and more: all of them lie apart, and the last can be used.
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
    rig.expect(rig.slot(B), &sent, "what was put into the last of many ranges")
}

/// More addresses than there are is an error.
pub fn too_long_ranges_are_refused<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    for chunks in [u64::MAX, u64::MAX / rig.chunk_bytes()] {
        ensure!(rig.device().reserve(chunks).is_err(), "{chunks} chunks of addresses are there");
    }
    rig.works()
}

/// What is mapped can be read and written, by copies and by launches.
pub fn what_is_mapped_can_be_read_and_written<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let (from, to) = (rig.scattered(3)?, rig.scattered(3)?);
    let sent = rig.fill(rig.slot(A), 1)?;
    rig.put(rig.slot(A), from)?;
    rig.launch(COPY, &[from], &[to])?;
    rig.finish(Stream::Compute)?;
    rig.get(to, rig.slot(B))?;
    rig.expect(rig.slot(B), &rig.computed(COPY, &[&sent]), "what was computed")
}

/// A range of several chunks holds them in their order.
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

/// A chunk holds what was last written to it, also when it has been unmapped and mapped
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

/// When a range is mapped anew, it shows the chunks that it has now, to copies and to
/// launches.
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
    rig.expect(rig.slot(C), &rig.computed(COPY, &[&sent]), "what was computed from it")
}

/// One chunk may be mapped at several addresses: what an upload writes through one, a download
/// reads through any other, once a point orders the two.
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

/// The same for launches: what one writes through one address the next reads through another,
/// on one stream or after a wait.
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
    rig.expect(rig.slot(B), &written, "what was fetched through an alias")?;
    rig.expect(rig.slot(C), &rig.computed(COPY, &[&written]), "what was read through an alias")
}

/// Eight ranges over one chunk: when one is unmapped, the others stay.
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

/// Several mappings that follow each other are unmapped by one call, and their addresses can be
/// mapped again.
pub fn neighbours_are_unmapped_together<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let at = rig.scattered(4)?;
    rig.device().unmap(at, 4)?;
    ensure!(rig.device().unmap(at, 4).is_err(), "what is unmapped may be unmapped again");
    rig.device().map(at, Chunks { first: 8, count: 4 })?;
    let sent = rig.fill(rig.slot(A), 1)?;
    rig.put(rig.slot(A), at)?;
    rig.get(at, rig.slot(B))?;
    rig.expect(rig.slot(B), &sent, "a range that was unmapped and mapped again")
}

/// To map where no range is, not a whole number of chunks from its start, or beyond its end is
/// an error.
pub fn mapping_outside_of_ranges_is_refused<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let chunk = rig.chunk_bytes();
    let at = rig.device().reserve(3)?;
    let mut refuse = |offset: u64, count, what: &str| {
        let at = DeviceAddress(at.0.wrapping_add(offset));
        let mapped = rig.device().map(at, Chunks { first: 0, count });
        ensure!(mapped.is_err(), "one may map {what}");
        Ok(())
    };
    refuse(1, 1, "a byte after a chunk's start")?;
    refuse(chunk / 2, 1, "in the middle of a chunk")?;
    refuse(0, 4, "more than a range has")?;
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
        ensure!(mapped.is_err(), "one may map chunk {first} and the next of {created}");
    }
    rig.works()
}

/// Where something is mapped nothing else can be, not even in part, and what is mapped stays.
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
        ensure!(mapped.is_err(), "one may map {count} chunks at {first}, where 1 and 2 are mapped");
    }
    rig.get(DeviceAddress(at.0 + chunk), rig.host(B, 0..2 * chunk))?;
    rig.expect(rig.host(B, 0..2 * chunk), &sent, "what was to be mapped over")?;
    for free in [0, 3] {
        rig.device().map(DeviceAddress(at.0 + free * chunk), Chunks { first: 8, count: 1 })?;
    }
    rig.works()
}

/// What is not mapped cannot be unmapped, nor a range of which only a part is mapped.
pub fn unmapping_what_is_not_mapped_is_refused<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let half = rig.half_mapped()?;
    ensure!(rig.device().unmap(half, 2).is_err(), "one may unmap what is mapped in part");
    let second = DeviceAddress(half.0 + rig.chunk_bytes());
    ensure!(rig.device().unmap(second, 1).is_err(), "one may unmap what was never mapped");
    ensure!(rig.device().unmap(DeviceAddress(0), 1).is_err(), "one may unmap address 0");
    rig.device().unmap(half, 1)?;
    ensure!(rig.device().unmap(half, 1).is_err(), "one may unmap what is unmapped");
    rig.works()
}

/// A mapping is unmapped as a whole: a part of it is refused, and it stays.
pub fn unmapping_a_part_is_refused<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let chunk = rig.chunk_bytes();
    let at = rig.mapped(Chunks { first: 4, count: 3 })?;
    let sent = rig.fill(rig.slot(A), 1)?;
    rig.put(rig.slot(A), at)?;
    for (first, count) in [(0, 1), (0, 2), (1, 1), (1, 2), (2, 1)] {
        let part = DeviceAddress(at.0 + first * chunk);
        ensure!(rig.device().unmap(part, count).is_err(), "one may unmap {count} of 3 chunks");
    }
    rig.get(at, rig.slot(B))?;
    rig.expect(rig.slot(B), &sent, "a mapping of which a part was to be unmapped")?;
    Ok(rig.device().unmap(at, 3)?)
}

/// Mapping and unmapping act at once, while streams are busy with other ranges.
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
    rig.expect(rig.slot(B), &rig.computed(COPY, &[&sent]), "what was computed meanwhile")
}
