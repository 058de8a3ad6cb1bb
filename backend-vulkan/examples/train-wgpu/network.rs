//! The network as a graph: a perceptron of several layers, trained by gradient descent with
//! momentum.

use crate::text::{CONTEXT, scramble};
use planner_core::{Kind, OpId, TensorId};
use workloads::OwnedGraph;

/// Characters that are guessed in one iteration.
pub(crate) const ROWS: usize = 64;

/// Arithmetic per nanosecond that plans are made for.
const FLOPS_PER_NS: usize = 2;

/// What a kernel does, and to what sizes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launched {
    pub(crate) entry: &'static str,
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    pub(crate) cut: bool,
    /// Threads that have something to do.
    pub(crate) threads: usize,
}

/// The graph, and what its ops are.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    pub(crate) graph: OwnedGraph,
    pub(crate) ops: Vec<Launched>,
    pub(crate) ones: TensorId,
    pub(crate) targets: TensorId,
    pub(crate) weights: Vec<TensorId>,
    /// How many losses there are, and the losses.
    pub(crate) losses: TensorId,
    /// What each state holds at first.
    states: Vec<Vec<f32>>,
}

/// A layer under construction: its sizes, and its tensors.
#[derive(Clone, Copy, Debug)]
struct Layer {
    inputs: usize,
    outputs: usize,
    cut: bool,
    weights: TensorId,
    momenta: TensorId,
    input: TensorId,
    output: TensorId,
}

impl Network {
    /// A network with this many hidden layers of one width, with room for the losses of this many
    /// iterations.
    pub(crate) fn new(characters: usize, width: usize, hidden: usize, iterations: u64) -> Self {
        let mut graph = OwnedGraph::new("perceptron");
        let ones_bytes = 4 * (ROWS * CONTEXT * characters) as u64;
        let mut network = Self {
            ones: graph.push_tensor("ones", ones_bytes, Kind::Input),
            targets: graph.push_tensor("targets", 4 * ROWS as u64, Kind::Input),
            losses: graph.push_tensor("losses", 4 * (1 + iterations), Kind::State),
            graph,
            ops: Vec::new(),
            weights: Vec::new(),
            states: Vec::new(),
        };
        network.set(network.losses, vec![0.0; 1 + iterations as usize]);
        let mut widths = vec![CONTEXT * characters];
        widths.extend(std::iter::repeat_n(width, hidden));
        widths.push(characters);
        let mut layers = Vec::new();
        let mut input = network.ones;
        for (number, sizes) in widths.windows(2).enumerate() {
            let layer = network.layer(number, [sizes[0], sizes[1]], number == hidden, input);
            input = layer.output;
            layers.push(layer);
        }
        for layer in &layers {
            network.forward(layer);
        }
        network.backward(&layers, characters);
        network
    }

    fn layer(
        &mut self,
        number: usize,
        [inputs, outputs]: [usize; 2],
        last: bool,
        input: TensorId,
    ) -> Layer {
        let count = (inputs + 1) * outputs;
        let mut push = |name: &str, count: usize, kind| {
            self.graph.push_tensor(format!("{name} {number}"), 4 * count as u64, kind)
        };
        let weights = push("weights", count, Kind::State);
        let momenta = push("momenta", count, Kind::State);
        let output = push("output", ROWS * outputs, Kind::Temporary);
        let scale = (6.0 / inputs as f32).sqrt();
        let drawn = |at: usize| {
            let drawn = scramble((number as u64) << 32 | at as u64) >> 40;
            scale * (drawn as f32 / (1 << 23) as f32 - 1.0)
        };
        let first = |at| if at < inputs * outputs { drawn(at) } else { 0.0 };
        self.set(weights, (0..count).map(first).collect());
        self.set(momenta, vec![0.0; count]);
        self.weights.push(weights);
        Layer { inputs, outputs, cut: !last, weights, momenta, input, output }
    }

    fn forward(&mut self, layer: &Layer) {
        let threads = ROWS * layer.outputs;
        self.push("forward", layer, threads, &[layer.input, layer.weights], &[layer.output]);
    }

    fn backward(&mut self, layers: &[Layer], characters: usize) {
        let Some(last) = layers.last() else { return };
        let push_change = |graph: &mut OwnedGraph, count| {
            graph.push_tensor("change", 4 * (ROWS * count) as u64, Kind::Temporary)
        };
        let mut change = push_change(&mut self.graph, characters);
        let reads = [last.output, self.targets, self.losses];
        self.push("loss", last, ROWS, &reads, &[change, self.losses]);
        for (number, layer) in layers.iter().enumerate().rev() {
            let count = (layer.inputs + 1) * layer.outputs;
            let name = format!("gradient {number}");
            let gradient = self.graph.push_tensor(name, 4 * count as u64, Kind::Temporary);
            self.push("gradient", layer, count, &[layer.input, change], &[gradient]);
            if number > 0 {
                let before = push_change(&mut self.graph, layer.inputs);
                let reads = [change, layer.weights, layer.input];
                self.push("backward", layer, ROWS * layer.inputs, &reads, &[before]);
                change = before;
            }
            let updated = [layer.weights, layer.momenta];
            self.push("update", layer, count, &[gradient, updated[0], updated[1]], &updated);
        }
    }

    fn push(
        &mut self,
        entry: &'static str,
        layer: &Layer,
        threads: usize,
        reads: &[TensorId],
        writes: &[TensorId],
    ) {
        let Layer { inputs, outputs, cut, .. } = *layer;
        let flops = 2 * ROWS * inputs * outputs;
        let time_ns = (flops / FLOPS_PER_NS) as u64;
        let op = self.graph.push_op(entry, time_ns, 0, reads, writes);
        // No kernel draws random numbers or sums in an order of its own, so what makes only
        // temporaries makes the same ones again. The loss and updates also write states.
        let tensors = &self.graph.tensors;
        if writes.iter().all(|written| tensors[written.index()].kind == Kind::Temporary) {
            self.graph.set_repeatable(op);
        }
        self.ops.push(Launched { entry, inputs, outputs, cut, threads });
    }

    fn set(&mut self, state: TensorId, values: Vec<f32>) {
        self.states.resize(self.states.len().max(state.index() + 1), Vec::new());
        self.states[state.index()] = values;
    }

    /// What a state holds at first.
    pub(crate) fn state(&self, state: TensorId) -> &[u8] {
        bytemuck::cast_slice(&self.states[state.index()])
    }

    /// The tensors of an op, in the order in which its kernel binds them.
    pub(crate) fn bound(&self, op: OpId) -> Vec<TensorId> {
        let graph = self.graph.graph().expect("the graph is well-formed");
        let mut bound = graph.reads(op).to_vec();
        bound.extend(graph.writes(op).iter().filter(|written| !graph.reads(op).contains(written)));
        bound
    }
}
