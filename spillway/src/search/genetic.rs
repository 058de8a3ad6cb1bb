//! The published search: a genetic algorithm over orders of the ops and divisions of memory
//! (SwapAdvisor, section 5).
//!
//! Every individual has its own random numbers, seeded by its position in the search, so the result does not
//! depend on the number of threads. With a limit in seconds, the result depends on the speed of the machine;
//! with a limit in generations, it does not.
//!
//! As published, a simulation judges individuals: here, the clock of the swap planner. The search lowers and
//! times the best individuals, and returns the best plan by the timeline.

use super::judge::Judge;
use super::order::{Dependencies, cross};
use super::pool::{Division, Mapping, Sizes};
use super::team::Team;
use crate::strategy::{Limit, Progress, Watch};
use planner_core::planner::swap::Threshold;
use planner_core::planner::{PlanningError, Request};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::time::Instant;
use workloads::OwnedPlan;

/// The parameters of the published search.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Settings {
    /// Individuals that survive each generation.
    pub population: usize,
    /// The probability of each mutation.
    pub mutation: f64,
    /// The factor on normalized times before the softmax of the selection. With a larger factor, fewer bad
    /// individuals survive. The published factor is 1.
    pub selection: f64,
    /// The seed of the random numbers.
    pub seed: u64,
    /// The limit of the search.
    pub limit: Limit,
    /// The least time since the last use of a tensor that may leave.
    pub threshold: Threshold,
    /// The classes that a size may belong to.
    pub mapping: Mapping,
    /// Whether to search orders; otherwise all individuals have the order of the first.
    pub orders: bool,
    /// Whether to search divisions of memory; otherwise all individuals have the division of the first.
    pub divisions: bool,
}

impl Settings {
    /// The published parameters: 144 individuals, and a probability of 10 % for each mutation.
    pub const PUBLISHED: Self = Self {
        population: 144,
        mutation: 0.1,
        selection: 1.0,
        seed: 0,
        limit: Limit::new(),
        threshold: Threshold::RoundTrip,
        mapping: Mapping::Consecutive,
        orders: true,
        divisions: true,
    };
}

planner_core::setters!(Settings {
    population: usize => with_population,
    seed: u64 => with_seed,
    limit: Limit => with_limit,
});

impl Default for Settings {
    fn default() -> Self {
        Self::PUBLISHED
    }
}

/// The survivors of one generation. Periods are by the clock of the planner.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Generation {
    /// The time of the selection since the start of the search.
    pub seconds: f64,
    /// The number of individuals judged so far.
    pub evaluations: u64,
    /// The least period.
    pub best_ns: u64,
    /// The mean period of the survivors with a plan.
    pub mean_ns: u64,
    /// The longest period of the survivors with a plan.
    pub worst_ns: u64,
}

/// The result of a search.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Found {
    /// The best plan found.
    pub plan: OwnedPlan,
    /// The order of the plan: the id of the given op at each position.
    pub order: Vec<u32>,
    /// The division of memory of the plan.
    pub division: Division,
    /// The number of individuals judged.
    pub evaluations: u64,
    /// The time of the search.
    pub seconds: f64,
    /// All generations, with the random first one.
    pub generations: Vec<Generation>,
}

#[derive(Clone, Debug)]
struct Individual {
    order: Vec<u32>,
    division: Division,
    /// The period by the clock of the planner; [`UNKNOWN`] without a plan.
    period_ns: u64,
}

/// The period of an individual that is not judged or has no plan.
const UNKNOWN: u64 = u64::MAX;

struct Search<'s, 'r> {
    request: &'s Request<'r>,
    settings: &'s Settings,
    dependencies: Dependencies,
    sizes: Sizes,
    team: Team,
    started: Instant,
    evaluations: u64,
    generation: u64,
    /// The least period of all individuals by the clock of the planner.
    least_ns: u64,
    /// The best plan by the timeline, among the individuals that were the best by the clock when judged.
    best: Option<(OwnedPlan, Individual)>,
}

