//! Switches between random plans: the ledger and the verifier agree on them, whether planned or
//! corrupted, and states are those of a run that goes through the host.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use backend_sim::{SimDevice, SimError, SimKernels, reference_digest};
use conformance::choices::{Choices, choices};
use conformance::ledger;
use conformance::ledger::switch::{Between, judge};
use conformance::plans::{Pair, pairs, pairs_of_one_graph};
use planner_core::backend::{
    FillError, HostKernels, InputWriter, Kernels, Launch, StateWriter, Transfers,
};
use planner_core::executor::{AddressRanges, switch_scratch_words};
use planner_core::machine::Direction;
use planner_core::placement::Holder;
use planner_core::plan::ArenaPlacement;
use planner_core::switch::{
    Capacity, ChunkRun, Held, Holding, Memory, SwitchError, SwitchPrediction, SwitchStep,
    TensorBytes,
};
use planner_core::{
    ExecuteError, Executor, Graph, HostLayout, Kind, Limits, Part, Scratch, TensorId, Verified,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use spillway::planning;
use spillway::switching::{self, OwnedSwitch};
use spillway::{Error, OwnedMachine, Plan, SlabCopy};
use std::collections::BTreeSet;
use workloads::OwnedPlan;

/// Both plans, verified.
fn with_both<T>(pair: &Pair, then: impl FnOnce([Verified<'_>; 2]) -> T) -> T {
    let machine = pair.machine;
    let graphs = [&pair.from.0, &pair.to.0].map(|graph| graph.graph().unwrap());
    let plans = [&pair.from.1, &pair.to.1].map(OwnedPlan::plan);
    let schedules = [0, 1].map(|at| planning::schedule(&graphs[at], &machine, &plans[at]).unwrap());
    let lowered = [0, 1].map(|at| schedules[at].schedule());
    let proved =
        [0, 1].map(|at| planning::prove(&graphs[at], &machine, &plans[at], &lowered[at]).unwrap());
    then(proved)
}

fn capacity(plans: &[Verified<'_>]) -> Capacity {
    let each = plans.iter().map(|plan| switching::capacity(plan).unwrap());
    each.fold(Capacity::default(), Capacity::max)
}

/// Starts the first plan, with capacity for both, and runs it for some iterations.
fn with_first<T>(
    plans: &[Verified<'_>; 2],
    device: &mut SimDevice,
    iterations: u64,
    then: impl FnOnce(&mut Executor<'_>, &mut SimDevice, &mut SimKernels<'_>) -> T,
) -> T {
    let mut kernels = SimKernels::new(*plans[0].graph());
    let mut memory = memory(&plans[0]);
    let scratch = &mut Scratch::new(&mut memory);
    let mut executor =
        Executor::start_with(&plans[0], capacity(plans), device, &mut kernels, scratch).unwrap();
    executor.run(device, &mut kernels, iterations).unwrap();
    then(&mut executor, device, &mut kernels)
}

fn memory(verified: &Verified<'_>) -> Vec<u64> {
    let limits = Limits::of_plan(verified.graph(), verified.plan());
    let ranges = AddressRanges { count: 1000, rows: 10_000 };
    vec![0; switch_scratch_words(&limits, 5000, 500, ranges)]
}

/// Plans a switch from what the first plan holds now.
fn with_planned<T>(
    executor: &Executor<'_>,
    to: &Verified<'_>,
    pair: &Pair,
    then: impl FnOnce(&Holding<'_>, Between<'_>, OwnedSwitch) -> T,
) -> T {
    let mut held = Vec::new();
    let holding = switching::holding(executor, &mut held).unwrap();
    // The way back has the pairs the other way round, which are the same for one graph.
    let planned = switching::plan(&holding, to, &pair.states, Memory::Chunks).unwrap();
    let between = Between {
        machine: to.machine(),
        from: holding.verified().graph(),
        held: holding.entries(),
        to: (to.graph(), to.plan()),
        states: &pair.states,
        device_chunks: executor.capacity().chunks,
    };
    then(&holding, between, planned)
}

/// Plans, proves and carries out a switch, which copies as predicted. Returns the chunks of the second
/// plan too.
fn switch<'b, K: Kernels<SimDevice>>(
    executor: &mut Executor<'_>,
    to: &Verified<'b>,
    pair: &Pair,
    device: &mut SimDevice,
    kernels: K,
    memory: &'b mut [u64],
) -> (Executor<'b>, Vec<ChunkRun>) {
    let planned = with_planned(executor, to, pair, |_, _, planned| planned);
    let mut held = Vec::new();
    let holding = switching::holding(executor, &mut held).unwrap();
    let switch = planned.switch();
    let proved = switching::prove(&holding, to, &pair.states, &switch).unwrap();
    let before = device.counters();
    let next = executor.switch(&proved, device, || kernels, &mut Scratch::new(memory)).unwrap();
    let after = device.counters();
    let copied = [after.h2d_bytes - before.h2d_bytes, after.d2h_bytes - before.d2h_bytes];
    assert_eq!(copied, [planned.predicted.h2d_bytes, planned.predicted.d2h_bytes]);
    (next, planned.chunks)
}

/// A placed plan that has the same chunks as when it ran before maps nothing.
fn maps_nothing(executor: &Executor<'_>, same_chunks: bool) -> Result<(), TestCaseError> {
    if same_chunks && executor.verified().plan().placements.is_some() {
        prop_assert_eq!(executor.set_up().mapped_chunks, 0);
    }
    Ok(())
}

/// From one plan to the other and back, on a device that checks every byte that is read.
fn there_and_back(pair: &Pair, mut device: SimDevice) -> Result<(), TestCaseError> {
    with_both(pair, |plans| {
        let [from, to] = plans;
        let mut memories = [memory(&to), memory(&from), memory(&to)];
        let [there, back, again] = &mut memories;
        with_first(&plans, &mut device, 3, |executor, device, kernels| {
            let (mut executor, chunks) = switch(executor, &to, pair, device, &mut *kernels, there);
            executor.run(device, kernels, 2).unwrap();
            let (mut executor, back) =
                switch(&mut executor, &from, pair, device, &mut *kernels, back);
            // The first plan of a device has the first chunks, in order.
            let is_first = |run: &ChunkRun| run.device_first == run.first;
            maps_nothing(&executor, back.iter().all(is_first))?;
            executor.run(device, kernels, 4).unwrap();
            let ranges = device.counters().ranges;
            let (mut executor, again) =
                switch(&mut executor, &to, pair, device, &mut *kernels, again);
            maps_nothing(&executor, again == chunks)?;
            if again == chunks {
                prop_assert_eq!(device.counters().ranges, ranges, "all addresses are used again");
            }
            executor.run(device, kernels, 1).unwrap();
            executor.save_states(device).unwrap();
            let reference = reference_digest(from.graph(), 3 + 2 + 4 + 1);
            prop_assert_eq!(kernels.digest(device), Ok(reference));
            Ok(())
        })
    })
}

/// The smallest power of two of chunks to which ranges can be limited if both plans are to start.
fn narrowest(pair: &Pair) -> u64 {
    let starts = |plan: &Verified<'_>, most_chunks| {
        let device = &mut SimDevice::new(pair.machine).with_most_range_chunks(most_chunks);
        let kernels = &mut SimKernels::new(*plan.graph());
        planning::with_executor(plan, device, kernels, |_, _, _| Ok(())).is_ok()
    };
    with_both(pair, |plans| {
        let mut limits = (0..64).map(|power| 1 << power);
        limits.find(|&limit| plans.iter().all(|plan| starts(plan, limit))).unwrap_or(u64::MAX)
    })
}

/// However often plans take turns, the address ranges are at most those of the six plans that ran last.
fn many_turns(pair: &Pair) -> Result<(), TestCaseError> {
    let mut device = SimDevice::new(pair.machine);
    with_both(pair, |plans| {
        let [from, to] = plans;
        let turns = || [to, from].into_iter().cycle().take(24);
        let mut memories: Vec<_> = turns().map(|to| memory(&to)).collect();
        let mut turns = memories.iter_mut().zip(turns());
        with_first(&plans, &mut device, 1, |executor, device, kernels| {
            let (first, _) = turns.next().unwrap();
            let (mut executor, _) = switch(executor, &to, pair, device, &mut *kernels, first);
            let of_both = device.counters().ranges;
            for (memory, to) in turns {
                executor.run(device, kernels, 1).unwrap();
                (executor, _) = switch(&mut executor, &to, pair, device, &mut *kernels, memory);
            }
            let ranges = device.counters().ranges;
            prop_assert!(ranges <= 3 * of_both, "{} ranges, of both plans {}", ranges, of_both);
            Ok(())
        })
    })
}

/// The bytes of states on the host, in the order of the graph.
fn states(graph: &Graph<'_>, device: &mut SimDevice, layout: &HostLayout<'_>) -> Vec<Vec<u8>> {
    let all = graph.tensor_ids().filter(|&id| graph.tensor(id).kind == Kind::State);
    all.map(|id| {
        let mut bytes = vec![0; graph.tensor(id).bytes as usize];
        device.read_host(layout.offset_bytes(id, 0, 0), &mut bytes).unwrap();
        bytes
    })
    .collect()
}

/// The kernels of a graph whose states come from another run.
struct Resumed<'g> {
    kernels: SimKernels<'g>,
    states: Vec<(TensorId, Vec<u8>)>,
    /// Iterations of that run.
    before: u64,
}

impl Kernels<SimDevice> for Resumed<'_> {
    fn launch(&mut self, device: &mut SimDevice, launch: &Launch<'_>) -> Result<(), SimError> {
        self.kernels.launch(device, launch)
    }

    fn on_host(&mut self) -> Option<&mut dyn HostKernels<SimDevice>> {
        self.kernels.on_host()
    }

    fn fill_states(
        &mut self,
        states: &mut StateWriter<'_, SimDevice>,
    ) -> Result<(), FillError<SimError>> {
        self.states.iter().try_for_each(|(id, bytes)| states.write(*id, bytes))
    }

    fn fill_inputs(
        &mut self,
        inputs: &mut InputWriter<'_, SimDevice>,
    ) -> Result<(), FillError<SimError>> {
        let graph = self.kernels.graph();
        let iteration = inputs.iteration() + self.before;
        let all: Vec<_> = inputs.tensors().collect();
        all.into_iter().try_for_each(|id| {
            let bytes = graph.tensor(id).bytes;
            let mut filled = vec![0u8; bytes as usize];
            integrity::value::input(id, iteration, bytes).fill(0, &mut filled);
            inputs.write(id, &filled)
        })
    }
}

/// The states after a run of the first plan and one of the second, with a switch between them.
fn switched(pair: &Pair) -> Vec<Vec<u8>> {
    with_both(pair, |plans| {
        let to = plans[1];
        let mut memory = memory(&to);
        let mut device = SimDevice::new(pair.machine).with_bytes();
        with_first(&plans, &mut device, 3, |executor, device, _| {
            let mut kernels = SimKernels::new(*to.graph());
            let (mut executor, _) = switch(executor, &to, pair, device, &mut kernels, &mut memory);
            executor.run(device, &mut kernels, 2).unwrap();
            executor.save_states(device).unwrap();
            states(to.graph(), device, executor.host_layout())
        })
    })
}

/// The same, where all states go through the host to another device.
fn through_the_host(pair: &Pair) -> Vec<Vec<u8>> {
    with_both(pair, |plans| {
        let to = plans[1];
        let mut device = SimDevice::new(pair.machine).with_bytes();
        let saved = with_first(&plans, &mut device, 3, |executor, device, _| {
            executor.save_states(device).unwrap();
            states(plans[0].graph(), device, executor.host_layout())
        });
        let from = plans[0].graph();
        let ids = from.tensor_ids().filter(|&id| from.tensor(id).kind == Kind::State);
        let partner = |id| pair.states.iter().find(|state| state.from == id).unwrap().to;
        let states_to = ids.map(partner).zip(saved).collect();
        let mut device = SimDevice::new(pair.machine).with_bytes();
        let kernels = SimKernels::new(*to.graph());
        let mut kernels = Resumed { kernels, states: states_to, before: 3 };
        let run =
            |mut executor: Executor<'_>, device: &mut SimDevice, kernels: &mut Resumed<'_>| {
                executor.run(device, kernels, 2)?;
                executor.save_states(device)?;
                Ok::<_, ExecuteError<SimError>>(states(to.graph(), device, executor.host_layout()))
            };
        planning::with_executor(&to, &mut device, &mut kernels, run).unwrap()
    })
}

/// A switch with something changed, which seldom is as good.
fn corrupt(planned: &OwnedSwitch, pair: &Pair, choices: &mut Choices) -> OwnedSwitch {
    let mut switch = planned.clone();
    let OwnedSwitch { chunks, steps, predicted, .. } = &mut switch;
    let (at, other) = (choices.below(steps.len()), choices.below(steps.len() + 1));
    let run = choices.below(chunks.len());
    let figure = choices.below(4);
    match choices.below(10) {
        0 if !steps.is_empty() => drop(steps.remove(at)),
        1 if !steps.is_empty() => steps.swap(at, other.min(planned.steps.len() - 1)),
        2 if !steps.is_empty() => steps.insert(other, planned.steps[at]),
        3 if !steps.is_empty() => {
            let kinds =
                [SwitchStep::Keep, SwitchStep::Offload, SwitchStep::Evict, SwitchStep::Prefetch];
            steps[at] = kinds[figure](*bytes_of(&mut steps[at]));
        }
        4 if !steps.is_empty() => {
            let TensorBytes { tensor, first_byte, bytes } = bytes_of(&mut steps[at]);
            match figure {
                0 => tensor.0 = choices.below(pair.to.0.tensors.len() + 1) as u32,
                1 => *first_byte = first_byte.wrapping_sub(1),
                2 => *bytes -= 1,
                _ => *bytes = u64::MAX,
            }
        }
        // In two, which is as good.
        5 if !steps.is_empty() => {
            let TensorBytes { first_byte, bytes, .. } = bytes_of(&mut steps[at]);
            let first = *bytes / 2;
            (*first_byte, *bytes) = (*first_byte + first, *bytes - first);
            let mut step = planned.steps[at];
            bytes_of(&mut step).bytes = first;
            steps.insert(at, step);
        }
        6 if !chunks.is_empty() => match figure {
            0 => chunks[run].device_first ^= 1,
            1 => chunks[run].device_first = u64::MAX,
            2 => chunks[run].count += 1,
            _ => drop(chunks.remove(run)),
        },
        7 if !chunks.is_empty() => {
            let last = chunks.len() - 1;
            let firsts = [chunks[run].device_first, chunks[last].device_first];
            [chunks[last].device_first, chunks[run].device_first] = firsts;
        }
        8 if !steps.is_empty() => {
            let copied = *bytes_of(&mut steps[at]);
            let too_early = [SwitchStep::Offload, SwitchStep::Prefetch][figure % 2];
            steps.insert(0, too_early(copied));
        }
        _ => {
            let SwitchPrediction { kept_bytes, h2d_bytes, d2h_bytes, time_ns } = predicted;
            *[kept_bytes, h2d_bytes, d2h_bytes, time_ns][figure] += 1;
            return switch;
        }
    }
    *predicted = SwitchPrediction::of(steps, &pair.machine).unwrap_or_default();
    switch
}

fn bytes_of(step: &mut SwitchStep) -> &mut TensorBytes {
    match step {
        SwitchStep::Keep(bytes)
        | SwitchStep::Offload(bytes)
        | SwitchStep::Evict(bytes)
        | SwitchStep::Prefetch(bytes) => bytes,
    }
}

/// Bytes of states that both plans hold in objects of whole chunks: all of these can stay.
fn in_chunks_of_both(holding: &Holding<'_>, to: &Verified<'_>, pair: &Pair) -> u64 {
    let object_bytes = |verified: &Verified<'_>, tensor: TensorId| {
        let plan = verified.plan();
        let pool = plan.tensor_pool.get(tensor.index()).map_or(0, |&pool| pool as usize);
        let in_arena = plan.arena.iter().any(|placement| placement.tensor == tensor);
        let bytes = plan.pools.get(pool).map_or(0, |pool| pool.object_bytes);
        (!in_arena && bytes.is_multiple_of(pair.machine.chunk_bytes)).then_some(bytes)
    };
    let mut wanted = BTreeSet::new();
    for resident in to.plan().resident_at_start {
        let Part { tensor, first, count } = resident.part;
        let Some(state) = pair.states.iter().find(|state| state.to == tensor) else { continue };
        let Some(object_bytes) = object_bytes(to, tensor) else { continue };
        let end = first.saturating_add(count).saturating_mul(object_bytes);
        let bytes = to.graph().tensor(tensor).bytes;
        wanted.extend((first * object_bytes..end.min(bytes)).map(|byte| (state.from, byte)));
    }
    let held = holding
        .entries()
        .iter()
        .filter(|held| object_bytes(holding.verified(), held.tensor).is_some());
    let bytes = held.flat_map(|held| {
        (held.first_byte..held.first_byte + held.bytes).map(|byte| (held.tensor, byte))
    });
    bytes.filter(|byte| wanted.contains(byte)).count() as u64
}

