//! The builder of plans: it takes the budget and the strategy.

use crate::budget::Budget;
use crate::error::Error;
use crate::figures::{Context, Needs, method};
use crate::graph::Graph;
use crate::names::Names;
use crate::plan::Plan;
use crate::planning;
use crate::strategy::{Planned, Planner, Strategy, Watch};
use planner_core::planner::{PlanningError, Request, Strategy as Core};
use std::time::Instant;
use workloads::OwnedMachine;

/// Plans a graph for a machine; [`Graph::plan`] starts it, and [`run`](Self::run) plans.
#[derive(Clone, Debug)]
#[must_use]
pub struct PlanBuilder {
    graph: Graph,
    machine: OwnedMachine,
    /// `None` for the device memory of the machine.
    budget: Option<Result<Budget, Error>>,
    strategy: Strategy,
    placed: bool,
}

impl PlanBuilder {
    pub(crate) fn new(graph: Graph, machine: OwnedMachine) -> Self {
        Self { graph, machine, budget: None, strategy: Strategy::default(), placed: true }
    }

    /// Sets the device memory for the plan: bytes, a [`Budget`], or a text. A text is a size (`"4GiB"`), a
    /// percentage of the memory that the work needs in-core (`"35%"`; from 100 % on, enough for an in-core
    /// plan in whole chunks), or `"min"` for the smallest budget with which the strategy can plan. The
    /// default is the device memory of the machine, of which a plan of `Auto` takes no more than the work
    /// needs in-core, unless more memory makes it shorter. In a budget that is set, a plan may take all.
    ///
    /// For a text that is not a budget, [`run`](Self::run) returns an error.
    pub fn budget<B: TryInto<Budget>>(self, budget: B) -> Self
    where
        Error: From<B::Error>,
    {
        Self { budget: Some(budget.try_into().map_err(Error::from)), ..self }
    }

    /// Sets the strategy: a strategy of the core or its parameters, such as [`Auto`](crate::strategy::Auto),
    /// or [`Swap`](crate::strategy::Swap). The default is `Auto`.
    pub fn strategy(self, strategy: impl Into<Strategy>) -> Self {
        Self { strategy: strategy.into(), ..self }
    }

    /// Sets whether the plan fixes the physical objects of all tensors, so that all memory is mapped before
    /// it runs. The default is `true`: the plan fixes the objects if this lengthens the period by a hundredth
    /// at most. Otherwise [`Context::unplaced`] holds the reason.
    pub fn placed(self, placed: bool) -> Self {
        Self { placed, ..self }
    }

    /// Plans, lowers the plan, proves it safe, and checks that its prediction is exact.
    ///
    /// # Errors
    /// [`Error::Budget`] if a text is not a budget; [`Error::Infeasible`] if the budget is too small;
    /// [`Error::Planning`] if planning fails for another reason.
    pub fn run(self) -> Result<Plan, Error> {
        self.prepare()?.plan(&mut Watch::default())
    }

    /// Computes everything that needs no plan: the budget in bytes, the least memory, and bounds.
    ///
    /// # Errors
    /// The errors of [`PlanBuilder::run`], except errors that only the budget causes.
    pub fn prepare(self) -> Result<Prepared, Error> {
        let Self { graph, machine, budget, strategy, placed } = self;
        let (is_default, budget) = match budget {
            Some(budget) => (false, budget?),
            None => (true, Budget::Bytes(machine.machine.device_bytes)),
        };
        let (core, on) = (graph.graph(), &machine.machine);
        let least_bytes = graph.min_feasible_bytes(&machine, &strategy)?;
        let needs = Needs::of(&core, on, Some(least_bytes)).map_err(|error| {
            Error::planning(&Names::new(graph.owned(), &[]), error, on.device_bytes)
        })?;
        let work = Work { graph, machine, strategy, placed, needs };
        let context = work.context(budget.bytes(&needs))?;
        Ok(Prepared { work, is_default, less: None, context })
    }
}

/// The work, the machine and the strategy, without the budget.
#[derive(Clone, Debug)]
struct Work {
    graph: Graph,
    machine: OwnedMachine,
    strategy: Strategy,
    placed: bool,
    needs: Needs,
}

impl Work {
    fn context(&self, budget_bytes: u64) -> Result<Context, Error> {
        let Self { graph, machine, strategy, needs, .. } = self;
        let context = Context::new(graph.owned(), machine, strategy.name(), budget_bytes, *needs)?;
        Ok(Context { cycle_ns: self.cycle_ns(budget_bytes), ..context })
    }

    fn planned(
        &self,
        request: &Request<'_>,
        watch: &mut Watch<'_>,
    ) -> Result<Planned, PlanningError> {
        match self.placed {
            true => self.strategy.plan_placed(request, watch),
            false => self.strategy.plan(request, watch).map(|plan| (plan, None)),
        }
    }

    fn cycle_ns(&self, budget_bytes: u64) -> Option<u64> {
        let (graph, machine) = (self.graph.graph(), &self.machine.machine);
        self.strategy.cycle_ns(&Request { graph: &graph, machine, budget_bytes })
    }
}

/// Work that is ready to be planned.
#[derive(Clone, Debug)]
pub struct Prepared {
    work: Work,
    /// Whether the budget is the default.
    is_default: bool,
    less: Option<Plan>,
    context: Context,
}

impl Prepared {
    /// The graph.
    #[must_use]
    pub const fn graph(&self) -> &Graph {
        &self.work.graph
    }

