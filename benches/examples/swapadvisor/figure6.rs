//! Figure 6: five models whose training needs up to twelve times the device's memory.

use super::{MACHINE, Result, bound_ns, limit, machine, prove, published, share};
use planner_core::planner::{Request, Strategy};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use spillway::planning;
use spillway::search::genetic::Settings;
use spillway::search::order::Dependencies;
use std::time::Instant;
use zoo::models;

/// A model, its spec with the device's speeds, its batches, and the published share of the ideal if
/// the text gives one.
pub(crate) const MODELS: [(&str, &str, &[u64], &str); 5] = [
    ("RNN-8-8K", "rnn:layers=8,width=8192", &[256], "70 to 80 %"),
    ("BRNN-4-8K", "brnn:layers=4,width=8192", &[128], "70 to 80 %"),
    ("WResNet-152-10", "wresnet152:widen=10,tflops=9", &[16, 32, 64], "95 %"),
    ("Inception-4", "inception4:widen=4,tflops=9", &[16, 32, 64], "80 % at 16, at most 65 % at 64"),
    (
        "NASNet-25",
        "nasnet:repeats=25,image=331,tflops=5,memory_gb_s=280",
        &[16, 32, 64],
        "80 % at 16, 53 % at 64",
    ),
];

pub(crate) fn run(seconds: f64, only: Option<&str>) -> Result<()> {
    let machine = machine(MACHINE)?;
    println!(
        "| model | batch | in-core, GB | ideal, samples/s | on-demand, random | on-demand, given \
         | published search | judged a second | ours | planned in, s | bound, any order \
         | ours of the bound | as published |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    for (name, spec, batches, shares) in MODELS {
        for batch in batches.iter().filter(|_| only.is_none_or(|only| only == name)) {
            let work = models::generate(&format!("{spec},batch={batch}"))?;
            let graph = work.graph()?;
            let machine = &machine.machine;
            let budget_bytes = machine.device_bytes;
            let request = Request { graph: &graph, machine, budget_bytes };
            let compute_s = graph.compute_ns() as f64 / 1e9;
            let order = Dependencies::new(&graph).random(&mut ChaCha8Rng::seed_from_u64(1));
            let random = spillway::search::plan_in(&request, &order, Strategy::OnDemand)?;
            prove(&request, &random)?;
            let given = planning::plan(&request, Strategy::OnDemand)?;
            let settings = Settings::PUBLISHED.with_limit(limit(seconds, &request)?);
            let genetic = published(&request, settings)?;
            let started = Instant::now();
            let joint = super::ours(&request, seconds)?;
            let planning_s = started.elapsed().as_secs_f64();
            let bound = share(&graph, bound_ns(&request)?);
            let ours = share(&graph, joint.plan.predicted.period_ns);
            println!(
                "| {name} | {batch} | {:.0} | {:.2} | {:.1} % | {:.1} % | {:.1} % | {:.0} \
                 | **{ours:.1} %** | {planning_s:.1} | {bound:.1} % | {:.1} % | {shares} |",
                planning::in_core_peak_bytes(&graph, machine)? as f64 / 1e9,
                *batch as f64 / compute_s,
                share(&graph, random.predicted.period_ns),
                share(&graph, given.predicted.period_ns),
                share(&graph, genetic.plan.predicted.period_ns),
                genetic.evaluations as f64 / genetic.seconds,
                100.0 * ours / bound,
            );
        }
    }
    Ok(())
}
