//! A bound on the period from prices for memory, links and compute; `docs/research/bounds.md` has the proof.
//!
//! The sum is a bound for any prices, so its proof does not depend on how the prices were found.

#![expect(
    clippy::indexing_slicing,
    reason = "intervals of the visits are below the number of prices, and `rows` has one more entry \
              than a tensor has visits"
)]

mod restored;
mod runs;
mod visits;

pub use visits::{Earlier, Visit, Visits};

use super::BoundOrder;
use crate::graph::{Graph, Kind, OpId, TensorId};
use crate::machine::Machine;
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};
use core::fmt;
use restored::Restored;

/// One, as a share of time or as a nanosecond for each byte.
pub const ONE: u64 = 1 << 32;

/// The prices of an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Price {
    /// Price of a byte of device memory at the start of the interval, in 2^-32 ns.
    pub memory: u64,
    /// Price of a byte of host memory at the start of the interval, in 2^-32 ns.
    pub host: u64,
    /// The share of the interval's time that is charged to its uploads, in 2^-32.
    pub upload: u64,
    /// The share that is charged to its downloads, in 2^-32. The rest is charged to its launches.
    pub download: u64,
}

/// Prices for one graph, and the plans for which they hold. All of these plans run every op on the
/// device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prices<'a> {
    /// The order in which these plans run ops for the first time.
    pub order: BoundOrder,
    /// Whether they may repeat repeatable ops.
    pub repeats: bool,
    /// Ops that all these plans run in this order.
    pub marks: &'a [OpId],
    /// Prices of the intervals: before the first mark, then during each mark and after it. See
    /// [`intervals`].
    pub intervals: &'a [Price],
}

/// The number of intervals of an iteration with this number of marks. The first interval begins
/// with the iteration. Each mark begins an interval when it starts, and another one when it ends.
#[must_use]
pub const fn intervals(marks: usize) -> usize {
    marks.saturating_mul(2).saturating_add(1)
}

/// Whether a mark runs during an interval, so that no other op runs.
#[must_use]
pub const fn is_of_mark(interval: usize) -> bool {
    interval % 2 == 1
}

/// The intervals that begin when a mark starts and when it ends. Marks are counted from 1.
#[must_use]
pub const fn begun_by(mark: usize) -> [usize; 2] {
    let ended = mark.saturating_mul(2);
    [ended.saturating_sub(1), ended]
}

/// Why prices prove no bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PriceError {
    /// There must be one interval more than twice the marks.
    Intervals {
        /// The number that there should be.
        needed: usize,
        /// The number that there is.
        found: usize,
    },
    /// A mark is a collective, which runs beside the ops on compute.
    CollectiveMark(OpId),
    /// A mark is not an op of the graph.
    UnknownOp(OpId),
    /// Not all of the plans run this mark after the marks listed before it.
    MarkOutOfOrder(OpId),
    /// The shares of an interval add up to more than one.
    Shares(usize),
    /// The sum of the prices exceeds 128 bits.
    Overflow,
    /// The working memory is too small.
    Scratch(OutOfScratch),
}

impl From<OutOfScratch> for PriceError {
    fn from(error: OutOfScratch) -> Self {
        Self::Scratch(error)
    }
}

