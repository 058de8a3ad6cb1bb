//! The proof that a schedule is safe.

use crate::graph::Graph;
use crate::machine::Machine;
use crate::plan::Plan;
use crate::schedule::Schedule;

/// A plan with its schedule, proved safe: the only thing an executor runs.
#[derive(Clone, Copy, Debug)]
pub struct Verified<'a> {
    graph: Graph<'a>,
    machine: Machine,
    plan: Plan<'a>,
    schedule: Schedule<'a>,
}

impl<'a> Verified<'a> {
    /// The graph.
    #[must_use]
    pub const fn graph(&self) -> &Graph<'a> {
        &self.graph
    }

    /// The machine.
    #[must_use]
    pub const fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The plan.
    #[must_use]
    pub const fn plan(&self) -> &Plan<'a> {
        &self.plan
    }

    /// The schedule.
    #[must_use]
    pub const fn schedule(&self) -> &Schedule<'a> {
        &self.schedule
    }
}
