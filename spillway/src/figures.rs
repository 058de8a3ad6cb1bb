//! Figures of a plan, and the bounds to compare them with.

use crate::error::Error;
use crate::names::Names;
use crate::placing::{self, Unplaced};
use crate::planning;
use crate::proof::Proved;
use crate::strategy::Planner;
use crate::units::ratio;
use planner_core::bounds::BoundOrder;
use planner_core::planner::{PlanningError, Request, Strategy};
use planner_core::{Graph, Kind, Launched, Machine, Part, Plan, Scheduled, Step, Stream, Verified};
use serde::Serialize;
use workloads::{OwnedGraph, OwnedMachine, OwnedPlan};

/// Bytes by kind of tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ByKind {
    /// Bytes of states.
    pub state: u64,
    /// Bytes of inputs.
    pub input: u64,
    /// Bytes of temporaries.
    pub temporary: u64,
    /// Bytes of outputs.
    pub output: u64,
}

impl ByKind {
    /// Adds bytes of a kind.
    pub fn add(&mut self, kind: Kind, bytes: u64) {
        let sum = match kind {
            Kind::State => &mut self.state,
            Kind::Input => &mut self.input,
            Kind::Temporary => &mut self.temporary,
            Kind::Output => &mut self.output,
        };
        *sum = sum.saturating_add(bytes);
    }
}

/// The figures of a proved plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Figures {
    /// Time from one iteration to the next in the steady state.
    pub period_ns: u64,
    /// The sum of all op times, each op once.
    pub compute_ns: u64,
    /// Time of the ops that run again.
    pub repeat_ns: u64,
    /// Launches of ops that run again.
    pub repeats: u64,
    /// Bytes of the values that repeats make for first launches. Without repeats, all these values would stay
    /// or move.
    pub repeated_bytes: u64,
    /// Host time of the ops that run on the host.
    pub host_ns: u64,
    /// Number of ops that run on the host.
    pub on_host: u64,
    /// The stall: the part of a period in which no op runs on the device. It is the period minus the time of
    /// all launches on the device, repeats included. It is also the sum of the waits before each launch,
    /// which reports and traces show.
    pub stall_ns: u64,
    /// Peak of device memory: the arena, plus the most bytes of objects held after any step.
    pub peak_bytes: u64,
    /// The bytes of tensors and workspaces in the peak.
    pub requested_peak_bytes: u64,
    /// The rest of the peak.
    pub waste_bytes: u64,
    /// Bytes copied to the device in one iteration.
    pub h2d_bytes: u64,
    /// Bytes copied to the host in one iteration.
    pub d2h_bytes: u64,
    /// The uploaded bytes by kind of tensor.
    pub h2d_bytes_by_kind: ByKind,
    /// The downloaded bytes by kind of tensor.
    pub d2h_bytes_by_kind: ByKind,
    /// Pinned host memory.
    pub host_bytes: u64,
    /// Pinned host memory if no two tensors shared any.
    pub host_unshared_bytes: u64,
    /// Steps of one iteration.
    pub steps: u64,
    /// Waits of ops on the device for copies and for ops on the host, in one iteration.
    pub waits: u64,
    /// Iterations for which the physical objects are fixed; `None` if they are not fixed.
    pub placement_iterations: Option<u32>,
    /// Time for which the host maps and unmaps objects in one iteration, if they are not fixed. The prediction
    /// leaves it out.
    pub mapping_ns: u64,
    /// Whether the first launches of ops are in another order than the graph's.
    pub reordered: bool,
}

