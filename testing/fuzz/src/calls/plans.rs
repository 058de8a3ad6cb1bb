//! Calls that take a plan: with plans of any kind, schedules that are forged, other graphs,
//! and too little memory.

use super::call_with_scratch;
use crate::case::Files;
use crate::fault::{Fault, returns};
use crate::graphs::graphs;
use crate::judge::run_verified;
use crate::numbers::{numbers, numbers_u32, numbers_usize};
use crate::plans;
use backend_sim::{SimDevice, SimKernels};
use conformance::plans::Case;
use middleware::{Faults, Layered, LayeredKernels, SlowLink, Tracer};
use planner_core::backend::{Kernels, Paging, Transfers};
use planner_core::pieces::Pieces;
use planner_core::placement::{self, Over};
use planner_core::timeline::{self, Timeline};
use planner_core::{
    ExecuteError, Executor, Graph, HostLayout, Limits, Machine, Part, PerStream, Plan, PlanError,
    Schedule, Scheduled, Scratch, Stream, Verified, VerifyError, Wait, executor, footprint, lower,
    verify,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use workloads::OwnedGraph;

/// Buffers for lists are no longer than this.
const MOST_ENTRIES: usize = 1 << 14;
/// Larger work is not run.
const MOST_RUN_BYTES: u64 = 1 << 20;

/// What such calls are made with.
#[derive(Clone, Debug)]
pub struct Input {
    case: Case,
    /// A graph that the plan is not for.
    other: OwnedGraph,
    /// How much of the memory that is enough is lent.
    permille: usize,
    /// How much of the schedule buffer is lent.
    buffer_permille: usize,
    forgeries: Vec<Forgery>,
    numbers: [u64; 3],
    over: Over,
}

/// What is changed in a schedule.
#[derive(Clone, Copy, Debug)]
enum Forgery {
    Wait(usize, usize, Option<Wait>),
    Stream(usize, Option<Stream>),
    Index(usize, u32),
    StreamSteps(usize, u32),
    Iterations(u32),
    Cut(usize),
}

/// Any input.
pub fn inputs() -> impl Strategy<Value = Input> {
    let permille = || prop_oneof![2 => Just(1000usize), 1 => 0..=1000usize];
    let over = (numbers_u32(), any::<bool>(), any::<bool>(), numbers()).prop_map(
        |(iterations, settled, spares_due, most_lacking)| Over {
            iterations,
            settled,
            spares_due,
            most_lacking,
        },
    );
    let sizes = (permille(), permille(), [numbers(), numbers(), numbers()]);
    (plans::plans(), graphs(), sizes, vec(forgeries(), 0..=3), over).prop_map(
        |(case, other, (permille, buffer_permille, numbers), forgeries, over)| Input {
            case,
            other,
            permille,
            buffer_permille,
            forgeries,
            numbers,
            over,
        },
    )
}

fn forgeries() -> impl Strategy<Value = Forgery> {
    let (at, of) = (0..64usize, 0..3usize);
    let wait = (numbers_u32(), numbers_u32())
        .prop_map(|(index, iterations_back)| Wait { index, iterations_back });
    let stream = prop::option::of(select(Stream::ALL.to_vec()));
    let cut = prop_oneof![at.clone(), numbers_usize()];
    prop_oneof![
        4 => (at.clone(), of.clone(), prop::option::of(wait))
            .prop_map(|(at, of, wait)| Forgery::Wait(at, of, wait)),
        1 => (at.clone(), stream).prop_map(|(at, stream)| Forgery::Stream(at, stream)),
        1 => (at, numbers_u32()).prop_map(|(at, index)| Forgery::Index(at, index)),
        1 => (of, numbers_u32()).prop_map(|(of, steps)| Forgery::StreamSteps(of, steps)),
        1 => numbers_u32().prop_map(Forgery::Iterations),
        1 => cut.prop_map(Forgery::Cut),
    ]
}

/// The plan's files, and all of the input in words.
#[must_use]
pub fn files(input: &Input) -> Files {
    let mut files = plans::files(&input.case);
    files.push(("input.txt", format!("{input:#?}").into_bytes()));
    files
}

/// Makes all calls.
///
/// # Errors
/// The first that does not return, or a schedule that is proved safe and is not.
pub fn check(input: &Input) -> Result<(), Fault> {
    let Ok(graph) = input.case.graph.graph() else { return Ok(()) };
    let (machine, plan) = (&input.case.machine, &input.case.plan.plan());
    let limits = &Limits::of_plan(&graph, plan);
    check_tables(input, &graph, machine, plan, limits)?;
    let mut buffer = vec![Scheduled::EMPTY; limits.entries().min(MOST_ENTRIES)];
    let len = buffer.len() * input.buffer_permille / 1000;
    let mut lowered = None;
    call_with_scratch("lower", lower::scratch_words(limits), input.permille, |scratch| {
        let Schedule { stream_steps, iterations, .. } =
            match lower(&graph, machine, plan, &mut buffer[..len], scratch) {
                Err(PlanError::BufferTooShort(_)) if len < limits.entries() => return Ok(()),
                lowered => lowered?,
            };
        lowered = Some((stream_steps, iterations));
        Ok::<_, PlanError>(())
    })?;
    // One that is forged, or that nothing was written to, may have more steps than the plan.
    let is_sound = lowered.is_some() && input.forgeries.is_empty();
    let permille = if is_sound { input.permille } else { input.permille.min(999) };
    let (stream_steps, iterations) = lowered.unwrap_or((PerStream::all(1), 1));
    let schedule = forged(&mut buffer, stream_steps, iterations, &input.forgeries);
    let input = &Input { permille, ..input.clone() };
    check_schedule(input, &graph, machine, plan, &schedule, limits)?;
    let Ok(other) = input.other.graph() else { return Ok(()) };
    check_other(input, &other, machine, plan, &schedule)
}

fn forged<'s>(
    steps: &'s mut [Scheduled],
    mut stream_steps: PerStream<u32>,
    mut iterations: u32,
    forgeries: &[Forgery],
) -> Schedule<'s> {
    let len = steps.len().max(1);
    let mut end = steps.len();
    for forgery in forgeries {
        let mut with = |at: usize, change: &dyn Fn(&mut Scheduled)| {
            steps.iter_mut().skip(at % len).take(1).for_each(change);
        };
        match *forgery {
            Forgery::Wait(at, of, wait) => with(at, &|entry| entry.set_wait(Stream::ALL[of], wait)),
            Forgery::Stream(at, stream) => {
                with(at, &|entry| *entry = moved(entry, stream, entry.index()));
            }
            Forgery::Index(at, index) => {
                with(at, &|entry| *entry = moved(entry, entry.stream(), index));
            }
            Forgery::StreamSteps(of, steps) => stream_steps.0[of] = steps,
            Forgery::Iterations(new) => iterations = new,
            Forgery::Cut(at) => end = end.min(at),
        }
    }
    Schedule { steps: &steps[..end], stream_steps, iterations }
}

