//! Turns a training step into a chain of layers for weight offloading.
//!
//! The forward pass ends after the last op that is the first to read a state. The rest is the backward pass.
//! A layer ends at each point where the forward pass hands on a single tensor. An op of the backward pass
//! belongs to the lowest layer whose states, values or gradients it takes, so that a parameter is updated as
//! soon as its gradient exists. States that several layers touch, or that the forward pass writes, stay on
//! the device. The device also reserves the largest temporary need of a layer. The chain has the remaining
//! memory. Chunks and latencies do not count.

use planner_core::{Graph, GraphError, Kind, OpId, TensorId};
use std::collections::BTreeSet;
use std::fmt;
use workloads::chain::{Layer, OwnedChain};
use workloads::{OwnedGraph, OwnedMachine};

/// The reason why a graph is not a chain of layers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoChain {
    /// The graph is malformed.
    Graph(GraphError),
    /// No op after the forward pass updates a state that the pass reads.
    NoTraining,
    /// The forward pass never hands on a single tensor.
    OneLayer,
    /// The tensors that must stay need more memory than the device has.
    Memory {
        /// The needed device memory.
        needed_bytes: u64,
        /// The memory of the device.
        device_bytes: u64,
    },
}

impl fmt::Display for NoChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Graph(error) => error.fmt(f),
            Self::NoTraining => {
                f.write_str("the graph is not a training step: no state is read and later updated")
            }
            Self::OneLayer => f.write_str("the forward pass never hands on a single tensor"),
            Self::Memory { needed_bytes, device_bytes } => write!(
                f,
                "the shared tensors and the largest temporary need of a layer take {needed_bytes} bytes \
                 of {device_bytes}"
            ),
        }
    }
}

impl std::error::Error for NoChain {}

/// Returns the layers of a training step on a machine. O(ops + operands), apart from sets of layers. With
/// `recompute`, a layer keeps only the tensors that it hands on, and its backward op includes the forward op
/// again.
///
/// # Errors
/// The graph is not a chain of layers, or the machine is too small for the chain.
pub fn chain(
    owned: &OwnedGraph,
    on: &OwnedMachine,
    recompute: bool,
) -> Result<OwnedChain, NoChain> {
    let graph = owned.graph().map_err(NoChain::Graph)?;
    let turn = turn(&graph)?;
    let cuts = Cuts::new(&graph, turn);
    if cuts.layers < 2 {
        return Err(NoChain::OneLayer);
    }
    let layer_of = cuts.assign(&graph);
    let mut layers = vec![Layer::default(); cuts.layers];
    for op in graph.op_ids() {
        let layer = &mut layers[layer_of[op.index()]];
        let time_ns = graph.op(op).time_ns;
        if op.index() < turn {
            layer.forward_ns += time_ns;
            let again_ns = if recompute { time_ns } else { 0 };
            layer.backward_ns = layer.backward_ns.saturating_add(again_ns);
        } else {
            layer.backward_ns = layer.backward_ns.saturating_add(time_ns);
        }
    }
    let step = Step { graph: &graph, turn, cuts: &cuts, layer_of: &layer_of, recompute };
    let shared_bytes = step.states(&mut layers);
    let passing_bytes = step.activations(&mut layers);
    let device_bytes = on.machine.device_bytes;
    let needed_bytes = shared_bytes.saturating_add(passing_bytes);
    let left_bytes = device_bytes.checked_sub(needed_bytes);
    let inputs = graph.tensors().iter().filter(|tensor| tensor.kind == Kind::Input);
    Ok(OwnedChain {
        name: format!("{} in layers", owned.name),
        device_bytes: left_bytes.ok_or(NoChain::Memory { needed_bytes, device_bytes })?,
        bandwidth_bytes_per_s: on.machine.h2d_bytes_per_s.min(on.machine.d2h_bytes_per_s),
        input_bytes: inputs.map(|tensor| tensor.bytes).sum(),
        layers,
    })
}

