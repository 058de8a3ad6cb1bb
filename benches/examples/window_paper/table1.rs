//! Table 1: images per second of ResNet-50 over the batch.

use crate::chart::{COLOURS, Line, Panel, draw};
use crate::markdown::{cell, percent, row, speed, table};
use crate::ways::{
    AUTO, LMS, ONCE, PAPER_CHUNK_BYTES, Simulated, WINDOW, bound_ns, bound_with_repeats_ns,
    held_up_ns, in_blocks, in_core_ns, in_pages, in_placements, simulate,
};
use crate::work::{self, BATCHES, P100, Published, V100};
use crate::{Result, calibration};
use planner_core::planner::{Request, Strategy};
use planner_core::{Graph, Machine};
use spillway::planning;
use std::path::Path;
use workloads::{OwnedGraph, OwnedPlan};

/// A row: the periods by batch, and the published speeds.
struct Row {
    name: &'static str,
    published: Option<Published>,
    measure: fn(&OwnedGraph) -> Result<Option<u64>>,
    speed: work::Speed,
    periods_ns: Vec<Option<u64>>,
}

const fn of_v100(
    name: &'static str,
    published: Option<Published>,
    measure: fn(&OwnedGraph) -> Result<Option<u64>>,
) -> Row {
    Row { name, published, measure, speed: V100, periods_ns: Vec::new() }
}

const EACH_ONCE: &str = "`auto`, each op once";
const BOUND_ONCE: &str = "bound, given order, each op once";
const WITH_REPEATS: &str = "`auto`, with repeats";
const BOUND_WITH_REPEATS: &str = "bound with repeats, given order";

fn rows() -> [Row; 12] {
    [
        of_v100("in-core", Some(work::IN_CORE), |work| in_core_ns(&work.graph()?, &work::v100()?)),
        of_v100("`window`, caching allocator", Some(work::SCHEDULE), |work| {
            let largest = in_blocks(&work.graph()?, &work::v100()?, WINDOW)?;
            Ok(largest.map(|largest| largest.period_ns))
        }),
        of_v100("`window`, 40 MiB mapped by the host", Some(work::VIRTUAL), |work| {
            mapped_ns(work, PAPER_CHUNK_BYTES)
        }),
        of_v100("`window`, 40 MiB, mapping holds up compute", Some(work::VIRTUAL), |work| {
            let machine = machine(PAPER_CHUNK_BYTES)?;
            let plan = in_pages(&work.graph()?, &machine, WINDOW)?;
            plan.map(|plan| held_up_ns(work, &machine, &plan)).transpose()
        }),
        of_v100("`window`, 2 MiB mapped by the host", None, |work| mapped_ns(work, 2 << 20)),
        of_v100("`lms`, caching allocator", None, |work| {
            let largest = in_blocks(&work.graph()?, &work::v100()?, LMS)?;
            Ok(largest.map(|largest| largest.period_ns))
        }),
        of_v100(EACH_ONCE, None, |work| placed_ns(&work.graph()?, ONCE)),
        of_v100(BOUND_ONCE, None, |work| bound_ns(&work.graph()?, &work::v100()?)),
        of_v100(WITH_REPEATS, None, |work| placed_ns(&work.graph()?, AUTO)),
        of_v100(BOUND_WITH_REPEATS, None, |work| {
            bound_with_repeats_ns(&work.graph()?, &work::v100()?)
        }),
        Row {
            speed: P100,
            ..of_v100("P100, in-core", Some(work::P100_IN_CORE), |work| {
                in_core_ns(&work.graph()?, &work::p100()?)
            })
        },
        Row {
            speed: P100,
            ..of_v100("P100, `lms`, caching allocator", Some(work::P100_LMS), |work| {
                let largest = in_blocks(&work.graph()?, &work::p100()?, LMS)?;
                Ok(largest.map(|largest| largest.period_ns))
            })
        },
    ]
}

/// The V100 with chunks of this size. A chunk of any size takes the same time to map.
pub(crate) fn machine(chunk_bytes: u64) -> Result<Machine> {
    let (map_ns_per_chunk, unmap_ns_per_chunk) = (work::MAPPING_NS / 2, work::MAPPING_NS / 2);
    let v100 = work::v100()?;
    let chunks = (*v100)
        .with_chunk_bytes(chunk_bytes)
        .with_map_ns_per_chunk(map_ns_per_chunk)
        .with_unmap_ns_per_chunk(unmap_ns_per_chunk);
    Ok(Machine::new(chunks)?)
}

/// The plan of `window` with chunks of this size, and its run on the simulated device, on which the
/// host maps chunks.
pub(crate) fn mapped(
    work: &OwnedGraph,
    chunk_bytes: u64,
) -> Result<Option<(OwnedPlan, Simulated)>> {
    let (graph, machine) = (work.graph()?, machine(chunk_bytes)?);
    let Some(plan) = in_pages(&graph, &machine, WINDOW)? else { return Ok(None) };
    let simulated = simulate(&graph, &machine, &plan)?;
    Ok(Some((plan, simulated)))
}

