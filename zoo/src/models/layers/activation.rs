//! Elementwise operations.

use crate::models::tape::{Tape, Value};
use planner_core::TensorId;

impl Tape {
    /// A ReLU, leaky or not, in place.
    pub(in crate::models) fn relu(&mut self, name: &str, x: Value) -> Value {
        let x_at = self.at(x);
        let y = self.in_place(x);
        self.activate(name, x_at, x, y)
    }

    /// A ReLU or a tanh with an output of its own, since other ops still read the input.
    pub(in crate::models) fn activation(&mut self, name: &str, x: Value) -> Value {
        let x_at = self.at(x);
        let y = self.output(format!("{name}.out"), x.shape, &[x]);
        self.activate(name, x_at, x, y)
    }

    /// The backward pass needs the output, not the input.
    fn activate(&mut self, name: &str, x_at: TensorId, x: Value, y: Value) -> Value {
        self.op(name.to_owned(), 0, &[x_at], &[self.at(y)]);
        self.undo_from(name, x, y, &[y]);
        y
    }

    /// A GELU with an output of its own, since the backward pass needs the input.
    pub(in crate::models) fn gelu(&mut self, name: &str, x: Value) -> Value {
        let y = self.output(format!("{name}.out"), x.shape, &[x]);
        self.op(name.to_owned(), 0, &[self.at(x)], &[self.at(y)]);
        self.undo_from(name, x, y, &[x]);
        y
    }

    /// Adds `y` to `x` in place. Both have the gradient of the sum.
    pub(in crate::models) fn add(&mut self, name: &str, x: Value, y: Value) -> Value {
        let other = self.at(y);
        let sum = self.in_place(x);
        self.op(name.to_owned(), 0, &[self.at(sum), other], &[self.at(sum)]);
        self.on_backward(sum, move |tape, gradient| {
            tape.give_gradient(x, gradient);
            tape.give_gradient(y, gradient);
        });
        sum
    }
}
