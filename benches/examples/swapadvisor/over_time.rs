//! Figures 9 and 10: the published search over time, and parts of it.

use super::{MACHINE, Outcome, limit, machine, published, share};
use planner_core::planner::Request;
use search::Limit;
use search::genetic::{Generation, Settings};
use search::pool::Mapping;
use workloads::{OwnedGraph, models};

const RNN: (&str, &str) = ("RNN-8-8K", "rnn:layers=8,width=8192,batch=256");
const INCEPTION: (&str, &str) = ("Inception-4", "inception4:widen=4,batch=64");

/// A selection that is no longer the published one.
const SHARPER: f64 = 30.0;

fn with_request<T>(work: &OwnedGraph, then: impl FnOnce(&Request<'_>) -> Outcome<T>) -> Outcome<T> {
    let (graph, machine) = (work.graph()?, machine(MACHINE)?.machine);
    let budget_bytes = machine.device_bytes;
    then(&Request { graph: &graph, machine: &machine, budget_bytes })
}

/// Best, mean and worst of the survivors, at some of the generations.
pub(crate) fn figure9(seconds: f64) -> Outcome<()> {
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

/// Orders only, divisions only, both; and as many random individuals as both judged.
pub(crate) fn figure10(seconds: f64) -> Outcome<()> {
    println!(
        "| model | order only | pool only | both | random, as many | judged | both, sharper |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|");
    for (name, spec) in [RNN, INCEPTION] {
        let work = models::generate(spec)?;
        let [order, pool, both, random, judged, sharp] = with_request(&work, |request| {
            let limit = limit(seconds, request)?;
            let settings = Settings { limit, ..Settings::default() };
            let search = |settings| {
                let found = published(request, settings)?;
                let share = share(request.graph, found.plan.predicted.period_ns);
                Outcome::Ok((share, found.evaluations))
            };
            let (order, _) = search(Settings { divisions: false, ..settings })?;
            let (pool, _) = search(Settings { orders: false, ..settings })?;
            let (both, judged) = search(settings)?;
            let limit = Limit { seconds: None, rounds: Some(1), ..limit };
            let population = judged as usize;
            let (random, _) = search(Settings { population, limit, ..settings })?;
            let (sharp, _) = search(Settings { selection: SHARPER, ..settings })?;
            Ok([order, pool, both, random, judged as f64, sharp])
        })?;
        println!(
            "| {name} | {order:.1} % | {pool:.1} % | {both:.1} % | {random:.1} % | {judged} \
             | {sharp:.1} % |"
        );
    }
    Ok(())
}
