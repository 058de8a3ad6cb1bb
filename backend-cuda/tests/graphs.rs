//! Plans with placements run as CUDA graphs, and call nothing that maps.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]
#![allow(unsafe_code, reason = "what a kernel does, only its text says")]

mod common;

use backend_cuda::cudarc::driver::{
    CudaFunction, CudaSlice, DevicePtr, LaunchConfig, PushKernelArg,
};
use backend_cuda::cudarc::nvrtc::Ptx;
use backend_cuda::{
    CudaDevice, CudaError, Cycle, Graph as CudaGraph, Integrity, IntegrityKernels, Replay, cycle,
};
use emulated_cuda::Emulated;
use integrity::{Backend, reference_digest, states_digest};
use planner_core::backend::{
    Chunks, FillError, InputWriter, Kernels, Launch, Paging, StateWriter, Streams,
};
use planner_core::planner::{Auto, Host, Order, Repeats, Strategy};
use planner_core::{Graph, Kind, Machine, OpId, Step, Stream};
use spillway::planning;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use workloads::{OwnedGraph, OwnedPlacements, OwnedPlan};

/// Runs some iterations eagerly, and some cycles as graphs.
fn hold(
    bench @ (_, _, machine): &(Emulated, Integrity, Machine),
    reads: Kind,
    spare: u64,
) -> (Cycle, u32) {
    let work = common::training_step(machine.chunk_bytes, reads);
    let graph = work.graph().unwrap();
    hold_plan(bench, &graph, &common::placed(&graph, machine, Strategy::OnDemand, spare))
}

/// The same under a plan.
fn hold_plan(
    (emulated, backend, machine): &(Emulated, Integrity, Machine),
    graph: &Graph<'_>,
    plan: &OwnedPlan,
) -> (Cycle, u32) {
    let (graph, plan) = (*graph, plan.plan());
    let schedule = planning::schedule(&graph, machine, &plan).unwrap();
    let verified = planning::prove(&graph, machine, &plan, &schedule.schedule()).unwrap();
    let divided = cycle(&graph, &plan).unwrap();
    for (first, others) in [(0, 0), (0, 1), (3, 4)] {
        let iterations = first + (2 + others) * divided.length();
        let mut device = backend.open(*machine, 0).unwrap();
        let mut kernels = backend.kernels(&mut device, graph).unwrap();
        let steady = |emulated: &Emulated| emulated.counters().vmm_calls;
        let digest = planning::with_executor(
            &verified,
            &mut device,
            &mut kernels,
            |mut executor, device, kernels| {
                executor.run(device, kernels, first)?;
                let before = steady(emulated);
                let mut replay = Replay::record(executor, device, kernels, divided)?;
                for _ in 0..others {
                    replay.run(device, kernels)?;
                }
                replay.save_states(device)?;
                let between =
                    states_digest(&graph, device, replay.executor().host_layout()).unwrap();
                let saved = first + (1 + others) * divided.length();
                assert_eq!(between, reference_digest(&graph, saved), "{saved} iterations");
                // Graphs can go on after states were saved.
                replay.run(device, kernels)?;
                replay.save_states(device)?;
                assert_eq!(steady(emulated), before, "calls that map");
                Ok(states_digest(&graph, device, replay.executor().host_layout()).unwrap())
            },
        )
        .unwrap();
        let launches = (2 + others) * divided.graphs;
        assert_eq!(device.counters().graph_launches, launches);
        assert_eq!(digest, reference_digest(&graph, iterations), "{iterations} iterations");
    }
    (divided, plan.placements.unwrap().iterations)
}

/// One test at a time: the counters of the driver are those of the process.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn graphs_compute_what_iterations_do() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let bench = common::emulated();
    bench.0.delay_all();
    let live = bench.0.counters().live;
    let mut alternating = 0;
    for spare in 0..6 {
        let (with_inputs, _) = hold(&bench, Kind::Input, spare);
        assert_eq!(with_inputs.iterations, 1);
        assert!(with_inputs.graphs.is_multiple_of(2));
        let (without, period) = hold(&bench, Kind::State, spare);
        assert!(without.iterations > 1 && without.graphs == 1, "{without:?}");
        alternating += u32::from(period > 1);
    }
    assert!(alternating > 0, "no plan whose objects take more than an iteration to come round");
    let counters = bench.0.counters();
    assert_eq!((counters.live, counters.freed_in_use), (live, 0), "{counters:?}");
}

