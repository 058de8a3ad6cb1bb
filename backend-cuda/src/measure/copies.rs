//! Copies as a plan makes them: many copies, enqueued ahead, each with its signal. A driver blocks
//! the caller at about a thousand pending launches of a stream, so rows are shorter.

use super::fit::median;
use crate::driver;
use crate::error::CudaError;
use crate::{Cuda, CudaDevice, Options, Unavailable};
use planner_core::Stream;
use planner_core::backend::{Chunks, DeviceAddress, HostRange, Paging, Streams, Transfers};

/// The bytes of one row of copies, and the fewest and most copies of a row.
const ROW_BYTES: u64 = 32 << 20;
const FEWEST: u64 = 4;
const MOST: u64 = 64;
/// The sizes of copies. Small copies show the latency, large ones the speed.
pub(super) const SIZES: [u64; 10] = [
    64 << 10,
    128 << 10,
    256 << 10,
    512 << 10,
    1 << 20,
    4 << 20,
    8 << 20,
    16 << 20,
    32 << 20,
    64 << 20,
];
/// How long the streams are kept busy while the host enqueues a row. The first gate that is long
/// enough counts.
const GATES_NS: [u64; 3] = [2_000_000, 20_000_000, 200_000_000];
/// The number of rows of one kind. Their median counts.
const REPEATS: usize = 5;
/// The most kinds of rows.
pub(super) const ROWS: u64 = 6 * SIZES.len() as u64;
/// The load beside a row lasts this many times as long as the row alone.
const LASTING: f64 = 4.0;
/// The most copies in the other direction beside a row.
const MOST_BESIDE: u64 = 200;
/// The number of fills of device memory beside a row, and the fewest and most bytes of each.
const FILLS: u64 = 16;
const FILL_BYTES: [u64; 2] = [1 << 20, 1 << 30];

/// The number of calls on one stream that every driver accepts before it blocks the caller.
const AHEAD: u64 = 1000;
// A gate and the events of a row come on top, and each copy has a signal.
const _: () = assert!(2 * MOST + 3 <= AHEAD && 2 * MOST_BESIDE + 3 <= AHEAD && FILLS < AHEAD);

/// The load beside a row of copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// No load.
    Alone,
    /// Copies of the same size in the other direction.
    BothWays,
    /// Copies of the same size in the other direction, and the device fills memory.
    Busy,
}

impl Load {
    /// All loads.
    pub const ALL: [Self; 3] = [Self::Alone, Self::BothWays, Self::Busy];
}

/// Times of copies of one size.
#[derive(Clone, Copy, Debug)]
pub struct Copies {
    /// The size of the copies.
    pub bytes: u64,
    /// The time in nanoseconds of one copy to the device and of one to the host, by [`Load`].
    /// `None` if the host did not enqueue the copies ahead or the load ended too soon.
    pub ns: [[Option<f64>; 2]; 3],
}

/// The streams of the two directions.
const WAYS: [Stream; 2] = [Stream::Upload, Stream::Download];

/// Copies of one size in one direction.
#[derive(Clone, Copy, Debug)]
struct Row {
    way: usize,
    bytes: u64,
    load: Load,
    /// The time of such a copy in each direction without a load.
    alone_ns: [f64; 2],
}

/// A device with pinned memory and three ranges: one for each direction, and one that is filled.
struct Ends {
    device: CudaDevice,
    at: DeviceAddress,
    most_bytes: u64,
    /// The size of the range that is filled, and the time to fill a byte.
    fill_bytes: u64,
    fill_ns_per_byte: f64,
}

/// Measures copies of all sizes. `rows` is called after each kind of row, at most [`ROWS`] times.
pub(super) fn measure(
    cuda: &Cuda,
    options: &Options,
    free_bytes: u64,
    mut rows: impl FnMut(),
) -> Result<Vec<Copies>, Unavailable> {
    let most_bytes = (free_bytes / 8).clamp(SIZES[0], SIZES[SIZES.len() - 1]);
    let fill_bytes = (free_bytes / 4).clamp(FILL_BYTES[0], FILL_BYTES[1]);
    let mut ends = Ends::new(super::open(cuda, options)?, most_bytes, fill_bytes)?;
    let mut copies = Vec::new();
    for bytes in SIZES.into_iter().filter(|&bytes| bytes <= most_bytes) {
        let mut ns = [[None; 2]; 3];
        for load in Load::ALL {
            let alone_ns = match (load, ns[Load::Alone as usize]) {
                (Load::Alone, _) => Some([0.0; 2]),
                (_, [Some(up), Some(down)]) => Some([up, down]),
                // The load could not be made long enough.
                _ => None,
            };
            for (way, ns) in ns[load as usize].iter_mut().enumerate() {
                if let Some(alone_ns) = alone_ns {
                    *ns = ends.copy_ns(Row { way, bytes, load, alone_ns })?;
                }
                rows();
            }
        }
        copies.push(Copies { bytes, ns });
    }
    Ok(copies)
}

