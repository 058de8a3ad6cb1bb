//! The paper's ResNet-50: a generated graph with the published times and sizes.

use crate::Result;
use planner_core::Machine;
use workloads::{OwnedGraph, machines};
use zoo::models;

/// Batches of table 1.
pub(crate) const BATCHES: [u64; 9] = [64, 128, 190, 256, 512, 928, 1120, 1248, 1440];

/// A published row: the images per second by batch. `None` if the memory is too small.
#[derive(Clone, Copy)]
pub(crate) struct Published {
    pub(crate) name: &'static str,
    pub(crate) per_second: [Option<u64>; 9],
}

pub(crate) const IN_CORE: Published = row("baseline", [336, 492, 581, 0, 0, 0, 0, 0, 0]);
pub(crate) const SCHEDULE: Published = row("schedule", [320, 439, 533, 559, 457, 400, 0, 0, 0]);
pub(crate) const VIRTUAL: Published =
    row("schedule + VA", [304, 389, 415, 424, 446, 409, 398, 347, 321]);
pub(crate) const P100_IN_CORE: Published = row("baseline, P100", [235, 255, 258, 0, 0, 0, 0, 0, 0]);
pub(crate) const P100_LMS: Published = row("LMS, P100", [235, 255, 241, 236, 209, 137, 0, 0, 0]);

const fn row(name: &'static str, figures: [u64; 9]) -> Published {
    let mut per_second = [None; 9];
    let mut at = 0;
    while at < figures.len() {
        if figures[at] > 0 {
            per_second[at] = Some(figures[at]);
        }
        at += 1;
    }
    Published { name, per_second }
}

/// The total time of the ops of an iteration: a fixed part, and a part per image.
#[derive(Clone, Copy)]
pub(crate) struct Speed {
    pub(crate) fixed_ns: u64,
    pub(crate) ns_per_image: u64,
}

/// The line through the three published points of the V100 in-core.
pub(crate) const V100: Speed = Speed { fixed_ns: 120_800_000, ns_per_image: 1_089_000 };
/// The least-squares line through the three published points of the P100.
pub(crate) const P100: Speed = Speed { fixed_ns: 34_700_000, ns_per_image: 3_683_000 };

/// The bytes per image, in percent of the generated graph's, as [`crate::calibration`] finds them.
pub(crate) const BYTES_PERCENT: u64 = 78;

/// The time to map and unmap a chunk, as [`crate::calibration`] finds it, to the microsecond.
pub(crate) const MAPPING_NS: u64 = 106_000;

/// The machine of the paper.
pub(crate) fn v100() -> Result<Machine> {
    Ok(machines::builtin("v100-nvlink").ok_or("no such machine")?.machine)
}

/// The P100 of the other paper, with two links of 20 GB/s each way.
pub(crate) fn p100() -> Result<Machine> {
    let bytes_per_s = 40_000_000_000;
    let links = (*v100()?).with_h2d_bytes_per_s(bytes_per_s).with_d2h_bytes_per_s(bytes_per_s);
    Ok(Machine::new(links)?)
}

/// ResNet-50 with the sizes of a batch scaled to `bytes_percent`, and with the ops' times scaled by
/// one factor to this speed.
pub(crate) fn resnet(batch: u64, speed: Speed, bytes_percent: u64) -> Result<OwnedGraph> {
    let as_large_as = (batch * bytes_percent + 50) / 100;
    let mut graph = models::generate(&format!("resnet50:batch={as_large_as}"))?;
    let whole_ns: u64 = graph.ops.iter().map(|op| op.time_ns).sum();
    let wanted_ns = speed.fixed_ns + speed.ns_per_image * batch;
    for op in &mut graph.ops {
        let scaled_ns = u128::from(op.time_ns) * u128::from(wanted_ns) / u128::from(whole_ns);
        op.time_ns = u64::try_from(scaled_ns)?;
    }
    Ok(graph)
}

/// The largest number from 1 up to which `holds` is true, by doubling and bisection.
pub(crate) fn largest(mut holds: impl FnMut(u64) -> Result<bool>) -> Result<u64> {
    let mut fails = 1;
    while holds(fails)? {
        fails *= 2;
    }
    let mut held = fails / 2;
    while fails - held > 1 {
        let middle = held + (fails - held) / 2;
        if holds(middle)? { held = middle } else { fails = middle }
    }
    Ok(held)
}
