//! A graph as a chain of layers, as the weight-offloading paper sees it (section 3).

use crate::graph::{Graph, Kind, OpId, TensorId};
use crate::machine::{Direction, Machine};
use crate::planner::memory::CHUNKS;
use crate::planner::memory::Memory;
use crate::planner::{PlanningError, Request};
use crate::scratch::{Limits, OutOfScratch, Scratch, words};

const NONE: u32 = u32::MAX;

/// The tensors of a layer: what it reads and updates, what comes in, and what it hands on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Layer {
    weight: Option<TensorId>,
    before: Option<TensorId>,
    after: Option<TensorId>,
}

/// Whether a list of distinct tensors holds just those that are there.
fn holds(list: &[TensorId], tensors: &[Option<TensorId>]) -> bool {
    list.len() == tensors.iter().flatten().count()
        && tensors.iter().flatten().all(|tensor| list.contains(tensor))
}

/// The layer of a forward op, behind what the layer before hands on.
fn layer(graph: &Graph<'_>, op: OpId, before: Option<TensorId>) -> Option<Layer> {
    let mut layer = Layer { before, ..Layer::default() };
    for &tensor in graph.reads(op) {
        match graph.tensor(tensor).kind {
            Kind::State => layer.weight = Some(tensor),
            Kind::Input if op.0 == 0 => layer.before = Some(tensor),
            _ => {}
        }
    }
    layer.after = graph.writes(op).first().copied();
    let is_new = |tensor: TensorId| {
        graph.tensor(tensor).kind == Kind::Temporary && Some(tensor) != layer.before
    };
    let fits = holds(graph.reads(op), &[layer.weight, layer.before])
        && holds(graph.writes(op), &[layer.after])
        && layer.after.is_none_or(is_new);
    fits.then_some(layer)
}

/// Whether the ops of a graph form a chain: half of them run layers forward, the others the
/// same layers backward, and no two layers share a weight. O(ops) when `mark` finds a tensor
/// at once.
fn walk(
    graph: &Graph<'_>,
    mut mark: impl FnMut(usize, Layer) -> bool,
) -> Result<(), PlanningError> {
    let ops = graph.ops().len();
    let mut before = None;
    for op in graph.op_ids().take(ops.div_ceil(2)) {
        let no_chain = PlanningError::NoChain { op };
        let layer = layer(graph, op, before).ok_or(no_chain)?;
        before = layer.after;
        let back = OpId((ops - 1 - op.index()) as u32);
        let Layer { weight, before, after } = layer;
        let is_backward = back.index() >= ops / 2
            && back != op
            && holds(graph.reads(back), &[weight, before, after])
            && holds(graph.writes(back), &[weight, before]);
        if !is_backward {
            return Err(PlanningError::NoChain { op: back });
        }
        if !mark(op.index(), layer) {
            return Err(no_chain);
        }
    }
    Ok(())
}

/// Whether the ops of a graph form a chain.
///
/// # Errors
/// The first op that does not belong to one.
pub(in crate::planner) fn check(
    graph: &Graph<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<(), PlanningError> {
    let mut scratch = scratch.reborrow();
    let seen = scratch.take(graph.tensors().len(), 0u8)?;
    walk(graph, |_, layer| is_first_seen(seen, layer))
}

/// Marks the tensors of a layer; false where an earlier layer has one of them.
fn is_first_seen(seen: &mut [u8], layer: Layer) -> bool {
    [layer.weight, layer.after]
        .into_iter()
        .flatten()
        .all(|tensor| core::mem::replace(&mut seen[tensor.index()], 1) == 0)
}

/// The layers, numbered from 0, with sizes in objects and times in nanoseconds. What lies in
/// the arena has no size here.
#[derive(Debug)]
pub(super) struct Chain<'c> {
    /// Weight of each layer.
    tensors: &'c [u32],
    pub(super) weights: &'c [u64],
    /// What is alive beside weights while a layer runs, either way.
    pub(super) alive: &'c [u64],
    /// What each layer hands on.
    pub(super) handed: &'c [u64],
    /// Of each op, in the order of the graph.
    pub(super) workspaces: &'c [u64],
    pub(super) op_ns: &'c [u64],
    pub(super) input: Option<Input>,
    pub(super) pool_objects: u64,
    machine: Machine,
    /// Bytes of each weight.
    bytes: &'c [u64],
}