impl Figures {
    /// The figures of a plan. O(steps + operands of all launches).
    #[must_use]
    pub(crate) fn of(proved: &Proved<'_>) -> Self {
        let footprint = &proved.footprint;
        let plan = proved.verified.plan();
        let predicted = plan.predicted;
        let (mut upload, mut download) = (ByKind::default(), ByKind::default());
        for (step, &bytes) in plan.steps.iter().zip(&proved.step_bytes) {
            let kind = |part: &Part| proved.verified.graph().tensor(part.tensor).kind;
            match step {
                Step::Prefetch(part) => upload.add(kind(part), bytes),
                Step::Offload(part) => download.add(kind(part), bytes),
                Step::Launch(_) | Step::Host(_) | Step::Evict(_) => {}
            }
        }
        let graph = proved.verified.graph();
        let computing = plan.steps.iter().filter_map(|step| match *step {
            Step::Launch(launched) => Some(graph.op(launched.op)).filter(|op| !op.collective),
            _ => None,
        });
        let computing_ns = computing.map(|op| op.time_ns).fold(0, u64::saturating_add);
        let is_on_host = |step: &&Step| matches!(step, Step::Host(_));
        Self {
            period_ns: predicted.period_ns,
            compute_ns: predicted.compute_ns,
            repeat_ns: predicted.repeat_ns,
            repeats: launches(plan).filter(|launched| launched.is_repeat).count() as u64,
            repeated_bytes: repeated_bytes(graph, plan),
            host_ns: predicted.host_ns,
            on_host: plan.steps.iter().filter(is_on_host).count() as u64,
            stall_ns: predicted.period_ns.saturating_sub(computing_ns),
            peak_bytes: predicted.peak_bytes,
            requested_peak_bytes: footprint.requested_bytes,
            waste_bytes: footprint.waste_bytes(),
            h2d_bytes: predicted.h2d_bytes,
            d2h_bytes: predicted.d2h_bytes,
            h2d_bytes_by_kind: upload,
            d2h_bytes_by_kind: download,
            host_bytes: predicted.host_bytes,
            host_unshared_bytes: footprint.host_bytes(),
            steps: plan.steps.len() as u64,
            waits: waits(&proved.verified),
            placement_iterations: plan.placements.map(|placements| placements.iterations),
            mapping_ns: placing::mapping_ns(graph, proved.verified.machine(), plan),
            reordered: is_reordered(plan),
        }
    }
}

impl Figures {
    /// Returns the smallest set of plans that contains this plan, by order and repeats. Its bound is the
    /// longest that holds for this plan.
    #[must_use]
    pub const fn bounded_by(&self) -> (BoundOrder, bool) {
        let order = if self.reordered { BoundOrder::Any } else { BoundOrder::Given };
        (order, self.repeats > 0)
    }
}

/// The waits of ops on the device for other streams, in one iteration.
fn waits(verified: &Verified<'_>) -> u64 {
    let entries = verified.schedule().of_iteration(0).iter();
    let on_compute = entries.filter(|entry| entry.stream() == Some(Stream::Compute));
    let waits = on_compute.flat_map(Scheduled::waits);
    waits.filter(|&(of, wait)| of != Stream::Compute && wait.is_some()).count() as u64
}

/// The launches of a plan in list order, on the device and on the host.
fn launches(plan: &Plan<'_>) -> impl Iterator<Item = Launched> {
    plan.steps.iter().filter_map(Step::launched)
}

fn is_reordered(plan: &Plan<'_>) -> bool {
    let first = launches(plan).filter(|launched| !launched.is_repeat);
    !first.map(|launched| launched.op.0).is_sorted()
}

fn repeated_bytes(graph: &Graph<'_>, plan: &Plan<'_>) -> u64 {
    // For each tensor, whether a repeat made the value, and no first launch has read it since.
    let mut is_new = vec![false; graph.tensors().len()];
    let mut sum_bytes = 0u64;
    for launched in launches(plan) {
        if !launched.is_repeat {
            for tensor in graph.read_by(launched) {
                if std::mem::take(&mut is_new[tensor.index()]) {
                    sum_bytes = sum_bytes.saturating_add(graph.tensor(tensor).bytes);
                }
            }
        }
        for tensor in graph.written_by(launched) {
            is_new[tensor.index()] = launched.is_repeat;
        }
    }
    sum_bytes
}

/// A lower bound on the period of plans that run every op on the device, or of the plans among them that run
/// each op once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bound {
    /// The period.
    pub period_ns: u64,
    /// The orders of the ops for which the bound holds.
    pub order: BoundOrder,
    /// Whether the bound holds for plans with repeats.
    pub repeats: bool,
}

impl Bound {
    /// Creates a bound for plans with these orders of the ops, with or without repeats.
    #[must_use]
    pub const fn new(period_ns: u64, order: BoundOrder, repeats: bool) -> Self {
        Self { period_ns, order, repeats }
    }

    /// Returns whether the bound holds for a plan with these figures.
    #[must_use]
    pub const fn holds_for(&self, figures: &Figures) -> bool {
        let order = matches!(self.order, BoundOrder::Any) || !figures.reordered;
        figures.on_host == 0 && order && (self.repeats || figures.repeats == 0)
    }

    /// Returns the ratio of a period to the bound, minus 1. Returns `None` if the bound is 0.
    #[must_use]
    pub fn gap(&self, period_ns: u64) -> Option<f64> {
        Some(ratio(period_ns, self.period_ns)? - 1.0)
    }
}

