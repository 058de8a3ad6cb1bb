//! Whole plans with kernels that wait for the recorded times: periods against predictions.

use backend_cuda::{Cuda, CudaDevice, CudaError, Options, Replay, cycle};
use planner_core::backend::{Kernels, Launch};
use planner_core::planner::{Auto, Order, Request, Strategy};
use planner_core::{Graph, Machine, Plan, Stream, Verified};
use std::time::{Duration, Instant};
use workloads::{OwnedGraph, OwnedPlan, format, models, placing, planning};

/// Iterations that are timed.
const ITERATIONS: u64 = 16;

/// Kernels that take the time of their ops.
struct Timed<'g>(Graph<'g>);

impl<'g> Kernels<CudaDevice<'g>> for Timed<'_> {
    fn launch(
        &mut self,
        device: &mut CudaDevice<'g>,
        launch: &Launch<'_>,
    ) -> Result<(), CudaError> {
        device.occupy(Stream::Compute, self.0.op(launch.op).time_ns)
    }

    fn fill_inputs(&mut self, _: &mut CudaDevice<'g>, _: u64) -> Result<(), CudaError> {
        Ok(())
    }
}

fn work(name: &str) -> OwnedGraph {
    if name.ends_with(".json") || name.ends_with(".gz") {
        let bytes = format::load(name).unwrap();
        return format::read_graph(&bytes).unwrap();
    }
    models::generate(name).unwrap()
}

pub(crate) fn measure(cuda: &Cuda, machine: &Machine, works: impl Iterator<Item = String>) {
    println!("Periods, predicted and measured, of plans by `auto` at half of the in-core peak:\n");
    println!("| work | way | predicted | measured | error | of the stall |");
    println!("|---|---|--:|--:|--:|--:|");
    for name in works {
        let work = work(&name);
        let graph = work.graph().unwrap();
        let name = name.rsplit('/').next().unwrap_or(&name);
        match plans(&graph, machine) {
            Ok([queued, placed]) => {
                row(cuda, &graph, machine, (name, "eager"), &placed.plan());
                row(cuda, &graph, machine, (name, "mapped as it goes"), &queued.plan());
                row(cuda, &graph, machine, (name, "graph"), &placed.plan());
            }
            Err(reason) => println!("| {name} | not planned: {reason} | | | | |"),
        }
    }
}

/// A plan that is mapped as it goes, and one that is mapped once.
fn plans(graph: &Graph<'_>, machine: &Machine) -> Result<[OwnedPlan; 2], String> {
    let request = Request { graph, machine, budget_bytes: 0 };
    let (most_bytes, _) =
        planning::min_feasible(&request, Strategy::InCore).map_err(|error| error.to_string())?;
    let auto = Strategy::Auto(Auto { effort: None, order: Order::Free });
    let request = Request { budget_bytes: most_bytes / 2, ..request };
    let plan = planning::plan(&request, auto).map_err(|error| error.to_string())?;
    let placed = placing::place(graph, machine, &plan, u64::MAX);
    Ok([plan, placed.map_err(|reason| format!("{reason:?}"))?])
}

fn row(
    cuda: &Cuda,
    graph: &Graph<'_>,
    machine: &Machine,
    (name, way): (&str, &str),
    plan: &Plan<'_>,
) {
    let schedule = planning::schedule(graph, machine, plan).unwrap();
    let schedule = schedule.schedule();
    let verified = planning::prove(graph, machine, plan, &schedule).unwrap();
    let as_graph = (way == "graph").then(|| cycle(graph, plan).unwrap());
    let predicted_ns = match as_graph {
        Some(cycle) => cycle.predicted_ns(&verified),
        None => Some(plan.predicted.period_ns),
    };
    let Some(predicted_ns) = predicted_ns else {
        println!("| {name} | {way} | not predicted | | | |");
        return;
    };
    let measured_ns = match run(cuda, &verified, as_graph) {
        Ok(period) => period.as_nanos() as f64,
        Err(reason) => {
            println!("| {name} | {way} | {predicted_ns} ns | not run: {reason} | | |");
            return;
        }
    };
    let (predicted, compute) = (predicted_ns as f64, plan.predicted.compute_ns as f64);
    let error = measured_ns - predicted;
    let of_stall = match predicted - compute {
        stall if stall > 0.0 => format!("{:.1} %", 100.0 * error / stall),
        _ => "no stall".to_owned(),
    };
    println!(
        "| {name} | {way} | {:.3} ms | {:.3} ms | {:+.2} % | {of_stall} |",
        predicted / 1e6,
        measured_ns / 1e6,
        100.0 * error / predicted
    );
}

/// The period of some iterations behind the first.
fn run(
    cuda: &Cuda,
    verified: &Verified<'_>,
    as_graph: Option<backend_cuda::Cycle>,
) -> Result<Duration, String> {
    let graph = *verified.graph();
    let chunk_bytes = Some(verified.machine().chunk_bytes);
    let states = Box::new(|_, _, bytes: &mut [u8]| bytes.fill(1));
    let device = cuda.open(&Options { ordinal: 0, chunk_bytes }, graph, states);
    let mut device = device.map_err(|error| error.to_string())?;
    device.occupy(Stream::Compute, 1).map_err(|error| error.to_string())?;
    let mut kernels = Timed(graph);
    let ran = planning::with_executor(
        verified,
        &mut device,
        &mut kernels,
        |mut executor, device, kernels| {
            let idle = |device: &mut CudaDevice<'_>| device.wait_idle().unwrap();
            let period = match as_graph {
                None => {
                    executor.run(device, kernels, 2)?;
                    idle(device);
                    let start = Instant::now();
                    executor.run(device, kernels, ITERATIONS)?;
                    idle(device);
                    start.elapsed().div_f64(ITERATIONS as f64)
                }
                Some(cycle) => {
                    let mut replay = Replay::record(&mut executor, device, kernels, cycle, 0)?;
                    idle(device);
                    let cycles = ITERATIONS.div_ceil(cycle.length());
                    let start = Instant::now();
                    for _ in 0..cycles {
                        replay.run(device, kernels)?;
                    }
                    idle(device);
                    start.elapsed().div_f64((cycles * cycle.length()) as f64)
                }
            };
            executor.finish(device)?;
            Ok(period)
        },
    );
    ran.map_err(|error| error.to_string())
}
