//! Every strategy on graph files, period over compute, beside recorded lower bounds.
//!
//! `against_bound MACHINE LINK BOUNDS.json GRAPH…`, where LINK is the machine's speed as it stands
//! in the bounds' keys (`graph/percent/link`).

use planner_core::planner::{Auto, PlanningError, Request, Strategy, Window};
use std::path::Path;
use std::time::Instant;
use workloads::{format, machines, planning};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, machine, link, bounds, paths @ ..] = &arguments[..] else {
        return Err("usage: against_bound MACHINE LINK BOUNDS.json GRAPH…".into());
    };
    let machine = machines::builtin(machine).ok_or("no such machine")?.machine;
    let bounds: serde_json::Value = serde_json::from_slice(&std::fs::read(bounds)?)?;
    for path in paths {
        let owned = format::read_graph(&format::load(Path::new(path))?)?;
        let graph = owned.graph()?;
        let peak_bytes = planning::in_core_peak_bytes(&graph, &machine)?;
        let request = |budget_bytes| Request { graph: &graph, machine: &machine, budget_bytes };
        let (min_bytes, _) = planning::min_feasible(&request(0), Strategy::Auto(Auto::default()))?;
        for percent in [75, 50, 35, 25, 0] {
            let (name, budget_bytes) = match percent {
                0 => ("min".to_owned(), min_bytes),
                percent => (percent.to_string(), peak_bytes / 100 * percent),
            };
            let key = format!("{}/{name}/{link}", owned.name);
            let bound = bounds[&key]["period_over_compute"].as_f64().unwrap_or(f64::NAN);
            print!("{key:36} bound {bound:7.4}");
            for strategy in [
                Strategy::OnDemand,
                Strategy::Window(Window::default()),
                Strategy::Auto(Auto::default()),
            ] {
                let start = Instant::now();
                match planning::plan(&request(budget_bytes), strategy) {
                    Ok(plan) => {
                        let ratio =
                            plan.predicted.period_ns as f64 / plan.predicted.compute_ns as f64;
                        print!("  {ratio:7.4} ({:3} ms)", start.elapsed().as_millis());
                        if strategy == Strategy::Auto(Auto::default()) {
                            print!("  +{:.1} %", (ratio / bound - 1.0) * 100.0);
                        }
                    }
                    Err(PlanningError::Infeasible { .. }) => print!("  infeasible"),
                    Err(error) => print!("  {error}"),
                }
            }
            println!();
        }
    }
    Ok(())
}
