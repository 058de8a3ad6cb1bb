//! Figures 9 and 10: the published search over time, and parts of it.

use super::figure6::MODELS;
use super::{MACHINE, Result, limit, machine, published, share};
use planner_core::planner::Request;
use search::Limit;
use search::genetic::{Generation, Settings};
use search::pool::Mapping;
use workloads::{OwnedGraph, models};

const RNN: (&str, &str) = ("RNN-8-8K", "rnn:layers=8,width=8192,batch=256");
const INCEPTION: (&str, &str) = ("Inception-4", "inception4:widen=4,batch=64");

/// Parameters that find more in little time: fewer ops move, and the better survive.
pub(crate) const TUNED: Settings = Settings {
    population: 64,
    mutation: 0.005,
    selection: 100.0,
    ..Settings::PUBLISHED
};

fn with_request<T>(work: &OwnedGraph, then: impl FnOnce(&Request<'_>) -> Result<T>) -> Result<T> {
    let (graph, machine) = (work.graph()?, machine(MACHINE)?.machine);
    let budget_bytes = machine.device_bytes;
    then(&Request { graph: &graph, machine: &machine, budget_bytes })
}

/// Best, mean and worst of the survivors, at some of the generations.
pub(crate) fn figure9(seconds: f64) -> Result<()> {
    println!("| model, sizes | generation | at, s | judged | best, s | mean, s | worst, s |");
    println!("|---|--:|--:|--:|--:|--:|--:|");
    for ((name, spec), mapping) in
        [(RNN, Mapping::Consecutive), (INCEPTION, Mapping::Consecutive), (INCEPTION, Mapping::Free)]
    {
        let work = models::generate(spec)?;
        let found = with_request(&work, |request| {
            let limit = limit(seconds, request)?;
            published(request, Settings { limit, mapping, ..Settings::default() })
        })?;
        let sizes = if mapping == Mapping::Free { ", unrestricted" } else { "" };
        let last = found.generations.len() - 1;
        for part in 0..=4 {
            let at = last * part / 4;
            let Generation { seconds, evaluations, best_ns, mean_ns, worst_ns } =
                found.generations[at];
            let [best, mean, worst] = [best_ns, mean_ns, worst_ns].map(|ns| ns as f64 / 1e9);
            println!(
                "| {name}{sizes} | {at} | {seconds:.1} | {evaluations} | {best:.2} | {mean:.2} \
                 | {worst:.2} |"
            );
        }
    }
    Ok(())
}

/// Orders only, divisions only, both; as many random individuals as both judged; and a search
/// of the same length with parameters of its own.
pub(crate) fn figure10(seconds: f64) -> Result<()> {
    println!(
        "| model | order only | pool only | both | random, as many | judged | both, tuned \
         | judged | first generation of that |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|--:|--:|");
    for (name, spec, batches, _) in MODELS {
        let batch = batches.last().copied().unwrap_or(1);
        let work = models::generate(&format!("{spec},batch={batch}"))?;
        with_request(&work, |request| {
            let limit = limit(seconds, request)?;
            let settings = Settings { limit, ..Settings::default() };
            let search = |settings| -> Result<(f64, u64, f64)> {
                let found = published(request, settings)?;
                let share = |period_ns| share(request.graph, period_ns);
                let first = share(found.generations[0].best_ns);
                Ok((share(found.plan.predicted.period_ns), found.evaluations, first))
            };
            let (order, ..) = search(Settings { divisions: false, ..settings })?;
            let (pool, ..) = search(Settings { orders: false, ..settings })?;
            let (both, judged, _) = search(settings)?;
            let limit = Limit { seconds: None, rounds: Some(1), ..limit };
            let population = judged as usize;
            let (random, ..) = search(Settings { population, limit, ..settings })?;
            let (tuned, judged_tuned, first) = search(Settings { limit: settings.limit, ..TUNED })?;
            println!(
                "| {name} | {order:.1} % | {pool:.1} % | {both:.1} % | {random:.1} % | {judged} \
                 | {tuned:.1} % | {judged_tuned} | {first:.1} % |"
            );
            Ok(())
        })?;
    }
    Ok(())
}
