//! Figure 8: several ResNet-152 that share a device. Batches of 16 requests arrive at random
//! (Poisson), each for a random model, and are served one after the other.
//!
//! With shared memory, each model has a part of the memory and a plan for this part. In turns, a
//! model must be completely on the device to run. The least recently used model is evicted, and
//! compute waits for the parameters.

use super::chart::{COLOURS, Line, Panel, draw};
use super::{Result, machine, prove};
use planner_core::machine::transmission_ns;
use planner_core::pieces::Pieces;
use planner_core::planner::{Auto, Request, Strategy};
use planner_core::timeline::{self, Timeline};
use planner_core::{Kind, Limits, Machine, Scratch, Stream};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use spillway::planning;
use std::path::Path;
use workloads::{OwnedGraph, OwnedPlan};
use zoo::models;

const BATCH: u64 = 16;
const MODEL: &str = "resnet152:mode=inference,batch=16,tflops=15.7,memory_gb_s=1000";

/// The number of batches whose latency is measured.
const BATCHES: usize = 200_000;

/// Requests per second.
const RATES: [f64; 10] = [50.0, 100.0, 150.0, 200.0, 250.0, 300.0, 350.0, 400.0, 425.0, 450.0];

/// The time of a batch.
#[derive(Clone, Copy)]
enum Service {
    /// The same time for all batches.
    Fixed(u64),
    /// With load time if the model is not among the most recently used ones.
    Turns { compute_ns: u64, load_ns: u64, resident: usize },
}

struct Way {
    name: String,
    models: u64,
    service: Service,
}

pub(crate) fn run(plot: Option<&str>) -> Result<()> {
    let work = models::generate(MODEL)?;
    let published = machine("v100-pcie3-244gb")?.machine;
    let small = published.with_device_bytes(2 << 30);
    let panels =
        [panel(&work, "16 GiB", &published, &[4, 16])?, panel(&work, "2 GiB", &small, &[4, 16])?];
    match plot {
        Some(path) => draw(Path::new(path), 2, (480, 320), &panels),
        None => Ok(()),
    }
}

/// Prints one machine's table, and returns its lines.
fn panel(work: &OwnedGraph, title: &str, machine: &Machine, counts: &[u64]) -> Result<Panel> {
    let ways = ways(work, machine, counts)?;
    println!("\n{title}: {}\n", ways.iter().map(Way::describe).collect::<Vec<_>>().join("; "));
    let names: Vec<_> = ways.iter().map(|way| way.name.clone()).collect();
    println!("| requests/s | {} |", names.join(" | "));
    println!("|--:|{}", "--:|".repeat(ways.len()));
    let mut points = vec![Vec::new(); ways.len()];
    for rate in RATES {
        let latencies = ways.iter().map(|way| way.latency_ms(rate));
        let mut cells = Vec::new();
        for (latency_ms, points) in latencies.zip(&mut points) {
            cells.push(latency_ms.map_or("–".to_owned(), |ms| format!("{ms:.0}")));
            points.extend(latency_ms.filter(|&ms| ms < 1500.0).map(|ms| (rate, ms)));
        }
        println!("| {rate:.0} | {} |", cells.join(" | "));
    }
    let lines = names.into_iter().zip(points).zip(COLOURS);
    let line = |((name, points), colour)| Line { name, colour, dashed: false, points };
    Ok(Panel {
        title: format!("99th percentile of the latency, ms: {title}"),
        x: "requests/s",
        y: "ms",
        lines: lines.map(line).collect(),
    })
}

