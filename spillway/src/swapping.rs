//! The swap planner with allocation added, and default size classes.

use crate::growth::{buffer, grow_steps, lengthen};
use crate::strategy::{Planner, Watch};
use planner_core::graph::{OpId, TensorId};
use planner_core::plan::{Part, Plan, PlanError, Pool, Resident, Step};
use planner_core::planner::swap::{self, Classes, Threshold};
use planner_core::planner::{PlanningError, Request};
use planner_core::scratch::{Limits, OutOfScratch, Scratch};
use planner_core::{Graph, Kind};
use workloads::OwnedPlan;

/// The parameters of swaps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Swap {
    /// The size classes, by ascending size. A tensor takes an object of the first class that is large enough.
    /// Without classes, the planner tries several divisions of the budget in the timeline.
    pub classes: Option<Vec<Pool>>,
    /// The least time since the last use of a tensor that may leave.
    pub threshold: Threshold,
}

impl Swap {
    /// Sets the size classes, by ascending size.
    #[must_use]
    pub fn with_classes(self, classes: Vec<Pool>) -> Self {
        Self { classes: Some(classes), ..self }
    }

    /// Sets the least time since the last use of a tensor that may leave.
    #[must_use]
    pub fn with_threshold(self, threshold: Threshold) -> Self {
        Self { threshold, ..self }
    }
}

/// Size classes that own their data; see [`Classes`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnedClasses {
    /// The classes.
    pub pools: Vec<Pool>,
    /// The class of each tensor.
    pub tensor_pool: Vec<u32>,
    /// The class of each op's workspace.
    pub workspace_pool: Vec<u32>,
}

impl OwnedClasses {
    /// Puts each tensor and workspace into the first class that is large enough. If no class is large enough,
    /// the class number is out of range.
    #[must_use]
    pub fn first_fit(graph: &Graph<'_>, pools: Vec<Pool>) -> Self {
        let class = |bytes| pools.partition_point(|pool| pool.object_bytes < bytes) as u32;
        let tensor_pool = graph.tensors().iter().map(|tensor| class(tensor.bytes)).collect();
        let workspaces = graph.ops().iter().map(|op| class(op.workspace_bytes));
        let workspace_pool = workspaces.collect();
        Self { pools, tensor_pool, workspace_pool }
    }

    /// The classes for the planner.
    #[must_use]
    pub fn classes(&self) -> Classes<'_> {
        let Self { pools, tensor_pool, workspace_pool } = self;
        Classes { pools, tensor_pool, workspace_pool }
    }
}