impl Ends {
    fn new(mut device: CudaDevice, most_bytes: u64, fill_bytes: u64) -> Result<Self, CudaError> {
        device.create_host(2 * most_bytes)?;
        let count = (2 * most_bytes + fill_bytes).div_ceil(device.chunk_bytes());
        device.create(count)?;
        let at = device.reserve(count)?;
        device.map(at, Chunks { first: 0, count })?;
        device.allow_access()?;
        let mut ends = Self { device, at, most_bytes, fill_bytes, fill_ns_per_byte: 0.0 };
        // The first call is slower.
        ends.fill(1, fill_bytes)?;
        let start = ends.device.timestamp(Stream::Compute)?;
        ends.fill(FEWEST, fill_bytes)?;
        let end = ends.device.timestamp(Stream::Compute)?;
        ends.device.wait_idle()?;
        ends.fill_ns_per_byte = start.ns_until(&end)? / (FEWEST * fill_bytes) as f64;
        Ok(ends)
    }

    /// Fills the range after the two ranges for copies.
    fn fill(&self, times: u64, bytes: u64) -> Result<(), CudaError> {
        let stream = self.device.queued[Stream::Compute as usize].stream();
        let at = self.at.0 + 2 * self.most_bytes;
        (0..times).try_for_each(|_| driver::fill(stream, at, bytes))
    }

    /// Fills for a time, with few calls.
    fn fill_for(&self, lasting_ns: f64) -> Result<(), CudaError> {
        let bytes = lasting_ns / self.fill_ns_per_byte.max(f64::MIN_POSITIVE) / FILLS as f64;
        self.fill(FILLS, (bytes as u64).clamp(FILL_BYTES[0], self.fill_bytes))
    }

    /// Enqueues copies as an executor does.
    fn copy(&mut self, way: usize, bytes: u64, times: u64) -> Result<(), CudaError> {
        let offset_bytes = way as u64 * self.most_bytes;
        let at = DeviceAddress(self.at.0 + offset_bytes);
        let host = HostRange { offset_bytes, bytes };
        for _ in 0..times {
            match WAYS[way] {
                Stream::Upload => self.device.upload(host, at)?,
                _ => self.device.download(at, host)?,
            }
            self.device.signal(WAYS[way])?;
        }
        Ok(())
    }

    /// The time of a copy: the median of several rows, after a first row that does not count.
    /// `None` if a row has no time.
    fn copy_ns(&mut self, row: Row) -> Result<Option<f64>, CudaError> {
        let mut times_ns = Vec::new();
        for _ in 0..=REPEATS {
            let Some(ns) = self.row_ns(row)? else { return Ok(None) };
            times_ns.push(ns);
        }
        Ok(median(times_ns.drain(1..)))
    }

    /// A row of copies after a gate that is as long as the host needs to enqueue the row.
    fn row_ns(&mut self, row: Row) -> Result<Option<f64>, CudaError> {
        for gate_ns in GATES_NS {
            if let Some(ns) = self.gated_row_ns(row, gate_ns)? {
                return Ok(Some(ns));
            }
        }
        Ok(None)
    }

    /// The time of a copy. `None` if the gate has opened too soon or the load ends before the row.
    fn gated_row_ns(&mut self, row: Row, gate_ns: u64) -> Result<Option<f64>, CudaError> {
        let Row { way, bytes, load, alone_ns } = row;
        let count = (ROW_BYTES / bytes).clamp(FEWEST, MOST);
        for stream in Stream::ON_DEVICE {
            self.device.occupy(stream, gate_ns)?;
        }
        // The load lasts longer than the row, even if the load slows the row down.
        let lasting_ns = LASTING * alone_ns[way] * count as f64;
        if load == Load::Busy {
            self.fill_for(lasting_ns)?;
        }
        if load != Load::Alone {
            let beside = lasting_ns / alone_ns[1 - way].max(1.0);
            self.copy(1 - way, bytes, (beside as u64).clamp(1, MOST_BESIDE))?;
        }
        let beside =
            (load != Load::Alone).then(|| self.device.timestamp(WAYS[1 - way])).transpose()?;
        let start = self.device.timestamp(WAYS[way])?;
        self.copy(way, bytes, count)?;
        let end = self.device.timestamp(WAYS[way])?;
        let was_ahead = !start.is_reached()?;
        self.device.wait_idle()?;
        let lasted = match beside {
            Some(beside) => end.ns_until(&beside)? > 0.0,
            None => true,
        };
        let ns = start.ns_until(&end)?;
        Ok((was_ahead && lasted).then_some(ns / count as f64))
    }
}
