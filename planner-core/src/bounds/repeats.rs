//! The least cost of the bytes that do not fit, if ops may be repeated; `docs/research/bounds.md` has the
//! proof.

#![expect(
    clippy::indexing_slicing,
    reason = "ops and tensors are those of the checked graph, and the arrays have an entry for \
              each"
)]

use super::any_order::{ARRIVES, OVERWRITTEN, READ, flags};
use super::reached::Reached;
use super::{BoundOrder, Reads};
use crate::graph::{Graph, Kind, Launched, OpId, TensorId};
use crate::machine::Machine;
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};

pub(super) const fn scratch_words(limits: &Limits) -> usize {
    total([
        words::<u8>(limits.tensors),
        Reads::scratch_words(limits),
        Held::scratch_words(limits),
        words::<Offer>(limits.tensors),
    ])
}

/// Returns a bound on the period from the bytes that are held while one op runs: bytes that do not
/// fit are uploaded later or computed again. O(operands + tensors log tensors).
pub(super) fn period_ns(
    graph: &Graph<'_>,
    machine: &Machine,
    budget_bytes: u64,
    (order, around): (BoundOrder, OpId),
    scratch: &mut Scratch<'_>,
) -> Result<u64, OutOfScratch> {
    let mut scratch = scratch.reborrow();
    let mut reads = Reads::new(graph, &mut scratch)?;
    let flags = flags(graph, &mut reads, &mut scratch)?;
    let mut held = Held::new(graph, (order, around), &mut reads, &mut scratch)?;
    held.set_prices(graph);
    let offers = scratch.take(graph.tensors().len(), Offer::default())?;
    let absent = Absent::new(graph, around, budget_bytes, (&held, flags), offers);
    Ok(absent.period_ns(machine, graph.compute_ns(), graph.op(around).time_ns))
}

/// A price in 2^-32 ns for a byte, and the number of bytes at this price.
type Offer = [u64; 2];

/// The number of binary places of a price.
const PRICE_BITS: u32 = 32;

/// The value that each tensor holds around the op.
struct Held<'a> {
    facts: &'a mut [u8],
    /// The ops from the first op that uses the value to the op that overwrites it unread.
    ops: &'a mut [[u32; 2]],
    /// The price of computing a byte of it again; the highest price if no op does.
    price: &'a mut [u64],
}

/// An op that uses the value comes before the op in every order, or is the op.
const BEFORE: u8 = 1;
/// An op that uses the value comes after the op in every order, or is the op.
const AFTER: u8 = 2;
/// The op uses the value.
const TOUCHED: u8 = 4;
/// The first op that uses the value reads it, so it comes from the host.
const FROM_HOST: u8 = 8;

impl<'a> Held<'a> {
    const fn scratch_words(limits: &Limits) -> usize {
        total([
            words::<u8>(limits.tensors),
            words::<[u32; 2]>(limits.tensors),
            words::<u64>(limits.tensors),
            words::<u8>(limits.ops),
            words::<u8>(limits.tensors),
            words::<u32>(limits.tensors),
            Reached::<u8>::scratch_words(limits),
        ])
    }

    fn new(
        graph: &Graph<'_>,
        (order, around): (BoundOrder, OpId),
        reads: &mut Reads<'_>,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let tensors = graph.tensors().len();
        let mut held = Self {
            facts: scratch.take(tensors, 0u8)?,
            ops: scratch.take(tensors, [0u32; 2])?,
            price: scratch.take(tensors, u64::MAX)?,
        };
        let mut scratch = scratch.reborrow();
        let touch = scratch.take(graph.ops().len(), 0u8)?;
        let (facts, first) = (scratch.take(tensors, 0u8)?, scratch.take(tensors, u32::MAX)?);
        let mut reached = Reached::new(graph, order, 0u8, core::ops::BitOr::bitor, &mut scratch)?;
        let own = |op, fact| if op == around { fact } else { 0 };
        for op in graph.op_ids().rev() {
            touch[op.index()] = reached.step(graph, op, |facts| facts | own(op, BEFORE));
        }
        reached.clear();
        for op in graph.op_ids() {
            let after = reached.step(graph, op, |facts| facts | own(op, AFTER));
            touch[op.index()] |= after | own(op, TOUCHED);
        }
        for op in graph.op_ids() {
            reads.note(graph, op);
            for tensor in reads.overwrites(graph, op) {
                let at = tensor.index();
                held.keep(at, facts[at], [first[at], op.0]);
                (facts[at], first[at]) = (0, op.0);
            }
            for tensor in reads.touches(graph, op) {
                let at = tensor.index();
                if first[at] == u32::MAX {
                    (facts[at], first[at]) = (FROM_HOST, op.0);
                }
                facts[at] |= touch[op.index()];
            }
        }
        for at in 0..tensors {
            held.keep(at, facts[at], [first[at], u32::MAX]);
        }
        Ok(held)
    }

