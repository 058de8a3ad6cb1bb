//! What fixed objects take, for auto's plans of graph files: a line for each budget.
//!
//! `places MACHINE GRAPH…` prints the objects of the pool and how many of them the plan leaves
//! at its peak, by how much the period is longer than without, the iterations after which the
//! placements repeat, the virtual ranges and map calls before the plan runs, and how long it
//! takes to find the placements.

use backend_sim::{SimDevice, SimKernels};
use planner_core::planner::{Auto, Order, PlanningError, Request, Strategy};
use std::path::Path;
use std::time::Instant;
use workloads::{format, machines, placing, planning};

const STRATEGY: Strategy = Strategy::Auto(Auto { effort: None, order: Order::Free });

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, machine, paths @ ..] = &arguments[..] else {
        return Err("usage: places MACHINE GRAPH…".into());
    };
    let machine = machines::builtin(machine).ok_or("no such machine")?.machine;
    for path in paths {
        let owned = format::read_graph(&format::load(Path::new(path))?)?;
        let graph = owned.graph()?;
        let peak_bytes = planning::in_core_peak_bytes(&graph, &machine)?;
        let request = |budget_bytes| Request { graph: &graph, machine: &machine, budget_bytes };
        let (min_bytes, _) = planning::min_feasible(&request(0), STRATEGY)?;
        for percent in [75, 50, 35, 25, 0] {
            let (name, budget_bytes) = match percent {
                0 => ("min".to_owned(), min_bytes),
                percent => (format!("{percent} %"), peak_bytes / 100 * percent),
            };
            let plain = match planning::plan(&request(budget_bytes), STRATEGY) {
                Err(PlanningError::Infeasible { .. }) => continue,
                plan => plan?,
            };
            let start = Instant::now();
            let most_ns = plain.predicted.period_ns + plain.predicted.period_ns / 100;
            let _ = placing::place(&graph, &machine, &plain, most_ns);
            let placing_ms = start.elapsed().as_secs_f64() * 1e3;
            let (placed, unplaced) = placing::plan(&request(budget_bytes), STRATEGY)?;
            let count = plain.pools[0].count;
            print!("{:20} {name:>4} {count:5} objects", owned.name);
            if let Some(unplaced) = unplaced {
                println!("  {unplaced}");
                continue;
            }
            let plan = placed.plan();
            let schedule = planning::schedule(&graph, &machine, &plan)?;
            let schedule = schedule.schedule();
            let verified = planning::prove(&graph, &machine, &plan, &schedule)?;
            let (mut device, mut kernels) =
                (SimDevice::new(graph, machine), SimKernels::new(graph));
            let counters =
                planning::with_executor(&verified, &mut device, &mut kernels, |_, device, _| {
                    Ok(device.counters())
                })?;
            let held = (plan.predicted.peak_bytes - plan.arena_bytes) / machine.chunk_bytes;
            let left = count - held;
            let longer = plan.predicted.period_ns as f64 / plain.predicted.period_ns as f64 - 1.0;
            println!(
                ", {left} left  period {:+.2} %  k {}  {:5} ranges {:6} map calls  {placing_ms:.0} ms",
                longer * 100.0,
                plan.iterations(),
                counters.ranges,
                counters.map_calls,
            );
        }
    }
    Ok(())
}
