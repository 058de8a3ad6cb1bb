//! Normalizations.

use crate::models::tape::{FLOAT_BYTES, INDEX_BYTES, Shape, Tape, Value, elements};
use planner_core::{Kind, TensorId};

impl Tape {
    /// A batch norm: with the statistics of the batch in training, and running statistics in inference.
    pub(in crate::models) fn batch_norm(&mut self, name: &str, x: Value) -> Value {
        let channels = [x.shape[1], 1, 1, 1];
        let weight = self.parameter(format!("{name}.weight"), channels);
        let bias = self.parameter(format!("{name}.bias"), channels);
        let running = ["running_mean", "running_var"].map(|statistic| {
            let bytes = elements(&channels).saturating_mul(FLOAT_BYTES);
            self.tensor(format!("{name}.{statistic}"), bytes, Kind::State)
        });
        let [mean, variance] = running;
        let y = self.output(format!("{name}.out"), x.shape, &[x, weight]);
        let reads = [self.at(x), self.at(weight), self.at(bias), mean, variance];
        if !self.training() {
            self.op(name.to_owned(), 0, &reads, &[self.at(y)]);
            return y;
        }
        let count = self.tensor(format!("{name}.num_batches_tracked"), INDEX_BYTES, Kind::State);
        self.op(format!("{name}.num_batches_tracked.add_"), 0, &[count], &[count]);
        self.normalize(name, (x, y), &reads, &[mean, variance], Some([weight, bias]), channels)
    }

    /// An instance norm without parameters: it normalizes each channel of each image separately.
    pub(in crate::models) fn instance_norm(&mut self, name: &str, x: Value) -> Value {
        let [batch, channels, ..] = x.shape;
        let y = self.output(format!("{name}.out"), x.shape, &[x]);
        self.normalize(name, (x, y), &[self.at(x)], &[], None, [batch, channels, 1, 1])
    }

    /// A layer norm over the columns of a matrix.
    pub(in crate::models) fn layer_norm(&mut self, name: &str, x: Value) -> Value {
        let [rows, columns, ..] = x.shape;
        let [weight, bias] = ["weight", "bias"]
            .map(|parameter| self.parameter(format!("{name}.{parameter}"), [columns, 1, 1, 1]));
        let y = self.output(format!("{name}.out"), x.shape, &[x, weight]);
        let reads = [self.at(x), self.at(weight), self.at(bias)];
        self.normalize(name, (x, y), &reads, &[], Some([weight, bias]), [rows, 1, 1, 1])
    }

    /// The forward op, which also writes `running`, and its backward op. The forward op keeps the statistics
    /// of its input for the backward op.
    fn normalize(
        &mut self,
        name: &str,
        (x, y): (Value, Value),
        reads: &[TensorId],
        running: &[TensorId],
        parameters: Option<[Value; 2]>,
        statistics: Shape,
    ) -> Value {
        let mut saved = Vec::new();
        if self.undoes(y) {
            saved.extend(
                ["saved_mean", "saved_invstd"]
                    .map(|statistic| self.floats(format!("{name}.{statistic}"), statistics)),
            );
        }
        let writes = [&[self.at(y)], running, &saved].concat();
        self.op(name.to_owned(), 0, reads, &writes);
        let name = name.to_owned();
        self.on_backward(y, move |tape, gradient| {
            let mut reads = vec![gradient, tape.at(x)];
            let mut gradients = vec![(x, format!("{name}.grad_input"))];
            if let Some([weight, bias]) = parameters {
                reads.push(tape.at(weight));
                gradients.push((weight, format!("{name}.weight.grad")));
                gradients.push((bias, format!("{name}.bias.grad")));
            }
            reads.extend(saved);
            tape.undo(format!("{name}.backward"), 0, &reads, gradients);
        });
        y
    }
}
