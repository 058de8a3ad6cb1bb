//! Figure 3: budgets, and the memory that runs take.

use crate::Result;
use crate::chart::{COLOURS, Line, Panel, draw};
use crate::markdown::{cell, gib, row, table};
use crate::table1::machine;
use crate::ways::{
    ONCE, PAPER_CHUNK_BYTES, WINDOW, blocks_taken, in_blocks, in_pages, in_placements,
};
use crate::work::{self, BATCHES, V100};
use std::path::Path;

/// A budget, and the memory that a run takes with it, in bytes.
#[derive(Clone, Copy)]
struct Use {
    budget_bytes: u64,
    taken_bytes: u64,
}

/// One batch.
struct Cell {
    batch: u64,
    /// With contiguous blocks, with chunks of 40 MiB, and with chunks of 2 MiB and fixed objects.
    uses: [Option<Use>; 3],
    /// The memory of contiguous blocks for budgets of 8 GiB and 16 GiB on an unlimited device.
    unlimited: [Option<u64>; 2],
}

/// Runs all batches and writes `budgets.md` and `budgets.svg`.
pub(crate) fn write(folder: &Path) -> Result<()> {
    let mut cells = Vec::new();
    for batch in BATCHES {
        eprintln!("batch {batch}");
        cells.push(measure(batch)?);
    }
    std::fs::write(folder.join("budgets.md"), TEXT.replace("{table}", &render(&cells)))?;
    draw(&folder.join("budgets.svg"), 3, (320, 280), &panels(&cells))
}

fn measure(batch: u64) -> Result<Cell> {
    let work = work::resnet(batch, V100, work::BYTES_PERCENT)?;
    let graph = work.graph()?;
    let device_bytes = work::v100()?.device_bytes;
    let blocks = in_blocks(&graph, &work::v100()?, WINDOW)?;
    let blocks =
        blocks.map(|of| Use { budget_bytes: of.budget_bytes, taken_bytes: of.taken_bytes });
    let mapped = in_pages(&graph, &machine(PAPER_CHUNK_BYTES)?, WINDOW)?;
    let placed = in_placements(&graph, &machine(2 << 20)?, ONCE)?;
    let all = |taken_bytes| Use { budget_bytes: device_bytes, taken_bytes };
    let uses = [
        blocks,
        mapped.map(|plan| all(plan.predicted.peak_bytes)),
        placed.map(|plan| all(plan.predicted.peak_bytes)),
    ];
    let unlimited = [
        blocks_taken(&graph, &work::v100()?, device_bytes / 2)?,
        blocks_taken(&graph, &work::v100()?, device_bytes)?,
    ];
    Ok(Cell { batch, uses, unlimited })
}

fn render(cells: &[Cell]) -> String {
    let rows = cells.iter().map(|of| {
        let show = |use_of: &Option<Use>| {
            cell(*use_of, |one| {
                format!("{:.2} / {:.2}", gib(one.budget_bytes), gib(one.taken_bytes))
            })
        };
        let unlimited = |&bytes: &Option<u64>| cell(bytes, |bytes| format!("{:.2}", gib(bytes)));
        row(
            &of.batch.to_string(),
            of.uses.iter().map(show).chain(of.unlimited.iter().map(unlimited)),
        )
    });
    let head = [
        "batch",
        WAYS[0],
        WAYS[1],
        WAYS[2],
        "best fit takes for 8 GiB",
        "best fit takes for 16 GiB",
    ];
    table(&head.map(str::to_owned), &rows.collect::<Vec<_>>())
}

const WAYS: [&str; 3] =
    ["window, best fit", "window, 40 MiB chunks", "auto, 2 MiB chunks, placements"];

fn panels(cells: &[Cell]) -> Vec<Panel> {
    let most = cells.iter().map(|cell| cell.batch).max().unwrap_or(1) as f64;
    WAYS.iter()
        .enumerate()
        .map(|(at, title)| {
            let line = |name: &str, colour, bytes: fn(Use) -> u64| {
                let points = cells
                    .iter()
                    .filter_map(|cell| Some((cell.batch as f64, gib(bytes(cell.uses[at]?)))));
                Line { name: name.to_owned(), colour, dashed: false, points: points.collect() }
            };
            let lines = vec![
                line("largest budget that fits", COLOURS[1], |one| one.budget_bytes),
                line("memory used", COLOURS[3], |one| one.taken_bytes),
                Line {
                    name: "memory of the device".to_owned(),
                    colour: COLOURS[2],
                    dashed: true,
                    points: vec![(0.0, 16.0), (most, 16.0)],
                },
            ];
            Panel { title: (*title).to_owned(), x: "batch", y: "GiB", lines }
        })
        .collect()
}

const TEXT: &str = "\
# Figure 3: budgets and the memory used

<!-- not run: it measures the whole page -->

    cargo run --release -p spillway-benches --example window_paper -- budgets

writes this file and the image. The work is the calibrated ResNet-50 of [table1.md](table1.md).

![Budgets and memory](budgets.svg)

Each cell gives the largest budget with which a run fits 16 GiB, and the device memory that this
run takes, in GiB. *Best fit* is the caching allocator; its budgets are tried in steps of 128 MiB. The
last two columns give the memory that it takes for budgets of 8 and 16 GiB on a larger device. `auto`
launches each op once (`--set repeats=no`).

{table}
- With chunks, the budget can be the whole device at every batch, and no plan takes more than its
  budget. `window` takes less if a smaller window is faster. `auto` takes all of its budget from
  batch 256 on.
- With contiguous blocks, budgets must be smaller from batch 1120 on, by up to 7 %.
- The paper says that at batch 928 a budget of 8 GB fills 16 GB. Here such a budget fills 9.1. This
  network has few sizes, so blocks are reused unchanged. The simulation also leaves out two kinds of
  memory: the workspaces of convolutions, which the published schedule does not count either, and
  memory that is held until a copy ends. Networks with more sizes lose half of the device, as
  published: see [fragmentation.md](../fragmentation.md).
";
