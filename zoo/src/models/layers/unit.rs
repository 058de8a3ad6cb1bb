//! A convolution and the normalization after it, as frameworks of static graphs fuse them:
//! two ops forward, two backward, and one update of all its parameters. In training, the
//! normalization keeps the normalized tensor beside its output, and a separable convolution
//! the tensor between its halves. Memory then roughly matches the published figures.

use super::product_flops;
use crate::models::tape::{FLOAT_BYTES, Tape, Value, elements};
use planner_core::{Kind, TensorId};

/// The window of a convolution, and its variants.
#[derive(Clone, Copy, Debug)]
pub(in crate::models) struct Kernel {
    height: u64,
    width: u64,
    stride: u64,
    /// Whether zeros around the image keep its size at stride 1.
    padded: bool,
    /// Whether a depthwise convolution comes first, then a 1x1 convolution.
    separable: bool,
    /// Whether the op of the normalization ends with a ReLU.
    relu: bool,
}

impl Kernel {
    /// A square kernel with zeros around the image, and a ReLU after it.
    pub(in crate::models) const fn square(side: u64, stride: u64) -> Self {
        let (padded, separable, relu) = (true, false, true);
        Self { height: side, width: side, stride, padded, separable, relu }
    }

    /// A kernel of another shape, with zeros around the image, stride 1 and a ReLU after it.
    pub(in crate::models) const fn rectangle(height: u64, width: u64) -> Self {
        Self { height, width, ..Self::square(1, 1) }
    }

    /// Returns the kernel without zeros around the image.
    pub(in crate::models) const fn valid(self) -> Self {
        Self { padded: false, ..self }
    }

    /// Returns the kernel as a separable one.
    pub(in crate::models) const fn separable(self) -> Self {
        Self { separable: true, ..self }
    }

    /// Returns the kernel without a ReLU.
    pub(in crate::models) const fn linear(self) -> Self {
        Self { relu: false, ..self }
    }

    const fn positions(self, extent: u64, reach: u64) -> u64 {
        let padding = if self.padded { reach - 1 } else { 0 };
        (extent + padding).saturating_sub(reach) / self.stride + 1
    }

    /// The number of weights for this many channels, each with `inputs` input channels.
    const fn weights(self, inputs: u64, channels: u64) -> u64 {
        let area = self.height * self.width;
        match self.separable {
            true => inputs.saturating_mul(area.saturating_add(channels)),
            false => inputs.saturating_mul(area).saturating_mul(channels),
        }
    }
}

impl Tape {
    /// A convolution and a normalization.
    pub(in crate::models) fn unit(
        &mut self,
        name: &str,
        x: Value,
        channels: u64,
        kernel: Kernel,
    ) -> Value {
        let [batch, inputs, height, width] = x.shape;
        let [height, width] = [(height, kernel.height), (width, kernel.width)]
            .map(|(extent, reach)| kernel.positions(extent, reach));
        let shape = [batch, channels, height, width];
        let weights = kernel.weights(inputs, channels);
        let parameters = [("weight", weights), ("norm", 2 * channels)];
        let [weight, norm] = self.parameters(name, parameters);
        let running_bytes = channels.saturating_mul(2 * FLOAT_BYTES);
        let running = self.tensor(format!("{name}.running"), running_bytes, Kind::State);
        let y = self.output(format!("{name}.conv"), shape, &[x, weight]);
        let flops = product_flops(elements(&[batch, height, width]), weights, 1);
        let between = (kernel.separable && self.undoes(y))
            .then(|| self.floats(format!("{name}.between"), [batch, inputs, height, width]));
        let writes: Vec<_> = between.into_iter().chain([self.at(y)]).collect();
        self.op(name.to_owned(), flops, &[self.at(x), self.at(weight)], &writes);
        let z = self.output(format!("{name}.out"), shape, &[y]);
        let saved = self.undoes(z).then(|| {
            let normal = self.floats(format!("{name}.normal"), shape);
            let name = format!("{name}.statistics");
            [normal, self.tensor(name, running_bytes, Kind::Temporary)]
        });
        let reads = [self.at(y), self.at(norm), running];
        let mut writes = vec![self.at(z)];
        // Inference uses the running statistics, and training updates them.
        writes.extend(saved.into_iter().flat_map(|[normal, saved]| [running, normal, saved]));
        self.op(format!("{name}.norm"), 0, &reads, &writes);
        self.on_backward(y, self.unit_backward(name, flops, (x, weight), between));
        let name = name.to_owned();
        self.on_backward(z, move |tape, gradient| {
            let mut reads = vec![gradient, tape.at(y), tape.at(norm)];
            reads.extend(kernel.relu.then(|| tape.at(z)));
            reads.extend(saved.into_iter().flatten());
            let gradients = [(y, format!("{name}.conv.grad")), (norm, format!("{name}.norm.grad"))];
            tape.undo(format!("{name}.norm.backward"), 0, &reads, gradients);
        });
        z
    }

    fn unit_backward(
        &self,
        name: &str,
        flops: u128,
        (x, weight): (Value, Value),
        between: Option<TensorId>,
    ) -> impl FnOnce(&mut Self, TensorId) + use<> {
        let name = name.to_owned();
        move |tape, gradient| {
            let mut reads = vec![gradient, tape.at(x), tape.at(weight)];
            reads.extend(between);
            let products = 1 + u128::from(x.differentiable);
            let gradients =
                [(weight, format!("{name}.weight.grad")), (x, format!("{name}.grad_input"))];
            tape.undo(format!("{name}.backward"), flops * products, &reads, gradients);
        }
    }

    /// A sum and a ReLU in one op, which overwrites `x`. Both inputs have the gradient of the sum.
    pub(in crate::models) fn add_relu(&mut self, name: &str, x: Value, y: Value) -> Value {
        let other = self.at(y);
        let sum = self.in_place(x);
        self.op(name.to_owned(), 0, &[self.at(sum), other], &[self.at(sum)]);
        let name = name.to_owned();
        self.on_backward(sum, move |tape, gradient| {
            let reads = [gradient, tape.at(sum)];
            let both = tape.floats(format!("{name}.grad"), sum.shape);
            tape.op(format!("{name}.backward"), 0, &reads, &[both]);
            tape.give_gradient(x, both);
            tape.give_gradient(y, both);
        });
        sum
    }
}
