//! Products with matrices. The columns of a value are its channels; heights and widths are 1.

use super::product_flops;
use crate::models::tape::{Tape, Value};

/// A matrix to multiply by, and a bias to add; several layers may share them.
#[derive(Clone, Copy, Debug)]
pub(in crate::models) struct Matrix {
    weight: Value,
    bias: Option<Value>,
}

impl Matrix {
    /// A matrix without a bias. It has as many rows as the product has columns.
    pub(in crate::models) const fn without_bias(weight: Value) -> Self {
        Self { weight, bias: None }
    }

    /// A matrix with a bias.
    pub(in crate::models) const fn with_bias(weight: Value, bias: Value) -> Self {
        Self { weight, bias: Some(bias) }
    }
}

impl Tape {
    /// A trained matrix with a trained bias.
    pub(in crate::models) fn matrix(&mut self, name: &str, inputs: u64, features: u64) -> Matrix {
        let weight = self.parameter(format!("{name}.weight"), [features, inputs, 1, 1]);
        let bias = self.parameter(format!("{name}.bias"), [features, 1, 1, 1]);
        Matrix { weight, bias: Some(bias) }
    }

    /// A product with a new matrix and bias.
    pub(in crate::models) fn linear(&mut self, name: &str, x: Value, features: u64) -> Value {
        let matrix = self.matrix(name, x.shape[1], features);
        self.multiply(name, x, matrix)
    }

    /// A product with this matrix, plus its bias.
    pub(in crate::models) fn multiply(&mut self, name: &str, x: Value, matrix: Matrix) -> Value {
        let Matrix { weight, bias } = matrix;
        let ([rows, inner, ..], [features, ..]) = (x.shape, weight.shape);
        let y = self.output(format!("{name}.out"), [rows, features, 1, 1], &[x, weight]);
        let flops = product_flops(rows, inner, features);
        let reads: Vec<_> = bias.into_iter().chain([x, weight]).map(|v| self.at(v)).collect();
        self.op(name.to_owned(), flops, &reads, &[self.at(y)]);
        let name = name.to_owned();
        self.on_backward(y, move |tape, gradient| {
            if x.differentiable {
                let reads = [gradient, tape.at(weight)];
                let input = [(x, format!("{name}.grad_input"))];
                tape.undo(format!("{name}.backward.input"), flops, &reads, input);
            }
            let reads = [gradient, tape.at(x)];
            let weights = [(weight, format!("{name}.weight.grad"))];
            tape.undo(format!("{name}.backward.weight"), flops, &reads, weights);
            if let Some(bias) = bias {
                let biases = [(bias, format!("{name}.bias.grad"))];
                tape.undo(format!("{name}.backward.bias"), 0, &[gradient], biases);
            }
        });
        y
    }
}
