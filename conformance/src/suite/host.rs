//! [`Stream::Host`]: ops on the host, their order, and waits between them and all other streams.

use super::failure::{Outcome, ensure};
use super::rig::{self, A, B, C, COPY, COUNT, D, TICK, UPDATE};
use super::streams::count_five_points;
use super::{Bench, Rig};
use integrity::Backend;
use planner_core::Stream;
use planner_core::backend::{HostRange, Point, Streams, Transfers};

/// The signals of the stream are 1, 2, 3, …. After a wait for a point, this point and all earlier
/// points are reached.
pub fn points_are_counted_from_one<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.needs_host_stream()?;
    rig.set_up()?;
    count_five_points(rig, Stream::Host)
}

/// A wait for a point that has not been signalled is an error and changes nothing, on a stream and
/// for the caller.
pub fn unsignalled_points_are_refused<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.needs_host_stream()?;
    rig.set_up()?;
    let streams = Stream::ON_DEVICE.into_iter().chain([Stream::Host]);
    for (waiting, awaited) in
        streams.flat_map(|stream| [(stream, Stream::Host), (Stream::Host, stream)])
    {
        let next = Point { stream: awaited, value: rig.signal(awaited)?.value + 1 };
        let of = format_args!("signal {} of {awaited}, which is not enqueued", next.value);
        ensure!(rig.device().wait(waiting, next).is_err(), "{waiting} accepts a wait for {of}");
        ensure!(rig.device().reached(next).is_err(), "the device answers whether {of}, is reached");
        ensure!(rig.device().block_until(next).is_err(), "the device blocks until {of}");
    }
    works(rig)
}

/// Ops run in the order in which they are enqueued. Each updates in place the bytes that the one
/// before it has written.
pub fn ops_run_in_order<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.needs_host_stream()?;
    rig.set_up()?;
    let mut state = rig.fill(rig.slot(C), 1)?;
    let other = rig.fill(rig.slot(D), 2)?;
    let (c, d) = (rig.slot(C), rig.slot(D));
    for step in 0..8 {
        rig.launch_on_host(UPDATE, &[c, d], &[c])?;
        if step % 2 == 0 {
            rig.signal(Stream::Host)?;
        }
        state = rig.computed(UPDATE, &[&state, &other]);
    }
    rig.finish(Stream::Host)?;
    rig.expect(c, &state, "a state after eight ops on the host")?;
    rig.expect(d, &other, "a state that they read")
}

/// An op reads every byte of every operand, and computes the same bytes as a launch on the device.
pub fn every_byte_counts<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.needs_host_stream()?;
    rig.set_up()?;
    let bytes = rig.bytes();
    let (c, d) = (rig.slot(C), rig.slot(D));
    for wrong in [None, Some(0), Some(5), Some(bytes / 2), Some(bytes - 1)] {
        let mut state = rig.fill(c, 1)?;
        let mut other = rig.fill(d, 2)?;
        if let Some(at) = wrong {
            state[at as usize] ^= 0x10;
            other[(bytes - 1 - at) as usize] ^= 1;
            rig.write(c, &state)?;
            rig.write(d, &other)?;
        }
        rig.launch_on_host(UPDATE, &[c, d], &[c])?;
        rig.finish(Stream::Host)?;
        let what = format!("the bytes that follow on the host from a wrong byte at {wrong:?}");
        rig.expect(c, &rig.computed(UPDATE, &[&state, &other]), &what)?;
        rig.expect(d, &other, "an operand that is only read")?;
    }
    Ok(())
}

/// An op writes the ranges of its launch and no other bytes of the block.
pub fn ops_leave_the_rest_alone<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.needs_host_stream()?;
    rig.set_up()?;
    let sent = rig.fill(rig.slot(A), 1)?;
    let written = rig.slot(B);
    let end = written.offset_bytes + written.bytes;
    let rest = [
        HostRange { offset_bytes: 0, bytes: written.offset_bytes },
        HostRange { offset_bytes: end, bytes: rig.block_bytes() - end },
    ];
    let mut before = Vec::new();
    for range in rest {
        let mut bytes = vec![0; range.bytes as usize];
        rig.device().read_host(range.offset_bytes, &mut bytes)?;
        before.push(bytes);
    }
    rig.copy_on_host(A, B)?;
    rig.finish(Stream::Host)?;
    rig.expect(written, &rig.computed(COPY, &[&sent]), "the bytes that an op on the host writes")?;
    for (range, bytes) in rest.into_iter().zip(before) {
        rig.expect(range, &bytes, "the rest of the block")?;
    }
    Ok(())
}

