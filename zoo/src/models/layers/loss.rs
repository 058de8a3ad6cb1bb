//! Losses, each a single number.

use crate::models::tape::{INDEX_BYTES, SCALAR, Tape, Value};

impl Tape {
    /// In training, minimizes the cross entropy of these scores and a label for each row or pixel.
    pub(in crate::models) fn learn_labels(&mut self, scores: Value) {
        if self.training() {
            let loss = self.cross_entropy("", scores);
            self.minimize("loss", loss);
        }
    }

    /// In training, minimizes the sum of such cross entropies, each with a name.
    pub(in crate::models) fn learn_all_labels(&mut self, scores: &[(&str, Value)]) {
        if self.training() {
            let entropy =
                |(name, scores): &(&str, Value)| self.cross_entropy(&format!("{name}."), *scores);
            let losses: Vec<_> = scores.iter().map(entropy).collect();
            let loss = self.sum_losses("loss", &losses);
            self.minimize("loss", loss);
        }
    }

    /// The cross entropy, as a log-softmax and a negative log-likelihood.
    fn cross_entropy(&mut self, prefix: &str, scores: Value) -> Value {
        let [rows, _, height, width] = scores.shape;
        let name = |part: &str| format!("{prefix}{part}");
        let labels = self.input(&name("labels"), [rows, 1, height, width], INDEX_BYTES);
        let logs = self.output(name("log_softmax.out"), scores.shape, &[scores]);
        self.op(name("log_softmax"), 0, &[self.at(scores)], &[self.at(logs)]);
        self.undo_from(&name("log_softmax"), scores, logs, &[logs]);
        let loss = self.output(name("loss"), SCALAR, &[logs]);
        let total = self.floats(name("nll_loss.total_weight"), SCALAR);
        let labels = self.at(labels);
        let reads = [self.at(logs), labels];
        self.op(name("nll_loss"), 0, &reads, &[self.at(loss), total]);
        let names = [name("nll_loss.grad_input"), name("nll_loss.backward")];
        self.on_backward(loss, move |tape, gradient| {
            let [grad_input, op] = names;
            let reads = [gradient, tape.at(logs), labels, total];
            tape.undo(op, 0, &reads, [(logs, grad_input)]);
        });
        loss
    }

    /// The mean square of the differences to a constant.
    pub(in crate::models) fn square_loss(&mut self, name: &str, x: Value) -> Value {
        let loss = self.output(name.to_owned(), SCALAR, &[x]);
        self.op(format!("{name}.mse"), 0, &[self.at(x)], &[self.at(loss)]);
        self.undo_from(name, x, loss, &[x]);
        loss
    }

    /// The mean of the absolute differences to a value without a gradient.
    pub(in crate::models) fn absolute_loss(&mut self, name: &str, x: Value, to: Value) -> Value {
        let loss = self.output(name.to_owned(), SCALAR, &[x]);
        self.op(format!("{name}.l1"), 0, &[self.at(x), self.at(to)], &[self.at(loss)]);
        self.undo_from(name, x, loss, &[x, to]);
        loss
    }

    /// The weighted sum of several losses.
    pub(in crate::models) fn sum_losses(&mut self, name: &str, losses: &[Value]) -> Value {
        let sum = self.output(name.to_owned(), SCALAR, losses);
        let reads: Vec<_> = losses.iter().map(|&loss| self.at(loss)).collect();
        self.op(format!("{name}.sum"), 0, &reads, &[self.at(sum)]);
        let losses = losses.to_vec();
        self.on_backward(sum, move |tape, gradient| {
            for loss in losses {
                tape.give_gradient(loss, gradient);
            }
        });
        sum
    }
}
