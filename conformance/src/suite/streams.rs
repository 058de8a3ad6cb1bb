//! [`Streams`]: order within a stream, waits between streams, and points.

use super::Rig;
use super::failure::{Outcome, ensure};
use super::rig::{A, B, C, COPY, D, UPDATE};
use integrity::Backend;
use planner_core::Stream;
use planner_core::backend::{DeviceAddress, Paging, Point, Streams, Transfers};

/// The signals of each stream are 1, 2, 3, …, also signals that nobody awaits. After a wait for a
/// point, this point and all earlier points are reached.
pub fn points_are_counted_from_one<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    for stream in Stream::ON_DEVICE {
        count_five_points(rig, stream)?;
        for value in [6, 8] {
            let left_out = rig.device().signal_unawaited(stream)?.value;
            ensure!(
                left_out == value,
                "signal {value} of {stream}, which nobody awaits, is {left_out}"
            );
            let point = rig.signal(stream)?;
            ensure!(
                point.value == value + 1,
                "signal {} of {stream} is {}",
                value + 1,
                point.value
            );
            rig.device().block_until(point)?;
            ensure!(rig.device().reached(point)?, "signal {} is not reached", point.value);
        }
    }
    Ok(())
}

/// The first five signals of a stream are 1 to 5. After a wait for a point, this point and all
/// earlier points are reached.
pub(super) fn count_five_points<T: Backend>(rig: &mut Rig<'_, T>, stream: Stream) -> Outcome {
    let mut points = Vec::new();
    for value in 1..=5 {
        let point = rig.signal(stream)?;
        ensure!(point.stream == stream, "a signal of {stream} is a point of {}", point.stream);
        ensure!(point.value == value, "signal {value} of {stream} is {}", point.value);
        points.push(point);
    }
    for &point in points.iter().rev() {
        rig.device().block_until(point)?;
        ensure!(rig.device().reached(point)?, "signal {} is not reached", point.value);
    }
    Ok(())
}

/// A wait for a point that has not been signalled is an error and changes nothing, whatever the
/// kind of wait.
pub fn unsignalled_points_are_refused<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    for stream in Stream::ON_DEVICE {
        let next = Point { stream, value: rig.signal(stream)?.value + 1 };
        let of = format_args!("signal {} of {stream}, which is not enqueued", next.value);
        for waiting in Stream::ON_DEVICE {
            ensure!(rig.device().wait(waiting, next).is_err(), "{waiting} accepts a wait for {of}");
        }
        ensure!(rig.device().reached(next).is_err(), "the device answers whether {of}, is reached");
        ensure!(rig.device().block_until(next).is_err(), "the device blocks until {of}");
    }
    rig.works()
}

/// Launches run in the order in which they are enqueued. Each uses the bytes that the one before it
/// has written.
pub fn launches_run_in_order<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    update_in_order(rig, Stream::Compute)
}

/// Launches eight updates of one state on a stream, with a signal after every second one.
pub(super) fn update_in_order<T: Backend>(rig: &mut Rig<'_, T>, stream: Stream) -> Outcome {
    let mut state = rig.fill(rig.slot(C), 1)?;
    let other = rig.fill(rig.slot(D), 2)?;
    let (c, d) = (rig.range(3)?, rig.range(3)?);
    rig.put(rig.slot(C), c)?;
    rig.put(rig.slot(D), d)?;
    for step in 0..8 {
        rig.launch_on(stream, UPDATE, &[c, d], &[c])?;
        if step % 2 == 0 {
            rig.signal(stream)?;
        }
        state = rig.computed(UPDATE, &[&state, &other]);
    }
    rig.finish(stream)?;
    rig.get(c, rig.slot(C))?;
    rig.expect(rig.slot(C), &state, "a state after eight launches")
}

