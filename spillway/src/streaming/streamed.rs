//! Which layers are streamed, through what memory, and an estimate of the period.

use planner_core::machine::Direction;
use planner_core::{Graph, Machine};

/// Objects that all layers together take at most, unless chunks are larger: a balance. More of them
/// waste less memory where sizes differ, and planning takes longer.
const MOST_OBJECTS: u64 = 4096;

/// The layers, as numbers.
#[derive(Debug)]
pub(super) struct Layers {
    /// Sizes in whole chunks.
    pub(super) bytes: Vec<u64>,
    pub(super) time_ns: Vec<u64>,
    /// How long the upload of each takes.
    pub(super) upload_ns: Vec<u64>,
    pub(super) budget_bytes: u64,
    /// The sum of the sizes, which may exceed 64 bits.
    total_bytes: u128,
    /// What divides all sizes, or nearly.
    unit_bytes: u64,
    pub(super) chunk_bytes: u64,
}

/// Memory for the layers that are streamed: objects of one size, numbered from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Slots {
    pub(super) object_bytes: u64,
    pub(super) count: u64,
    /// How many objects each layer that is streamed takes, in the order in which they come.
    pub(super) taken: Vec<u64>,
    /// The first of them, if it is fixed.
    pub(super) first: Option<Vec<u64>>,
}

/// How the memory for streamed layers is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Into slots as large as the largest of them.
    Slots,
    /// As each layer needs it, if they can be laid out so: the estimate does not know.
    Packed,
}

/// Some layers to stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Streamed {
    /// The layers that are streamed, in the order in which they come.
    pub(super) order: Vec<usize>,
    pub(super) shape: Shape,
    /// At least the period.
    pub(super) period_ns: u64,
    pub(super) upload_ns: u64,
}

impl Streamed {
    /// What makes one choice better than another.
    pub(super) const fn cost(&self) -> (u64, u64) {
        (self.period_ns, self.upload_ns)
    }
}

impl Layers {
    /// Reads the layers of a checked graph.
    pub(super) fn new(graph: &Graph<'_>, machine: &Machine, budget_bytes: u64) -> Self {
        let rounded = |bytes| machine.round_up_to_chunks(bytes).unwrap_or(u64::MAX);
        let upload_ns = |bytes| machine.transfer_ns(Direction::HostToDevice, bytes);
        let tensors = graph.tensors().iter();
        let bytes: Vec<_> = tensors.clone().map(|tensor| rounded(tensor.bytes)).collect();
        let whole = bytes.iter().copied().fold(0, gcd).max(1);
        let total_bytes = bytes.iter().map(|&bytes| u128::from(bytes)).sum();
        let total = u64::try_from(total_bytes).unwrap_or(u64::MAX);
        let coarse = rounded(total / MOST_OBJECTS);
        Self {
            time_ns: graph.ops().iter().map(|op| op.time_ns).collect(),
            upload_ns: tensors.map(|tensor| upload_ns(tensor.bytes).unwrap_or(u64::MAX)).collect(),
            budget_bytes,
            total_bytes,
            unit_bytes: if total / whole > MOST_OBJECTS { coarse } else { whole },
            chunk_bytes: machine.chunk_bytes,
            bytes,
        }
    }

    /// The same layers over so many iterations, as if these were one.
    pub(super) fn repeated(&self, iterations: usize) -> Self {
        Self {
            bytes: self.bytes.repeat(iterations),
            time_ns: self.time_ns.repeat(iterations),
            upload_ns: self.upload_ns.repeat(iterations),
            ..*self
        }
    }

    /// Whether layers that stay lie in the arena: its offsets are multiples of 256, or of a smaller
    /// chunk. Otherwise they have a pool of chunks.
    pub(super) const fn stay_in_arena(&self) -> bool {
        self.chunk_bytes.is_multiple_of(if self.chunk_bytes < 256 { self.chunk_bytes } else { 256 })
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The sum of some quantity over some layers.
    pub(super) fn sum(of: &[u64], layers: &[usize]) -> u64 {
        layers.iter().fold(0, |sum, &layer| sum.saturating_add(of[layer]))
    }

    /// What is left for the layers that are streamed, if that is enough for the largest of them.
    pub(super) fn slots(&self, order: &[usize], shape: Shape) -> Option<Slots> {
        let streamed = || order.iter().map(|&layer| self.bytes[layer]);
        let streamed_bytes: u128 = streamed().map(u128::from).sum();
        let resident_bytes = u64::try_from(self.total_bytes - streamed_bytes).ok()?;
        let left_bytes = self.budget_bytes.checked_sub(resident_bytes)?;
        let largest = streamed().max().unwrap_or(0);
        let object_bytes = match shape {
            Shape::Slots => largest.max(1),
            Shape::Packed => self.unit_bytes,
        };
        let taken: Vec<_> = streamed().map(|bytes| bytes.div_ceil(object_bytes)).collect();
        let all = taken.iter().copied().fold(0, u64::saturating_add);
        // More than all of them take is of no use.
        let count = all.min(left_bytes / object_bytes);
        if largest.div_ceil(object_bytes) > count {
            return None;
        }
        Some(Slots { object_bytes, count, taken, first: None })
    }

    /// The choice with an estimate of its period: what it takes if every upload starts as soon as it
    /// has memory. None where it does not fit.
    pub(super) fn judge(&self, order: Vec<usize>, shape: Shape) -> Option<Streamed> {
        self.judge_below(order, shape, u64::MAX)
    }

    /// The same, and none where the period is certainly longer than that.
    pub(super) fn judge_below(
        &self,
        order: Vec<usize>,
        shape: Shape,
        most_ns: u64,
    ) -> Option<Streamed> {
        let upload_ns = Self::sum(&self.upload_ns, &order);
        let slots = (upload_ns <= most_ns).then(|| self.slots(&order, shape)).flatten()?;
        let period_ns = self.period_ns(&order, &slots)?;
        Some(Streamed { order, shape, period_ns, upload_ns })
    }

    /// The shapes that differ.
    pub(super) fn shapes(&self) -> &'static [Shape] {
        match self.bytes.iter().all(|&bytes| bytes == self.unit_bytes) {
            true => &[Shape::Slots],
            false => &[Shape::Slots, Shape::Packed],
        }
    }
}

const fn gcd(mut one: u64, mut other: u64) -> u64 {
    while other > 0 {
        (one, other) = (other, one % other);
    }
    one
}
