//! An LSTM whose steps are unrolled, with one fused op per cell, that classifies
//! sequences into 1000 classes.
//!
//! S. Hochreiter, J. Schmidhuber: Long short-term memory, 1997.

use super::Model;
use super::layers::Matrix;
use super::optimizer::Optimizer;
use super::spec::{
    Arguments, BATCH, Domain, HOST_GB_S, HOST_TFLOPS, MEMORY_GB_S, MODE, Parameter, TFLOPS,
};
use super::tape::{FLOAT_BYTES, Tape, Value};

const SEQUENCES: Parameter = Parameter { default: "128", about: "sequences", ..BATCH };
const LAYERS: Parameter = Parameter {
    name: "layers",
    default: "2",
    domain: Domain::Count(1 << 6),
    about: "cells on top of each other",
};
const STEPS: Parameter = Parameter {
    name: "steps",
    default: "64",
    domain: Domain::Count(1 << 12),
    about: "steps of a sequence",
};
const WIDTH: Parameter = Parameter {
    name: "width",
    default: "2048",
    domain: Domain::Count(1 << 16),
    about: "columns of inputs and of states",
};

/// The LSTM. All layers have one width.
pub(super) const LSTM: Model = Model {
    name: "lstm",
    about: "LSTM, 69,190,632 parameters where nothing is set, SGD with momentum",
    parameters: &[
        SEQUENCES,
        LAYERS,
        STEPS,
        WIDTH,
        MODE,
        TFLOPS,
        MEMORY_GB_S,
        HOST_GB_S,
        HOST_TFLOPS,
    ],
    optimizer: Optimizer::Momentum,
    check: |_| Ok(()),
    build: lstm,
};

/// A layer at one step of the sequence.
struct Layer {
    from_input: Matrix,
    from_hidden: Matrix,
    hidden: Value,
    cell: Value,
}

fn lstm(arguments: &Arguments, tape: &mut Tape) {
    let [batch, layers, steps, width] =
        [SEQUENCES, LAYERS, STEPS, WIDTH].map(|parameter| arguments.get(&parameter));
    let state = [batch, width, 1, 1];
    let layers = (0..layers).map(|layer| {
        let name = format!("lstm{layer}");
        let [from_input, from_hidden] =
            ["ih", "hh"].map(|part| tape.matrix(&format!("{name}.{part}"), width, 4 * width));
        let [hidden, cell] =
            ["hidden", "cell"].map(|part| tape.output(format!("{name}.{part}"), state, &[]));
        tape.op(format!("{name}.zeros"), 0, &[], &[tape.at(hidden), tape.at(cell)]);
        Layer { from_input, from_hidden, hidden, cell }
    });
    let mut layers: Vec<_> = layers.collect();
    for step in 0..steps {
        let mut x = tape.input(&format!("input.{step}"), state, FLOAT_BYTES);
        for (number, layer) in layers.iter_mut().enumerate() {
            advance(tape, &format!("lstm{number}.{step}"), layer, x);
            x = layer.hidden;
        }
    }
    if let Some(last) = layers.last() {
        let scores = tape.linear("fc", last.hidden, 1000);
        tape.learn_labels(scores);
    }
}

/// One step of one layer. The backward pass needs the gates as they were.
fn advance(tape: &mut Tape, name: &str, layer: &mut Layer, x: Value) {
    let from_input = tape.multiply(&format!("{name}.ih"), x, layer.from_input);
    let from_hidden = tape.multiply(&format!("{name}.hh"), layer.hidden, layer.from_hidden);
    let before = layer.cell;
    let from = [from_input, from_hidden, before];
    let [hidden, cell] =
        ["hidden", "cell"].map(|part| tape.output(format!("{name}.{part}"), before.shape, &from));
    let gates = tape.floats(format!("{name}.gates"), from_input.shape);
    let writes = [tape.at(hidden), tape.at(cell), gates];
    tape.op(format!("{name}.cell"), 0, &from.map(|value| tape.at(value)), &writes);
    let name = name.to_owned();
    tape.on_backward(hidden, move |tape, gradient| {
        let mut reads = vec![gradient, tape.at(before), tape.at(cell), gates];
        reads.extend(tape.find_gradient(cell));
        let gradients =
            [(from_input, format!("{name}.grad_gates")), (before, format!("{name}.grad_cell"))];
        tape.undo(format!("{name}.cell.backward"), 0, &reads, gradients);
        let of_gates = tape.take_gradient(from_input);
        tape.give_gradient(from_input, of_gates);
        tape.give_gradient(from_hidden, of_gates);
    });
    (layer.hidden, layer.cell) = (hidden, cell);
}