/// Returns the sizes of all tensors and workspaces in ascending order, each once.
#[must_use]
pub fn sizes(graph: &Graph<'_>) -> Vec<u64> {
    let workspaces = graph.ops().iter().map(|op| op.workspace_bytes).filter(|&bytes| bytes > 0);
    let mut sizes: Vec<_> =
        graph.tensors().iter().map(|tensor| tensor.bytes).chain(workspaces).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// The tried ratios of the largest to the smallest size of a class, per mille. They lead from one class for
/// each size to a single class.
const GROWTHS_PERMILLE: [u64; 6] = [1000, 1200, 1500, 2000, 4000, u64::MAX];

/// Returns classes of sizes within a ratio of each other, without objects yet.
fn by_growth(graph: &Graph<'_>, growth_permille: u64) -> OwnedClasses {
    let mut pools: Vec<Pool> = Vec::new();
    for object_bytes in sizes(graph).into_iter().rev() {
        let reach = u128::from(object_bytes) * u128::from(growth_permille);
        let joins = |pool: &Pool| reach >= u128::from(pool.object_bytes) * 1000;
        if !pools.last().is_some_and(joins) {
            pools.push(Pool { object_bytes, count: 0 });
        }
    }
    pools.reverse();
    if pools.is_empty() {
        // Every op names a class for its workspace, even without a workspace.
        pools.push(Pool { object_bytes: 1, count: 0 });
    }
    OwnedClasses::first_fit(graph, pools)
}

/// Returns the most objects of each class that one op touches, and the op that touches most bytes.
///
/// # Errors
/// No class is large enough for a tensor or a workspace.
pub fn needs(graph: &Graph<'_>, classes: &Classes<'_>) -> Result<(Vec<u64>, OpId), PlanError> {
    let limits = Limits { pools: classes.pools.len(), ..Limits::of_graph(graph) };
    let mut memory = buffer(Classes::needs_scratch_words(&limits), 0)?;
    let mut least = vec![0; classes.pools.len()];
    let op = classes.needs(graph, &mut least, &mut Scratch::new(&mut memory))?;
    Ok((least, op))
}

/// Returns the most objects of each class in use if only tensors without a later use leave.
fn demands(graph: &Graph<'_>, classes: &OwnedClasses) -> Vec<u64> {
    let class_of = |tensor: TensorId| classes.tensor_pool[tensor.index()] as usize;
    let mut last = vec![None; graph.tensors().len()];
    for op in graph.op_ids() {
        graph.operands_of(op).iter().for_each(|tensor| last[tensor.index()] = Some(op));
    }
    let is_state = |tensor: TensorId| graph.tensor(tensor).kind == Kind::State;
    let mut held = vec![0; classes.pools.len()];
    let touched = graph.tensor_ids().filter(|id| last[id.index()].is_some());
    touched.filter(|&id| is_state(id)).for_each(|id| held[class_of(id)] += 1);
    let mut most = held.clone();
    let mut begun = vec![false; graph.tensors().len()];
    for op in graph.op_ids() {
        let operands = || graph.operands_of(op).iter().copied().filter(|&id| !is_state(id));
        for tensor in operands() {
            let (class, begun) = (class_of(tensor), &mut begun[tensor.index()]);
            held[class] += u64::from(!std::mem::replace(begun, true));
            most[class] = most[class].max(held[class]);
        }
        if graph.op(op).workspace_bytes > 0 {
            let class = classes.workspace_pool[op.index()] as usize;
            most[class] = most[class].max(held[class] + 1);
        }
        for tensor in operands() {
            if last[tensor.index()].take_if(|last| *last == op).is_some() {
                held[class_of(tensor)] -= 1;
            }
        }
    }
    most
}

/// A class is small if all objects that it can use take at most the budget divided by this number. The memory
/// of small classes is not worth dividing.
const SMALL_DIVISOR: u64 = 64;

/// Divides the budget among classes. Small classes get all objects that they can use. Each other class gets
/// the objects that the ops need, and the same share of the further objects that it can use.
fn share(request: &Request<'_>, classes: &mut OwnedClasses) {
    // If no class is large enough for a tensor, the planner reports it.
    let Ok((mut counts, _)) = needs(request.graph, &classes.classes()) else { return };
    let demands = demands(request.graph, classes);
    let pools = &mut classes.pools;
    let bytes = |pools: &[Pool], counts: &[u64]| {
        Classes::bytes(pools, counts.iter().copied(), request.machine)
    };
    let fits = |pools: &[Pool], counts: &[u64]| bytes(pools, counts) <= request.budget_bytes;
    let class_bytes = |class: usize, count: u64| u128::from(bytes(&pools[class..=class], &[count]));
    let mut sum_bytes: u128 = (0..pools.len()).map(|class| class_bytes(class, counts[class])).sum();
    let by_demand = |class: &usize| pools[*class].object_bytes.saturating_mul(demands[*class]);
    let mut order: Vec<usize> = (0..pools.len()).collect();
    order.sort_by_key(by_demand);
    for class in order {
        let is_small = by_demand(&class) <= request.budget_bytes / SMALL_DIVISOR;
        let more_bytes =
            sum_bytes - class_bytes(class, counts[class]) + class_bytes(class, demands[class]);
        if is_small && more_bytes <= request.budget_bytes.into() {
            (counts[class], sum_bytes) = (demands[class], more_bytes);
        }
    }
    let shares = |share: u64| -> Vec<u64> {
        let more = counts.iter().zip(&demands);
        more.map(|(&least, &most)| least + most.saturating_sub(least) * share / (1 << 16)).collect()
    };
    let share = (0..1 << 16)
        .collect::<Vec<u64>>()
        .partition_point(|&share| fits(pools, &shares(share + 1)));
    let counts = shares(share as u64);
    pools.iter_mut().zip(counts).for_each(|(pool, count)| pool.count = count);
}

/// Buffers for plans of swaps. Later plans reuse them without an allocation.
#[derive(Debug, Default)]
pub struct SwapBuffers {
    steps: Vec<Step>,
    resident: Vec<Resident>,
    memory: Vec<u64>,
}

impl SwapBuffers {
    /// Plans in these classes, with as many steps as necessary.
    ///
    /// # Errors
    /// The errors of [`swap::plan`], except for buffers that are too short.
    pub fn plan<'r>(
        &'r mut self,
        request: &Request<'_>,
        classes: Classes<'r>,
        threshold: Threshold,
    ) -> Result<Plan<'r>, PlanningError> {
        let ((steps, resident), predicted) =
            self.with_steps(request, classes.pools.len(), |buffers, scratch| {
                let plan = swap::plan(request, classes, threshold, buffers, scratch)?;
                Ok(((plan.steps.len(), plan.resident_at_start.len()), plan.predicted))
            })?;
        Ok(Plan {
            budget_bytes: request.budget_bytes,
            arena_bytes: 0,
            arena: &[],
            pools: classes.pools,
            tensor_pool: classes.tensor_pool,
            workspace_pool: classes.workspace_pool,
            resident_at_start: &self.resident[..resident],
            steps: &self.steps[..steps],
            placements: None,
            predicted,
        })
    }

    /// Estimates the time of an iteration by the clock of the planner, in ns.
    ///
    /// # Errors
    /// The errors of [`swap::estimate_ns`], except for buffers that are too short.
    pub fn estimate_ns(
        &mut self,
        request: &Request<'_>,
        classes: Classes<'_>,
        threshold: Threshold,
    ) -> Result<u64, PlanningError> {
        self.with_steps(request, classes.pools.len(), |buffers, scratch| {
            swap::estimate_ns(request, classes, threshold, buffers, scratch)
        })
    }

    fn with_steps<T>(
        &mut self,
        request: &Request<'_>,
        pools: usize,
        mut then: impl FnMut(swap::SwapOutput<'_>, &mut Scratch<'_>) -> Result<T, PlanningError>,
    ) -> Result<T, PlanningError> {
        let limits = Limits { pools, ..Limits::of_graph(request.graph) };
        let steps = self.steps.len().max(limits.ops + limits.operands + limits.tensors);
        grow_steps(&limits, steps, |limits| {
            self.grow(limits)?;
            let output = swap::SwapOutput { steps: &mut self.steps, resident: &mut self.resident };
            then(output, &mut Scratch::new(&mut self.memory))
        })
    }

    fn grow(&mut self, limits: &Limits) -> Result<(), OutOfScratch> {
        lengthen(&mut self.steps, limits.steps, Step::launch(OpId(0)))?;
        let nothing = Resident { part: Part::whole(TensorId(0)), host_copy: false };
        lengthen(&mut self.resident, limits.tensors, nothing)?;
        lengthen(&mut self.memory, swap::scratch_words(limits), 0)
    }
}

