//! [`Transfers`]: copies arrive completely and at the right place.

use super::Rig;
use super::failure::{Outcome, ensure};
use super::rig::{A, B, C, D};
use integrity::Backend;
use planner_core::Stream;
use planner_core::backend::{DeviceAddress, HostRange, Paging, Streams, Transfers};

/// The host writes and reads exactly the bytes that it names, of any size and at any offset.
pub fn the_host_writes_and_reads_its_block<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let bytes = rig.bytes();
    let mut block = rig.fill(rig.slot(A), 1)?;
    for (seed, range) in (2..).zip([0..1, 1..2, 3..8, 5..bytes, bytes - 1..bytes, 7..7]) {
        let (start, end) = (range.start as usize, range.end as usize);
        let written = rig.fill(rig.host(A, range.clone()), seed)?;
        block[start..end].copy_from_slice(&written);
        let case = format!("bytes {range:?} that the host wrote");
        rig.expect(rig.host(A, range), &block[start..end], &case)?;
        rig.expect(rig.slot(A), &block, &format!("the slot around {case}"))?;
    }
    Ok(())
}

/// A copy that is enqueued right after a write by the host reads the written bytes.
pub fn written_bytes_are_uploaded<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let at = rig.range(3)?;
    for seed in 1..4 {
        let sent = rig.fill(rig.slot(A), seed)?;
        rig.put(rig.slot(A), at)?;
        rig.get(at, rig.slot(B))?;
        rig.expect(rig.slot(B), &sent, "the bytes written and sent at once")?;
    }
    Ok(())
}

/// The host has one block. To create it again is an error and leaves the block unchanged.
pub fn the_host_has_one_block<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let bytes = rig.fill(rig.slot(A), 1)?;
    ensure!(rig.create_host().is_err(), "the host block may be created twice");
    rig.expect(rig.slot(A), &bytes, "the block after it could not be created again")?;
    rig.works()
}

/// Bytes that are uploaded and downloaded again do not change, in several chunks that are not
/// adjacent.
pub fn bytes_return_as_they_were<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let at = rig.scattered(3)?;
    // A byte that is not copied may be right by chance, but not twice.
    for seed in [1, 2] {
        let sent = rig.fill(rig.slot(A), seed)?;
        rig.put(rig.slot(A), at)?;
        rig.get(at, rig.slot(B))?;
        rig.expect(rig.slot(B), &sent, "the bytes sent and fetched")?;
    }
    Ok(())
}

/// A copy moves exactly the bytes that it names: one byte, odd numbers of bytes at odd offsets, and
/// bytes on both sides of a border between chunks. Bytes beside them do not change.
pub fn copies_of_any_size_and_offset<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let (chunk, bytes) = (rig.chunk_bytes(), rig.bytes());
    let at = rig.scattered(3)?;
    let cases = [
        0..1,
        1..2,
        3..8,
        chunk - 1..chunk,
        chunk - 1..chunk + 1,
        chunk..chunk + 1,
        chunk - 3..2 * chunk + 2,
        bytes - 1..bytes,
    ];
    for (seed, range) in (1..).zip(cases) {
        let case = |what: &str| format!("bytes {range:?} of {what}");
        let mut device = rig.fill(rig.slot(A), 2 * seed)?;
        rig.put(rig.slot(A), at)?;
        let sent = rig.fill(rig.slot(B), 2 * seed + 1)?;
        let bytes = range.start as usize..range.end as usize;
        rig.put(rig.host(B, range.clone()), DeviceAddress(at.0 + range.start))?;
        device[bytes.clone()].copy_from_slice(&sent[bytes.clone()]);
        rig.get(at, rig.slot(A))?;
        rig.expect(rig.slot(A), &device, &case("an upload"))?;

        let mut host = rig.fill(rig.slot(C), 1000 + seed)?;
        rig.get(DeviceAddress(at.0 + range.start), rig.host(C, range.clone()))?;
        host[bytes.clone()].copy_from_slice(&device[bytes]);
        rig.expect(rig.slot(C), &host, &case("a download"))?;
    }
    Ok(())
}

