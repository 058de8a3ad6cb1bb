//! A graph as a chain of layers, as in the weight-offloading paper (section 3).

#![expect(
    clippy::indexing_slicing,
    reason = "layers, ops and tensors are those of the sequence, and the arrays have an entry for \
              each"
)]

use crate::graph::{Kind, TensorId};
use crate::machine::{Direction, Machine};
use crate::planner::error::PlanningError;
use crate::planner::memory::{CHUNKS, Memory};
use crate::planner::request::Task;
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};
use crate::sequence::{LaunchId, Sequence};

/// The tensors of a layer: the state that it reads and updates, the state of its optimizer, its
/// input activation, and its output activation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Layer {
    weight: Option<TensorId>,
    optimizer: Option<TensorId>,
    before: Option<TensorId>,
    after: Option<TensorId>,
}

/// Whether a list of distinct tensors holds exactly the given tensors.
fn holds(list: &[TensorId], tensors: &[Option<TensorId>]) -> bool {
    list.len() == tensors.iter().flatten().count()
        && tensors.iter().flatten().all(|tensor| list.contains(tensor))
}

/// The layer of a forward op, after a layer whose output is `before`.
fn layer(sequence: &Sequence<'_>, op: LaunchId, before: Option<TensorId>) -> Option<Layer> {
    let mut layer = Layer { before, ..Layer::default() };
    for &tensor in sequence.reads(op) {
        match sequence.tensor(tensor).kind {
            Kind::State => layer.weight = Some(tensor),
            Kind::Input if op.0 == 0 => layer.before = Some(tensor),
            _ => {}
        }
    }
    layer.after = sequence.writes(op).first().copied();
    let is_new = |tensor: TensorId| {
        sequence.tensor(tensor).kind == Kind::Temporary && Some(tensor) != layer.before
    };
    let fits = holds(sequence.reads(op), &[layer.weight, layer.before])
        && holds(sequence.writes(op), &[layer.after])
        && layer.after.is_none_or(is_new);
    fits.then_some(layer)
}

/// The state, apart from its weight, that the backward op of a layer updates.
fn optimizer(
    sequence: &Sequence<'_>,
    back: LaunchId,
    weight: Option<TensorId>,
) -> Option<TensorId> {
    let is_other = |tensor: &&TensorId| {
        sequence.tensor(**tensor).kind == Kind::State && Some(**tensor) != weight
    };
    sequence.reads(back).iter().find(is_other).copied()
}

/// Checks that the ops of a sequence form a chain: the first half runs layers forward, the second
/// half runs the same layers backward, and no two layers share a state. O(ops) if `mark` takes
/// O(1).
fn walk(
    sequence: &Sequence<'_>,
    mut mark: impl FnMut(usize, Layer) -> bool,
) -> Result<(), PlanningError> {
    let ops = sequence.len();
    let mut before = None;
    let pairs = sequence.launches().zip(sequence.launches().rev());
    for (op, back) in pairs.take(ops.div_ceil(2)) {
        let no_chain = PlanningError::NoChain { op: sequence.op(op) };
        let mut layer = layer(sequence, op, before).ok_or(no_chain)?;
        before = layer.after;
        layer.optimizer = optimizer(sequence, back, layer.weight);
        let Layer { weight, optimizer, before, after } = layer;
        let is_backward = back.index() >= ops / 2
            && back != op
            && holds(sequence.reads(back), &[weight, optimizer, before, after])
            && holds(sequence.writes(back), &[weight, optimizer, before]);
        if !is_backward {
            return Err(PlanningError::NoChain { op: sequence.op(back) });
        }
        if !mark(op.index(), layer) {
            return Err(no_chain);
        }
    }
    Ok(())
}

/// Checks that the ops of a sequence form a chain.
///
/// # Errors
/// The first op that does not belong to a chain.
pub(in crate::planner) fn check(
    sequence: &Sequence<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<(), PlanningError> {
    let mut scratch = scratch.reborrow();
    let seen = scratch.take(sequence.tensors().len(), 0u8)?;
    walk(sequence, |_, layer| is_first_seen(seen, layer))
}

/// Marks the tensors of a layer; returns false if an earlier layer has one of them.
fn is_first_seen(seen: &mut [u8], layer: Layer) -> bool {
    [layer.weight, layer.optimizer, layer.after]
        .into_iter()
        .flatten()
        .all(|tensor| core::mem::replace(&mut seen[tensor.index()], 1) == 0)
}

/// An item of a layer that can leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Item {
    Weight,
    /// The state of the optimizer.
    Optimizer,
    /// The output of the layer before; for the first layer, the input.
    Handed,
}

impl Item {
    pub(super) const COUNT: usize = 3;
}

/// The layers, numbered from 0, with sizes in objects and times in nanoseconds. Items in the arena
/// have size zero.
#[derive(Debug)]
pub(super) struct Chain<'c> {
    /// The tensor of each item and layer.
    tensors: [&'c [u32]; Item::COUNT],
    /// The bytes and the objects of the items of each layer.
    bytes: &'c [[u64; Item::COUNT]],
    objects: &'c [[u64; Item::COUNT]],
    /// The objects alive while a layer runs forward or backward, without states.
    pub(super) alive: &'c [u64],
    /// The objects of each layer's output.
    pub(super) handed: &'c [u64],
    /// For each op, in the order of the sequence.
    pub(super) workspaces: &'c [u64],
    pub(super) op_ns: &'c [u64],
    pub(super) input: Option<Input>,
    pub(super) pool_objects: u64,
    machine: Machine,
}

