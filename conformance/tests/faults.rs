//! Devices that fail: whatever happens and whenever, the error says so, and every value that
//! the host held is there.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use backend_sim::{Fault, Sim, SimDevice, SimError, SimKernels, reference_digest};
use conformance::graphs::training_graphs;
use integrity::{Reading, Rooms, Value, value};
use middleware::{Faults, FaultyError, Layer, Layered, LayeredKernels};
use planner_core::backend::{
    BackendError, DeviceAddress, ErrorKind, HostRange, Launch, Paging, Point, Streams, Transfers,
};
use planner_core::planner::{Request, Strategy};
use planner_core::{ExecuteError, Graph, HostRooms, Kind, Limits, Scratch, Stream, Verified};
use proptest::strategy::{Strategy as _, ValueTree};
use proptest::test_runner::TestRunner;
use spillway::{placing, planning};

const ITERATIONS: u64 = 6;
const SEEDS: u64 = 300;

/// Knows what the host must hold: the initial states, and what downloads that have ended have
/// brought since.
struct Host<'g> {
    graph: Graph<'g>,
    rooms: Rooms<'g>,
    /// The values of all tensors behind the launches that are enqueued.
    values: Vec<Value>,
    /// Bytes of the block; none where it cannot be known.
    bytes: Vec<Option<u8>>,
    /// Downloads that may not have ended: the point of each, where it writes, and what.
    under_way: Vec<(u64, HostRange, Vec<u8>)>,
    signals: u64,
}

impl<'g> Host<'g> {
    fn new(graph: Graph<'g>, rooms: &HostRooms<'_>) -> Self {
        let mut host = Self {
            graph,
            rooms: Rooms::new(graph, rooms),
            values: Vec::new(),
            bytes: vec![None; rooms.bytes() as usize],
            under_way: Vec::new(),
            signals: 0,
        };
        for tensor in graph.tensor_ids() {
            let bytes = graph.tensor(tensor).bytes;
            let value = value::initial_state(tensor, bytes);
            host.values.push(value);
            if graph.tensor(tensor).kind == Kind::State {
                let room =
                    HostRange { tensor, offset_bytes: host.rooms.offset_bytes(tensor, 0), bytes };
                host.learn(room, &filled(value, 0, bytes));
            }
        }
        host
    }

    fn learn(&mut self, range: HostRange, bytes: &[u8]) {
        for (known, &byte) in self.bytes[range.offset_bytes as usize..].iter_mut().zip(bytes) {
            *known = Some(byte);
        }
    }

    fn has_ended(&mut self, point: Point) {
        if point.stream != Stream::Download {
            return;
        }
        let (ended, under_way) =
            self.under_way.drain(..).partition(|&(value, ..)| value <= point.value);
        self.under_way = under_way;
        let ended: Vec<(u64, HostRange, Vec<u8>)> = ended;
        for (_, range, bytes) in ended {
            self.learn(range, &bytes);
        }
        // A later copy to the same bytes may have begun.
        for (_, range, _) in &self.under_way {
            self.bytes[range.offset_bytes as usize..][..range.bytes as usize].fill(None);
        }
    }

    fn check(&self, device: &SimDevice<'_>) -> Result<(), String> {
        let mut block = vec![0; self.bytes.len()];
        device.read_host(0, &mut block).map_err(|error| error.to_string())?;
        match block
            .iter()
            .zip(&self.bytes)
            .position(|(byte, known)| known.is_some_and(|known| known != *byte))
        {
            None => Ok(()),
            Some(at) => Err(format!("byte {at} of the host's block is lost")),
        }
    }
}

fn filled(value: Value, offset_bytes: u64, bytes: u64) -> Vec<u8> {
    let mut filled = vec![0; bytes as usize];
    value.fill(offset_bytes, &mut filled);
    filled
}