/// Uploads run in the order in which they are enqueued. A later upload overwrites an earlier one,
/// completely or in part.
pub fn uploads_run_in_order<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let (half, bytes) = (rig.bytes() / 2, rig.bytes());
    rig.fill(rig.slot(A), 1)?;
    let mut expected = rig.fill(rig.slot(B), 2)?;
    let last = rig.fill(rig.host(C, 0..half), 3)?;
    expected[..half as usize].copy_from_slice(&last);
    let at = rig.range(3)?;
    let slots = [rig.host(A, 0..bytes), rig.host(B, 0..bytes), rig.host(C, 0..half)];
    for slot in slots {
        rig.device().upload(slot, at)?;
    }
    rig.finish(Stream::Upload)?;
    rig.get(at, rig.slot(D))?;
    rig.expect(rig.slot(D), &expected, "the bytes uploaded three times")
}

/// Downloads run in the order in which they are enqueued.
pub fn downloads_run_in_order<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let (one, other) = (rig.range(3)?, rig.range(3)?);
    rig.fill(rig.slot(A), 1)?;
    let last = rig.fill(rig.slot(B), 2)?;
    rig.put(rig.slot(A), one)?;
    rig.put(rig.slot(B), other)?;
    let slot = rig.slot(C);
    for from in [one, other, one, other] {
        rig.device().download(from, slot)?;
    }
    rig.finish(Stream::Download)?;
    rig.expect(slot, &last, "a slot that was written four times")
}

/// A launch that waits for an upload reads the uploaded bytes.
pub fn compute_waits_for_uploads<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let (from, to) = (rig.range(3)?, rig.range(3)?);
    rig.fill(rig.slot(A), 1)?;
    rig.put(rig.slot(A), from)?;
    let sent = rig.fill(rig.slot(A), 2)?;
    rig.keep_busy(Stream::Upload)?;
    rig.send(A, from)?;
    rig.order(Stream::Upload, Stream::Compute)?;
    rig.launch(COPY, &[from], &[to])?;
    rig.finish(Stream::Compute)?;
    rig.get(to, rig.slot(B))?;
    rig.expect(rig.slot(B), &rig.computed(COPY, &[&sent]), "the bytes computed from an upload")
}

/// A download that waits for a launch copies the computed bytes.
pub fn downloads_wait_for_compute<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let sent = rig.fill(rig.slot(A), 1)?;
    let (from, to) = (rig.range(3)?, rig.range(3)?);
    rig.put(rig.slot(A), from)?;
    rig.keep_busy(Stream::Compute)?;
    rig.launch(COPY, &[from], &[to])?;
    rig.order(Stream::Compute, Stream::Download)?;
    rig.get(to, rig.slot(B))?;
    rig.expect(rig.slot(B), &rig.computed(COPY, &[&sent]), "the bytes fetched after a launch")
}

/// An upload that waits for a launch does not change the bytes that the launch reads.
pub fn uploads_wait_for_compute<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let sent = rig.fill(rig.slot(A), 1)?;
    rig.fill(rig.slot(B), 2)?;
    let (from, to) = (rig.range(3)?, rig.range(3)?);
    rig.put(rig.slot(A), from)?;
    rig.keep_busy(Stream::Compute)?;
    rig.launch(COPY, &[from], &[to])?;
    rig.order(Stream::Compute, Stream::Upload)?;
    rig.put(rig.slot(B), from)?;
    rig.finish(Stream::Compute)?;
    rig.get(to, rig.slot(C))?;
    let computed = rig.computed(COPY, &[&sent]);
    rig.expect(rig.slot(C), &computed, "the bytes computed before its operand was overwritten")
}

/// A launch that waits for a download does not change the bytes that the download copies.
pub fn compute_waits_for_downloads<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    rig.fill(rig.slot(A), 1)?;
    let old = rig.fill(rig.slot(B), 2)?;
    let (from, to) = (rig.range(3)?, rig.range(3)?);
    rig.put(rig.slot(A), from)?;
    rig.put(rig.slot(B), to)?;
    rig.keep_busy(Stream::Download)?;
    rig.fetch(to, C)?;
    rig.order(Stream::Download, Stream::Compute)?;
    rig.launch(COPY, &[from], &[to])?;
    rig.finish(Stream::Compute)?;
    rig.finish(Stream::Download)?;
    rig.expect(rig.slot(C), &old, "the bytes fetched before it was overwritten")
}