/// The verdicts of the verifier on a planned switch and on a corrupted one, after as many
/// iterations.
fn verdicts(
    pair: &Pair,
    iterations: u64,
    saved: bool,
    choices: &mut Choices,
) -> Result<Option<SwitchError>, TestCaseError> {
    with_both(pair, |plans| {
        let mut device = SimDevice::new(pair.machine);
        with_first(&plans, &mut device, iterations, |executor, device, _| {
            if saved {
                executor.save_states(device).unwrap();
            }
            with_planned(executor, &plans[1], pair, |holding, between, planned| {
                prop_assert_eq!(judge(between, &planned.switch()), Ok(planned.predicted));
                let least_bytes = in_chunks_of_both(holding, &plans[1], pair);
                prop_assert!(planned.predicted.kept_bytes >= least_bytes);
                let prove = |switch: &OwnedSwitch| {
                    let switch = switch.switch();
                    switching::prove(holding, &plans[1], &pair.states, &switch).map(|_| ()).err()
                };
                prop_assert_eq!(prove(&planned), None);
                let corrupted = corrupt(&planned, pair, choices);
                let (verdict, judged) = (prove(&corrupted), judge(between, &corrupted.switch()));
                prop_assert_eq!(verdict.is_none(), judged.is_ok(), "{:?} {:?}", verdict, judged);
                Ok(verdict)
            })
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn there_and_back_every_value_survives(pair in pairs_of_one_graph(), seed: u64) {
        there_and_back(&pair, SimDevice::new(pair.machine))?;
        let device = SimDevice::adversarial(pair.machine, seed);
        there_and_back(&pair, device.with_most_range_chunks(narrowest(&pair)))?;
    }

    #[test]
    fn states_are_those_of_a_run_through_the_host(pair in pairs()) {
        prop_assert_eq!(switched(&pair), through_the_host(&pair));
    }
}

/// Lays the second plan's arena out after the first's.
fn arrange(pair: &Pair) -> Result<(), TestCaseError> {
    with_both(pair, |[from, to]| {
        let (graph, machine) = (to.graph(), to.machine());
        let plan = &pair.to.1;
        let Some(arranged) = switching::keep_offsets(&from, &to, plan, &pair.states).unwrap()
        else {
            return Ok(());
        };
        prop_assert!(ledger::judge(graph, machine, &arranged.plan()).is_ok());
        let schedule = planning::schedule(graph, machine, &arranged.plan()).unwrap();
        planning::prove(graph, machine, &arranged.plan(), &schedule.schedule()).unwrap();
        let offset = |arena: &[ArenaPlacement], tensor| {
            arena.iter().find(|placement| placement.tensor == tensor).map(|it| it.offset_bytes)
        };
        for state in &pair.states {
            let (one, other) =
                (offset(from.plan().arena, state.from), offset(&arranged.arena, state.to));
            prop_assert!(one.is_none() || other.is_none() || one == other);
        }
        Ok(())
    })
}

/// Both plans, with the same names for the same states.
fn named(pair: &Pair) -> [Plan; 2] {
    let Pair { machine, from, to, .. } = pair.clone().named();
    let machine = OwnedMachine::new("", machine);
    [from, to].map(|(graph, plan)| {
        let graph = spillway::Graph::new(graph).unwrap();
        Plan::new(&graph, &machine, plan).unwrap()
    })
}

/// The value of a byte of a state, by the number of the state.
fn expected(state: usize, byte: u64) -> u8 {
    (state as u64 * 131 + byte * 7 + byte / 256) as u8
}

/// Carries out the copies of a switch over a slab of bytes. Then the second plan finds its states
/// there. The first plan's states lie where an executor has them after so many iterations.
fn in_a_slab(pair: &Pair, iterations: u64, device: &mut SimDevice) -> Result<(), TestCaseError> {
    let [from, to] = named(pair);
    let switch = match from.slab_switch_to(iterations, &to) {
        Err(Error::NotPlaced) => return Ok(()),
        switch => switch.unwrap(),
    };
    let mut slab = vec![0xaa; switch.slab_bytes as usize];
    let sizes = pair.states.iter().map(|state| pair.to.0.tensors[state.to.index()].bytes);
    let mut host: Vec<Vec<u8>> = sizes.map(|bytes| vec![0xbb; bytes as usize]).collect();
    let fill = |bytes: &mut [u8], state: usize, first: u64| {
        bytes.iter_mut().zip(first..).for_each(|(slot, byte)| *slot = expected(state, byte));
    };
    with_both(pair, |plans| {
        let mut ahead = Vec::new();
        let room = capacity(&plans);
        let ahead = switching::holding_of(&plans[0], iterations, room, &mut ahead).unwrap();
        with_first(&plans, device, iterations, |executor, _, _| {
            let mut held = Vec::new();
            let holding = switching::holding(executor, &mut held).unwrap();
            let places = |holding: &Holding<'_>| -> BTreeSet<_> {
                let each_byte = |held: &Held| {
                    let Held { tensor, first_byte, bytes, at, .. } = *held;
                    (0..bytes).map(move |byte| (tensor, first_byte + byte, at + byte))
                };
                holding.entries().iter().flat_map(each_byte).collect()
            };
            prop_assert_eq!(places(&ahead), places(&holding), "after {} iterations", iterations);
            Ok(())
        })?;
        let number = |id| pair.states.iter().position(|state| state.from == id).unwrap();
        // The host lacks the bytes on the device of which the plan claims no host copy.
        for (state, host) in host.iter_mut().enumerate() {
            fill(host, state, 0);
        }
        for held in ahead.entries() {
            let state = number(held.tensor);
            fill(&mut slab[held.at as usize..][..held.bytes as usize], state, held.first_byte);
            if !held.host_copy {
                host[state][held.first_byte as usize..][..held.bytes as usize].fill(0xbb);
            }
        }
        Ok::<(), TestCaseError>(())
    })?;
    let state_of = |id| pair.states.iter().position(|state| state.to == id);
    // Uploads that do not wait run before all downloads, as early as they may.
    let (early, late): (Vec<&SlabCopy>, Vec<&SlabCopy>) = switch.copies.iter().partition(|copy| {
        let list = switch.copies.iter();
        let waits = list.take_while(|other| other != copy).any(|other| other.waits);
        copy.direction == Direction::HostToDevice && !copy.waits && !waits
    });
    for copy in early.into_iter().chain(late) {
        let Some(state) = state_of(copy.tensor) else { continue };
        let on_device = copy.offset_bytes as usize..(copy.offset_bytes + copy.bytes) as usize;
        let on_host = copy.first_byte as usize..(copy.first_byte + copy.bytes) as usize;
        match copy.direction {
            Direction::HostToDevice => slab[on_device].copy_from_slice(&host[state][on_host]),
            _ => host[state][on_host].copy_from_slice(&slab[on_device]),
        }
    }
    for run in to.addresses().unwrap().at_start() {
        let Holder::Tensor(tensor) = run.holder else { continue };
        let Some(state) = state_of(tensor) else { continue };
        let bytes = &slab[run.offset_bytes as usize..][..run.bytes as usize];
        for (&byte, at) in bytes.iter().zip(run.first_byte..) {
            prop_assert_eq!(byte, expected(state, at), "byte {} of state {}", at, state);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn the_ledger_and_the_verifier_agree(
        pair in pairs(),
        iterations in 0..=3u64,
        saved: bool,
        mut choices in choices(8),
    ) {
        verdicts(&pair, iterations, saved, &mut choices)?;
    }

    #[test]
    fn address_ranges_are_bounded(pair in pairs_of_one_graph()) {
        many_turns(&pair)?;
    }

    #[test]
    fn plans_switch_in_a_slab(pair in pairs(), iterations in 0..=7u64) {
        in_a_slab(&pair, iterations, &mut SimDevice::new(pair.machine))?;
    }

    #[test]
    fn arranged_plans_are_valid(pair in pairs()) {
        arrange(&pair)?;
    }
}

/// The errors of corrupted switches.
const ERRORS: [&str; 13] = [
    "Chunks",
    "ClaimedHostCopy",
    "Elsewhere",
    "LeftOver",
    "Missing",
    "NeedlessOffload",
    "NoHostCopy",
    "NotHeld",
    "NotWanted",
    "Overwrites",
    "Prediction",
    "Twice",
    "ValueLost",
];

/// Ends when the switches so far have broken each rule.
#[test]
fn each_rule_is_broken() {
    let mut runner = TestRunner::deterministic();
    let mut broken = BTreeSet::new();
    for _ in 0..5000 {
        let strategy = (pairs(), 0..=3u64, any::<bool>(), choices(8));
        let (pair, iterations, saved, mut choices) =
            strategy.new_tree(&mut runner).unwrap().current();
        if let Some(error) = verdicts(&pair, iterations, saved, &mut choices).unwrap() {
            let text = format!("{error:?}");
            broken.insert(text.split([' ', '(']).next().unwrap().to_owned());
            if broken.iter().eq(ERRORS) {
                return;
            }
        }
    }
    panic!("{broken:?} are not all errors of a corrupted switch");
}
