//! Records a model's forward pass and the backward function of each layer. Then emits the backward pass in
//! reverse and the optimizer, in the order of PyTorch.

use super::optimizer::Optimizer;
use super::roofline::Speeds;
use hashbrown::HashMap;
use planner_core::{Kind, TensorId};
use workloads::OwnedGraph;

/// Size of a single-precision number.
pub(super) const FLOAT_BYTES: u64 = 4;

/// Size of PyTorch's indices and counters.
pub(super) const INDEX_BYTES: u64 = 8;

/// Batch, channels, height and width. For layers without an image, height and width are 1.
pub(super) type Shape = [u64; 4];

/// The shape of a single number.
pub(super) const SCALAR: Shape = [1; 4];

/// Returns the number of elements. Sizes too large for a graph saturate, and the graph is rejected later.
pub(super) fn elements(shape: &[u64]) -> u64 {
    shape.iter().fold(1, |product, &extent| product.saturating_mul(extent))
}

/// The content of a tensor at one time. An op in place makes a new value in the same tensor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Value {
    id: u32,
    tensor: TensorId,
    /// Its extents.
    pub(super) shape: Shape,
    /// Whether the value has a gradient.
    pub(super) differentiable: bool,
}

impl Value {
    /// Returns the same value without a gradient.
    pub(super) const fn detached(self) -> Self {
        Self { differentiable: false, ..self }
    }
}

/// The work of an op.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub(super) flops: u128,
    /// The bytes that the op reads and writes.
    pub(super) bytes: u128,
    pub(super) workspace_bytes: u64,
}

type Backward = Box<dyn FnOnce(&mut Tape)>;

/// The recorded layers whose backward pass has not been emitted yet.
#[derive(Default)]
pub(super) struct Pass {
    backward: Vec<Backward>,
    /// Trained parameters with their names, by the op that updates them.
    parameters: Vec<(String, Vec<(String, Value)>)>,
}

/// A graph under construction.
pub(super) struct Tape {
    graph: OwnedGraph,
    speeds: Speeds,
    training: bool,
    optimizer: Optimizer,
    /// Number of values so far.
    values: u32,
    /// The value that each tensor holds, to detect a layer that reads an overwritten value.
    held: HashMap<TensorId, u32>,
    pass: Pass,
    /// The gradient of each value that has one.
    gradients: HashMap<u32, TensorId>,
}

impl Tape {
    pub(super) fn new(name: String, training: bool, speeds: Speeds, optimizer: Optimizer) -> Self {
        Self {
            graph: OwnedGraph::new(name),
            speeds,
            training,
            optimizer,
            values: 0,
            held: HashMap::new(),
            pass: Pass::default(),
            gradients: HashMap::new(),
        }
    }

    /// Whether a training step is recorded.
    pub(super) const fn training(&self) -> bool {
        self.training
    }

    /// Adds a tensor that layers manage themselves, such as running statistics or saved indices.
    pub(super) fn tensor(&mut self, name: String, bytes: u64, kind: Kind) -> TensorId {
        self.graph.push_tensor(name, bytes, kind)
    }

    /// Adds an input, which has no gradient.
    pub(super) fn input(&mut self, name: &str, shape: Shape, element_bytes: u64) -> Value {
        let bytes = elements(&shape).saturating_mul(element_bytes);
        let tensor = self.tensor(name.to_owned(), bytes, Kind::Input);
        self.value(tensor, shape, false)
    }

    /// Adds a trained parameter of single precision.
    pub(super) fn parameter(&mut self, name: String, shape: Shape) -> Value {
        let value = Value { differentiable: true, ..self.frozen(name.clone(), shape) };
        self.pass.parameters.push((name.clone(), vec![(name, value)]));
        value
    }

    /// Adds trained parameters of single precision that one op updates, each with its number of elements.
    pub(super) fn parameters<const N: usize>(
        &mut self,
        name: &str,
        parts: [(&str, u64); N],
    ) -> [Value; N] {
        let named = parts.map(|(part, elements)| {
            let name = format!("{name}.{part}");
            let value = self.frozen(name.clone(), [elements, 1, 1, 1]);
            (name, Value { differentiable: true, ..value })
        });
        let values = named.each_ref().map(|(_, value)| *value);
        self.pass.parameters.push((name.to_owned(), named.to_vec()));
        values
    }

