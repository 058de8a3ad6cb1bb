//! Repeats in floating point: their prices, and the resources that they take.

use super::point::{DOWNLOAD, LAUNCHES, MEMORY, Point, UPLOAD};
use planner_core::bounds::priced::{Earlier, Visits, is_of_mark};
use planner_core::{Graph, OpId, TensorId};

/// The repeat of the op of a write.
pub(super) struct Repeat {
    /// The visit that is the write.
    pub(super) write: usize,
    /// The time in ns for each byte that shares it.
    ns: f64,
    earlier: Vec<EarlierValue>,
}

/// An earlier value that a repeat needs.
struct EarlierValue {
    /// The time in ns for each byte that shares a repeat of its op.
    ns: f64,
    /// The part of a repeat and of a download that each read pays for a copy on the host.
    share: f64,
}

/// A key that is equal for equal repeats.
pub(super) type Key = (usize, u64, Vec<(u64, u64)>);

impl Repeat {
    /// The repeat after a visit of a tensor; `None` if there is none.
    pub(super) fn after(
        visit: usize,
        tensor: TensorId,
        graph: &Graph<'_>,
        visits: &Visits<'_>,
    ) -> Option<Self> {
        let write = visits.write_of(tensor, visit)?;
        let ns = |op| graph.op(op).time_ns as f64 / visits.made_bytes(op) as f64;
        let earlier = visits.earlier(tensor, write).map(|Earlier { maker, copy_reads }| {
            let share = if copy_reads > 0 { 1.0 / f64::from(copy_reads) } else { 0.0 };
            EarlierValue { ns: ns(maker), share }
        });
        let maker = OpId(visits.of(tensor)[write].maker);
        Some(Self { write, ns: ns(maker), earlier: earlier.collect() })
    }

    pub(super) fn key(&self) -> Key {
        let earlier = self.earlier.iter();
        let earlier = earlier.map(|value| (value.ns.to_bits(), value.share.to_bits()));
        (self.write, self.ns.to_bits(), earlier.collect())
    }
}

/// The cheapest ways to restore the earlier values before a write, interval by interval.
#[derive(Default)]
pub(super) struct Restored {
    first: usize,
    values: Vec<Value>,
}

/// The cheapest ways to restore an earlier value by an interval.
#[derive(Clone, Copy)]
struct Value {
    /// The cost of a repeat of its op, and the interval in which it runs.
    repeated: (f64, usize),
    /// The cost of a copy on the host for one read, and the intervals of the repeat and the download.
    host: (f64, [usize; 2]),
    device: (f64, How),
}

/// How an earlier value comes to be on the device in an interval.
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

    /// Goes on to the next interval, as in the core. Returns the price of the repeat in it.
    pub(super) fn step(
        &mut self,
        repeat: &Repeat,
        interval: usize,
        price: &Point,
        memory_ns: f64,
        link_ns: [f64; 2],
    ) -> f64 {
        let again = |ns: f64| match is_of_mark(interval) {
            true => f64::INFINITY,
            false => ns * price.shares[LAUNCHES],
        };
        let link = |resource: usize| price.shares[resource] * link_ns[resource];
        let levels = repeat.earlier.len();
        if self.values.is_empty() {
            self.first = interval;
        }
        let last = self.values.len().checked_sub(levels);
        let mut before = 0.0;
        let added = self.values.len();
        for level in (0..levels).rev() {
            let EarlierValue { ns, share } = repeat.earlier[level];
            let never = (f64::INFINITY, interval);
            let value = last.map_or(
                Value {
                    repeated: never,
                    host: (f64::INFINITY, [interval; 2]),
                    device: (f64::INFINITY, How::Stays),
                },
                |last| self.values[last + level],
            );
            let own = again(ns);
            let repeated = less(value.repeated, (own, interval));
            let copy = (repeated.0 + link(DOWNLOAD)) * share;
            let host = match share {
                0.0 => (0.0, [interval; 2]),
                _ => less(value.host, (copy, [repeated.1, interval])),
            };
            let device =
                less((value.device.0 + memory_ns, How::Stays), (own + before, How::IsRepeated));
            let device = less(device, (host.0 + link(UPLOAD), How::IsUploaded));
            before = device.0;
            self.values.push(Value { repeated, host, device });
        }
        self.values[added..].reverse();
        again(repeat.ns) + before
    }

    /// Calls `charge` with each interval, resource and time in ns per byte (1 for memory) that a repeat in an
    /// interval takes.
    pub(super) fn charge(
        &self,
        repeat: &Repeat,
        mut interval: usize,
        link_ns: [f64; 2],
        mut charge: impl FnMut(usize, usize, f64),
    ) {
        charge(interval, LAUNCHES, repeat.ns);
        let levels = repeat.earlier.len();
        let mut level = 0;
        while let Some(&EarlierValue { ns, share }) = repeat.earlier.get(level) {
            let value = self.values[(interval - self.first) * levels + level];
            match value.device.1 {
                How::Stays => {
                    charge(interval, MEMORY, 1.0);
                    interval -= 1;
                }
                How::IsRepeated => {
                    charge(interval, LAUNCHES, ns);
                    level += 1;
                }
                How::IsUploaded => {
                    charge(interval, UPLOAD, link_ns[UPLOAD]);
                    let (_, [repeated, downloaded]) = value.host;
                    charge(repeated, LAUNCHES, ns * share);
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
