//! BERT: a transformer with layer norms after each block. It is pretrained on two tasks: masked tokens,
//! scored with the table of embeddings, and whether the second half of a text follows the first. Queries,
//! keys and values are one product, and all tokens are scored. Texts have no padding.
//!
//! J. Devlin, M.-W. Chang, K. Lee, K. Toutanova: BERT: pre-training of deep bidirectional
//! transformers for language understanding, 2019.

use super::Model;
use super::layers::Matrix;
use super::optimizer::Optimizer;
use super::spec::{Arguments, HOST_GB_S, HOST_TFLOPS, MEMORY_GB_S, MODE, Parameter, TFLOPS};
use super::tape::{INDEX_BYTES, Tape, Value};
use super::transformer::{LAYERS, SEQUENCE, TEXTS, VOCABULARY, WIDTH, add_rows, attend, embed};

const SHORTER: Parameter = Parameter { default: "512", ..SEQUENCE };
const PIECES: Parameter = Parameter { default: "30522", ..VOCABULARY };

/// BERT with the sizes of BERT base as defaults.
pub(super) const BERT: Model = Model {
    name: "bert",
    about: "BERT with both heads, 110,106,428 parameters where nothing is set, Adam",
    parameters: &[
        TEXTS,
        LAYERS,
        WIDTH,
        SHORTER,
        PIECES,
        MODE,
        TFLOPS,
        MEMORY_GB_S,
        HOST_GB_S,
        HOST_TFLOPS,
    ],
    optimizer: Optimizer::Adam,
    check: |_| Ok(()),
    build: bert,
};

fn bert(arguments: &Arguments, tape: &mut Tape) {
    let [batch, layers, width, sequence, vocabulary] =
        [TEXTS, LAYERS, WIDTH, SHORTER, PIECES].map(|parameter| arguments.get(&parameter));
    let inputs = ["tokens", "segments"];
    let [tokens, segments] =
        inputs.map(|name| tape.input(name, [batch, sequence, 1, 1], INDEX_BYTES));
    let table = tape.parameter("words.weight".to_owned(), [vocabulary, width, 1, 1]);
    let x = embed(tape, "words", tokens, table);
    let x = add_rows(tape, "positions", x, sequence);
    let halves = tape.parameter("segments.weight".to_owned(), [2, width, 1, 1]);
    let y = embed(tape, "segments", segments, halves);
    let x = tape.add("segments.add", x, y);
    let mut x = tape.layer_norm("embeddings.norm", x);
    for layer in 0..layers {
        let name = format!("layer.{layer}");
        let y = attend(tape, &format!("{name}.attn"), x, batch);
        let y = tape.add(&format!("{name}.add_1"), y, x);
        x = tape.layer_norm(&format!("{name}.norm_1"), y);
        let y = tape.linear(&format!("{name}.mlp.c_fc"), x, 4 * width);
        let y = tape.gelu(&format!("{name}.mlp.gelu"), y);
        let y = tape.linear(&format!("{name}.mlp.c_proj"), y, width);
        let y = tape.add(&format!("{name}.add_2"), y, x);
        x = tape.layer_norm(&format!("{name}.norm_2"), y);
    }
    let first = first_tokens(tape, x, batch);
    let first = tape.linear("pooler", first, width);
    let first = tape.activation("pooler.tanh", first);
    let follows = tape.linear("follows", first, 2);
    let x = tape.linear("transform", x, width);
    let x = tape.gelu("transform.gelu", x);
    let x = tape.layer_norm("transform.norm", x);
    let bias = tape.parameter("scores.bias".to_owned(), [vocabulary, 1, 1, 1]);
    let scores = tape.multiply("scores", x, Matrix::with_bias(table, bias));
    tape.learn_all_labels(&[("words", scores), ("follows", follows)]);
}

/// Copies the row of each text's first token.
fn first_tokens(tape: &mut Tape, x: Value, batch: u64) -> Value {
    let y = tape.output("first.out".to_owned(), [batch, x.shape[1], 1, 1], &[x]);
    tape.op("first".to_owned(), 0, &[tape.at(x)], &[tape.at(y)]);
    tape.on_backward(y, move |tape, gradient| {
        let input = [(x, "first.grad_input".to_owned())];
        tape.undo("first.backward".to_owned(), 0, &[gradient], input);
    });
    y
}
