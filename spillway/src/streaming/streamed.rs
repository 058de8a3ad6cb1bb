//! Which layers are streamed, through what memory, and an estimate of the period.

use planner_core::machine::Direction;
use planner_core::plan::Pool;
use planner_core::{Graph, Machine};

/// Objects that all layers together take at most, unless chunks are larger: a balance. More of them
/// waste less memory where sizes differ, and planning takes longer.
const MOST_OBJECTS: u64 = 4096;

/// Most activations that are on the device at a time, with that of the last layer.
const ACTIVATIONS: u64 = 3;

/// The layers, as numbers. Those that run on the host have no bytes there.
#[derive(Clone, Debug)]
pub(super) struct Layers {
    /// Sizes in whole chunks.
    pub(super) bytes: Vec<u64>,
    pub(super) time_ns: Vec<u64>,
    /// How long the upload of each takes.
    pub(super) upload_ns: Vec<u64>,
    /// How long each takes on the host, if it may run there.
    pub(super) host_ns: Vec<Option<u64>>,
    pub(super) on_host: Vec<bool>,
    /// How long what each hands on takes to the host, and to the device.
    handed_ns: Vec<(u64, u64)>,
    /// Whether what is handed on from the host comes before uploads that would end after it is there.
    pub(super) yields: bool,
    /// For weights, activations, and what is kept beside them.
    budget_bytes: u64,
    /// What each keeps beside its weights on the device, and all together, which may exceed 64 bits.
    pub(super) kept_bytes: Vec<u64>,
    kept_total_bytes: u128,
    /// Memory for what layers hand on, if the plan knows of it.
    pub(super) activations: Option<Pool>,
    /// The sum of the sizes, which may exceed 64 bits.
    total_bytes: u128,
    /// What divides all sizes, or nearly.
    pub(super) unit_bytes: u64,
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
    pub(super) on_host: Vec<bool>,
    pub(super) yields: bool,
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
    /// Reads the layers of a checked graph without what they keep beside their weights: so many bytes each.
    pub(super) fn new(
        graph: &Graph<'_>,
        machine: &Machine,
        budget_bytes: u64,
        kept_bytes: Vec<u64>,
    ) -> Self {
        let rounded = |bytes| machine.round_up_to_chunks(bytes).unwrap_or(u64::MAX);
        let transfer_ns =
            |direction, bytes| machine.transfer_ns(direction, bytes).unwrap_or(u64::MAX);
        let (weights, handed_on) = graph.tensors().split_at(graph.ops().len());
        let upload_ns = |bytes| transfer_ns(Direction::HostToDevice, bytes);
        let handed_ns = |bytes| (transfer_ns(Direction::DeviceToHost, bytes), upload_ns(bytes));
        let bytes: Vec<_> = weights.iter().map(|tensor| rounded(tensor.bytes)).collect();
        let whole = bytes.iter().copied().fold(0, gcd).max(1);
        let total_bytes = bytes.iter().map(|&bytes| u128::from(bytes)).sum();
        let total = u64::try_from(total_bytes).unwrap_or(u64::MAX);
        let coarse = rounded(total / MOST_OBJECTS);
        Self {
            time_ns: graph.ops().iter().map(|op| op.time_ns).collect(),
            upload_ns: weights.iter().map(|tensor| upload_ns(tensor.bytes)).collect(),
            host_ns: graph.ops().iter().map(|op| op.host_ns).collect(),
            on_host: vec![false; bytes.len()],
            handed_ns: handed_on.iter().map(|tensor| handed_ns(tensor.bytes)).collect(),
            yields: false,
            budget_bytes,
            kept_total_bytes: kept_bytes.iter().map(|&bytes| u128::from(bytes)).sum(),
            kept_bytes,
            activations: activations(handed_on.iter().map(|tensor| tensor.bytes), machine),
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
            host_ns: self.host_ns.repeat(iterations),
            on_host: self.on_host.repeat(iterations),
            handed_ns: self.handed_ns.repeat(iterations),
            // The same in all iterations, so that its sum is still right.
            kept_bytes: self.kept_bytes.clone(),
            ..*self
        }
    }

    /// The same layers, of which these run on the host, as they all may.
    pub(super) fn with_host(&self, on_host: &[bool], yields: bool) -> Self {
        let mut layers = Self { yields, ..self.clone() };
        for (layer, _) in on_host.iter().enumerate().filter(|(_, on_host)| **on_host) {
            layers.total_bytes -= u128::from(layers.bytes[layer]);
            layers.kept_total_bytes -= u128::from(layers.kept_bytes[layer]);
            layers.kept_bytes[layer] = 0;
            (layers.bytes[layer], layers.upload_ns[layer]) = (0, 0);
            layers.time_ns[layer] = layers.host_ns[layer].unwrap_or(u64::MAX);
            layers.on_host[layer] = true;
        }
        layers
    }

