//! Every wait of a schedule matters, and the adversary shows it.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use backend_sim::{SimDevice, SimError, SimKernels, reference_digest};
use common::{OwnedPlan, Work, limits, lowered, machine, predicted_period_ns, verified};
use planner_core::backend::{
    Chunks, DeviceAddress, ErrorType, HostRange, Kernels, Launch, Paging, Point, Streams, Transfers,
};
use planner_core::plan::{Pool, Resident};
use planner_core::{
    ExecuteError, Executor, HostRooms, Kind, OpId, Part, Scratch, Step, Stream, TensorId, Verified,
    executor,
};

/// A device that does not hear one of the calls of `wait`.
struct Deaf<'g> {
    device: SimDevice<'g>,
    waits: u64,
    unheard: u64,
}

impl ErrorType for Deaf<'_> {
    type Error = SimError;
}

impl Streams for Deaf<'_> {
    fn wait(&mut self, stream: Stream, point: Point) -> Result<(), SimError> {
        self.waits += 1;
        if self.waits == self.unheard { Ok(()) } else { self.device.wait(stream, point) }
    }

    fn signal(&mut self, stream: Stream) -> Result<Point, SimError> {
        self.device.signal(stream)
    }

    fn reached(&mut self, point: Point) -> Result<bool, SimError> {
        self.device.reached(point)
    }

    fn block_until(&mut self, point: Point) -> Result<(), SimError> {
        self.device.block_until(point)
    }
}

impl Transfers for Deaf<'_> {
    fn create_host(&mut self, rooms: &HostRooms<'_>) -> Result<(), SimError> {
        self.device.create_host(rooms)
    }

    fn upload(&mut self, from: HostRange, to: DeviceAddress) -> Result<(), SimError> {
        self.device.upload(from, to)
    }

    fn download(&mut self, from: DeviceAddress, to: HostRange) -> Result<(), SimError> {
        self.device.download(from, to)
    }
}

impl Paging for Deaf<'_> {
    fn chunk_bytes(&self) -> u64 {
        self.device.chunk_bytes()
    }

    fn create(&mut self, count: u64) -> Result<(), SimError> {
        self.device.create(count)
    }

    fn reserve(&mut self, chunks: u64) -> Result<DeviceAddress, SimError> {
        self.device.reserve(chunks)
    }

    fn map(&mut self, at: DeviceAddress, chunks: Chunks) -> Result<(), SimError> {
        self.device.map(at, chunks)
    }

    fn unmap(&mut self, at: DeviceAddress, chunks: u64) -> Result<(), SimError> {
        self.device.unmap(at, chunks)
    }
}

struct DeafKernels<'g>(SimKernels<'g>);

impl<'g> Kernels<Deaf<'g>> for DeafKernels<'g> {
    fn launch(&mut self, device: &mut Deaf<'g>, launch: &Launch<'_>) -> Result<(), SimError> {
        self.0.launch(&mut device.device, launch)
    }

    fn fill_inputs(&mut self, device: &mut Deaf<'g>, iteration: u64) -> Result<(), SimError> {
        self.0.fill_inputs(&mut device.device, iteration)
    }
}

/// Two layers forward and backward. The first layer's activation goes out and comes back;
/// the second layer's weight comes, is updated, and goes. Everything that moves is whole, so
/// that it alternates between two ranges and the host never blocks for one: that would hide
/// a missing wait.
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
    let launch = |op| Step::Launch(OpId(op));
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

/// Runs four iterations.
fn run<'g>(verified: &Verified<'g>, deaf: &mut Deaf<'g>) -> Result<u64, ExecuteError<SimError>> {
    let mut memory =
        vec![0; executor::scratch_words(&limits(verified.graph(), verified.plan()), 64)];
    let mut scratch = Scratch::new(&mut memory);
    let mut kernels = DeafKernels(SimKernels::new(*verified.graph()));
    let mut executor = Executor::start(verified, deaf, &mut kernels, &mut scratch)?;
    executor.run(deaf, &mut kernels, 4)?;
    executor.finish(deaf)?;
    Ok(deaf.device.digest().unwrap())
}

#[test]
fn every_wait_that_is_not_heard_is_seen_within_fifty_seeds() {
    let (work, owned) = layers();
    let graph = work.graph();
    let machine = machine(4);
    let plan = owned.plan(&machine);
    let mut steps = Vec::new();
    let schedule = lowered(&graph, &machine, &plan, &mut steps);
    let verified = verified(&graph, &machine, &plan, &schedule);
    let reference = Ok(reference_digest(&graph, 4));

    let mut deaf = Deaf { device: SimDevice::new(graph, machine), waits: 0, unheard: 0 };
    assert_eq!(run(&verified, &mut deaf), reference);
    assert_eq!(
        deaf.device.period_ns(3, 4),
        Some(predicted_period_ns(&graph, &machine, &plan, &schedule)),
    );
    for unheard in 1..=deaf.waits {
        let seen = (0..50).any(|seed| {
            let device = SimDevice::adversarial(graph, machine, seed);
            run(&verified, &mut Deaf { device, waits: 0, unheard }) != reference
        });
        assert!(seen, "wait {unheard} of {}", deaf.waits);
    }
}
