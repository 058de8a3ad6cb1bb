//! A transformer for text as GPT-2 has it, without dropout: layer norms in front, heads of 64
//! columns, a GELU of four times the width, and scores by the table of embeddings itself.
//! Attention is not fused: its scores and their softmax are tensors, and scaling and masking
//! are part of the softmax.
//!
//! A. Radford, J. Wu, R. Child, D. Luan, D. Amodei, I. Sutskever: Language models are
//! unsupervised multitask learners, 2019.

use super::Model;
use super::layers::{Matrix, product_flops};
use super::optimizer::Optimizer;
use super::spec::{Arguments, BATCH, Domain, MEMORY_GB_S, MODE, Parameter, TFLOPS};
use super::tape::{INDEX_BYTES, Tape, Value, elements};

const TEXTS: Parameter = Parameter { default: "4", about: "texts", ..BATCH };
const LAYERS: Parameter = Parameter {
    name: "layers",
    default: "12",
    domain: Domain::Count(1 << 12),
    about: "blocks of attention and perceptron",
};
const TRANSFORMER_WIDTH: Parameter = Parameter {
    name: "width",
    default: "768",
    domain: Domain::Count(1 << 16),
    about: "columns between blocks; 64 of them a head",
};
const SEQUENCE: Parameter = Parameter {
    name: "sequence",
    default: "1024",
    domain: Domain::Count(1 << 20),
    about: "tokens in a text",
};
const VOCABULARY: Parameter = Parameter {
    name: "vocabulary",
    default: "50257",
    domain: Domain::Count(1 << 24),
    about: "different tokens",
};

/// Its defaults are those of the small GPT-2.
pub(super) const GPT: Model = Model {
    name: "gpt",
    about: "GPT-2, 124,439,808 parameters where nothing is set, Adam",
    parameters: &[
        TEXTS,
        LAYERS,
        TRANSFORMER_WIDTH,
        SEQUENCE,
        VOCABULARY,
        MODE,
        TFLOPS,
        MEMORY_GB_S,
    ],
    optimizer: Optimizer::Adam,
    build: gpt,
};

fn gpt(arguments: &Arguments, tape: &mut Tape) {
    let [batch, layers, width, sequence, vocabulary] =
        [TEXTS, LAYERS, TRANSFORMER_WIDTH, SEQUENCE, VOCABULARY]
            .map(|parameter| arguments.get(&parameter));
    let tokens = tape.input("tokens", [batch, sequence, 1, 1], INDEX_BYTES);
    let table = tape.parameter("wte.weight".to_owned(), [vocabulary, width, 1, 1]);
    let x = embed(tape, tokens, table);
    let mut x = add_positions(tape, x, sequence);
    for layer in 0..layers {
        let name = format!("h.{layer}");
        let y = tape.layer_norm(&format!("{name}.ln_1"), x);
        let y = attend(tape, &format!("{name}.attn"), y, batch);
        x = tape.add(&format!("{name}.add_1"), y, x);
        let y = tape.layer_norm(&format!("{name}.ln_2"), x);
        let y = tape.linear(&format!("{name}.mlp.c_fc"), y, 4 * width);
        let y = tape.gelu(&format!("{name}.mlp.gelu"), y);
        let y = tape.linear(&format!("{name}.mlp.c_proj"), y, width);
        x = tape.add(&format!("{name}.add_2"), y, x);
    }
    let x = tape.layer_norm("ln_f", x);
    let scores = tape.multiply("lm_head", x, Matrix::without_bias(table));
    tape.learn_labels(scores);
}

/// The row of the table for each token.
fn embed(tape: &mut Tape, tokens: Value, table: Value) -> Value {
    let [batch, sequence, ..] = tokens.shape;
    let rows = batch.saturating_mul(sequence);
    let y = tape.output("wte.out".to_owned(), [rows, table.shape[1], 1, 1], &[table]);
    let tokens = tape.at(tokens);
    tape.op("wte".to_owned(), 0, &[tokens, tape.at(table)], &[tape.at(y)]);
    tape.on_backward(y, move |tape, gradient| {
        let weights = [(table, "wte.weight.grad".to_owned())];
        tape.undo("wte.backward".to_owned(), 0, &[gradient, tokens], weights);
    });
    y
}

/// Adds, in place, a row for each position to all texts.
fn add_positions(tape: &mut Tape, x: Value, sequence: u64) -> Value {
    let table = tape.parameter("wpe.weight".to_owned(), [sequence, x.shape[1], 1, 1]);
    let y = tape.in_place(x);
    tape.op("wpe.add".to_owned(), 0, &[tape.at(y), tape.at(table)], &[tape.at(y)]);
    tape.on_backward(y, move |tape, gradient| {
        let weights = [(table, "wpe.weight.grad".to_owned())];
        tape.undo("wpe.backward".to_owned(), 0, &[gradient], weights);
        tape.give_gradient(x, gradient);
    });
    y
}

/// Self-attention. Queries, keys and values are one tensor, and so are their gradients.
fn attend(tape: &mut Tape, name: &str, x: Value, batch: u64) -> Value {
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