fn ways(work: &OwnedGraph, machine: &Machine, counts: &[u64]) -> Result<Vec<Way>> {
    let graph = work.graph()?;
    let device_bytes = machine.device_bytes;
    let states = graph.tensors().iter().filter(|tensor| tensor.kind == Kind::State);
    let load_ns = transmission_ns(states.map(|state| state.bytes).sum(), machine.h2d_bytes_per_s);
    let load_ns = load_ns.ok_or("the link has no speed")?;
    let compute_ns = alone_ns(work, machine, device_bytes)?;
    let each_bytes = planning::in_core_peak_bytes(&graph, machine)?;
    let way = |name: String, models, service| Way { name, models, service };
    let mut ways = vec![way("dedicated".to_owned(), 1, Service::Fixed(compute_ns))];
    for &models in counts {
        let ns = alone_ns(work, machine, device_bytes / models)?;
        ways.push(way(format!("shared, {models}"), models, Service::Fixed(ns)));
    }
    let fit = (device_bytes / each_bytes) as usize;
    for &models in counts {
        for (name, resident) in [("in turns", 1), ("as many as fit", fit)] {
            let service = Service::Turns { compute_ns, load_ns, resident };
            ways.push(way(format!("{name}, {models}"), models, service));
        }
    }
    Ok(ways)
}

/// The time of one batch alone, until all transfers of the plan's iteration have ended.
fn alone_ns(work: &OwnedGraph, machine: &Machine, budget_bytes: u64) -> Result<u64> {
    let graph = work.graph()?;
    let request = Request { graph: &graph, machine, budget_bytes };
    let plan: OwnedPlan = planning::plan(&request, Strategy::Auto(Auto::default()))?;
    prove(&request, &plan)?;
    let schedule = planning::schedule(&graph, machine, &plan.plan())?;
    let plan = plan.plan();
    let mut memory = vec![0; timeline::scratch_words(&Limits::of_plan(&graph, &plan))];
    let scratch = &mut Scratch::new(&mut memory);
    let pieces = Pieces::new(&graph, machine, &plan, scratch)?;
    let mut durations_ns = vec![0; plan.steps.len()];
    timeline::durations(machine, &pieces, &mut durations_ns)?;
    let timeline = Timeline::new(&schedule.schedule(), &durations_ns, scratch)?;
    let ends = [Stream::Compute, Stream::Upload, Stream::Download].map(|stream| {
        let last = schedule.stream_steps[stream].checked_sub(1);
        last.map_or(0, |last| timeline.end_ns(0, stream, last))
    });
    Ok(ends.into_iter().max().unwrap_or(0))
}

impl Way {
    fn describe(&self) -> String {
        let ms = |ns: u64| ns as f64 / 1e6;
        match self.service {
            Service::Fixed(ns) => format!("{} {:.1} ms a batch", self.name, ms(ns)),
            Service::Turns { compute_ns, load_ns, resident } => format!(
                "{} {:.1} ms and {:.1} ms to load, {resident} on the device",
                self.name,
                ms(compute_ns),
                ms(load_ns)
            ),
        }
    }

    /// The 99th percentile. `None` if batches arrive faster than they are served.
    fn latency_ms(&self, requests_per_s: f64) -> Option<f64> {
        let rng = &mut ChaCha8Rng::seed_from_u64(0);
        let mut uniform = || (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let mean_ns = 1e9 * BATCH as f64 / requests_per_s;
        let (mut arrival_ns, mut free_ns, mut busy_ns) = (0.0, 0.0, 0.0);
        let mut recent: Vec<u64> = Vec::new();
        let mut latencies_ns = Vec::with_capacity(BATCHES);
        for _ in 0..BATCHES {
            arrival_ns -= mean_ns * (1.0 - uniform()).ln();
            let model = (uniform() * self.models as f64) as u64;
            let service_ns = self.service.ns(model, &mut recent) as f64;
            busy_ns += service_ns;
            free_ns = f64::max(free_ns, arrival_ns) + service_ns;
            latencies_ns.push(free_ns - arrival_ns);
        }
        latencies_ns.sort_by(f64::total_cmp);
        (busy_ns < arrival_ns).then(|| latencies_ns[BATCHES * 99 / 100] / 1e6)
    }
}

impl Service {
    fn ns(self, model: u64, recent: &mut Vec<u64>) -> u64 {
        match self {
            Self::Fixed(ns) => ns,
            Self::Turns { compute_ns, load_ns, resident } => {
                let at = recent.iter().position(|&other| other == model);
                at.map(|at| recent.remove(at));
                recent.insert(0, model);
                recent.truncate(resident);
                compute_ns + if at.is_some() { 0 } else { load_ns }
            }
        }
    }
}