impl fmt::Display for PriceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Intervals { needed, found } => write!(
                f,
                "there must be {needed} intervals, one more than twice the marks, and there are \
                 {found}"
            ),
            Self::CollectiveMark(op) => {
                write!(f, "{op} is a mark, but it is a collective, and runs beside other ops")
            }
            Self::UnknownOp(op) => write!(f, "{op} is a mark, but the graph has no such op"),
            Self::MarkOutOfOrder(op) => write!(
                f,
                "{op} is a mark, but does not come after the mark before it in every plan that the \
                 bound is for"
            ),
            Self::Shares(interval) => write!(
                f,
                "the shares of upload and download in interval {interval} add up to more than 2^32"
            ),
            Self::Overflow => write!(f, "the prices are too high to be added up"),
            Self::Scratch(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for PriceError {}

/// Words of scratch that [`priced_period_ns`] needs for a number of intervals, by
/// [`Limits::of_graph`].
#[must_use]
pub const fn priced_scratch_words(limits: &Limits, intervals: usize) -> usize {
    let visits = limits.operands.saturating_add(limits.tensors).saturating_add(1);
    total([
        Visits::scratch_words(limits),
        words::<PerByte>(intervals),
        words::<Bytes>(visits),
        words::<Restored>(visits),
    ])
}

/// Returns the period that prices prove: no plan for which they hold can beat it, in the mean over
/// many iterations. O(operands log operands + tensors * intervals), and more if the order is free.
///
/// # Errors
/// Prices that prove no bound, and too little scratch.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "visits count operands, and a product of two 64-bit numbers fits into 128 bits"
)]
pub fn priced_period_ns(
    graph: &Graph<'_>,
    machine: &Machine,
    budget_bytes: u64,
    prices: &Prices<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<u64, PriceError> {
    let needed = intervals(prices.marks.len());
    if prices.intervals.len() != needed {
        return Err(PriceError::Intervals { needed, found: prices.intervals.len() });
    }
    let mut scratch = scratch.reborrow();
    let visits = Visits::new(graph, prices, &mut scratch)?;
    let per_byte = PerByte::all(machine, prices.intervals, &mut scratch)?;
    let rows = graph.tensor_ids().map(|tensor| visits.of(tensor).len()).max().unwrap_or(0);
    let restored = scratch.take(rows, Restored::NONE)?;
    let rows = scratch.take(rows + 1, [NEVER; 4])?;
    let add = |sum: u128, factors: [u64; 2]| -> Result<u128, PriceError> {
        let [one, other] = factors.map(u128::from);
        sum.checked_add(one * other).ok_or(PriceError::Overflow)
    };
    let mut charged = 0u128;
    for tensor in graph.tensor_ids() {
        let walk = Walk { graph, visits: &visits, per_byte, tensor };
        charged = add(charged, [graph.tensor(tensor).bytes, walk.cheapest(rows, restored)])?;
    }
    for (op, [first, last]) in visits.on_compute(graph) {
        let runs = per_byte[first..=last].iter().step_by(2);
        charged = add(charged, [graph.op(op).time_ns, least(runs.map(|price| price.compute))])?;
    }
    let mut paid = 0u128;
    for price in prices.intervals {
        paid = add(paid, [budget_bytes, price.memory])?;
        paid = add(paid, [machine.host_bytes, price.host])?;
    }
    let memory_of = |mark| begun_by(mark).map(|interval| per_byte[interval].memory);
    for (number, &mark) in (1..).zip(prices.marks) {
        for memory in memory_of(number) {
            charged = add(charged, [graph.op(mark).workspace_bytes, memory])?;
        }
    }
    for tensor in graph.tensor_ids() {
        for &number in visits.marks_of(tensor) {
            for memory in memory_of(number as usize) {
                charged = add(charged, [graph.tensor(tensor).bytes, memory])?;
            }
        }
    }
    // Rounded down, as is the mean in the format.
    Ok(u64::try_from(charged.saturating_sub(paid) >> 32).unwrap_or(u64::MAX))
}

/// Prices of an interval in 2^-32 ns, rounded down: for a byte, and for a nanosecond of launches.
#[derive(Clone, Copy, Debug, Default, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct PerByte {
    memory: u64,
    host: u64,
    upload: u64,
    download: u64,
    compute: u64,
}

#[expect(
    clippy::arithmetic_side_effects,
    reason = "a product of two 64-bit numbers fits into 128 bits, and the divisor is not 0"
)]
impl PerByte {
    fn all<'a>(
        machine: &Machine,
        intervals: &[Price],
        scratch: &mut Scratch<'a>,
    ) -> Result<&'a [Self], PriceError> {
        let all = scratch.take(intervals.len(), Self::default())?;
        let per_byte = |share: u64, bytes_per_s: u64| {
            let price = u128::from(share) * 1_000_000_000 / u128::from(bytes_per_s.max(1));
            u64::try_from(price).unwrap_or(u64::MAX)
        };
        for (at, (price, per)) in intervals.iter().zip(all.iter_mut()).enumerate() {
            let links = price.upload.checked_add(price.download);
            let compute = links.and_then(|links| ONE.checked_sub(links));
            *per = Self {
                memory: price.memory,
                host: price.host,
                upload: per_byte(price.upload, machine.h2d_bytes_per_s),
                download: per_byte(price.download, machine.d2h_bytes_per_s),
                compute: compute.ok_or(PriceError::Shares(at))?,
            };
        }
        Ok(all)
    }
}

