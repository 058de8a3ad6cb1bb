//! [`Stream::Network`]: launches of collectives, their order, and waits between them and other
//! streams.

use super::failure::{Outcome, ensure};
use super::host_plans::{drawn, has, run_all};
use super::plans::machine;
use super::rig::{self, A, B, C, COPY, D};
use super::streams::{count_five_points, update_in_order};
use super::{Bench, Rig};
use crate::graphs::{checked, graphs};
use integrity::Backend;
use planner_core::backend::{Point, Streams};
use planner_core::{Step, Stream};

/// The signals of the stream are 1, 2, 3, …. A wait for a point that has not been signalled is an
/// error and changes nothing.
pub fn points_are_counted_from_one<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.needs_network_stream()?;
    rig.set_up()?;
    count_five_points(rig, Stream::Network)?;
    let next = Point { stream: Stream::Network, value: 6 };
    for waiting in [Stream::Compute, Stream::Network] {
        ensure!(rig.device().wait(waiting, next).is_err(), "{waiting} accepts a wait for signal 6");
    }
    ensure!(rig.device().block_until(next).is_err(), "the device blocks until signal 6");
    rig.works()
}

/// Launches run in the order in which they are enqueued. Each uses the bytes that the launch before
/// it has written.
pub fn launches_run_in_order<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.needs_network_stream()?;
    rig.set_up()?;
    update_in_order(rig, Stream::Network)
}

/// If a launch waits for a launch on the other stream, it reads the bytes that this launch wrote.
pub fn the_network_and_compute_wait_for_each_other<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.needs_network_stream()?;
    rig.set_up()?;
    let sent = rig.fill(rig.slot(A), 1)?;
    let [from, between, after, to] = [rig.range(3)?, rig.range(3)?, rig.range(3)?, rig.range(3)?];
    rig.put(rig.slot(A), from)?;
    rig.keep_busy(Stream::Compute)?;
    rig.launch(COPY, &[from], &[between])?;
    rig.order(Stream::Compute, Stream::Network)?;
    rig.keep_busy(Stream::Network)?;
    rig.launch_on(Stream::Network, COPY, &[between], &[after])?;
    rig.order(Stream::Network, Stream::Compute)?;
    rig.launch(COPY, &[after], &[to])?;
    rig.finish(Stream::Compute)?;
    rig.get(to, rig.slot(B))?;
    let mut computed = sent;
    for _ in 0..3 {
        computed = rig.computed(COPY, &[&computed]);
    }
    rig.expect(rig.slot(B), &computed, "the bytes computed, exchanged and computed")
}

/// A launch that waits for an upload reads the uploaded bytes. A download that waits for the launch
/// copies the bytes that the launch wrote.
pub fn the_network_waits_for_uploads_and_downloads_for_it<T: Backend>(
    rig: &mut Rig<'_, T>,
) -> Outcome {
    rig.needs_network_stream()?;
    rig.set_up()?;
    let (from, to) = (rig.range(3)?, rig.range(3)?);
    rig.fill(rig.slot(A), 1)?;
    rig.put(rig.slot(A), from)?;
    let sent = rig.fill(rig.slot(A), 2)?;
    rig.keep_busy(Stream::Upload)?;
    rig.send(A, from)?;
    rig.order(Stream::Upload, Stream::Network)?;
    rig.keep_busy(Stream::Network)?;
    rig.launch_on(Stream::Network, COPY, &[from], &[to])?;
    rig.order(Stream::Network, Stream::Download)?;
    rig.get(to, rig.slot(B))?;
    rig.expect(rig.slot(B), &rig.computed(COPY, &[&sent]), "the bytes exchanged after an upload")
}

/// A launch that waits for a download does not change the bytes that the download copies. An upload
/// that waits for the launch does not change the bytes that the launch reads.
pub fn the_network_waits_for_downloads_and_uploads_for_it<T: Backend>(
    rig: &mut Rig<'_, T>,
) -> Outcome {
    rig.needs_network_stream()?;
    rig.set_up()?;
    let sent = rig.fill(rig.slot(A), 1)?;
    let old = rig.fill(rig.slot(B), 2)?;
    let (from, to) = (rig.range(3)?, rig.range(3)?);
    rig.put(rig.slot(A), from)?;
    rig.put(rig.slot(B), to)?;
    rig.keep_busy(Stream::Download)?;
    rig.fetch(to, C)?;
    rig.order(Stream::Download, Stream::Network)?;
    rig.keep_busy(Stream::Network)?;
    rig.launch_on(Stream::Network, COPY, &[from], &[to])?;
    rig.order(Stream::Network, Stream::Upload)?;
    rig.put(rig.slot(B), from)?;
    rig.finish(Stream::Network)?;
    rig.expect(rig.slot(C), &old, "the bytes fetched before they were overwritten")?;
    rig.get(to, rig.slot(D))?;
    rig.expect(rig.slot(D), &rig.computed(COPY, &[&sent]), "the bytes exchanged before an upload")
}

/// Random plans of graphs with collectives. States and outputs must be the graph's.
pub fn random_plans<T: Backend>(bench: &Bench<'_, T>) -> Outcome {
    let work = rig::work(&bench.machine);
    let rig = Rig::open(bench, &work)?;
    rig.needs_network_stream()?;
    rig.close()?;
    let machine = machine(bench);
    let plans = drawn(&machine, graphs(), |graph, plan| {
        checked(graph).has_collectives() && !has(plan, |step| matches!(step, Step::Host(_)))
    })?;
    run_all(bench, &plans)
}
