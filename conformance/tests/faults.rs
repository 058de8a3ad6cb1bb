//! Devices that fail: whatever happens and whenever, the error says so, and every value that
//! the host held is there.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use backend_sim::{Fault, Sim, SimDevice, SimError, SimKernels, reference_digest};
use conformance::graphs::training_graphs;
use integrity::{FoldOrder, Reading, Value, slots, value};
use middleware::{Faults, FaultyError, Layer, Layered, LayeredKernels};
use planner_core::backend::{
    BackendError, DeviceAddress, ErrorKind, FillError, HostRange, Launch, Paging, Point,
    StateWriter, Transfers,
};
use planner_core::executor::Moment;
use planner_core::planner::{Request, Strategy};
use planner_core::{ExecuteError, Graph, Kind, Stream, Tensor, TensorId, Verified};
use proptest::strategy::{Strategy as _, ValueTree};
use proptest::test_runner::TestRunner;
use spillway::{placing, planning};

const ITERATIONS: u64 = 6;
const SEEDS: u64 = 300;

/// Knows what the host must hold: the initial states, and what downloads that have ended have
/// brought since.
struct Host<'g> {
    graph: Graph<'g>,
    /// The states, and where they lie, once they are filled.
    states: Vec<(TensorId, HostRange)>,
    /// The values of all tensors after the launches that are enqueued.
    values: Vec<Value>,
    /// Bytes of the block, once states are filled; none where it cannot be known.
    bytes: Vec<Option<u8>>,
    /// Downloads that may not have ended: the point of each, where it writes, and what.
    under_way: Vec<(u64, HostRange, Vec<u8>)>,
    signals: u64,
}

