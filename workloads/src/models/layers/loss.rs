//! Losses, each a single number.

use crate::models::tape::{INDEX_BYTES, SCALAR, Tape, Value};

impl Tape {
    /// In training, the loss to minimize is the cross entropy of these scores and a label for
    /// each row, or each pixel.
    pub(in crate::models) fn learn_labels(&mut self, scores: Value) {
        if self.training() {
            let [rows, _, height, width] = scores.shape;
            let labels = self.input("labels", [rows, 1, height, width], INDEX_BYTES);
            let loss = self.cross_entropy(scores, labels);
            self.minimize("loss", loss);
        }
    }

    /// As log-softmax and negative log-likelihood.
    fn cross_entropy(&mut self, scores: Value, labels: Value) -> Value {
        let logs = self.output("log_softmax.out".to_owned(), scores.shape, &[scores]);
        self.op("log_softmax".to_owned(), 0, &[self.at(scores)], &[self.at(logs)]);
        self.undo_from("log_softmax", scores, logs, &[logs]);
        let loss = self.output("loss".to_owned(), SCALAR, &[logs]);
        let total = self.floats("nll_loss.total_weight".to_owned(), SCALAR);
        let labels = self.at(labels);
        let reads = [self.at(logs), labels];
        self.op("nll_loss".to_owned(), 0, &reads, &[self.at(loss), total]);
        self.on_backward(loss, move |tape, gradient| {
            let reads = [gradient, tape.at(logs), labels, total];
            let input = [(logs, "nll_loss.grad_input".to_owned())];
            tape.undo("nll_loss.backward".to_owned(), 0, &reads, input);
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

    /// The mean of the absolute differences to something that is not differentiated.
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
