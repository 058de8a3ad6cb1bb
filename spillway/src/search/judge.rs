//! Judges individuals: plans and times each in buffers that the next one reuses.

use super::pool::{Division, Sizes};
use crate::planning;
use crate::swapping::{self, OwnedClasses};
use planner_core::graph::{Op, OpId, TensorId};
use planner_core::plan::Step;
use planner_core::planner::swap::{Classes, Threshold};
use planner_core::planner::{Made, PlanningError, Request, Strategy};
use planner_core::scratch::Scratch;
use planner_core::{Graph, Launched, Plan};
use workloads::OwnedPlan;

/// The cost of a plan: its period, and the bytes that it moves.
pub(crate) type Cost = (u64, u64);

/// The cost without a plan.
pub(crate) const IMPOSSIBLE: Cost = (u64::MAX, u64::MAX);

/// Buffers that judge one individual after another without allocation.
#[derive(Debug, Default)]
pub(crate) struct Judge {
    ops: Vec<Op>,
    operands: Vec<TensorId>,
    memory: Vec<u64>,
    classes: OwnedClasses,
    swaps: swapping::SwapBuffers,
    plans: planning::Buffers,
}

/// Returns a graph with its ops in another order.
fn arrange<'a>(
    graph: &Graph<'a>,
    order: &[u32],
    ops: &'a mut Vec<Op>,
    operands: &'a mut Vec<TensorId>,
    memory: &mut Vec<u64>,
) -> Result<Graph<'a>, PlanningError> {
    ops.clear();
    operands.clear();
    for &op in order {
        let op = OpId(op);
        ops.push(graph.op(op).with_first_operand(operands.len() as u32));
        operands.extend_from_slice(graph.operands_of(op));
    }
    memory.resize(Graph::scratch_words(graph.tensors().len()), 0);
    Graph::new(graph.tensors(), ops, operands, &mut Scratch::new(memory))
        .map_err(PlanningError::Order)
}

fn cost(plan: Result<Plan<'_>, PlanningError>) -> Cost {
    plan.map_or(IMPOSSIBLE, |plan| plan.predicted.cost())
}

/// Translates the ids of ops in a plan for the ordered graph to their ids in the given graph.
fn named(plan: Result<Plan<'_>, PlanningError>, order: &[u32]) -> Result<OwnedPlan, PlanningError> {
    let mut plan = OwnedPlan::from(&plan?);
    for step in &mut plan.steps {
        if let Step::Launch(Launched { op, .. }) = step {
            *op = OpId(order[op.index()]);
        }
    }
    let mut workspace_pool = plan.workspace_pool.clone();
    for (&pool, &op) in plan.workspace_pool.iter().zip(order) {
        workspace_pool[op as usize] = pool;
    }
    plan.workspace_pool = workspace_pool;
    Ok(plan)
}

impl Judge {
    /// Judges an order and a division of memory by the clock of the swap planner.
    pub(crate) fn swap(
        &mut self,
        request: &Request<'_>,
        order: &[u32],
        sizes: &Sizes,
        division: &Division,
        threshold: Threshold,
    ) -> u64 {
        self.with_swap(request, order, sizes, division, |swaps, request, classes| {
            swaps.estimate_ns(request, classes, threshold)
        })
        .unwrap_or(u64::MAX)
    }

    /// Returns the plan for which the function above returns only the cost.
    pub(crate) fn swap_plan(
        &mut self,
        request: &Request<'_>,
        order: &[u32],
        sizes: &Sizes,
        division: &Division,
        threshold: Threshold,
    ) -> Result<OwnedPlan, PlanningError> {
        self.with_swap(request, order, sizes, division, |swaps, request, classes| {
            named(swaps.plan(request, classes, threshold), order)
        })
    }

    fn with_swap<T>(
        &mut self,
        request: &Request<'_>,
        order: &[u32],
        sizes: &Sizes,
        division: &Division,
        then: impl FnOnce(
            &mut swapping::SwapBuffers,
            &Request<'_>,
            Classes<'_>,
        ) -> Result<T, PlanningError>,
    ) -> Result<T, PlanningError> {
        let Self { ops, operands, memory, classes, swaps, .. } = self;
        let graph = arrange(request.graph, order, ops, operands, memory)?;
        let request = Request { graph: &graph, ..*request };
        sizes.decode(&request, division, classes);
        then(swaps, &request, classes.classes())
    }