/// Searches, on all threads of the current pool.
///
/// # Errors No individual has a plan. The error comes from the first individual.
pub fn search(
    request: &Request<'_>,
    settings: &Settings,
    watch: &mut Watch<'_>,
) -> Result<Found, PlanningError> {
    let mut search = Search {
        request,
        settings,
        dependencies: Dependencies::new(request.graph),
        sizes: Sizes::new(request, settings.mapping),
        team: Team::new(),
        started: Instant::now(),
        evaluations: 0,
        generation: 0,
        least_ns: UNKNOWN,
        best: None,
    };
    let mut generations = Vec::new();
    let mut population = search.first();
    loop {
        population = search.judge(population, watch);
        population = search.select(population);
        generations.push(search.record(&population));
        let best_ns = search.best.as_ref().map(|(plan, _)| plan.predicted.period_ns);
        watch.show(&Progress {
            seconds: search.started.elapsed().as_secs_f64(),
            rounds: search.generation,
            evaluations: search.evaluations,
            best_ns,
        });
        search.generation += 1;
        if settings.limit.is_reached(search.started, search.generation, best_ns, watch.interrupted)
        {
            break;
        }
        population = search.breed(population);
    }
    let (plan, Individual { order, division, .. }) = match search.best.take() {
        Some(best) => best,
        None => search.plan(population.swap_remove(0))?,
    };
    let seconds = search.started.elapsed().as_secs_f64();
    Ok(Found { plan, order, division, evaluations: search.evaluations, seconds, generations })
}

/// Plans again with the result of a search, in classes that fit this budget.
///
/// # Errors
/// The errors of the swap planner.
pub fn plan_again(
    request: &Request<'_>,
    settings: &Settings,
    found: &Found,
) -> Result<OwnedPlan, PlanningError> {
    let sizes = Sizes::new(request, settings.mapping);
    let division = sizes.repaired(found.division.clone());
    let (order, threshold) = (&found.order, settings.threshold);
    Judge::default().swap_plan(request, order, &sizes, &division, threshold)
}

impl Search<'_, '_> {
    /// Random numbers for an individual of the current generation.
    fn rng(&self, individual: usize) -> ChaCha8Rng {
        let mut rng = ChaCha8Rng::seed_from_u64(self.settings.seed);
        rng.set_stream((self.generation << 32) | individual as u64);
        rng
    }

    /// Makes the first generation: random in every searched dimension.
    fn first(&self) -> Vec<Individual> {
        let individual = |at| {
            let rng = &mut self.rng(at);
            let order = match self.settings.orders {
                true => self.dependencies.random(rng),
                false => (0..self.request.graph.ops().len() as u32).collect(),
            };
            let rng = if self.settings.divisions { rng } else { &mut self.rng(0) };
            let division = self.sizes.random(self.request, rng);
            Individual { order, division, period_ns: UNKNOWN }
        };
        (0..self.settings.population.max(2)).map(individual).collect()
    }

    /// Judges new individuals. After the time limit, the remaining individuals get no plan.
    fn judge(&mut self, mut population: Vec<Individual>, watch: &Watch<'_>) -> Vec<Individual> {
        let Self { request, settings, sizes, started, .. } = self;
        let (started, limit) = (*started, settings.limit);
        let (interrupted, has_best) = (watch.interrupted, self.best.is_some());
        let must_end = || limit.is_over(started, interrupted) && has_best;
        let judged = self.team.each(&mut population, |judge, individual| {
            if individual.period_ns != UNKNOWN || must_end() {
                return false;
            }
            let Individual { order, division, period_ns } = individual;
            *period_ns = judge.swap(request, order, sizes, division, settings.threshold);
            true
        });
        self.evaluations += judged;
        let best = population.iter().min_by_key(|individual| individual.period_ns);
        if let Some(best) = best.filter(|best| best.period_ns < self.least_ns) {
            self.least_ns = best.period_ns;
            if let Ok((plan, individual)) = self.plan(best.clone()) {
                let period_ns = plan.predicted.period_ns;
                let longer = |(best, _): &(OwnedPlan, _)| best.predicted.period_ns > period_ns;
                if self.best.as_ref().is_none_or(longer) {
                    self.best = Some((plan, individual));
                }
            }
        }
        population
    }

