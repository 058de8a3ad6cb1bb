//! Plans a training step and tokens on two processors, and writes a page in Markdown.
//!
//! `host PAGE`.

use planner_core::planner::{Auto, Host, Request, Strategy};
use planner_core::{Machine, MachineParameters};
use spillway::placing;
use std::error::Error;
use std::fmt::Write;
use workloads::OwnedGraph;
use zoo::models;

const LINKS_GB_S: [u64; 3] = [12, 25, 55];
const BUDGETS_GIB: [u64; 4] = [4, 8, 16, 22];
const TRAINING_HOSTS: [u64; 2] = [60, 200];
const TOKEN_HOSTS: [u64; 3] = [60, 80, 200];
const EXPERTS_LINK_GB_S: u64 = 25;

/// Models with experts, with budgets in GiB.
const EXPERTS: [(&str, u64, [u64; 3]); 3] = [
    ("Qwen3 30B-A3B", 30, [4, 8, 12]),
    ("Mixtral 8x7B", 47, [4, 12, 22]),
    ("Qwen3 235B-A22B", 235, [4, 12, 22]),
];

fn main() -> Result<(), Box<dyn Error>> {
    let page = std::env::args().nth(1).ok_or("usage: host PAGE")?;
    let mut text = include_str!("host.md").to_owned();
    training(&mut text)?;
    token(&mut text)?;
    experts(&mut text)?;
    Ok(std::fs::write(page, text)?)
}

fn auto(host: Host) -> Strategy {
    Strategy::Auto(Auto::new().with_host(host))
}

fn machine(link_gb_s: u64) -> Result<Machine, Box<dyn Error>> {
    Ok(Machine::new(
        MachineParameters::new()
            .with_device_bytes(24 << 30)
            .with_host_bytes(1 << 40)
            .with_chunk_bytes(8 << 20)
            .with_h2d_bytes_per_s(link_gb_s * 1_000_000_000)
            .with_d2h_bytes_per_s(link_gb_s * 1_000_000_000)
            .with_transfer_latency_ns(10_000),
    )?)
}

/// The period of a plan. `None` if there is no plan.
fn period_ns(
    work: &OwnedGraph,
    link_gb_s: u64,
    budget_gib: u64,
    strategy: Strategy,
) -> Result<Option<u64>, Box<dyn Error>> {
    let (graph, machine) = (work.graph()?, machine(link_gb_s)?);
    let request = Request { graph: &graph, machine: &machine, budget_bytes: budget_gib << 30 };
    let planned = placing::plan(&request, strategy);
    let period_ns = planned.ok().map(|(plan, _)| plan.predicted.period_ns);
    eprintln!("{} at {budget_gib} GiB, {link_gb_s} GB/s: {period_ns:?} ns", work.name);
    Ok(period_ns)
}

fn compute_ns(work: &OwnedGraph) -> Result<u64, Box<dyn Error>> {
    Ok(work.graph()?.ops().iter().map(|op| op.time_ns).sum())
}

fn training(text: &mut String) -> Result<(), Box<dyn Error>> {
    let work = |host| models::generate(&format!("llama:billions=8,host_gb_s={host}"));
    let works = TRAINING_HOSTS.map(work);
    text.push_str(
        "\n## A training step of 8 billion parameters\n\n\
         One sequence of 8,192 tokens, weights of bfloat16, AdamW of float32, 105 GiB of states. The period over \
         compute:\n\n\
         | link | budget | `host=no` | host of 60 GB/s: `optimizer-offload` | **auto** | 200 GB/s: \
         `optimizer-offload` | **auto** |\n|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for link in LINKS_GB_S {
        for budget in BUDGETS_GIB {
            write!(text, "| {link} GB/s | {budget} GiB")?;
            for (at, work) in works.iter().enumerate() {
                let work = work.as_ref().map_err(ToString::to_string)?;
                let compute_ns = compute_ns(work)? as f64;
                let mut cell = |strategy, mark: &str| -> Result<(), Box<dyn Error>> {
                    match period_ns(work, link, budget, strategy)? {
                        Some(ns) => write!(text, " | {mark}{:.2}{mark}", ns as f64 / compute_ns)?,
                        None => write!(text, " | –")?,
                    }
                    Ok(())
                };
                if at == 0 {
                    cell(auto(Host::Never), "")?;
                }
                cell(Strategy::OptimizerOffload, "")?;
                cell(auto(Host::Allowed), "**")?;
            }
            text.push_str(" |\n");
        }
    }
    Ok(())
}

