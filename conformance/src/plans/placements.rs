//! Random physical objects for all allocations of a plan.

use crate::choices::Choices;
use crate::ledger::{Allocation, allocations};
use planner_core::{Graph, Machine, TensorId};
use std::collections::BTreeMap;
use workloads::{OwnedPlacements, OwnedPlan};

/// The plan with valid placements over `iterations` iterations. If an allocation finds no suitable
/// object, the pool gets one more. A plan that the ledger refuses stays unchanged.
pub(super) fn place(
    graph: &Graph<'_>,
    machine: &Machine,
    plan: OwnedPlan,
    iterations: u32,
    choices: &mut Choices,
) -> OwnedPlan {
    let Ok(allocations) = allocations(graph, machine, &plan.plan(), iterations) else {
        return plan;
    };
    let mut choice = Choice::new(&allocations, machine, plan);
    let arrays: Vec<_> =
        allocations.iter().map(|allocation| choice.array(allocation, choices)).collect();
    let end = |end: &mut u32, array: &Vec<u64>| {
        *end += array.len() as u32;
        Some(*end)
    };
    let ends = arrays.iter().scan(0, end).collect();
    let mut plan = choice.plan;
    plan.placements = Some(OwnedPlacements::new(iterations, arrays.concat(), ends));
    plan
}

struct Choice<'a> {
    machine: &'a Machine,
    plan: OwnedPlan,
    /// The position of the last release of each object so far.
    held_until: BTreeMap<(usize, u64), usize>,
    /// For each object that holds a tensor object at the start, the position at which the tensor
    /// object returns to it for good.
    needed_at: BTreeMap<(usize, u64), usize>,
    /// The position from which each tensor object that is resident at the end stays resident.
    comes_at: BTreeMap<(TensorId, u64), usize>,
    /// The object in which each tensor object lies at the start.
    homes: BTreeMap<(TensorId, u64), u64>,
}

impl<'a> Choice<'a> {
    fn new(allocations: &[Allocation], machine: &'a Machine, plan: OwnedPlan) -> Self {
        let mut comes_at = BTreeMap::new();
        for allocation in allocations {
            for stay in allocation.stays.iter().filter(|stay| stay.until.is_none()) {
                comes_at.extend(stay.held.map(|held| (held, allocation.at)));
            }
        }
        Self {
            machine,
            plan,
            held_until: BTreeMap::new(),
            needed_at: BTreeMap::new(),
            comes_at,
            homes: BTreeMap::new(),
        }
    }

    fn array(&mut self, allocation: &Allocation, choices: &mut Choices) -> Vec<u64> {
        let Allocation { at, pool, ref stays, .. } = *allocation;
        let mut array = Vec::new();
        for stay in stays {
            let until = stay.until.unwrap_or(usize::MAX);
            let home = stay.held.and_then(|held| self.homes.get(&held)).copied();
            let object = match home {
                Some(home) if stay.until.is_none() => home,
                _ => self.pick(pool, at, until, choices),
            };
            self.held_until.insert((pool, object), until);
            if let Some(held) = stay.held.filter(|_| at == 0) {
                self.homes.insert(held, object);
                self.needed_at.insert((pool, object), self.comes_at[&held]);
            }
            array.push(object);
        }
        array
    }

    /// An object that is free from `at` until `until`.
    fn pick(&mut self, pool: usize, at: usize, until: usize, choices: &mut Choices) -> u64 {
        let free = |&object: &u64| {
            let held_until = self.held_until.get(&(pool, object)).copied();
            let needed_at = self.needed_at.get(&(pool, object)).copied();
            held_until.is_none_or(|held_until| held_until < at)
                && needed_at.is_none_or(|needed_at| until < needed_at)
        };
        let free: Vec<u64> = (0..self.plan.pools[pool].count).filter(free).collect();
        choices.pick(&free).unwrap_or_else(|| {
            let pool = &mut self.plan.pools[pool];
            pool.count += 1;
            self.plan.budget_bytes += pool.object_bytes + self.machine.chunk_bytes;
            pool.count - 1
        })
    }
}