/// The entry with its waits, elsewhere.
fn moved(entry: &Scheduled, stream: Option<Stream>, index: u32) -> Scheduled {
    let mut moved = Scheduled::new(stream, index);
    for (stream, wait) in entry.waits() {
        moved.set_wait(stream, wait);
    }
    moved
}

/// What is made of a plan alone.
fn check_tables(
    input: &Input,
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &Plan<'_>,
    limits: &Limits,
) -> Result<(), Fault> {
    let [one, two, three] = input.numbers;
    let permille = input.permille;
    call_with_scratch("Pieces::new", Pieces::scratch_words(limits), permille, |scratch| {
        let mut scratch = scratch.reborrow();
        let pieces = Pieces::new(graph, machine, plan, &mut scratch)?;
        let _ = (pieces.len(), pieces.is_empty());
        for op in graph.op_ids() {
            let _ = pieces.workspace(graph, op);
        }
        for tensor in graph.tensor_ids() {
            let _ = (pieces.arena_offset_bytes(tensor), pieces.in_arena(tensor));
            let _ = (pieces.objects(tensor), pieces.pool(tensor));
            for piece in pieces.of(tensor) {
                let _ = (pieces.range(tensor, piece), pieces.pool_objects(tensor, piece));
            }
            for part in [Part::whole(tensor), Part { tensor, first: one, count: two }] {
                let _ = (pieces.of_part(part), pieces.part_objects(part));
                let _ = (pieces.covers_tensor(part), pieces.arrives_beside(graph, part));
            }
        }
        for step in plan.steps {
            if let planner_core::Step::Prefetch(part) = *step {
                let _ = (pieces.offset_bytes(part), pieces.part_bytes(graph, part));
            }
        }
        let mut memory = vec![7; footprint::scratch_words(limits)];
        let footprint = footprint::measure(&pieces, &mut Scratch::new(&mut memory));
        let _ = footprint.map(|it| (it.host_bytes(), it.waste_bytes()));
        let mut out_ns = vec![0; (three % 64) as usize];
        let _ = timeline::durations(machine, &pieces, &mut out_ns);
        Ok::<_, PlanError>(())
    })?;
    call_with_scratch("HostLayout::new", HostLayout::scratch_words(limits), permille, |scratch| {
        let layout = HostLayout::new(graph, machine, plan, scratch)?;
        for tensor in graph.tensor_ids() {
            let _ = layout.offset_bytes(tensor, one as u32, two);
        }
        Ok::<_, PlanError>((layout.moved_bytes(), layout.bytes()))
    })?;
    check_placing(input, graph, machine, plan, limits)
}

