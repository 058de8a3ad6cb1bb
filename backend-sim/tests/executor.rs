//! The executor's promises beyond the digest: mapping calls, and its behaviour after failures.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use backend_checks::Refused;
use backend_sim::{Counters, SimDevice, SimError, SimKernels, reference_digest};
use common::{OwnedPlan, Work, execute, limits, lowered, machine, predicted_period_ns, verified};
use integrity::reference_values;
use planner_core::backend::{
    FillError, InputWriter, Kernels, Launch, Point, StateWriter, Streams, Transfers,
};
use planner_core::executor::{self, Moment};
use planner_core::plan::{Pool, Resident};
use planner_core::{
    ExecuteError, Executor, Kind, Machine, OpId, Part, Scratch, Step, Stream, TensorId, Verified,
};

const CHUNK_BYTES: u64 = 4;

/// Half of a state is resident, and the other half is fetched and evicted. The work also has a
/// state that is updated, an input and a temporary.
fn work() -> (Work, OwnedPlan) {
    let mut work = Work::default();
    let weight = work.tensor(Kind::State, 16);
    let sum = work.tensor(Kind::State, 3);
    let input = work.tensor(Kind::Input, 8);
    let product = work.tensor(Kind::Temporary, 8);
    work.op(30, 5, &[weight, input], &[product]);
    work.op(30, 0, &[product, sum], &[sum]);
    let half = Part { tensor: TensorId(weight), first: 2, count: 2 };
    let rest = Part { first: 0, ..half };
    let whole = |id| Part::whole(TensorId(id));
    let resident = |part, host_copy| Resident { part, host_copy };
    let plan = OwnedPlan {
        pools: vec![Pool { object_bytes: CHUNK_BYTES, count: 11 }],
        resident_at_start: vec![resident(half, true), resident(whole(sum), false)],
        steps: vec![
            Step::Prefetch(whole(input)),
            Step::Prefetch(rest),
            Step::launch(OpId(0)),
            Step::Evict(rest),
            Step::Evict(whole(input)),
            Step::launch(OpId(1)),
            Step::Evict(whole(product)),
        ],
        ..OwnedPlan::default()
    };
    (work, plan)
}

