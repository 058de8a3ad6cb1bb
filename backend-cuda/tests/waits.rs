//! Every wait of a schedule matters on CUDA too: without it, and with the step that it waits for
//! delayed, results are wrong.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use backend_cuda::{CudaDevice, CudaError, Integrity};
use integrity::{Backend, reference_digest, states_digest};
use middleware::{Layer, Layered, LayeredKernels};
use planner_core::backend::{DeviceAddress, HostRange, Launch, Point, Streams, Transfers};
use planner_core::executor::Moment;
use planner_core::planner::{Auto, Lms, Strategy};
use planner_core::{ExecuteError, Graph, Kind, Machine, Stream, Verified};
use spillway::planning::{self, OwnedSchedule};
use workloads::OwnedPlan;

/// So long that everything else has ended; where the machine is so busy that it has not, longer.
const DELAYS_NS: [u64; 4] = [8_000_000, 32_000_000, 128_000_000, 512_000_000];
const ITERATIONS: u64 = 4;

/// A step of each iteration of a phase, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Position {
    stream: Stream,
    index: u64,
    phase: u64,
}

/// A wait of a step for another.
#[derive(Clone, Copy, Debug)]
struct Edge {
    of: Position,
    awaited: Position,
}

/// Delays the step that a wait is for, and does not hear the wait.
struct Deaf {
    edge: Option<Edge>,
    delay_ns: u64,
    hears: bool,
    /// Phases after which steps repeat, and steps of each stream in an iteration.
    phases: u64,
    steps: [u64; 3],
    /// Signals of each stream before the first iteration, once that has begun, and so far.
    base: Option<[u64; 3]>,
    signals: [u64; 3],
}

impl Deaf {
    /// The step of a stream that is being enqueued; none outside of iterations.
    fn position(&self, stream: Stream) -> Option<Position> {
        let done = self.signals[stream as usize] - self.base?[stream as usize];
        let steps = self.steps[stream as usize];
        let phase = done.checked_div(steps)? % self.phases;
        Some(Position { stream, index: done % steps, phase })
    }

    fn delay(&self, device: &mut CudaDevice, stream: Stream) -> Result<(), CudaError> {
        let position = self.position(stream);
        if self.edge.is_some_and(|edge| Some(edge.awaited) == position) {
            device.occupy(stream, self.delay_ns)?;
        }
        Ok(())
    }
}

impl Layer<CudaDevice> for Deaf {
    type Error = CudaError;

    fn wait(
        &mut self,
        device: &mut CudaDevice,
        stream: Stream,
        point: Point,
    ) -> Result<(), CudaError> {
        let position = self.position(stream);
        let is_it = self
            .edge
            .is_some_and(|edge| Some(edge.of) == position && edge.awaited.stream == point.stream);
        if is_it && !self.hears { Ok(()) } else { device.wait(stream, point) }
    }

    fn signal(&mut self, device: &mut CudaDevice, stream: Stream) -> Result<Point, CudaError> {
        let point = device.signal(stream)?;
        self.signals[stream as usize] = point.value;
        Ok(point)
    }

    fn upload(
        &mut self,
        device: &mut CudaDevice,
        from: HostRange,
        to: DeviceAddress,
    ) -> Result<(), CudaError> {
        self.delay(device, Stream::Upload)?;
        device.upload(from, to)
    }

    fn download(
        &mut self,
        device: &mut CudaDevice,
        from: DeviceAddress,
        to: HostRange,
    ) -> Result<(), CudaError> {
        self.delay(device, Stream::Download)?;
        device.download(from, to)
    }

