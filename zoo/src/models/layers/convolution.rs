//! Convolutions.

use super::{Window, product_flops};
use crate::models::tape::{Tape, Value, elements};

/// The weights of a convolution, which several layers may share.
#[derive(Clone, Copy, Debug)]
pub(in crate::models) struct Filter {
    weight: Value,
    bias: Option<Value>,
    window: Window,
}

impl Filter {
    /// Returns the same weights without training.
    pub(in crate::models) fn detached(self) -> Self {
        let bias = self.bias.map(Value::detached);
        Self { weight: self.weight.detached(), bias, ..self }
    }
}

/// Convolutions. A convolution before a batch norm has no bias, since the batch norm has one.
impl Tape {
    /// Weights of `channels` channels, each with `inputs` input channels.
    fn filter(&mut self, name: &str, channels: u64, inputs: u64, window: Window) -> Filter {
        let shape = [channels, inputs, window.kernel, window.kernel];
        Filter { weight: self.parameter(format!("{name}.weight"), shape), bias: None, window }
    }

    /// Weights like [`Self::filter`], with a bias.
    pub(in crate::models) fn biased_filter(
        &mut self,
        name: &str,
        channels: u64,
        inputs: u64,
        window: Window,
    ) -> Filter {
        let filter = self.filter(name, channels, inputs, window);
        let bias = self.parameter(format!("{name}.bias"), [channels, 1, 1, 1]);
        Filter { bias: Some(bias), ..filter }
    }

    /// Weights with a bias that are not trained.
    pub(in crate::models) fn frozen_filter(
        &mut self,
        name: &str,
        channels: u64,
        inputs: u64,
        window: Window,
    ) -> Filter {
        let shape = [channels, inputs, window.kernel, window.kernel];
        let weight = self.frozen(format!("{name}.weight"), shape);
        let bias = self.frozen(format!("{name}.bias"), [channels, 1, 1, 1]);
        Filter { weight, bias: Some(bias), window }
    }

    /// A convolution without bias.
    pub(in crate::models) fn convolution(
        &mut self,
        name: &str,
        x: Value,
        channels: u64,
        window: Window,
    ) -> Value {
        let filter = self.filter(name, channels, x.shape[1], window);
        self.convolve(name, x, filter)
    }

    /// A convolution with bias.
    pub(in crate::models) fn biased_convolution(
        &mut self,
        name: &str,
        x: Value,
        channels: u64,
        window: Window,
    ) -> Value {
        let filter = self.biased_filter(name, channels, x.shape[1], window);
        self.convolve(name, x, filter)
    }

    /// A depthwise convolution without bias: each output channel sees only its input channel.
    pub(in crate::models) fn depthwise(&mut self, name: &str, x: Value, window: Window) -> Value {
        let filter = self.filter(name, x.shape[1], 1, window);
        self.convolve(name, x, filter)
    }

    /// A convolution with these weights.
    pub(in crate::models) fn convolve(&mut self, name: &str, x: Value, filter: Filter) -> Value {
        let Filter { weight, window, .. } = filter;
        let y = self.output(
            format!("{name}.out"),
            window.slide(x.shape, weight.shape[0]),
            &[x, weight],
        );
        let flops = product_flops(elements(&y.shape), elements(&weight.shape[1..]), 1);
        self.apply(name, flops, x, filter, y)
    }

    /// A transposed convolution with bias, which doubles the image's size.
    pub(in crate::models) fn doubling(&mut self, name: &str, x: Value, channels: u64) -> Value {
        let window = Window::same(3, 2);
        let [batch, inputs, height, width] = x.shape;
        let shape = [inputs, channels, window.kernel, window.kernel];
        let weight = self.parameter(format!("{name}.weight"), shape);
        let bias = Some(self.parameter(format!("{name}.bias"), [channels, 1, 1, 1]));
        let y = self.output(
            format!("{name}.out"),
            [batch, channels, 2 * height, 2 * width],
            &[x, weight],
        );
        let flops = product_flops(elements(&x.shape), elements(&weight.shape[1..]), 1);
        self.apply(name, flops, x, Filter { weight, bias, window }, y)
    }

    fn apply(&mut self, name: &str, flops: u128, x: Value, filter: Filter, y: Value) -> Value {
        let Filter { weight, bias, .. } = filter;
        let reads: Vec<_> =
            [Some(x), Some(weight), bias].into_iter().flatten().map(|v| self.at(v)).collect();
        self.op(name.to_owned(), flops, &reads, &[self.at(y)]);
        let name = name.to_owned();
        self.on_backward(y, move |tape, gradient| {
            let reads = [gradient, tape.at(x), tape.at(weight)];
            let products = u128::from(weight.differentiable) + u128::from(x.differentiable);
            let gradients = [
                Some((weight, format!("{name}.weight.grad"))),
                Some((x, format!("{name}.grad_input"))),
                bias.map(|bias| (bias, format!("{name}.bias.grad"))),
            ];
            let gradients = gradients.into_iter().flatten();
            tape.undo(format!("{name}.backward"), flops * products, &reads, gradients);
        });
        y
    }
}
