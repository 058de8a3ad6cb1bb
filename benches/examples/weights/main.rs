//! Weight offloading on chains of layers: the table of the paper, its study of the bandwidth,
//! and a sweep of the memory. Writes `weights.md` and `weights.svg`.
//!
//!     cargo run --release -p spillway-benches --example weights -- CHAINS docs/research

mod extras;
mod partition;
mod plot;
mod text;

use planner_core::planner::{Auto, PlanningError, Repeats, Request, Strategy, Weights};
use spillway::planning::{self, Buffers};
use std::error::Error;
use std::path::Path;
use std::time::Instant;
use workloads::{OwnedChain, format};

/// The rows of table 1, in its order.
const ROWS: [&str; 15] = [
    "gpt-2-74-b64",
    "gpt-2-56-b64",
    "gpt-2-38-b64",
    "gpt-2-74-b32",
    "gpt-2-56-b32",
    "gpt-2-38-b32",
    "gpt-2-74-b16",
    "gpt-2-56-b16",
    "gpt-2-38-b16",
    "bert-144-b64",
    "bert-96-b64",
    "bert-144-b32",
    "bert-96-b32",
    "bert-144-b16",
    "bert-96-b16",
];

/// The chains of figure 4.
const FIGURE_4: [&str; 2] = ["gpt-2-38-b32", "gpt-2-38-b64"];
/// Bandwidths in units of 500 MiB/s.
const HALF_GIGABYTES: [u64; 6] = [1, 2, 4, 8, 16, 24];
/// The number of steps from the smallest memory to the whole memory.
const MEMORY_STEPS: u64 = 24;

/// The largest gap between the integer program's bound and its solution.
#[cfg(feature = "highs")]
const GAP: f64 = 1e-3;

const PUBLISHED: Strategy = Strategy::Weights(Weights::new().with_published(true));
const WHOLE: Strategy = Strategy::Weights(Weights::new());
const PARTS: Strategy = auto(Repeats::Never);
const WITH_REPEATS: Strategy = auto(Repeats::Allowed);

const fn auto(repeats: Repeats) -> Strategy {
    Strategy::Auto(Auto::new().with_repeats(repeats))
}

/// The results for a chain, in nanoseconds.
struct Outcome {
    sum: u64,
    published: u64,
    layer_to_layer: u64,
    undiscounted: u64,
    /// The periods with whole weights, with parts, and with parts without the input's upload.
    whole: u64,
    parts: u64,
    parts_without_input: u64,
    /// The least planning times of the published strategy and of whole weights.
    published_planning: u64,
    whole_planning: u64,
}

/// The least periods in nanoseconds, and the time to compute the first one.
struct Bounds {
    whole: u64,
    parts: u64,
    took_s: f64,
}

/// A bandwidth in GB/s (of 1000 MiB), its results, and its bounds.
type Study = (f64, Outcome, Option<Bounds>);

type Done<T> = Result<T, Box<dyn Error>>;

fn main() -> Done<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [chains, docs] = arguments.as_slice() else {
        return Err("usage: weights CHAINS DOCS".into());
    };
    let load = |name: &str| -> Done<OwnedChain> {
        let path = Path::new(chains).join(format!("{name}.chain.json"));
        Ok(format::read_chain(&format::load(path)?)?)
    };
    let mut rows = Vec::new();
    for name in ROWS {
        rows.push((name, outcome(&load(name)?)?));
    }
    let mut studies = Vec::new();
    for name in FIGURE_4 {
        let chain = load(name)?;
        let mut study = Vec::new();
        for halves in HALF_GIGABYTES {
            let bandwidth_bytes_per_s = (halves * 500) << 20;
            let slower = OwnedChain { bandwidth_bytes_per_s, ..chain.clone() };
            eprintln!("{name} at {} GB/s", halves as f64 / 2.0);
            study.push((halves as f64 / 2.0, outcome(&slower)?, bounds(&slower)?));
        }
        studies.push((name, study));
    }
    let sweep = sweep(&load(FIGURE_4[0])?)?;
    let mut partitions = Vec::new();
    for instance in &partition::INSTANCES {
        partitions.push((instance, partition::idle(instance)?));
    }
    let page = text::page(&rows, &studies, (FIGURE_4[0], &sweep));
    let extras = extras::extras(&load(FIGURE_4[0])?)?;
    let chains: Done<Vec<_>> = ROWS.iter().map(|name| load(name)).collect();
    let repeated = extras::repeated(&chains?)?;
    let page = page + &text::extras(&extras) + &text::repeated(&repeated);
    let page = page + &text::partitions(&partitions);
    format::save(Path::new(docs).join("weights.md"), page.as_bytes())?;
    plot::draw(&Path::new(docs).join("weights.svg"), &studies, (FIGURE_4[0], &sweep))
}