    fn launch(
        &mut self,
        device: &mut CudaDevice,
        launch: &Launch<'_>,
        run: impl FnOnce(&mut CudaDevice, &Launch<'_>) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        self.delay(device, Stream::Compute)?;
        run(device, launch)
    }
}

/// Runs a plan, with a wait that is heard or not; the digest of all states. In a thread of its own,
/// since the driver's time lags behind for a thread that has waited much, and a delay that lies in
/// the past delays nothing.
fn run(
    verified: &Verified<'_>,
    backend: &Integrity,
    delayed: (Option<Edge>, u64),
    hears: bool,
) -> u64 {
    std::thread::scope(|scope| {
        scope.spawn(|| run_here(verified, backend, delayed, hears)).join().unwrap()
    })
}

fn run_here(
    verified: &Verified<'_>,
    backend: &Integrity,
    (edge, delay_ns): (Option<Edge>, u64),
    hears: bool,
) -> u64 {
    let graph = *verified.graph();
    let schedule = verified.schedule();
    let layer = Deaf {
        edge,
        delay_ns,
        hears,
        phases: u64::from(schedule.iterations),
        steps: Stream::ON_DEVICE.map(|stream| u64::from(schedule.stream_steps[stream])),
        base: None,
        signals: [0; 3],
    };
    let mut device = backend.open(*verified.machine(), 0).unwrap();
    let mut kernels = LayeredKernels(backend.kernels(&mut device, graph).unwrap());
    let mut device = Layered::new(device, layer);
    planning::with_executor(verified, &mut device, &mut kernels, |mut executor, device, kernels| {
        device.layer.base = Some(device.layer.signals);
        executor.run(device, kernels, ITERATIONS)?;
        executor.save_states(device)?;
        states_digest(&graph, device, executor.host_layout())
            .map_err(|error| ExecuteError::Device { at: Moment::Save, error })
    })
    .unwrap()
}

/// The waits of a schedule's steps, each with its position in the list.
fn edges(schedule: &OwnedSchedule) -> Vec<(usize, Edge)> {
    let phases = u64::from(schedule.iterations);
    let per_phase = schedule.steps.len() / phases as usize;
    let mut edges = Vec::new();
    for (at, entry) in schedule.steps.iter().enumerate() {
        let Some(stream) = entry.stream() else { continue };
        let phase = (at / per_phase) as u64;
        for (awaited, wait) in entry.waits() {
            let Some(wait) = wait else { continue };
            let iterations = u64::from(wait.iterations_back) % phases;
            let awaited = Position {
                stream: awaited,
                index: wait.index.into(),
                phase: (phase + phases - iterations) % phases,
            };
            edges.push((
                at,
                Edge { of: Position { stream, index: entry.index().into(), phase }, awaited },
            ));
        }
    }
    edges
}

/// Drops each wait of a plan's schedule in turn.
fn hold(graph: &Graph<'_>, machine: &Machine, backend: &Integrity, plan: &OwnedPlan) {
    let plan = plan.plan();
    let schedule = planning::schedule(graph, machine, &plan).unwrap();
    let lowered = schedule.schedule();
    let verified = planning::prove(graph, machine, &plan, &lowered).unwrap();
    let reference = reference_digest(graph, ITERATIONS);
    assert_eq!(run(&verified, backend, (None, 0), true), reference);
    let edges = edges(&schedule);
    assert!(edges.len() > 10, "{} waits are too few to show much", edges.len());
    let mut unseen = Vec::new();
    for &(at, edge) in &edges {
        let mut without = schedule.clone();
        without.steps[at].set_wait(edge.awaited.stream, None);
        assert!(planning::prove(graph, machine, &plan, &without.schedule()).is_err(), "{edge:?}");
        let heard = run(&verified, backend, (Some(edge), DELAYS_NS[0]), true);
        assert_eq!(heard, reference, "{edge:?}");
        let is_seen =
            |&delay_ns: &u64| run(&verified, backend, (Some(edge), delay_ns), false) != reference;
        if !DELAYS_NS.iter().any(is_seen) {
            unseen.push(edge);
        }
    }
    let (steps, period_ns) = (plan.steps.len(), plan.predicted.period_ns);
    println!(
        "{} waits of {steps} steps in {period_ns} ns, each rejected; {} not seen",
        edges.len(),
        unseen.len()
    );
    assert!(unseen.is_empty(), "{unseen:#?}");
}

#[test]
fn every_wait_that_is_not_heard_is_seen() {
    let (_, backend, machine) = common::emulated();
    let work = common::training_step(machine.chunk_bytes, Kind::Input);
    let graph = work.graph().unwrap();
    let auto = Strategy::Auto(Auto::new().with_effort(3));
    let lms = Strategy::Lms(Lms::new().with_threshold(1).with_ahead(1));
    let wants = [
        (Strategy::OnDemand, 0),
        (Strategy::OnDemand, 3),
        (Strategy::Fit, 1),
        (lms, 2),
        (auto, 2),
        (auto, 4),
    ];
    let mut plans = Vec::new();
    for (strategy, spare) in wants {
        let plan = common::placed(&graph, &machine, strategy, spare);
        if !plans.contains(&plan.steps) {
            hold(&graph, &machine, &backend, &plan);
            plans.push(plan.steps);
        }
    }
    assert!(plans.len() >= 5, "{} different plans", plans.len());
}