    fn plan(&self, individual: Individual) -> Result<(OwnedPlan, Individual), PlanningError> {
        let Individual { order, division, .. } = &individual;
        let (request, threshold) = (self.request, self.settings.threshold);
        let plan = Judge::default().swap_plan(request, order, &self.sizes, division, threshold)?;
        Ok((plan, individual))
    }

    /// Draws survivors without replacement, with a probability that falls with the period relative to the
    /// best. The survivors are the individuals with the largest `log(u) / weight` (Efraimidis & Spirakis,
    /// 2006).
    fn select(&self, population: Vec<Individual>) -> Vec<Individual> {
        let survivors = self.settings.population.max(2);
        let best_ns = self.least_ns.max(1) as f64;
        let rng = &mut self.rng(usize::MAX >> 33);
        let mut keyed: Vec<(f64, Individual)> = population
            .into_iter()
            .map(|individual| {
                let normalized = (best_ns - individual.period_ns as f64) / best_ns;
                let normalized = normalized * self.settings.selection;
                let draw: f64 = rng.random();
                (draw.max(f64::MIN_POSITIVE).ln() / normalized.exp(), individual)
            })
            .collect();
        keyed.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        keyed.into_iter().take(survivors).map(|(_, individual)| individual).collect()
    }

    /// Adds four children for each pair of parents: each of two orders with each of two divisions.
    fn breed(&self, population: Vec<Individual>) -> Vec<Individual> {
        let mut parents: Vec<usize> = (0..population.len()).collect();
        let rng = &mut self.rng(usize::MAX >> 34);
        for at in (1..parents.len()).rev() {
            parents.swap(at, rng.random_range(0..=at));
        }
        let pairs: Vec<_> = parents.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
        let children = self.team.map(&pairs, |at, &(one, other)| {
            self.children(&population[one], &population[other], &mut self.rng(at))
        });
        population.into_iter().chain(children.into_iter().flatten()).collect()
    }

    fn children(
        &self,
        one: &Individual,
        other: &Individual,
        rng: &mut ChaCha8Rng,
    ) -> Vec<Individual> {
        let Settings { mutation, orders, divisions, .. } = *self.settings;
        let point = rng.random_range(0..=one.order.len());
        let crossed_orders = match orders {
            true => cross(&one.order, &other.order, point).to_vec(),
            false => vec![one.order.clone()],
        };
        let point = rng.random_range(0..=self.sizes.bytes.len());
        let crossed_divisions = match divisions {
            true => self.sizes.cross(&one.division, &other.division, point).to_vec(),
            false => vec![one.division.clone()],
        };
        let mut children = Vec::new();
        for order in &crossed_orders {
            for division in &crossed_divisions {
                let order = match orders {
                    true => self.dependencies.mutate(order, mutation, rng),
                    false => order.clone(),
                };
                let division = match divisions {
                    true => self.sizes.mutate(division, mutation, rng),
                    false => division.clone(),
                };
                children.push(Individual { order, division, period_ns: UNKNOWN });
            }
        }
        children
    }

    fn record(&self, population: &[Individual]) -> Generation {
        let periods = || {
            let planned = population.iter().filter(|individual| individual.period_ns != UNKNOWN);
            planned.map(|individual| individual.period_ns)
        };
        let sum: u128 = periods().map(u128::from).sum();
        let count = periods().count().max(1) as u128;
        Generation {
            seconds: self.started.elapsed().as_secs_f64(),
            evaluations: self.evaluations,
            best_ns: periods().min().unwrap_or(u64::MAX),
            mean_ns: (sum / count) as u64,
            worst_ns: periods().max().unwrap_or(u64::MAX),
        }
    }
}
