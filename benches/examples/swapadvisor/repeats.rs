//! The models of figures 6 and 7 with plans that repeat ops.

use super::figure6::MODELS;
use super::{MACHINE, Result, jointly, machine, ours, prove, share};
use planner_core::bounds::BoundOrder;
use planner_core::planner::{PlanningError, Request, Strategy};
use spillway::planning;
use spillway::search::{Limit, joint};
use std::time::Instant;
use zoo::models;

/// The model of figure 7.
const FIGURE_7: (&str, &str, &[u64]) =
    ("WResNet-152-4", "wresnet152:widen=4,tflops=15.7", &[16, 32, 64]);

pub(crate) fn run(seconds: f64, only: Option<&str>) -> Result<()> {
    let machine = machine(MACHINE)?.machine;
    println!(
        "| model | batch | each op once | checkpoint | checkpoint-offload | with repeats \
         | samples/s | run again | planned in, s | bound with repeats, any order |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    let models = MODELS.map(|(name, spec, batches, _)| (name, spec, batches));
    for (name, spec, batches) in models.into_iter().chain([FIGURE_7]) {
        for &batch in batches.iter().filter(|_| only.is_none_or(|only| only == name)) {
            let work = models::generate(&format!("{spec},batch={batch}"))?;
            let graph = work.graph()?;
            let budget_bytes = machine.device_bytes;
            let request = Request { graph: &graph, machine: &machine, budget_bytes };
            let bound_ns =
                planning::lower_bound_repeats_ns(&graph, &machine, budget_bytes, BoundOrder::Any)?;
            let once = ours(&request, seconds)?.plan;
            let limit = Limit::new().with_seconds(seconds).with_bound_ns(bound_ns);
            let settings = joint::JointSettings::default().with_limit(limit);
            let started = Instant::now();
            let found = jointly(&request, settings)?.plan;
            let planning_s = started.elapsed().as_secs_f64();
            println!(
                "| {name} | {batch} | {:.1} % | {} | {} | **{:.1} %** | {:.2} | {:.1} % \
                 | {planning_s:.1} | {:.1} % |",
                share(&graph, once.predicted.period_ns),
                baseline(&request, Strategy::Checkpoint)?,
                baseline(&request, Strategy::CheckpointOffload)?,
                share(&graph, found.predicted.period_ns),
                batch as f64 * 1e9 / found.predicted.period_ns as f64,
                100.0 * found.predicted.repeat_ns as f64 / graph.compute_ns() as f64,
                share(&graph, bound_ns),
            );
        }
    }
    Ok(())
}

/// A strategy's share of the ideal throughput, or a dash if it has no plan.
fn baseline(request: &Request<'_>, strategy: Strategy) -> Result<String> {
    match planning::plan(request, strategy) {
        Ok(plan) => {
            prove(request, &plan)?;
            Ok(format!("{:.1} %", share(request.graph, plan.predicted.period_ns)))
        }
        Err(PlanningError::Infeasible { .. }) => Ok("–".to_owned()),
        Err(error) => Err(error.into()),
    }
}