    /// The machine.
    #[must_use]
    pub const fn machine(&self) -> &OwnedMachine {
        &self.work.machine
    }

    /// The strategy.
    #[must_use]
    pub const fn strategy(&self) -> &Strategy {
        &self.work.strategy
    }

    /// The device memory that the work needs.
    #[must_use]
    pub const fn needs(&self) -> &Needs {
        &self.work.needs
    }

    /// Returns the same work with another strategy, and with the same budget in bytes. Does not compute the
    /// bounds again.
    ///
    /// # Errors
    /// The strategy cannot plan the work; [`Error::OutOfMemory`].
    pub fn with_strategy(&self, strategy: Strategy) -> Result<Self, Error> {
        let Work { graph, machine, .. } = &self.work;
        let least_bytes = graph.min_feasible_bytes(machine, &strategy)?;
        let needs = Needs { min_feasible_bytes: Some(least_bytes), ..self.work.needs };
        let work = Work { strategy, needs, ..self.work.clone() };
        let context = Context {
            strategy: work.strategy.name().to_owned(),
            min_feasible_bytes: needs.min_feasible_bytes,
            cycle_ns: work.cycle_ns(self.context.budget_bytes),
            planning_ns: None,
            ..self.context.clone()
        };
        Ok(Self { work, is_default: self.is_default, less: None, context })
    }

    /// Returns the same work with another budget. `less` is a plan by the same strategy for less memory. If
    /// it is shorter than the new plan of `auto`, its steps also become the plan for the larger budget, so
    /// that more memory never makes `auto` slower.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn within(&self, budget_bytes: u64, less: Option<&Plan>) -> Result<Self, Error> {
        let (work, less) = (self.work.clone(), less.cloned());
        Ok(Self { context: work.context(budget_bytes)?, work, is_default: false, less })
    }

    /// The facts that need no plan. After [`Prepared::plan`] has returned, they include the time of planning.
    #[must_use]
    pub const fn context(&self) -> &Context {
        &self.context
    }

    /// Plans, lowers the plan, proves it safe, and checks that its prediction is exact. `watch` observes
    /// a search.
    ///
    /// # Errors
    /// The errors of [`PlanBuilder::run`].
    pub fn plan(&mut self, watch: &mut Watch<'_>) -> Result<Plan, Error> {
        let Work { graph, machine, strategy, .. } = &self.work;
        let budget_bytes = self.context.budget_bytes;
        let core = graph.graph();
        let request = Request { graph: &core, machine: &machine.machine, budget_bytes };
        let started = Instant::now();
        let planned = self.planned(&request, watch);
        self.context.planning_ns = u64::try_from(started.elapsed().as_nanos()).ok();
        let (mut plan, unplaced) = planned.map_err(|error| {
            Error::planning(&Names::new(graph.owned(), &[]), error, budget_bytes)
        })?;
        let method = method(&plan, strategy.name());
        let context = Context { method, unplaced, ..self.context.clone() };
        graph.name().clone_into(&mut plan.graph);
        plan.machine.clone_from(&machine.name);
        strategy.name().clone_into(&mut plan.strategy);
        Plan::in_context(graph.clone(), machine.clone(), plan, context)
    }

    /// Plans. In the default budget, `auto` plans within the memory that the work needs in-core, and takes
    /// more only if that makes the plan shorter, since a session takes all memory of its plan's pools.
    fn planned(
        &self,
        request: &Request<'_>,
        watch: &mut Watch<'_>,
    ) -> Result<Planned, PlanningError> {
        let (period_ns, context) =
            (|planned: &Planned| planned.0.predicted.period_ns, &self.context);
        let bound_ns = context.host_bound_ns.unwrap_or(context.any_order_repeats_bound_ns);
        let in_core = match self.in_core(request, watch) {
            Some(in_core) if period_ns(&in_core) <= bound_ns => return Ok(in_core),
            in_core => in_core,
        };
        let planned = self.work.planned(request, watch);
        let planned = self.or_less(request, planned)?;
        Ok(in_core.filter(|in_core| period_ns(in_core) <= period_ns(&planned)).unwrap_or(planned))
    }

    /// Returns a plan within the memory that the work needs in-core, for the default budget. `None` if the
    /// budget is not larger, or if this memory does not suffice for a plan that fixes its objects.
    fn in_core(&self, request: &Request<'_>, watch: &mut Watch<'_>) -> Option<Planned> {
        let is_auto = matches!(self.work.strategy, Strategy::Core(Core::Auto(_)));
        let less = Request { budget_bytes: self.work.needs.in_core_least_bytes, ..*request };
        if !(self.is_default && is_auto && less.budget_bytes < request.budget_bytes) {
            return None;
        }
        let (mut plan, unplaced) = self.work.planned(&less, watch).ok()?;
        plan.budget_bytes = request.budget_bytes;
        unplaced.is_none().then_some((plan, None))
    }

    /// Returns the new plan, or the plan for less memory if it is shorter.
    fn or_less(
        &self,
        request: &Request<'_>,
        planned: Result<Planned, PlanningError>,
    ) -> Result<Planned, PlanningError> {
        let (Strategy::Core(strategy), Some(less)) = (&self.work.strategy, &self.less) else {
            return planned;
        };
        let known = planned.as_ref().ok().map(|(plan, _)| plan);
        match planning::faster_with_less(request, *strategy, Some(less.owned()), known) {
            Some(plan) => Ok((plan, less.context().unplaced)),
            None => planned,
        }
    }
}
