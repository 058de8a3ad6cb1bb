//! Layers, each with its forward ops and how they are undone.

use super::tape::{FLOAT_BYTES, INDEX_BYTES, Shape, Tape, Value, elements};
use planner_core::Kind;

/// A square window that slides over an image.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// Its side.
    pub(super) kernel: u64,
    /// How far it moves.
    pub(super) stride: u64,
    /// Zeros around the image.
    pub(super) padding: u64,
}

impl Window {
    /// A window whose padding keeps the image's size where the stride is 1.
    pub(super) const fn same(kernel: u64, stride: u64) -> Self {
        Self { kernel, stride, padding: kernel / 2 }
    }

    const fn positions(self, extent: u64) -> u64 {
        (extent + 2 * self.padding - self.kernel) / self.stride + 1
    }

    fn slide(self, [batch, _, height, width]: Shape, channels: u64) -> Shape {
        [batch, channels, self.positions(height), self.positions(width)]
    }
}

/// Two operations for each multiplication of a matrix product.
fn product_flops(rows: u64, inner: u64, columns: u64) -> u128 {
    2 * u128::from(rows).saturating_mul(u128::from(inner)).saturating_mul(u128::from(columns))
}

impl Tape {
    /// A convolution without bias.
    pub(super) fn convolution(
        &mut self,
        name: &str,
        x: Value,
        channels: u64,
        window: Window,
    ) -> Value {
        let [_, in_channels, ..] = x.shape;
        let kernel = [channels, in_channels, window.kernel, window.kernel];
        let weight = self.parameter(format!("{name}.weight"), kernel);
        let y = self.output(format!("{name}.out"), window.slide(x.shape, channels));
        let flops = product_flops(elements(&y.shape), elements(&kernel[1..]), 1);
        self.op(name.to_owned(), flops, &[self.at(x), self.at(weight)], &[self.at(y)]);
        let name = name.to_owned();
        self.on_backward(move |tape| {
            let gradient = tape.take_gradient(y);
            let reads = [gradient, tape.at(x), tape.at(weight)];
            let weight_gradient = tape.floats(format!("{name}.weight.grad"), weight.shape);
            let mut writes = vec![weight_gradient];
            if x.differentiable {
                writes.push(tape.floats(format!("{name}.grad_input"), x.shape));
            }
            tape.op(format!("{name}.backward"), flops * writes.len() as u128, &reads, &writes);
            tape.give_gradient(weight, weight_gradient);
            if let Some(&input_gradient) = writes.get(1) {
                tape.give_gradient(x, input_gradient);
            }
        });
        y
    }

    /// A batch norm: statistics of the batch in training, running ones in inference.
    pub(super) fn batch_norm(&mut self, name: &str, x: Value) -> Value {
        let channels = [x.shape[1], 1, 1, 1];
        let weight = self.parameter(format!("{name}.weight"), channels);
        let bias = self.parameter(format!("{name}.bias"), channels);
        let running = ["running_mean", "running_var"].map(|statistic| {
            let bytes = elements(&channels).saturating_mul(FLOAT_BYTES);
            self.tensor(format!("{name}.{statistic}"), bytes, Kind::State)
        });
        let [mean, variance] = running;
        let y = self.output(format!("{name}.out"), x.shape);
        let reads = [self.at(x), self.at(weight), self.at(bias), mean, variance];
        if !self.training() {
            self.op(name.to_owned(), 0, &reads, &[self.at(y)]);
            return y;
        }
        let count = self.tensor(format!("{name}.num_batches_tracked"), INDEX_BYTES, Kind::State);
        self.op(format!("{name}.num_batches_tracked.add_"), 0, &[count], &[count]);
        let saved = ["saved_mean", "saved_invstd"]
            .map(|statistic| self.floats(format!("{name}.{statistic}"), channels));
        let writes = [self.at(y), mean, variance, saved[0], saved[1]];
        self.op(name.to_owned(), 0, &reads, &writes);
        let name = name.to_owned();
        self.on_backward(move |tape| {
            let gradient = tape.take_gradient(y);
            let reads = [gradient, tape.at(x), tape.at(weight), saved[0], saved[1]];
            let input = tape.floats(format!("{name}.grad_input"), x.shape);
            let weights = tape.floats(format!("{name}.weight.grad"), channels);
            let biases = tape.floats(format!("{name}.bias.grad"), channels);
            tape.op(format!("{name}.backward"), 0, &reads, &[input, weights, biases]);
            tape.give_gradient(x, input);
            tape.give_gradient(weight, weights);
            tape.give_gradient(bias, biases);
        });
        y
    }

    /// A ReLU in place. Its backward pass needs what it left, not what it was given.
    pub(super) fn relu(&mut self, name: &str, x: Value) -> Value {
        let y = self.in_place(x);
        self.op(name.to_owned(), 0, &[self.at(y)], &[self.at(y)]);
        let name = name.to_owned();
        self.on_backward(move |tape| {
            let gradient = tape.take_gradient(y);
            let input = tape.floats(format!("{name}.grad_input"), x.shape);
            tape.op(format!("{name}.backward"), 0, &[gradient, tape.at(y)], &[input]);
            tape.give_gradient(x, input);
        });
        y
    }

