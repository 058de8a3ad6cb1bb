//! GPT-2: a transformer with layer norms before each block. Its scores use the table of embeddings.
//!
//! A. Radford, J. Wu, R. Child, D. Luan, D. Amodei, I. Sutskever: Language models are
//! unsupervised multitask learners, 2019.

use super::Model;
use super::layers::Matrix;
use super::optimizer::Optimizer;
use super::spec::{Arguments, HOST_GB_S, HOST_TFLOPS, MEMORY_GB_S, MODE, TFLOPS};
use super::tape::{INDEX_BYTES, Tape};
use super::transformer::{LAYERS, SEQUENCE, TEXTS, VOCABULARY, WIDTH, add_rows, attend, embed};

/// GPT-2 with the sizes of the small model as defaults.
pub(super) const GPT: Model = Model {
    name: "gpt",
    about: "GPT-2, 124,439,808 parameters where nothing is set, Adam",
    parameters: &[
        TEXTS,
        LAYERS,
        WIDTH,
        SEQUENCE,
        VOCABULARY,
        MODE,
        TFLOPS,
        MEMORY_GB_S,
        HOST_GB_S,
        HOST_TFLOPS,
    ],
    optimizer: Optimizer::Adam,
    check: |_| Ok(()),
    build: gpt,
};

fn gpt(arguments: &Arguments, tape: &mut Tape) {
    let [batch, layers, width, sequence, vocabulary] =
        [TEXTS, LAYERS, WIDTH, SEQUENCE, VOCABULARY].map(|parameter| arguments.get(&parameter));
    let tokens = tape.input("tokens", [batch, sequence, 1, 1], INDEX_BYTES);
    let table = tape.parameter("wte.weight".to_owned(), [vocabulary, width, 1, 1]);
    let x = embed(tape, "wte", tokens, table);
    let mut x = add_rows(tape, "wpe", x, sequence);
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
