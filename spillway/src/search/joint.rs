//! A search over orders only, since chunks make size classes unnecessary. `auto` judges each order. This
//! search goes beyond the published one.
//!
//! The first list of `auto` that fits judges an order cheaply. The search starts from the best of several
//! orders and moves blocks of ops, several candidates at a time. It keeps the best candidate if it is no
//! worse than the current order or, early in the search, slightly worse (simulated annealing). At the end,
//! `auto` plans with full effort in the best orders, the given order and an order of its own; the best plan
//! wins.

use super::judge::{Cost, IMPOSSIBLE};
use super::order::Dependencies;
use super::starts::starts;
use super::team::Team;
use crate::strategy::{Limit, Progress, Watch};
use planner_core::planner::{Auto, Order, PlanningError, Repeats, Request, Strategy};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::time::Instant;
use workloads::OwnedPlan;

/// The parameters of the search.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct JointSettings {
    /// The seed of the random numbers.
    pub seed: u64,
    /// The limit of the search. Planning with full effort at the end takes a part of the time.
    pub limit: Limit,
    /// Whether plans launch ops again.
    pub repeats: Repeats,
}

/// The time of a search without a given limit, in seconds.
pub(crate) const SECONDS: f64 = 20.0;

impl Default for JointSettings {
    fn default() -> Self {
        let limit = Limit::new().with_seconds(SECONDS);
        Self { seed: 0, limit, repeats: Repeats::default() }
    }
}

/// The strategy that judges orders.
pub(crate) fn judge() -> Strategy {
    Auto::default().into()
}

planner_core::setters!(JointSettings {
    seed: u64 => with_seed,
    limit: Limit => with_limit,
    repeats: Repeats => with_repeats,
});

impl JointSettings {
    /// The strategy that takes the first list that fits, in the current order.
    const fn quick(&self) -> Strategy {
        let Self { repeats, .. } = *self;
        Strategy::Auto(Auto::new().with_effort(0).with_order(Order::Given).with_repeats(repeats))
    }

    /// The strategy that plans with full effort, in the current order.
    const fn thorough(&self) -> Strategy {
        let Self { repeats, .. } = *self;
        Strategy::Auto(Auto::new().with_order(Order::Given).with_repeats(repeats))
    }
}

/// The result of a search.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct JointFound {
    /// The best plan found.
    pub plan: OwnedPlan,
    /// The order of the plan: the id of the given op at each position.
    pub order: Vec<u32>,
    /// The number of orders judged.
    pub evaluations: u64,
    /// The time of the search.
    pub seconds: f64,
}

/// Candidates in a round. This number does not depend on the number of threads, so the result does not
/// either. It keeps this many threads busy.
const CANDIDATES: usize = 8;

/// The share of the time in which the search judges orders. Planning with full effort takes the rest.
const JUDGING: f64 = 0.6;

/// Plans with full effort in an order from an earlier search.
///
/// # Errors
/// The errors of `auto`.
pub fn plan_again(
    request: &Request<'_>,
    settings: &JointSettings,
    found: &JointFound,
) -> Result<OwnedPlan, PlanningError> {
    super::plan_in(request, &found.order, settings.thorough())
}

/// Searches, on all threads of the current pool.
///
/// # Errors
/// The errors of `auto` in the given order.
pub fn search(
    request: &Request<'_>,
    settings: &JointSettings,
    watch: &mut Watch<'_>,
) -> Result<JointFound, PlanningError> {
    let dependencies = Dependencies::new(request.graph);
    let mut search =
        Search { request, settings, team: Team::new(), started: Instant::now(), evaluations: 0 };
    let mut ranked = search.rank(starts(request, &dependencies));
    let given: Vec<u32> = (0..request.graph.ops().len() as u32).collect();
    let mut found = search.plan_thoroughly(&ranked, given.clone())?;
    if found.plan.predicted.period_ns > settings.limit.bound_ns && !ranked.is_empty() {
        let improved = search.improve(&dependencies, ranked.swap_remove(0), found.cost(), watch);
        if let Ok(plan) = super::plan_in(request, &improved, settings.thorough())
            && cost(&plan) < found.cost()
        {
            found = JointFound { plan, order: improved, ..found }
        }
    }
    found.evaluations = search.evaluations;
    found.seconds = search.started.elapsed().as_secs_f64();
    Ok(found)
}

fn cost(plan: &OwnedPlan) -> Cost {
    plan.predicted.cost()
}

impl JointFound {
    fn cost(&self) -> Cost {
        cost(&self.plan)
    }
}

struct Candidate {
    order: Vec<u32>,
    cost: Cost,
}

struct Search<'s, 'r> {
    request: &'s Request<'r>,
    settings: &'s JointSettings,
    team: Team,
    started: Instant,
    evaluations: u64,
}

impl Search<'_, '_> {
    fn judge(&mut self, candidates: &mut [Candidate]) {
        let (request, quick) = (self.request, self.settings.quick());
        self.evaluations += self.team.each(candidates, |judge, candidate| {
            candidate.cost = judge.order(request, &candidate.order, quick);
            true
        });
    }

    /// Judges orders and sorts them, best first.
    fn rank(&mut self, orders: Vec<Vec<u32>>) -> Vec<Candidate> {
        let candidate = |order| Candidate { order, cost: IMPOSSIBLE };
        let mut candidates: Vec<_> = orders.into_iter().map(candidate).collect();
        self.judge(&mut candidates);
        candidates.sort_by_key(|candidate| candidate.cost);
        candidates
    }