/// Lowers and proves a plan, and passes it on.
fn with_verified(
    work: &Work,
    owned: &OwnedPlan,
    machine: &Machine,
    then: impl FnOnce(&Verified<'_>),
) {
    let graph = work.graph();
    let plan = owned.plan(machine);
    let mut steps = Vec::new();
    let schedule = lowered(&graph, machine, &plan, &mut steps);
    then(&verified(&graph, machine, &plan, &schedule));
}

fn memory(verified: &Verified<'_>, runs: usize) -> Vec<u64> {
    vec![0; executor::scratch_words(&limits(verified.graph(), verified.plan()), runs)]
}

#[test]
fn an_in_core_plan_computes_without_a_stall() {
    let (work, _) = work();
    let owned = OwnedPlan::in_core(&work, CHUNK_BYTES);
    let machine = machine(CHUNK_BYTES);
    with_verified(&work, &owned, &machine, |verified| {
        let graph = *verified.graph();
        let mut device = SimDevice::new(machine);
        assert_eq!(execute(verified, &mut device, graph, 8, 64), Ok(reference_digest(&graph, 8)));
        assert_eq!(device.period_ns(4, 8), Some(graph.compute_ns()));
        let (plan, schedule) = (verified.plan(), verified.schedule());
        let predicted_ns = predicted_period_ns(&graph, &machine, plan, schedule);
        assert_eq!(device.period_ns(4, 8), Some(predicted_ns));
    });
}

/// Counters after `iterations`.
fn count(work: &Work, owned: &OwnedPlan, machine: Machine, iterations: u64) -> Counters {
    let mut counters = None;
    with_verified(work, owned, &machine, |verified| {
        let mut device = SimDevice::new(machine);
        let digest = execute(verified, &mut device, *verified.graph(), iterations, 64);
        assert_eq!(digest, Ok(reference_digest(verified.graph(), iterations)));
        counters = Some(device.counters());
    });
    counters.unwrap()
}

#[test]
fn what_comes_and_goes_is_mapped_and_unmapped_once_an_iteration() {
    let (work, owned) = work();
    let [few, many] = [2, 12].map(|n| count(&work, &owned, machine(CHUNK_BYTES), n));
    // Half a weight, the input, the temporary, and the workspace.
    assert_eq!(many.unmap_calls, 12 * 4);
    assert_eq!(many.chunks_mapped - few.chunks_mapped, 10 * (2 + 2 + 2 + 2));
    assert!(many.map_calls - few.map_calls >= 10 * 4);
    assert_eq!(many.h2d_bytes - few.h2d_bytes, 10 * (8 + 8));
    assert_eq!(many.d2h_bytes, 3, "the sum, once, at the end");
    assert!(many.peak_chunks <= 11);
}

/// The plan of [`work`] with placements over two iterations. The weight lies in 0 to 3, and its
/// first half comes back in 8, 9 in the first iteration. The sum lies in 4, the input in 5, 6, and
/// the product in 7, 8 and then in 5, 6. The workspace lies beside them.
fn placed() -> (Work, OwnedPlan) {
    let (work, plan) = work();
    let arrays: [&[u64]; 10] = [
        &[2, 3], // the second half of the weight
        &[4],
        &[5, 6],
        &[8, 9],
        &[0, 1],
        &[7, 10],
        &[6, 5],
        &[0, 1],
        &[8, 9],
        &[7, 10],
    ];
    let ends = (1..=arrays.len()).map(|at| arrays[..at].concat().len() as u32).collect();
    (work, OwnedPlan { placements: Some((2, arrays.concat(), ends)), ..plan })
}

#[test]
fn what_has_its_place_is_mapped_before_it_runs() {
    let (work, owned) = placed();
    let [none, many] = [0, 12].map(|n| count(&work, &owned, machine(CHUNK_BYTES), n));
    assert_eq!((many.map_calls, many.chunks_mapped), (none.map_calls, none.chunks_mapped));
    assert_eq!(many.unmap_calls, 0);
    // The whole pool is mapped once. Operands with objects in another order have their own ranges:
    // the weight in 8, 9, 2, 3, the input in 6, 5, and the workspace in 7, 10.
    assert_eq!(many.map_calls, 1 + 2 + 2 + 2);
    assert_eq!(many.chunks_mapped, 11 + 4 + 2 + 2);
    assert_eq!(many.ranges, 1 + 1 + 1 + 1);
    assert_eq!(many.peak_chunks, 11);
}

#[test]
fn states_that_lie_elsewhere_are_saved() {
    let (work, owned) = placed();
    for iterations in 1..4 {
        assert_eq!(count(&work, &owned, machine(CHUNK_BYTES), iterations).d2h_bytes, 3);
    }
}

#[test]
fn what_the_device_has_left_is_unmapped_without_blocking() {
    let (work, owned) = work();
    with_verified(&work, &owned, &machine(CHUNK_BYTES), |verified| {
        let graph = *verified.graph();
        let mut memory = memory(verified, 64);
        let mut device = SimDevice::new(machine(CHUNK_BYTES));
        let mut kernels = SimKernels::new(graph);
        let scratch = &mut Scratch::new(&mut memory);
        let mut executor = Executor::start(verified, &mut device, &mut kernels, scratch).unwrap();
        executor.run(&mut device, &mut kernels, 1).unwrap();
        assert_eq!(device.counters().unmap_calls, 0, "nothing has ended");
        // The prologue signals once.
        device.block_until(Point { stream: Stream::Compute, value: 1 + 2 }).unwrap();
        executor.run(&mut device, &mut kernels, 1).unwrap();
        assert_eq!(device.counters().unmap_calls, 4);
    });
}

#[test]
fn an_input_that_is_written_goes_back_to_its_own_slot() {
    let mut work = Work::default();
    let sum = work.tensor(Kind::State, 4);
    let input = work.tensor(Kind::Input, 8);
    work.op(10, 0, &[sum], &[input]);
    work.op(10, 0, &[sum, input], &[sum]);
    let whole = |id| Part::whole(TensorId(id));
    let owned = OwnedPlan {
        pools: vec![Pool { object_bytes: CHUNK_BYTES, count: 5 }],
        resident_at_start: vec![Resident { part: whole(sum), host_copy: false }],
        steps: vec![
            Step::launch(OpId(0)),
            Step::Offload(whole(input)),
            Step::Evict(whole(input)),
            Step::Prefetch(whole(input)),
            Step::launch(OpId(1)),
            Step::Evict(whole(input)),
        ],
        ..OwnedPlan::default()
    };
    count(&work, &owned, machine(CHUNK_BYTES), 5);
}

#[test]
fn a_pool_of_single_objects_is_mapped_once() {
    let (work, owned) = work();
    let pools = vec![Pool { object_bytes: 16, count: 5 }];
    let whole = |id| Part::whole(TensorId(id));
    let resident_at_start = [0, 1].map(|id| Resident { part: whole(id), host_copy: id == 0 });
    let is_half = |part: &Part| !part.is_whole();
    let mut steps = owned.steps;
    steps.retain(|step| !matches!(step, Step::Prefetch(part) | Step::Evict(part) if is_half(part)));
    let resident_at_start = resident_at_start.to_vec();
    let owned = OwnedPlan { pools, resident_at_start, steps, ..OwnedPlan::default() };
    let counters = count(&work, &owned, machine(CHUNK_BYTES), 10);
    assert_eq!((counters.map_calls, counters.unmap_calls), (1, 0));
    assert_eq!((counters.chunks_mapped, counters.peak_chunks), (20, 20));
}

#[test]
fn mapping_costs_show_in_the_period() {
    let (work, owned) = work();
    let slow = Machine::new((*machine(CHUNK_BYTES)).with_map_ns_per_chunk(100)).unwrap();
    with_verified(&work, &owned, &slow, |verified| {
        let mut device = SimDevice::new(slow);
        execute(verified, &mut device, *verified.graph(), 8, 64).unwrap();
        assert!(device.period_ns(4, 8).unwrap() >= 8 * 100);
        assert_eq!(device.counters().mapping_ns, device.counters().chunks_mapped * 100);
    });
    let (work, owned) = placed();
    with_verified(&work, &owned, &slow, |verified| {
        let mut device = SimDevice::new(slow);
        execute(verified, &mut device, *verified.graph(), 8, 64).unwrap();
        let (plan, schedule) = (verified.plan(), verified.schedule());
        let predicted_ns = predicted_period_ns(verified.graph(), &slow, plan, schedule);
        assert_eq!(device.period_ns(4, 8), Some(predicted_ns));
        assert_eq!(device.counters().mapping_ns, device.counters().chunks_mapped * 100);
    });
}

#[test]
fn the_host_maps_ahead_though_an_input_arrives_late() {
    let mut work = Work::default();
    let sum = work.tensor(Kind::State, 4);
    let input = work.tensor(Kind::Input, 4);
    let product = work.tensor(Kind::Temporary, 8);
    work.op(100, 0, &[sum], &[product]);
    work.op(100, 0, &[sum, product], &[sum]);
    work.op(100, 0, &[sum, input], &[sum]);
    let whole = |id| Part::whole(TensorId(id));
    let owned = OwnedPlan {
        pools: vec![Pool { object_bytes: CHUNK_BYTES, count: 3 }],
        resident_at_start: vec![Resident { part: whole(sum), host_copy: false }],
        steps: vec![
            Step::launch(OpId(0)),
            Step::launch(OpId(1)),
            Step::Evict(whole(product)),
            Step::Prefetch(whole(input)),
            Step::launch(OpId(2)),
            Step::Evict(whole(input)),
        ],
        ..OwnedPlan::default()
    };
    let slow =
        Machine::new((*machine(CHUNK_BYTES)).with_map_ns_per_chunk(40).with_unmap_ns_per_chunk(20))
            .unwrap();
    with_verified(&work, &owned, &slow, |verified| {
        let mut device = SimDevice::new(slow);
        execute(verified, &mut device, *verified.graph(), 8, 64).unwrap();
        let (plan, schedule) = (verified.plan(), verified.schedule());
        let predicted_ns = predicted_period_ns(verified.graph(), &slow, plan, schedule);
        assert_eq!(device.period_ns(4, 8), Some(predicted_ns));
        assert!(device.counters().mapping_ns > 8 * 100, "{:?}", device.counters());
    });
}

#[test]
fn without_an_iteration_the_host_copies_stay() {
    let (work, owned) = work();
    let counters = count(&work, &owned, machine(CHUNK_BYTES), 0);
    assert_eq!(counters.d2h_bytes, 0);
}

#[test]
fn a_device_of_other_chunks_or_too_little_memory_is_refused() {
    let (work, owned) = work();
    with_verified(&work, &owned, &machine(CHUNK_BYTES), |verified| {
        let run = |machine| {
            let mut device = SimDevice::new(machine);
            execute(verified, &mut device, *verified.graph(), 1, 64).unwrap_err()
        };
        let (planned_bytes, device_bytes) = (CHUNK_BYTES, 2 * CHUNK_BYTES);
        assert_eq!(
            run(machine(2 * CHUNK_BYTES)),
            ExecuteError::ChunkBytes { planned_bytes, device_bytes }
        );
        let error = SimError::OutOfDeviceMemory { chunks: 11, device_bytes: 43 };
        assert_eq!(
            run(machine(CHUNK_BYTES).with_device_bytes(43)),
            ExecuteError::Device { at: Moment::SetUp, error }
        );
    });
}

/// Two states that are updated. One stays on the device, the other is fetched and evicted.
fn offloading() -> (Work, OwnedPlan) {
    let mut work = Work::default();
    let stays = work.tensor(Kind::State, 3);
    let moves = work.tensor(Kind::State, 4);
    work.op(10, 0, &[stays, moves], &[stays, moves]);
    let [stays, moves] = [stays, moves].map(|id| Part::whole(TensorId(id)));
    let plan = OwnedPlan {
        pools: vec![Pool { object_bytes: CHUNK_BYTES, count: 2 }],
        resident_at_start: vec![Resident { part: stays, host_copy: false }],
        steps: vec![
            Step::Prefetch(moves),
            Step::launch(OpId(0)),
            Step::Offload(moves),
            Step::Evict(moves),
        ],
        ..OwnedPlan::default()
    };
    (work, plan)
}

/// Saves the states after each of several runs, and returns the number of downloaded bytes.
fn save_between_runs(work: &Work, owned: &OwnedPlan, seed: Option<u64>) -> u64 {
    let machine = machine(CHUNK_BYTES);
    let mut downloaded_bytes = 0;
    with_verified(work, owned, &machine, |verified| {
        let graph = *verified.graph();
        let mut memory = memory(verified, 64);
        let mut device = match seed {
            Some(seed) => SimDevice::adversarial(machine, seed),
            None => SimDevice::new(machine),
        };
        let mut kernels = SimKernels::new(graph);
        let scratch = &mut Scratch::new(&mut memory);
        let mut executor = Executor::start(verified, &mut device, &mut kernels, scratch).unwrap();
        let mut iterations = 0;
        for run in [0, 1, 0, 2, 3, 5] {
            executor.run(&mut device, &mut kernels, run).unwrap();
            executor.save_states(&mut device).unwrap();
            iterations += run;
            let digest = kernels.digest(&device);
            assert_eq!(digest, Ok(reference_digest(&graph, iterations)), "after {iterations}");
        }
        downloaded_bytes = device.counters().d2h_bytes;
    });
    downloaded_bytes
}

#[test]
fn states_can_be_saved_between_runs() {
    for ((work, owned), offloaded_bytes) in [(work(), 0), (placed(), 0), (offloading(), 11 * 4)] {
        for seed in [None].into_iter().chain((0..20).map(Some)) {
            let downloaded_bytes = save_between_runs(&work, &owned, seed);
            let saved_bytes = downloaded_bytes - offloaded_bytes;
            assert_eq!(saved_bytes, 5 * 3, "what stays, each time but before the first run");
        }
    }
}

#[test]
fn the_layout_of_an_executor_finds_the_bytes_of_a_state() {
    let (work, owned) = work();
    let machine = machine(CHUNK_BYTES);
    with_verified(&work, &owned, &machine, |verified| {
        let graph = *verified.graph();
        let mut memory = memory(verified, 64);
        let mut device = SimDevice::new(machine).with_bytes();
        let mut kernels = &mut SimKernels::new(graph);
        let scratch = &mut Scratch::new(&mut memory);
        let mut executor = Executor::start(verified, &mut device, &mut kernels, scratch).unwrap();
        for iterations in 0..3 {
            executor.save_states(&mut device).unwrap();
            let values = reference_values(&graph, iterations);
            for (state, bytes) in [(TensorId(0), 16), (TensorId(1), 3)] {
                let (mut expected, mut found) = (vec![0; bytes], vec![0; bytes]);
                values[state.index()].fill(0, &mut expected);
                let offset_bytes = executor.host_layout().offset_bytes(state, 0, 0);
                device.read_host(offset_bytes, &mut found).unwrap();
                assert_eq!(found, expected, "{state} after {iterations}");
            }
            executor.run(&mut device, &mut kernels, 1).unwrap();
        }
    });
}

#[test]
fn too_few_runs_are_an_error_and_enough_are_enough() {
    let (work, owned) = work();
    with_verified(&work, &owned, &machine(CHUNK_BYTES), |verified| {
        let graph = *verified.graph();
        let run = |runs: usize| {
            let mut memory = vec![0; exact_words(verified) + 3 * runs];
            let mut device = SimDevice::new(machine(CHUNK_BYTES));
            let mut kernels = SimKernels::new(graph);
            let scratch = &mut Scratch::new(&mut memory);
            let started = Executor::start(verified, &mut device, &mut kernels, scratch);
            let result = started.and_then(|mut executor| {
                executor.run(&mut device, &mut kernels, 100)?;
                executor.save_states(&mut device)
            });
            (result, kernels.digest(&device))
        };
        assert!(matches!(run(0).0, Err(ExecuteError::Scratch(_))));
        let (result, digest) = run(4);
        assert!(matches!(result, Err(ExecuteError::Fragmented(Moment::Step { .. }))), "{result:?}");
        assert_eq!(digest, Ok(reference_digest(&graph, 0)), "the host's copies are as they were");
        assert_eq!(run(11), (Ok(()), Ok(reference_digest(&graph, 100))), "one an object");
    });
}

/// The smallest scratch memory that an executor of this plan accepts, without runs.
fn exact_words(verified: &Verified<'_>) -> usize {
    (0..)
        .find(|&words| {
            let graph = *verified.graph();
            let mut device = SimDevice::new(machine(CHUNK_BYTES));
            let mut memory = vec![0; words + 3];
            let scratch = &mut Scratch::new(&mut memory);
            let mut kernels = SimKernels::new(graph);
            let started = Executor::start(verified, &mut device, &mut kernels, scratch);
            !matches!(started, Err(ExecuteError::Scratch(_)))
        })
        .unwrap()
}

/// Kernels that fail in one iteration.
struct Failing<'g> {
    kernels: SimKernels<'g>,
    iteration: u64,
}

