//! Varies the chunk size, with chunks mapped during the run and with fixed objects.

use crate::Result;
use crate::chart::{COLOURS, Line, Panel, draw};
use crate::markdown::{cell, gib, row, speed, table};
use crate::table1::{machine, mapped};
use crate::ways::{ONCE, WINDOW, held_up_ns, in_placements, simulate};
use crate::work::{self, V100};
use planner_core::planner::Strategy;
use spillway::planning;
use std::path::Path;
use workloads::{OwnedGraph, OwnedPlan};

const SIZES_MIB: [u64; 10] = [2, 4, 8, 16, 24, 40, 64, 80, 120, 160];
const BATCHES: [u64; 3] = [256, 928, 1440];

/// One batch with chunks of one size.
struct Cell {
    chunk_mib: u64,
    host_ns: Option<u64>,
    held_up_ns: Option<u64>,
    chunks_mapped: Option<u64>,
    /// The wasted memory at the peak of `window`.
    waste_bytes: Option<u64>,
    /// The periods of `window` and `auto`, if objects can be fixed.
    placed_ns: [Option<u64>; 2],
}

/// Runs all sizes and writes `chunks.md` and `chunks.svg`.
pub(crate) fn write(folder: &Path) -> Result<()> {
    let (mut tables, mut panels) = (String::new(), Vec::new());
    for batch in BATCHES {
        let work = work::resnet(batch, V100, work::BYTES_PERCENT)?;
        let mut cells = Vec::new();
        for chunk_mib in SIZES_MIB {
            eprintln!("batch {batch}: chunks of {chunk_mib} MiB");
            cells.push(measure(&work, chunk_mib)?);
        }
        tables += &format!("\n## Batch {batch}\n\n{}", render(batch, &cells));
        panels.push(panel(batch, &cells));
    }
    std::fs::write(folder.join("chunks.md"), TEXT.replace("{tables}", &tables))?;
    draw(&folder.join("chunks.svg"), panels.len(), (400, 320), &panels)
}

fn measure(work: &OwnedGraph, chunk_mib: u64) -> Result<Cell> {
    let (graph, machine) = (work.graph()?, machine(chunk_mib << 20)?);
    let mapped = mapped(work, machine.chunk_bytes)?;
    let waste_bytes = |plan: &OwnedPlan| -> Result<u64> {
        let schedule = planning::schedule(&graph, &machine, &plan.plan())?;
        let schedule = schedule.schedule();
        Ok(planning::predict(&graph, &machine, &plan.plan(), &schedule)?.1.waste_bytes())
    };
    let held_up_ns = |plan: &OwnedPlan| held_up_ns(work, &machine, plan);
    let placed_ns = |strategy: Strategy| -> Result<Option<u64>> {
        let plan = in_placements(&graph, &machine, strategy)?;
        let plan = plan.filter(|plan| plan.placements.is_some());
        plan.map(|plan| Ok(simulate(&graph, &machine, &plan)?.period_ns)).transpose()
    };
    let plan = mapped.as_ref().map(|(plan, _)| plan);
    let simulated = mapped.as_ref().map(|(_, simulated)| simulated);
    Ok(Cell {
        chunk_mib,
        host_ns: simulated.map(|simulated| simulated.period_ns),
        held_up_ns: plan.map(held_up_ns).transpose()?,
        chunks_mapped: simulated.map(|simulated| simulated.chunks_mapped),
        waste_bytes: plan.map(waste_bytes).transpose()?,
        placed_ns: [placed_ns(WINDOW)?, placed_ns(ONCE)?],
    })
}

fn render(batch: u64, cells: &[Cell]) -> String {
    let rows = cells.iter().map(|of| {
        let images = |ns: Option<u64>| cell(ns, |ns| format!("{:.0}", speed(batch, ns)));
        let cells = [
            cell(of.chunks_mapped, |chunks| chunks.to_string()),
            cell(of.waste_bytes, |bytes| format!("{:.2}", gib(bytes))),
            images(of.host_ns),
            images(of.held_up_ns),
            images(of.placed_ns[0]),
            images(of.placed_ns[1]),
        ];
        row(&of.chunk_mib.to_string(), cells)
    });
    let head = [
        "chunk, MiB",
        "chunks mapped an iteration",
        "idle at the peak, GiB",
        LINES[0],
        LINES[1],
        LINES[2],
        LINES[3],
    ];
    table(&head.map(str::to_owned), &rows.collect::<Vec<_>>())
}

const LINES: [&str; 4] = [
    "window, host maps",
    "window, mapping holds up compute",
    "window, placements",
    "auto, placements",
];

fn panel(batch: u64, cells: &[Cell]) -> Panel {
    let values: [fn(&Cell) -> Option<u64>; 4] = [
        |cell| cell.host_ns,
        |cell| cell.held_up_ns,
        |cell| cell.placed_ns[0],
        |cell| cell.placed_ns[1],
    ];
    let lines = LINES.iter().zip(values).zip(&COLOURS[1..]).map(|((name, value), &colour)| {
        let points = cells
            .iter()
            .filter_map(|cell| Some((cell.chunk_mib as f64, speed(batch, value(cell)?))));
        Line { name: (*name).to_owned(), colour, dashed: false, points: points.collect() }
    });
    let title = format!("batch {batch}");
    Panel { title, x: "chunk, MiB", y: "images/s", lines: lines.collect() }
}

const TEXT: &str = "\
# The size of chunks

<!-- not run: it measures the whole page -->

    cargo run --release -p spillway-benches --example window_paper -- chunks

writes this file and the image. The work is the calibrated ResNet-50 of [table1.md](table1.md).
That page also describes the ways to map. Mapping and unmapping a chunk takes 106 µs together,
whatever its size. Figures under the names of strategies are images per second. *Idle* is the mapped
memory that holds nothing, at the moment when `window` has the most memory mapped. `auto` launches
each op once (`--set repeats=no`).

![Images per second over the size of chunks](chunks.svg)
{tables}
- *Mapped during the run*: chunks of 2 MiB make `window` four to seven times slower, because each
  iteration needs tens of thousands of calls. If mapping holds up compute, speed rises up to chunks of
  40 to 80 MiB and hardly rises beyond that. Larger chunks also leave more memory idle: 3.1 GiB with
  chunks of 120 MiB at batch 256. That is why 40 MB is a good choice.
- *With fixed objects*, nothing is mapped once the plan runs. `auto` is as fast with chunks of 2 MiB
  as with larger ones. Larger chunks cost a little at large batches. `window` tries six sizes of its
  window, but idle memory still slows it down at batch 256.
- If the host maps, it is the bottleneck up to chunks of 8 MiB: the period is the time of its calls.
  With larger chunks the host runs ahead of the device. From 40 MiB on, the plan is at most 3 % slower
  than with fixed objects.
";