/// Many copies in both directions that are enqueued at once all arrive.
pub fn copies_in_both_directions_at_once<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let chunk = rig.chunk_bytes();
    let sent = rig.fill(rig.slot(A), 1)?;
    let kept = rig.fill(rig.slot(B), 2)?;
    let (one, other) = (rig.scattered(3)?, rig.scattered(3)?);
    rig.put(rig.slot(B), other)?;
    let starts = (0..rig.bytes()).step_by((chunk / 8).max(1) as usize);
    for start in starts {
        let end = rig.bytes().min(start + (chunk / 8).max(1));
        let (from, to) = (rig.host(A, start..end), rig.host(C, start..end));
        rig.device().upload(from, DeviceAddress(one.0 + start))?;
        rig.device().download(DeviceAddress(other.0 + start), to)?;
    }
    rig.finish(Stream::Download)?;
    rig.finish(Stream::Upload)?;
    rig.expect(rig.slot(C), &kept, "the bytes fetched in parts")?;
    rig.get(one, rig.slot(D))?;
    rig.expect(rig.slot(D), &sent, "the bytes sent in parts")
}

/// The host bytes of an upload are free once the next signal of the stream is reached. Bytes that
/// are written there later do not arrive.
pub fn uploaded_bytes_are_free_after_the_point<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let at = rig.range(3)?;
    rig.keep_busy(Stream::Upload)?;
    let sent = rig.fill(rig.slot(A), 1)?;
    rig.send(A, at)?;
    let point = rig.signal(Stream::Upload)?;
    rig.device().block_until(point)?;
    rig.fill(rig.slot(A), 2)?;
    rig.get(at, rig.slot(B))?;
    rig.expect(rig.slot(B), &sent, "the bytes sent before its slot was filled anew")
}

/// A copy to or from addresses that are not completely mapped is refused and changes nothing.
pub fn unmapped_addresses_are_refused<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let (chunk, slot) = (rig.chunk_bytes(), rig.slot(A));
    let half = rig.half_mapped()?;
    let gone = rig.range(3)?;
    rig.device().unmap(gone, 3)?;
    let second = DeviceAddress(half.0 + chunk);
    let end = DeviceAddress(u64::MAX - slot.bytes / 2);
    for (at, what) in [
        (half, "a partly mapped range"),
        (second, "a range that was never mapped"),
        (gone, "a range that was unmapped"),
        (DeviceAddress(0), "address 0"),
        (end, "the end of all addresses"),
    ] {
        ensure!(rig.device().upload(slot, at).is_err(), "the device uploads to {what}");
        ensure!(rig.device().download(at, slot).is_err(), "the device downloads from {what}");
    }
    rig.works()
}

/// A range outside the host block is refused for copies and for the host, and nothing changes.
pub fn bytes_outside_the_block_are_refused<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let at = rig.range(3)?;
    let end = rig.block_bytes();
    for (offset_bytes, bytes) in [(end, 1), (end - 1, 2), (u64::MAX, 1), (u64::MAX, u64::MAX)] {
        let range = HostRange { offset_bytes, bytes };
        let what = format_args!("{bytes} bytes at {offset_bytes} of a block of {end}");
        ensure!(rig.device().upload(range, at).is_err(), "the device uploads {what}");
        ensure!(rig.device().download(at, range).is_err(), "the device downloads to {what}");
    }
    for (offset_bytes, bytes) in [(end, 1), (end - 1, 2), (u64::MAX, 1)] {
        let mut buffer = vec![0; bytes];
        let what = format_args!("{bytes} bytes at {offset_bytes} of a block of {end}");
        ensure!(rig.device().write_host(offset_bytes, &buffer).is_err(), "the host writes {what}");
        let read = rig.device().read_host(offset_bytes, &mut buffer);
        ensure!(read.is_err(), "the host reads {what}");
    }
    rig.works()
}

/// Without a block, it is an error to copy, write or read.
pub fn without_a_block_all_is_refused<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.create()?;
    let at = rig.range(3)?;
    let range = HostRange { offset_bytes: 0, bytes: 1 };
    ensure!(rig.device().upload(range, at).is_err(), "the device uploads without a host block");
    ensure!(rig.device().download(at, range).is_err(), "the device downloads without a host block");
    ensure!(rig.device().write_host(0, &[0]).is_err(), "the host writes without a host block");
    ensure!(rig.device().read_host(0, &mut [0]).is_err(), "the host reads without a host block");
    rig.create_host()?;
    rig.works()
}