fn token(text: &mut String) -> Result<(), Box<dyn Error>> {
    text.push_str(
        "\n## A token of 70 billion parameters\n\n\
         Weights of 4.5 bits and a cache of 8,192 tokens, 39.5 GiB together; the host computes 2 TFLOP/s. \
         Milliseconds. *Ideal*:\nhost and link share the bytes that do not fit; the link is always busy, the host \
         whenever the device is not; transfers\ntake no memory.\n\n\
         | host | link | budget | `host=no` | `split` | **auto** | ideal |\n|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for host in TOKEN_HOSTS {
        let work = format!("llama:billions=70,mode=token,bits=4.5,host_gb_s={host},host_tflops=2");
        let work = models::generate(&work)?;
        for link in LINKS_GB_S {
            for budget in BUDGETS_GIB {
                write!(text, "| {host} GB/s | {link} GB/s | {budget} GiB")?;
                write_columns(text, &work, link, budget)?;
                let ideal_s = ideal_s(&work, host as f64 * 1e9, link as f64 * 1e9, budget)?;
                writeln!(text, " | {:.0} |", ideal_s * 1e3)?;
            }
        }
    }
    Ok(())
}

fn experts(text: &mut String) -> Result<(), Box<dyn Error>> {
    writeln!(
        text,
        "\n## A token of a model with experts\n\n\
         Weights of 4.5 bits, caches of 8,192 tokens, a link of {EXPERTS_LINK_GB_S} GB/s, and 2 TFLOP/s on the host. \
         An op moves\nthe weights of the experts that a token chooses, but a transfer moves the weights of all \
         experts of a layer.\nMilliseconds.\n\n\
         | model | host | budget | `host=no` | `split` | **auto** |\n|---|--:|--:|--:|--:|--:|"
    )?;
    for (name, billions, budgets_gib) in EXPERTS {
        for host in TOKEN_HOSTS {
            let work = format!(
                "mixtral:billions={billions},mode=token,bits=4.5,host_gb_s={host},host_tflops=2"
            );
            let work = models::generate(&work)?;
            for budget in budgets_gib {
                write!(text, "| {name} | {host} GB/s | {budget} GiB")?;
                write_columns(text, &work, EXPERTS_LINK_GB_S, budget)?;
                text.push_str(" |\n");
            }
        }
    }
    Ok(())
}

/// Writes the periods of the plans of a token.
fn write_columns(
    text: &mut String,
    work: &OwnedGraph,
    link: u64,
    budget: u64,
) -> Result<(), Box<dyn Error>> {
    let columns = [(auto(Host::Never), ""), (Strategy::Split, ""), (auto(Host::Allowed), "**")];
    for (strategy, mark) in columns {
        match period_ns(work, link, budget, strategy)?.map(|ns| ns as f64 / 1e6) {
            Some(ms) if ms < 100.0 => write!(text, " | {mark}{ms:.1}{mark}")?,
            Some(ms) => write!(text, " | {mark}{ms:.0}{mark}")?,
            None => write!(text, " | –")?,
        }
    }
    Ok(())
}

/// The ideal time of a chain of ops. Host and link share the states beyond the budget: the host
/// computes with its part, and the link carries the rest at the same time.
fn ideal_s(
    work: &OwnedGraph,
    host: f64,
    link: f64,
    budget_gib: u64,
) -> Result<f64, Box<dyn Error>> {
    let graph = work.graph()?;
    let bytes: u64 = graph.tensors().iter().map(|tensor| tensor.bytes).sum();
    let (bytes, budget) = (bytes as f64, (budget_gib << 30) as f64);
    let compute_s = compute_ns(work)? as f64 / 1e9;
    // A second on the host lengthens the period, minus the device time that the host's ops save.
    let longer = 1.0 - compute_s * host / bytes;
    let host_s = (bytes - budget - link * compute_s) / (host + link * longer);
    Ok(compute_s + host_s.max(0.0) * longer)
}
