//! Whole plans. Every planner plans generated graphs, integrity kernels run the plans, and the
//! results must be the bytes that the graphs define.

use super::Bench;
use super::failure::{Failure, Outcome, ensure};
use super::rig::filled;
use super::usage::{self, Usage};
use crate::chains::chains;
use crate::graphs::{local_graphs, training_graphs};
use integrity::{Backend, RUN_WORDS, Value, reference_values, slots};
use planner_core::backend::Transfers;
use planner_core::planner::{Auto, Lms, PlanningError, Request, Strategy, Weights, Window};
use planner_core::{Graph, HostLayout, Kind, Machine, OpId, Plan, Step};
use proptest::strategy::{Strategy as Generator, ValueTree};
use proptest::test_runner::TestRunner;
use spillway::strategy::{Planner, Swap, Watch};
use spillway::{placing, planning};
use std::cell::Cell;
use workloads::{OwnedGraph, OwnedPlan};

/// The number of graphs for each planner.
const GRAPHS: usize = 4;
/// The iterations after which states are saved and compared. The first run is so long that the
/// objects of a plan that is mapped once repeat. Then the run continues.
const ITERATIONS: [u64; 2] = [5, 7];
/// The same for a long run, which has one window of iterations after the other.
const MANY_ITERATIONS: [u64; 10] = [1000, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 9000, 10_000];
/// The chunk size for which graphs are generated. Their tensors are stretched to the device's
/// chunks.
const GENERATED_CHUNK_BYTES: u64 = 256;
/// Larger chunks take long to fill. With them, each planner has [`FEW_GRAPHS`], tensors have at
/// most [`MOST_CHUNKS`], and kernels touch [`RUNS`] runs of words in each chunk if the backend has
/// such kernels.
pub(super) const FILLED_CHUNK_BYTES: u64 = 64 << 10;
const FEW_GRAPHS: usize = 2;
const MOST_CHUNKS: u64 = 2;
const RUNS: u64 = 8;
/// The size of the tensors of a long run, unless a chunk is smaller.
const LONG_BYTES: u64 = 1024;

/// Plans of `in-core`, which keep everything on the device.
pub fn in_core<T: Backend>(bench: &Bench<'_, T>) -> Outcome {
    hold(bench, local_graphs(), &Strategy::InCore)
}

/// Plans of `on-demand`, which are mapped as they run.
pub fn on_demand<T: Backend>(bench: &Bench<'_, T>) -> Outcome {
    hold(bench, local_graphs(), &Strategy::OnDemand)
}

/// Plans of `fit`.
pub fn fit<T: Backend>(bench: &Bench<'_, T>) -> Outcome {
    hold(bench, local_graphs(), &Strategy::Fit)
}

/// Plans of `vdnn`.
pub fn vdnn<T: Backend>(bench: &Bench<'_, T>) -> Outcome {
    hold(bench, training_graphs(2..=5), &Strategy::Vdnn)
}

/// Plans of `lms`.
pub fn lms<T: Backend>(bench: &Bench<'_, T>) -> Outcome {
    hold(bench, local_graphs(), &Strategy::Lms(Lms::new().with_threshold(1).with_ahead(1)))
}

/// Plans of `window`.
pub fn window<T: Backend>(bench: &Bench<'_, T>) -> Outcome {
    hold(bench, local_graphs(), &Strategy::Window(Window::new()))
}

/// Plans of `auto`, in which parts of tensors move.
pub fn auto<T: Backend>(bench: &Bench<'_, T>) -> Outcome {
    hold(bench, training_graphs(2..=5), &AUTO)
}

/// Plans of `weights` and `weights-undiscounted`, for chains.
pub fn weights<T: Backend>(bench: &Bench<'_, T>) -> Outcome {
    hold(bench, chain_graphs(), &Strategy::Weights(Weights::default()))?;
    hold(bench, chain_graphs(), &Strategy::WeightsUndiscounted)
}

/// Plans of `layer-to-layer`, for chains.
pub fn layer_to_layer<T: Backend>(bench: &Bench<'_, T>) -> Outcome {
    hold(bench, chain_graphs(), &Strategy::LayerToLayer)
}

