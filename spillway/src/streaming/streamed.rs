//! The choice of streamed layers, their memory, and an estimate of the period.

use planner_core::machine::Direction;
use planner_core::plan::Pool;
use planner_core::{Graph, Machine};

/// The approximate limit on the objects of all layers. With more objects, layers of different sizes waste
/// less memory, but planning takes longer.
const MOST_OBJECTS: u64 = 4096;

/// The most activations on the device at a time, with the activation of the last layer.
const ACTIVATIONS: u64 = 3;

/// The sizes and times of the layers. Layers on the host have 0 bytes.
#[derive(Clone, Debug)]
pub(super) struct Layers {
    /// The sizes in whole chunks.
    pub(super) bytes: Vec<u64>,
    pub(super) time_ns: Vec<u64>,
    /// The upload time of each layer.
    pub(super) upload_ns: Vec<u64>,
    /// The time of each layer on the host, if it may run there.
    pub(super) host_ns: Vec<Option<u64>>,
    pub(super) on_host: Vec<bool>,
    /// The transfer times of each activation to the host and to the device.
    handed_ns: Vec<(u64, u64)>,
    /// Whether an activation from the host goes before uploads that would end after it is ready.
    pub(super) yields: bool,
    /// The budget for weights, activations, caches and outputs.
    budget_bytes: u64,
    /// The bytes of caches and outputs of each layer on the device, and their sum, which may exceed 64 bits.
    pub(super) kept_bytes: Vec<u64>,
    kept_total_bytes: u128,
    /// The pool of activations, if layers have activations.
    pub(super) activations: Option<Pool>,
    /// The sum of the sizes, which may exceed 64 bits.
    total_bytes: u128,
    /// A unit that divides all sizes, at least approximately.
    pub(super) unit_bytes: u64,
    pub(super) chunk_bytes: u64,
}

/// The memory of the streamed layers: objects of one size, numbered from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Slots {
    pub(super) object_bytes: u64,
    pub(super) count: u64,
    /// The number of objects of each streamed layer, in the order in which the layers come.
    pub(super) taken: Vec<u64>,
    /// The first object of each streamed layer, if it is fixed.
    pub(super) first: Option<Vec<u64>>,
}

/// The division of the memory for streamed layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Slots as large as the largest streamed layer.
    Slots,
    /// Ranges of the size of each layer. The estimate does not check that they can be placed.
    Packed,
}

/// A choice of layers to stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Streamed {
    /// The streamed layers, in the order in which they come.
    pub(super) order: Vec<usize>,
    pub(super) shape: Shape,
    pub(super) on_host: Vec<bool>,
    pub(super) yields: bool,
    /// An estimate of the period, which plans hardly ever beat.
    pub(super) period_ns: u64,
    pub(super) upload_ns: u64,
}

impl Streamed {
    /// The cost for comparing choices: the period, then the upload time.
    pub(super) const fn cost(&self) -> (u64, u64) {
        (self.period_ns, self.upload_ns)
    }
}

impl Layers {
    /// Reads the layers of a checked graph without caches and outputs. `kept_bytes` are the bytes of cache
    /// and output of each layer.
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

    /// Returns the layers over several iterations as one iteration.
    pub(super) fn repeated(&self, iterations: usize) -> Self {
        Self {
            bytes: self.bytes.repeat(iterations),
            time_ns: self.time_ns.repeat(iterations),
            upload_ns: self.upload_ns.repeat(iterations),
            host_ns: self.host_ns.repeat(iterations),
            on_host: self.on_host.repeat(iterations),
            handed_ns: self.handed_ns.repeat(iterations),
            // Caches and outputs are the same in all iterations, so their sum does not change.
            kept_bytes: self.kept_bytes.clone(),
            ..*self
        }
    }

    /// Returns the layers with some on the host. All of these layers must be able to run there.
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

    /// Returns the layer before another one in the cycle.
    pub(super) const fn before(&self, layer: usize) -> usize {
        (if layer == 0 { self.on_host.len() } else { layer }) - 1
    }

    /// Returns the direction and the time of the transfer that a layer waits for, if the layer before it runs
    /// on the other processor.
    pub(super) fn crossing(&self, layer: usize) -> Option<(Direction, u64)> {
        let before = self.before(layer);
        let &(down_ns, up_ns) = self.handed_ns.get(before)?;
        match (self.on_host[before], self.on_host[layer]) {
            (false, true) => Some((Direction::DeviceToHost, down_ns)),
            (true, false) => Some((Direction::HostToDevice, up_ns)),
            _ => None,
        }
    }