fn mapped_ns(work: &OwnedGraph, chunk_bytes: u64) -> Result<Option<u64>> {
    Ok(mapped(work, chunk_bytes)?.map(|(_, simulated)| simulated.period_ns))
}

/// The period of `auto` with fixed objects on the simulated device.
fn placed_ns(graph: &Graph<'_>, strategy: Strategy) -> Result<Option<u64>> {
    let machine = machine(2 << 20)?;
    let Some(plan) = in_placements(graph, &machine, strategy)? else { return Ok(None) };
    let simulated = simulate(graph, &machine, &plan)?;
    if plan.placements.is_some() && simulated.map_calls > 0 {
        return Err("a plan with fixed objects maps".into());
    }
    Ok(Some(simulated.period_ns))
}

/// Runs all rows and writes `table1.md` and `table1.svg`.
pub(crate) fn write(folder: &Path) -> Result<()> {
    let calibration = calibration::render()?;
    let mut rows = rows();
    for row in &mut rows {
        for batch in BATCHES {
            eprintln!("{}: batch {batch}", row.name);
            let work = work::resnet(batch, row.speed, work::BYTES_PERCENT)?;
            row.periods_ns.push((row.measure)(&work)?);
        }
    }
    let text = TEXT
        .replace("{calibration}", &calibration)
        .replace("{speeds}", &speeds(&rows))
        .replace("{gaps}", &gaps(&rows))
        .replace("{largest}", &largest()?);
    std::fs::write(folder.join("table1.md"), text)?;
    picture(&folder.join("table1.svg"), &rows)
}

fn head(name: &str) -> Vec<String> {
    row(name, BATCHES.iter().map(u64::to_string))
}

fn speeds(rows: &[Row]) -> String {
    let mut lines = Vec::new();
    for of in rows {
        let measured = BATCHES.iter().zip(&of.periods_ns);
        let measured: Vec<_> = measured.map(|(&batch, ns)| ns.map(|ns| speed(batch, ns))).collect();
        lines.push(row(
            of.name,
            measured.iter().map(|&speed| cell(speed, |speed| format!("{speed:.0}"))),
        ));
        let Some(published) = of.published else { continue };
        lines.push(row(
            &format!("*published: {}*", published.name),
            published.per_second.map(|one| cell(one, |one| format!("*{one}*"))),
        ));
        let differences = measured.iter().zip(published.per_second);
        let difference = |(&ours, theirs): (&Option<f64>, Option<u64>)| {
            cell(ours.zip(theirs), |(ours, theirs)| percent(ours, theirs as f64))
        };
        lines.push(row("*difference*", differences.map(difference)));
    }
    table(&head("images/s at batch"), &lines)
}

fn periods_of<'r>(rows: &'r [Row], name: &str) -> &'r [Option<u64>] {
    rows.iter().find(|row| row.name == name).map_or(&[], |row| &row.periods_ns[..])
}

/// The distance of `auto` from the bounds.
fn gaps(rows: &[Row]) -> String {
    let mut lines = Vec::new();
    for (name, bound) in [(EACH_ONCE, BOUND_ONCE), (WITH_REPEATS, BOUND_WITH_REPEATS)] {
        let gaps = periods_of(rows, name).iter().zip(periods_of(rows, bound));
        let gaps = gaps.map(|(&auto, &bound)| {
            cell(auto.zip(bound), |(auto, bound)| percent(auto as f64, bound as f64))
        });
        lines.push(row(name, gaps));
    }
    table(&head("period above the bound at batch"), &lines)
}

/// The largest batches that can run at all.
fn largest() -> Result<String> {
    let most = |strategy, chunk_bytes| {
        let machine = machine(chunk_bytes)?;
        work::largest(|batch| {
            let work = work::resnet(batch, V100, work::BYTES_PERCENT)?;
            let request = Request { graph: &work.graph()?, machine: &machine, budget_bytes: 0 };
            Ok(planning::min_feasible(&request, strategy)?.0 <= machine.device_bytes)
        })
    };
    let in_core = work::largest(|batch| {
        let work = work::resnet(batch, V100, work::BYTES_PERCENT)?;
        Ok(in_core_ns(&work.graph()?, &work::v100()?)?.is_some())
    })?;
    let one_op = work::largest(|batch| {
        let work = work::resnet(batch, V100, work::BYTES_PERCENT)?;
        Ok(largest_op_bytes(&work.graph()?) <= work::v100()?.device_bytes)
    })?;
    let blocks = work::largest(|batch| {
        let work = work::resnet(batch, V100, work::BYTES_PERCENT)?;
        Ok(in_blocks(&work.graph()?, &work::v100()?, WINDOW)?.is_some())
    })?;
    let lines = [
        ("in-core", in_core),
        ("`window`, caching allocator", blocks),
        ("`window`, 40 MiB chunks", most(WINDOW, PAPER_CHUNK_BYTES)?),
        ("`window`, 2 MiB chunks", most(WINDOW, 2 << 20)?),
        ("`auto`, 2 MiB chunks", most(AUTO, 2 << 20)?),
        ("operands of the largest op", one_op),
    ];
    let lines = lines.map(|(name, batch)| row(name, [batch.to_string()]));
    Ok(table(&["largest batch".to_owned(), "images".to_owned()], &lines))
}

