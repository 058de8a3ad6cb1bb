//! Plans for an iteration between iterations of another plan, such as a prompt between tokens.
//!
//! A plan made alone does not know which states another plan holds, so a switch may replace everything on the
//! device while nothing runs. Here, the work gets one more op at its end, which takes no time and reads these
//! states. A plan with this op brings the states back while earlier ops run, and evicts some of them again for
//! the next iteration. Then the steps after the op move to the start of the list, and the op is removed.

use crate::error::Error;
use crate::figures::Context;
use crate::graph::Graph;
use crate::placing;
use crate::plan::Plan;
use crate::planning;
use crate::switching;
use planner_core::OpId;
use planner_core::plan::{ArenaPlacement, Part, Resident, Step};
use planner_core::planner::{Auto, Order, PlanningError, Request, Strategy};
use planner_core::switch::SharedState;
use planner_core::{Kind, TensorId};
use std::collections::{HashMap, HashSet};
use std::iter;
use workloads::{OwnedGraph, OwnedPlan};

/// In another order, the op at the end might not come last. A switch would copy states in the arena.
const IN_ORDER: Strategy =
    Strategy::Auto(Auto::new().with_order(Order::Given).with_small_arena(true));

/// The states that another plan holds between its iterations, with their ids in the graph of this plan.
#[derive(Clone, Debug, Default)]
struct Held {
    /// The states that have all their objects on the device, in the order of the graph.
    whole: Vec<TensorId>,
    /// The states that have some of their objects on the device, in the order of the graph.
    in_part: Vec<TensorId>,
    /// The states in the arena of the other plan, at their offsets there.
    in_arena: Vec<ArenaPlacement>,
    /// The bytes of the arena up to the end of these states, in whole chunks.
    arena_bytes: u64,
}

impl Plan {
    /// Returns a plan of the same work in the same budget, for one iteration that runs between two iterations
    /// of `other`, such as a prompt between tokens. If possible, the plan ends with all states on the device
    /// that `other` holds. Returns this plan if the sum of its period and the copies of both
    /// [switches](crate::Session::switch) is smaller.
    ///
    /// Plans the work up to twice: with all states of which `other` holds a part, and without these.
    ///
    /// # Errors
    /// [`Error::States`] if the graphs have different states; [`Error::OutOfMemory`].
    pub fn between(&self, other: &Self) -> Result<Self, Error> {
        let mut best = self.better_arranged(other)?;
        let held = self.held_by(other)?;
        let whole = Held { in_part: Vec::new(), ..held.clone() };
        let tries_whole = !held.in_part.is_empty();
        for held in iter::once(&held).chain(tries_whole.then_some(&whole)) {
            let Some(plan) = self.ending_with(held)? else { continue };
            let arranged = plan.better_arranged(other)?;
            if arranged.0 < best.0 {
                best = arranged;
            }
        }
        Ok(best.1)
    }

    /// Returns the better of this plan and this plan [arranged after](Self::arranged_after) the other one, with its
    /// time between iterations of the other one. The offsets of the other plan may shorten one of the two switches
    /// and lengthen the other.
    fn better_arranged(&self, other: &Self) -> Result<(u64, Self), Error> {
        let arranged = self.arranged_after(other)?;
        let (own_ns, arranged_ns) = (self.time_between(other)?, arranged.time_between(other)?);
        Ok(if own_ns < arranged_ns { (own_ns, self.clone()) } else { (arranged_ns, arranged) })
    }

    /// The sum of the period and the copies of both switches.
    fn time_between(&self, other: &Self) -> Result<u64, Error> {
        let switches = [other.copies_to(self)?.time_ns, self.copies_to(other)?.time_ns];
        Ok(switches.into_iter().fold(self.figures().period_ns, u64::saturating_add))
    }

