//! Figures 9 and 10: the published search over time, and parts of it.

use super::figure6::MODELS;
use super::{MACHINE, Result, limit, machine, published, share};
use planner_core::planner::Request;
use spillway::search::Limit;
use spillway::search::genetic::{Generation, Settings};
use spillway::search::pool::Mapping;
use workloads::OwnedGraph;
use zoo::models;

const RNN: &str = "rnn:layers=8,width=8192,batch=256";
const INCEPTION: &str = "inception4:widen=4,tflops=9,batch=64";

/// Parameters that find better plans in little time. Fewer ops move, and selection is stronger.
const TUNED: Settings = {
    let mut tuned = Settings::PUBLISHED.with_population(64);
    (tuned.mutation, tuned.selection) = (0.002, 100.0);
    tuned
};

fn with_request<T>(work: &OwnedGraph, then: impl FnOnce(&Request<'_>) -> Result<T>) -> Result<T> {
    let (graph, machine) = (work.graph()?, machine(MACHINE)?.machine);
    let budget_bytes = machine.device_bytes;
    then(&Request { graph: &graph, machine: &machine, budget_bytes })
}

/// The best, mean and worst survivor at some generations.
pub(crate) fn figure9(seconds: f64) -> Result<()> {
    println!("| search | generation | at, s | judged | best, s | mean, s | worst, s |");
    println!("|---|--:|--:|--:|--:|--:|--:|");
    let mut free = Settings::PUBLISHED;
    free.mapping = Mapping::Free;
    for (name, spec, settings) in [
        ("RNN-8-8K", RNN, Settings::PUBLISHED),
        ("RNN-8-8K, tuned", RNN, TUNED),
        ("Inception-4", INCEPTION, Settings::PUBLISHED),
        ("Inception-4, unrestricted", INCEPTION, free),
        ("Inception-4, tuned", INCEPTION, TUNED),
    ] {
        let work = models::generate(spec)?;
        let found = with_request(&work, |request| {
            published(request, settings.with_limit(limit(seconds, request)?))
        })?;
        let last = found.generations.len() - 1;
        for at in [0, last / 4, last / 2, last] {
            let Generation { seconds, evaluations, best_ns, mean_ns, worst_ns, .. } =
                found.generations[at];
            let [best, mean, worst] = [best_ns, mean_ns, worst_ns].map(|ns| ns as f64 / 1e9);
            println!(
                "| {name} | {at} | {seconds:.1} | {evaluations} | {best:.2} | {mean:.2} \
                 | {worst:.2} |"
            );
        }
    }
    Ok(())
}

/// Compares searches over orders only, divisions only, and both; a search with tuned parameters;
/// and random individuals. Each judges the same number of individuals, or up to a generation more.
pub(crate) fn figure10(individuals: u64) -> Result<()> {
    println!("| model | order only | pool only | both | both, tuned | random |");
    println!("|---|--:|--:|--:|--:|--:|");
    for (name, spec, batches, _) in MODELS {
        let batch = batches.last().copied().unwrap_or(1);
        let work = models::generate(&format!("{spec},batch={batch}"))?;
        with_request(&work, |request| {
            let search = |settings: Settings| -> Result<String> {
                // A generation has two children for each survivor.
                let population = settings.population as u64;
                let rounds = 1 + individuals.saturating_sub(population).div_ceil(2 * population);
                let limit = Limit::new().with_rounds(rounds);
                let found = published(request, settings.with_limit(limit))?;
                let share = share(request.graph, found.plan.predicted.period_ns);
                Ok(format!("{share:.1} %"))
            };
            let (mut orders, mut divisions) = (Settings::PUBLISHED, Settings::PUBLISHED);
            (orders.divisions, divisions.orders) = (false, false);
            let cells = [
                search(orders)?,
                search(divisions)?,
                search(Settings::PUBLISHED)?,
                search(TUNED)?,
                search(Settings::PUBLISHED.with_population(individuals as usize))?,
            ];
            println!("| {name} | {} |", cells.join(" | "));
            Ok(())
        })?;
    }
    Ok(())
}
