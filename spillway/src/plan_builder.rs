//! What to plan for, and how.

use crate::budget::Budget;
use crate::error::Error;
use crate::figures::{Context, Needs, method};
use crate::graph::Graph;
use crate::names::Names;
use crate::plan::Plan;
use crate::strategy::Strategy;
use planner_core::planner::{PlanningError, Request};
use std::time::Instant;
use workloads::{OwnedMachine, OwnedPlan};

/// Plans a graph for a machine; [`Graph::plan`] starts it, and [`run`](Self::run) plans.
#[derive(Clone, Debug)]
#[must_use]
pub struct PlanBuilder {
    graph: Graph,
    machine: OwnedMachine,
    budget: Result<Budget, Error>,
    strategy: Strategy,
    placed: bool,
}

impl PlanBuilder {
    pub(crate) fn new(graph: Graph, machine: OwnedMachine) -> Self {
        let budget = Ok(Budget::Bytes(machine.machine.device_bytes));
        Self { graph, machine, budget, strategy: Strategy::default(), placed: true }
    }

    /// Sets the device memory for the plan: bytes, a [`Budget`], or a text: a size (`"4GiB"`), a
    /// percentage of what the work needs in-core (`"35%"`; from 100 % on, enough for an in-core plan
    /// in whole chunks), or `"min"` for the least with which the strategy can plan. The default is
    /// the device memory of the machine.
    ///
    /// A text that is no budget is an error of [`run`](Self::run).
    pub fn budget<B: TryInto<Budget>>(self, budget: B) -> Self
    where
        Error: From<B::Error>,
    {
        Self { budget: budget.try_into().map_err(Error::from), ..self }
    }

    /// Sets how to plan: a strategy of the core or its parameters, such as
    /// [`Auto`](crate::strategy::Auto), or [`Swap`](crate::strategy::Swap). The default is
    /// `Auto`.
    pub fn strategy(self, strategy: impl Into<Strategy>) -> Self {
        Self { strategy: strategy.into(), ..self }
    }

    /// Sets whether the plan fixes the physical objects of everything, so that all memory is
    /// mapped before it runs. The default is `true`: objects are fixed where the period is then
    /// longer by a hundredth at most; else [`Context::unplaced`] says why not.
    pub fn placed(self, placed: bool) -> Self {
        Self { placed, ..self }
    }

    /// Plans, lowers the plan, proves it safe, and checks that its prediction is exact.
    ///
    /// # Errors
    /// [`Error::Budget`]; [`Error::Infeasible`] where the budget is too small;
    /// [`Error::Planning`] for any other reason why there is no plan.
    pub fn run(self) -> Result<Plan, Error> {
        let Self { graph, machine, budget, strategy, placed } = self;
        let budget = budget?;
        let work = graph.owned();
        let core = graph.graph();
        let fail = |error: PlanningError, budget_bytes| {
            Error::planning(&Names::new(work, &[]), error, budget_bytes)
        };
        let on = &machine.machine;
        let request = Request { graph: &core, machine: on, budget_bytes: on.device_bytes };
        let (least_bytes, _) =
            strategy.min_feasible(&request).map_err(|error| fail(error, on.device_bytes))?;
        let needs = Needs::of(&core, on, Some(least_bytes))
            .map_err(|error| fail(error, on.device_bytes))?;
        let budget_bytes = budget.bytes(&needs);
        let request = Request { budget_bytes, ..request };
        let context = Context::new(work, &machine, strategy.name(), budget_bytes, needs)?;
        let started = Instant::now();
        let (plan, unplaced) =
            strategy.plan(&request, placed).map_err(|error| fail(error, budget_bytes))?;
        let context = Context {
            planning_ns: u64::try_from(started.elapsed().as_nanos()).ok(),
            cycle_ns: strategy.cycle_ns(&request),
            unplaced,
            method: method(&plan, strategy.name()),
            ..context
        };
        let plan = OwnedPlan {
            graph: work.name.clone(),
            machine: machine.name.clone(),
            strategy: strategy.name().to_owned(),
            ..plan
        };
        Plan::in_context(graph, machine, plan, context)
    }
}
