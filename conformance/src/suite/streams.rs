//! [`Streams`]: order within a stream, waits between them, and points.

use super::Rig;
use super::failure::{Outcome, ensure};
use super::rig::{A, B, COPY};
use integrity::Backend;
use planner_core::Stream;
use planner_core::backend::{Streams, Transfers};

/// The signals of each stream are 1, 2, 3, …, and a point that has been waited for is reached,
/// with all before it.
pub fn points_are_counted_from_one<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    for stream in Stream::ALL {
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
    }
    Ok(())
}

/// A launch that waits for an upload sees what was uploaded.
pub fn compute_waits_for_uploads<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let sent = rig.fill(rig.room(A), 1)?;
    let (from, to) = (rig.range(3)?, rig.range(3)?);
    rig.keep_busy(Stream::Upload)?;
    let room = rig.room(A);
    rig.device().upload(room, from)?;
    let arrived = rig.signal(Stream::Upload)?;
    rig.device().wait(Stream::Compute, arrived)?;
    rig.launch(COPY, &[from], &[to])?;
    rig.finish(Stream::Compute)?;
    rig.get(to, rig.room(B))?;
    rig.expect(rig.room(B), &rig.copied(&sent), "what was computed from an upload")
}

/// A download that waits for a launch fetches what was computed.
pub fn downloads_wait_for_compute<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let sent = rig.fill(rig.room(A), 1)?;
    let (from, to) = (rig.range(3)?, rig.range(3)?);
    rig.put(rig.room(A), from)?;
    rig.keep_busy(Stream::Compute)?;
    rig.launch(COPY, &[from], &[to])?;
    let computed = rig.signal(Stream::Compute)?;
    rig.device().wait(Stream::Download, computed)?;
    rig.get(to, rig.room(B))?;
    rig.expect(rig.room(B), &rig.copied(&sent), "what was fetched behind a launch")
}
