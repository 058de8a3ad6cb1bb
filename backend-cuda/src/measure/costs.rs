//! The times of a launch and of a wait, which predictions leave out, and the ticks of the device's
//! timer.

use super::fit::median;
use crate::error::CudaError;
use crate::{Cuda, CudaDevice, Options, Unavailable};
use planner_core::Stream;
use planner_core::backend::{Chunks, HostRange, Paging, Point, Streams, Transfers};

/// Kernels in a row.
const ROW: u32 = 200;
/// The time for which the points of a row are not reached, so that the driver enqueues each wait.
const POINTS_NS: u64 = 10_000_000;
/// The time for which compute is busy before a row. All points are reached at its end.
const GATE_NS: u64 = 2 * POINTS_NS;
/// The rows of each kind. Their median counts.
const REPEATS: u32 = 7;

/// The device's time for each launch and each wait.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Time of a kernel that does nothing, in a row of equal kernels.
    pub launch_ns: f64,
    /// Time of a wait for a point of another stream. The point is reached when the device comes to the
    /// wait.
    pub wait_ns: f64,
    /// The time between two ticks of the timer that kernels read.
    pub tick_ns: u64,
}

/// Measures rows of kernels with and without a wait before each.
pub(super) fn measure(cuda: &Cuda, options: &Options) -> Result<Costs, Unavailable> {
    let mut device = super::open(cuda, options)?;
    let mut row = |waits| -> Result<f64, CudaError> {
        let times = (0..REPEATS).map(|_| row_ns(&mut device, waits));
        Ok(median(times.collect::<Result<Vec<_>, _>>()?).unwrap_or_default())
    };
    let (launch_ns, both_ns) = (row(false)?, row(true)?);
    let wait_ns = (both_ns - launch_ns).max(0.0);
    Ok(Costs { launch_ns, wait_ns, tick_ns: tick_ns(&mut device)? })
}

fn tick_ns(device: &mut CudaDevice) -> Result<u64, CudaError> {
    device.create(1)?;
    device.create_host(8)?;
    let at = device.reserve(1)?;
    device.map(at, Chunks { first: 0, count: 1 })?;
    device.write_timer_tick(at)?;
    let written = device.signal(Stream::Compute)?;
    device.wait(Stream::Download, written)?;
    device.download(at, HostRange { offset_bytes: 0, bytes: 8 })?;
    device.wait_idle()?;
    let mut tick_ns = [0; 8];
    device.read_host(0, &mut tick_ns)?;
    Ok(u64::from_le_bytes(tick_ns))
}

/// The time of a kernel, with a wait before it or without.
fn row_ns(device: &mut CudaDevice, waits: bool) -> Result<f64, CudaError> {
    device.occupy(Stream::Upload, POINTS_NS)?;
    device.occupy(Stream::Compute, GATE_NS)?;
    let points = (0..ROW).map(|_| device.signal(Stream::Upload));
    let points: Vec<Point> = points.collect::<Result<_, _>>()?;
    let start = device.timestamp(Stream::Compute)?;
    for point in points {
        if waits {
            device.wait(Stream::Compute, point)?;
        }
        device.occupy(Stream::Compute, 0)?;
    }
    let end = device.timestamp(Stream::Compute)?;
    device.wait_idle()?;
    Ok(start.ns_until(&end)? / f64::from(ROW))
}