/// Plans of `swap`. Their pools have objects of other sizes than chunks.
pub fn swap<T: Backend>(bench: &Bench<'_, T>) -> Outcome {
    // A pool's objects are as large as tensors, and kernels need them to be whole words.
    let aligned = training_graphs(2..=5).prop_map(|mut graph| {
        for tensor in &mut graph.tensors {
            tensor.bytes = tensor.bytes.next_multiple_of(4);
        }
        graph
    });
    hold(bench, aligned, &Swap::default())
}

/// Statically aliased plans: everything is mapped before the first iteration, and one chunk lies in
/// several ranges.
pub fn with_placements<T: Backend>(bench: &Bench<'_, T>) -> Outcome {
    for strategy in [Strategy::OnDemand, AUTO] {
        let aliased = Aliased::new(strategy);
        hold(bench, training_graphs(2..=5), &aliased)?;
        ensure!(aliased.placed.get() > 0, "no plan could be mapped once");
    }
    Ok(())
}

const AUTO: Strategy = Strategy::Auto(Auto::new().with_effort(3));

/// Ten thousand iterations of a small plan, first mapped as it runs and then mapped once. After the
/// first thousand, the process opens no more handles, and its memory does not grow in every window
/// of a thousand.
pub fn ten_thousand_iterations<T: Backend>(bench: &Bench<'_, T>) -> Outcome {
    let machine = machine(bench);
    // A tensor that fills a chunk does not go to the arena, so it moves. In the run it fills less
    // of the chunk. The number of mapped chunks stays the same, but the bytes of a large chunk
    // would take hours.
    let [whole, light] =
        [u64::MAX, LONG_BYTES].map(|most| long_work(machine.chunk_bytes.min(most)));
    let (whole, light) = (whole.graph()?, light.graph()?);
    let planners: [&dyn Planner; 2] = [&Strategy::OnDemand, &Aliased::new(Strategy::OnDemand)];
    for planner in planners {
        let plan = moving(planner, &whole, &machine)?;
        run(bench, &light, &plan.plan(), Length::Long)?;
    }
    Ok(())
}

/// Two ops, since the iterations are many: an input, a temporary, a workspace and two states. One
/// state is updated while the other is not needed.
fn long_work(bytes: u64) -> OwnedGraph {
    let mut graph = OwnedGraph::new("long");
    let input = graph.push_tensor("input", bytes, Kind::Input);
    let [weight, sum] = ["weight", "sum"].map(|name| graph.push_tensor(name, bytes, Kind::State));
    let made = graph.push_tensor("made", bytes, Kind::Temporary);
    graph.push_op("make", 1000, bytes, &[input, weight], &[made]);
    graph.push_op("add", 1000, 0, &[made, sum], &[sum]);
    graph
}

/// A plan for the least memory, in which some tensor leaves and comes back.
fn moving(planner: &dyn Planner, graph: &Graph<'_>, machine: &Machine) -> Outcome<OwnedPlan> {
    let request = Request { graph, machine, budget_bytes: 0 };
    let (budget_bytes, _) = planner.min_feasible(&request)?;
    let plan = planner.plan(&Request { budget_bytes, ..request }, &mut Watch::default())?;
    let has = |wanted: fn(&Step) -> bool| plan.steps.iter().any(wanted);
    let moves = has(|step| matches!(step, Step::Offload(_)))
        && has(|step| matches!(step, Step::Prefetch(_)))
        && has(|step| matches!(step, Step::Evict(_)));
    ensure!(
        moves,
        "nothing moves in the plan for {budget_bytes} bytes in chunks of {}",
        machine.chunk_bytes
    );
    Ok(plan)
}

/// The length of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Length {
    Short,
    Long,
}

/// Plans of a strategy that are mapped once, if the strategy has such plans.
#[derive(Debug)]
struct Aliased {
    strategy: Strategy,
    /// The number of plans that are mapped once.
    placed: Cell<u32>,
}

impl Aliased {
    const fn new(strategy: Strategy) -> Self {
        Self { strategy, placed: Cell::new(0) }
    }
}