/// What the first layer reads, where it comes anew each iteration and moves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Input {
    pub(super) tensor: TensorId,
    pub(super) objects: u64,
    pub(super) up_ns: u64,
}

impl<'c> Chain<'c> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        let layers = limits.ops / 2 + 1;
        words::<u32>(layers) + 4 * layers + 2 * (limits.ops + 1)
    }

    /// Looks at a graph that has passed [`check`].
    pub(super) fn new(
        request: &Request<'_>,
        memory: &Memory<'_>,
        scratch: &mut Scratch<'c>,
    ) -> Result<Option<Self>, OutOfScratch> {
        let Request { graph, machine, .. } = *request;
        let ops = graph.ops().len();
        let layers = ops / 2;
        let objects = |tensor: Option<TensorId>| tensor.map_or(0, |tensor| memory.objects(tensor));
        let tensors = scratch.take(layers, NONE)?;
        let weights = scratch.take(layers, 0u64)?;
        let alive = scratch.take(layers, 0u64)?;
        let handed = scratch.take(layers, 0u64)?;
        let bytes = scratch.take(layers, 0u64)?;
        let workspaces = scratch.take(ops, 0u64)?;
        let op_ns = scratch.take(ops, 0u64)?;
        let (mut input, mut sum) = (None, 0u64);
        let walked = walk(graph, |at, layer| {
            if at == 0 {
                sum = objects(layer.before);
                input = layer.before;
            }
            let size = objects(layer.weight);
            if size > 0 {
                tensors[at] = layer.weight.map_or(NONE, |tensor| tensor.0);
            }
            weights[at] = size;
            handed[at] = objects(layer.after);
            sum = sum.saturating_add(handed[at]);
            alive[at] = sum;
            bytes[at] = layer.weight.map_or(0, |tensor| graph.tensor(tensor).bytes);
            true
        });
        if walked.is_err() {
            return Ok(None);
        }
        for op in graph.op_ids() {
            workspaces[op.index()] = memory.workspace(request, op);
            op_ns[op.index()] = graph.op(op).time_ns;
        }
        let input = input.filter(|&tensor| memory.objects(tensor) > 0).map(|tensor| Input {
            tensor,
            objects: memory.objects(tensor),
            up_ns: machine
                .transfer_ns(Direction::HostToDevice, graph.tensor(tensor).bytes)
                .unwrap_or(u64::MAX),
        });
        let pool_objects = memory.pool_objects(CHUNKS);
        Ok(Some(Self {
            tensors,
            weights,
            alive,
            handed,
            workspaces,
            op_ns,
            bytes,
            input,
            pool_objects,
            machine: *machine,
        }))
    }

    /// Time to fetch so many objects of a weight.
    pub(super) fn up_ns(&self, layer: usize, objects: u64) -> u64 {
        self.transfer_ns(Direction::HostToDevice, layer, objects)
    }

    /// Time to copy so many objects of a weight to the host.
    pub(super) fn down_ns(&self, layer: usize, objects: u64) -> u64 {
        self.transfer_ns(Direction::DeviceToHost, layer, objects)
    }

    fn transfer_ns(&self, direction: Direction, layer: usize, objects: u64) -> u64 {
        let bytes = objects.saturating_mul(self.machine.chunk_bytes).min(self.bytes[layer]);
        self.machine.transfer_ns(direction, bytes).unwrap_or(u64::MAX)
    }

    pub(super) const fn layers(&self) -> usize {
        self.weights.len()
    }

    pub(super) const fn ops(&self) -> usize {
        self.op_ns.len()
    }

    /// The op that runs a layer backward; the one that runs it forward has its number.
    pub(super) const fn backward(&self, layer: usize) -> usize {
        self.ops() - 1 - layer
    }

    /// The layer that an op runs.
    pub(super) const fn layer(&self, op: usize) -> usize {
        if op < self.layers() { op } else { self.backward(op) }
    }

    /// The weight of a layer that has one.
    pub(super) fn weight(&self, layer: usize) -> TensorId {
        TensorId(self.tensors[layer])
    }
}
