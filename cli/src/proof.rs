//! From an untrusted plan to one that has been proved safe and promises what it does.

use crate::names::Names;
use crate::work::Setting;
use planner_core::footprint::Footprint;
use planner_core::pieces::Pieces;
use planner_core::{Graph, Limits, PlanError, Scratch, Step, Verified};
use spillway::planning::{self, OwnedSchedule};
use workloads::{OwnedGraph, OwnedPlan};

/// A plan that has been proved, and what the proof measured on the way.
#[derive(Clone, Debug)]
pub(crate) struct Proved<'p> {
    /// The only thing that may run.
    pub(crate) verified: Verified<'p>,
    /// What the plan holds and moves.
    pub(crate) footprint: Footprint,
    /// What each step copies.
    pub(crate) step_bytes: Vec<u64>,
}

/// The graph as the core takes it. Whoever made it has checked it, so this does not fail.
pub(crate) fn graph(work: &OwnedGraph) -> Result<Graph<'_>, String> {
    work.graph().map_err(|error| error.to_string())
}

/// Lowers a plan.
pub(crate) fn lower(setting: Setting<'_>, plan: &OwnedPlan) -> Result<OwnedSchedule, String> {
    let names = Names::new(setting.work, &plan.steps);
    planning::schedule(&graph(setting.work)?, &setting.machine.machine, &plan.plan())
        .map_err(|error| names.plan_error(&error))
}

/// Proves a lowered plan safe, and its prediction exact.
pub(crate) fn prove<'p>(
    setting: Setting<'p>,
    plan: &'p OwnedPlan,
    schedule: &'p OwnedSchedule,
) -> Result<Proved<'p>, String> {
    let names = Names::new(setting.work, &plan.steps);
    let (graph, machine) = (graph(setting.work)?, &setting.machine.machine);
    let (plan, schedule) = (plan.plan(), schedule.schedule());
    let verified = planning::prove(&graph, machine, &plan, &schedule)
        .map_err(|error| names.verify_error(&error))?;
    let (_, footprint) = planning::check_prediction(&graph, machine, &plan, &schedule)
        .map_err(|error| names.plan_error(&error))?;
    let step_bytes = step_bytes(&verified).map_err(|error| names.plan_error(&error))?;
    Ok(Proved { verified, footprint, step_bytes })
}

fn step_bytes(verified: &Verified<'_>) -> Result<Vec<u64>, PlanError> {
    let (graph, plan) = (verified.graph(), verified.plan());
    let mut memory = vec![0; Pieces::scratch_words(&Limits::of_plan(graph, plan))];
    let pieces = Pieces::new(graph, verified.machine(), plan, &mut Scratch::new(&mut memory))?;
    let bytes = |step: &Step| match step {
        Step::Prefetch(part) | Step::Offload(part) => pieces.part_bytes(graph, *part),
        Step::Launch(_) | Step::Evict(_) => 0,
    };
    Ok(plan.steps.iter().map(bytes).collect())
}