impl<D: Transfers + Paging> Layer<D> for Host<'_> {
    type Error = D::Error;

    fn signal(&mut self, device: &mut D, stream: Stream) -> Result<Point, D::Error> {
        self.signals += u64::from(stream == Stream::Download);
        device.signal(stream)
    }

    fn reached(&mut self, device: &mut D, point: Point) -> Result<bool, D::Error> {
        let is_reached = device.reached(point)?;
        if is_reached {
            self.has_ended(point);
        }
        Ok(is_reached)
    }

    fn block_until(&mut self, device: &mut D, point: Point) -> Result<(), D::Error> {
        device.block_until(point)?;
        self.has_ended(point);
        Ok(())
    }

    fn download(
        &mut self,
        device: &mut D,
        from: DeviceAddress,
        to: HostRange,
    ) -> Result<(), D::Error> {
        if self.graph.tensor(to.tensor).kind == Kind::State {
            let first = to.offset_bytes - self.rooms.offset_bytes(to.tensor, 0);
            let bytes = filled(self.values[to.tensor.index()], first, to.bytes);
            self.bytes[to.offset_bytes as usize..][..to.bytes as usize].fill(None);
            self.under_way.push((self.signals + 1, to, bytes));
        }
        device.download(from, to)
    }

    fn launch(
        &mut self,
        device: &mut D,
        launch: &Launch<'_>,
        run: impl FnOnce(&mut D, &Launch<'_>) -> Result<(), D::Error>,
    ) -> Result<(), D::Error> {
        let (graph, op) = (self.graph, launch.op);
        let reads = graph.reads(op).iter().map(|&tensor| match graph.tensor(tensor) {
            data if data.kind == Kind::Input => value::input(tensor, launch.iteration, data.bytes),
            _ => self.values[tensor.index()],
        });
        let result = value::op_result(op, reads.map(Reading::exact));
        for (position, &tensor) in (0..).zip(graph.writes(op)) {
            let written = value::written(result, position, graph.tensor(tensor).bytes);
            self.values[tensor.index()] = written;
        }
        run(device, launch)
    }
}

/// Hands on verified plans of random training steps for the least memory, mapped as they go and
/// mapped once.
fn with_plans(mut then: impl FnMut(&Verified<'_>)) {
    let machine = Sim::default().machine;
    let mut runner = TestRunner::deterministic();
    for _ in 0..3 {
        let graph = training_graphs(2..=4).new_tree(&mut runner).unwrap().current();
        let graph = graph.graph().unwrap();
        let request = Request { graph: &graph, machine: &machine, budget_bytes: 0 };
        let (budget_bytes, _) = planning::min_feasible(&request, Strategy::OnDemand).unwrap();
        let plan = planning::plan(&Request { budget_bytes, ..request }, Strategy::OnDemand);
        let plan = plan.unwrap();
        let placed = placing::place(&graph, &machine, &plan, u64::MAX).ok();
        for plan in [plan].iter().chain(&placed) {
            let plan = plan.plan();
            let schedule = planning::schedule(&graph, &machine, &plan).unwrap();
            let schedule = schedule.schedule();
            then(&planning::prove(&graph, &machine, &plan, &schedule).unwrap());
        }
    }
}

fn with_rooms<T>(verified: &Verified<'_>, then: impl FnOnce(&HostRooms<'_>) -> T) -> T {
    let (graph, plan) = (verified.graph(), verified.plan());
    let mut memory = vec![0; HostRooms::scratch_words(&Limits::of_plan(graph, plan))];
    let scratch = &mut Scratch::new(&mut memory);
    then(&HostRooms::new(graph, verified.machine(), plan, scratch).unwrap())
}

/// Runs a plan on a device with a fault. The error, if there is one; then the host is checked,
/// else the digest.
fn run(verified: &Verified<'_>, fault: Fault, seed: u64) -> Option<ExecuteError<SimError>> {
    let (graph, machine) = (*verified.graph(), *verified.machine());
    let device = SimDevice::adversarial(graph, machine, seed).with_bytes().failing(fault, seed);
    let host = with_rooms(verified, |rooms| Host::new(graph, rooms));
    let mut device = Layered::new(device, host);
    let mut kernels = LayeredKernels(SimKernels::new(graph));
    let error = planning::execute(verified, &mut device, &mut kernels, ITERATIONS).err();
    let Layered { device, layer: host } = device;
    match error {
        None => assert_eq!(device.digest(), Ok(reference_digest(&graph, ITERATIONS))),
        // Where there is no block, the host has lost nothing.
        Some(_) if device.read_host(0, &mut [0]).is_err() => {}
        Some(_) => host.check(&device).unwrap(),
    }
    error
}