    /// Records a value if it is alive around the op. At most one value of a tensor is.
    fn keep(&mut self, at: usize, facts: u8, ops: [u32; 2]) {
        if facts & BEFORE != 0 && facts & AFTER != 0 {
            (self.facts[at], self.ops[at]) = (facts, ops);
        }
    }

    /// Sets the prices. A repeat provides everything that its op writes, so its time is shared by
    /// their bytes.
    fn set_prices(&mut self, graph: &Graph<'_>) {
        for op in graph.op_ids().filter(|&op| graph.op(op).repeatable) {
            let writes = graph.written_by(Launched::repeat(op));
            let makes = |held: &Self, tensor: &TensorId| {
                let [first, end] = held.ops[tensor.index()];
                held.facts[tensor.index()] != 0 && (first..end).contains(&op.0)
            };
            let held = &*self;
            let made = writes.clone().filter(|tensor| makes(held, tensor));
            let bytes: u64 = made.map(|tensor| graph.tensor(tensor).bytes).sum();
            let time = u128::from(graph.op(op).time_ns) << PRICE_BITS;
            let price = time.checked_div(u128::from(bytes)).unwrap_or(0);
            // Prices are rounded down. The highest price means that there is none.
            let price = u64::try_from(price).unwrap_or(u64::MAX).min(u64::MAX - 1);
            for tensor in writes {
                if makes(self, &tensor) {
                    let lowest = &mut self.price[tensor.index()];
                    *lowest = price.min(*lowest);
                }
            }
        }
    }
}

/// The bytes that may be absent while the op runs, and the bytes that must be.
struct Absent<'a> {
    excess_bytes: u64,
    /// States, which may come back at any time of an iteration.
    state_bytes: u64,
    /// Inputs, which come back after the op.
    input_bytes: u64,
    /// Temporaries, which leave before the op and come back after it.
    temporary_bytes: u64,
    /// All inputs that are read.
    arriving_bytes: u64,
    /// Bytes that may be computed again instead, from the lowest price on.
    offers: &'a [Offer],
}

