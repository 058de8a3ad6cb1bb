//! Stacks of LSTM cells in one or both directions, unrolled, that classify each step.
//! Ops are fused as in frameworks of static graphs: three ops per cell forward and five backward, which
//! add to gradients of weights and of states in place.
//!
//! The RNN and BRNN of SwapAdvisor (Huang et al., 2020, section 6.1); M. Schuster, K. Paliwal:
//! Bidirectional recurrent neural networks, 1997.

use super::Model;
use super::layers::product_flops;
use super::optimizer::Optimizer;
use super::spec::{
    Arguments, BATCH, Domain, HOST_GB_S, HOST_TFLOPS, MEMORY_GB_S, MODE, Parameter, TFLOPS,
};
use super::tape::{FLOAT_BYTES, INDEX_BYTES, Tape};
use planner_core::{Kind, TensorId};

const SEQUENCES: Parameter = Parameter { default: "128", about: "sequences", ..BATCH };
const LAYERS: Parameter = Parameter {
    name: "layers",
    default: "8",
    domain: Domain::Count(1 << 6),
    about: "cells on top of each other",
};
const STEPS: Parameter = Parameter {
    name: "steps",
    default: "128",
    domain: Domain::Count(1 << 12),
    about: "steps of a sequence",
};
const WIDTH: Parameter = Parameter {
    name: "width",
    default: "8192",
    domain: Domain::Count(1 << 16),
    about: "columns of inputs and of states",
};
const CLASSES: u64 = 1000;

/// An RNN from the first step to the last. The given order runs step by step.
pub(super) const RNN: Model = Model {
    name: "rnn",
    about: "LSTM with a class a step, gradients summed in place, plain SGD",
    parameters: &[
        SEQUENCES,
        LAYERS,
        STEPS,
        WIDTH,
        MODE,
        TFLOPS,
        MEMORY_GB_S,
        HOST_GB_S,
        HOST_TFLOPS,
    ],
    optimizer: Optimizer::Plain,
    check: |_| Ok(()),
    build: |arguments, tape| recurrent(arguments, tape, &[false]),
};

/// An RNN in both directions. The given order runs layer by layer.
pub(super) const BRNN: Model = Model {
    name: "brnn",
    about: "LSTM in both directions with a class a step, plain SGD",
    build: |arguments, tape| recurrent(arguments, tape, &[false, true]),
    ..RNN
};

/// A weight with its accumulated gradient.
#[derive(Clone)]
struct Weight {
    name: String,
    tensor: TensorId,
    gradient: Option<TensorId>,
    rows: u64,
    columns: u64,
}

/// One layer in one direction.
struct Layer {
    name: String,
    reversed: bool,
    from_input: Weight,
    from_hidden: Weight,
    bias: Weight,
    cells: Vec<Cell>,
}

/// The results of one step of a layer.
#[derive(Clone, Copy)]
struct Cell {
    sums: TensorId,
    gates: TensorId,
    cell: TensorId,
    hidden: TensorId,
    /// The gradients, once they exist.
    of_cell: Option<TensorId>,
    of_hidden: Option<TensorId>,
}

struct Network<'t> {
    tape: &'t mut Tape,
    batch: u64,
    width: u64,
    steps: usize,
}

fn recurrent(arguments: &Arguments, tape: &mut Tape, directions: &[bool]) {
    let [batch, layers, steps, width] =
        [SEQUENCES, LAYERS, STEPS, WIDTH].map(|parameter| arguments.get(&parameter));
    let mut network = Network { tape, batch, width, steps: steps as usize };
    let columns = directions.len() as u64 * width;
    let mut stack: Vec<Vec<Layer>> = Vec::new();
    for layer in 0..layers {
        let inputs = if layer == 0 { width } else { columns };
        let both = directions.iter().map(|&reversed| network.layer(layer, inputs, reversed));
        stack.push(both.collect());
    }
    let inputs: Vec<_> =
        (0..steps).map(|step| network.floats_in(&format!("input.{step}"))).collect();
    let outputs = network.forward(&mut stack, inputs);
    let mut head = network.weight("head".to_owned(), columns, CLASSES);
    let scores: Vec<_> = (0..network.steps)
        .map(|step| network.score(step, &head, outputs[stack.len()][step]))
        .collect();
    if network.tape.training() {
        network.backward(&mut stack, &outputs, &mut head, &scores);
        let parts = stack
            .iter()
            .flatten()
            .flat_map(|layer| [&layer.from_input, &layer.from_hidden, &layer.bias]);
        let weights: Vec<_> = parts.chain([&head]).cloned().collect();
        for weight in weights {
            let gradient = weight.gradient.into_iter();
            let reads: Vec<_> = gradient.chain([weight.tensor]).collect();
            network.tape.update(format!("{}.sgd", weight.name), &reads, &[weight.tensor]);
        }
    }
}