    /// Adds `y` to `x` in place. Both have the gradient of the sum.
    pub(super) fn add(&mut self, name: &str, x: Value, y: Value) -> Value {
        let other = self.at(y);
        let sum = self.in_place(x);
        self.op(name.to_owned(), 0, &[self.at(sum), other], &[self.at(sum)]);
        self.on_backward(move |tape| {
            let gradient = tape.take_gradient(sum);
            tape.give_gradient(x, gradient);
            tape.give_gradient(y, gradient);
        });
        sum
    }

    /// The maximum in each window; training keeps its position.
    pub(super) fn max_pool(&mut self, name: &str, x: Value, window: Window) -> Value {
        let y = self.output(format!("{name}.out"), window.slide(x.shape, x.shape[1]));
        let bytes = elements(&y.shape).saturating_mul(INDEX_BYTES);
        let indices = self.tensor(format!("{name}.indices"), bytes, Kind::Temporary);
        self.op(name.to_owned(), 0, &[self.at(x)], &[self.at(y), indices]);
        let name = name.to_owned();
        self.on_backward(move |tape| {
            let gradient = tape.take_gradient(y);
            let input = tape.floats(format!("{name}.grad_input"), x.shape);
            tape.op(format!("{name}.backward"), 0, &[gradient, tape.at(x), indices], &[input]);
            tape.give_gradient(x, input);
        });
        y
    }

    /// The mean of each channel.
    pub(super) fn average_pool(&mut self, name: &str, x: Value) -> Value {
        let [batch, channels, ..] = x.shape;
        let y = self.output(format!("{name}.out"), [batch, channels, 1, 1]);
        self.op(name.to_owned(), 0, &[self.at(x)], &[self.at(y)]);
        let name = name.to_owned();
        self.on_backward(move |tape| {
            let gradient = tape.take_gradient(y);
            let input = tape.floats(format!("{name}.grad_input"), x.shape);
            tape.op(format!("{name}.backward"), 0, &[gradient], &[input]);
            tape.give_gradient(x, input);
        });
        y
    }

    /// A product with a matrix, and a bias.
    pub(super) fn linear(&mut self, name: &str, x: Value, features: u64) -> Value {
        let [rows, inner, ..] = x.shape;
        let weight = self.parameter(format!("{name}.weight"), [features, inner, 1, 1]);
        let bias = self.parameter(format!("{name}.bias"), [features, 1, 1, 1]);
        let y = self.output(format!("{name}.out"), [rows, features, 1, 1]);
        let flops = product_flops(rows, inner, features);
        let reads = [self.at(bias), self.at(x), self.at(weight)];
        self.op(name.to_owned(), flops, &reads, &[self.at(y)]);
        let name = name.to_owned();
        self.on_backward(move |tape| {
            let gradient = tape.take_gradient(y);
            let input = tape.floats(format!("{name}.grad_input"), x.shape);
            let weights = tape.floats(format!("{name}.weight.grad"), weight.shape);
            let biases = tape.floats(format!("{name}.bias.grad"), bias.shape);
            let (x_at, weight_at) = (tape.at(x), tape.at(weight));
            tape.op(format!("{name}.backward.input"), flops, &[gradient, weight_at], &[input]);
            tape.op(format!("{name}.backward.weight"), flops, &[gradient, x_at], &[weights]);
            tape.op(format!("{name}.backward.bias"), 0, &[gradient], &[biases]);
            tape.give_gradient(x, input);
            tape.give_gradient(weight, weights);
            tape.give_gradient(bias, biases);
        });
        y
    }

    /// Cross entropy of scores and labels, as log-softmax and negative log-likelihood. Here
    /// the backward pass begins.
    pub(super) fn cross_entropy(&mut self, scores: Value, labels: Value) {
        const ONE: Shape = [1; 4];
        let logs = self.output("log_softmax.out".to_owned(), scores.shape);
        self.op("log_softmax".to_owned(), 0, &[self.at(scores)], &[self.at(logs)]);
        let loss = self.floats("loss".to_owned(), ONE);
        let total = self.floats("nll_loss.total_weight".to_owned(), ONE);
        let labels = self.at(labels);
        self.op("nll_loss".to_owned(), 0, &[self.at(logs), labels], &[loss, total]);
        self.on_backward(move |tape| {
            let one = tape.floats("loss.grad".to_owned(), ONE);
            tape.op("loss.ones_like".to_owned(), 0, &[], &[one]);
            let logs_at = tape.at(logs);
            let middle = tape.floats("nll_loss.grad_input".to_owned(), logs.shape);
            let reads = [one, logs_at, labels, total];
            tape.op("nll_loss.backward".to_owned(), 0, &reads, &[middle]);
            let input = tape.floats("log_softmax.grad_input".to_owned(), scores.shape);
            tape.op("log_softmax.backward".to_owned(), 0, &[middle, logs_at], &[input]);
            tape.give_gradient(scores, input);
        });
    }
}
