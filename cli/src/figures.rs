//! What is known of some work under a budget, and of a plan for it: what `--json` prints,
//! and what every summary is made from.

use crate::failure::Failure;
use crate::method::Method;
use crate::names::Names;
use crate::proof::{self, Proved};
use crate::strategy;
use crate::units::ratio;
use crate::work::Setting;
use planner_core::bounds::Order;
use planner_core::planner::Request;
use planner_core::{Kind, OpId, Part, Plan, Step};
use serde::{Serialize, Serializer};
use spillway::planning;
use workloads::OwnedPlan;

/// Bytes by kind of tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct ByKind {
    /// Of states.
    pub(crate) state: u64,
    /// Of inputs.
    pub(crate) input: u64,
    /// Of temporaries.
    pub(crate) temporary: u64,
}

impl ByKind {
    /// Adds bytes to those of a kind.
    pub(crate) fn add(&mut self, kind: Kind, bytes: u64) {
        let sum = match kind {
            Kind::State => &mut self.state,
            Kind::Input => &mut self.input,
            Kind::Temporary => &mut self.temporary,
        };
        *sum = sum.saturating_add(bytes);
    }
}

/// The figures of a plan, or of the lack of one.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figures {
    pub(crate) graph: String,
    pub(crate) strategy: String,
    pub(crate) machine: String,
    pub(crate) budget_bytes: u64,
    pub(crate) feasible: bool,
    /// Not known of a strategy that is not ours.
    pub(crate) min_feasible_bytes: Option<u64>,
    pub(crate) in_core_peak_bytes: u64,
    pub(crate) compute_ns: u64,
    /// The best that costs next to nothing.
    pub(crate) lower_bound_ns: u64,
    /// Which plans that holds for; this one is among them.
    #[serde(serialize_with = "order_name")]
    pub(crate) lower_bound_order: Order,
    /// Of the linear program in the given order, where it was solved and this plan keeps that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lp_bound_ns: Option<u64>,
    /// How far the period is above the best of these bounds, relative to that.
    pub(crate) gap: Option<f64>,
    #[serde(skip)]
    given_order_bound_ns: u64,
    /// Everything that only a plan can say.
    #[serde(flatten)]
    pub(crate) planned: Planned,
    /// Wall time; not known of a plan that was read.
    pub(crate) planning_ns: Option<u64>,
    /// The length of a chain strategy's own schedule of one cycle, as published.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cycle_ns: Option<u64>,
    /// Why the plan's objects are not fixed, though that was wanted.
    pub(crate) unplaced: Option<String>,
}

/// The figures of a plan; all are `None` where there is none.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Planned {
    pub(crate) period_ns: Option<u64>,
    pub(crate) stall_ns: Option<u64>,
    pub(crate) peak_bytes: Option<u64>,
    pub(crate) requested_peak_bytes: Option<u64>,
    pub(crate) waste_bytes: Option<u64>,
    pub(crate) h2d_bytes: Option<u64>,
    pub(crate) d2h_bytes: Option<u64>,
    pub(crate) h2d_bytes_by_kind: Option<ByKind>,
    pub(crate) d2h_bytes_by_kind: Option<ByKind>,
    pub(crate) host_bytes: Option<u64>,
    /// With a slot of its own for every tensor that moves.
    pub(crate) host_unshared_bytes: Option<u64>,
    pub(crate) steps: Option<u64>,
    /// Iterations for which objects are fixed; none where they are not.
    pub(crate) placement_iterations: Option<u32>,
    /// Whether ops run in another order than the given one, for which the lower bound holds.
    pub(crate) reordered: Option<bool>,
}

/// What can be said before planning.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Needs {
    /// Device memory with everything resident.
    pub(crate) in_core_peak_bytes: u64,
    /// The smallest budget for a strategy, and the op that needs it.
    pub(crate) min_feasible: Option<(u64, OpId)>,
}

impl Needs {
    /// What the work needs in-core, and under a strategy.
    pub(crate) fn of(setting: Setting<'_>, method: Option<&Method>) -> Result<Self, Failure> {
        let graph = proof::graph(setting.work).map_err(Failure::cannot)?;
        let machine = &setting.machine.machine;
        let in_core_peak_bytes = planning::in_core_peak_bytes(&graph, machine)
            .map_err(|error| Failure::cannot(error.to_string()))?;
        // The budget has no influence on the smallest one.
        let budget_bytes = machine.device_bytes;
        let request = Request { graph: &graph, machine, budget_bytes };
        let least = method.map(|method| method.min_feasible(&request));
        let names = Names::new(setting.work, &[]);
        let min_feasible = least
            .transpose()
            .map_err(|error| Failure::cannot(names.planning_error(&error, budget_bytes)))?;
        Ok(Self { in_core_peak_bytes, min_feasible })
    }
}

