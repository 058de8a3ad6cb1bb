//! Plans for an iteration between iterations of another plan, such as a prompt between tokens.
//!
//! A plan made alone does not know what another plan holds, so a switch may replace everything on the device.
//! Here, some states that the other plan holds stay in place: the work is planned without these states, in
//! the memory that they leave free, and then the states are added to the plan.

use crate::error::Error;
use crate::graph::Graph;
use crate::placing;
use crate::plan::Plan;
use crate::planning;
use crate::switching;
use planner_core::TensorId;
use planner_core::plan::{ArenaPlacement, Part, Pool, Resident};
use planner_core::planner::{Auto, Request, Strategy};
use planner_core::switch::SharedState;
use std::collections::{BTreeMap, HashMap, HashSet};
use workloads::{OwnedGraph, OwnedPlan};

/// Shares of the weights to keep on the device, in eighths. Weights that stay take memory that prefetches of
/// other weights need, so the search tries several shares.
const EIGHTHS: [usize; 6] = [8, 7, 6, 4, 2, 0];

/// Rounds of the search. Each tries the numbers halfway between the best number of weights and its
/// neighbours.
const CLOSER: usize = 2;

/// The most objects that may stay. The plan lists their numbers one by one.
const MOST_OBJECTS: u64 = 1 << 24;

/// The states that another plan holds between its iterations, with their ids in the graph of this plan.
#[derive(Debug, Default)]
struct Held {
    /// The states in objects, in the order of the graph.
    in_objects: Vec<TensorId>,
    /// The states in the arena of the other plan, at their offsets there.
    in_arena: Vec<ArenaPlacement>,
    /// The bytes of the arena up to the end of these states, in whole chunks.
    arena_bytes: u64,
    /// All tensors that ops of this work write.
    written: HashSet<TensorId>,
}

impl Plan {
    /// Returns a plan of the same work in the same budget, for one iteration that runs between two iterations
    /// of `other`, such as a prompt between tokens. States that `other` holds may stay on the device in the
    /// plan. The search tries several plans and this plan. It returns the plan with the smallest sum of its
    /// period and the copies of both [switches](crate::Session::switch).
    ///
    /// Plans the work up to ten times.
    ///
    /// # Errors
    /// [`Error::States`] if the graphs have different states; [`Error::OutOfMemory`].
    pub fn between(&self, other: &Self) -> Result<Self, Error> {
        let mut held = self.held_by(other)?;
        let own = self.arranged_after(other)?;
        // The offsets of the other plan may shorten one of the two switches and lengthen the other.
        let (plain_ns, own_ns) = (self.time_between(other)?, own.time_between(other)?);
        let mut best = if plain_ns < own_ns { (plain_ns, self.clone()) } else { (own_ns, own) };
        if held.states().next().is_none() {
            return Ok(best.1);
        }
        let (always, weights): (Vec<_>, Vec<_>) =
            held.in_objects.iter().partition(|state| held.written.contains(state));
        // The time for each number of weights that stay; `u64::MAX` if there is no plan.
        let mut times = BTreeMap::new();
        let mut attempt = |count: usize, times: &mut BTreeMap<usize, u64>| -> Result<(), Error> {
            if times.contains_key(&count) {
                return Ok(());
            }
            held.in_objects = always.iter().copied().chain(spread(&weights, count)).collect();
            let plan = self.holding(&held)?;
            let time_ns = plan.as_ref().map_or(Ok(u64::MAX), |plan| plan.time_between(other))?;
            times.insert(count, time_ns);
            if let Some(plan) = plan.filter(|_| time_ns < best.0) {
                best = (time_ns, plan);
            }
            Ok(())
        };
        for eighths in EIGHTHS {
            attempt(weights.len() * eighths / 8, &mut times)?;
        }
        for _ in 0..CLOSER {
            let shortest = times.iter().min_by_key(|(_, time_ns)| **time_ns);
            let Some((&count, _)) = shortest.filter(|(_, time_ns)| **time_ns < u64::MAX) else {
                break;
            };
            let below = times.range(..count).next_back().map(|(below, _)| below.midpoint(count));
            let above = times.range(count + 1..).next().map(|(above, _)| above.midpoint(count));
            for count in below.into_iter().chain(above) {
                attempt(count, &mut times)?;
            }
        }
        Ok(best.1)
    }