#[expect(
    clippy::arithmetic_side_effects,
    reason = "the bytes of a graph fit into 64 bits, `count` counts tensors, no period is below the \
              compute time, and products of two 64-bit numbers fit into 128 bits"
)]
impl<'a> Absent<'a> {
    fn new(
        graph: &Graph<'_>,
        around: OpId,
        budget_bytes: u64,
        (held, flags): (&Held<'_>, &[u8]),
        offers: &'a mut [Offer],
    ) -> Self {
        let mut held_bytes = graph.op(around).workspace_bytes;
        let [mut states, mut inputs, mut temporaries, mut arriving_bytes] = [0u64; 4];
        let mut count = 0;
        for tensor in graph.tensor_ids() {
            let (at, bytes, kind) =
                (tensor.index(), graph.tensor(tensor).bytes, graph.tensor(tensor).kind);
            let facts = held.facts[at];
            if kind == Kind::Input && flags[at] & ARRIVES != 0 {
                arriving_bytes += bytes;
            }
            let lives = match kind {
                Kind::State => flags[at] & (READ | OVERWRITTEN) == READ || facts & TOUCHED != 0,
                Kind::Input | Kind::Temporary | Kind::Output => facts != 0,
            };
            if !lives {
                continue;
            }
            held_bytes = held_bytes.saturating_add(bytes);
            if facts & TOUCHED != 0 {
                continue;
            }
            match kind {
                Kind::State => states += bytes,
                Kind::Input if facts & FROM_HOST != 0 => inputs += bytes,
                Kind::Input | Kind::Temporary | Kind::Output => temporaries += bytes,
            }
            if kind == Kind::Temporary && held.price[at] != u64::MAX {
                offers[count] = [held.price[at], bytes];
                count += 1;
            }
        }
        offers[..count].sort_unstable();
        Self {
            excess_bytes: held_bytes.saturating_sub(budget_bytes),
            state_bytes: states,
            input_bytes: inputs,
            temporary_bytes: temporaries,
            arriving_bytes,
            offers: &offers[..count],
        }
    }

    /// The shortest period in which the excess can be absent, less the nanosecond by which the mean
    /// of periods is rounded down.
    fn period_ns(&self, machine: &Machine, compute_ns: u64, op_ns: u64) -> u64 {
        let suffices = |period_ns: u64| {
            let carried_bytes = carried_bytes(period_ns, machine.h2d_bytes_per_s);
            if carried_bytes < self.arriving_bytes {
                return false;
            }
            let again_bytes = self.made_again_bytes(period_ns - compute_ns);
            let moved_bytes = self.moved_bytes(machine, period_ns, period_ns.saturating_sub(op_ns));
            again_bytes.saturating_add(moved_bytes) >= self.excess_bytes
        };
        if suffices(compute_ns) {
            return compute_ns;
        }
        // A period that is too short, and one that suffices or is the longest possible.
        let (mut short_ns, mut enough_ns) = (compute_ns, u64::MAX);
        while enough_ns - short_ns > 1 {
            let middle_ns = short_ns + (enough_ns - short_ns) / 2;
            if suffices(middle_ns) {
                enough_ns = middle_ns;
            } else {
                short_ns = middle_ns;
            }
        }
        short_ns
    }

    /// The most bytes that repeats of this total time can provide.
    fn made_again_bytes(&self, time_ns: u64) -> u64 {
        let mut left = u128::from(time_ns) << PRICE_BITS;
        let mut again_bytes = 0u64;
        for &[price, bytes] in self.offers {
            let cost = u128::from(price) * u128::from(bytes);
            if cost > left {
                let part = left / u128::from(price.max(1)) + 1;
                return again_bytes.saturating_add(u64::try_from(part).unwrap_or(bytes).min(bytes));
            }
            left -= cost;
            again_bytes = again_bytes.saturating_add(bytes);
        }
        again_bytes
    }

    /// The most bytes that can come back over the link: all bytes that it carries in a period, less
    /// the inputs; and states in addition to bytes that leave and come back while the op does not
    /// run.
    fn moved_bytes(&self, machine: &Machine, period_ns: u64, others_ns: u64) -> u64 {
        let (upload, download) = (machine.h2d_bytes_per_s, machine.d2h_bytes_per_s);
        let carried = carried_bytes(period_ns, upload).saturating_sub(self.arriving_bytes);
        let inputs = self.input_bytes.min(carried_bytes(others_ns, upload));
        let temporaries = carried_both_ways_bytes(others_ns, inputs, [upload, download]);
        let temporaries = temporaries.min(self.temporary_bytes);
        carried.min(self.state_bytes.saturating_add(inputs).saturating_add(temporaries))
    }
}

/// The bytes that a link carries in a time, rounded up.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "a product of two 64-bit numbers fits into 128 bits"
)]
fn carried_bytes(time_ns: u64, bytes_per_s: u64) -> u64 {
    let bytes = (u128::from(time_ns) * u128::from(bytes_per_s)).div_ceil(1_000_000_000);
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// The bytes that can be downloaded and then uploaded in a time, in addition to others that are
/// only uploaded; rounded up.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "a product of two 64-bit numbers fits into 128 bits"
)]
fn carried_both_ways_bytes(time_ns: u64, others_bytes: u64, [upload, download]: [u64; 2]) -> u64 {
    let carried = u128::from(time_ns) * u128::from(upload);
    let left = carried.saturating_sub(u128::from(others_bytes) * 1_000_000_000);
    let Some(product) = left.checked_mul(u128::from(download)) else { return u64::MAX };
    let both = (u128::from(upload) + u128::from(download)) * 1_000_000_000;
    u64::try_from(product.div_ceil(both)).unwrap_or(u64::MAX)
}