fn check_placing(
    input: &Input,
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &Plan<'_>,
    limits: &Limits,
) -> Result<(), Fault> {
    if let Some(placements) = plan.placements {
        returns("Placements::of", || placements.of(input.numbers[0] as u32))?;
    }
    let Over { iterations, .. } = input.over;
    let mut slots = None;
    call_with_scratch(
        "placement::slots",
        placement::scratch_words(limits),
        input.permille,
        |scratch| {
            slots = Some(placement::slots(graph, machine, plan, iterations, scratch)?);
            Ok::<_, placement::PlacementError>(())
        },
    )?;
    let (allocations, objects) = slots.unwrap_or((7, 7));
    if objects > 1 << 16 {
        return Ok(());
    }
    let limits = Limits { iterations: iterations as usize, objects, ..*limits };
    let (mut objects, mut ends) = (vec![0; objects], vec![0; allocations]);
    call_with_scratch(
        "placement::place",
        placement::scratch_words(&limits),
        input.permille,
        |scratch| {
            let output = placement::PlacementOutput { objects: &mut objects, ends: &mut ends };
            placement::place(graph, machine, plan, input.over, output, scratch).map(|_| ())
        },
    )?;
    call_with_scratch(
        "placement::place_contiguously",
        placement::contiguous_scratch_words(&limits),
        input.permille,
        |scratch| {
            let output = placement::PlacementOutput { objects: &mut objects, ends: &mut ends };
            let steps = input.numbers[1] % (1 << 16);
            placement::place_contiguously(graph, machine, plan, iterations, steps, output, scratch)
                .map(|_| ())
        },
    )
}

/// What is made of a plan and a schedule.
fn check_schedule(
    input: &Input,
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &Plan<'_>,
    schedule: &Schedule<'_>,
    limits: &Limits,
) -> Result<(), Fault> {
    let permille = input.permille;
    returns("Schedule::of_iteration", || schedule.of_iteration(input.numbers[0]).len())?;
    let words = timeline::scratch_words(limits);
    call_with_scratch("timeline::predict", words, permille, |scratch| {
        timeline::predict(graph, machine, plan, schedule, scratch)
    })?;
    call_with_scratch("timeline::check", words, permille, |scratch| {
        timeline::check(graph, machine, plan, schedule, scratch)
    })?;
    call_with_scratch("Timeline::new", words, permille, |scratch| {
        let timeline = Timeline::new(schedule, &input.numbers, scratch)?;
        let _ = timeline.end_ns(input.numbers[0] as usize, Stream::Upload, input.numbers[1] as u32);
        Ok::<_, planner_core::OutOfScratch>(timeline.period_ns())
    })?;
    let (mut unsafe_run, mut unplaced) = (None, None);
    call_with_scratch("verify", verify::scratch_words(limits), permille, |scratch| {
        let verified = verify(graph, machine, plan, schedule, scratch)?;
        unplaced = locate(&verified, scratch).err();
        if is_small(&verified) && fits_host(&verified) {
            unsafe_run = run_verified(&verified).err();
            run_somehow(&verified, input);
        }
        Ok::<_, VerifyError>(())
    })?;
    if let Some(error) = unplaced {
        return Err(Fault::new("addresses of a verified plan", error));
    }
    match unsafe_run {
        Some(error) => Err(Fault::new("unsafe schedule verified", error)),
        None => Ok(()),
    }
}