/// Facts about the work, the budget and the planning of a plan, in addition to its figures.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Context {
    /// The name of the graph.
    pub graph: String,
    /// The name of the machine.
    pub machine: String,
    /// The name of the strategy.
    pub strategy: String,
    /// The source of the list of steps: the strategy, or the list that `auto` chose. `None` if it is not
    /// known, as for a plan from a file.
    pub method: Option<String>,
    /// Device memory for the plan, in bytes.
    pub budget_bytes: u64,
    /// Device memory with everything resident.
    pub in_core_peak_bytes: u64,
    /// The smallest budget with which the strategy can plan; `None` if the strategy is not known or cannot
    /// plan this work.
    pub min_feasible_bytes: Option<u64>,
    /// The sum of all op times, each op once.
    pub compute_ns: u64,
    /// If some op may run on the host, a lower bound on the period of all plans: at least the time of two
    /// processors that share the ops and never wait. The other bounds hold for plans that run every op on the
    /// device.
    pub host_bound_ns: Option<u64>,
    /// A lower bound on the period of plans that run each op once, in any order of the ops.
    pub any_order_bound_ns: u64,
    /// A lower bound on the period of plans that run each op once, in the graph's order of the ops.
    pub given_order_bound_ns: u64,
    /// A lower bound on the period of plans with any order of the ops and any repeats.
    pub any_order_repeats_bound_ns: u64,
    /// A lower bound on the period of plans with the graph's order of the ops and any repeats.
    pub given_order_repeats_bound_ns: u64,
    /// The bound of a certificate, if one was found.
    pub certified: Option<Bound>,
    /// Wall-clock time of planning; `None` for a plan from a file.
    pub planning_ns: Option<u64>,
    /// The length of one cycle by the published schedule of a chain strategy.
    pub cycle_ns: Option<u64>,
    /// The reason why the objects are not fixed, although fixed objects were requested.
    pub unplaced: Option<Unplaced>,
}

impl Context {
    /// Computes the bounds. O((tensors + operands) log tensors).
    ///
    /// # Errors
    /// The graph is malformed, or the process has too little memory.
    pub fn new(
        work: &OwnedGraph,
        machine: &OwnedMachine,
        strategy: &str,
        budget_bytes: u64,
        needs: Needs,
    ) -> Result<Self, Error> {
        let graph = work.graph().map_err(|error| Error::graph(work, error))?;
        let bound_ns =
            |order| planning::lower_bound_ns(&graph, &machine.machine, budget_bytes, order);
        let repeats_bound_ns =
            |order| planning::lower_bound_repeats_ns(&graph, &machine.machine, budget_bytes, order);
        Ok(Self {
            graph: work.name.clone(),
            machine: machine.name.clone(),
            strategy: strategy.to_owned(),
            method: None,
            budget_bytes,
            in_core_peak_bytes: needs.in_core_peak_bytes,
            min_feasible_bytes: needs.min_feasible_bytes,
            compute_ns: graph.compute_ns(),
            host_bound_ns: two_processors_ns(&graph),
            any_order_bound_ns: bound_ns(BoundOrder::Any)?,
            given_order_bound_ns: bound_ns(BoundOrder::Given)?,
            any_order_repeats_bound_ns: repeats_bound_ns(BoundOrder::Any)?,
            given_order_repeats_bound_ns: repeats_bound_ns(BoundOrder::Given)?,
            certified: None,
            planning_ns: None,
            cycle_ns: None,
            unplaced: None,
        })
    }

    /// Creates the context of a plan before its proof. The strategy in the plan is only a label: if no
    /// strategy has this name, or the strategy cannot plan this work, the least memory stays unknown.
    ///
    /// # Errors
    /// The process has too little memory.
    pub fn of_plan(
        graph: &crate::Graph,
        machine: &OwnedMachine,
        plan: &OwnedPlan,
    ) -> Result<Self, Error> {
        let (work, core, on) = (graph.owned(), graph.graph(), &machine.machine);
        let request = Request { graph: &core, machine: on, budget_bytes: on.device_bytes };
        let least = |strategy: crate::Strategy| strategy.min_feasible(&request).ok();
        let least = crate::Strategy::named(&plan.strategy).and_then(least);
        let needs = Needs::of(&core, on, least.map(|(bytes, _)| bytes))
            .map_err(|error| Error::planning(&Names::new(work, &[]), error, on.device_bytes))?;
        Self::new(work, machine, &plan.strategy, plan.budget_bytes, needs)
    }

    /// Returns the best bound that holds for a plan. A plan with ops on the host has the bound for such
    /// plans. For others, the bound is for the given order unless the plan has another order, and for plans
    /// without repeats unless the plan has repeats.
    #[must_use]
    pub fn bound(&self, figures: &Figures) -> Bound {
        if let Some(period_ns) = self.host_bound_ns.filter(|_| figures.on_host > 0) {
            return Bound { period_ns, order: BoundOrder::Any, repeats: true };
        }
        let (order, repeats) = figures.bounded_by();
        let period_ns = match (order, repeats) {
            (BoundOrder::Any, false) => self.any_order_bound_ns,
            (BoundOrder::Given, false) => self.given_order_bound_ns,
            (BoundOrder::Any, true) => self.any_order_repeats_bound_ns,
            (BoundOrder::Given, true) => self.given_order_repeats_bound_ns,
        };
        let certified = self.certified.filter(|bound| bound.holds_for(figures));
        let bound = Bound { period_ns, order, repeats };
        certified.filter(|certified| certified.period_ns > period_ns).unwrap_or(bound)
    }
}

