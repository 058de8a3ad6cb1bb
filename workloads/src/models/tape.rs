//! Records a model's forward pass, and how each layer is undone; then emits the backward
//! pass in reverse and the optimizer, in the order in which PyTorch runs them.

use super::roofline::Roofline;
use crate::graph::OwnedGraph;
use hashbrown::HashMap;
use planner_core::{Kind, TensorId};

/// Size of a single-precision number.
pub(super) const FLOAT_BYTES: u64 = 4;

/// Size of PyTorch's indices and counters.
pub(super) const INDEX_BYTES: u64 = 8;

/// Batch, channels, height, width; layers without an image leave the last ones 1.
pub(super) type Shape = [u64; 4];

/// The number of elements; sizes too large for a graph saturate, and the graph is rejected.
pub(super) fn elements(shape: &[u64]) -> u64 {
    shape.iter().fold(1, |product, &extent| product.saturating_mul(extent))
}

/// What a tensor holds at one time. An op in place makes a new value in the same tensor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Value {
    id: u32,
    tensor: TensorId,
    /// Its extents.
    pub(super) shape: Shape,
    /// Whether the loss is differentiated with respect to it.
    pub(super) differentiable: bool,
}

type Backward = Box<dyn FnOnce(&mut Tape)>;

/// A graph under construction.
pub(super) struct Tape {
    graph: OwnedGraph,
    roofline: Roofline,
    training: bool,
    /// Number of values so far.
    values: u32,
    /// The value that each tensor holds; used to catch a layer that reads what another has
    /// overwritten.
    held: HashMap<TensorId, u32>,
    backward: Vec<Backward>,
    /// The gradient of each value that has one.
    gradients: HashMap<u32, TensorId>,
    /// Trained parameters with their names.
    parameters: Vec<(String, Value)>,
}

impl Tape {
    pub(super) fn new(name: String, training: bool, roofline: Roofline) -> Self {
        Self {
            graph: OwnedGraph::new(name),
            roofline,
            training,
            values: 0,
            held: HashMap::new(),
            backward: Vec::new(),
            gradients: HashMap::new(),
            parameters: Vec::new(),
        }
    }

    /// Whether a training step is recorded.
    pub(super) const fn training(&self) -> bool {
        self.training
    }

    /// A tensor that layers keep themselves, such as running statistics or saved indices.
    pub(super) fn tensor(&mut self, name: String, bytes: u64, kind: Kind) -> TensorId {
        self.graph.push_tensor(name, bytes, kind)
    }

    /// Something that each iteration is given, and that is not differentiated.
    pub(super) fn input(&mut self, name: &str, shape: Shape, element_bytes: u64) -> Value {
        let bytes = elements(&shape).saturating_mul(element_bytes);
        let tensor = self.tensor(name.to_owned(), bytes, Kind::Input);
        self.value(tensor, shape, false)
    }

    /// A trained parameter of single precision.
    pub(super) fn parameter(&mut self, name: String, shape: Shape) -> Value {
        let bytes = elements(&shape).saturating_mul(FLOAT_BYTES);
        let tensor = self.tensor(name.clone(), bytes, Kind::State);
        let value = self.value(tensor, shape, true);
        self.parameters.push((name, value));
        value
    }

    /// A new value of single precision in a tensor of its own, for the next op to write.
    pub(super) fn output(&mut self, name: String, shape: Shape) -> Value {
        let tensor = self.floats(name, shape);
        self.value(tensor, shape, true)
    }

    /// The value that an op leaves in the tensor of `value`.
    pub(super) fn in_place(&mut self, value: Value) -> Value {
        self.value(value.tensor, value.shape, value.differentiable)
    }

    /// A temporary of single precision.
    pub(super) fn floats(&mut self, name: String, shape: Shape) -> TensorId {
        self.tensor(name, elements(&shape).saturating_mul(FLOAT_BYTES), Kind::Temporary)
    }

    fn value(&mut self, tensor: TensorId, shape: Shape, differentiable: bool) -> Value {
        let id = self.values;
        self.values += 1;
        self.held.insert(tensor, id);
        Value { id, tensor, shape, differentiable }
    }