/// The errors of all plans in all orders.
fn errors(fault: Fault) -> Vec<ExecuteError<SimError>> {
    let mut errors = Vec::new();
    with_plans(|verified| errors.extend((0..SEEDS).filter_map(|seed| run(verified, fault, seed))));
    errors
}

/// All errors are of the device and of this kind, and they say so in these words.
fn all_say(errors: &[ExecuteError<SimError>], kinds: &[ErrorKind], words: &str) {
    for error in errors {
        let ExecuteError::Device { error: cause, .. } = error else { panic!("{error}") };
        assert!(kinds.contains(&cause.kind()), "{error}: {:?}", cause.kind());
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn refused_allocations_are_out_of_memory() {
    let errors = errors(Fault::Allocations);
    assert!(errors.len() > 100, "{}", errors.len());
    all_say(
        &errors,
        &[ErrorKind::OutOfDeviceMemory, ErrorKind::OutOfHostMemory],
        "no memory on the",
    );
}

#[test]
fn a_failed_copy_is_reported_and_the_host_keeps_its_values() {
    let errors = errors(Fault::Copies);
    assert!(errors.len() > 100, "{}", errors.len());
    all_say(&errors, &[ErrorKind::Other], "load number");
}

#[test]
fn a_lost_device_is_reported_and_the_host_keeps_its_values() {
    let errors = errors(Fault::Loss);
    assert!(errors.len() > 100, "{}", errors.len());
    all_say(&errors, &[ErrorKind::Lost], "the device is lost");
}

#[test]
fn delays_change_no_result() {
    assert_eq!(errors(Fault::Delays), []);
}

/// The same faults from outside, on a device that knows nothing of them.
#[test]
fn injected_faults_are_reported_and_delays_change_no_result() {
    let run = |verified: &Verified<'_>, faults: Faults, seed| {
        let (graph, machine) = (*verified.graph(), *verified.machine());
        let mut device = Layered::new(SimDevice::adversarial(graph, machine, seed), faults);
        let mut kernels = LayeredKernels(SimKernels::new(graph));
        let ran = planning::execute(verified, &mut device, &mut kernels, ITERATIONS);
        ran.map(|()| assert_eq!(device.device.digest(), Ok(reference_digest(&graph, ITERATIONS))))
    };
    let (mut copies, mut allocations) = (0, 0);
    with_plans(|verified| {
        for seed in 0..40 {
            let faults = Faults::new(seed);
            assert_eq!(run(verified, faults.clone().delayed_copies(3), seed), Ok(()));
            let failed = run(verified, faults.clone().failed_copies(50), seed);
            assert_eq!(failed, run(verified, faults.clone().failed_copies(50), seed));
            if let Err(ExecuteError::Device { error, .. }) = failed {
                assert_eq!(error, FaultyError::Injected(ErrorKind::Other));
                copies += 1;
            }
            let refused = run(verified, faults.failed_allocations(20), seed);
            if let Err(ExecuteError::Device { error, .. }) = refused {
                assert!(matches!(
                    error.kind(),
                    ErrorKind::OutOfDeviceMemory | ErrorKind::OutOfHostMemory
                ));
                allocations += 1;
            }
        }
    });
    assert!(copies > 20 && allocations > 20, "{copies} and {allocations}");
}

/// What the tests rest on: a byte that is lost is seen.
#[test]
fn a_lost_byte_is_seen() {
    let machine = Sim::default().machine.with_device_bytes(1 << 20);
    with_plans(|verified| {
        let graph = *verified.graph();
        let mut device = SimDevice::new(graph, machine).with_bytes();
        with_rooms(verified, |rooms| {
            device.create_host(rooms).unwrap();
            let host = Host::new(graph, rooms);
            host.check(&device).unwrap();
            let at = host.bytes.iter().position(Option::is_some).unwrap();
            device.write_host(at as u64, &[!host.bytes[at].unwrap()]).unwrap();
            assert!(host.check(&device).is_err());
            device.signal(Stream::Upload).unwrap();
        });
    });
}