/// A launch is refused and changes nothing if an operand is not completely in the block.
pub fn bytes_outside_the_block_are_refused<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.needs_host_stream()?;
    rig.set_up()?;
    let (inside, bytes) = (rig.slot(A), rig.bytes());
    let offset_bytes = rig.block_bytes() - bytes + 1;
    for outside in [offset_bytes, rig.block_bytes(), u64::MAX - bytes / 2, u64::MAX] {
        let outside = HostRange { offset_bytes: outside, bytes };
        let reads = rig.launch_on_host(COPY, &[outside], &[inside]);
        ensure!(reads.is_err(), "an op on the host can read {outside:?}");
        let writes = rig.launch_on_host(COPY, &[inside], &[outside]);
        ensure!(writes.is_err(), "an op on the host can write {outside:?}");
    }
    works(rig)
}

/// An upload that waits for an op on the host copies the bytes that the op wrote.
pub fn uploads_wait_for_the_host<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.needs_host_stream()?;
    rig.set_up()?;
    let sent = rig.fill(rig.slot(A), 1)?;
    rig.fill(rig.slot(B), 2)?;
    let at = rig.range(3)?;
    rig.keep_busy(Stream::Host)?;
    rig.copy_on_host(A, B)?;
    rig.order(Stream::Host, Stream::Upload)?;
    rig.put(rig.slot(B), at)?;
    rig.get(at, rig.slot(C))?;
    rig.expect(rig.slot(C), &rig.computed(COPY, &[&sent]), "the bytes sent after an op on the host")
}

/// An op on the host that waits for an upload does not change the bytes that the upload copies.
pub fn the_host_waits_for_uploads<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.needs_host_stream()?;
    rig.set_up()?;
    rig.fill(rig.slot(A), 1)?;
    let sent = rig.fill(rig.slot(B), 2)?;
    let at = rig.range(3)?;
    rig.keep_busy(Stream::Upload)?;
    rig.send(B, at)?;
    rig.order(Stream::Upload, Stream::Host)?;
    rig.copy_on_host(A, B)?;
    rig.finish(Stream::Host)?;
    rig.finish(Stream::Upload)?;
    rig.get(at, rig.slot(C))?;
    rig.expect(rig.slot(C), &sent, "the bytes sent before the host overwrote it")
}

/// An op on the host that waits for a download reads the downloaded bytes.
pub fn the_host_waits_for_downloads<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.needs_host_stream()?;
    rig.set_up()?;
    let fetched = rig.fill(rig.slot(A), 1)?;
    let at = rig.range(3)?;
    rig.put(rig.slot(A), at)?;
    rig.fill(rig.slot(A), 2)?;
    rig.keep_busy(Stream::Download)?;
    rig.fetch(at, A)?;
    rig.order(Stream::Download, Stream::Host)?;
    rig.copy_on_host(A, B)?;
    rig.finish(Stream::Host)?;
    let computed = rig.computed(COPY, &[&fetched]);
    rig.expect(rig.slot(B), &computed, "the bytes that the host computed from a download")
}

/// A download that waits for an op on the host does not change the bytes that the op reads.
pub fn downloads_wait_for_the_host<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.needs_host_stream()?;
    rig.set_up()?;
    let at = rig.range(3)?;
    let fetched = rig.fill(rig.slot(A), 1)?;
    rig.put(rig.slot(A), at)?;
    let read = rig.fill(rig.slot(A), 2)?;
    rig.keep_busy(Stream::Host)?;
    rig.copy_on_host(A, B)?;
    rig.order(Stream::Host, Stream::Download)?;
    rig.get(at, rig.slot(A))?;
    rig.finish(Stream::Host)?;
    rig.expect(rig.slot(A), &fetched, "the bytes fetched after an op on the host")?;
    let computed = rig.computed(COPY, &[&read]);
    rig.expect(rig.slot(B), &computed, "the bytes that the host read before it was overwritten")
}

/// Work that waits for a launch that waits for an op on the host reads the bytes that the op wrote.
pub fn compute_waits_for_the_host<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.needs_host_stream()?;
    rig.set_up()?;
    let sent = rig.fill(rig.slot(A), 1)?;
    rig.fill(rig.slot(B), 2)?;
    let (from, to, at) = (rig.range(3)?, rig.range(3)?, rig.range(3)?);
    rig.put(rig.slot(A), from)?;
    rig.keep_busy(Stream::Host)?;
    rig.copy_on_host(A, B)?;
    rig.order(Stream::Host, Stream::Compute)?;
    rig.launch(COPY, &[from], &[to])?;
    rig.order(Stream::Compute, Stream::Upload)?;
    rig.put(rig.slot(B), at)?;
    rig.get(at, rig.slot(C))?;
    let computed = rig.computed(COPY, &[&sent]);
    rig.expect(rig.slot(C), &computed, "the bytes sent after a launch after an op on the host")
}