/// The input of the first layer, if it moves: it is fetched again in each iteration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Input {
    pub(super) tensor: TensorId,
    pub(super) objects: u64,
    pub(super) up_ns: u64,
}

/// The most layers of a chain.
pub(super) const fn most_layers(limits: &Limits) -> usize {
    (limits.ops / 2).saturating_add(1)
}

impl<'c> Chain<'c> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        let layers = most_layers(limits);
        total([
            words::<u32>(layers).saturating_mul(Item::COUNT),
            words::<[u64; Item::COUNT]>(layers).saturating_mul(2),
            layers.saturating_mul(2),
            limits.ops.saturating_add(1).saturating_mul(2),
        ])
    }

    /// Reads a sequence that has passed [`check`].
    pub(super) fn new(
        task: &Task<'_>,
        memory: &Memory<'_>,
        scratch: &mut Scratch<'c>,
    ) -> Result<Option<Self>, OutOfScratch> {
        let Task { sequence, machine, .. } = *task;
        let ops = sequence.len();
        let layers = ops / 2;
        let size = |tensor: Option<TensorId>| tensor.map_or(0, |tensor| memory.objects(tensor));
        let mut take = || scratch.take(layers, u32::MAX);
        let mut tensors = [take()?, take()?, take()?];
        let bytes = scratch.take(layers, [0u64; Item::COUNT])?;
        let objects = scratch.take(layers, [0u64; Item::COUNT])?;
        let alive = scratch.take(layers, 0u64)?;
        let handed = scratch.take(layers, 0u64)?;
        let workspaces = scratch.take(ops, 0u64)?;
        let op_ns = scratch.take(ops, 0u64)?;
        let (mut input, mut sum) = (None, 0u64);
        let walked = walk(sequence, |at, layer| {
            if at == 0 {
                sum = size(layer.before);
                input = layer.before;
            }
            let items = [layer.weight, layer.optimizer, layer.before];
            objects[at] = items.map(size);
            bytes[at] = items.map(|item| item.map_or(0, |tensor| sequence.tensor(tensor).bytes));
            for (tensors, item) in tensors.iter_mut().zip(items) {
                tensors[at] = item.map_or(u32::MAX, |tensor| tensor.0);
            }
            handed[at] = size(layer.after);
            sum = sum.saturating_add(handed[at]);
            alive[at] = sum;
            true
        });
        if walked.is_err() {
            return Ok(None);
        }
        for op in sequence.launches() {
            workspaces[op.index()] = memory.workspace(task, op);
            op_ns[op.index()] = sequence.time_ns(op);
        }
        let input = input.filter(|&tensor| memory.objects(tensor) > 0).map(|tensor| Input {
            tensor,
            objects: memory.objects(tensor),
            up_ns: machine
                .transfer_ns(Direction::HostToDevice, sequence.tensor(tensor).bytes)
                .unwrap_or(u64::MAX),
        });
        let pool_objects = memory.pool_objects(CHUNKS);
        Ok(Some(Self {
            tensors: tensors.map(|tensors| &*tensors),
            bytes,
            objects,
            alive,
            handed,
            workspaces,
            op_ns,
            input,
            pool_objects,
            machine: *machine,
        }))
    }

    /// The time to prefetch objects.
    pub(super) fn up_ns(&self, layer: usize, item: Item, objects: u64) -> u64 {
        self.transfer_ns(Direction::HostToDevice, self.bytes[layer][item as usize], objects)
    }

    /// The time to offload objects.
    pub(super) fn down_ns(&self, layer: usize, item: Item, objects: u64) -> u64 {
        self.transfer_ns(Direction::DeviceToHost, self.bytes[layer][item as usize], objects)
    }

    fn transfer_ns(&self, direction: Direction, bytes: u64, objects: u64) -> u64 {
        let bytes = objects.saturating_mul(self.machine.chunk_bytes).min(bytes);
        self.machine.transfer_ns(direction, bytes).unwrap_or(u64::MAX)
    }

    pub(super) const fn layers(&self) -> usize {
        self.objects.len()
    }

    pub(super) const fn ops(&self) -> usize {
        self.op_ns.len()
    }

    /// The op that runs a layer backward. The op that runs it forward has the number of the layer.
    pub(super) const fn backward(&self, layer: usize) -> usize {
        self.ops().saturating_sub(1).saturating_sub(layer)
    }

    /// The layer that an op runs.
    pub(super) const fn layer(&self, op: usize) -> usize {
        if op < self.layers() { op } else { self.backward(op) }
    }

    /// The number of objects of an item.
    pub(super) fn size(&self, layer: usize, item: Item) -> u64 {
        self.objects[layer][item as usize]
    }

    /// The sizes of all layers' weights.
    pub(super) fn weights(&self) -> impl Iterator<Item = u64> {
        self.objects.iter().map(|objects| objects[Item::Weight as usize])
    }

    /// The tensor of an item with a size.
    pub(super) fn tensor(&self, layer: usize, item: Item) -> TensorId {
        TensorId(self.tensors[item as usize][layer])
    }
}
