//! Figures 4 and 5: speed and memory of other networks over the batch.

use crate::Result;
use crate::chart::{COLOURS, Line, Panel, draw};
use crate::markdown::{cell, gib, row, speed, table};
use crate::table1::machine;
use crate::ways::{
    ONCE, PAPER_CHUNK_BYTES, WINDOW, held_up_ns, in_blocks, in_core_ns, in_pages, in_placements,
    simulate,
};
use crate::work::{largest, v100};
use planner_core::planner::Request;
use spillway::planning;
use std::path::Path;
use workloads::OwnedGraph;
use zoo::models;

/// A network, its largest published batch in-core, and the factor by which the published schedule
/// enlarges this batch.
struct Network {
    model: &'static str,
    in_core: u64,
    schedule: f64,
}

const NETWORKS: [Network; 3] = [
    Network { model: "densenet121", in_core: 512, schedule: 1.5 },
    Network { model: "pix2pixhd", in_core: 4, schedule: 4.0 },
    Network { model: "deeplabv3plus", in_core: 6, schedule: 5.3 },
];

const WAYS: [&str; 4] =
    ["in-core", "window, caching allocator", "window, 40 MiB mapped", "auto, placements"];

/// The period and the memory of one of [`WAYS`].
#[derive(Clone, Copy)]
struct Run {
    period_ns: u64,
    taken_bytes: u64,
}

/// Runs all networks and writes `networks.md` and `networks.svg`.
pub(crate) fn write(folder: &Path) -> Result<()> {
    let (mut batches, mut tables) = (Vec::new(), String::new());
    let (mut speeds, mut memory) = (Vec::new(), Vec::new());
    for network in NETWORKS {
        let most = most(network.model)?;
        batches.extend(ratios(&network, most));
        let mut cells = Vec::new();
        for batch in tried(most) {
            eprintln!("{}: batch {batch}", network.model);
            cells.push((batch, measure(&generate(network.model, batch)?)?));
        }
        tables += &format!("\n## `{}`\n\n{}", network.model, render(&cells));
        speeds.push(panel(network.model, "images/s", &cells, |batch, run| {
            speed(batch, run.period_ns)
        }));
        memory.push(panel(network.model, "GiB", &cells, |_, run| gib(run.taken_bytes)));
    }
    let head = ["largest batch", WAYS[0], WAYS[1], WAYS[2], WAYS[3]].map(str::to_owned);
    let text = TEXT.replace("{batches}", &table(&head, &batches)).replace("{tables}", &tables);
    std::fs::write(folder.join("networks.md"), text)?;
    speeds.extend(memory);
    draw(&folder.join("networks.svg"), NETWORKS.len(), (400, 280), &speeds)
}

fn generate(model: &str, batch: u64) -> Result<OwnedGraph> {
    Ok(models::generate(&format!("{model}:batch={batch}"))?)
}

/// The largest batch in each way.
fn most(model: &str) -> Result<[u64; 4]> {
    let progress = |way: &str, batch| eprintln!("{model}, {way}: does batch {batch} fit?");
    Ok([
        largest(|batch| Ok(in_core_ns(&generate(model, batch)?.graph()?, &v100()?)?.is_some()))?,
        largest(|batch| {
            progress(WAYS[1], batch);
            Ok(in_blocks(&generate(model, batch)?.graph()?, &v100()?, WINDOW)?.is_some())
        })?,
        largest(|batch| {
            progress(WAYS[2], batch);
            let machine = machine(PAPER_CHUNK_BYTES)?;
            Ok(in_pages(&generate(model, batch)?.graph()?, &machine, WINDOW)?.is_some())
        })?,
        largest(|batch| {
            let (work, machine) = (generate(model, batch)?, v100()?);
            let request = Request { graph: &work.graph()?, machine: &machine, budget_bytes: 0 };
            Ok(planning::min_feasible(&request, ONCE)?.0 <= machine.device_bytes)
        })?,
    ])
}

/// The largest batches and some in between.
fn tried(most: [u64; 4]) -> Vec<u64> {
    let last = most.into_iter().max().unwrap_or(1);
    let between = (1..=8).map(|eighths| (last * eighths / 8).max(1));
    let mut batches: Vec<_> = most.into_iter().chain(between).collect();
    batches.sort_unstable();
    batches.dedup();
    batches
}