/// An output has two slots on the host, which iterations take in turn. So each captured iteration has the
/// same slot in each launch only if the graphs hold an even number of iterations.
#[test]
fn graphs_hold_whole_turns_of_slots() {
    for kind in [Kind::State, Kind::Input, Kind::Output] {
        let mut work = OwnedGraph::new("turns");
        let weight = work.push_tensor("w", 4, Kind::State);
        let other = work.push_tensor("y", 4, kind);
        let (reads, writes) = ([weight, other], [weight, other]);
        match kind {
            Kind::Output => work.push_op("make", 1, 0, &reads[..1], &writes),
            _ => work.push_op("make", 1, 0, &reads, &writes[..1]),
        };
        let graph = work.graph().unwrap();
        for iterations in 1..=12 {
            let (objects, ends) = (Vec::new(), Vec::new());
            let mut plan = OwnedPlan::default();
            plan.placements = Some(OwnedPlacements::new(iterations, objects, ends));
            let length = cycle(&graph, &plan.plan()).unwrap().length();
            assert!(length.is_multiple_of(iterations.into()), "{kind:?} {iterations}: {length}");
            let is_even = length.is_multiple_of(2);
            assert!(is_even || kind == Kind::State, "{kind:?} {iterations}: {length}");
        }
        assert_eq!(cycle(&graph, &OwnedPlan::default().plan()), None);
    }
}

/// A step of training whose activations take far longer to move than to make again.
fn repeatable_step(chunk_bytes: u64, reads: Kind) -> OwnedGraph {
    const LAYERS: usize = 5;
    let mut graph = OwnedGraph::new("repeats");
    let mut values = vec![graph.push_tensor("x", 3 * chunk_bytes, reads)];
    let mut weights = Vec::new();
    for layer in 0..LAYERS {
        let weight = graph.push_tensor("w", 64, Kind::State);
        let output = graph.push_tensor("a", 3 * chunk_bytes, Kind::Temporary);
        let forward = graph.push_op("forward", 100, 0, &[values[layer], weight], &[output]);
        graph.set_repeatable(forward);
        values.push(output);
        weights.push(weight);
    }
    let mut slope = values[LAYERS];
    for layer in (0..LAYERS).rev() {
        let before = graph.push_tensor("g", 3 * chunk_bytes, Kind::Temporary);
        let reads = [slope, values[layer], weights[layer]];
        graph.push_op("backward", 100, 0, &reads, &[weights[layer], before]);
        slope = before;
    }
    graph
}

#[test]
fn repeats_are_captured_as_launches_are() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let bench = common::emulated();
    bench.0.delay_all();
    let auto = Strategy::Auto(Auto::new().with_effort(8));
    for reads in [Kind::Input, Kind::State] {
        let work = repeatable_step(bench.2.chunk_bytes, reads);
        let graph = work.graph().unwrap();
        let mut plans = (0..16).map(|spare| common::placed(&graph, &bench.2, auto, spare));
        let plan = plans.find(|plan| plan.predicted.repeat_ns > 0);
        hold_plan(&bench, &graph, &plan.expect("an op is repeated"));
    }
}

#[test]
fn ops_on_the_host_are_captured_as_launches_are() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let bench = common::emulated();
    bench.0.delay_all();
    let all = Strategy::Auto(
        Auto::new()
            .with_effort(4)
            .with_order(Order::Given)
            .with_repeats(Repeats::Never)
            .with_host(Host::All),
    );
    for reads in [Kind::Input, Kind::State] {
        let mut work = common::training_step(bench.2.chunk_bytes, reads);
        // The backward ops of the last and of the first layer, which update weights.
        for op in [4, 6].map(OpId) {
            work.set_host_ns(op, 1000);
        }
        let graph = work.graph().unwrap();
        let plan = common::placed(&graph, &bench.2, all, 2);
        assert!(plan.steps.iter().any(|step| matches!(step, Step::Host(_))));
        hold_plan(&bench, &graph, &plan);
    }
}

/// Notes the iteration that a launch reads: the first word counts the notes that follow.
const NOTE: &str = "
    .version 8.0
    .target sm_60
    .address_size 64
    .visible .entry note(.param .u64 iteration, .param .u64 notes) {
        .reg .b64 %rd<5>;
        ld.param.u64 %rd0, [iteration];
        ld.param.u64 %rd1, [notes];
        ld.global.u64 %rd2, [%rd0];
        ld.global.u64 %rd3, [%rd1];
        add.s64 %rd3, %rd3, 1;
        st.global.u64 [%rd1], %rd3;
        shl.b64 %rd4, %rd3, 3;
        add.s64 %rd4, %rd1, %rd4;
        st.global.u64 [%rd4], %rd2;
        ret;
    }";

/// Kernels that note the iteration of each launch on the device, and whether work was pending when
/// inputs were filled.
struct Watched<'g> {
    inner: IntegrityKernels<'g>,
    note: CudaFunction,
    notes: CudaSlice<u64>,
    notes_at: u64,
    filled: Vec<u64>,
    is_replayed: bool,
    busy_fills: u32,
}

