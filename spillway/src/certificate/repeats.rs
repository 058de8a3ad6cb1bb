//! Repeats in floating point: their prices, and the resources that they take.

use super::point::{DOWNLOAD, LAUNCHES, MEMORY, Point, UPLOAD};
use planner_core::bounds::priced::{Earlier, Visits, is_of_mark};
use planner_core::{Graph, OpId, TensorId};

/// The repeat of the op of a write.
pub(super) struct Repeat {
    /// The visit that is the write.
    pub(super) write: usize,
    time: Time,
    earlier: Vec<EarlierValue>,
}

/// The time in ns of compute for each byte that shares a repeat; `None` for a collective.
#[derive(Clone, Copy)]
struct Time(Option<f64>);

impl Time {
    fn of(op: OpId, graph: &Graph<'_>, visits: &Visits<'_>) -> Self {
        let share_ns = || graph.op(op).time_ns as f64 / visits.made_bytes(op) as f64;
        Self((!graph.op(op).collective).then(share_ns))
    }

    fn ns(self) -> f64 {
        self.0.unwrap_or(0.0)
    }

    /// The price in an interval. No op on compute runs beside a mark.
    fn price(self, is_of_mark: bool, price: &Point) -> f64 {
        match self.0 {
            None => 0.0,
            Some(_) if is_of_mark => f64::INFINITY,
            Some(ns) => ns * price.shares[LAUNCHES],
        }
    }

    fn bits(self) -> Option<u64> {
        self.0.map(f64::to_bits)
    }
}

/// An earlier value that a repeat needs.
struct EarlierValue {
    /// The time of a repeat of its op.
    time: Time,
    /// The part of a repeat and of a download that each read pays for a copy on the host.
    share: f64,
}

/// A key that is equal for equal repeats.
pub(super) type Key = (usize, Option<u64>, Vec<(Option<u64>, u64)>);

impl Repeat {
    /// The repeat after a visit of a tensor; `None` if there is none.
    pub(super) fn after(
        visit: usize,
        tensor: TensorId,
        graph: &Graph<'_>,
        visits: &Visits<'_>,
    ) -> Option<Self> {
        let write = visits.write_of(tensor, visit)?;
        let time = |op| Time::of(op, graph, visits);
        let earlier = visits.earlier(tensor, write).map(|Earlier { maker, copy_reads }| {
            let share = if copy_reads > 0 { 1.0 / f64::from(copy_reads) } else { 0.0 };
            EarlierValue { time: time(maker), share }
        });
        let maker = OpId(visits.of(tensor)[write].maker);
        Some(Self { write, time: time(maker), earlier: earlier.collect() })
    }

    pub(super) fn key(&self) -> Key {
        let earlier = self.earlier.iter();
        let earlier = earlier.map(|value| (value.time.bits(), value.share.to_bits()));
        (self.write, self.time.bits(), earlier.collect())
    }
}

/// The cheapest ways to restore the earlier values before a write, position by position.
#[derive(Default)]
pub(super) struct Restored {
    first: usize,
    values: Vec<Value>,
}

/// The cheapest ways to restore an earlier value by a position.
#[derive(Clone, Copy)]
struct Value {
    /// The cost of a repeat of its op, and the position at which it runs.
    repeated: (f64, usize),
    /// The cost of a copy on the host for one read, and the positions of the repeat and the download.
    host: (f64, [usize; 2]),
    device: (f64, How),
}

/// How an earlier value comes to be on the device.
#[derive(Clone, Copy)]
enum How {
    Stays,
    IsRepeated,
    IsUploaded,
}

impl Restored {
    pub(super) fn clear(&mut self) {
        self.values.clear();
    }

    /// Goes on to the next position, as in the core. Returns the price of the repeat there.
    pub(super) fn step(
        &mut self,
        repeat: &Repeat,
        (position, interval): (usize, usize),
        price: &Point,
        memory_ns: f64,
        link_ns: [f64; 2],
    ) -> f64 {
        let again = |time: Time| time.price(is_of_mark(interval), price);
        let link = |resource: usize| price.shares[resource] * link_ns[resource];
        let levels = repeat.earlier.len();
        if self.values.is_empty() {
            self.first = position;
        }
        let last = self.values.len().checked_sub(levels);
        let mut before = 0.0;
        let added = self.values.len();
        for level in (0..levels).rev() {
            let EarlierValue { time, share } = repeat.earlier[level];
            let never = (f64::INFINITY, position);
            let value = last.map_or(
                Value {
                    repeated: never,
                    host: (f64::INFINITY, [position; 2]),
                    device: (f64::INFINITY, How::Stays),
                },
                |last| self.values[last + level],
            );
            let own = again(time);
            let repeated = less(value.repeated, (own, position));
            let copy = (repeated.0 + link(DOWNLOAD)) * share;
            let host = match share {
                0.0 => (0.0, [position; 2]),
                _ => less(value.host, (copy, [repeated.1, position])),
            };
            let device =
                less((value.device.0 + memory_ns, How::Stays), (own + before, How::IsRepeated));
            let device = less(device, (host.0 + link(UPLOAD), How::IsUploaded));
            before = device.0;
            self.values.push(Value { repeated, host, device });
        }
        self.values[added..].reverse();
        again(repeat.time) + before
    }

    /// Calls `charge` with each position, resource and time in ns per byte (1 for memory) that a repeat at a
    /// position takes.
    pub(super) fn charge(
        &self,
        repeat: &Repeat,
        mut position: usize,
        link_ns: [f64; 2],
        mut charge: impl FnMut(usize, usize, f64),
    ) {
        charge(position, LAUNCHES, repeat.time.ns());
        let levels = repeat.earlier.len();
        let mut level = 0;
        while let Some(&EarlierValue { time, share }) = repeat.earlier.get(level) {
            let value = self.values[(position - self.first) * levels + level];
            match value.device.1 {
                How::Stays => {
                    charge(position, MEMORY, 1.0);
                    position -= 1;
                }
                How::IsRepeated => {
                    charge(position, LAUNCHES, time.ns());
                    level += 1;
                }
                How::IsUploaded => {
                    charge(position, UPLOAD, link_ns[UPLOAD]);
                    let (_, [repeated, downloaded]) = value.host;
                    charge(repeated, LAUNCHES, time.ns() * share);
                    charge(downloaded, DOWNLOAD, link_ns[DOWNLOAD] * share);
                    break;
                }
            }
        }
    }
}

/// The cheaper one; the first if both cost the same.
fn less<T>(one: (f64, T), other: (f64, T)) -> (f64, T) {
    if other.0 < one.0 { other } else { one }
}
