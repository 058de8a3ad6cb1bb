//! Every strategy on graphs of real models, where the folder with them is at hand: a plan
//! that is proved safe and computes what the graph says, or the smallest budget, named.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use backend_sim::{SimDevice, SimKernels, reference_digest};
use planner_core::planner::{Auto, Lms, PlanningError, Request, Strategy, Window};
use planner_core::{Graph, Machine};
use std::path::Path;
use workloads::{OwnedGraph, format, machines, planning};

const ITERATIONS: u64 = 2;

fn graphs() -> Vec<OwnedGraph> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/graphs");
    let Ok(entries) = std::fs::read_dir(&folder) else {
        println!("skipped: there is no folder of recorded graphs");
        return Vec::new();
    };
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.to_string_lossy().ends_with(".graph.json.gz"));
    paths.sort();
    paths.iter().map(|path| format::read_graph(&format::load(path).unwrap()).unwrap()).collect()
}

/// Plans, proves, runs and compares; false where the budget is too small.
fn holds(graph: Graph<'_>, machine: Machine, budget_bytes: u64, strategy: Strategy) -> bool {
    let request = Request { graph: &graph, machine: &machine, budget_bytes };
    let owned = match planning::plan(&request, strategy) {
        Err(PlanningError::Infeasible { min_feasible_bytes, .. }) => {
            assert!(min_feasible_bytes > budget_bytes);
            return false;
        }
        other => other.unwrap(),
    };
    let plan = owned.plan();
    let schedule = planning::schedule(&graph, &machine, &plan).unwrap();
    let schedule = schedule.schedule();
    planning::check_prediction(&graph, &machine, &plan, &schedule).unwrap();
    let verified = planning::prove(&graph, &machine, &plan, &schedule).unwrap();
    let mut device = SimDevice::adversarial(graph, machine, budget_bytes);
    planning::execute(&verified, &mut device, &mut SimKernels::new(graph), ITERATIONS).unwrap();
    assert_eq!(device.digest().unwrap(), reference_digest(&graph, ITERATIONS));
    true
}

#[test]
fn recorded_graphs_are_planned_proved_and_run() {
    let machine = machines::builtin("v100-pcie3").unwrap().machine;
    for owned in graphs() {
        let graph = owned.graph().unwrap();
        let peak_bytes = planning::in_core_peak_bytes(&graph, &machine).unwrap();
        for strategy in [
            Strategy::Window(Window::default()),
            Strategy::OnDemand,
            Strategy::Fit,
            Strategy::Vdnn,
            Strategy::Lms(Lms::default()),
            Strategy::Auto(Auto::default()),
        ] {
            let request = Request { graph: &graph, machine: &machine, budget_bytes: 0 };
            let (min_bytes, _) = planning::min_feasible(&request, strategy).unwrap();
            let budgets = [75, 50, 35, 25].map(|percent| peak_bytes / 100 * percent);
            for budget_bytes in budgets.into_iter().chain([min_bytes]) {
                let planned = holds(graph, machine, budget_bytes, strategy);
                assert_eq!(planned, budget_bytes >= min_bytes, "{} {strategy:?}", owned.name);
            }
        }
    }
}