/// An upload that waits for a download does not read the slot before it is written, and does not
/// overwrite the bytes that are being downloaded.
pub fn uploads_wait_for_downloads<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let saved = rig.fill(rig.slot(A), 1)?;
    rig.fill(rig.slot(B), 2)?;
    rig.fill(rig.slot(C), 3)?;
    let (one, other) = (rig.range(3)?, rig.range(3)?);
    rig.put(rig.slot(A), one)?;
    rig.keep_busy(Stream::Download)?;
    rig.fetch(one, C)?;
    rig.order(Stream::Download, Stream::Upload)?;
    rig.send(C, other)?;
    rig.send(B, one)?;
    rig.finish(Stream::Upload)?;
    rig.finish(Stream::Download)?;
    rig.expect(rig.slot(C), &saved, "the bytes fetched before it was overwritten")?;
    rig.get(other, rig.slot(D))?;
    rig.expect(rig.slot(D), &saved, "the bytes fetched and sent again")
}

/// A download that waits for an upload copies the uploaded bytes.
pub fn downloads_wait_for_uploads<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let at = rig.range(3)?;
    rig.fill(rig.slot(A), 1)?;
    rig.put(rig.slot(A), at)?;
    let sent = rig.fill(rig.slot(A), 2)?;
    rig.keep_busy(Stream::Upload)?;
    rig.send(A, at)?;
    rig.order(Stream::Upload, Stream::Download)?;
    rig.get(at, rig.slot(B))?;
    rig.expect(rig.slot(B), &sent, "the bytes fetched after an upload")
}

/// A wait for a stream also waits for all work for which this stream has waited. A schedule leaves
/// out waits that others imply.
pub fn waits_imply_what_they_waited_for<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let at = rig.range(3)?;
    rig.fill(rig.slot(A), 1)?;
    rig.put(rig.slot(A), at)?;
    let sent = rig.fill(rig.slot(A), 2)?;
    rig.keep_busy(Stream::Upload)?;
    rig.send(A, at)?;
    rig.order(Stream::Upload, Stream::Compute)?;
    rig.order(Stream::Compute, Stream::Download)?;
    rig.get(at, rig.slot(B))?;
    rig.expect(rig.slot(B), &sent, "the bytes fetched after a launch after an upload")
}

/// A wait holds for all work that is enqueued after it. A later wait for an earlier point does not
/// lift it.
pub fn waits_hold_for_all_that_follows<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let (one, other) = (rig.range(3)?, rig.range(3)?);
    rig.fill(rig.slot(A), 1)?;
    rig.put(rig.slot(A), one)?;
    rig.put(rig.slot(A), other)?;
    let early = rig.signal(Stream::Upload)?;
    let sent = rig.fill(rig.slot(A), 2)?;
    rig.keep_busy(Stream::Upload)?;
    rig.send(A, other)?;
    rig.order(Stream::Upload, Stream::Download)?;
    rig.device().wait(Stream::Download, early)?;
    for at in [one, one, other] {
        rig.fetch(at, B)?;
        rig.signal(Stream::Download)?;
    }
    rig.finish(Stream::Download)?;
    rig.expect(rig.slot(B), &sent, "the bytes fetched last")
}