/// Work that waits for an op on the host that waits for a launch reads the bytes that the launch
/// wrote.
pub fn the_host_waits_for_compute<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.needs_host_stream()?;
    rig.set_up()?;
    let sent = rig.fill(rig.slot(A), 1)?;
    let (from, to) = (rig.range(3)?, rig.range(3)?);
    rig.put(rig.slot(A), from)?;
    rig.keep_busy(Stream::Compute)?;
    rig.launch(COPY, &[from], &[to])?;
    rig.order(Stream::Compute, Stream::Host)?;
    rig.launch_on_host(TICK, &[rig.slot(COUNT)], &[rig.slot(COUNT)])?;
    rig.order(Stream::Host, Stream::Download)?;
    rig.get(to, rig.slot(B))?;
    let computed = rig.computed(COPY, &[&sent]);
    rig.expect(rig.slot(B), &computed, "the bytes fetched after an op on the host after a launch")
}

/// A wait for the host also waits for all work for which the host has waited, with or without an
/// op.
pub fn waits_imply_what_they_waited_for<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.needs_host_stream()?;
    rig.set_up()?;
    let at = rig.range(3)?;
    rig.fill(rig.slot(A), 1)?;
    rig.put(rig.slot(A), at)?;
    let sent = rig.fill(rig.slot(A), 2)?;
    rig.keep_busy(Stream::Upload)?;
    rig.send(A, at)?;
    rig.order(Stream::Upload, Stream::Host)?;
    rig.order(Stream::Host, Stream::Download)?;
    rig.get(at, rig.slot(B))?;
    rig.expect(rig.slot(B), &sent, "the bytes fetched after the host had waited for an upload")
}

/// A wait holds for all ops that are enqueued after it. A later wait for an earlier point does not
/// lift it.
pub fn waits_hold_for_all_that_follows<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.needs_host_stream()?;
    rig.set_up()?;
    let at = rig.range(3)?;
    let fetched = rig.fill(rig.slot(A), 1)?;
    rig.put(rig.slot(A), at)?;
    rig.fill(rig.slot(A), 2)?;
    let early = rig.signal(Stream::Download)?;
    rig.keep_busy(Stream::Download)?;
    rig.fetch(at, A)?;
    rig.order(Stream::Download, Stream::Host)?;
    rig.device().wait(Stream::Host, early)?;
    let count = rig.slot(COUNT);
    for _ in 0..2 {
        rig.launch_on_host(TICK, &[count], &[count])?;
        rig.signal(Stream::Host)?;
    }
    rig.copy_on_host(A, B)?;
    rig.finish(Stream::Host)?;
    let computed = rig.computed(COPY, &[&fetched]);
    rig.expect(rig.slot(B), &computed, "the bytes that the host computed last")
}

/// The stream may wait for its own point, which is reached by then.
pub fn the_host_may_wait_for_itself<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.needs_host_stream()?;
    rig.set_up()?;
    rig.keep_busy(Stream::Host)?;
    let point = rig.signal(Stream::Host)?;
    rig.device().wait(Stream::Host, point)?;
    rig.finish(Stream::Host)?;
    works(rig)
}

/// More than a thousand ops may be pending. None is lost, and work can wait for the point of each
/// of them.
pub fn a_thousand_ops_may_be_pending<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    const STEPS: usize = 1500;
    rig.needs_host_stream()?;
    rig.set_up()?;
    let count = rig.slot(COUNT);
    let mut value = rig.fill(count, 1)?;
    let mut points = Vec::new();
    rig.keep_busy(Stream::Host)?;
    for _ in 0..STEPS {
        rig.launch_on_host(TICK, &[count], &[count])?;
        points.push(rig.signal(Stream::Host)?);
        value = rig.computed(TICK, &[&value]);
    }
    rig.device().block_until(points[0])?;
    rig.device().block_until(points[STEPS - 1])?;
    rig.expect(count, &value, "the bytes made by many ops on the host")
}

/// If a query says that a point is reached, the op before it has written its results. A query does not
/// block.
pub fn what_is_reached_has_been_done<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    /// After so many queries the check blocks, since a host may be slow.
    const MOST_QUESTIONS: usize = 10_000;
    rig.needs_host_stream()?;
    rig.set_up()?;
    let read = rig.fill(rig.slot(A), 1)?;
    rig.keep_busy(Stream::Host)?;
    rig.copy_on_host(A, B)?;
    let point = rig.signal(Stream::Host)?;
    let mut is_reached = false;
    for _ in 0..MOST_QUESTIONS {
        is_reached = is_reached || rig.device().reached(point)?;
    }
    if !is_reached {
        rig.device().block_until(point)?;
    }
    rig.expect(
        rig.slot(B),
        &rig.computed(COPY, &[&read]),
        "the bytes of an op whose point is reached",
    )
}

