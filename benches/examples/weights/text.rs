//! The page of figures.

use super::extras::{Extra, Repeated};
use super::partition::Instance;
use super::{Bounds, Outcome, Study};
use std::fmt::Write;

const HEAD: &str = "\
# Weight offloading on chains of layers

This page repeats *Weight Offloading Strategies for Training Large DNN Models* (Beaumont, Eyraud-Dubois,
Shilova & Zhao) on the fifteen chains of the paper. It is written by

<!-- not run: it measures the whole page -->

    cargo run --release -p spillway-benches --example weights -- CHAINS docs/research

CHAINS is a folder with the chains.

- *Greedy*, *Greedy\\** (without the discount) and *L2L* are the published cycles, with a barrier at
  the end of each.
- *Whole* (`weights`), *parts* (`auto`, `repeats=no`) and *with repeats* (`auto`) are periods of
  Spillway's plans. These plans also upload the input in every iteration. Plans with repeats launch
  forward ops again.
- In the paper's model, and in the column *no input*, the input is already on the device and costs
  nothing.

![Period over compute by bandwidth and by memory](weights.svg)

## Table 1

Figures are milliseconds; *Σ u* is compute. The last two columns are planning times, on shared cores.
The figures of the published cycles equal the printed figures of the paper, except L2L on bert-96-b32
(printed 14230) and Greedy\\* on bert-96-b16 (printed 6085).

| chain | Σ u | Greedy | L2L | Greedy\\* | whole | parts | planned as published | whole |
|---|--:|--:|--:|--:|--:|--:|--:|--:|
";

const BANDWIDTH: &str = "
## Bandwidth (figure 4)

Figures are milliseconds. *Idle* is the idle time without the discount, divided by the idle time with
it. *Bound, whole* is the paper's integer program for whole weights, solved to 0.1 % on two shared
cores; *solved in* gives the seconds. *Bound, parts* is the relaxation of this program for parts. Both
bounds assume that the input is on the device, as the column *no input* does. If *parts* is below the
bound for whole weights, no schedule that moves whole weights is as fast. The bounds need a solver:

<!-- not run: it measures the whole page -->

    lp-bound/with-highs cargo run --release -p spillway-benches --features highs \\
        --example weights -- CHAINS docs/research

";

const MEMORY: &str = "
## Memory

Figures are periods divided by compute at 12 GB/s, from the smallest memory to the memory that
holds everything.

| GB | Greedy | Greedy\\* | L2L | whole | parts |
|--:|--:|--:|--:|--:|--:|
";

const EXTRAS: &str = "
## Optimizer states and activations

Figures are periods divided by compute of `gpt-2-38-b32`. The optimizer states of a weight have the
size of the weight (momentum) or twice that size (Adam). In all columns, the same selection offloads
these states between backward ops. *With activations* (`activations=yes`) and *parts* may also offload
the output of a layer until the backward op of the next layer. A dash means that memory is too small for
all activations and the states of one op.

| optimizer | GB/s | GB | whole | with activations | parts | with repeats |
|---|--:|--:|--:|--:|--:|--:|
";

const REPEATED: &str = "
Repeats gain nothing on this chain. A repeat of a layer takes 83 ms. A transfer of its activation takes
4 ms at 12 GB/s and 12 ms at 4 GB/s.

## Activations made again

Figures are periods divided by compute, for all chains, within 15 % of the memory that each chain needs
in-core. *With activations* is `weights` with `activations=yes`. `checkpoint` moves only inputs, so it
needs memory for all weights. No chain gains from repeats.

| chain | GB/s | GB | with activations | checkpoint | checkpoint-offload | parts | with repeats |
|---|--:|--:|--:|--:|--:|--:|--:|
";

const PARTITION: &str = "
## 3-partition

These are the chains of the paper's theorem 1. With whole weights, a chain can run without idle time if
and only if its numbers form triples of the same sum, here 20. Figures are idle time in percent of
compute. *Parts* keeps the given order of the ops and never has idle time, with or without triples: the
problem is hard only if weights cannot be divided.

| numbers | triples | Greedy | whole | parts |
|---|---|--:|--:|--:|
";

fn ms(ns: u64) -> u64 {
    (ns + 500_000) / 1_000_000
}

fn planned(ns: u64) -> f64 {
    ns as f64 / 1e6
}

