//! Compares plans with the published figures of others.

use super::{AUTO, Done, RTX_5090, Ways, auto, period_ns};
use planner_core::planner::{Host, Strategy};
use planner_core::{Kind, Machine, MachineParameters};
use spillway::{OwnedGraph, OwnedMachine};
use std::fmt::Write;

pub(super) fn tables(text: &mut String) -> Done<()> {
    accumulated(text)?;
    analysed(text)?;
    text.push_str(include_str!("torchao.md"));
    Ok(())
}

/// 65,536 tokens of a model of 8 billion parameters within 16 GiB; 18.429 s were measured.
fn accumulated(text: &mut String) -> Done<()> {
    const MEASURED_S: f64 = 18.429;
    const TOKENS: f64 = 65_536.0;
    let built_in = RTX_5090.machine(0)?;
    let parameters = (*built_in.machine)
        .with_h2d_bytes_per_s(26_000_000_000)
        .with_d2h_bytes_per_s(26_000_000_000)
        .with_host_bytes(112 << 30);
    let machine = built_in.with_machine(Machine::new(parameters)?);
    let works = [false, true].map(|on_host| {
        RTX_5090.work("billions=8,batch=8,sequence=1024,micro=8,optimizer=adamw16", on_host)
    });
    let [work, hosted] = works;
    let work = work?;
    let ways = Ways::of([&work, &hosted?], &machine, 16 << 30)?;
    text.push_str(include_str!("accumulated.md"));
    let mut row = |name: &str, ns: Option<u64>| -> Done<()> {
        let Some(ns) = ns else { return Ok(writeln!(text, "| {name} | – | – |")?) };
        let s = ns as f64 / 1e9;
        Ok(writeln!(text, "| {name} | {s:.2} | {:.0} |", TOKENS / s)?)
    };
    row("compute alone", Some(ways.compute_ns))?;
    row("bound on the device alone", ways.bound)?;
    row("**`auto`**", ways.auto)?;
    for gib in [10, 24] {
        let name = format!("**`auto`**, {gib} GiB");
        row(&name, period_ns(&work, &machine, gib << 30, auto(Host::Never))?)?;
    }
    row("checkpointing in the model, `auto`", ways.by_hand)?;
    row("checkpointing in the model, streamed", ways.streamed)?;
    row("`optimizer-offload`, host of 80 GB/s", ways.zero_offload)?;
    row("**`auto`**, host of 80 GB/s", ways.auto_with_host)?;
    row("ShadowSpill, measured", Some((MEASURED_S * 1e9) as u64))
}

/// The times per layer that the authors of LSP-Offload measured, and the sizes that they give.
fn analysed(text: &mut String) -> Done<()> {
    text.push_str(include_str!("analysed.md"));
    let graph = seven_billion();
    let compute_s = graph.graph()?.compute_ns() as f64 / 1e9;
    for link_gb_s in [10, 20] {
        let machine = OwnedMachine::new(
            format!("{link_gb_s} GB/s"),
            Machine::new(
                MachineParameters::new()
                    .with_device_bytes(24_000_000_000)
                    .with_host_bytes(128 << 30)
                    .with_chunk_bytes(2 << 20)
                    .with_h2d_bytes_per_s(link_gb_s * 1_000_000_000)
                    .with_d2h_bytes_per_s(link_gb_s * 1_000_000_000)
                    .with_transfer_latency_ns(10_000),
            )?,
        );
        let period_s = |strategy| -> Done<String> {
            let ns = period_ns(&graph, &machine, machine.machine.device_bytes, strategy)?;
            let s = ns.map(|ns| ns as f64 / 1e9);
            Ok(s.map_or_else(|| "–".to_owned(), |s| format!("{s:.2} ({:.2})", s / compute_s)))
        };
        let link = link_gb_s as f64;
        writeln!(
            text,
            "| {link_gb_s} GB/s | {:.1} | {} | {:.1} | {} | **{}** |",
            40.0 / link,
            period_s(auto(Host::Never))?,
            28.0 / link,
            period_s(Strategy::OptimizerOffload)?,
            period_s(AUTO)?,
        )?;
    }
    Ok(())
}

/// 14 GB of parameters, 42 GB of optimizer states and 8 GB of activations in 32 equal layers. The
/// size of the gradients between layers is not published, but small.
fn seven_billion() -> OwnedGraph {
    const LAYERS: usize = 32;
    let mut graph = OwnedGraph::new("llama-7b-as-published");
    let mut of_layers = |name, gigabytes: u64, kind| -> Vec<_> {
        let bytes = gigabytes * 1_000_000_000 / LAYERS as u64;
        (0..LAYERS)
            .map(|at| graph.push_tensor(format!("layers.{at}.{name}"), bytes, kind))
            .collect()
    };
    let weights = of_layers("weights", 14, Kind::State);
    let states = of_layers("states", 42, Kind::State);
    let activations = of_layers("activations", 8, Kind::Temporary);
    let gradients = of_layers("gradients", 14, Kind::Temporary);
    let passed = graph.push_tensor("gradient", 1 << 20, Kind::Temporary);
    for at in 0..LAYERS {
        let reads: Vec<_> = at.checked_sub(1).map(|below| activations[below]).into_iter().collect();
        let reads = [reads, vec![weights[at]]].concat();
        let name = format!("layers.{at}.forward");
        let op = graph.push_op(name, 12_200_000, 0, &reads, &[activations[at]]);
        graph.set_repeatable(op);
    }
    for at in (0..LAYERS).rev() {
        let mut reads = vec![activations[at], weights[at]];
        reads.extend((at + 1 < LAYERS).then_some(passed));
        let name = format!("layers.{at}.backward");
        graph.push_op(name, 28_100_000, 0, &reads, &[gradients[at], passed]);
    }
    for at in 0..LAYERS {
        let updated = [weights[at], states[at]];
        let reads = [gradients[at], weights[at], states[at]];
        let op = graph.push_op(format!("layers.{at}.update"), 1_000_000, 0, &reads, &updated);
        graph.set_host_ns(op, 60_000_000);
    }
    graph
}
