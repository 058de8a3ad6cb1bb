//! Layers of the transformer as ops, forward and backward.

use crate::model::{First, Model, Parameter, Sizes};
use crate::work::{Argument, Location, Matmul, Matrix, Work, by_column, by_row, each};
use planner_core::TensorId;

/// A matrix with a row for each input, and the biases as the last.
pub(crate) struct Linear {
    parameter: Parameter,
    inputs: u32,
    outputs: u32,
}

/// Gains, and biases after them.
pub(crate) struct Norm(Parameter);

/// One product.
fn product(
    [left, right, result]: [Matrix; 3],
    [rows, columns, depth]: [u32; 3],
    adds: bool,
) -> Work {
    let batch = [1, 1];
    Work::Matmul(Matmul { left, right, result, rows, columns, depth, scale: 1.0, adds, batch })
}

/// An address, if there is something.
fn optional(tensor: Option<TensorId>) -> Argument {
    Argument::At(tensor.map(Location::from))
}

impl Model {
    pub(crate) fn new_linear(&mut self, name: &str, inputs: u32, outputs: u32) -> Linear {
        let parameter = self.drawn(name, [inputs.into(), 1], outputs, inputs);
        Linear { parameter, inputs, outputs }
    }

    pub(crate) fn new_norm(&mut self, name: &str) -> Norm {
        let width = u64::from(self.sizes.width);
        Norm(self.parameter(name, 2 * width, First::Ones(width)))
    }

    /// Where a layer's biases lie, in its weights or in their gradient.
    fn biases(layer: &Linear, tensor: TensorId) -> Argument {
        let first = u64::from(layer.inputs) * u64::from(layer.outputs);
        Location::from(tensor).at(first).into()
    }

    /// The input times the weights, and what is added, if anything.
    pub(crate) fn linear(
        &mut self,
        layer: &Linear,
        input: TensorId,
        added: Option<TensorId>,
    ) -> TensorId {
        let Linear { parameter: Parameter { name, weights, .. }, inputs, outputs } = layer;
        let (rows, count) = (self.sizes.rows(), self.sizes.elements(*outputs));
        let output = self.value(name, *outputs);
        let begin = vec![
            Self::biases(layer, *weights),
            optional(added),
            output.into(),
            Argument::Long(count),
            Argument::Word(*outputs),
        ];
        let left = Matrix::new(input, *inputs);
        let [right, result] = [*weights, output].map(|tensor| Matrix::new(tensor, *outputs));
        let work = vec![
            each("begin_rows", count, begin),
            product([left, right, result], [rows, *outputs, *inputs], true),
        ];
        let reads: Vec<_> = [input, *weights].into_iter().chain(added).collect();
        self.push(name, 0, &reads, &[output], work);
        output
    }

    /// The change of a layer's input, by that of its output; and its update.
    pub(crate) fn linear_back(
        &mut self,
        layer: &Linear,
        input: TensorId,
        change: TensorId,
    ) -> TensorId {
        let Linear { parameter, inputs, outputs } = layer;
        let Parameter { name, weights, gradient, .. } = parameter;
        let rows = self.sizes.rows();
        let changed = self.value(&format!("{name} change"), *inputs);
        let [of_output, by_weights, by_gradient] =
            [change, *weights, *gradient].map(|tensor| Matrix::new(tensor, *outputs));
        let [of_input, result] = [input, changed].map(|tensor| Matrix::new(tensor, *inputs));
        let matrices = [of_output, by_weights.transposed(), result];
        let work = product(matrices, [rows, *inputs, *outputs], false);
        self.push(&format!("{name} back"), 0, &[change, *weights], &[changed], vec![work]);
        let matrices = [of_input.transposed(), of_output, by_gradient];
        let sums = vec![
            change.into(),
            Self::biases(layer, *gradient),
            Argument::Word(rows),
            Argument::Word(*outputs),
        ];
        let work = vec![
            product(matrices, [*inputs, *outputs, rows], false),
            by_column("column_sums", *outputs, sums),
        ];
        self.push(&format!("{name} gradient"), 0, &[input, change], &[*gradient], work);
        self.update(parameter);
        changed
    }

    /// The rows normalized, and their statistics.
    pub(crate) fn norm(&mut self, norm: &Norm, input: TensorId) -> (TensorId, TensorId) {
        let Norm(Parameter { name, weights, .. }) = norm;
        let (rows, width) = (self.sizes.rows(), self.sizes.width);
        let (output, statistics) = (self.value(name, width), self.value("statistics", 2));
        let [from, gains, to, noted] = [input, *weights, output, statistics].map(Argument::from);
        let arguments = vec![from, gains, to, noted, Argument::Word(width)];
        let work = by_row("normalize", [rows, width], arguments);
        self.push(name, 0, &[input, *weights], &[output, statistics], vec![work]);
        (output, statistics)
    }

    /// The change of the input, and what is added, if anything; and the update.
    pub(crate) fn norm_back(
        &mut self,
        norm: &Norm,
        input: TensorId,
        statistics: TensorId,
        change: TensorId,
        added: Option<TensorId>,
    ) -> TensorId {
        let Norm(parameter) = norm;
        let Parameter { name, weights, gradient, .. } = parameter;
        let (rows, width) = (self.sizes.rows(), self.sizes.width);
        let changed = self.value(&format!("{name} change"), width);
        let [by, from, noted] = [change, input, statistics].map(Argument::from);
        let [gains, slopes, to] = [*weights, *gradient, changed].map(Argument::from);
        let arguments = vec![by, from, gains, noted, optional(added), to, Argument::Word(width)];
        let work = by_row("normalize_back", [rows, width], arguments);
        let mut reads = vec![change, input, *weights, statistics];
        reads.extend(added);
        self.push(&format!("{name} back"), 0, &reads, &[changed], vec![work]);
        let [rows, columns] = [rows, width].map(Argument::Word);
        let work =
            by_column("normalize_gradient", width, vec![by, from, noted, slopes, rows, columns]);
        let reads = [change, input, statistics];
        self.push(&format!("{name} gradient"), 0, &reads, &[*gradient], vec![work]);
        self.update(parameter);
        changed
    }