    fn held_by(&self, other: &Self) -> Result<Held, Error> {
        let (mut whole, mut in_part) = (HashSet::new(), HashSet::new());
        for entry in &other.owned().resident_at_start {
            if entry.part.is_whole() { &mut whole } else { &mut in_part }.insert(entry.part.tensor);
        }
        let offsets = other.owned().arena.iter().map(|placed| (placed.tensor, placed.offset_bytes));
        let offsets: HashMap<TensorId, u64> = offsets.collect();
        let chunk_bytes = self.machine().machine.chunk_bytes;
        let mut held = Held::default();
        let mut shared = switching::shared_states(other.graph(), self.graph())?;
        shared.sort_unstable_by_key(|state| state.to);
        for SharedState { from, to } in shared {
            let bytes = self.graph().owned().tensors[to.index()].bytes;
            match offsets.get(&from) {
                Some(&offset_bytes) => {
                    held.in_arena.push(ArenaPlacement { tensor: to, offset_bytes });
                    let end = offset_bytes.saturating_add(bytes).div_ceil(chunk_bytes);
                    held.arena_bytes = held.arena_bytes.max(end.saturating_mul(chunk_bytes));
                }
                // Smaller states may have no objects of their own.
                None if bytes < chunk_bytes => {}
                None if whole.contains(&from) => held.whole.push(to),
                None if in_part.contains(&from) => held.in_part.push(to),
                None => {}
            }
        }
        Ok(held)
    }

    /// Returns a plan that ends with the states of the other plan on the device, as many as fit, and has its
    /// arena. Returns `None` if there is no such plan.
    fn ending_with(&self, held: &Held) -> Result<Option<Self>, Error> {
        let own_bytes = self.owned().budget_bytes;
        let whole_chunks = own_bytes - own_bytes % self.machine().machine.chunk_bytes;
        let Some(budget_bytes) = whole_chunks.checked_sub(held.arena_bytes) else {
            return Ok(None);
        };
        let work = self.work_ending_with(held, budget_bytes)?;
        let end = OpId(self.graph().owned().ops.len() as u32);
        let graph = work.graph();
        let request = Request { graph: &graph, machine: &self.machine().machine, budget_bytes };
        let Ok((plan, _)) = placing::plan(&request, IN_ORDER) else { return Ok(None) };
        let Some(plan) = rotated(plan, end, &graph) else { return Ok(None) };
        let mut plan = self.with_arena(plan, held);
        plan.budget_bytes = own_bytes;
        self.proved_with(plan)
    }

    /// Returns the work without the arena of the other plan, and with an op at its end that reads the held states,
    /// as many as fit. The op leaves no room for other states, which a switch would copy.
    fn work_ending_with(&self, held: &Held, budget_bytes: u64) -> Result<Graph, Error> {
        let machine = &self.machine().machine;
        let rest = without_arena(self.graph().owned(), held);
        let with_end = |count: usize, workspace_bytes: u64| {
            let mut work = rest.clone();
            work.push_op("end", 0, workspace_bytes, &held.first(count), &[]);
            Graph::new(work)
        };
        let least_bytes = |work: &Graph| {
            let request = Request { graph: &work.graph(), machine, budget_bytes };
            planning::min_feasible(&request, IN_ORDER).map_or(u64::MAX, |(bytes, _)| bytes)
        };
        let (mut fits, mut too_many) = (0, held.whole.len() + held.in_part.len() + 1);
        while fits + 1 < too_many {
            let count = usize::midpoint(fits, too_many);
            let is_enough = least_bytes(&with_end(count, 0)?) <= budget_bytes;
            *if is_enough { &mut fits } else { &mut too_many } = count;
        }
        let taken_bytes = least_bytes(&with_end(fits, budget_bytes)?).saturating_sub(budget_bytes);
        with_end(fits, budget_bytes.saturating_sub(taken_bytes))
    }