    /// Adds a parameter of single precision that is not trained.
    pub(super) fn frozen(&mut self, name: String, shape: Shape) -> Value {
        let bytes = elements(&shape).saturating_mul(FLOAT_BYTES);
        let tensor = self.tensor(name, bytes, Kind::State);
        self.value(tensor, shape, false)
    }

    /// Adds a value of single precision in a new tensor, for the next op to write. It is differentiable if
    /// one of the values in `from` is.
    pub(super) fn output(&mut self, name: String, shape: Shape, from: &[Value]) -> Value {
        let tensor = self.floats(name, shape);
        self.value(tensor, shape, from.iter().any(|value| value.differentiable))
    }

    /// Returns the value that an op in place leaves in the tensor of `value`.
    pub(super) fn in_place(&mut self, value: Value) -> Value {
        self.value(value.tensor, value.shape, value.differentiable)
    }

    /// Adds a temporary of single precision.
    pub(super) fn floats(&mut self, name: String, shape: Shape) -> TensorId {
        self.tensor(name, elements(&shape).saturating_mul(FLOAT_BYTES), Kind::Temporary)
    }

    fn value(&mut self, tensor: TensorId, shape: Shape, differentiable: bool) -> Value {
        let id = self.values;
        self.values += 1;
        self.held.insert(tensor, id);
        Value { id, tensor, shape, differentiable }
    }

    /// Returns the tensor that holds a value.
    ///
    /// # Panics
    /// Another value has overwritten this one: the layers are combined wrongly.
    pub(super) fn at(&self, value: Value) -> TensorId {
        assert_eq!(self.held[&value.tensor], value.id, "a value is read after it is overwritten");
        value.tensor
    }

    /// Records an op. Its traffic is every byte that it reads or writes. No op draws random numbers, and no
    /// other output of an op depends on a state that it updates. So all ops are repeatable, except ops that
    /// write only states.
    pub(super) fn op(
        &mut self,
        name: String,
        flops: u128,
        reads: &[TensorId],
        writes: &[TensorId],
    ) {
        let bytes = self.bytes(reads) + self.bytes(writes);
        self.op_of(name, Work { flops, bytes, workspace_bytes: 0 }, reads, writes);
    }

    /// Returns the bytes of these tensors.
    pub(super) fn bytes(&self, tensors: &[TensorId]) -> u128 {
        tensors.iter().map(|tensor| u128::from(self.graph.tensors[tensor.index()].bytes)).sum()
    }

    /// Records an op with other traffic than whole tensors, or with a workspace.
    pub(super) fn op_of(
        &mut self,
        name: String,
        work: Work,
        reads: &[TensorId],
        writes: &[TensorId],
    ) {
        let time_ns = self.speeds.device.time_ns(work.flops, work.bytes);
        let op = self.graph.push_op(name, time_ns, work.workspace_bytes, reads, writes);
        self.graph.promise_repeats(op);
        if let Some(host) = self.speeds.host.filter(|host| host.milli_tflops > 0) {
            self.graph.set_host_ns(op, host.time_ns(work.flops, work.bytes));
        }
    }

    /// Records an op of the optimizer. Arithmetic does not bound it, neither on the device nor on the host.
    pub(super) fn update(&mut self, name: String, reads: &[TensorId], writes: &[TensorId]) {
        let bytes = self.bytes(reads) + self.bytes(writes);
        let time_ns = self.speeds.device.time_ns(0, bytes);
        let op = self.graph.push_op(name, time_ns, 0, reads, writes);
        if let Some(host) = self.speeds.host {
            self.graph.set_host_ns(op, host.time_ns(0, bytes));
        }
    }

    /// Returns whether the layer that made `y` has a backward pass.
    pub(super) const fn undoes(&self, y: Value) -> bool {
        self.training && y.differentiable
    }

    /// Sets the backward function of the layer that made `y`, if it has a backward pass. The function takes
    /// the gradient of `y`.
    pub(super) fn on_backward(
        &mut self,
        y: Value,
        undo: impl FnOnce(&mut Self, TensorId) + 'static,
    ) {
        if self.undoes(y) {
            self.pass.backward.push(Box::new(move |tape| {
                let gradient = tape.take_gradient(y);
                undo(tape, gradient);
            }));
        }
    }

    /// Makes the backward pass begin with this loss.
    pub(super) fn minimize(&mut self, name: &str, loss: Value) {
        let name = name.to_owned();
        self.pass.backward.push(Box::new(move |tape| {
            let one = tape.floats(format!("{name}.grad"), loss.shape);
            tape.op(format!("{name}.ones_like"), 0, &[], &[one]);
            tape.give_gradient(loss, one);
        }));
    }