impl Network<'_> {
    fn weight(&mut self, name: String, rows: u64, columns: u64) -> Weight {
        let bytes = rows.saturating_mul(columns).saturating_mul(FLOAT_BYTES);
        let tensor = self.tape.tensor(name.clone(), bytes, Kind::State);
        Weight { name, tensor, gradient: None, rows, columns }
    }

    fn layer(&mut self, number: u64, inputs: u64, reversed: bool) -> Layer {
        let name = format!("layer{number}{}", if reversed { ".reversed" } else { "" });
        let gates = 4 * self.width;
        let from_input = self.weight(format!("{name}.ih"), inputs, gates);
        let from_hidden = self.weight(format!("{name}.hh"), self.width, gates);
        let bias = self.weight(format!("{name}.bias"), 1, gates);
        let cells = Vec::new();
        Layer { name, reversed, from_input, from_hidden, bias, cells }
    }

    fn floats(&mut self, name: String, columns: u64) -> TensorId {
        let batch = self.batch;
        self.tape.floats(name, [batch, columns, 1, 1])
    }

    fn floats_in(&mut self, name: &str) -> TensorId {
        let bytes = self.batch.saturating_mul(self.width).saturating_mul(FLOAT_BYTES);
        self.tape.tensor(name.to_owned(), bytes, Kind::Input)
    }

    fn product(&mut self, name: String, weight: &Weight, reads: &[TensorId], writes: &[TensorId]) {
        let flops = product_flops(self.batch, weight.rows, weight.columns);
        self.tape.op(name, flops, reads, writes);
    }

    /// Returns the inputs of each layer and the outputs of the last one, step by step. In one direction, all
    /// layers advance together.
    fn forward(&mut self, stack: &mut [Vec<Layer>], inputs: Vec<TensorId>) -> Vec<Vec<TensorId>> {
        let mut values = vec![inputs];
        if stack.iter().all(|directions| directions.len() == 1) {
            values.resize(stack.len() + 1, Vec::new());
            for step in 0..self.steps {
                for (at, directions) in stack.iter_mut().enumerate() {
                    let x = values[at][step];
                    self.advance(&mut directions[0], x, step);
                    values[at + 1].push(directions[0].cells[step].hidden);
                }
            }
            return values;
        }
        for (number, directions) in stack.iter_mut().enumerate() {
            let inputs = values[number].clone();
            for layer in &mut *directions {
                for number in 0..self.steps {
                    let step = if layer.reversed { self.steps - 1 - number } else { number };
                    self.advance(layer, inputs[step], step);
                }
                if layer.reversed {
                    layer.cells.reverse();
                }
            }
            let joined = (0..self.steps).map(|step| {
                let parts: Vec<_> =
                    directions.iter().map(|layer| layer.cells[step].hidden).collect();
                let name = format!("layer{number}.{step}.cat");
                let both = self.floats(format!("{name}.out"), parts.len() as u64 * self.width);
                self.tape.op(name, 0, &parts, &[both]);
                both
            });
            let joined = joined.collect();
            values.push(joined);
        }
        values
    }

    /// One step of one layer.
    fn advance(&mut self, layer: &mut Layer, x: TensorId, step: usize) {
        let name = format!("{}.{step}", layer.name);
        let width = self.width;
        let sums = self.floats(format!("{name}.sums"), 4 * width);
        let gates = self.floats(format!("{name}.gates"), 4 * width);
        let [cell, hidden] =
            ["cell", "hidden"].map(|part| self.floats(format!("{name}.{part}"), width));
        let reads = [x, layer.from_input.tensor, layer.bias.tensor];
        self.product(format!("{name}.ih"), &layer.from_input, &reads, &[sums]);
        let before = layer.cells.last().copied();
        if let Some(before) = before {
            let reads = [before.hidden, layer.from_hidden.tensor, sums];
            self.product(format!("{name}.hh"), &layer.from_hidden, &reads, &[sums]);
        }
        let reads: Vec<_> = [sums].into_iter().chain(before.map(|before| before.cell)).collect();
        self.tape.op(format!("{name}.gate"), 0, &reads, &[gates, cell, hidden]);
        layer.cells.push(Cell { sums, gates, cell, hidden, of_cell: None, of_hidden: None });
    }

    fn score(&mut self, step: usize, head: &Weight, y: TensorId) -> TensorId {
        let scores = self.floats(format!("scores.{step}"), CLASSES);
        self.product(format!("head.{step}"), head, &[y, head.tensor], &[scores]);
        scores
    }

    /// Adds to a gradient in place, or creates it. Returns the gradient that the op reads, if any, and the
    /// gradient that it writes.
    fn add_to(
        &mut self,
        sum: &mut Option<TensorId>,
        begin: impl FnOnce(&mut Self) -> TensorId,
    ) -> (Option<TensorId>, TensorId) {
        let before = *sum;
        (before, *sum.get_or_insert_with(|| begin(self)))
    }

    fn add_to_weight(&mut self, weight: &mut Weight) -> (Option<TensorId>, TensorId) {
        let Weight { name, rows, columns, gradient, .. } = weight;
        let bytes = rows.saturating_mul(*columns).saturating_mul(FLOAT_BYTES);
        let name = format!("{name}.grad");
        self.add_to(gradient, |network| network.tape.tensor(name, bytes, Kind::Temporary))
    }

    /// Records the backward pass from the scores. The gradients of a layer's inputs are the gradients of the
    /// outputs of the layer below.
    fn backward(
        &mut self,
        stack: &mut [Vec<Layer>],
        values: &[Vec<TensorId>],
        head: &mut Weight,
        scores: &[TensorId],
    ) {
        let top = stack.len();
        for step in (0..self.steps).rev() {
            let labels = self.batch.saturating_mul(INDEX_BYTES);
            let labels = self.tape.tensor(format!("labels.{step}"), labels, Kind::Input);
            let name = format!("loss.{step}");
            let of_scores = self.floats(format!("{name}.grad"), CLASSES);
            self.tape.op(format!("{name}.backward"), 0, &[scores[step], labels], &[of_scores]);
            let (before, sum) = self.add_to_weight(head);
            let mut reads = vec![of_scores, values[top][step], head.tensor];
            reads.extend(before);
            let mut writes = vec![sum];
            for layer in &mut stack[top - 1] {
                let name = format!("{}.{step}.hidden.grad", layer.name);
                let width = self.width;
                let (_, of_hidden) = self.add_to(&mut layer.cells[step].of_hidden, |network| {
                    network.floats(name, width)
                });
                writes.push(of_hidden);
            }
            self.product(format!("head.{step}.backward"), head, &reads, &writes);
            if stack.iter().all(|directions| directions.len() == 1) {
                for at in (0..top).rev() {
                    self.undo(stack, values, (at, 0), step);
                }
            }
        }
        if stack.iter().any(|directions| directions.len() > 1) {
            for at in (0..top).rev() {
                for direction in 0..stack[at].len() {
                    for number in 0..self.steps {
                        let reversed = stack[at][direction].reversed;
                        let step = if reversed { number } else { self.steps - 1 - number };
                        self.undo(stack, values, (at, direction), step);
                    }
                }
            }
        }
    }

    /// Records the backward ops of one step of one layer.
    fn undo(
        &mut self,
        stack: &mut [Vec<Layer>],
        values: &[Vec<TensorId>],
        (at, direction): (usize, usize),
        step: usize,
    ) {
        let width = self.width;
        let (below, from) = stack.split_at_mut(at);
        let layer = &mut from[0][direction];
        let name = format!("{}.{step}", layer.name);
        let earlier = if layer.reversed { Some(step + 1) } else { step.checked_sub(1) };
        let earlier = earlier.filter(|&earlier| earlier < self.steps);
        let Cell { sums, gates, cell, of_cell, of_hidden, .. } = layer.cells[step];
        // The gate.
        let of_sums = self.floats(format!("{name}.sums.grad"), 4 * width);
        let mut reads: Vec<_> = of_hidden.into_iter().chain(of_cell).collect();
        reads.extend([sums, gates, cell]);
        let mut writes = vec![of_sums];
        if let Some(earlier) = earlier {
            reads.push(layer.cells[earlier].cell);
            let of_cell = self.floats(format!("{name}.cell.grad"), width);
            layer.cells[earlier].of_cell = Some(of_cell);
            writes.push(of_cell);
        }
        self.tape.op(format!("{name}.gate.backward"), 0, &reads, &writes);
        // The product with the earlier state.
        if let Some(earlier) = earlier {
            let hidden_name = format!("{name}.hidden.grad_before");
            let mut of_hidden = layer.cells[earlier].of_hidden;
            let (before, sum) =
                self.add_to(&mut of_hidden, |network| network.floats(hidden_name, width));
            layer.cells[earlier].of_hidden = of_hidden;
            let mut reads = vec![of_sums, layer.from_hidden.tensor];
            reads.extend(before);
            self.product(format!("{name}.hh.backward"), &layer.from_hidden, &reads, &[sum]);
            let (before, sum) = self.add_to_weight(&mut layer.from_hidden);
            let mut reads = vec![of_sums, layer.cells[earlier].hidden];
            reads.extend(before);
            self.product(format!("{name}.hh.weight.backward"), &layer.from_hidden, &reads, &[sum]);
        }
        // The product with the input.
        let ((before, sum), (bias_before, bias_sum)) =
            (self.add_to_weight(&mut layer.from_input), self.add_to_weight(&mut layer.bias));
        let mut reads = vec![of_sums, values[at][step]];
        reads.extend(before.into_iter().chain(bias_before));
        let writes = [sum, bias_sum];
        self.product(format!("{name}.ih.weight.backward"), &layer.from_input, &reads, &writes);
        let Some(below) = below.last_mut() else { return };
        let mut reads = vec![of_sums, layer.from_input.tensor];
        let mut writes = Vec::new();
        for lower in below {
            let name = format!("{}.{step}.hidden.grad", lower.name);
            let mut of_hidden = lower.cells[step].of_hidden;
            let (before, sum) = self.add_to(&mut of_hidden, |network| network.floats(name, width));
            lower.cells[step].of_hidden = of_hidden;
            reads.extend(before);
            writes.push(sum);
        }
        self.product(format!("{name}.ih.backward"), &layer.from_input, &reads, &writes);
    }
}