    /// The layer before another, in the cycle.
    pub(super) const fn before(&self, layer: usize) -> usize {
        (if layer == 0 { self.on_host.len() } else { layer }) - 1
    }

    /// What a layer waits for if the one before it runs elsewhere: which way that one's activation
    /// goes, and for how long.
    pub(super) fn crossing(&self, layer: usize) -> Option<(Direction, u64)> {
        let before = self.before(layer);
        let &(down_ns, up_ns) = self.handed_ns.get(before)?;
        match (self.on_host[before], self.on_host[layer]) {
            (false, true) => Some((Direction::DeviceToHost, down_ns)),
            (true, false) => Some((Direction::HostToDevice, up_ns)),
            _ => None,
        }
    }

    /// The object of a layer's activation: two of them in turn, and one for that of the last layer, which
    /// lasts until the next iteration.
    pub(super) fn activation_object(&self, layer: usize) -> u64 {
        let last = self.activations.map_or(0, |pool| pool.count.saturating_sub(1));
        if layer + 1 == self.len() { last } else { layer as u64 % 2 }
    }

    /// Whether layers that stay lie in the arena: its offsets are multiples of 256, or of a smaller
    /// chunk. Otherwise they have a pool of chunks.
    pub(super) const fn stay_in_arena(&self) -> bool {
        self.chunk_bytes.is_multiple_of(arena_step_bytes(self.chunk_bytes))
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The sum of some quantity over some layers.
    pub(super) fn sum(of: &[u64], layers: &[usize]) -> u64 {
        layers.iter().fold(0, |sum, &layer| sum.saturating_add(of[layer]))
    }

    /// The budget without what is kept beside the weights of layers on the device.
    pub(super) fn bare_budget_bytes(&self) -> u64 {
        let left_bytes = u128::from(self.budget_bytes).saturating_sub(self.kept_total_bytes);
        // At most the budget.
        left_bytes as u64
    }

    /// The budget for weights.
    pub(super) fn weight_bytes(&self) -> u64 {
        self.bare_budget_bytes().saturating_sub(pool_bytes(self.activations))
    }

    /// What does not fit, in whole units.
    pub(super) fn excess_bytes(&self) -> u64 {
        let fits = self.budget_bytes.saturating_sub(pool_bytes(self.activations));
        let fits = fits / self.unit_bytes * self.unit_bytes;
        let bytes = self.total_bytes + self.kept_total_bytes;
        u64::try_from(bytes).unwrap_or(u64::MAX).saturating_sub(fits)
    }

    /// What is left for the layers that are streamed, if that is enough for the largest of them.
    pub(super) fn slots(&self, order: &[usize], shape: Shape) -> Option<Slots> {
        let streamed = || order.iter().map(|&layer| self.bytes[layer]);
        let streamed_bytes: u128 = streamed().map(u128::from).sum();
        let resident_bytes = u64::try_from(self.total_bytes - streamed_bytes).ok()?;
        let left_bytes = self.weight_bytes().checked_sub(resident_bytes)?;
        let largest = streamed().max().unwrap_or(0);
        let object_bytes = match shape {
            Shape::Slots => largest.max(self.chunk_bytes),
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
        let (on_host, yields) = (self.on_host.clone(), self.yields);
        Some(Streamed { order, shape, on_host, yields, period_ns, upload_ns })
    }

    /// The shapes that differ.
    pub(super) fn shapes(&self) -> &'static [Shape] {
        match self.bytes.iter().all(|&bytes| bytes == 0 || bytes == self.unit_bytes) {
            true => &[Shape::Slots],
            false => &[Shape::Slots, Shape::Packed],
        }
    }
}

/// Memory for what layers hand on, if they do.
pub(super) fn activations(
    bytes: impl ExactSizeIterator<Item = u64>,
    machine: &Machine,
) -> Option<Pool> {
    let count = ACTIVATIONS.min(bytes.len() as u64);
    let largest = bytes.max().filter(|&bytes| bytes > 0)?;
    let object_bytes = machine.round_up_to_chunks(largest).unwrap_or(u64::MAX);
    Some(Pool { object_bytes, count })
}

/// The bytes of a pool, if there is one.
pub(super) fn pool_bytes(pool: Option<Pool>) -> u64 {
    pool.map_or(0, |pool| pool.object_bytes.saturating_mul(pool.count))
}

/// Offsets in an arena are multiples of this: 256, or a smaller chunk.
pub(super) const fn arena_step_bytes(chunk_bytes: u64) -> u64 {
    if chunk_bytes < 256 { chunk_bytes } else { 256 }
}

pub(super) const fn gcd(mut one: u64, mut other: u64) -> u64 {
    while other > 0 {
        (one, other) = (other, one % other);
    }
    one
}