    /// Records an op of the backward pass. It writes a new gradient of each of these values that is
    /// differentiable. The names are for the gradients.
    pub(super) fn undo(
        &mut self,
        name: String,
        flops: u128,
        reads: &[TensorId],
        values: impl IntoIterator<Item = (Value, String)>,
    ) {
        let values = values.into_iter().filter(|(value, _)| value.differentiable);
        let gradients: Vec<_> =
            values.map(|(value, name)| (value, self.floats(name, value.shape))).collect();
        let writes: Vec<_> = gradients.iter().map(|&(_, gradient)| gradient).collect();
        self.op(name, flops, reads, &writes);
        for (value, gradient) in gradients {
            self.give_gradient(value, gradient);
        }
    }

    /// Adds to the gradient of a value. The first gradient becomes the sum itself, and later ones are added
    /// to it in place. So the first must not be the gradient of another value with a later use.
    pub(super) fn give_gradient(&mut self, value: Value, gradient: TensorId) {
        let Some(sum) = self.gradient_to_add_to(value) else {
            self.gradients.insert(value.id, gradient);
            return;
        };
        let name = format!("{}.add_", self.graph.tensor_names[gradient.index()]);
        self.op(name, 0, &[sum, gradient], &[sum]);
    }

    /// Returns the current gradient of a value, for an op that adds to it in place.
    ///
    /// # Panics
    /// Another value has the same gradient, with a later use.
    pub(super) fn gradient_to_add_to(&self, value: Value) -> Option<TensorId> {
        let &sum = self.gradients.get(&value.id)?;
        let users = self.gradients.values().filter(|&&held| held == sum).count();
        assert_eq!(users, 1, "a gradient that two values share is added to");
        Some(sum)
    }

    /// Takes the gradient of a value. It is complete after the backward passes of all its users. Returns
    /// `None` if the loss does not depend on the value.
    pub(super) fn find_gradient(&mut self, value: Value) -> Option<TensorId> {
        self.gradients.remove(&value.id)
    }

    /// Takes the gradient of a value that the loss depends on.
    ///
    /// # Panics
    /// The value has no gradient.
    pub(super) fn take_gradient(&mut self, value: Value) -> TensorId {
        self.find_gradient(value).expect("every value on the tape leads to the loss")
    }

    /// Begins a separate pass, and returns the pass recorded so far.
    pub(super) fn set_aside(&mut self) -> Pass {
        std::mem::take(&mut self.pass)
    }

    /// Continues a pass that was set aside.
    pub(super) fn resume(&mut self, pass: Pass) {
        assert!(self.pass.backward.is_empty(), "the pass before is undone");
        self.pass = pass;
    }

    /// Emits the backward pass of the layers, the last one first, then the updates of the parameters.
    pub(super) fn step(&mut self) {
        let Pass { backward, parameters } = self.set_aside();
        for undo in backward.into_iter().rev() {
            undo(self);
        }
        for (name, parameters) in parameters {
            self.optimizer.update(self, &name, &parameters);
        }
    }

    /// Returns the graph of the whole iteration.
    pub(super) fn finish(mut self) -> OwnedGraph {
        if self.training {
            self.step();
        }
        self.graph
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::roofline::Roofline;

    fn tape() -> Tape {
        let device = Roofline { milli_tflops: 14_000, milli_gb_s: 800_000 };
        Tape::new("test".to_owned(), true, Speeds { device, host: None }, Optimizer::Momentum)
    }

    #[test]
    #[should_panic(expected = "a value is read after it is overwritten")]
    fn an_overwritten_value_cannot_be_read() {
        let mut tape = tape();
        let x = tape.output("x".to_owned(), [2; 4], &[]);
        tape.relu("relu", x);
        tape.at(x);
    }

    #[test]
    fn the_second_gradient_is_added_to_the_first() {
        let mut tape = tape();
        let x = tape.output("x".to_owned(), [2; 4], &[]);
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
        let [x, y] = ["x", "y"].map(|name| tape.output(name.to_owned(), [2; 4], &[]));
        let [both, one] = ["g", "h"].map(|name| tape.floats(name.to_owned(), [2; 4]));
        tape.give_gradient(x, both);
        tape.give_gradient(y, both);
        tape.give_gradient(x, one);
    }
}
