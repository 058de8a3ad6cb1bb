//! Pooling.

use super::Window;
use crate::models::tape::{INDEX_BYTES, Tape, Value, elements};
use planner_core::Kind;

impl Tape {
    /// The maximum in each window; training keeps its position.
    pub(in crate::models) fn max_pool(&mut self, name: &str, x: Value, window: Window) -> Value {
        let y = self.output(format!("{name}.out"), window.slide(x.shape, x.shape[1]), &[x]);
        let bytes = elements(&y.shape).saturating_mul(INDEX_BYTES);
        let indices = self.tensor(format!("{name}.indices"), bytes, Kind::Temporary);
        self.op(name.to_owned(), 0, &[self.at(x)], &[self.at(y), indices]);
        let name = name.to_owned();
        self.on_backward(y, move |tape, gradient| {
            let reads = [gradient, tape.at(x), indices];
            tape.undo(format!("{name}.backward"), 0, &reads, [(x, format!("{name}.grad_input"))]);
        });
        y
    }

    /// The mean in each window.
    pub(in crate::models) fn average_pool(
        &mut self,
        name: &str,
        x: Value,
        window: Window,
    ) -> Value {
        let y = self.output(format!("{name}.out"), window.slide(x.shape, x.shape[1]), &[x]);
        self.op(name.to_owned(), 0, &[self.at(x)], &[self.at(y)]);
        self.undo_from(name, x, y, &[x]);
        y
    }

    /// The mean of each channel.
    pub(in crate::models) fn global_average_pool(&mut self, name: &str, x: Value) -> Value {
        let [batch, channels, ..] = x.shape;
        let y = self.output(format!("{name}.out"), [batch, channels, 1, 1], &[x]);
        self.op(name.to_owned(), 0, &[self.at(x)], &[self.at(y)]);
        self.undo_from(name, x, y, &[]);
        y
    }
}