/// More than a thousand steps may be pending on a stream. None is lost, and work can wait for the
/// point of each of them.
pub fn a_thousand_steps_may_be_pending<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    const STEPS: u64 = 1500;
    rig.set_up()?;
    let at = rig.range(3)?;
    rig.keep_busy(Stream::Upload)?;
    let sent = rig.fill(rig.slot(A), 1)?;
    let mut points = Vec::new();
    // Each step uploads a few bytes, and the last step uploads the end.
    let bytes = rig.bytes();
    let from = |step| bytes * step / STEPS;
    for step in 0..STEPS {
        let range = from(step)..from(step + 1).max(from(step) + 1);
        let to = DeviceAddress(at.0 + range.start);
        let slot = rig.host(A, range);
        rig.device().upload(slot, to)?;
        points.push(rig.signal(Stream::Upload)?);
    }
    rig.device().block_until(points[0])?;
    rig.device().wait(Stream::Download, points[STEPS as usize - 1])?;
    rig.get(at, rig.slot(B))?;
    rig.expect(rig.slot(B), &sent, "the bytes uploaded in many steps")
}

/// A stream may wait for its own point, which is reached by then.
pub fn a_stream_may_wait_for_itself<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    for stream in Stream::ON_DEVICE {
        rig.keep_busy(stream)?;
        let point = rig.signal(stream)?;
        rig.device().wait(stream, point)?;
        rig.finish(stream)?;
    }
    rig.works()
}

/// If a query says that a point is reached, the work before it has written its results. A query
/// does not block.
pub fn what_is_reached_has_been_done<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    /// After so many queries the check blocks, since a device may be slow.
    const MOST_QUESTIONS: usize = 10_000;
    rig.set_up()?;
    let at = rig.range(3)?;
    let sent = rig.fill(rig.slot(A), 1)?;
    rig.put(rig.slot(A), at)?;
    rig.keep_busy(Stream::Download)?;
    rig.fetch(at, B)?;
    let point = rig.signal(Stream::Download)?;
    let mut is_reached = false;
    for _ in 0..MOST_QUESTIONS {
        is_reached = is_reached || rig.device().reached(point)?;
    }
    if !is_reached {
        rig.device().block_until(point)?;
    }
    rig.expect(rig.slot(B), &sent, "the bytes fetched before a point that is reached")
}

/// After a block until a point, the work before it has written its results.
pub fn blocking_waits_for_the_work<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let at = rig.range(3)?;
    let sent = rig.fill(rig.slot(A), 1)?;
    rig.put(rig.slot(A), at)?;
    rig.keep_busy(Stream::Download)?;
    rig.get(at, rig.slot(B))?;
    rig.expect(rig.slot(B), &sent, "the bytes fetched before a point that was waited for")
}

/// All three streams can work at the same time on separate memory, with mapping calls in between.
pub fn streams_do_not_disturb_each_other<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let [sent, fetched, read, updated] =
        [rig.range(3)?, rig.range(3)?, rig.range(3)?, rig.range(3)?];
    let mut expected = rig.fill(rig.slot(A), 1)?;
    let other = rig.fill(rig.slot(B), 2)?;
    rig.put(rig.slot(A), updated)?;
    rig.put(rig.slot(B), read)?;
    rig.put(rig.slot(B), fetched)?;
    for _ in 0..8 {
        rig.send(A, sent)?;
        rig.signal(Stream::Upload)?;
        rig.launch(UPDATE, &[updated, read], &[updated])?;
        rig.signal(Stream::Compute)?;
        rig.fetch(fetched, C)?;
        rig.signal(Stream::Download)?;
        let idle = rig.range(1)?;
        rig.device().unmap(idle, 1)?;
    }
    Stream::ON_DEVICE.into_iter().try_for_each(|stream| rig.finish(stream))?;
    rig.expect(rig.slot(C), &other, "the bytes fetched meanwhile")?;
    rig.get(sent, rig.slot(D))?;
    rig.expect(rig.slot(D), &expected, "the bytes sent meanwhile")?;
    for _ in 0..8 {
        expected = rig.computed(UPDATE, &[&expected, &other]);
    }
    rig.get(updated, rig.slot(D))?;
    rig.expect(rig.slot(D), &expected, "the bytes computed meanwhile")
}