/// Returns the position at which the backward pass begins.
fn turn(graph: &Graph<'_>) -> Result<usize, NoChain> {
    let mut is_seen = vec![false; graph.tensors().len()];
    let mut written_by = vec![None; graph.tensors().len()];
    let is_state = |tensor: TensorId| graph.tensor(tensor).kind == Kind::State;
    let mut turn = 0;
    for op in graph.op_ids() {
        graph.writes(op).iter().for_each(|tensor| written_by[tensor.index()] = Some(op));
        for &tensor in graph.reads(op).iter().filter(|tensor| is_state(**tensor)) {
            let is_first = !std::mem::replace(&mut is_seen[tensor.index()], true);
            // A state that its first reader also updates belongs to the optimizer, or is a statistic.
            if is_first && written_by[tensor.index()] != Some(op) {
                turn = op.index() + 1;
            }
        }
    }
    let updates = |op: OpId| graph.writes(op).iter().any(|&tensor| is_state(tensor));
    match turn > 0 && graph.op_ids().skip(turn).any(updates) {
        true => Ok(turn),
        false => Err(NoChain::NoTraining),
    }
}

/// The division of the forward pass into layers.
struct Cuts {
    turn: usize,
    layers: usize,
    /// The layer of each forward op.
    layer_of: Vec<usize>,
    /// For each temporary of the forward pass, the layer that last writes it in this pass.
    written_in: Vec<Option<usize>>,
    /// For each tensor, whether a later layer reads it in the forward pass.
    is_handed_on: Vec<bool>,
}

impl Cuts {
    fn new(graph: &Graph<'_>, turn: usize) -> Self {
        let is_temporary = |tensor: TensorId| graph.tensor(tensor).kind == Kind::Temporary;
        let tensors = graph.tensors().len();
        let (mut first, mut last) = (vec![usize::MAX; tensors], vec![0; tensors]);
        for op in graph.op_ids().take(turn) {
            for tensor in graph.operands_of(op).iter().filter(|&&tensor| is_temporary(tensor)) {
                first[tensor.index()] = first[tensor.index()].min(op.index());
                last[tensor.index()] = op.index();
            }
        }
        // The change in the number of tensors that both an earlier op and an op from this position on touch.
        let mut crossing = vec![0isize; turn + 1];
        for (&first, &last) in first.iter().zip(&last).filter(|(first, last)| first < last) {
            crossing[first + 1] += 1;
            crossing[last + 1] -= 1;
        }
        let (mut layer, mut across) = (0, 0);
        let mut layer_of = Vec::with_capacity(turn);
        for (at, change) in crossing[..turn].iter().enumerate() {
            across += change;
            layer += usize::from(at > 0 && across <= 1);
            layer_of.push(layer);
        }
        let (mut written_in, mut is_handed_on) = (vec![None; tensors], vec![false; tensors]);
        for op in graph.op_ids().take(turn) {
            let layer = layer_of[op.index()];
            for &tensor in graph.reads(op) {
                let from = written_in[tensor.index()];
                is_handed_on[tensor.index()] |= from.is_some_and(|from| from < layer);
            }
            for &tensor in graph.writes(op).iter().filter(|&&tensor| is_temporary(tensor)) {
                written_in[tensor.index()] = Some(layer);
                is_handed_on[tensor.index()] = false;
            }
        }
        Self { turn, layers: layer + 1, layer_of, written_in, is_handed_on }
    }