/// Returns the least period of two processors that share the ops and never wait, beside the network that
/// runs the collectives, or `None` if no op may run on the host. Both processors may share one op. The host takes the ops that save the most device time per
/// host time.
fn two_processors_ns(graph: &Graph<'_>) -> Option<u64> {
    let ops = graph.ops();
    if ops.iter().all(|op| op.host_ns.is_none()) {
        return None;
    }
    let launches_ns = graph.launches_ns();
    let (mut device_ns, mut host_ns) = (launches_ns[Stream::Compute], 0u64);
    let both = ops.iter().filter_map(|op| Some((op.time_ns, op.host_ns?)));
    let mut both: Vec<_> = both.filter(|&(time_ns, _)| time_ns > 0).collect();
    let product = |one: u64, other: u64| u128::from(one) * u128::from(other);
    both.sort_unstable_by(|one, other| product(one.1, other.0).cmp(&product(other.1, one.0)));
    for (time_ns, on_host_ns) in both {
        let left_ns = device_ns.saturating_sub(time_ns);
        if host_ns.saturating_add(on_host_ns) > left_ns {
            let both_ns = u128::from(time_ns) + u128::from(on_host_ns);
            let saved_ns = product(time_ns, device_ns.saturating_sub(host_ns)) / both_ns;
            device_ns = device_ns.saturating_sub(u64::try_from(saved_ns).unwrap_or(u64::MAX));
            break;
        }
        (device_ns, host_ns) = (left_ns, host_ns + on_host_ns);
    }
    Some(device_ns.max(launches_ns[Stream::Network]))
}

/// Returns the source of the list in a plan that a planner has just made with a strategy of this name.
#[must_use]
pub fn method(plan: &OwnedPlan, strategy: &str) -> Option<String> {
    let by = if plan.strategy.is_empty() { strategy } else { &plan.strategy };
    Some(by.to_owned())
}

/// The device memory that work needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Needs {
    /// The memory with everything resident.
    pub in_core_peak_bytes: u64,
    /// The smallest budget of a plan that keeps everything resident. It counts whole chunks, so it is more
    /// than `in_core_peak_bytes` for small work.
    pub in_core_least_bytes: u64,
    /// The smallest budget of a strategy; `None` if it is not known.
    pub min_feasible_bytes: Option<u64>,
}

impl Needs {
    /// Computes the memory that work needs, for a strategy with this smallest budget. O(operands).
    ///
    /// # Errors
    /// The process has too little memory.
    pub fn of(
        graph: &Graph<'_>,
        machine: &Machine,
        min_feasible_bytes: Option<u64>,
    ) -> Result<Self, PlanningError> {
        let request = Request { graph, machine, budget_bytes: machine.device_bytes };
        let (in_core_least_bytes, _) = planning::min_feasible(&request, Strategy::InCore)?;
        let in_core_peak_bytes = planning::in_core_peak_bytes(graph, machine)?;
        Ok(Self { in_core_peak_bytes, in_core_least_bytes, min_feasible_bytes })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "what fails here fails the test")]
mod tests {
    use super::*;

    /// The bound for ops with these times on the device and on the host, in ns.
    fn bound_ns(ops: &[(u64, Option<u64>)]) -> Option<u64> {
        let mut work = OwnedGraph::new("two processors");
        for &(time_ns, host_ns) in ops {
            let op = work.push_op("op", time_ns, 0, &[], &[]);
            if let Some(host_ns) = host_ns {
                work.set_host_ns(op, host_ns);
            }
        }
        two_processors_ns(&work.graph().unwrap())
    }

    #[test]
    fn two_processors_share_the_ops_that_may_run_on_both() {
        assert_eq!(bound_ns(&[(100, None)]), None);
        // Three quarters of the second op on the host: both take 15 ns.
        assert_eq!(bound_ns(&[(10, Some(30)), (20, Some(20))]), Some(15));
        // The first two ops run on the host, which then waits for the device.
        assert_eq!(bound_ns(&[(10, Some(30)), (20, Some(20)), (100, None)]), Some(100));
        assert_eq!(bound_ns(&[(7, Some(0)), (0, Some(0))]), Some(0));
    }
}