pub(super) fn page(
    rows: &[(&str, Outcome)],
    studies: &[(&str, Vec<Study>)],
    (name, sweep): (&str, &[(u64, Outcome)]),
) -> String {
    let mut page = HEAD.to_owned();
    let mut line = |text: String| {
        page += &text;
        page.push('\n');
    };
    for (name, o) in rows {
        let [sum, greedy, l2l, star] =
            [o.sum, o.published, o.layer_to_layer, o.undiscounted].map(ms);
        let [whole, parts] = [o.whole, o.parts].map(ms);
        let [first, second] = [o.published_planning, o.whole_planning].map(planned);
        line(format!(
            "| {name} | {sum} | {greedy} | {l2l} | {star} | {whole} | {parts} | {first:.1} ms | \
             {second:.1} ms |"
        ));
    }
    page += BANDWIDTH;
    for (name, study) in studies {
        let head = "| GB/s | Greedy | Greedy\\* | idle | L2L | whole | parts | parts, no \
                    input | bound, whole | solved in | bound, parts |";
        // Writing to a string does not fail.
        let _ = writeln!(page, "`{name}`, {} ms of compute:\n\n{head}", ms(study[0].1.sum));
        page += &("|--:".repeat(11) + "|\n");
        for (gigabytes, o, bounds) in study {
            let bounds = bounds.as_ref().map_or("– | – | –".to_owned(), |bounds| {
                let Bounds { whole, parts, took_s } = bounds;
                format!("{} | {took_s:.1} s | {}", ms(*whole), ms(*parts))
            });
            let [greedy, star, l2l] = [o.published, o.undiscounted, o.layer_to_layer].map(ms);
            let [whole, parts, bare] = [o.whole, o.parts, o.parts_without_input].map(ms);
            let idle = undiscounted_idle(o);
            let _ = writeln!(
                page,
                "| {gigabytes} | {greedy} | {star} | {idle:.2} × | {l2l} | {whole} | {parts} | \
                 {bare} | {bounds} |"
            );
        }
        page.push('\n');
    }
    page += &compare_with_claims(studies);
    page += MEMORY;
    for (device_bytes, o) in sweep {
        let over = |ns: u64| ns as f64 / o.sum as f64;
        let [greedy, star, l2l] = [o.published, o.undiscounted, o.layer_to_layer].map(over);
        let [whole, parts] = [o.whole, o.parts].map(over);
        let gigabytes = *device_bytes as f64 / 1e9;
        let _ = writeln!(
            page,
            "| {gigabytes:.2} | {greedy:.4} | {star:.4} | {l2l:.4} | {whole:.4} | {parts:.4} |"
        );
    }
    let _ = writeln!(page, "\nThe chain is `{name}`.");
    page
}

/// Compares with the claims of the paper's section 7.2.
fn compare_with_claims(studies: &[(&str, Vec<Study>)]) -> String {
    let outcomes = || studies.iter().flat_map(|(_, study)| study.iter());
    let fast = outcomes().filter(|(gigabytes, ..)| *gigabytes >= 4.0);
    let idle = fast.map(|(_, o, _)| (o.published - o.sum) as f64 / o.sum as f64);
    let (idle, ratio) = (
        idle.fold(0.0, f64::max),
        outcomes().map(|(_, o, _)| undiscounted_idle(o)).fold(0.0, f64::max),
    );
    format!(
        "From 4 GB/s on, the paper finds almost no idle time. Here the integer program has no idle time, \
         and\nGreedy has up to {:.1} % of compute. Without the discount, the paper finds up to five times \
         the idle\ntime. Here it is up to {ratio:.2} times.\n",
        100.0 * idle
    )
}

/// The idle time of the published greedy strategy without the discount, over its idle time with it.
fn undiscounted_idle(o: &Outcome) -> f64 {
    (o.undiscounted - o.sum) as f64 / (o.published - o.sum).max(1) as f64
}

/// The part on optimizers and activations.
pub(super) fn extras(extras: &[Extra]) -> String {
    let mut page = EXTRAS.to_owned();
    for Extra { optimizer, gigabytes_per_s, device_bytes, over } in extras {
        let (gigabytes, over) = (*device_bytes as f64 / 1e9, cells(over));
        let _ = writeln!(page, "| {optimizer} | {gigabytes_per_s} | {gigabytes:.1} | {over} |");
    }
    page
}

fn cells(over: &[Option<f64>]) -> String {
    let cells = over.iter().map(|over| over.map_or("–".to_owned(), |over| format!("{over:.4}")));
    cells.collect::<Vec<_>>().join(" | ")
}

/// The part on repeats.
pub(super) fn repeated(repeated: &[Repeated]) -> String {
    let mut page = REPEATED.to_owned();
    for Repeated { name, gigabytes_per_s, device_bytes, over } in repeated {
        let (gigabytes, over) = (*device_bytes as f64 / 1e9, cells(over));
        let _ = writeln!(page, "| {name} | {gigabytes_per_s} | {gigabytes:.2} | {over} |");
    }
    page
}

/// The part on theorem 1.
pub(super) fn partitions(partitions: &[(&Instance, [f64; 3])]) -> String {
    let mut page = PARTITION.to_owned();
    for (instance, idle) in partitions {
        let numbers: Vec<_> = instance.numbers.iter().map(u64::to_string).collect();
        let exists = if instance.is_positive { "yes" } else { "no" };
        let [greedy, whole, parts] = idle.map(|idle| 100.0 * idle);
        let _ = writeln!(
            page,
            "| {} | {exists} | {greedy:.2} | {whole:.2} | {parts:.2} |",
            numbers.join(" ")
        );
    }
    page
}
