//! Writes the tables of `docs/research/streaming.md` about lists of layers. They compare streaming
//! with the settings of inference servers, and streaming with layers on the host with splits.

use planner_core::planner::{Groups, PlanningError, Request, Strategy};
use planner_core::{Machine, MachineParameters};
use spillway::streaming::{self, Layer};
use spillway::{Error, OwnedMachine, Plan, placing, planning};
use std::time::{Duration, Instant};

/// A decoder: its name, its number of layers, their width, the width of the inner layer of a block,
/// the width of keys and values, and the vocabulary. The sizes are the published ones of Llama 2.
const MODELS: [(&str, u64, u64, u64, u64, u64); 2] =
    [("7B", 32, 4096, 11008, 4096, 32000), ("70B", 80, 8192, 28672, 1024, 32000)];
const FLOPS: u128 = 60_000_000_000_000;
const DEVICE_BYTES_PER_S: u128 = 2_000_000_000_000;
const PLANNINGS: usize = 20;

/// The blocks of a decoder and its output layer, in 16-bit weights.
fn layers(
    (_, count, width, inner, keys, vocabulary): (&str, u64, u64, u64, u64, u64),
    tokens: u64,
) -> Vec<Layer> {
    let layer = |weights: u64| {
        let bytes = 2 * weights;
        let compute_ns = u128::from(2 * weights) * u128::from(tokens) * 1_000_000_000 / FLOPS;
        let read_ns = u128::from(bytes) * 1_000_000_000 / DEVICE_BYTES_PER_S;
        let time_ns = compute_ns.max(read_ns);
        Layer::new(bytes, u64::try_from(time_ns).expect("a time below centuries"))
    };
    let block = layer(2 * width * width + 2 * width * keys + 3 * width * inner);
    (0..count).map(|_| block.clone()).chain([layer(width * vocabulary)]).collect()
}

fn machine(gigabytes_per_s: u64) -> OwnedMachine {
    let bytes_per_s = gigabytes_per_s * 1_000_000_000;
    let parameters = MachineParameters::new()
        .with_device_bytes(1 << 40)
        .with_host_bytes(1 << 40)
        .with_chunk_bytes(2 << 20)
        .with_h2d_bytes_per_s(bytes_per_s)
        .with_d2h_bytes_per_s(bytes_per_s)
        .with_transfer_latency_ns(10_000);
    let machine = Machine::new(parameters).expect("a chunk has bytes, and links have a speed");
    OwnedMachine::new("link", machine)
}

/// The layers of a token step, their size, and the memory speeds of the device and the host.
const COUNT: usize = 80;
const LAYER_BYTES: u64 = 500_000_000;
const CARD_GB_PER_S: u64 = 900;
const HANDED_ON_BYTES: u64 = 16_384;
const HOSTS_GB_PER_S: [u64; 2] = [60, 80];
const LINKS_GB_PER_S: [u64; 3] = [12, 25, 55];
const BUDGETS_GIB: [u64; 2] = [8, 22];

fn main() -> Result<(), Error> {
    println!("| model | step | link | budget | groups | fit | **streaming** | bound | planning |");
    println!("|---|---|--:|--:|--:|--:|--:|--:|--:|");
    for model in MODELS {
        for (step, tokens) in [("prompt", 2048), ("token", 1)] {
            for gigabytes_per_s in [12, 25, 50] {
                for percent in [50, 25, 10] {
                    let label =
                        format!("{} | {step} | {gigabytes_per_s} GB/s | {percent} %", model.0);
                    row(&label, &layers(model, tokens), &machine(gigabytes_per_s), percent)?;
                }
            }
        }
    }
    println!();
    println!(
        "| host | link | budget | device alone | split | **streaming** | on the host | streamed | bound |"
    );
    println!("|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    for host in HOSTS_GB_PER_S {
        for link in LINKS_GB_PER_S {
            for gib in BUDGETS_GIB {
                row_with_host(host, link, gib)?;
            }
        }
    }
    Ok(())
}

fn row_with_host(host: u64, link: u64, gib: u64) -> Result<(), Error> {
    let layer = Layer::new(LAYER_BYTES, LAYER_BYTES / CARD_GB_PER_S);
    let alone = vec![layer.activation_bytes(HANDED_ON_BYTES); COUNT];
    let layers: Vec<_> =
        alone.iter().map(|layer| layer.clone().host_ns(LAYER_BYTES / host)).collect();
    let (machine, budget_bytes) = (machine(link), gib << 30);
    let plan = streaming::plan(&layers, &machine, budget_bytes)?;
    let alone_ns = streaming::plan(&alone, &machine, budget_bytes)?.figures().period_ns;
    let graph = streaming::graph(&layers)?;
    let graph = graph.graph();
    let request = Request { graph: &graph, machine: &machine.machine, budget_bytes };
    let split = placing::plan(&request, Strategy::Split);
    let split = split.map_or("—".to_owned(), |(plan, _)| milliseconds(plan.predicted.period_ns));
    let figures = plan.figures();
    println!(
        "| {host} GB/s | {link} GB/s | {gib} GiB | {} | {split} | **{}** | {} | {} | {} |",
        milliseconds(alone_ns),
        milliseconds(figures.period_ns),
        figures.on_host,
        figures.h2d_bytes / LAYER_BYTES,
        milliseconds(plan.lower_bound().period_ns),
    );
    Ok(())
}

/// A plan, and the least time that it takes.
fn planned(
    layers: &[Layer],
    machine: &OwnedMachine,
    budget_bytes: u64,
) -> Result<(Plan, Duration), Error> {
    let mut least = Duration::MAX;
    for _ in 1..PLANNINGS {
        let started = Instant::now();
        streaming::plan(layers, machine, budget_bytes)?;
        least = least.min(started.elapsed());
    }
    Ok((streaming::plan(layers, machine, budget_bytes)?, least))
}

fn row(label: &str, layers: &[Layer], machine: &OwnedMachine, percent: u64) -> Result<(), Error> {
    let all_bytes: u64 = layers.iter().map(|layer| layer.bytes).sum();
    let budget_bytes = all_bytes * percent / 100;
    let (plan, least) = planned(layers, machine, budget_bytes)?;
    let graph = streaming::graph(layers)?;
    let graph = graph.graph();
    let request = Request { graph: &graph, machine: &machine.machine, budget_bytes };
    let period_ns =
        |strategy| Ok::<_, PlanningError>(planning::plan(&request, strategy)?.predicted.period_ns);
    let of = |period: Result<u64, PlanningError>| period.map_or("—".to_owned(), milliseconds);
    println!(
        "| {label} | {} | {} | **{}** | {} | {:.1} ms |",
        of(period_ns(Strategy::Groups(Groups::default()))),
        of(period_ns(Strategy::Fit)),
        milliseconds(plan.figures().period_ns),
        milliseconds(plan.lower_bound().period_ns),
        least.as_secs_f64() * 1e3,
    );
    Ok(())
}

fn milliseconds(ns: u64) -> String {
    format!("{:.2}", ns as f64 / 1e6)
}
