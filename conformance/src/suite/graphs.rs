//! Graphs: captured work runs in every launch of the graph as if it had been enqueued.

use super::failure::{Failure, Outcome, ensure};
use super::rig::{A, B, C, COPY, COUNT, D, TICK, UPDATE};
use super::{Bench, Rig, rig};
use integrity::Graphs;
use planner_core::Stream;
use planner_core::backend::{Chunks, DeviceAddress, Paging, Transfers};
use std::thread;

/// Captures some work.
fn captured<T: Graphs>(
    rig: &mut Rig<'_, T>,
    work: impl FnOnce(&mut Rig<'_, T>) -> Outcome,
) -> Outcome<T::Graph> {
    let (backend, device) = rig.backend_and_device();
    backend.begin_capture(device)?;
    let worked = work(rig);
    let (backend, device) = rig.backend_and_device();
    let graph = backend.end_capture(device);
    worked?;
    Ok(graph?)
}

fn launch<T: Graphs>(rig: &mut Rig<'_, T>, graph: &T::Graph, iterations_later: u64) -> Outcome {
    let (backend, device) = rig.backend_and_device();
    Ok(backend.launch_graph(device, graph, iterations_later)?)
}

/// Enqueues kernels on compute that write the number of their iteration.
fn note<T: Graphs>(rig: &mut Rig<'_, T>, iteration: u64, at: DeviceAddress) -> Outcome {
    note_on(rig, Stream::Compute, iteration, at)
}

fn note_on<T: Graphs>(
    rig: &mut Rig<'_, T>,
    stream: Stream,
    iteration: u64,
    at: DeviceAddress,
) -> Outcome {
    rig.in_iteration(stream, iteration, |backend, device, launch| {
        backend.write_iteration(device, launch, at)
    })
}

/// Fails unless this number was written.
fn expect_number<T: Graphs>(
    rig: &mut Rig<'_, T>,
    at: DeviceAddress,
    number: u64,
    what: &str,
) -> Outcome {
    rig.finish(Stream::Compute)?;
    let slot = rig.host(B, 0..8);
    rig.get(at, slot)?;
    rig.expect(slot, &number.to_le_bytes(), what)
}

/// Kernels get the iteration in which they run, and not the captured iteration: when they are
/// enqueued, in each launch of a graph, and when they are enqueued again.
pub fn kernels_find_their_iteration<T: Graphs>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let [one, other] = [rig.range(1)?, rig.range(1)?];
    note(rig, 1, one)?;
    expect_number(rig, one, 1, "the iteration of a launch")?;
    rig.signal(Stream::Compute)?;
    let graph = captured(rig, |rig| {
        note(rig, 2, one)?;
        note(rig, 3, other)?;
        rig.signal(Stream::Compute).map(drop)
    })?;
    for later in [0, 2, 40] {
        launch(rig, &graph, later)?;
        expect_number(rig, one, 2 + later, "the first iteration of a graph")?;
        expect_number(rig, other, 3 + later, "the second iteration of a graph")?;
    }
    note(rig, 50, one)?;
    rig.signal(Stream::Compute)?;
    expect_number(rig, one, 50, "the iteration of a launch after graphs")
}

/// A graph copies over several mappings and launches through aliases of them. Each launch reads the
/// current contents of the host block.
pub fn graphs_copy_over_mappings_and_aliases<T: Graphs>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    // Three mappings of a chunk each, and one alias of all three.
    let from = rig.device().reserve(3)?;
    let bytes = rig.chunk_bytes();
    for first in 0..3 {
        rig.device().map(DeviceAddress(from.0 + first * bytes), Chunks { first, count: 1 })?;
    }
    let alias = rig.mapped(Chunks { first: 0, count: 3 })?;
    rig.range(3)?;
    let to = rig.scattered(3)?;
    let [sent, fetched] = [rig.slot(A), rig.slot(C)];
    let graph = captured(rig, |rig| {
        rig.device().upload(sent, from)?;
        rig.order(Stream::Upload, Stream::Compute)?;
        rig.launch(COPY, &[alias], &[to])?;
        rig.order(Stream::Compute, Stream::Download)?;
        rig.device().download(to, fetched)?;
        rig.signal(Stream::Download).map(drop)
    })?;
    for seed in 1..4 {
        let sent = rig.fill(sent, seed)?;
        launch(rig, &graph, 0)?;
        rig.finish(Stream::Download)?;
        rig.expect(fetched, &rig.computed(COPY, &[&sent]), "the bytes that a graph computed")?;
    }
    Ok(())
}

/// A graph runs ops on the host between downloads and uploads. Each launch reads the current
/// contents of the host block.
pub fn graphs_run_ops_on_the_host<T: Graphs>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.needs_host_stream()?;
    rig.set_up()?;
    let [from, to] = [rig.range(3)?, rig.range(3)?];
    let [sent, fetched, other] = [rig.slot(A), rig.slot(C), rig.slot(D)];
    let kept = rig.fill(other, 9)?;
    let graph = captured(rig, |rig| {
        rig.device().upload(sent, from)?;
        rig.order(Stream::Upload, Stream::Download)?;
        rig.device().download(from, fetched)?;
        rig.order(Stream::Download, Stream::Host)?;
        rig.launch_on_host(UPDATE, &[fetched, other], &[fetched])?;
        rig.order(Stream::Host, Stream::Upload)?;
        rig.device().upload(fetched, to)?;
        rig.signal(Stream::Upload).map(drop)
    })?;
    for seed in 1..4 {
        let sent = rig.fill(sent, seed)?;
        launch(rig, &graph, 0)?;
        rig.finish(Stream::Upload)?;
        rig.get(to, rig.slot(B))?;
        let computed = rig.computed(UPDATE, &[&sent, &kept]);
        rig.expect(rig.slot(B), &computed, "the bytes that a graph computed on the host")?;
    }
    Ok(())
}