    /// Returns the object of the activation of a layer. Layers use two objects in turn, and the last layer
    /// has its own, since its activation lasts until the next iteration.
    pub(super) fn activation_object(&self, layer: usize) -> u64 {
        let last = self.activations.map_or(0, |pool| pool.count.saturating_sub(1));
        if layer + 1 == self.len() { last } else { layer as u64 % 2 }
    }

    /// Returns whether staying layers lie in the arena, whose offsets are multiples of 256 or of a smaller
    /// chunk. Otherwise they lie in a pool of chunks.
    pub(super) const fn stay_in_arena(&self) -> bool {
        self.chunk_bytes.is_multiple_of(arena_step_bytes(self.chunk_bytes))
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the sum of a quantity over some layers.
    pub(super) fn sum(of: &[u64], layers: &[usize]) -> u64 {
        layers.iter().fold(0, |sum, &layer| sum.saturating_add(of[layer]))
    }

    /// Returns the budget without the caches and outputs of layers on the device.
    pub(super) fn bare_budget_bytes(&self) -> u64 {
        let left_bytes = u128::from(self.budget_bytes).saturating_sub(self.kept_total_bytes);
        // The value is at most the budget, so it fits in 64 bits.
        left_bytes as u64
    }

    /// Returns the budget for weights.
    pub(super) fn weight_bytes(&self) -> u64 {
        self.bare_budget_bytes().saturating_sub(pool_bytes(self.activations))
    }

    /// Returns the bytes that do not fit, in whole units.
    pub(super) fn excess_bytes(&self) -> u64 {
        let fits = self.budget_bytes.saturating_sub(pool_bytes(self.activations));
        let fits = fits / self.unit_bytes * self.unit_bytes;
        let bytes = self.total_bytes + self.kept_total_bytes;
        u64::try_from(bytes).unwrap_or(u64::MAX).saturating_sub(fits)
    }

    /// Returns the memory left for the streamed layers, if it is enough for the largest of them.
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
        // More objects than all streamed layers take are useless.
        let count = all.min(left_bytes / object_bytes);
        if largest.div_ceil(object_bytes) > count {
            return None;
        }
        Some(Slots { object_bytes, count, taken, first: None })
    }

    /// Returns the choice with an estimate of its period, in which every upload starts as soon as it has
    /// memory. Returns `None` if the choice does not fit.
    pub(super) fn judge(&self, order: Vec<usize>, shape: Shape) -> Option<Streamed> {
        self.judge_below(order, shape, u64::MAX)
    }

    /// Does the same, but may return `None` if the period is longer than `most_ns`.
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

    /// Returns the shapes that differ for these layers.
    pub(super) fn shapes(&self) -> &'static [Shape] {
        match self.bytes.iter().all(|&bytes| bytes == 0 || bytes == self.unit_bytes) {
            true => &[Shape::Slots],
            false => &[Shape::Slots, Shape::Packed],
        }
    }
}

/// Returns the pool of activations, if layers have activations.
pub(super) fn activations(
    bytes: impl ExactSizeIterator<Item = u64>,
    machine: &Machine,
) -> Option<Pool> {
    let count = ACTIVATIONS.min(bytes.len() as u64);
    let largest = bytes.max().filter(|&bytes| bytes > 0)?;
    let object_bytes = machine.round_up_to_chunks(largest).unwrap_or(u64::MAX);
    Some(Pool { object_bytes, count })
}

/// Returns the bytes of a pool, or 0 without a pool.
pub(super) fn pool_bytes(pool: Option<Pool>) -> u64 {
    pool.map_or(0, |pool| pool.object_bytes.saturating_mul(pool.count))
}

/// Returns the step of offsets in an arena: 256 bytes, or a smaller chunk.
pub(super) const fn arena_step_bytes(chunk_bytes: u64) -> u64 {
    if chunk_bytes < 256 { chunk_bytes } else { 256 }
}

pub(super) const fn gcd(mut one: u64, mut other: u64) -> u64 {
    while other > 0 {
        (one, other) = (other, one % other);
    }
    one
}