/// Returns the given classes, or the classes to try without objects yet.
fn candidates(graph: &Graph<'_>, swap: &Swap) -> Vec<OwnedClasses> {
    match &swap.classes {
        Some(pools) => vec![OwnedClasses::first_fit(graph, pools.clone())],
        None => GROWTHS_PERMILLE.map(|growth_permille| by_growth(graph, growth_permille)).into(),
    }
}

/// Returns the divisions of the budget to try.
fn divisions(request: &Request<'_>, swap: &Swap) -> Vec<OwnedClasses> {
    let mut divisions: Vec<OwnedClasses> = Vec::new();
    for mut classes in candidates(request.graph, swap) {
        if swap.classes.is_none() {
            share(request, &mut classes);
        }
        if !divisions.contains(&classes) {
            divisions.push(classes);
        }
    }
    divisions
}

/// Plans in the given classes, or in the division of the budget that is best by the timeline. The names and
/// the strategy of the result are empty.
///
/// # Errors The errors of [`swap::plan`], except for buffers that are too short. If several divisions fail,
/// the error comes from the division that needs least.
pub fn plan(request: &Request<'_>, swap: &Swap) -> Result<OwnedPlan, PlanningError> {
    let mut buffers = SwapBuffers::default();
    let mut plan = |division: OwnedClasses| {
        let planned = buffers.plan(request, division.classes(), swap.threshold);
        planned.map(|plan| OwnedPlan::from(&plan))
    };
    let mut divisions = divisions(request, swap).into_iter();
    let first = plan(divisions.next().unwrap_or_default());
    divisions.fold(first, |best, division| better(best, plan(division)))
}