    /// Returns the layer of each op, with the ops of the backward pass.
    fn assign(&self, graph: &Graph<'_>) -> Vec<usize> {
        let mut layer_of = self.layer_of.clone();
        // For each value, state or gradient, the layer that last touched it, if it belongs to one layer.
        let mut touched_in = self.written_in.clone();
        self.own(graph, &mut touched_in);
        let mut is_gradient = vec![false; graph.tensors().len()];
        for op in graph.op_ids().skip(self.turn) {
            let own = graph.operands_of(op).iter().filter(|tensor| !is_gradient[tensor.index()]);
            let own = own.filter_map(|tensor| {
                let handed_on = usize::from(self.is_handed_on[tensor.index()]);
                Some((touched_in[tensor.index()]? + handed_on).min(self.layers - 1))
            });
            let taken = graph.reads(op).iter().filter(|tensor| is_gradient[tensor.index()]);
            let taken = taken.filter_map(|tensor| touched_in[tensor.index()]).min();
            let own = own.min().or(layer_of.last().copied());
            let layer = own.into_iter().chain(taken).min().unwrap_or(0);
            for &tensor in graph.writes(op) {
                if graph.tensor(tensor).kind == Kind::Temporary {
                    is_gradient[tensor.index()] = true;
                    touched_in[tensor.index()] = Some(layer);
                }
            }
            layer_of.push(layer);
        }
        layer_of
    }

    /// Notes the layer of each state and input that the forward pass touches in only one layer. Skips a
    /// tensor that the backward pass touches before the turn of that layer, such as a table that the
    /// embedding and the scores share.
    fn own(&self, graph: &Graph<'_>, touched_in: &mut [Option<usize>]) {
        let is_lasting = |tensor: &&TensorId| graph.tensor(**tensor).kind != Kind::Temporary;
        let mut is_shared = vec![false; graph.tensors().len()];
        for (op, &layer) in graph.op_ids().zip(&self.layer_of) {
            for tensor in graph.operands_of(op).iter().filter(is_lasting) {
                let before = touched_in[tensor.index()].replace(layer);
                is_shared[tensor.index()] |= before.is_some_and(|before| before != layer);
            }
        }
        // For each layer, the last op that takes a value which this layer or a later one does not hand on.
        // Updates do not count: they take gradients, which the op of the loss may also make.
        let is_state = |tensor: &TensorId| graph.tensor(*tensor).kind == Kind::State;
        let updates = |op: &OpId| graph.writes(*op).iter().all(is_state);
        let mut last_use = vec![0; self.layers + 1];
        for op in graph.op_ids().skip(self.turn).filter(|op| !updates(op)) {
            for tensor in
                graph.operands_of(op).iter().filter(|tensor| !self.is_handed_on[tensor.index()])
            {
                if let Some(layer) = self.written_in[tensor.index()] {
                    last_use[layer] = op.index();
                }
            }
        }
        for layer in (0..self.layers).rev() {
            last_use[layer] = last_use[layer].max(last_use[layer + 1]);
        }
        for op in graph.op_ids().skip(self.turn) {
            for tensor in graph.operands_of(op).iter().filter(is_lasting) {
                let early =
                    touched_in[tensor.index()].map(|layer| op.index() < last_use[layer + 1]);
                is_shared[tensor.index()] |= early.unwrap_or(false);
            }
        }
        for (touched_in, _) in touched_in.iter_mut().zip(is_shared).filter(|(_, shared)| *shared) {
            *touched_in = None;
        }
    }
}

/// A training step with the layer of each op.
struct Step<'s> {
    graph: &'s Graph<'s>,
    turn: usize,
    cuts: &'s Cuts,
    layer_of: &'s [usize],
    recompute: bool,
}