impl Kernels<SimDevice> for Failing<'_> {
    fn launch(&mut self, device: &mut SimDevice, launch: &Launch<'_>) -> Result<(), SimError> {
        if launch.iteration == self.iteration {
            return Err(Refused::Operands(launch.op).into());
        }
        self.kernels.launch(device, launch)
    }

    fn fill_states(
        &mut self,
        states: &mut StateWriter<'_, SimDevice>,
    ) -> Result<(), FillError<SimError>> {
        self.kernels.fill_states(states)
    }

    fn fill_inputs(
        &mut self,
        inputs: &mut InputWriter<'_, SimDevice>,
    ) -> Result<(), FillError<SimError>> {
        self.kernels.fill_inputs(inputs)
    }
}

#[test]
fn after_an_error_nothing_runs_and_the_host_copies_stay() {
    let (work, owned) = work();
    with_verified(&work, &owned, &machine(CHUNK_BYTES), |verified| {
        let graph = *verified.graph();
        let mut memory = memory(verified, 64);
        let mut device = SimDevice::new(machine(CHUNK_BYTES));
        let mut kernels = Failing { kernels: SimKernels::new(graph), iteration: 3 };
        let scratch = &mut Scratch::new(&mut memory);
        let mut executor = Executor::start(verified, &mut device, &mut kernels, scratch).unwrap();
        let at = Moment::Step { iteration: 3, step: 2 };
        let error = ExecuteError::Device { at, error: Refused::Operands(OpId(0)).into() };
        assert_eq!(executor.run(&mut device, &mut kernels, 5), Err(error));
        assert_eq!(
            error.to_string(),
            "step 2 of iteration 3: the launch of op 0 has operands that do not match the graph"
        );
        assert_eq!(executor.run(&mut device, &mut kernels, 5), Err(ExecuteError::Failed));
        assert_eq!(executor.save_states(&mut device), Err(ExecuteError::Failed));
        assert_eq!(kernels.kernels.digest(&device), Ok(reference_digest(&graph, 0)));
    });
}

#[test]
fn a_signal_by_others_is_noticed() {
    let (work, owned) = work();
    with_verified(&work, &owned, &machine(CHUNK_BYTES), |verified| {
        let graph = *verified.graph();
        let mut memory = memory(verified, 64);
        let mut device = SimDevice::new(machine(CHUNK_BYTES));
        device.signal(Stream::Upload).unwrap();
        let mut kernels = SimKernels::new(graph);
        let scratch = &mut Scratch::new(&mut memory);
        let mut executor = Executor::start(verified, &mut device, &mut kernels, scratch).unwrap();
        assert_eq!(
            executor.run(&mut device, &mut kernels, 1),
            Ok(()),
            "signals before it are fine"
        );
        device.signal(Stream::Compute).unwrap();
        let at = Moment::Step { iteration: 2, step: 2 };
        let stream = Stream::Compute;
        assert_eq!(
            executor.run(&mut device, &mut kernels, 1),
            Err(ExecuteError::ForeignSignal { at, stream })
        );
    });
}
