//! Compares the cells of figure 6 with a second bound: the linear program for the order of ops that
//! the search found.

use super::figure6::MODELS;
use super::{MACHINE, Result, bound_ns, machine, ours, share};
use lp_bound::Options;
use planner_core::graph::Op;
use planner_core::plan::Step;
use planner_core::planner::Request;
use planner_core::scratch::Scratch;
use planner_core::{Graph, Launched, Plan};
use std::time::Instant;
use zoo::models;

pub(crate) fn run(seconds: f64, only: Option<&str>) -> Result<()> {
    let machine = machine(MACHINE)?;
    println!(
        "| model | batch | ours | bound, any order | linear program, order found \
         | ours of that | solved in, s |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|");
    for (name, spec, batches, _) in MODELS {
        for batch in batches.iter().filter(|_| only.is_none_or(|only| only == name)) {
            let work = models::generate(&format!("{spec},batch={batch}"))?;
            let graph = work.graph()?;
            let machine = &machine.machine;
            let budget_bytes = machine.device_bytes;
            let request = Request { graph: &graph, machine, budget_bytes };
            let plan = ours(&request, seconds)?.plan;
            let started = Instant::now();
            let program = in_order_of(&graph, &plan.plan(), |graph| {
                Ok(lp_bound::period_ns(graph, machine, budget_bytes, Options::default())?)
            })?;
            let (found, program) = (plan.predicted.period_ns, program.period_ns);
            println!(
                "| {name} | {batch} | {:.1} % | {:.1} % | {:.1} % | {:.1} % | {:.0} |",
                share(&graph, found),
                share(&graph, bound_ns(&request)?),
                share(&graph, program),
                100.0 * program as f64 / found as f64,
                started.elapsed().as_secs_f64(),
            );
        }
    }
    Ok(())
}

/// The graph with the ops in the order in which a plan launches them.
fn in_order_of<T>(
    graph: &Graph<'_>,
    plan: &Plan<'_>,
    then: impl FnOnce(&Graph<'_>) -> Result<T>,
) -> Result<T> {
    let (mut ops, mut operands) = (Vec::new(), Vec::new());
    let launched = plan.steps.iter().filter_map(|step| match *step {
        Step::Launch(Launched { op, .. }) => Some(op),
        _ => None,
    });
    for op in launched {
        ops.push(graph.op(op).with_first_operand(operands.len() as u32));
        operands.extend_from_slice(graph.operands_of(op));
    }
    let mut memory = vec![0; Graph::scratch_words(graph.tensors().len())];
    then(&Graph::new(graph.tensors(), &ops, &operands, &mut Scratch::new(&mut memory))?)
}
