//! Operations that change the shape of images.

use crate::models::tape::{Shape, Tape, Value};

impl Tape {
    /// Pads an image on all sides with its mirror image.
    pub(in crate::models) fn reflect(&mut self, name: &str, x: Value, pixels: u64) -> Value {
        let [batch, channels, height, width] = x.shape;
        let shape = [batch, channels, height + 2 * pixels, width + 2 * pixels];
        let y = self.output(format!("{name}.out"), shape, &[x]);
        self.op(name.to_owned(), 0, &[self.at(x)], &[self.at(y)]);
        self.undo_from(name, x, y, &[x]);
        y
    }

    /// A bilinear interpolation to the height and width of `like`.
    pub(in crate::models) fn resize(&mut self, name: &str, x: Value, like: Shape) -> Value {
        let [batch, channels, ..] = x.shape;
        let y = self.output(format!("{name}.out"), [batch, channels, like[2], like[3]], &[x]);
        self.op(name.to_owned(), 0, &[self.at(x)], &[self.at(y)]);
        self.undo_from(name, x, y, &[]);
        y
    }

    /// Concatenates the channels of all parts in one tensor. The backward pass is one op, which adds to the
    /// existing gradients of the parts.
    pub(in crate::models) fn concatenate(&mut self, name: &str, parts: &[Value]) -> Value {
        let channels = parts.iter().map(|part| part.shape[1]).sum();
        let [batch, _, height, width] = parts[0].shape;
        let y = self.output(format!("{name}.out"), [batch, channels, height, width], parts);
        let reads: Vec<_> = parts.iter().map(|&part| self.at(part)).collect();
        self.op(name.to_owned(), 0, &reads, &[self.at(y)]);
        let (name, parts) = (name.to_owned(), parts.to_vec());
        self.on_backward(y, move |tape, gradient| {
            let (mut reads, mut writes) = (vec![gradient], Vec::new());
            for (at, part) in parts.iter().enumerate().filter(|(_, part)| part.differentiable) {
                if let Some(sum) = tape.gradient_to_add_to(*part) {
                    reads.push(sum);
                    writes.push(sum);
                } else {
                    let new = tape.floats(format!("{name}.grad_input{at}"), part.shape);
                    tape.give_gradient(*part, new);
                    writes.push(new);
                }
            }
            tape.op(format!("{name}.backward"), 0, &reads, &writes);
        });
        y
    }
}