    pub(crate) fn gelu(&mut self, input: TensorId) -> TensorId {
        let width = 4 * self.sizes.width;
        let (count, output) = (self.sizes.elements(width), self.value("active", width));
        let work = each("gelu", count, vec![input.into(), output.into(), Argument::Long(count)]);
        self.push("gelu", 0, &[input], &[output], vec![work]);
        output
    }

    pub(crate) fn gelu_back(&mut self, input: TensorId, change: TensorId) -> TensorId {
        let width = 4 * self.sizes.width;
        let (count, changed) = (self.sizes.elements(width), self.value("active change", width));
        let [by, from, to] = [change, input, changed].map(Argument::from);
        let work = each("gelu_back", count, vec![by, from, to, Argument::Long(count)]);
        self.push("gelu back", 0, &[change, input], &[changed], vec![work]);
        changed
    }

    /// Weights of all positions for each position, and the values mixed by them.
    pub(crate) fn attention(&mut self, split: TensorId) -> (TensorId, TensorId) {
        let Sizes { context, width, .. } = self.sizes;
        let scores = self.scores();
        let weights = self.temporary("attention weights", scores);
        let mixed = self.value("mixed", width);
        let Heads { queries, keys, values } = self.heads(split);
        let (by, to) = (self.by_position(weights), self.by_head(mixed));
        let work = vec![
            self.for_each_head([queries, keys.transposed(), by], [true, false], self.scale()),
            by_row(
                "softmax_before",
                self.score_rows(),
                vec![weights.into(), Argument::Word(context)],
            ),
            self.for_each_head([by, values, to], [false, true], 1.0),
        ];
        self.push("attention", 0, &[split], &[weights, mixed], work);
        (weights, mixed)
    }

    /// The change of queries, keys and values.
    pub(crate) fn attention_back(
        &mut self,
        split: TensorId,
        weights: TensorId,
        change: TensorId,
    ) -> TensorId {
        let Sizes { context, width, .. } = self.sizes;
        let changed = self.value("attention change", 3 * width);
        let (old, new) = (self.heads(split), self.heads(changed));
        let (by, of_output) = (self.by_position(weights), self.by_head(change));
        let of_weights = self.by_position(Location::WORKSPACE);
        let scale = self.scale();
        let arguments = vec![weights.into(), Location::WORKSPACE.into(), Argument::Word(context)];
        let work = vec![
            self.for_each_head([by.transposed(), of_output, new.values], [false, true], 1.0),
            self.for_each_head(
                [of_output, old.values.transposed(), of_weights],
                [true, false],
                1.0,
            ),
            by_row("softmax_back", self.score_rows(), arguments),
            self.for_each_head([of_weights, old.keys, new.queries], [false, true], scale),
            self.for_each_head(
                [of_weights.transposed(), old.queries, new.keys],
                [false, true],
                scale,
            ),
        ];
        let reads = [change, split, weights];
        self.push("attention back", 4 * self.scores(), &reads, &[changed], work);
        changed
    }

    /// A product for each head of each sequence. Its rows are positions; so are the terms of its
    /// sums or its columns, and the other of the two are the numbers of a head.
    fn for_each_head(
        &self,
        [left, right, result]: [Matrix; 3],
        [sums_numbers, has_numbers]: [bool; 2],
        scale: f32,
    ) -> Work {
        let Sizes { context, width, heads, batch, .. } = self.sizes;
        let [depth, columns] = [sums_numbers, has_numbers]
            .map(|is_numbers| if is_numbers { width / heads } else { context });
        let (rows, batch) = (context, [batch, heads]);
        Work::Matmul(Matmul {
            left,
            right,
            result,
            rows,
            columns,
            depth,
            scale,
            adds: false,
            batch,
        })
    }

    fn heads(&self, split: TensorId) -> Heads {
        let Sizes { context, width, heads, .. } = self.sizes;
        let [queries, keys, values] = [0, 1, 2].map(|part| {
            let location = Location::from(split).at(part * u64::from(width));
            Matrix::new(location, 3 * width).stepping([3 * context * width, width / heads])
        });
        Heads { queries, keys, values }
    }

    /// A value with `width` numbers a position, divided into heads.
    fn by_head(&self, tensor: TensorId) -> Matrix {
        let Sizes { context, width, heads, .. } = self.sizes;
        Matrix::new(tensor, width).stepping([context * width, width / heads])
    }

    /// A value for each head and two positions.
    fn by_position(&self, location: impl Into<Location>) -> Matrix {
        let Sizes { context, heads, .. } = self.sizes;
        Matrix::new(location, context).stepping([heads * context * context, context * context])
    }

    const fn score_rows(&self) -> [u32; 2] {
        [self.sizes.rows() * self.sizes.heads, self.sizes.context]
    }

    fn scores(&self) -> u64 {
        self.score_rows().map(u64::from).iter().product()
    }

    /// Of scores, by which their variance is that of queries and keys.
    fn scale(&self) -> f32 {
        1.0 / ((self.sizes.width / self.sizes.heads) as f32).sqrt()
    }
}

/// Queries, keys and values of all heads.
struct Heads {
    queries: Matrix,
    keys: Matrix,
    values: Matrix,
}