impl<'g> Host<'g> {
    fn new(graph: Graph<'g>) -> Self {
        let initial = |tensor| value::initial_state(tensor, graph.tensor(tensor).bytes);
        Self {
            graph,
            states: Vec::new(),
            values: graph.tensor_ids().map(initial).collect(),
            bytes: Vec::new(),
            under_way: Vec::new(),
            signals: 0,
        }
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

    fn check(&self, device: &mut SimDevice) -> Result<(), String> {
        let mut block = vec![0; self.bytes.len()];
        if block.is_empty() {
            return Ok(());
        }
        device.read_host(0, &mut block).map_err(|error| error.to_string())?;
        match block
            .iter()
            .zip(&self.bytes)
            .position(|(byte, known)| known.is_some_and(|known| known != *byte))
        {
            None => Ok(()),
            Some(at) => Err(format!("byte {at} of the host block is lost")),
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
        let is_inside = |slot: &HostRange| {
            (slot.offset_bytes..slot.offset_bytes + slot.bytes).contains(&to.offset_bytes)
        };
        if let Some((state, slot)) = self.states.iter().find(|(_, slot)| is_inside(slot)) {
            let first = to.offset_bytes - slot.offset_bytes;
            let bytes = filled(self.values[state.index()], first, to.bytes);
            self.bytes[to.offset_bytes as usize..][..to.bytes as usize].fill(None);
            self.under_way.push((self.signals + 1, to, bytes));
        }
        device.download(from, to)
    }

    fn fill_states(
        &mut self,
        states: &mut StateWriter<'_, D>,
        fill: impl FnOnce(&mut StateWriter<'_, D>) -> Result<(), FillError<D::Error>>,
    ) -> Result<(), FillError<D::Error>> {
        fill(states)?;
        let layout = states.layout();
        self.states = slots(&self.graph, layout, Kind::State, 0).collect();
        self.bytes = vec![None; layout.bytes() as usize];
        for (state, slot) in self.states.clone() {
            self.learn(slot, &filled(self.values[state.index()], 0, slot.bytes));
        }
        Ok(())
    }

    fn launch(
        &mut self,
        device: &mut D,
        launch: &Launch<'_>,
        run: impl FnOnce(&mut D, &Launch<'_>) -> Result<(), D::Error>,
    ) -> Result<(), D::Error> {
        let (graph, op) = (self.graph, launch.op);
        if launch.is_repeat {
            // A first launch reads what other first launches wrote.
            return run(device, launch);
        }
        let FoldOrder { reads, repeated } = FoldOrder::new(&graph, op);
        let tensors = reads.iter().map(|&position| graph.reads(op)[position]);
        let reads = tensors.map(|tensor| match graph.tensor(tensor) {
            data if data.kind == Kind::Input => value::input(tensor, launch.iteration, data.bytes),
            _ => self.values[tensor.index()],
        });
        let results = value::op_results(op, repeated, reads.map(Reading::exact));
        for (position, &tensor) in (0..).zip(graph.writes(op)) {
            let Tensor { bytes, kind, .. } = graph.tensor(tensor);
            self.values[tensor.index()] = value::written(results.of(kind), position, bytes);
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

/// Runs a plan on a device with a fault. The error, if there is one; then the host is checked,
/// else the digest.
fn run(verified: &Verified<'_>, fault: Fault, seed: u64) -> Option<ExecuteError<SimError>> {
    let (graph, machine) = (*verified.graph(), *verified.machine());
    let device = SimDevice::adversarial(machine, seed).with_bytes().failing(fault, seed);
    let mut device = Layered::new(device, Host::new(graph));
    let mut kernels = LayeredKernels(SimKernels::new(graph));
    let error = planning::execute(verified, &mut device, &mut kernels, ITERATIONS).err();
    let Layered { mut device, layer: host } = device;
    match error {
        None => assert_eq!(kernels.0.digest(&device), Ok(reference_digest(&graph, ITERATIONS))),
        // Before there is a block, the host has nothing to lose.
        Some(ExecuteError::Device { at: Moment::SetUp, .. })
            if device.read_host(0, &mut [0]).is_err() => {}
        Some(_) => host.check(&mut device).unwrap(),
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
        "has no memory left",
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
        let mut device = Layered::new(SimDevice::adversarial(machine, seed), faults);
        let mut kernels = LayeredKernels(SimKernels::new(graph));
        let ran = planning::execute(verified, &mut device, &mut kernels, ITERATIONS);
        let reference = Ok(reference_digest(&graph, ITERATIONS));
        ran.map(|()| assert_eq!(kernels.0.digest(&device.device), reference))
    };
    let (mut copies, mut allocations, mut fills) = (0, 0, [0; 2]);
    with_plans(|verified| {
        for seed in 0..40 {
            let faults = Faults::new(seed);
            assert_eq!(run(verified, faults.clone().delayed_copies(3), seed), Ok(()));
            let failed = run(verified, faults.clone().failed_copies(50), seed);
            assert_eq!(failed, run(verified, faults.clone().failed_copies(50), seed));
            if let Err(failed) = failed {
                let ExecuteError::Device { error, .. } = failed else { panic!("{failed}") };
                assert_eq!(error, FaultyError::Injected(ErrorKind::Other));
                copies += 1;
            }
            if let Err(error) = run(verified, faults.clone().failed_fills(5), seed) {
                let ExecuteError::Device { at, error } = error else { panic!("{error}") };
                assert_eq!(error, FaultyError::Injected(ErrorKind::Other));
                assert!(matches!(at, Moment::States | Moment::Inputs(_)), "{at}");
                fills[usize::from(at == Moment::States)] += 1;
            }
            let refused = run(verified, faults.failed_allocations(20), seed);
            if let Err(refused) = refused {
                let ExecuteError::Device { error, .. } = refused else { panic!("{refused}") };
                assert!(matches!(
                    error.kind(),
                    ErrorKind::OutOfDeviceMemory | ErrorKind::OutOfHostMemory
                ));
                allocations += 1;
            }
        }
    });
    assert!(copies > 20 && allocations > 20, "{copies} and {allocations}");
    assert!(fills[0] > 20 && fills[1] > 20, "{fills:?}");
}

/// Reserves wherever it is told, from one of its calls on.
struct Misplaced {
    address: u64,
    calls_before: u32,
}

impl<D: Transfers + Paging> Layer<D> for Misplaced {
    type Error = D::Error;

    fn reserve(&mut self, device: &mut D, chunks: u64) -> Result<DeviceAddress, D::Error> {
        let at = device.reserve(chunks)?;
        let is_before = self.calls_before > 0;
        self.calls_before = self.calls_before.saturating_sub(1);
        Ok(if is_before { at } else { DeviceAddress(self.address) })
    }
}

/// No address means anything to the executor, not even the last one.
#[test]
fn a_device_may_reserve_any_address() {
    with_plans(|verified| {
        let machine = *verified.machine();
        for (address, ends) in
            [(u64::MAX, false), (u64::MAX - 1, false), (u64::MAX - (machine.chunk_bytes - 1), true)]
        {
            for calls_before in 0..3 {
                let layer = Misplaced { address, calls_before };
                let mut device = Layered::new(SimDevice::new(machine), layer);
                let mut kernels = LayeredKernels(SimKernels::new(*verified.graph()));
                let ran = planning::execute(verified, &mut device, &mut kernels, 1);
                let Err(error) = ran else {
                    assert!(calls_before > 0, "some range is reserved");
                    continue;
                };
                match error {
                    ExecuteError::Addresses(Moment::SetUp) => {}
                    // That of the simulated device, which has reserved other addresses.
                    ExecuteError::Device { at: Moment::SetUp, .. } if ends => {}
                    error => panic!("{error}"),
                }
            }
        }
    });
}

/// What the tests rest on: a byte that is lost is seen.
#[test]
fn a_lost_byte_is_seen() {
    with_plans(|verified| {
        let (graph, machine) = (*verified.graph(), *verified.machine());
        let device = SimDevice::new(machine).with_bytes();
        let mut device = Layered::new(device, Host::new(graph));
        let mut kernels = LayeredKernels(SimKernels::new(graph));
        planning::execute(verified, &mut device, &mut kernels, 0).unwrap();
        let Layered { mut device, layer: host } = device;
        host.check(&mut device).unwrap();
        let at = host.bytes.iter().position(Option::is_some).unwrap();
        device.write_host(at as u64, &[!host.bytes[at].unwrap()]).unwrap();
        assert!(host.check(&mut device).is_err());
    });
}