/// The least price so far of a byte that is now on the device alone, on both sides, on the host
/// alone, or nowhere.
type Bytes = [u64; 4];
const DEVICE: usize = 0;
const BOTH: usize = 1;
const HOST: usize = 2;
const NOWHERE: usize = 3;

/// The price of an impossible state.
const NEVER: u64 = u64::MAX;

/// What a byte pays for host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnHost {
    /// The prices of the intervals that begin while the host holds its value.
    Pays,
    /// Nothing more.
    IsPaid,
    /// Nothing, since it never is on the host.
    Never,
}

/// The path of a byte of one tensor through an iteration.
struct Walk<'w> {
    graph: &'w Graph<'w>,
    visits: &'w Visits<'w>,
    per_byte: &'w [PerByte],
    tensor: TensorId,
}

#[expect(
    clippy::arithmetic_side_effects,
    reason = "there is an interval, visits count operands, and a product of two 64-bit numbers fits \
              into 128 bits"
)]
impl Walk<'_> {
    /// The price of the cheapest path. A state that moves has its slot on the host all the time, and
    /// a temporary at least while the host holds its value.
    fn cheapest(&self, rows: &mut [Bytes], restored: &mut [Restored]) -> u64 {
        let slot = self.per_byte.iter().map(|price| price.host).fold(0, u64::saturating_add);
        match self.graph.tensor(self.tensor).kind {
            Kind::State if slot > 0 => {
                let moving = self.path(OnHost::IsPaid, rows, restored).saturating_add(slot);
                self.path(OnHost::Never, rows, restored).min(moving)
            }
            Kind::Temporary => self.path(OnHost::Pays, rows, restored),
            Kind::State | Kind::Input | Kind::Output => self.path(OnHost::IsPaid, rows, restored),
        }
    }

    /// The price of the cheapest path of one kind. `rows[n]` is for a byte that has made `n` visits.
    fn path(&self, on_host: OnHost, rows: &mut [Bytes], restored: &mut [Restored]) -> u64 {
        let visits = self.visits.of(self.tensor);
        let (Some(first), Some(last)) = (visits.first(), visits.last()) else { return 0 };
        rows[..=visits.len()].fill([NEVER; 4]);
        restored[..visits.len()].fill(Restored::NONE);
        let mut begin = first.first;
        rows[0][NOWHERE] = 0;
        if self.graph.tensor(self.tensor).kind == Kind::Input {
            // The input may have been uploaded in the previous iteration.
            let early = self.per_byte.iter().map(|price| price.upload).min();
            let iteration = self.per_byte.len() as u32;
            (begin, rows[0]) = (iteration, [NEVER, early.unwrap_or(0), 0, NEVER]);
        }
        // The number of visits that have certainly been made, and that may have been made.
        let (mut least, mut most) = (0, 0);
        let mut cheapest = NEVER;
        for position in begin..=last.last {
            let interval = position as usize % self.per_byte.len();
            if position > begin {
                let PerByte { memory, host, .. } = self.per_byte[interval];
                let memory = if self.is_operand(interval) { 0 } else { memory };
                let host = if on_host == OnHost::Pays { host } else { 0 };
                rows[least..=most].iter_mut().for_each(|row| stay(row, memory, host));
            }
            let mut made = least;
            let (mut write, mut again) = (None, NEVER);
            while made <= most {
                let written =
                    made.checked_sub(1).and_then(|last| self.visits.write_of(self.tensor, last));
                if written != write {
                    again = written
                        .map_or(NEVER, |write| self.again(write, interval, &mut restored[write]));
                    write = written;
                }
                self.moves(&mut rows[made], again, (interval, on_host));
                let visit = visits[made];
                if visit.may_be_at(position, interval) {
                    let after = visited(rows[made], visit.kind, on_host);
                    if made + 1 == visits.len() {
                        cheapest = after.iter().copied().fold(cheapest, Ord::min);
                    } else {
                        most = most.max(made + 1);
                        let next = &mut rows[made + 1];
                        next.iter_mut()
                            .zip(after)
                            .for_each(|(next, after)| *next = after.min(*next));
                    }
                }
                made += 1;
            }
            while visits.get(least).is_some_and(|visit| visit.last <= position) {
                least += 1;
            }
            if least == visits.len() || least > most {
                break;
            }
        }
        cheapest
    }

    /// The price of a repeat for one of the bytes that share it.
    fn repeat(&self, op: OpId, compute: u64) -> u64 {
        let price = u128::from(self.graph.op(op).time_ns) * u128::from(compute);
        let price = price.checked_div(u128::from(self.visits.made_bytes(op)));
        price.map_or(0, |price| u64::try_from(price).unwrap_or(NEVER))
    }

    /// The price of a repeat of the op of a write in an interval, with the earlier values that it
    /// needs. A repeat of a collective takes no compute. Called once for each interval.
    fn again(&self, write: usize, interval: usize, restored: &mut Restored) -> u64 {
        let visit = &self.visits.of(self.tensor)[write];
        let mut price = self.per_byte[interval];
        if self.is_operand(interval) {
            price.memory = 0;
        }
        let repeat = |op| match self.graph.op(op).collective {
            true => 0,
            false if is_of_mark(interval) => NEVER,
            false => self.repeat(op, price.compute),
        };
        let earlier = self.visits.earlier(self.tensor, write);
        let before = restored.step(earlier, &price, |earlier| repeat(earlier.maker));
        repeat(OpId(visit.maker)).saturating_add(before)
    }

    /// Whether the mark that begins an interval uses the tensor.
    fn is_operand(&self, interval: usize) -> bool {
        let mark = interval.div_ceil(2) as u32;
        self.visits.marks_of(self.tensor).binary_search(&mark).is_ok()
    }

    /// Lets a byte move within an interval, and be computed again.
    fn moves(&self, row: &mut Bytes, again: u64, (interval, on_host): (usize, OnHost)) {
        let price = self.per_byte[interval];
        let download = if on_host == OnHost::Never { NEVER } else { price.download };
        row[DEVICE] = row[DEVICE].min(row[NOWHERE].saturating_add(again));
        row[BOTH] = row[BOTH]
            .min(row[DEVICE].saturating_add(download))
            .min(row[HOST].saturating_add(price.upload.min(again)));
        row[HOST] = row[HOST].min(row[BOTH]);
        row[DEVICE] = row[DEVICE].min(row[BOTH]);
        row[NOWHERE] = row[NOWHERE].min(row[DEVICE]).min(row[HOST]);
    }
}

/// The least price; 0 if there is none.
fn least(prices: impl Iterator<Item = u64>) -> u64 {
    prices.min().unwrap_or(0)
}

/// Charges a byte for its memory on the device and on the host.
fn stay(row: &mut Bytes, memory: u64, host: u64) {
    row[DEVICE] = row[DEVICE].saturating_add(memory);
    row[BOTH] = row[BOTH].saturating_add(memory).saturating_add(host);
    row[HOST] = row[HOST].saturating_add(host);
}

/// The prices after a visit.
fn visited(row: Bytes, kind: u32, on_host: OnHost) -> Bytes {
    let mut after = [NEVER; 4];
    let least = row.iter().copied().fold(NEVER, Ord::min);
    match kind {
        Visit::READ => (after[DEVICE], after[BOTH]) = (row[DEVICE], row[BOTH]),
        Visit::UPDATE => after[DEVICE] = row[DEVICE].min(row[BOTH]),
        Visit::FETCHED if on_host == OnHost::Never => after[DEVICE] = least,
        Visit::FETCHED => after[BOTH] = least,
        Visit::SAVED => after[HOST] = row[BOTH].min(row[HOST]),
        _ => after[DEVICE] = least,
    }
    after
}
