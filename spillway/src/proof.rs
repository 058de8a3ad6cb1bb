//! From an untrusted plan to one that is proved safe and keeps its promises.

use crate::error::Error;
use crate::growth::buffer;
use crate::names::Names;
use crate::planning::{self, OwnedSchedule};
use planner_core::footprint::Footprint;
use planner_core::pieces::Pieces;
use planner_core::{Graph, Limits, PlanError, Scratch, Step, Stream, Verified};
use workloads::{OwnedGraph, OwnedMachine, OwnedPlan};

/// A plan that was proved, with what the proof measured.
#[derive(Clone, Debug)]
pub struct Proved<'p> {
    /// The graph, with names.
    pub work: &'p OwnedGraph,
    /// The machine, with its name.
    pub machine: &'p OwnedMachine,
    /// What an executor runs.
    pub verified: Verified<'p>,
    /// What the plan holds and moves.
    pub footprint: Footprint,
    /// The bytes that each step copies.
    pub step_bytes: Vec<u64>,
}

impl Proved<'_> {
    /// The streams that are shown: that of ops on the host only where there are such ops.
    pub(crate) fn streams(&self) -> impl Iterator<Item = Stream> + use<> {
        let runs_on_host = self.verified.schedule().stream_steps[Stream::Host] > 0;
        Stream::ALL.into_iter().filter(move |&stream| stream != Stream::Host || runs_on_host)
    }
}

fn graph(work: &OwnedGraph) -> Result<Graph<'_>, Error> {
    work.graph().map_err(|error| Error::graph(work, error))
}

/// Lowers a plan.
///
/// # Errors
/// The graph is malformed, or the plan breaks a rule.
pub fn lower(
    work: &OwnedGraph,
    machine: &OwnedMachine,
    plan: &OwnedPlan,
) -> Result<OwnedSchedule, Error> {
    planning::schedule(&graph(work)?, &machine.machine, &plan.plan())
        .map_err(|error| Error::invalid(&Names::new(work, &plan.steps), error.into()))
}

/// Proves a lowered plan safe, and its prediction exact.
///
/// # Errors
/// The graph is malformed, or the plan breaks a rule, lacks a wait or promises something else.
pub fn prove<'p>(
    work: &'p OwnedGraph,
    machine: &'p OwnedMachine,
    plan: &'p OwnedPlan,
    schedule: &'p OwnedSchedule,
) -> Result<Proved<'p>, Error> {
    let names = Names::new(work, &plan.steps);
    let invalid = |error: PlanError| Error::invalid(&names, error.into());
    let (graph, on) = (graph(work)?, &machine.machine);
    let (plan, schedule) = (plan.plan(), schedule.schedule());
    let verified = planning::prove(&graph, on, &plan, &schedule)
        .map_err(|error| Error::invalid(&names, error))?;
    let (_, footprint) =
        planning::check_prediction(&graph, on, &plan, &schedule).map_err(invalid)?;
    let step_bytes = step_bytes(&verified).map_err(invalid)?;
    Ok(Proved { work, machine, verified, footprint, step_bytes })
}

fn step_bytes(verified: &Verified<'_>) -> Result<Vec<u64>, PlanError> {
    let (graph, plan) = (verified.graph(), verified.plan());
    let mut memory = buffer(Pieces::scratch_words(&Limits::of_plan(graph, plan)), 0)?;
    let pieces = Pieces::new(graph, verified.machine(), plan, &mut Scratch::new(&mut memory))?;
    let bytes = |step: &Step| match step {
        Step::Prefetch(part) | Step::Offload(part) => pieces.part_bytes(graph, *part),
        Step::Launch(_) | Step::Host(_) | Step::Evict(_) => 0,
    };
    Ok(plan.steps.iter().map(bytes).collect())
}