impl Figures {
    /// The figures of a plan from a file before it is judged. Its strategy is a label: where it
    /// is none of ours, or cannot plan this work, the least memory is not known.
    pub(crate) fn of_file(setting: Setting<'_>, plan: &OwnedPlan) -> Result<Self, Failure> {
        let method = strategy::of_plan(&plan.strategy);
        let needs = Needs::of(setting, method.as_ref()).or_else(|_| Needs::of(setting, None))?;
        Self::without_plan(setting, &plan.strategy, plan.budget_bytes, needs)
    }

    /// The figures without a plan.
    pub(crate) fn without_plan(
        setting: Setting<'_>,
        strategy: &str,
        budget_bytes: u64,
        needs: Needs,
    ) -> Result<Self, Failure> {
        let graph = proof::graph(setting.work).map_err(Failure::cannot)?;
        let machine = &setting.machine.machine;
        let lower_bound_ns = |order| {
            planning::lower_bound_ns(&graph, machine, budget_bytes, order)
                .map_err(|error| Failure::cannot(error.to_string()))
        };
        Ok(Self {
            graph: setting.work.name.clone(),
            strategy: strategy.to_owned(),
            machine: setting.machine.name.clone(),
            budget_bytes,
            feasible: false,
            min_feasible_bytes: needs.min_feasible.map(|(bytes, _)| bytes),
            in_core_peak_bytes: needs.in_core_peak_bytes,
            compute_ns: graph.compute_ns(),
            lower_bound_ns: lower_bound_ns(Order::Any)?,
            lower_bound_order: Order::Any,
            lp_bound_ns: None,
            gap: None,
            given_order_bound_ns: lower_bound_ns(Order::Given)?,
            planned: Planned::default(),
            planning_ns: None,
            cycle_ns: None,
            unplaced: None,
        })
    }

    /// The same with a plan.
    pub(crate) fn with_plan(self, proved: &Proved<'_>) -> Self {
        let mut figures = Self { feasible: true, planned: Planned::of(proved), ..self };
        if figures.planned.reordered == Some(false) {
            figures.lower_bound_ns = figures.given_order_bound_ns;
            figures.lower_bound_order = Order::Given;
        }
        figures.gap = figures.above(figures.lower_bound_ns);
        figures
    }

    /// The same with the bound of the linear program, if that holds for this plan.
    pub(crate) fn with_lp_bound(mut self, lp_bound_ns: Option<u64>) -> Self {
        if self.lower_bound_order == Order::Given {
            self.lp_bound_ns = lp_bound_ns;
            self.gap = self.above(lp_bound_ns.unwrap_or(0).max(self.lower_bound_ns));
        }
        self
    }

    fn above(&self, bound_ns: u64) -> Option<f64> {
        Some(ratio(self.planned.period_ns?, bound_ns)? - 1.0)
    }
}

fn order_name<S: Serializer>(order: &Order, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match order {
        Order::Given => "given",
        Order::Any => "any",
    })
}

impl Planned {
    fn of(proved: &Proved<'_>) -> Self {
        let footprint = &proved.footprint;
        let plan = proved.verified.plan();
        let predicted = plan.predicted;
        let (mut up, mut down) = (ByKind::default(), ByKind::default());
        for (step, &bytes) in plan.steps.iter().zip(&proved.step_bytes) {
            let kind = |part: &Part| proved.verified.graph().tensor(part.tensor).kind;
            match step {
                Step::Prefetch(part) => up.add(kind(part), bytes),
                Step::Offload(part) => down.add(kind(part), bytes),
                Step::Launch(_) | Step::Evict(_) => {}
            }
        }
        Self {
            period_ns: Some(predicted.period_ns),
            stall_ns: Some(predicted.period_ns.saturating_sub(predicted.compute_ns)),
            peak_bytes: Some(predicted.peak_bytes),
            requested_peak_bytes: Some(footprint.requested_bytes),
            waste_bytes: Some(footprint.waste_bytes()),
            h2d_bytes: Some(predicted.h2d_bytes),
            d2h_bytes: Some(predicted.d2h_bytes),
            h2d_bytes_by_kind: Some(up),
            d2h_bytes_by_kind: Some(down),
            host_bytes: Some(predicted.host_bytes),
            host_unshared_bytes: Some(footprint.host_bytes()),
            steps: Some(plan.steps.len() as u64),
            placement_iterations: plan.placements.map(|placements| placements.iterations),
            reordered: Some(is_reordered(plan)),
        }
    }
}

fn is_reordered(plan: &Plan<'_>) -> bool {
    let launched = plan.steps.iter().filter_map(|step| match step {
        Step::Launch(op) => Some(op.0),
        _ => None,
    });
    !launched.is_sorted()
}