/// After a block until a point, the op before it has written its results.
pub fn blocking_waits_for_the_op<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.needs_host_stream()?;
    rig.set_up()?;
    let read = rig.fill(rig.slot(A), 1)?;
    rig.keep_busy(Stream::Host)?;
    rig.copy_on_host(A, B)?;
    rig.finish(Stream::Host)?;
    rig.expect(
        rig.slot(B),
        &rig.computed(COPY, &[&read]),
        "the bytes of an op whose point was waited for",
    )
}

/// All four streams can work at the same time on separate memory.
pub fn streams_do_not_disturb_each_other<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.needs_host_stream()?;
    rig.set_up()?;
    let [sent, fetched, read, updated] =
        [rig.range(3)?, rig.range(3)?, rig.range(3)?, rig.range(3)?];
    let mut on_device = rig.fill(rig.slot(A), 1)?;
    let brought = on_device.clone();
    let other = rig.fill(rig.slot(B), 2)?;
    rig.put(rig.slot(A), updated)?;
    rig.put(rig.slot(B), read)?;
    rig.put(rig.slot(B), fetched)?;
    let mut on_host = rig.fill(rig.slot(D), 3)?;
    let (host, also_read) = (rig.slot(D), rig.slot(B));
    for _ in 0..8 {
        rig.send(A, sent)?;
        rig.signal(Stream::Upload)?;
        rig.launch(UPDATE, &[updated, read], &[updated])?;
        rig.signal(Stream::Compute)?;
        rig.fetch(fetched, C)?;
        rig.signal(Stream::Download)?;
        rig.launch_on_host(UPDATE, &[host, also_read], &[host])?;
        rig.signal(Stream::Host)?;
    }
    let mut streams = Stream::ON_DEVICE.into_iter().chain([Stream::Host]);
    streams.try_for_each(|stream| rig.finish(stream))?;
    for _ in 0..8 {
        on_device = rig.computed(UPDATE, &[&on_device, &other]);
        on_host = rig.computed(UPDATE, &[&on_host, &other]);
    }
    rig.expect(rig.slot(C), &other, "the bytes fetched meanwhile")?;
    rig.expect(host, &on_host, "the bytes that the host computed meanwhile")?;
    rig.get(sent, rig.slot(C))?;
    rig.expect(rig.slot(C), &brought, "the bytes sent meanwhile")?;
    rig.get(updated, rig.slot(C))?;
    rig.expect(rig.slot(C), &on_device, "the bytes that the device computed meanwhile")
}

/// A device may be dropped while ops on the host wait, run, or are waited for. The next device
/// works.
pub fn a_device_may_be_dropped_at_any_time<T: Backend>(bench: &Bench<'_, T>) -> Outcome {
    let stages: [fn(&mut Rig<'_, T>) -> Outcome; 4] = [
        |_| Ok(()),
        |rig| rig.keep_busy(Stream::Host),
        |rig| {
            rig.keep_busy(Stream::Download)?;
            rig.order(Stream::Download, Stream::Host)?;
            rig.keep_busy(Stream::Host)
        },
        |rig| {
            let at = rig.range(3)?;
            rig.keep_busy(Stream::Host)?;
            rig.order(Stream::Host, Stream::Upload)?;
            rig.send(A, at)
        },
    ];
    let work = rig::work(&bench.machine);
    for (stage, prepare) in stages.into_iter().enumerate() {
        let dropped = Rig::open(bench, &work).and_then(|mut rig| {
            rig.needs_host_stream()?;
            rig.set_up()?;
            prepare(&mut rig)?;
            rig.close()
        });
        dropped.map_err(|failure| failure.context(format_args!("stage {stage}")))?;
    }
    let mut rig = Rig::open(bench, &work)?;
    rig.set_up()?;
    works(&mut rig)?;
    rig.close()
}

/// Fails unless the host still computes an op between a download and an upload.
fn works<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.works()?;
    let read = rig.fill(rig.slot(A), 78)?;
    let (from, to) = (rig.range(3)?, rig.range(3)?);
    rig.put(rig.slot(A), from)?;
    rig.fill(rig.slot(A), 79)?;
    rig.fetch(from, A)?;
    rig.order(Stream::Download, Stream::Host)?;
    rig.copy_on_host(A, B)?;
    rig.order(Stream::Host, Stream::Upload)?;
    rig.put(rig.slot(B), to)?;
    rig.get(to, rig.slot(C))?;
    let computed = rig.computed(COPY, &[&read]);
    rig.expect(rig.slot(C), &computed, "the bytes that the host does afterwards")
}
