//! The common parts of transformers for text: a table of embeddings, attention, and a perceptron of four
//! times the width. Heads have 64 columns, and there is no dropout. Attention is not fused: its scores and
//! their softmax are tensors. Scaling and masking are part of the softmax.

use super::layers::product_flops;
use super::spec::{BATCH, Domain, Parameter};
use super::tape::{Tape, Value, elements};

pub(super) const TEXTS: Parameter = Parameter { default: "4", about: "texts", ..BATCH };
pub(super) const LAYERS: Parameter = Parameter {
    name: "layers",
    default: "12",
    domain: Domain::Count(1 << 12),
    about: "blocks of attention and perceptron",
};
pub(super) const WIDTH: Parameter = Parameter {
    name: "width",
    default: "768",
    domain: Domain::Count(1 << 16),
    about: "columns between blocks; 64 of them a head",
};
pub(super) const SEQUENCE: Parameter = Parameter {
    name: "sequence",
    default: "1024",
    domain: Domain::Count(1 << 20),
    about: "tokens in a text",
};
pub(super) const VOCABULARY: Parameter = Parameter {
    name: "vocabulary",
    default: "50257",
    domain: Domain::Count(1 << 24),
    about: "different tokens",
};

/// Looks up a row of a table for each token. The table has one row for each different token.
pub(super) fn embed(tape: &mut Tape, name: &str, tokens: Value, table: Value) -> Value {
    let [batch, sequence, ..] = tokens.shape;
    let rows = batch.saturating_mul(sequence);
    let y = tape.output(format!("{name}.out"), [rows, table.shape[1], 1, 1], &[table]);
    let tokens = tape.at(tokens);
    tape.op(name.to_owned(), 0, &[tokens, tape.at(table)], &[tape.at(y)]);
    let name = name.to_owned();
    tape.on_backward(y, move |tape, gradient| {
        let weights = [(table, format!("{name}.weight.grad"))];
        tape.undo(format!("{name}.backward"), 0, &[gradient, tokens], weights);
    });
    y
}

/// Adds the rows of a table with `rows` rows in place. The rows are the same for all texts.
pub(super) fn add_rows(tape: &mut Tape, name: &str, x: Value, rows: u64) -> Value {
    let table = tape.parameter(format!("{name}.weight"), [rows, x.shape[1], 1, 1]);
    let y = tape.in_place(x);
    tape.op(format!("{name}.add"), 0, &[tape.at(y), tape.at(table)], &[tape.at(y)]);
    let name = name.to_owned();
    tape.on_backward(y, move |tape, gradient| {
        let weights = [(table, format!("{name}.weight.grad"))];
        tape.undo(format!("{name}.backward"), 0, &[gradient], weights);
        tape.give_gradient(x, gradient);
    });
    y
}

/// Self-attention. Queries, keys and values are one tensor, and so are their gradients.
pub(super) fn attend(tape: &mut Tape, name: &str, x: Value, batch: u64) -> Value {
    let [rows, width, ..] = x.shape;
    let (heads, sequence) = ((width / 64).max(1), rows / batch);
    let qkv = tape.linear(&format!("{name}.c_attn"), x, 3 * width);
    let shape = [batch, heads, sequence, sequence];
    let flops = product_flops(elements(&shape), width / heads, 1);

    let scores = tape.output(format!("{name}.scores.out"), shape, &[qkv]);
    tape.op(format!("{name}.scores"), flops, &[tape.at(qkv)], &[tape.at(scores)]);
    let op = format!("{name}.scores.backward");
    tape.on_backward(scores, move |tape, gradient| {
        let sum = tape.gradient_to_add_to(qkv).expect("the values have given theirs");
        tape.op(op, 2 * flops, &[gradient, tape.at(qkv), sum], &[sum]);
    });

    let shares = tape.activation(&format!("{name}.softmax"), scores);

    let name_of = |part: &str| format!("{name}.context{part}");
    let context = tape.output(name_of(".out"), x.shape, &[qkv]);
    tape.op(name_of(""), flops, &[tape.at(shares), tape.at(qkv)], &[tape.at(context)]);
    let names = [name_of(".backward"), name_of(".grad_shares"), name_of(".grad_qkv")];
    tape.on_backward(context, move |tape, gradient| {
        let [op, grad_shares, grad_qkv] = names;
        let reads = [gradient, tape.at(shares), tape.at(qkv)];
        tape.undo(op, 2 * flops, &reads, [(shares, grad_shares), (qkv, grad_qkv)]);
    });
    tape.linear(&format!("{name}.c_proj"), context, width)
}
