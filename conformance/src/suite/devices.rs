//! Whole devices: they are opened and dropped, in any state and any order.

use super::failure::Outcome;
use super::rig::{self, A, C, D, Rig, UPDATE};
use super::{Bench, Failure};
use integrity::Backend;
use planner_core::Stream;
use planner_core::backend::Streams;

/// A device may be dropped at any time: unused, half set up, with mappings, with work that has not
/// ended, and with waits that have not been met.
pub fn a_device_may_be_dropped_at_any_time<T: Backend>(bench: &Bench<'_, T>) -> Outcome {
    let stages: [fn(&mut Rig<'_, T>) -> Outcome; 6] = [
        |_| Ok(()),
        |rig| rig.create(),
        |rig| rig.set_up(),
        |rig| rig.set_up().and_then(|()| rig.range(3)).map(drop),
        |rig| {
            rig.set_up()?;
            let (c, d) = (rig.range(3)?, rig.range(3)?);
            rig.send(C, c)?;
            rig.send(D, d)?;
            rig.order(Stream::Upload, Stream::Compute)?;
            rig.launch(UPDATE, &[c, d], &[c])?;
            rig.order(Stream::Compute, Stream::Download)?;
            rig.fetch(c, A)
        },
        |rig| {
            rig.set_up()?;
            rig.keep_busy(Stream::Upload)?;
            let point = rig.signal(Stream::Upload)?;
            Ok(rig.device().wait(Stream::Download, point)?)
        },
    ];
    let work = rig::work(&bench.machine);
    for (stage, prepare) in stages.into_iter().enumerate() {
        let dropped = Rig::open(bench, &work).and_then(|mut rig| {
            prepare(&mut rig)?;
            rig.close()
        });
        dropped.map_err(|failure| failure.context(format_args!("stage {stage}")))?;
    }
    let mut rig = Rig::open(bench, &work)?;
    rig.set_up()?;
    rig.works()?;
    rig.close()
}

/// If a device is dropped and cannot wait for one of its streams, it does not free memory that the
/// stream's work may still use. [`Backend::close`] would report it. The next device works.
pub fn a_failed_wait_frees_nothing_in_use<T: Backend>(bench: &Bench<'_, T>) -> Outcome {
    let work = rig::work(&bench.machine);
    let mut rig = Rig::open(bench, &work)?;
    rig.set_up()?;
    rig.fail_next_wait()?;
    for stream in Stream::ON_DEVICE {
        rig.keep_busy(stream)?;
    }
    rig.close()?;
    let mut rig = Rig::open(bench, &work)?;
    rig.set_up()?;
    rig.works()?;
    rig.close()
}

/// Two devices at a time are independent of each other, and either may be dropped first.
pub fn two_devices_do_not_disturb_each_other<T: Backend>(bench: &Bench<'_, T>) -> Outcome {
    let work = rig::work(&bench.machine);
    let open = || {
        let mut rig = Rig::open(bench, &work)?;
        rig.set_up()?;
        Ok::<_, Failure>(rig)
    };
    for first_goes in [true, false] {
        let [mut stays, mut goes] = if first_goes {
            let goes = open()?;
            [open()?, goes]
        } else {
            [open()?, open()?]
        };
        let (at, other) = (stays.range(3)?, goes.range(3)?);
        let sent = stays.fill(stays.slot(A), 1)?;
        goes.fill(goes.slot(D), 2)?;
        stays.send(A, at)?;
        goes.send(D, other)?;
        stays.finish(Stream::Upload)?;
        goes.works()?;
        goes.close()?;
        stays.get(at, stays.slot(C))?;
        stays.expect(stays.slot(C), &sent, "the bytes sent before another device went")?;
        stays.works()?;
        stays.close()?;
    }
    Ok(())
}
