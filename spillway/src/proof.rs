//! The proof that an untrusted plan is safe and that its prediction is exact.

use crate::error::Error;
use crate::growth::buffer;
use crate::names::Names;
use crate::planning::{self, OwnedSchedule};
use crate::switching;
use planner_core::footprint::Footprint;
use planner_core::pieces::Pieces;
use planner_core::switch::Capacity;
use planner_core::{Graph, Limits, PlanError, Scratch, Step, Stream, Verified};
use self_cell::self_cell;
use workloads::{OwnedGraph, OwnedMachine, OwnedPlan};

/// The parts of a [`Plan`](crate::Plan).
#[derive(Clone, Debug)]
pub struct Parts {
    /// The graph of the plan.
    pub graph: crate::Graph,
    /// The machine of the plan.
    pub machine: OwnedMachine,
    /// The steps.
    pub plan: OwnedPlan,
    /// The waits between the steps.
    pub schedule: OwnedSchedule,
}

/// A proved plan, with the results of the proof.
#[derive(Debug)]
pub(crate) struct Proved<'p> {
    /// The graph, with names.
    pub(crate) work: &'p OwnedGraph,
    /// The machine, with its name.
    pub(crate) machine: &'p OwnedMachine,
    /// The plan for an executor.
    pub(crate) verified: Verified<'p>,
    /// The memory that the plan holds, and the bytes that it moves.
    pub(crate) footprint: Footprint,
    /// The memory that the plan needs on the device and on the host.
    pub(crate) capacity: Capacity,
    /// The bytes that each step copies.
    pub(crate) step_bytes: Vec<u64>,
}

self_cell!(
    /// A proof, with the plan that it borrows from.
    pub(crate) struct Proof {
        owner: Parts,
        #[covariant]
        dependent: Proved,
    }

    impl {Debug}
);

impl Proof {
    /// Lowers a plan, proves it safe, and its prediction exact.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the plan breaks a rule, lacks a wait or has a wrong prediction.
    pub(crate) fn of(
        graph: crate::Graph,
        machine: OwnedMachine,
        plan: OwnedPlan,
    ) -> Result<Self, Error> {
        let invalid = |error: PlanError| {
            Error::invalid(&Names::new(graph.owned(), &plan.steps), error.into())
        };
        let schedule =
            planning::schedule(&graph.graph(), &machine.machine, &plan.plan()).map_err(invalid)?;
        Self::try_new(Parts { graph, machine, plan, schedule }, |parts| Proved::of(parts))
    }
}

impl<'p> Proved<'p> {
    fn of(parts: &'p Parts) -> Result<Self, Error> {
        let Parts { graph, machine, plan, schedule } = parts;
        let work = graph.owned();
        let names = Names::new(work, &plan.steps);
        let invalid = |error: PlanError| Error::invalid(&names, error.into());
        let (graph, on): (Graph<'p>, _) = (graph.graph(), &machine.machine);
        let (plan, schedule) = (plan.plan(), schedule.schedule());
        let verified = planning::prove(&graph, on, &plan, &schedule)
            .map_err(|error| Error::invalid(&names, error))?;
        let (_, footprint) =
            planning::check_prediction(&graph, on, &plan, &schedule).map_err(invalid)?;
        let capacity = switching::capacity(&verified).map_err(invalid)?;
        let step_bytes = step_bytes(&verified).map_err(invalid)?;
        Ok(Self { work, machine, verified, footprint, capacity, step_bytes })
    }

    /// The streams to show. Streams that only some devices have are shown if the plan uses them.
    pub(crate) fn streams(&self) -> impl Iterator<Item = Stream> + use<> {
        let steps = self.verified.schedule().stream_steps;
        let is_shown = move |stream| Stream::ON_DEVICE.contains(&stream) || steps[stream] > 0;
        Stream::ALL.into_iter().filter(move |&stream| is_shown(stream))
    }
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