impl Planner for Aliased {
    fn name(&self) -> &'static str {
        Planner::name(&self.strategy)
    }

    fn min_feasible(&self, request: &Request<'_>) -> Result<(u64, OpId), PlanningError> {
        self.strategy.min_feasible(request)
    }

    fn plan(
        &self,
        request: &Request<'_>,
        watch: &mut Watch<'_>,
    ) -> Result<OwnedPlan, PlanningError> {
        let plan = self.strategy.plan(request, watch)?;
        let Ok(placed) = placing::place(request.graph, request.machine, &plan, u64::MAX) else {
            return Ok(plan);
        };
        self.placed.set(self.placed.get() + 1);
        Ok(placed)
    }
}

fn chain_graphs() -> impl Generator<Value = OwnedGraph> {
    chains(5).prop_map(|chain| chain.graph())
}

/// The machine of a bench, with links that are about as fast as the ops of generated graphs.
/// Otherwise planners would have nothing to decide.
pub(super) fn machine<T>(bench: &Bench<'_, T>) -> Machine {
    let bytes_per_s = bench.machine.chunk_bytes.saturating_mul(4_000_000);
    let parameters =
        (*bench.machine).with_h2d_bytes_per_s(bytes_per_s).with_d2h_bytes_per_s(bytes_per_s);
    Machine::new(parameters).expect("a chunk has bytes")
}

/// The same graphs in every run, with tensors stretched to the size of chunks.
fn generated(
    graphs: impl Generator<Value = OwnedGraph>,
    machine: &Machine,
    count: usize,
) -> Outcome<Vec<OwnedGraph>> {
    let mut runner = TestRunner::deterministic();
    let mut graph = || {
        let tree = graphs.new_tree(&mut runner).map_err(Failure::new)?;
        Ok::<_, Failure>(tree.current())
    };
    let mut graphs = (0..count).map(|_| graph()).collect::<Outcome<Vec<_>>>()?;
    graphs.iter_mut().for_each(|graph| stretch(graph, machine));
    Ok(graphs)
}

/// Stretches the tensors of a generated graph in proportion to the size of chunks.
pub(super) fn stretch(graph: &mut OwnedGraph, machine: &Machine) {
    let factor = (machine.chunk_bytes / GENERATED_CHUNK_BYTES).max(1);
    let is_filled = machine.chunk_bytes <= FILLED_CHUNK_BYTES;
    let most_chunks = if is_filled { u64::MAX } else { MOST_CHUNKS - 1 };
    let stretched = |bytes: u64| {
        let chunks = (bytes / GENERATED_CHUNK_BYTES).min(most_chunks);
        let bytes = chunks * GENERATED_CHUNK_BYTES + bytes % GENERATED_CHUNK_BYTES;
        if bytes <= 64 { bytes } else { bytes * factor - factor / 2 }
    };
    for tensor in &mut graph.tensors {
        tensor.bytes = stretched(tensor.bytes).next_multiple_of(if factor > 1 { 4 } else { 1 });
    }
}

/// Runs plans of generated graphs for the least memory, and for half of the memory that they could
/// use.
fn hold<T: Backend>(
    bench: &Bench<'_, T>,
    graphs: impl Generator<Value = OwnedGraph>,
    planner: &dyn Planner,
) -> Outcome {
    let machine = machine(bench);
    let count = if machine.chunk_bytes > FILLED_CHUNK_BYTES { FEW_GRAPHS } else { GRAPHS };
    for (number, graph) in generated(graphs, &machine, count)?.iter().enumerate() {
        let graph = graph.graph()?;
        let request = Request { graph: &graph, machine: &machine, budget_bytes: 0 };
        let (min_bytes, _) = planner.min_feasible(&request)?;
        let (most_bytes, _) = planning::min_feasible(&request, Strategy::InCore)?;
        for budget_bytes in [min_bytes, min_bytes.midpoint(most_bytes.max(min_bytes))] {
            let ran = planner
                .plan(&Request { budget_bytes, ..request }, &mut Watch::default())
                .map_err(Failure::from)
                .and_then(|plan| run(bench, &graph, &plan.plan(), Length::Short));
            ran.map_err(|failure| {
                failure.context(format_args!("graph {number} in {budget_bytes} bytes"))
            })?;
        }
    }
    Ok(())
}