fn better(
    one: Result<OwnedPlan, PlanningError>,
    other: Result<OwnedPlan, PlanningError>,
) -> Result<OwnedPlan, PlanningError> {
    use PlanningError::{Infeasible, Plan};
    let cost = |plan: &OwnedPlan| plan.predicted.cost();
    let other_is_better = match (&one, &other) {
        (Ok(one), Ok(other)) => cost(other) < cost(one),
        // The device is large enough, but the host is too small.
        (Ok(_) | Err(Plan(PlanError::HostMemory { .. })), Err(_)) => false,
        (
            Err(Infeasible { min_feasible_bytes: one, .. }),
            Err(Infeasible { min_feasible_bytes: other, .. }),
        ) => other < one,
        (Err(_), _) => true,
    };
    if other_is_better { other } else { one }
}

/// Returns the smallest budget with which there is a plan, and the op that needs it. Usually it is the least
/// memory that the ops need. If the host is too small for the tensors that move within that budget, a larger
/// budget lets more tensors stay; the function finds it by planning O(log budget) times. If no budget helps,
/// it returns the least memory that the ops need.
///
/// # Errors
/// No class is large enough for a tensor or a workspace.
pub fn min_feasible(request: &Request<'_>, swap: &Swap) -> Result<(u64, OpId), PlanError> {
    let Request { graph, machine, .. } = *request;
    let candidates = candidates(graph, swap);
    let bytes = |classes: &OwnedClasses, least: &[u64]| {
        let counts = classes.pools.iter().zip(least).map(|(pool, &least)| pool.count.max(least));
        Classes::bytes(&classes.pools, counts, machine)
    };
    let (mut least_bytes, mut op) = (u64::MAX, OpId(0));
    for classes in &candidates {
        let (least, needy) = needs(graph, &classes.classes())?;
        let bytes = bytes(classes, &least);
        if bytes < least_bytes {
            (least_bytes, op) = (bytes, needy);
        }
    }
    let all_bytes = graph.tensors().iter().map(|tensor| tensor.bytes).sum::<u64>();
    let device = machine.with_device_bytes(u64::MAX);
    let is_short = |budget_bytes| {
        let request = Request { graph, machine: &device, budget_bytes };
        let planned = plan(&request, swap);
        matches!(planned, Err(PlanningError::Plan(PlanError::HostMemory { .. })))
    };
    if machine.host_bytes >= all_bytes || !is_short(least_bytes) {
        return Ok((least_bytes, op));
    }
    let most = candidates.iter().map(|classes| bytes(classes, &demands(graph, classes)));
    let most_bytes = most.max().unwrap_or(least_bytes);
    if is_short(most_bytes) {
        return Ok((least_bytes, op));
    }
    // Only whole chunks change the plan.
    let chunk_bytes = machine.chunk_bytes;
    let (mut short, mut enough) = (least_bytes / chunk_bytes, most_bytes.div_ceil(chunk_bytes));
    while enough - short > 1 {
        let middle = short + (enough - short) / 2;
        *(if is_short(middle.saturating_mul(chunk_bytes)) { &mut short } else { &mut enough }) =
            middle;
    }
    Ok((enough.saturating_mul(chunk_bytes), op))
}

impl Planner for Swap {
    fn name(&self) -> &'static str {
        "swap"
    }

    fn min_feasible(&self, request: &Request<'_>) -> Result<(u64, OpId), PlanningError> {
        Ok(min_feasible(request, self)?)
    }

    fn plan(&self, request: &Request<'_>, _: &mut Watch<'_>) -> Result<OwnedPlan, PlanningError> {
        plan(request, self)
    }
}
