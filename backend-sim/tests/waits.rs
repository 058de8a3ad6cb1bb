//! Every wait of a schedule matters, and the adversarial order shows it.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use backend_sim::{SimDevice, SimError, SimKernels, reference_digest};
use common::{OwnedPlan, Work, limits, lowered, machine, predicted_period_ns, verified};
use middleware::{Layer, Layered, LayeredKernels};
use planner_core::backend::{Paging, Point, Transfers};
use planner_core::plan::{ArenaPlacement, Pool, Resident};
use planner_core::{
    ExecuteError, Executor, Kind, OpId, Part, Scratch, Step, Stream, TensorId, Verified, executor,
};

/// A device that ignores one of the calls of `wait`.
struct Deaf {
    waits: u64,
    unheard: u64,
}

impl<D: Transfers + Paging> Layer<D> for Deaf {
    type Error = D::Error;

    fn wait(&mut self, device: &mut D, stream: Stream, point: Point) -> Result<(), D::Error> {
        self.waits += 1;
        if self.waits == self.unheard { Ok(()) } else { device.wait(stream, point) }
    }
}

type DeafDevice = Layered<SimDevice, Deaf>;

fn deaf(device: SimDevice, unheard: u64) -> DeafDevice {
    Layered::new(device, Deaf { waits: 0, unheard })
}

/// Two layers, forward and backward. The first layer's activation is offloaded and fetched. The
/// second layer's weight is fetched, updated and offloaded. Everything that moves is whole, so it
/// alternates between two ranges and the host never blocks for a range. Such a block would hide a
/// missing wait.
fn layers() -> (Work, OwnedPlan) {
    let mut work = Work::default();
    let [w0, w1] = [12, 11].map(|bytes| work.tensor(Kind::State, bytes));
    let input = work.tensor(Kind::Input, 8);
    let [a, b] = [7, 4].map(|bytes| work.tensor(Kind::Temporary, bytes));
    work.op(20, 0, &[input, w0], &[a]);
    work.op(20, 4, &[a, w1], &[b]);
    work.op(20, 0, &[b, w1], &[w1]);
    work.op(20, 0, &[a, w0, input], &[w0]);
    let whole = |id| Part::whole(TensorId(id));
    let launch = |op| Step::launch(OpId(op));
    let plan = OwnedPlan {
        pools: vec![Pool { object_bytes: 4, count: 12 }],
        resident_at_start: vec![Resident { part: whole(w0), host_copy: false }],
        steps: vec![
            Step::Prefetch(whole(input)),
            launch(0),
            Step::Prefetch(whole(w1)),
            Step::Offload(whole(a)),
            launch(1),
            Step::Evict(whole(a)),
            launch(2),
            Step::Offload(whole(w1)),
            Step::Evict(whole(w1)),
            Step::Evict(whole(b)),
            Step::Prefetch(whole(a)),
            launch(3),
            Step::Evict(whole(a)),
            Step::Evict(whole(input)),
        ],
        ..OwnedPlan::default()
    };
    (work, plan)
}

/// The same work, but the first layer's activation is dropped and made again. It lies in the arena,
/// so the host does not block for its range either.
fn repeated() -> (Work, OwnedPlan) {
    let (mut work, plan) = layers();
    work.graph.set_repeatable(OpId(0));
    let activation = Part::whole(TensorId(3));
    let step = |step: Step| match step {
        Step::Offload(part) | Step::Evict(part) if part == activation => None,
        Step::Prefetch(part) if part == activation => Some(Step::repeat(OpId(0))),
        step => Some(step),
    };
    let steps = plan.steps.iter().copied().filter_map(step).collect();
    let arena = vec![ArenaPlacement { tensor: activation.tensor, offset_bytes: 0 }];
    (work, OwnedPlan { arena_bytes: 8, arena, steps, ..plan })
}

/// Runs four iterations.
fn run(verified: &Verified<'_>, deaf: &mut DeafDevice) -> Result<u64, ExecuteError<SimError>> {
    let mut memory =
        vec![0; executor::scratch_words(&limits(verified.graph(), verified.plan()), 64)];
    let mut scratch = Scratch::new(&mut memory);
    let mut kernels = LayeredKernels(SimKernels::new(*verified.graph()));
    let mut executor = Executor::start(verified, deaf, &mut kernels, &mut scratch)?;
    executor.run(deaf, &mut kernels, 4)?;
    executor.save_states(deaf)?;
    Ok(kernels.0.digest(&deaf.device).unwrap())
}

/// The number of orders in which a device runs without one wait.
const SEEDS: u64 = 400;

fn hold((work, owned): (Work, OwnedPlan)) {
    let graph = work.graph();
    let machine = machine(4);
    let plan = owned.plan(&machine);
    let mut steps = Vec::new();
    let schedule = lowered(&graph, &machine, &plan, &mut steps);
    let verified = verified(&graph, &machine, &plan, &schedule);
    let reference = Ok(reference_digest(&graph, 4));

    let mut hears = deaf(SimDevice::new(machine), 0);
    assert_eq!(run(&verified, &mut hears), reference);
    assert_eq!(
        hears.device.period_ns(3, 4),
        Some(predicted_period_ns(&graph, &machine, &plan, &schedule)),
    );
    let waits = hears.layer.waits;
    for unheard in 1..=waits {
        let seen = (0..SEEDS).any(|seed| {
            let device = SimDevice::adversarial(machine, seed);
            run(&verified, &mut deaf(device, unheard)) != reference
        });
        assert!(seen, "wait {unheard} of {waits}");
    }
}

#[test]
fn every_wait_that_is_not_heard_is_seen() {
    hold(layers());
}

#[test]
fn so_is_every_wait_around_a_repeat() {
    hold(repeated());
}