/// The least periods by the integer program, for whole weights, and by its relaxation, for parts.
/// `None` in a build without the solver.
#[cfg(feature = "highs")]
fn bounds(chain: &OwnedChain) -> Done<Option<Bounds>> {
    let bound_ns = |whole| -> Done<u64> {
        let options = lp_bound::WeightOptions { whole, gap: GAP, most_s: 600.0 };
        let bound = lp_bound::weights_period_ns(chain, options)?;
        let (least, found) = (bound.period_ns, bound.found_ns.unwrap_or(u64::MAX));
        match found.saturating_sub(least) as f64 <= 1.01 * GAP * found as f64 {
            true => Ok(least),
            false => Err(format!("{}: stopped at {least} of {found}", chain.name).into()),
        }
    };
    let started = Instant::now();
    let whole = bound_ns(true)?;
    let took_s = started.elapsed().as_secs_f64();
    Ok(Some(Bounds { whole, parts: bound_ns(false)?, took_s }))
}

#[cfg(not(feature = "highs"))]
fn bounds(_chain: &OwnedChain) -> Done<Option<Bounds>> {
    Ok(None)
}

/// Plans a chain with every strategy.
fn outcome(chain: &OwnedChain) -> Done<Outcome> {
    let [published, undiscounted, layer_to_layer] =
        [PUBLISHED, Strategy::WeightsUndiscounted, Strategy::LayerToLayer]
            .map(|strategy| cycle_ns(chain, strategy));
    let (sum, whole, whole_planning) = period_ns(chain, WHOLE, 3)?;
    let parts = |chain: &OwnedChain| period_ns(chain, PARTS, 1);
    Ok(Outcome {
        sum,
        published: published?,
        layer_to_layer: layer_to_layer?,
        undiscounted: undiscounted?,
        whole,
        parts: parts(chain)?.1,
        parts_without_input: parts(&without_input(chain))?.1,
        published_planning: period_ns(chain, PUBLISHED, 3)?.2,
        whole_planning,
    })
}

/// The chain without its input, because only weights move in the paper.
fn without_input(chain: &OwnedChain) -> OwnedChain {
    let device_bytes = chain.device_bytes - chain.input_bytes;
    OwnedChain { device_bytes, input_bytes: 0, ..chain.clone() }
}

fn cycle_ns(chain: &OwnedChain, strategy: Strategy) -> Done<u64> {
    let (owned, machine) = (chain.graph(), chain.machine()?.machine);
    let graph = owned.graph()?;
    let request = Request { graph: &graph, machine: &machine, budget_bytes: chain.device_bytes };
    planning::cycle_ns(&request, strategy)?.ok_or_else(|| "a strategy without cycles".into())
}

/// The sum of the ops' times, the period, and the least of `times` planning times. All runs after
/// the first use warm buffers.
fn period_ns(chain: &OwnedChain, strategy: Strategy, times: usize) -> Done<(u64, u64, u64)> {
    let (owned, machine) = (chain.graph(), chain.machine()?.machine);
    let graph = owned.graph()?;
    let request = Request { graph: &graph, machine: &machine, budget_bytes: chain.device_bytes };
    let mut buffers = Buffers::default();
    let (mut period_ns, mut planning_ns) = (0, u64::MAX);
    for _ in 0..times {
        let started = Instant::now();
        period_ns = buffers.plan(&request, strategy)?.predicted.period_ns;
        planning_ns = planning_ns.min(u64::try_from(started.elapsed().as_nanos())?);
    }
    Ok((graph.compute_ns(), period_ns, planning_ns))
}

/// The results from the smallest memory to the whole memory, with the bytes.
fn sweep(chain: &OwnedChain) -> Done<Vec<(u64, Outcome)>> {
    let whole = OwnedChain { device_bytes: u64::MAX, ..chain.clone() };
    let (owned, machine) = (whole.graph(), whole.machine()?.machine);
    let graph = owned.graph()?;
    let request = Request { graph: &graph, machine: &machine, budget_bytes: u64::MAX };
    let least = |strategy| planning::min_feasible(&request, strategy);
    let ((smallest, _), (all, _)) = (least(PUBLISHED)?, least(Strategy::InCore)?);
    let mut sweep = Vec::new();
    for step in 0..=MEMORY_STEPS {
        let device_bytes = smallest + (all - smallest) / MEMORY_STEPS * step;
        let chain = OwnedChain { device_bytes, ..chain.clone() };
        match outcome(&chain) {
            Ok(outcome) => sweep.push((device_bytes, outcome)),
            Err(error) if error.is::<PlanningError>() => println!("{device_bytes}: {error}"),
            Err(error) => return Err(error),
        }
    }
    Ok(sweep)
}