impl<'g> Watched<'g> {
    fn new(device: &mut CudaDevice, inner: IntegrityKernels<'g>) -> Self {
        let compute = device.lend(Stream::Compute).unwrap();
        let module = compute.context.load_module(Ptx::from_src(NOTE)).unwrap();
        let note = module.load_function("note").unwrap();
        let notes = compute.stream.alloc_zeros(1 << 12).unwrap();
        let (notes_at, _) = notes.device_ptr(compute.stream);
        Self { inner, note, notes_at, notes, filled: Vec::new(), is_replayed: false, busy_fills: 0 }
    }

    /// The iterations that were noted, one after the other.
    fn iterations(&self, device: &mut CudaDevice) -> Vec<u64> {
        device.wait_idle().unwrap();
        let compute = device.lend(Stream::Compute).unwrap();
        // SAFETY: all of it is written before it is read.
        let mut notes = unsafe { compute.context.alloc_pinned(self.notes.len()) }.unwrap();
        compute.stream.memcpy_dtoh(&self.notes, &mut notes).unwrap();
        device.wait_idle().unwrap();
        let notes: &[u64] = notes.as_slice().unwrap();
        let mut iterations = notes[1..=notes[0] as usize].to_vec();
        iterations.dedup();
        iterations
    }
}

impl Kernels<CudaDevice> for Watched<'_> {
    fn launch(&mut self, device: &mut CudaDevice, launch: &Launch<'_>) -> Result<(), CudaError> {
        let iteration = device.iteration(launch)?.0;
        let compute = device.lend(Stream::Compute)?;
        let one = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
        let mut builder = compute.stream.launch_builder(&self.note);
        // SAFETY: the kernel has these arguments.
        unsafe { builder.arg(&iteration).arg(&self.notes_at).launch(one) }.unwrap();
        device.occupy(Stream::Compute, 200_000)?;
        self.inner.launch(device, launch)
    }

    fn fill_states(
        &mut self,
        states: &mut StateWriter<'_, CudaDevice>,
    ) -> Result<(), FillError<CudaError>> {
        self.inner.fill_states(states)
    }

    fn fill_inputs(
        &mut self,
        inputs: &mut InputWriter<'_, CudaDevice>,
    ) -> Result<(), FillError<CudaError>> {
        self.filled.push(inputs.iteration());
        if !self.is_replayed {
            return self.inner.fill_inputs(inputs);
        }
        let end = inputs.device().lend(Stream::Compute)?.stream.record_event(None).unwrap();
        std::thread::sleep(Duration::from_micros(500));
        self.busy_fills += u32::from(matches!(end.try_is_complete(), Ok(false)));
        self.inner.fill_inputs(inputs)
    }
}

#[test]
fn kernels_see_the_iteration_in_both_modes() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (_, backend, machine) = common::emulated();
    let mut overlapped = 0;
    for (spare, reads) in [(0, Kind::Input), (0, Kind::State), (3, Kind::Input), (5, Kind::State)] {
        let work = common::training_step(machine.chunk_bytes, reads);
        let graph = work.graph().unwrap();
        let plan = common::placed(&graph, &machine, Strategy::OnDemand, spare);
        let plan = plan.plan();
        let schedule = planning::schedule(&graph, &machine, &plan).unwrap();
        let verified = planning::prove(&graph, &machine, &plan, &schedule.schedule()).unwrap();
        let divided = cycle(&graph, &plan).unwrap();
        let mut device = backend.open(machine, 0).unwrap();
        let inner = backend.kernels(&mut device, graph).unwrap();
        let mut kernels = Watched::new(&mut device, inner);
        let iterations = 2 + 4 * divided.length();
        planning::with_executor(
            &verified,
            &mut device,
            &mut kernels,
            |mut executor, device, kernels| {
                executor.run(device, kernels, 2)?;
                let mut replay = Replay::record(executor, device, kernels, divided)?;
                kernels.is_replayed = true;
                for _ in 0..3 {
                    replay.run(device, kernels)?;
                }
                replay.save_states(device)?;
                let digest =
                    states_digest(&graph, device, replay.executor().host_layout()).unwrap();
                assert_eq!(digest, reference_digest(&graph, iterations));
                let is_late = replay.executor().input_slots_used() == [true, true];
                assert!(!is_late || kernels.busy_fills == 0, "the last launch has not ended");
                Ok(())
            },
        )
        .unwrap();
        let all: Vec<_> = (1..=iterations).collect();
        assert_eq!(kernels.iterations(&mut device), all, "{reads:?}");
        if reads == Kind::Input {
            assert!(
                kernels.filled.iter().zip(1..).all(|(&filled, next)| filled == next),
                "{:?}",
                kernels.filled
            );
            overlapped += kernels.busy_fills;
        }
    }
    assert!(overlapped > 0, "the host waited for the last launch before each");
}