    /// The tensor that holds a value.
    ///
    /// # Panics
    /// Another value has taken its place: the layers are put together wrongly.
    pub(super) fn at(&self, value: Value) -> TensorId {
        assert_eq!(self.held[&value.tensor], value.id, "a value is read after it is overwritten");
        value.tensor
    }

    /// Records an op; its traffic is every byte that it reads or writes.
    pub(super) fn op(
        &mut self,
        name: String,
        flops: u128,
        reads: &[TensorId],
        writes: &[TensorId],
    ) {
        let bytes = reads.iter().chain(writes);
        let bytes = bytes.map(|tensor| u128::from(self.graph.tensors[tensor.index()].bytes)).sum();
        let time_ns = self.roofline.time_ns(flops, bytes);
        self.graph.push_op(name, time_ns, 0, reads, writes);
    }

    /// Says how the layer just recorded is undone. Inference forgets it.
    pub(super) fn on_backward(&mut self, undo: impl FnOnce(&mut Self) + 'static) {
        if self.training {
            self.backward.push(Box::new(undo));
        }
    }

    /// Adds to the gradient of a value. The first one is taken over as it is, and later ones
    /// are added to it in place: it must not be the gradient of another value that is still
    /// to be used.
    pub(super) fn give_gradient(&mut self, value: Value, gradient: TensorId) {
        let Some(&sum) = self.gradients.get(&value.id) else {
            self.gradients.insert(value.id, gradient);
            return;
        };
        let users = self.gradients.values().filter(|&&held| held == sum).count();
        assert_eq!(users, 1, "a gradient that two values share is added to");
        let name = format!("{}.add_", self.graph.tensor_names[gradient.index()]);
        self.op(name, 0, &[sum, gradient], &[sum]);
    }

    /// Takes the gradient of a value, which is complete once all its users are undone.
    ///
    /// # Panics
    /// The value has none: what was computed from it does not reach the loss.
    pub(super) fn take_gradient(&mut self, value: Value) -> TensorId {
        self.gradients.remove(&value.id).expect("every value on the tape leads to the loss")
    }

    /// The whole iteration: undoes the layers, last first, then updates the parameters by
    /// stochastic gradient descent with momentum.
    pub(super) fn finish(mut self) -> OwnedGraph {
        for undo in std::mem::take(&mut self.backward).into_iter().rev() {
            undo(&mut self);
        }
        if self.training {
            for (name, weight) in std::mem::take(&mut self.parameters) {
                let gradient = self.take_gradient(weight);
                let bytes = elements(&weight.shape).saturating_mul(FLOAT_BYTES);
                let momentum = self.tensor(format!("{name}.momentum"), bytes, Kind::State);
                let weight = self.at(weight);
                self.op(
                    format!("{name}.sgd"),
                    0,
                    &[gradient, weight, momentum],
                    &[weight, momentum],
                );
            }
        }
        self.graph
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tape() -> Tape {
        let roofline = Roofline { milli_tflops: 14_000, milli_gb_s: 800_000 };
        Tape::new("test".to_owned(), true, roofline)
    }

    #[test]
    #[should_panic(expected = "a value is read after it is overwritten")]
    fn an_overwritten_value_cannot_be_read() {
        let mut tape = tape();
        let x = tape.output("x".to_owned(), [2; 4]);
        tape.relu("relu", x);
        tape.at(x);
    }

    #[test]
    fn the_second_gradient_is_added_to_the_first() {
        let mut tape = tape();
        let x = tape.output("x".to_owned(), [2; 4]);
        let [first, second] = ["g", "h"].map(|name| tape.floats(name.to_owned(), [2; 4]));
        tape.give_gradient(x, first);
        tape.give_gradient(x, second);
        assert_eq!(tape.graph.operands, [first, second, first]);
        assert_eq!(tape.take_gradient(x), first);
    }

    #[test]
    #[should_panic(expected = "a gradient that two values share is added to")]
    fn a_shared_gradient_is_not_added_to() {
        let mut tape = tape();
        let [x, y] = ["x", "y"].map(|name| tape.output(name.to_owned(), [2; 4]));
        let [both, one] = ["g", "h"].map(|name| tape.floats(name.to_owned(), [2; 4]));
        tape.give_gradient(x, both);
        tape.give_gradient(y, both);
        tape.give_gradient(x, one);
    }
}
