//! Measures the cost of fixed objects in plans of `auto`, and writes a page in Markdown.
//!
//! `placements PAGE [FOLDER]`. The folder of graph files defaults to `../shared/graphs` beside the
//! checkout, and may be missing.

use backend_sim::{Counters, SimDevice, SimKernels};
use planner_core::planner::{Auto, PlanningError, Request, Strategy};
use planner_core::{Graph, Machine};
use spillway::{placing, planning};
use std::error::Error;
use std::fmt::Write;
use std::path::Path;
use workloads::{OwnedGraph, OwnedPlan, format, machines};
use zoo::models;

const STRATEGY: Strategy = Strategy::Auto(Auto::new());
const MACHINES: [&str; 2] = ["v100-pcie3", "v100-nvlink"];
const MODELS: [&str; 3] =
    ["resnet50:batch=64", "resnet152:batch=64", "resnet50:batch=64,mode=inference"];
/// Shares of the in-core need; 0 is the smallest feasible budget.
const PERCENT: [u64; 5] = [75, 50, 35, 25, 0];
/// The number of iterations of a run.
const ITERATIONS: u64 = 10;

const TITLES: &str = "| work | budget | chunks | left | longer | repeat | ranges | calls | \
                      set-up | as it goes | waste, mean | most |";

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let page = arguments.next().ok_or("usage: placements PAGE [FOLDER]")?;
    let folder = arguments.next().unwrap_or_else(|| "../shared/graphs".to_owned());
    let works = works(Path::new(&folder))?;
    let mut text = include_str!("placements.md").to_owned();
    let mut tally = Tally::default();
    for name in MACHINES {
        let machine = machines::builtin(name).ok_or("no such machine")?.machine;
        let gigabytes = machine.h2d_bytes_per_s as f64 / 1e9;
        writeln!(text, "\n## {gigabytes} GB/s each way (`{name}`)\n\n{TITLES}")?;
        writeln!(text, "|---|---{}", "|--:".repeat(10) + "|")?;
        for work in &works {
            for percent in PERCENT {
                eprintln!("{} at {percent} % on {name}", work.name);
                if let Some(row) = row(&work.graph()?, &machine, percent, &mut tally)? {
                    writeln!(text, "| `{}` | {row} |", work.name)?;
                }
            }
        }
    }
    writeln!(text, "\n{tally}")?;
    Ok(std::fs::write(page, text)?)
}

/// The sums over all cells.
#[derive(Default)]
struct Tally {
    cells: u64,
    placed: u64,
    mapping_calls: u64,
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { cells, placed, mapping_calls } = self;
        write!(
            f,
            "Objects are fixed in {placed} of {cells} cells. Map and unmap calls after the set-up, in \
             {ITERATIONS} iterations of each of\nthese cells: {mapping_calls}."
        )
    }
}

/// The graph files of a folder, if there are any, and built-in models.
fn works(folder: &Path) -> Result<Vec<OwnedGraph>, Box<dyn Error>> {
    let mut works = format::load_graphs(folder)?.unwrap_or_else(|| {
        eprintln!("skipped: there is no folder {}", folder.display());
        Vec::new()
    });
    for spec in MODELS {
        works.push(models::generate(spec)?.with_name(spec));
    }
    Ok(works)
}

/// Returns the figures of a cell. `None` if no plan fits.
fn row(
    graph: &Graph<'_>,
    machine: &Machine,
    percent: u64,
    tally: &mut Tally,
) -> Result<Option<String>, Box<dyn Error>> {
    let request = |budget_bytes| Request { graph, machine, budget_bytes };
    let (budget, budget_bytes) = match percent {
        0 => ("min".to_owned(), planning::min_feasible(&request(0), STRATEGY)?.0),
        _ => {
            let peak_bytes = planning::in_core_peak_bytes(graph, machine)?;
            (format!("{percent} %"), peak_bytes / 100 * percent)
        }
    };
    let plain = match planning::plan(&request(budget_bytes), STRATEGY) {
        Err(PlanningError::Infeasible { .. }) => return Ok(None),
        plan => plan?,
    };
    let (placed, unplaced) = placing::plan(&request(budget_bytes), STRATEGY)?;
    tally.cells += 1;
    let pool_bytes: u64 = plain.pools.iter().map(|pool| pool.count * pool.object_bytes).sum();
    let held_bytes = plain.predicted.peak_bytes - plain.arena_bytes;
    let count = pool_bytes / machine.chunk_bytes;
    let left = (pool_bytes - held_bytes) / machine.chunk_bytes;
    if let Some(unplaced) = unplaced {
        let row = format!("{budget} | {count} | {left} | {unplaced} | | | | | | |");
        return Ok(Some(row));
    }
    tally.placed += 1;
    let [set_up, end] = counters(graph, machine, &placed)?;
    let [_, plain_end] = counters(graph, machine, &plain)?;
    let calls = |counters: &Counters| counters.map_calls + counters.unmap_calls;
    tally.mapping_calls += calls(&end) - calls(&set_up);
    let (most_bytes, mean_bytes) = waste(graph, machine, &placed)?;
    let share = |bytes: u64| bytes as f64 / budget_bytes as f64 * 100.0;
    let longer = placed.predicted.period_ns as f64 / plain.predicted.period_ns as f64 - 1.0;
    let set_up_ms = (set_up.map_calls * machine.map_ns_per_chunk) as f64 / 1e6;
    Ok(Some(format!(
        "{budget} | {count} | {left} | {:.2} % | {} | {} | {} | {set_up_ms:.0} ms | {} | \
         {:.1} % | {:.1} %",
        longer * 100.0,
        placed.plan().iterations(),
        set_up.ranges,
        set_up.map_calls,
        calls(&plain_end) / ITERATIONS,
        share(mean_bytes),
        share(most_bytes),
    )))
}

/// Returns the simulator's counts after the set-up, and after all iterations.
fn counters(
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &OwnedPlan,
) -> Result<[Counters; 2], Box<dyn Error>> {
    let plan = plan.plan();
    let schedule = planning::schedule(graph, machine, &plan)?;
    let schedule = schedule.schedule();
    let verified = planning::prove(graph, machine, &plan, &schedule)?;
    let (mut device, mut kernels) = (SimDevice::new(*machine), SimKernels::new(*graph));
    let counters = planning::with_executor(
        &verified,
        &mut device,
        &mut kernels,
        |mut executor, device, kernels| {
            let set_up = device.counters();
            executor.run(device, kernels, ITERATIONS)?;
            Ok([set_up, device.counters()])
        },
    )?;
    Ok(counters)
}

/// Returns the maximum and the mean of the internal waste over all steps.
fn waste(
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &OwnedPlan,
) -> Result<(u64, u64), Box<dyn Error>> {
    let plan = plan.plan();
    let schedule = planning::schedule(graph, machine, &plan)?;
    let (_, footprint) = planning::check_prediction(graph, machine, &plan, &schedule.schedule())?;
    Ok((footprint.most_internal_waste_bytes, footprint.mean_internal_waste_bytes))
}