fn largest_op_bytes(graph: &Graph<'_>) -> u64 {
    let bytes = |op| graph.touches(op).map(|tensor| graph.tensor(tensor).bytes).sum::<u64>();
    graph.op_ids().map(bytes).max().unwrap_or(0)
}

fn picture(path: &Path, rows: &[Row]) -> Result<()> {
    let mut lines = Vec::new();
    let is_drawn = |row: &&Row| !row.name.starts_with("P100") && !row.name.starts_with("bound");
    let of_v100 = rows.iter().filter(is_drawn);
    for (row, colour) in of_v100.zip(COLOURS.into_iter().cycle()) {
        let measured = BATCHES.iter().zip(&row.periods_ns);
        let measured = measured.filter_map(|(&batch, ns)| Some((batch, speed(batch, (*ns)?))));
        let points = measured.map(|(batch, speed)| (batch as f64, speed)).collect();
        lines.push(Line { name: row.name.replace('`', ""), colour, dashed: false, points });
        let published = row.published.filter(|_| !row.name.ends_with("by the host"));
        if let Some(published) = published {
            let points = BATCHES.iter().zip(published.per_second);
            let points = points.filter_map(|(&x, y)| Some((x as f64, y? as f64))).collect();
            let name = format!("published: {}", published.name);
            lines.push(Line { name, colour, dashed: true, points });
        }
    }
    let title = "ResNet-50, 16 GiB, 50 GB/s each way".to_owned();
    draw(path, 1, (960, 480), &[Panel { title, x: "batch", y: "images/s", lines }])
}

const TEXT: &str = "\
# Table 1: ResNet-50 with 16 GiB

<!-- not run: it measures the whole page -->

    lp-bound/with-highs cargo run --release -p spillway-benches --features highs \\
        --example window_paper -- table1

writes this file and the image. Without the feature there is no bound. Published figures are
from table 1 of Hayakawa & Narihira, who took the figures of the P100 from Le et al.

![Images per second over the batch](table1.svg)

{calibration}
## Images per second

{speeds}
- *`window`* is the published variant, which also copies tensors that the host already holds. With
  the *caching allocator*, its budget is the largest with which the run fits. With chunks, its budget
  is the whole device.
- *Mapped by the host*: the simulated host maps and unmaps before it submits a step. It runs up
  to one iteration ahead of the device.
- *Mapping holds up compute*: the same plan, but each launch also takes the time of all mapping and
  unmapping calls since the previous launch.
- *`auto`* has fixed objects and runs on the simulated device, which counts no mapping call. *Each
  op once* is `--set repeats=no`. *With repeats* is the default, which also launches forward ops
  again.
- The *bounds* are the linear programs of [bounds.md](../bounds.md) for the given order of the ops.
  One holds for plans that launch each op once, on pages of 2 MiB; the other for plans with repeats.
  `auto` may run the ops in another order, so its period can be below them.

{gaps}
## Differences from the published figures

- With repeats, batch 1440 runs at 784 images/s. That is 1.8 times as fast as with each op once, and
  2.4 times the published speed. Compute alone would reach 853.
- *Schedule* agrees within 15 % in all six cells. If everything fits, the published run is 5
  to 11 % slower than in-core, while here no op waits for a transfer. At 1120 the published
  run is out of memory, and the simulated one is not: see [budgets.md](budgets.md).
- *Virtual addresses, mapped by the host*, cost nothing here, since the host maps while the device
  computes. The published run loses 5 to 11 % at batch 64 and 128, and a quarter at 190 and 256.
  So its compute must have waited for the mapping calls: CUDA may synchronise when it unmaps or sets
  access rights. From 512 on the links are the bottleneck, and the published row agrees within 15 %,
  whether mapping holds up compute or not.
- If *mapping holds up compute*, the published row agrees within 15 % in all nine cells. The
  five cells from 512 on were not used to fit the cost of mapping. There the links are the bottleneck,
  so it costs little that mapping takes time from compute, and the published loss vanishes.
- *LMS on the P100* agrees within 15 % up to batch 256. Above that, it is faster here. Its authors
  tune two numbers, and so does `lms`, but on a timeline in which copies wait only for
  the link and for memory. At 928 the published iteration takes 6.8 s, twice as long as compute. In
  that time 270 GB can cross the assumed link each way, four times the bytes to be kept. So compute
  must have waited for the published copies.

## The largest batch

{largest}
All operands of an op must fit together, so the last line is the largest batch that can run without
splitting ops. The largest op is the backward pass of a batch norm in the first stage. It needs three
tensors at once. The published run with virtual addresses ends at 1440.
";