/// A graph of a device that has a mapped chunk.
fn captured(device: &mut CudaDevice) -> CudaGraph {
    device.occupy(Stream::Compute, 1).unwrap();
    device.begin_capture().unwrap();
    device.occupy(Stream::Compute, 1).unwrap();
    device.end_capture().unwrap()
}

#[test]
fn foreign_and_late_graphs_are_refused() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (_, backend, machine) = common::emulated();
    let [mut one, mut other] = [0, 1].map(|_| backend.open(machine, 0).unwrap());
    one.create(1).unwrap();
    let at = one.reserve(1).unwrap();
    one.map(at, Chunks { first: 0, count: 1 }).unwrap();
    let graph = captured(&mut one);
    assert_eq!(one.launch_graph(&graph, 0), Ok(()));
    assert_eq!(other.launch_graph(&graph, 0), Err(CudaError::ForeignGraph));
    one.wait_idle().unwrap();
    one.unmap(at, 1).unwrap();
    assert_eq!(one.launch_graph(&graph, 0), Err(CudaError::LateGraph));
    drop(one);
    let mut next = backend.open(machine, 0).unwrap();
    assert_eq!(next.launch_graph(&graph, 0), Err(CudaError::ForeignGraph), "its own is gone");
}

#[test]
fn launches_use_events_again() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (emulated, backend, machine) = common::emulated();
    let mut device = backend.open(machine, 0).unwrap();
    let graph = captured(&mut device);
    let mut launch = || {
        device.launch_graph(&graph, 0).unwrap();
        let point = device.signal(Stream::Compute).unwrap();
        device.block_until(point).unwrap();
        emulated.counters().events
    };
    let (first, last) = (launch(), (0..20).map(|_| launch()).last());
    assert!(last <= Some(first + 3), "{first} events after a launch, {last:?} after 20 more");
}

#[test]
fn a_ruined_capture_is_an_error_and_no_more() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (_, backend, machine) = common::emulated();
    let mut device = backend.open(machine, 0).unwrap();
    let before = captured(&mut device);
    device.begin_capture().unwrap();
    let context = Arc::clone(device.lend(Stream::Compute).unwrap().context);
    assert!(context.synchronize().is_err(), "while a stream is captured");
    let error = device.occupy(Stream::Compute, 1).unwrap_err();
    assert!(matches!(error, CudaError::Driver { code: 901, .. }), "{error}");
    assert!(device.end_capture().is_err());
    let after = captured(&mut device);
    for graph in [before, after] {
        assert_eq!(device.launch_graph(&graph, 0), Ok(()));
    }
    assert_eq!(device.wait_idle(), Ok(()));
}

#[test]
fn devices_open_beside_a_capture_and_move_between_threads() {
    const fn is_send<T: Send>() {}
    is_send::<(CudaDevice, CudaGraph, Replay<'_>, IntegrityKernels<'_>)>();
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (_, backend, machine) = common::emulated();
    let mut device = backend.open(machine, 0).unwrap();
    device.occupy(Stream::Compute, 1).unwrap();
    device.begin_capture().unwrap();
    device.occupy(Stream::Compute, 1).unwrap();
    let mut device = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut other = backend.open(machine, 0).unwrap();
            let graph = captured(&mut other);
            other.launch_graph(&graph, 0).unwrap();
            other.wait_idle().unwrap();
        });
        other.join().unwrap();
        // The capture goes on in another thread.
        let moved = scope.spawn(|| {
            let graph = device.end_capture().unwrap();
            device.launch_graph(&graph, 0).unwrap();
            device
        });
        moved.join().unwrap()
    });
    assert_eq!(device.wait_idle(), Ok(()));
}

#[test]
fn contexts_are_kept_and_reservations_are_few() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (emulated, backend, machine) = common::emulated();
    let mut device = backend.open(machine, 0).unwrap();
    let context = Arc::clone(device.lend(Stream::Compute).unwrap().context);
    let before = emulated.counters().vmm_calls;
    let ranges: Vec<_> = (0..10_000).map(|_| device.reserve(3).unwrap()).collect();
    assert!(emulated.counters().vmm_calls - before < 10);
    let mut starts: Vec<_> = ranges.iter().map(|at| at.0).collect();
    starts.sort_unstable();
    assert!(starts.windows(2).all(|pair| pair[1] - pair[0] >= 3 * machine.chunk_bytes));
    drop(device);
    let mut again = backend.open(machine, 0).unwrap();
    assert!(Arc::ptr_eq(&context, again.lend(Stream::Compute).unwrap().context), "another context");
}