    /// Adds the states in the arena of the other plan, at the start of the arena.
    fn with_arena(&self, mut plan: OwnedPlan, held: &Held) -> OwnedPlan {
        let core = self.graph().graph();
        let written: HashSet<TensorId> =
            core.op_ids().flat_map(|op| core.writes(op).iter().copied()).collect();
        for placed in &mut plan.arena {
            placed.offset_bytes += held.arena_bytes;
        }
        plan.arena.extend(&held.in_arena);
        plan.arena_bytes += held.arena_bytes;
        plan.resident_at_start.extend(held.in_arena.iter().map(|placed| Resident {
            part: Part::whole(placed.tensor),
            host_copy: !written.contains(&placed.tensor),
        }));
        plan
    }

    /// Predicts, lowers and proves a list of steps for this work, and fixes its objects. Returns `None` if the
    /// list is not a valid plan.
    fn proved_with(&self, mut plan: OwnedPlan) -> Result<Option<Self>, Error> {
        let (core, machine) = (self.graph().graph(), &self.machine().machine);
        let Ok(schedule) = planning::schedule(&core, machine, &plan.plan()) else {
            return Ok(None);
        };
        let predicted = planning::predict(&core, machine, &plan.plan(), &schedule.schedule());
        let Ok((predicted, _)) = predicted else { return Ok(None) };
        plan.predicted = predicted;
        let request = Request { graph: &core, machine, budget_bytes: plan.budget_bytes };
        // There is no plan for a smaller budget.
        let mut only = Some(plan);
        let placed = placing::plan_by(&request, |_| only.take().ok_or(PlanningError::Stuck));
        let Ok((mut plan, unplaced)) = placed else { return Ok(None) };
        let own = self.owned();
        plan.graph.clone_from(&own.graph);
        plan.machine.clone_from(&own.machine);
        plan.strategy.clone_from(&own.strategy);
        let (graph, machine) = (self.graph().clone(), self.machine().clone());
        let context = Context { unplaced, ..self.context().clone() };
        match Self::in_context(graph, machine, plan, context) {
            Ok(plan) => Ok(Some(plan)),
            Err(Error::Invalid { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Held {
    /// Returns `count` of the states in objects, at even distances. States in part come after all others.
    fn first(&self, count: usize) -> Vec<TensorId> {
        let whole = count.min(self.whole.len());
        [spread(&self.whole, whole), spread(&self.in_part, count - whole)].concat()
    }
}

/// Picks `count` of the states at even distances.
fn spread(states: &[TensorId], count: usize) -> Vec<TensorId> {
    (0..count).map(|at| states[at * states.len() / count]).collect()
}

/// Rotates the list of a plan so that the launch of `end` comes last, and removes this launch. `end` must be the last
/// op of the graph. Returns `None` if the list does not launch it.
fn rotated(mut plan: OwnedPlan, end: OpId, graph: &planner_core::Graph<'_>) -> Option<OwnedPlan> {
    let is_end = |step: &Step| matches!(step, Step::Launch(launched) if launched.op == end);
    let at = plan.steps.iter().position(is_end)?;
    let after = plan.steps.split_off(at + 1);
    plan.steps.pop();
    // Values of temporaries and inputs end with the iteration.
    let kind = |part: Part| graph.tensors()[part.tensor.index()].kind;
    let is_of_iteration = |step: &Step| match *step {
        Step::Prefetch(part) => kind(part) == Kind::Temporary,
        Step::Offload(part) | Step::Evict(part) => kind(part) != Kind::State,
        Step::Launch(_) | Step::Host(_) => true,
    };
    let (ending, starting): (Vec<_>, Vec<_>) = after.into_iter().partition(is_of_iteration);
    plan.steps.extend(ending);
    plan.resident_at_start = resident_after(&plan, graph);
    plan.steps.splice(..0, starting);
    plan.workspace_pool.truncate(end.index());
    plan.placements = None;
    Some(plan)
}

/// Returns the states and inputs that the device holds after the last step of a plan.
fn resident_after(plan: &OwnedPlan, graph: &planner_core::Graph<'_>) -> Vec<Resident> {
    let arena: HashSet<TensorId> = plan.arena.iter().map(|placed| placed.tensor).collect();
    let objects = |(tensor, bytes): (TensorId, u64)| {
        let number = plan.tensor_pool.get(tensor.index()).map_or(0, |&pool| pool as usize);
        let pool = plan.pools.get(number).filter(|_| !arena.contains(&tensor));
        pool.map_or(1, |pool| bytes.div_ceil(pool.object_bytes).max(1) as usize)
    };
    let tensors = (0..).map(TensorId).zip(graph.tensors().iter().map(|tensor| tensor.bytes));
    // `None` for an object that is not on the device; otherwise, whether the host has its value.
    let mut device: Vec<_> = tensors.map(|tensor| vec![None; objects(tensor)]).collect();
    let mut set = |part: Part, host_copy: Option<bool>| {
        let objects = &mut device[part.tensor.index()];
        let end = objects.len().min(part.first.saturating_add(part.count) as usize);
        objects[part.first as usize..end].fill(host_copy);
    };
    for entry in &plan.resident_at_start {
        set(entry.part, Some(entry.host_copy));
    }
    for step in &plan.steps {
        match *step {
            Step::Prefetch(part) | Step::Offload(part) => set(part, Some(true)),
            Step::Evict(part) => set(part, None),
            Step::Launch(launched) => {
                let written = graph.written_by(launched);
                written.for_each(|tensor| set(Part::whole(tensor), Some(false)));
            }
            Step::Host(_) => {}
        }
    }
    // A list may free an old input at the start of the next iteration, but it never frees a tensor in the arena.
    let may_stay = |tensor: TensorId, kind| match kind {
        Kind::State => true,
        Kind::Input => !arena.contains(&tensor),
        Kind::Temporary | Kind::Output => false,
    };
    let tensors = (0..).map(TensorId).zip(graph.tensors()).zip(&device);
    let staying = tensors.filter(|((tensor, data), _)| may_stay(*tensor, data.kind));
    staying.flat_map(|((tensor, _), objects)| entries(tensor, objects)).collect()
}

/// Returns the parts of a tensor that are on the device.
fn entries(tensor: TensorId, objects: &[Option<bool>]) -> impl Iterator<Item = Resident> {
    let mut first = 0;
    objects.chunk_by(|one, next| one == next).filter_map(move |alike| {
        let part = Part { tensor, first, count: alike.len() as u64 };
        first += part.count;
        let part = if alike.len() == objects.len() { Part::whole(tensor) } else { part };
        Some(Resident { part, host_copy: alike[0]? })
    })
}

/// Returns the work without the states in the arena of the other plan. An op with such an operand cannot run on
/// the host, which does not see the arena.
fn without_arena(graph: &OwnedGraph, held: &Held) -> OwnedGraph {
    let arena: HashSet<TensorId> = held.in_arena.iter().map(|placed| placed.tensor).collect();
    let mut rest = graph.clone();
    (rest.ops, rest.operands) = (Vec::new(), Vec::new());
    for op in &graph.ops {
        let operands = &graph.operands[op.first_operand as usize..];
        let (reads, operands) = operands.split_at(op.reads as usize);
        let writes = &operands[..op.writes as usize];
        let first_operand = rest.operands.len() as u32;
        let touched = |tensor: &&TensorId| !arena.contains(tensor);
        rest.operands.extend(reads.iter().filter(touched));
        let left_reads = rest.operands.len() as u32 - first_operand;
        rest.operands.extend(writes.iter().filter(touched));
        let left_writes = rest.operands.len() as u32 - first_operand - left_reads;
        let needs_device = reads.iter().chain(writes).any(|tensor| arena.contains(tensor));
        let host_ns = op.host_ns.filter(|_| !needs_device);
        rest.ops.push(
            op.with_first_operand(first_operand)
                .with_reads(left_reads)
                .with_writes(left_writes)
                .with_host_ns(host_ns),
        );
    }
    rest
}