fn measure(work: &OwnedGraph) -> Result<[Option<Run>; 4]> {
    let graph = work.graph()?;
    let in_core = in_core_ns(&graph, &v100()?)?;
    let in_core_bytes = planning::in_core_peak_bytes(&graph, &v100()?)?;
    let blocks = in_blocks(&graph, &v100()?, WINDOW)?;
    let large = machine(PAPER_CHUNK_BYTES)?;
    let mapped = in_pages(&graph, &large, WINDOW)?.map(|plan| -> Result<_> {
        let period_ns = held_up_ns(work, &large, &plan)?;
        Ok(Run { period_ns, taken_bytes: plan.predicted.peak_bytes })
    });
    let small = machine(2 << 20)?;
    let placed = in_placements(&graph, &small, ONCE)?.map(|plan| -> Result<_> {
        let period_ns = simulate(&graph, &small, &plan)?.period_ns;
        Ok(Run { period_ns, taken_bytes: plan.predicted.peak_bytes })
    });
    Ok([
        in_core.map(|period_ns| Run { period_ns, taken_bytes: in_core_bytes }),
        blocks.map(|of| Run { period_ns: of.period_ns, taken_bytes: of.taken_bytes }),
        mapped.transpose()?,
        placed.transpose()?,
    ])
}

fn ratios(network: &Network, most: [u64; 4]) -> [Vec<String>; 3] {
    let [in_core, blocks, ..] = most.map(|batch| batch as f64);
    let times = |of: f64, by: f64| format!("{:.1} times", of / by);
    let [_, _, mapped, auto] = most.map(|batch| batch as f64);
    [
        row(&format!("`{}`", network.model), most.map(|batch| batch.to_string())),
        row(
            "over the one before",
            ["".to_owned(), times(blocks, in_core), times(mapped, blocks), times(auto, mapped)],
        ),
        row(
            "*published*",
            [
                format!("*{}*", network.in_core),
                format!("*{:.1} times*", network.schedule),
                "*1.5 to 2 times*".to_owned(),
                String::new(),
            ],
        ),
    ]
}

fn render(cells: &[(u64, [Option<Run>; 4])]) -> String {
    let rows = cells.iter().map(|(batch, runs)| {
        let show = |run: &Option<Run>| {
            cell(*run, |run| {
                format!("{:.2} / {:.1}", speed(*batch, run.period_ns), gib(run.taken_bytes))
            })
        };
        row(&batch.to_string(), runs.iter().map(show))
    });
    let head = ["batch", WAYS[0], WAYS[1], WAYS[2], WAYS[3]].map(str::to_owned);
    table(&head, &rows.collect::<Vec<_>>())
}

fn panel(
    model: &str,
    y: &'static str,
    cells: &[(u64, [Option<Run>; 4])],
    value: impl Fn(u64, Run) -> f64,
) -> Panel {
    let lines = WAYS.iter().zip(COLOURS).enumerate().map(|(at, (name, colour))| {
        let points =
            cells.iter().filter_map(|&(batch, runs)| Some((batch as f64, value(batch, runs[at]?))));
        Line { name: (*name).to_owned(), colour, dashed: false, points: points.collect() }
    });
    Panel { title: model.to_owned(), x: "batch", y, lines: lines.collect() }
}

const TEXT: &str = "\
# Figures 4 and 5: other networks

<!-- not run: it measures the whole page -->

    cargo run --release -p spillway-benches --example window_paper -- networks

writes this file and the image. The networks are the generated ones ([models.md](../models.md)). The
device has 16 GiB, and links have 50 GB/s each way. The times of ops come from a roofline and are not
calibrated. `auto` launches each op once (`--set repeats=no`).

![Speed and memory over the batch](networks.svg)

## Largest batches

{batches}
- *In-core*: the paper does not say which DenseNet it used. 512 images in 16 GiB leave 34 MB for each
  image, but a DenseNet-121 needs 90. So for this network only ratios of batches can be compared.
  DeepLabv3+ fits 9 images here and 6 in the paper. pix2pixHD fits as many as published.
- *The caching allocator* lets batches grow more than published. Here every budget that fits counts,
  however slow its plan; budgets go down to the smallest in steps of 128 MiB. Neither workspaces
  nor transfers in flight take memory. Some batches below the largest may not fit.
- *Virtual addresses* allow batches 1.3 to 1.6 times as large as the caching allocator does. The paper
  has 1.5 to 2 times. With virtual addresses, only the operands of the largest op have to fit.
- `auto` fits a few more images, since its chunks are smaller.

## Speed and memory

Each cell gives images per second, and the memory taken in GiB. For *40 MiB mapped*, mapping holds up
compute for 106 µs per chunk.
{tables}
- `auto` is as fast as in-core if everything fits. Otherwise it is the fastest, except for pix2pixHD
  at batch 15, where `window` is faster by less than 0.7 %.
- As in figure 5, plans with chunks stay within the device's memory at every batch.
- Up to about 20 images of pix2pixHD, compute hides the transfers. The paper reports that larger
  batches ran faster than in-core. The cause lies in the kernels, which a roofline does not model.
";
