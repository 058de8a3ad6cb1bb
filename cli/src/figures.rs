//! The figures of some work under a budget and of a plan for it, as `--json` prints them.

use planner_core::bounds::BoundOrder;
use serde::{Serialize, Serializer};
use spillway::Plan;
use spillway::figures::{Bound, ByKind, Context};

/// The figures of work under a budget, with or without a plan.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    /// The figures that need no plan.
    pub(crate) context: Context,
    /// The figures of the plan, if there is one.
    pub(crate) planned: Option<spillway::Figures>,
    /// The bound of the linear program, if it was solved and the plan keeps the given order.
    lp_bound_ns: Option<u64>,
}

impl Figures {
    /// The figures without a plan.
    pub(crate) const fn new(context: Context) -> Self {
        Self { context, planned: None, lp_bound_ns: None }
    }

    /// The figures of a plan.
    pub(crate) fn of(plan: &Plan) -> Self {
        Self { planned: Some(*plan.figures()), ..Self::new(plan.context().clone()) }
    }

    /// Adds the bound of the linear program if it holds for this plan.
    pub(crate) fn with_lp_bound(self, lp_bound_ns: Option<u64>) -> Self {
        // The linear program runs each op once.
        let Bound { order, repeats, .. } = self.bound();
        let holds = order == BoundOrder::Given && !repeats;
        Self { lp_bound_ns: lp_bound_ns.filter(|_| holds), ..self }
    }

    /// The period, if there is a plan.
    pub(crate) fn period_ns(&self) -> Option<u64> {
        Some(self.planned?.period_ns)
    }

    /// The best of the quick bounds that hold for this plan. Without a plan, the bound for all
    /// plans that run each op once.
    fn bound(&self) -> Bound {
        let Context { host_bound_ns, any_order_bound_ns, .. } = self.context;
        let period_ns = host_bound_ns.unwrap_or(any_order_bound_ns);
        let any = Bound::new(period_ns, BoundOrder::Any, false);
        self.planned.map_or(any, |planned| self.context.bound(&planned))
    }

    /// The distance of the period from the best bound, relative to the bound.
    fn gap(&self) -> Option<f64> {
        let mut bound = self.bound();
        bound.period_ns = bound.period_ns.max(self.lp_bound_ns.unwrap_or(0));
        bound.gap(self.period_ns()?)
    }
}

/// The JSON object. Without a plan, the figures of the plan are null.
#[derive(Serialize)]
struct Record<'f> {
    graph: &'f str,
    strategy: &'f str,
    method: Option<&'f str>,
    machine: &'f str,
    budget_bytes: u64,
    feasible: bool,
    min_feasible_bytes: Option<u64>,
    in_core_peak_bytes: u64,
    compute_ns: u64,
    lower_bound_ns: u64,
    lower_bound_order: &'static str,
    lower_bound_repeats: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    lp_bound_ns: Option<u64>,
    gap: Option<f64>,
    period_ns: Option<u64>,
    repeat_ns: Option<u64>,
    repeats: Option<u64>,
    repeated_bytes: Option<u64>,
    host_ns: Option<u64>,
    on_host: Option<u64>,
    stall_ns: Option<u64>,
    peak_bytes: Option<u64>,
    requested_peak_bytes: Option<u64>,
    waste_bytes: Option<u64>,
    h2d_bytes: Option<u64>,
    d2h_bytes: Option<u64>,
    h2d_bytes_by_kind: Option<ByKind>,
    d2h_bytes_by_kind: Option<ByKind>,
    host_bytes: Option<u64>,
    host_unshared_bytes: Option<u64>,
    steps: Option<u64>,
    placement_iterations: Option<u32>,
    mapping_ns: Option<u64>,
    reordered: Option<bool>,
    planning_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cycle_ns: Option<u64>,
    unplaced: Option<String>,
}

impl Serialize for Figures {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { context, planned, lp_bound_ns } = self;
        let planned = planned.as_ref();
        let bound = self.bound();
        let record = Record {
            graph: &context.graph,
            strategy: &context.strategy,
            method: context.method.as_deref(),
            machine: &context.machine,
            budget_bytes: context.budget_bytes,
            feasible: planned.is_some(),
            min_feasible_bytes: context.min_feasible_bytes,
            in_core_peak_bytes: context.in_core_peak_bytes,
            compute_ns: context.compute_ns,
            lower_bound_ns: bound.period_ns,
            lower_bound_order: match bound.order {
                BoundOrder::Given => "given",
                BoundOrder::Any => "any",
            },
            lower_bound_repeats: bound.repeats,
            lp_bound_ns: *lp_bound_ns,
            gap: self.gap(),
            period_ns: planned.map(|plan| plan.period_ns),
            repeat_ns: planned.map(|plan| plan.repeat_ns),
            repeats: planned.map(|plan| plan.repeats),
            repeated_bytes: planned.map(|plan| plan.repeated_bytes),
            host_ns: planned.map(|plan| plan.host_ns),
            on_host: planned.map(|plan| plan.on_host),
            stall_ns: planned.map(|plan| plan.stall_ns),
            peak_bytes: planned.map(|plan| plan.peak_bytes),
            requested_peak_bytes: planned.map(|plan| plan.requested_peak_bytes),
            waste_bytes: planned.map(|plan| plan.waste_bytes),
            h2d_bytes: planned.map(|plan| plan.h2d_bytes),
            d2h_bytes: planned.map(|plan| plan.d2h_bytes),
            h2d_bytes_by_kind: planned.map(|plan| plan.h2d_bytes_by_kind),
            d2h_bytes_by_kind: planned.map(|plan| plan.d2h_bytes_by_kind),
            host_bytes: planned.map(|plan| plan.host_bytes),
            host_unshared_bytes: planned.map(|plan| plan.host_unshared_bytes),
            steps: planned.map(|plan| plan.steps),
            placement_iterations: planned.and_then(|plan| plan.placement_iterations),
            mapping_ns: planned.map(|plan| plan.mapping_ns),
            reordered: planned.map(|plan| plan.reordered),
            planning_ns: context.planning_ns,
            cycle_ns: context.cycle_ns,
            unplaced: context.unplaced.map(|unplaced| unplaced.to_string()),
        };
        record.serialize(serializer)
    }
}