    /// Returns the best plan in the two best orders, the given order, and the order that `auto` chooses.
    fn plan_thoroughly(
        &self,
        ranked: &[Candidate],
        given: Vec<u32>,
    ) -> Result<JointFound, PlanningError> {
        let thorough = self.settings.thorough();
        let JointSettings { repeats, .. } = *self.settings;
        let free = Strategy::Auto(Auto::new().with_repeats(repeats));
        let orders = ranked.iter().take(2).map(|candidate| candidate.order.clone());
        let mut tried: Vec<_> = orders.map(|order| (order, None)).collect();
        let each = || {
            self.team.each(&mut tried, |judge, (order, plan)| {
                *plan = judge.order_plan(self.request, order, thorough).ok();
                true
            })
        };
        let (_, planned) = rayon::join(each, || super::plan_in(self.request, &given, free));
        let found = |order, plan| JointFound { plan, order, evaluations: 0, seconds: 0.0 };
        let tried = tried.into_iter().filter_map(|(order, plan)| Some(found(order, plan?)));
        // The first of equal plans wins.
        match (tried.min_by_key(JointFound::cost), planned) {
            (Some(best), Ok(plan)) if cost(&plan) >= best.cost() => Ok(best),
            (Some(best), Err(_)) => Ok(best),
            (_, planned) => Ok(found(given, planned?)),
        }
    }

    /// Moves blocks of ops until the time is up. Returns the best order found.
    fn improve(
        &mut self,
        dependencies: &Dependencies,
        start: Candidate,
        planned: Cost,
        watch: &mut Watch<'_>,
    ) -> Vec<u32> {
        let (mut best, mut best_cost) = (start.order.clone(), start.cost);
        let mut current = start;
        let JointSettings { seed, limit, .. } = *self.settings;
        let judging = Limit { seconds: limit.seconds.map(|s| s * JUDGING), ..limit };
        let mut moves = Moves::new(dependencies, current.order.len());
        let mut rounds = 0;
        while !judging.is_reached(self.started, rounds, Some(best_cost.0), watch.interrupted) {
            let mut candidates: Vec<_> = (0..CANDIDATES)
                .map(|at| {
                    let mut rng = ChaCha8Rng::seed_from_u64(seed);
                    rng.set_stream((rounds << 8) | at as u64);
                    Candidate { order: moves.moved(&current.order, &mut rng), cost: IMPOSSIBLE }
                })
                .collect();
            self.judge(&mut candidates);
            rounds += 1;
            let Some(least) = candidates.into_iter().min_by_key(|candidate| candidate.cost) else {
                break;
            };
            // Accepts slightly worse orders, with a margin that shrinks from round to round.
            let margin = current.cost.0 / (500 + 20 * rounds);
            if least.cost.0 <= current.cost.0.saturating_add(margin) {
                current = least;
            }
            if current.cost < best_cost {
                (best, best_cost) = (current.order.clone(), current.cost);
            }
            watch.show(&Progress {
                seconds: self.started.elapsed().as_secs_f64(),
                rounds,
                evaluations: self.evaluations,
                best_ns: Some(best_cost.0.min(planned.0)),
            });
        }
        best
    }
}

/// Moves blocks of ops as far as the dependencies allow.
struct Moves<'d> {
    dependencies: &'d Dependencies,
    before: Vec<Vec<u32>>,
    position: Vec<u32>,
}

impl<'d> Moves<'d> {
    fn new(dependencies: &'d Dependencies, ops: usize) -> Self {
        let mut before = vec![Vec::new(); ops];
        for op in 0..ops as u32 {
            for &after in dependencies.followers(op) {
                before[after as usize].push(op);
            }
        }
        Self { dependencies, before, position: vec![0; ops] }
    }

    /// Returns the order with one block of ops moved. The block can move earlier, up to the last op that it
    /// waits for, or later, up to the first op that waits for it.
    fn moved(&mut self, order: &[u32], rng: &mut ChaCha8Rng) -> Vec<u32> {
        (0u32..).zip(order).for_each(|(at, &op)| self.position[op as usize] = at);
        let mut moved = order.to_vec();
        // A few draws usually find a block that can move.
        for _ in 0..64 {
            let from = rng.random_range(0..order.len());
            let len = 1usize << rng.random_range(0..6);
            let to = (from + len).min(order.len());
            let (first, last) = self.reach(order, from, to);
            let earlier = rng.random_bool(0.5);
            let far = rng.random_bool(0.5);
            if earlier && first < from {
                let target = if far { first } else { rng.random_range(first..from) };
                moved[target..to].rotate_right(to - from);
                return moved;
            }
            if !earlier && last > to {
                let target = if far { last } else { rng.random_range(to + 1..=last) };
                moved[from..target].rotate_left(to - from);
                return moved;
            }
        }
        moved
    }

    /// Returns the first and the last position that a block can move to.
    fn reach(&self, order: &[u32], from: usize, to: usize) -> (usize, usize) {
        let (mut first, mut last) = (0, order.len());
        for &op in &order[from..to] {
            for &before in &self.before[op as usize] {
                let at = self.position[before as usize] as usize;
                first = if at < from { first.max(at + 1) } else { first };
            }
            for &after in self.dependencies.followers(op) {
                let at = self.position[after as usize] as usize;
                last = if at >= to { last.min(at) } else { last };
            }
        }
        (first, last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conformance::graphs::graphs;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn moves_and_starts_keep_the_dependencies(graph in graphs(), seed in any::<u64>()) {
            let graph = graph.graph().unwrap();
            let dependencies = Dependencies::new(&graph);
            let rng = &mut ChaCha8Rng::seed_from_u64(seed);
            let mut moves = Moves::new(&dependencies, graph.ops().len());
            let mut order = dependencies.random(rng);
            for _ in 0..8 {
                order = moves.moved(&order, rng);
                prop_assert!(dependencies.keeps(&order));
            }
        }
    }
}