    /// The sum of the period and the copies of both switches.
    fn time_between(&self, other: &Self) -> Result<u64, Error> {
        let switches = [other.copies_to(self)?.time_ns, self.copies_to(other)?.time_ns];
        Ok(switches.into_iter().fold(self.figures().period_ns, u64::saturating_add))
    }

    fn held_by(&self, other: &Self) -> Result<Held, Error> {
        let resident = other.owned().resident_at_start.iter();
        let resident: HashSet<TensorId> =
            resident.filter(|entry| entry.part.is_whole()).map(|entry| entry.part.tensor).collect();
        let offsets = other.owned().arena.iter().map(|placed| (placed.tensor, placed.offset_bytes));
        let offsets: HashMap<TensorId, u64> = offsets.collect();
        let chunk_bytes = self.machine().machine.chunk_bytes;
        let mut held = Held { written: self.written(), ..Held::default() };
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
                None if resident.contains(&from) && bytes >= chunk_bytes => {
                    held.in_objects.push(to);
                }
                None => {}
            }
        }
        Ok(held)
    }

    /// Returns a plan in which these states stay. Returns `None` if the rest of the work does not fit beside
    /// these states, or cannot run in the planned order with them.
    fn holding(&self, held: &Held) -> Result<Option<Self>, Error> {
        let machine = &self.machine().machine;
        let objects = |state: TensorId| {
            self.graph().owned().tensors[state.index()].bytes.div_ceil(machine.chunk_bytes)
        };
        let in_objects: Vec<_> =
            held.in_objects.iter().map(|&state| (state, objects(state))).collect();
        let count = in_objects.iter().fold(0, |sum: u64, (_, count)| sum.saturating_add(*count));
        if count > MOST_OBJECTS {
            return Ok(None);
        }
        let held_bytes = count.saturating_mul(machine.chunk_bytes).saturating_add(held.arena_bytes);
        let Some(budget_bytes) = self.owned().budget_bytes.checked_sub(held_bytes) else {
            return Ok(None);
        };
        let rest = Graph::new(without(self.graph().owned(), held))?;
        let graph = rest.graph();
        let request = Request { graph: &graph, machine, budget_bytes };
        let Ok((plan, _)) = placing::plan(&request, Strategy::Auto(Auto::default())) else {
            return Ok(None);
        };
        let pool = Pool { object_bytes: machine.chunk_bytes, count };
        let mut plan = self.with_states(plan, held, &in_objects, pool);
        plan.budget_bytes = self.owned().budget_bytes;
        self.proved_with(plan)
    }

    /// Adds the states that stay to the plan of the rest: some at the start of the arena, the others in a
    /// pool of their own. `in_objects` lists these other states with their numbers of objects.
    fn with_states(
        &self,
        mut plan: OwnedPlan,
        held: &Held,
        in_objects: &[(TensorId, u64)],
        pool: Pool,
    ) -> OwnedPlan {
        let arena: HashSet<TensorId> = plan.arena.iter().map(|placed| placed.tensor).collect();
        for placed in &mut plan.arena {
            placed.offset_bytes += held.arena_bytes;
        }
        plan.arena.extend(&held.in_arena);
        plan.arena_bytes += held.arena_bytes;
        let allocated = |entry: &&Resident| !arena.contains(&entry.part.tensor);
        let before = plan.resident_at_start.iter().filter(allocated).count();
        plan.resident_at_start.extend(held.states().map(|state| Resident {
            part: Part::whole(state),
            host_copy: !held.written.contains(&state),
        }));
        if in_objects.is_empty() {
            return plan;
        }
        let number = plan.pools.len() as u32;
        plan.pools.push(pool);
        plan.tensor_pool.resize(self.graph().owned().tensors.len(), 0);
        let (mut objects, mut ends) = (Vec::new(), Vec::new());
        for &(state, count) in in_objects {
            plan.tensor_pool[state.index()] = number;
            objects.extend(objects.len() as u64..objects.len() as u64 + count);
            ends.push(objects.len() as u32);
        }
        if let Some(placements) = &mut plan.placements {
            // Placements begin with the resident tensors outside of the arena, in the order of their list.
            let first = before.checked_sub(1).map_or(0, |last| placements.ends[last]);
            let more = objects.len() as u32;
            placements.objects.splice(first as usize..first as usize, objects);
            placements.ends[before..].iter_mut().for_each(|end| *end += more);
            placements.ends.splice(before..before, ends.into_iter().map(|end| first + end));
        }
        plan
    }

    /// The tensors that ops of this work write.
    fn written(&self) -> HashSet<TensorId> {
        let core = self.graph().graph();
        core.op_ids().flat_map(|op| core.writes(op).iter().copied()).collect()
    }

    /// Predicts, lowers and proves a list of steps for this work. Returns `None` if the list is not a valid
    /// plan.
    fn proved_with(&self, mut plan: OwnedPlan) -> Result<Option<Self>, Error> {
        let (core, machine) = (self.graph().graph(), &self.machine().machine);
        let Ok(schedule) = planning::schedule(&core, machine, &plan.plan()) else {
            return Ok(None);
        };
        let predicted = planning::predict(&core, machine, &plan.plan(), &schedule.schedule());
        let Ok((predicted, _)) = predicted else { return Ok(None) };
        plan.predicted = predicted;
        let own = self.owned();
        plan.graph.clone_from(&own.graph);
        plan.machine.clone_from(&own.machine);
        plan.strategy.clone_from(&own.strategy);
        let (graph, machine) = (self.graph().clone(), self.machine().clone());
        match Self::in_context(graph, machine, plan, self.context().clone()) {
            Ok(plan) => Ok(Some(plan)),
            Err(Error::Invalid { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Held {
    /// Returns all states, in the order in which a plan lists them.
    fn states(&self) -> impl Iterator<Item = TensorId> {
        let in_arena = self.in_arena.iter().map(|placed| placed.tensor);
        self.in_objects.iter().copied().chain(in_arena)
    }
}

/// Picks `count` of the states at even distances.
fn spread(states: &[TensorId], count: usize) -> Vec<TensorId> {
    (0..count).map(|at| states[at * states.len() / count]).collect()
}

/// Returns the work without the operands that `held` keeps on the device. An op that reads the arena or
/// writes a held state cannot run on the host: it could not read the arena, and the device would not see its
/// write.
fn without(graph: &OwnedGraph, held: &Held) -> OwnedGraph {
    let states: HashSet<TensorId> = held.states().collect();
    let arena: HashSet<TensorId> = held.in_arena.iter().map(|placed| placed.tensor).collect();
    let mut rest = graph.clone();
    (rest.ops, rest.operands) = (Vec::new(), Vec::new());
    for op in &graph.ops {
        let operands = &graph.operands[op.first_operand as usize..];
        let (reads, operands) = operands.split_at(op.reads as usize);
        let writes = &operands[..op.writes as usize];
        let first_operand = rest.operands.len() as u32;
        let touched = |tensor: &&TensorId| !states.contains(tensor);
        rest.operands.extend(reads.iter().filter(touched));
        let left_reads = rest.operands.len() as u32 - first_operand;
        rest.operands.extend(writes.iter().filter(touched));
        let left_writes = rest.operands.len() as u32 - first_operand - left_reads;
        let needs_device = reads.iter().any(|tensor| arena.contains(tensor))
            || writes.iter().any(|tensor| states.contains(tensor));
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
