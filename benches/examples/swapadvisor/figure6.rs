//! Figure 6: five models whose training needs up to twelve times the device's memory.

use super::{MACHINE, Outcome, bound_ns, limit, machine, ours, prove, published, share};
use planner_core::machine::transmission_ns;
use planner_core::planner::{Request, Strategy};
use planner_core::{Kind, TensorId};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use search::genetic::Settings;
use search::order::Dependencies;
use std::time::Instant;
use workloads::{models, planning};

/// A model with the speeds that it is given, its batches, and the published shares of the ideal, where the text gives one.
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

pub(crate) fn run(seconds: f64, only: Option<&str>) -> Outcome<()> {
    let machine = machine(MACHINE)?;
    println!(
        "| model | batch | in-core, GB | ideal, samples/s | on-demand, random | on-demand, given \
         | published search | judged a second | ours | planned in, s | bound, any order \
         | two crossings | as published |"
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
            let random = search::plan_in(&request, &order, Strategy::OnDemand)?;
            prove(&request, &random)?;
            let given = planning::plan(&request, Strategy::OnDemand)?;
            let settings = Settings { limit: limit(seconds, &request)?, ..Settings::default() };
            let genetic = published(&request, settings)?;
            let started = Instant::now();
            let joint = ours(&request, seconds)?;
            let planning_s = started.elapsed().as_secs_f64();
            let bound = share(&graph, bound_ns(&request)?);
            let crossings = share(&graph, crossings_ns(&request).max(graph.compute_ns()));
            println!(
                "| {name} | {batch} | {:.0} | {:.2} | {:.1} % | {:.1} % | {:.1} % | {:.0} \
                 | **{:.1} %** | {planning_s:.1} | {bound:.1} % | {crossings:.1} % \
                 | {shares} |",
                planning::in_core_peak_bytes(&graph, machine)? as f64 / 1e9,
                *batch as f64 / compute_s,
                share(&graph, random.predicted.period_ns),
                share(&graph, given.predicted.period_ns),
                share(&graph, genetic.plan.predicted.period_ns),
                genetic.evaluations as f64 / genetic.seconds,
                share(&graph, joint.plan.predicted.period_ns),
            );
        }
    }
    Ok(())
}

/// What no plan in the given order can beat: where most bytes of temporaries are alive, those
/// beyond the budget have left in this iteration, and come back in it.
fn crossings_ns(request: &Request<'_>) -> u64 {
    let Request { graph, machine, budget_bytes } = *request;
    let is_temporary = |tensor: TensorId| graph.tensor(tensor).kind == Kind::Temporary;
    let mut last = vec![None; graph.tensors().len()];
    for op in graph.op_ids() {
        graph.touches(op).for_each(|tensor| last[tensor.index()] = Some(op));
    }
    let mut begun = vec![false; graph.tensors().len()];
    let (mut alive_bytes, mut most_bytes) = (0, 0);
    for op in graph.op_ids() {
        for tensor in graph.touches(op).filter(|&tensor| is_temporary(tensor)) {
            if !std::mem::replace(&mut begun[tensor.index()], true) {
                alive_bytes += graph.tensor(tensor).bytes;
            }
        }
        most_bytes = most_bytes.max(alive_bytes);
        let ends = |&tensor: &TensorId| is_temporary(tensor) && last[tensor.index()] == Some(op);
        let ended = graph.touches(op).filter(ends);
        alive_bytes -= ended.map(|tensor| graph.tensor(tensor).bytes).sum::<u64>();
    }
    let beyond_bytes = most_bytes.saturating_sub(budget_bytes);
    [machine.h2d_bytes_per_s, machine.d2h_bytes_per_s]
        .map(|speed| transmission_ns(beyond_bytes, speed).unwrap_or(u64::MAX / 2))
        .iter()
        .sum()
}