impl Step<'_> {
    /// Gives each layer its states. Returns the bytes of the states that must stay.
    fn states(&self, layers: &mut [Layer]) -> u64 {
        let tensors = self.graph.tensors().len();
        let mut touched_in = vec![BTreeSet::new(); tensors];
        let (mut is_forward, mut is_written) = (vec![false; tensors], vec![false; tensors]);
        for op in self.graph.op_ids() {
            let is_early = op.index() < self.turn;
            for tensor in self.graph.operands_of(op) {
                touched_in[tensor.index()].insert(self.layer_of[op.index()]);
                is_forward[tensor.index()] |= is_early;
            }
            for tensor in self.graph.writes(op) {
                is_written[tensor.index()] |= is_early;
            }
        }
        let mut shared_bytes = 0;
        for (at, tensor) in self.graph.tensors().iter().enumerate() {
            if tensor.kind != Kind::State {
                continue;
            }
            match touched_in[at].first() {
                Some(&layer) if touched_in[at].len() == 1 && !is_written[at] => {
                    let layer = &mut layers[layer];
                    let bytes = match is_forward[at] {
                        true => &mut layer.weight_bytes,
                        false => &mut layer.optimizer_bytes,
                    };
                    *bytes += tensor.bytes;
                }
                _ => shared_bytes += tensor.bytes,
            }
        }
        shared_bytes
    }

    /// Gives each layer the activations that it keeps. Returns the largest temporary need of a layer in
    /// addition.
    fn activations(&self, layers: &mut [Layer]) -> u64 {
        let graph = self.graph;
        // The forward pass in order, then the backward pass layer by layer.
        let mut order: Vec<_> = graph.op_ids().collect();
        order[self.turn..].sort_by_key(|op| usize::MAX - self.layer_of[op.index()]);
        let tensors = graph.tensors().len();
        let mut last = vec![0; tensors];
        for (at, &op) in order.iter().enumerate() {
            for tensor in graph.operands_of(op) {
                last[tensor.index()] = at;
            }
        }
        // Tensors that a layer does not hand on but needs later. It keeps them, or has them again while it
        // runs backward.
        let mut again_bytes = vec![0; layers.len()];
        let mut is_counted = vec![false; tensors];
        for (at, layer) in self.cuts.written_in.iter().enumerate() {
            let Some(layer) = *layer else { continue };
            let bytes = graph.tensors()[at].bytes;
            is_counted[at] = self.cuts.is_handed_on[at] || last[at] >= self.turn;
            if self.cuts.is_handed_on[at] || (is_counted[at] && !self.recompute) {
                layers[layer].activation_bytes += bytes;
            } else if is_counted[at] {
                again_bytes[layer] += bytes;
            }
        }
        let mut passing = Passing { is_counted, last, is_alive: vec![false; tensors], bytes: 0 };
        let mut most_bytes = 0;
        for (at, &op) in order.iter().enumerate() {
            let layer = self.layer_of[op.index()];
            let gradient_bytes = if at < self.turn { 0 } else { layers[layer].weight_bytes };
            let now = passing.run(graph, at, op).saturating_sub(gradient_bytes);
            most_bytes = most_bytes.max(now.saturating_add(again_bytes[layer]));
        }
        most_bytes
    }
}

/// The live temporaries.
struct Passing {
    /// For each tensor, whether a layer keeps it or has it again.
    is_counted: Vec<bool>,
    /// For each tensor, the position in the order of its last use.
    last: Vec<usize>,
    is_alive: Vec<bool>,
    bytes: u64,
}

impl Passing {
    /// Returns the live bytes while the op at a position runs, with its workspace.
    fn run(&mut self, graph: &Graph<'_>, at: usize, op: OpId) -> u64 {
        let passes = |tensor: TensorId| graph.tensor(tensor).kind == Kind::Temporary;
        for &tensor in graph.operands_of(op).iter().filter(|&&tensor| passes(tensor)) {
            let is_new = !self.is_counted[tensor.index()] && self.last[tensor.index()] >= at;
            if is_new && !std::mem::replace(&mut self.is_alive[tensor.index()], true) {
                self.bytes += graph.tensor(tensor).bytes;
            }
        }
        let bytes = self.bytes + graph.op(op).workspace_bytes;
        for &tensor in graph.operands_of(op) {
            let ends = self.last[tensor.index()] == at;
            if ends && std::mem::take(&mut self.is_alive[tensor.index()]) {
                self.bytes -= graph.tensor(tensor).bytes;
            }
        }
        bytes
    }
}