/// Runs a plan on a fresh device. Compares all states and outputs with the graph's, during the run
/// and at the end.
pub(super) fn run<T: Backend>(
    bench: &Bench<'_, T>,
    graph: &Graph<'_>,
    plan: &Plan<'_>,
    length: Length,
) -> Outcome {
    let machine = machine(bench);
    let schedule = planning::schedule(graph, &machine, plan)?;
    let schedule = schedule.schedule();
    let verified = planning::prove(graph, &machine, plan, &schedule)?;
    let (mut device, mut kernels, runs) = opened(bench, *graph)?;
    let is_long = length == Length::Long;
    let stops = if is_long { &MANY_ITERATIONS[..] } else { &ITERATIONS };
    planning::with_executor(
        &verified,
        &mut device,
        &mut kernels,
        |mut executor, device, kernels| {
            let (mut outcome, mut windows, mut done) = (Ok(()), vec![], 0);
            for &iterations in stops {
                let before = Usage::now();
                executor.run(device, kernels, iterations - done)?;
                if is_long && done > 0 {
                    windows.extend(before.zip(Usage::now()));
                }
                executor.save_states(device)?;
                let compared = compare(graph, device, executor.host_layout(), iterations, runs);
                outcome = outcome.and(compared);
                done = iterations;
            }
            Ok(outcome.and(usage::check_growth(&windows)))
        },
    )??;
    bench.backend.close(device).map_err(Failure::new)
}

/// A fresh device and the kernels of a graph. If the kernels touch only runs of words, also returns
/// the distance between the starts of two runs.
pub(super) fn opened<'g, T: Backend>(
    bench: &Bench<'_, T>,
    graph: Graph<'g>,
) -> Outcome<(T::Device, T::Kernels<'g>, Option<u64>)> {
    let mut device = bench.backend.open(bench.machine, bench.order).map_err(Failure::new)?;
    let spread_words = bench.machine.chunk_bytes / 4 / RUNS;
    if bench.machine.chunk_bytes > FILLED_CHUNK_BYTES
        && let Ok(kernels) = bench.backend.sparse_kernels(&mut device, graph, spread_words)
    {
        return Ok((device, kernels, Some(spread_words)));
    }
    let kernels = bench.backend.kernels(&mut device, graph)?;
    Ok((device, kernels, None))
}

/// Fails unless the host block holds all states after some iterations, and the outputs of the last
/// iteration. If kernels touch only runs of words, compares only these.
fn compare<D: Transfers>(
    graph: &Graph<'_>,
    device: &mut D,
    layout: &HostLayout<'_>,
    iterations: u64,
    spread_words: Option<u64>,
) -> Outcome {
    let values = reference_values(graph, iterations);
    let states = slots(graph, layout, Kind::State, 0);
    let outputs = slots(graph, layout, Kind::Output, HostLayout::slot(iterations));
    for (tensor, slot) in states.chain(outputs) {
        let mut found = vec![0; slot.bytes as usize];
        device.read_host(slot.offset_bytes, &mut found)?;
        let wrong = first_wrong(&found, values[tensor.index()], spread_words);
        ensure!(
            wrong.is_none(),
            "after {iterations} iterations {tensor} is wrong from byte {} on",
            wrong.unwrap_or(0)
        );
    }
    Ok(())
}

/// The first byte that differs from a tensor's value. If kernels touch only runs of words, compares
/// only these.
pub(super) fn first_wrong(found: &[u8], value: Value, spread_words: Option<u64>) -> Option<usize> {
    let expected = filled(value, found.len() as u64);
    let is_touched = |byte: usize| {
        spread_words.is_none_or(|spread_words| byte as u64 / 4 % spread_words < RUN_WORDS)
    };
    let mut bytes = found.iter().zip(&expected).enumerate();
    let wrong = bytes.find(|&(byte, (found, expected))| found != expected && is_touched(byte));
    wrong.map(|(byte, _)| byte)
}