    /// Judges an order by another strategy.
    pub(crate) fn order(
        &mut self,
        request: &Request<'_>,
        order: &[u32],
        strategy: Strategy,
    ) -> Cost {
        self.with_order(request, order, strategy, |made| cost(made.map(|made| made.plan)))
    }

    /// Returns the plan for which the function above returns only the cost.
    pub(crate) fn order_plan(
        &mut self,
        request: &Request<'_>,
        order: &[u32],
        strategy: Strategy,
    ) -> Result<OwnedPlan, PlanningError> {
        self.with_order(request, order, strategy, |made| {
            let made = made?;
            let mut plan = named(Ok(made.plan), order)?;
            made.by.clone_into(&mut plan.strategy);
            Ok(plan)
        })
    }

    fn with_order<T>(
        &mut self,
        request: &Request<'_>,
        order: &[u32],
        strategy: Strategy,
        then: impl FnOnce(Result<Made<'_>, PlanningError>) -> T,
    ) -> T {
        let Self { ops, operands, memory, plans, .. } = self;
        match arrange(request.graph, order, ops, operands, memory) {
            Ok(graph) => then(plans.make(&Request { graph: &graph, ..*request }, strategy)),
            Err(error) => then(Err(error)),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "what fails here fails the test")]
mod tests {
    use super::*;
    use crate::search::order::Dependencies;
    use crate::search::pool::Mapping;
    use conformance::graphs::{graphs, machines};
    use planner_core::PlanError;
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;
    use zoo::models;

    /// Checks that the estimate and the plan agree on whether memory is too small.
    fn has_a_plan(request: &Request<'_>, rng: &mut ChaCha8Rng) -> Result<(), String> {
        let order = Dependencies::new(request.graph).random(rng);
        let sizes = Sizes::new(request, Mapping::Consecutive);
        let division = sizes.random(request, rng);
        let (mut judge, threshold) = (Judge::default(), Threshold::default());
        let estimate_ns = judge.swap(request, &order, &sizes, &division, threshold);
        match judge.swap_plan(request, &order, &sizes, &division, threshold) {
            Ok(_) if estimate_ns == u64::MAX => Err("there is a plan".to_owned()),
            Ok(_)
            | Err(
                PlanningError::Infeasible { .. }
                | PlanningError::BudgetAboveDevice { .. }
                | PlanningError::Plan(PlanError::HostMemory { .. }),
            ) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn every_individual_has_a_plan(
            graph in graphs(),
            machine in machines(),
            spare in 0..8192u64,
            seed in any::<u64>(),
        ) {
            let graph = graph.graph().unwrap();
            let request = |budget_bytes| Request { graph: &graph, machine: &machine, budget_bytes };
            let (least, _) = swapping::min_feasible(&request(0), &swapping::Swap::default()).unwrap();
            let rng = &mut ChaCha8Rng::seed_from_u64(seed);
            has_a_plan(&request(least + spare), rng).map_err(TestCaseError::fail)?;
        }
    }

    /// With more ops than random graphs have, a leaving tensor may still be on the device when other tensors
    /// have made enough space for it to come back.
    #[test]
    fn every_individual_of_a_recurrent_network_has_a_plan() {
        let work = models::generate("brnn:batch=8,layers=2,steps=12,width=128").unwrap();
        let graph = work.graph().unwrap();
        let machine = workloads::machines::builtin("v100-pcie3").unwrap().machine;
        for seed in 0..200 {
            let rng = &mut ChaCha8Rng::seed_from_u64(seed);
            let budget_bytes = (4 + seed % 8) << 20;
            let request = Request { graph: &graph, machine: &machine, budget_bytes };
            has_a_plan(&request, rng).unwrap_or_else(|error| panic!("{seed}: {error}"));
        }
    }
}