/// A graph runs collectives beside launches on compute, and they find their iteration while those
/// launches find another. Each launch reads the current contents of the host block.
pub fn graphs_run_collectives<T: Graphs>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.needs_network_stream()?;
    rig.set_up()?;
    let [from, to, own, other] = [rig.range(3)?, rig.range(3)?, rig.range(1)?, rig.range(1)?];
    let [sent, fetched] = [rig.slot(A), rig.slot(C)];
    let graph = captured(rig, |rig| {
        rig.device().upload(sent, from)?;
        rig.order(Stream::Upload, Stream::Network)?;
        note_on(rig, Stream::Network, 2, own)?;
        note(rig, 3, other)?;
        rig.launch_on(Stream::Network, COPY, &[from], &[to])?;
        rig.order(Stream::Network, Stream::Download)?;
        rig.device().download(to, fetched)?;
        rig.signal(Stream::Download)?;
        rig.signal(Stream::Compute).map(drop)
    })?;
    for later in [0, 2, 40] {
        let sent = rig.fill(sent, later + 1)?;
        launch(rig, &graph, later)?;
        rig.finish(Stream::Download)?;
        rig.expect(fetched, &rig.computed(COPY, &[&sent]), "the bytes that a graph exchanged")?;
        expect_number(rig, own, 2 + later, "the iteration of a collective")?;
        expect_number(rig, other, 3 + later, "the iteration beside a collective")?;
    }
    Ok(())
}

/// An op on the host runs in the iteration of the launch, and not in the captured iteration. If it
/// fails in a later iteration, the launch of that iteration fails, and the error names the
/// iteration.
pub fn host_ops_find_their_iteration<T: Graphs>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.needs_host_stream()?;
    rig.set_up()?;
    rig.fail_host_op(TICK, 7)?;
    let count = rig.slot(COUNT);
    let mut value = rig.fill(count, 1)?;
    let graph = captured(rig, |rig| {
        rig.launch_on_host_in(2, TICK, &[count], &[count])?;
        rig.signal(Stream::Host).map(drop)
    })?;
    for later in [0, 1, 4, 40] {
        launch(rig, &graph, later)?;
        rig.finish(Stream::Host)?;
        value = rig.computed(TICK, &[&value]);
        rig.expect(count, &value, "the bytes that an op on the host made in a graph")?;
    }
    let failed = launch(rig, &graph, 5).and_then(|()| rig.finish(Stream::Host));
    let said = failed.err().map(|failure| failure.to_string()).unwrap_or_default();
    ensure!(
        said.contains(&TICK.to_string()) && said.contains("iteration 7"),
        "an op fails in iteration 7, but the device reports: {said}"
    );
    Ok(())
}

/// While a device captures, another thread opens another device, uses it and drops it. The graph
/// holds exactly the captured work.
pub fn another_device_works_beside_a_capture<T: Graphs>(bench: &Bench<'_, T>) -> Outcome {
    let work = rig::work(&bench.machine);
    let mut one = Rig::open(bench, &work)?;
    one.set_up()?;
    let [from, to] = [one.range(3)?, one.range(3)?];
    let [sent, fetched] = [one.slot(A), one.slot(C)];
    let beside = || {
        let mut other = Rig::open(bench, &work)?;
        other.set_up()?;
        other.works()?;
        other.close()
    };
    let graph = captured(&mut one, |rig| {
        rig.device().upload(sent, from)?;
        rig.order(Stream::Upload, Stream::Compute)?;
        let worked = thread::scope(|scope| scope.spawn(beside).join());
        worked.map_err(|_| Failure::new("the other device panics"))??;
        rig.launch(COPY, &[from], &[to])?;
        rig.order(Stream::Compute, Stream::Download)?;
        rig.device().download(to, fetched)?;
        rig.signal(Stream::Download).map(drop)
    })?;
    let sent = one.fill(sent, 1)?;
    launch(&mut one, &graph, 0)?;
    one.finish(Stream::Download)?;
    one.expect(fetched, &one.computed(COPY, &[&sent]), "the bytes that a graph computed")?;
    one.close()
}

/// A graph is refused on another device, after memory was unmapped, and after its device is
/// dropped.
pub fn foreign_and_late_graphs_are_refused<T: Graphs>(bench: &Bench<'_, T>) -> Outcome {
    let work = rig::work(&bench.machine);
    let [mut one, mut other] = [Rig::open(bench, &work)?, Rig::open(bench, &work)?];
    one.set_up()?;
    other.set_up()?;
    let at = one.range(1)?;
    let graph = captured(&mut one, |rig| rig.signal(Stream::Compute).map(drop))?;
    launch(&mut one, &graph, 0)?;
    ensure!(
        launch(&mut other, &graph, 0).is_err(),
        "a device launches the graph of another device"
    );
    one.finish(Stream::Compute)?;
    one.device().unmap(at, 1)?;
    ensure!(launch(&mut one, &graph, 0).is_err(), "a graph is launched after memory was unmapped");
    one.works()?;
    one.close()?;
    ensure!(
        launch(&mut other, &graph, 0).is_err(),
        "a graph is launched after its device is dropped"
    );
    other.works()?;
    other.close()
}