/// All that a plan touches lies in the slab.
fn locate(verified: &Verified<'_>, scratch: &mut Scratch<'_>) -> Result<(), String> {
    let mut end_bytes = 0;
    let see =
        |run: placement::Run| end_bytes = run.offset_bytes.saturating_add(run.bytes).max(end_bytes);
    match placement::addresses(verified, scratch, see) {
        Ok(slab_bytes) if end_bytes > slab_bytes => {
            Err(format!("{end_bytes} of {slab_bytes} bytes"))
        }
        Err(placement::AddressError::Plan(error)) => Err(error.to_string()),
        _ => Ok(()),
    }
}

fn is_small(verified: &Verified<'_>) -> bool {
    let (graph, plan, machine) = (verified.graph(), verified.plan(), verified.machine());
    graph.tensors().iter().all(|tensor| tensor.bytes <= MOST_RUN_BYTES)
        && plan.budget_bytes <= MOST_RUN_BYTES
        && plan.pools.iter().all(|pool| pool.count <= 1 << 16)
        && machine.chunk_bytes <= MOST_RUN_BYTES
}

fn fits_host(verified: &Verified<'_>) -> bool {
    let (graph, machine, plan) = (verified.graph(), verified.machine(), verified.plan());
    let mut memory = vec![0; HostLayout::scratch_words(&Limits::of_plan(graph, plan))];
    HostLayout::new(graph, machine, plan, &mut Scratch::new(&mut memory))
        .is_ok_and(|layout| layout.moved_bytes() <= machine.host_bytes)
}

/// Runs with faults, or with too little memory; it may fail.
fn run_somehow(verified: &Verified<'_>, input: &Input) {
    let (graph, machine) = (*verified.graph(), *verified.machine());
    let [one, two, three] = input.numbers;
    let device = || SimDevice::adversarial(machine, one);
    let faults = Faults::new(one)
        .delayed_copies(one as u32)
        .failed_copies(two as u32)
        .failed_fills(one as u32)
        .failed_allocations(three as u32);
    let slow = SlowLink { times: (two % 64) as u32 };
    let tracer = Tracer::new(|device: &SimDevice| device.host_ns());
    let mut kernels = LayeredKernels(SimKernels::new(graph));
    let _ = run_in(verified, &mut Layered::new(device(), faults), &mut kernels, input);
    let _ = run_in(verified, &mut Layered::new(device(), slow), &mut kernels, input);
    let mut traced = Layered::new(device(), tracer);
    let _ = run_in(verified, &mut traced, &mut kernels, input);
    let _ = traced.layer.json();
}

fn run_in<B: Transfers + Paging, K: Kernels<B>>(
    verified: &Verified<'_>,
    device: &mut B,
    kernels: &mut K,
    input: &Input,
) -> Result<(), ExecuteError<B::Error>> {
    let limits = Limits::of_plan(verified.graph(), verified.plan());
    let words = executor::scratch_words(&limits, (input.numbers[2] % 64) as usize);
    let mut memory = vec![7; words * input.permille / 1000];
    let mut executor = Executor::start(verified, device, kernels, &mut Scratch::new(&mut memory))?;
    executor.run(device, kernels, 2)?;
    executor.save_states(device)?;
    executor.run(device, kernels, 1)
}

/// The same with a graph that the plan is not for.
fn check_other(
    input: &Input,
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &Plan<'_>,
    schedule: &Schedule<'_>,
) -> Result<(), Fault> {
    let limits = &Limits::of_plan(graph, plan);
    let permille = input.permille.min(999);
    call_with_scratch(
        "verify with another graph",
        verify::scratch_words(limits),
        permille,
        |scratch| verify(graph, machine, plan, schedule, scratch).map(|_| ()),
    )?;
    call_with_scratch(
        "predict with another graph",
        timeline::scratch_words(limits),
        permille,
        |scratch| timeline::predict(graph, machine, plan, schedule, scratch),
    )?;
    let mut buffer = vec![Scheduled::EMPTY; limits.entries().min(MOST_ENTRIES)];
    call_with_scratch(
        "lower with another graph",
        lower::scratch_words(limits),
        permille,
        |scratch| lower(graph, machine, plan, &mut buffer, scratch).map(|_| ()),
    )
}
