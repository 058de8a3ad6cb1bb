//! Fits the bytes per image and the time of a mapping call to the published figures.

use crate::Result;
use crate::markdown::{row, speed, table};
use crate::ways::{PAPER_CHUNK_BYTES, WINDOW, in_pages, simulate};
use crate::work::{self, BATCHES, SCHEDULE, V100, VIRTUAL};
use planner_core::Machine;
use spillway::planning;

/// Batches, with their published speeds, at which transfers and not mapping limit the speed. The
/// first three are without virtual addresses, the others with them.
const BOUND_BY_LINKS: [(u64, u64); 6] =
    [(256, 559), (512, 457), (928, 400), (512, 446), (928, 409), (1120, 398)];

/// The sum over these batches of the squared logarithm of simulated over published speed.
fn squared_error(machine: &Machine, bytes_percent: u64) -> Result<f64> {
    let mut sum = 0.0;
    for (batch, published) in BOUND_BY_LINKS {
        let work = work::resnet(batch, V100, bytes_percent)?;
        let plan = in_pages(&work.graph()?, machine, WINDOW)?.ok_or("no plan")?;
        let ratio = speed(batch, plan.predicted.period_ns) / published as f64;
        sum += ratio.ln().powi(2);
    }
    Ok(sum)
}

/// Describes the fit of the bytes per image and the time of a call.
pub(crate) fn render() -> Result<String> {
    let machine = work::v100()?;
    let mut rows = Vec::new();
    let mut best = (f64::INFINITY, 0);
    for percent in (70..=100).step_by(2) {
        eprintln!("calibration: {percent} % of the bytes");
        let misfit = squared_error(&machine, percent)?;
        best = if misfit < best.0 { (misfit, percent) } else { best };
        let deviation = 100.0 * (misfit / BOUND_BY_LINKS.len() as f64).sqrt();
        rows.push(row(&format!("{percent} %"), [format!("{deviation:.1} %")]));
    }
    let bytes = table(&["bytes an image".to_owned(), "deviation".to_owned()], &rows);
    if best.1 != work::BYTES_PERCENT {
        return Err(format!("the best fit is {} % of the bytes", best.1).into());
    }
    let chunks = (*machine).with_chunk_bytes(PAPER_CHUNK_BYTES);
    let (fitted_ns, calls) = mapping_cost(&Machine::new(chunks)?)?;
    if fitted_ns / 1_000 != work::MAPPING_NS / 1_000 {
        return Err(format!("the best fit is {fitted_ns} ns a chunk").into());
    }
    Ok(TEXT
        .replace("{percent}", &work::BYTES_PERCENT.to_string())
        .replace("{megabytes}", &megabytes_an_image(&machine)?.to_string())
        .replace("{microseconds}", &(work::MAPPING_NS / 1_000).to_string())
        .replace("{bytes}", &bytes)
        .replace("{calls}", &calls))
}

/// The in-core need of an additional image.
fn megabytes_an_image(machine: &Machine) -> Result<u64> {
    let need_bytes = |batch| -> Result<u64> {
        let work = work::resnet(batch, V100, work::BYTES_PERCENT)?;
        Ok(planning::in_core_peak_bytes(&work.graph()?, machine)?)
    };
    Ok((need_bytes(1_000)? - need_bytes(500)?) / 500 / 1_000_000)
}

/// The time to map and unmap a chunk, by least squares of the published slowdown over the chunks
/// that the simulator maps.
fn mapping_cost(machine: &Machine) -> Result<(u64, String)> {
    let (mut product, mut square) = (0.0, 0.0);
    let mut rows = Vec::new();
    for (at, &batch) in BATCHES.iter().enumerate().filter(|&(_, &batch)| batch <= 256) {
        eprintln!("calibration: chunks mapped at batch {batch}");
        let work = work::resnet(batch, V100, work::BYTES_PERCENT)?;
        let graph = work.graph()?;
        let plan = in_pages(&graph, machine, WINDOW)?.ok_or("no plan")?;
        let chunks = simulate(&graph, machine, &plan)?.chunks_mapped;
        let seconds =
            |row: work::Published| row.per_second[at].map(|speed| batch as f64 / speed as f64);
        let (with, without) = (seconds(VIRTUAL), seconds(SCHEDULE));
        let loss_ms = 1e3 * (with.ok_or("not published")? - without.ok_or("not published")?);
        product += loss_ms * chunks as f64;
        square += (chunks as f64).powi(2);
        rows.push((batch, loss_ms, chunks));
    }
    let ms = product / square;
    let rows: Vec<_> = rows
        .iter()
        .map(|&(batch, loss_ms, chunks)| {
            let cells = [
                format!("{loss_ms:.0} ms"),
                chunks.to_string(),
                format!("{:.0} ms", ms * chunks as f64),
            ];
            row(&batch.to_string(), cells)
        })
        .collect();
    let head = ["batch", "published loss", "chunks mapped", "their time"].map(str::to_owned);
    let text = table(&head, &rows);
    Ok(((ms * 1e6) as u64, text))
}

const TEXT: &str = "\
## What is calibrated

- *Op times.* The three published points in-core lie on a line: 120.8 ms + 1.089 ms per image. The
  op times of the generated `resnet50` come from a roofline. One factor scales them so that their sum
  lies on this line.
- *Bytes per image.* Batch 190 must fit 16 GiB and 256 must not, so an image needs between 66 and 89 MB.
  Within that range, `window` on pages is fitted to those published speeds that the links determine:
  those of *schedule* at 256, 512 and 928, and with virtual addresses at 512, 928 and 1120. The graph
  gets the tensor sizes of a batch that is smaller by a factor. The best factor is {percent} % of the
  generated graph's sizes, {megabytes} MB per image. *Deviation* is the root mean square over these
  speeds.

{bytes}
- *Mapping.* Mapping and unmapping a chunk costs the same whatever its size. The cost of both calls
  together is {microseconds} µs. It is the published loss from virtual addresses up to batch 256, divided
  by the chunks of 40 MiB that the simulator maps per iteration, by least squares.

{calls}
- *The P100* needs 34.7 ms + 3.683 ms per image, by least squares through its three points. Its link
  is assumed to have 40 GB/s each way, like two first-generation NVLinks. Bytes per image are those
  of the V100.
";
