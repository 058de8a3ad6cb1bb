//! The decoder of current open language models, with norms by the root mean square, rotary positions, heads
//! that share keys and values, and a gated perceptron.
//!
//! H. Touvron et al.: LLaMA: open and efficient foundation language models, 2023; J. Ainslie et
//! al.: GQA: training generalized multi-query transformer models, 2023.
//!
//! Weights, activations and gradients are bfloat16. Attention is one op that keeps the logarithms
//! of its sums instead of its scores (T. Dao: FlashAttention-2, 2023). In training, the product
//! with the head, the cross entropy and the gradients of both are one op, which computes scores
//! for a few tokens at a time (P.-L. Hsu et al.: Liger kernel, 2024).

mod backward;
mod forward;
mod mixtral;
mod weights;

pub(super) use mixtral::MIXTRAL;

use super::Model;
use super::optimizer::Optimizer;
use super::spec::{
    Arguments, BATCH, Domain, HOST_GB_S, HOST_TFLOPS, MEMORY_GB_S, MODE, Parameter, TFLOPS,
};
use super::tape::Tape;
use super::transformer::{LAYERS, SEQUENCE, VOCABULARY, WIDTH};
use forward::Decoder;
use weights::{Network, Precision, Rule};

pub(super) const LLAMA: Model = Model {
    name: "llama",
    about: "a decoder as Llama 3, Phi-4 and Qwen2.5 are, bfloat16; training with AdamW in float32, \
            a prompt, or one token",
    parameters: &[
        BILLIONS,
        OF_LAYERS,
        OF_WIDTH,
        HEADS,
        KV_HEADS,
        HEAD_WIDTH,
        HIDDEN,
        OF_VOCABULARY,
        HEAD,
        BIAS,
        SLICES,
        TEXTS,
        TOKENS,
        MICRO,
        MODES,
        OPTIMIZER,
        RANK,
        BITS,
        DENSE_TFLOPS,
        GDDR_GB_S,
        HOST_GB_S,
        HOST_TFLOPS,
    ],
    optimizer: Optimizer::Plain,
    check,
    build: |arguments, tape| decode(arguments, tape, [1, 1]),
};

/// Llama 3.2 1B and 3B, Llama 3.1 8B, Phi-4 (14B), Qwen2.5 32B, Llama 3.1 70B, by the
/// `config.json` of each. They have 1,235,814,400, 3,212,749,824, 8,030,261,248, 14,659,507,200,
/// 32,763,876,352 and 70,553,706,496 parameters.
const BILLIONS: Parameter = Parameter {
    name: "billions",
    default: "8",
    domain: Domain::OneOf(&["1", "3", "8", "14", "32", "70"]),
    about: "the preset, by its billions of parameters",
};

/// A parameter that the preset determines, unless the spec sets it.
pub(super) const fn dimension(
    name: &'static str,
    of: &'static Domain,
    values: &'static [u64],
    about: &'static str,
) -> Parameter {
    Parameter { name, default: super::spec::PRESET, domain: Domain::Preset { of, values }, about }
}

const OF_LAYERS: Parameter = dimension(
    LAYERS.name,
    &LAYERS.domain,
    &[16, 28, 32, 40, 64, 80],
    "blocks of attention and perceptron",
);
const OF_WIDTH: Parameter = dimension(
    WIDTH.name,
    &WIDTH.domain,
    &[2048, 3072, 4096, 5120, 5120, 8192],
    "columns between blocks",
);
const HEADS: Parameter =
    dimension("heads", &Domain::Count(1 << 10), &[32, 24, 32, 40, 40, 64], "heads of the queries");
const KV_HEADS: Parameter = dimension(
    "kv_heads",
    &Domain::Count(1 << 10),
    &[8, 8, 8, 10, 8, 8],
    "heads of the keys and of the values",
);
const HEAD_WIDTH: Parameter = dimension(
    "head_width",
    &Domain::OrZero(&Domain::Count(1 << 12)),
    &[0; 6],
    "columns of a head; width over heads if 0",
);
const HIDDEN: Parameter = dimension(
    "hidden",
    &Domain::Count(1 << 20),
    &[8192, 8192, 14_336, 17_920, 27_648, 28_672],
    "columns inside the perceptron",
);
const OF_VOCABULARY: Parameter = dimension(
    VOCABULARY.name,
    &VOCABULARY.domain,
    &[128_256, 128_256, 128_256, 100_352, 152_064, 128_256],
    VOCABULARY.about,
);
const HEAD: Parameter = dimension(
    "head",
    &Domain::OneOf(&["own", "tied"]),
    &[1, 1, 0, 0, 0, 0],
    "a matrix of its own, or the table of embeddings",
);
const BIAS: Parameter = dimension(
    "bias",
    &Domain::OneOf(&["none", "qkv"]),
    &[0, 0, 0, 0, 1, 0],
    "biases of queries, keys and values",
);
const SLICES: Parameter = Parameter {
    name: "slices",
    default: "4",
    domain: Domain::Count(1 << 10),
    about: "states that the table of embeddings and the head are each kept in",
};
const TEXTS: Parameter =
    Parameter { default: "1", about: "texts, of a micro-batch in training", ..BATCH };
const TOKENS: Parameter =
    Parameter { default: "8192", about: "tokens in a text, with those in the cache", ..SEQUENCE };
const MICRO: Parameter = Parameter {
    name: "micro",
    default: "1",
    domain: Domain::Count(1 << 10),
    about: "micro-batches of a training step, whose gradients add up",
};
const MODES: Parameter = Parameter {
    domain: Domain::OneOf(&["training", "prompt", "token"]),
    about: "a training step, a prompt, or the token after the cached ones",
    ..MODE
};
const OPTIMIZER: Parameter = Parameter {
    name: "optimizer",
    default: "adamw",
    domain: Domain::OneOf(&["adamw", "sgd", "none", "adamw16", "autocast"]),
    about: "the update in training; AdamW with weights and moments in float32, or all in bfloat16; \
            autocast: AdamW in float32, and each pass copies the weights to bfloat16",
};
/// The place of `autocast` in the domain of [`OPTIMIZER`].
const AUTOCAST: u64 = 4;
const RANK: Parameter = Parameter {
    name: "rank",
    default: "0",
    domain: Domain::OrZero(&Domain::Count(1 << 12)),
    about: "rank of adapters (LoRA) of all matrices but the head; if not 0, they alone are trained",
};
const BITS: Parameter = Parameter {
    name: "bits",
    default: "16",
    domain: Domain::Decimal(16),
    about: "size of a number of a matrix that is not trained",
};
/// An RTX 4090's peak with dense bfloat16 matrices and sums in float32.
const DENSE_TFLOPS: Parameter = Parameter { default: "165", ..TFLOPS };
/// The part of an RTX 4090's nominal 1,008 GB/s that a kernel reaches.
const GDDR_GB_S: Parameter = Parameter { default: "900", ..MEMORY_GB_S };

/// The purpose of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Training,
    Prompt,
    Token,
}

/// The extents of the model.
#[derive(Clone, Copy, Debug)]
struct Dimensions {
    layers: u64,
    width: u64,
    /// Columns of the queries.
    query_width: u64,
    /// Columns of the keys, and of the values.
    kv_width: u64,
    heads: u64,
    hidden: u64,
    vocabulary: u64,
    /// The perceptrons of a layer, and the number of them that a token passes through.
    experts: u64,
    active: u64,
    /// Whether the experts of a layer are one perceptron. Its matrices hold the matrices of all experts.
    stacked: bool,
}

fn mode(arguments: &Arguments) -> Mode {
    [Mode::Training, Mode::Prompt, Mode::Token][arguments.get(&MODES) as usize]
}

fn check(arguments: &Arguments) -> Result<(), String> {
    let [width, heads, kv_heads, head_width] =
        [OF_WIDTH, HEADS, KV_HEADS, HEAD_WIDTH].map(|parameter| arguments.get(&parameter));
    if head_width == 0 && width % heads != 0 {
        return Err(format!("width={width} is not a multiple of heads={heads}"));
    }
    if heads % kv_heads != 0 {
        return Err(format!("heads={heads} is not a multiple of kv_heads={kv_heads}"));
    }
    let trains = mode(arguments) == Mode::Training;
    if !trains && arguments.get(&MICRO) > 1 {
        return Err("micro is for mode=training; in other modes, set batch".to_owned());
    }
    if trains && arguments.get(&RANK) > 0 && arguments.get(&OPTIMIZER) == AUTOCAST {
        return Err(
            "optimizer=autocast trains all weights, and rank adapters alone: set one of the \
                    two"
            .to_owned(),
        );
    }
    if trains && arguments.get(&RANK) == 0 && arguments.get(&BITS) != 16_000 {
        return Err("bits is for weights that are not trained: set mode=prompt, mode=token, or \
                    rank to train adapters alone"
            .to_owned());
    }
    Ok(())
}

/// Records a decoder with this many experts, and with this many active experts for each token.
fn decode(arguments: &Arguments, tape: &mut Tape, [experts, active]: [u64; 2]) {
    let [layers, width, heads, kv_heads, head_width, hidden, vocabulary] =
        [OF_LAYERS, OF_WIDTH, HEADS, KV_HEADS, HEAD_WIDTH, HIDDEN, OF_VOCABULARY]
            .map(|parameter| arguments.get(&parameter));
    let (mode, rank) = (mode(arguments), arguments.get(&RANK));
    let head_width = if head_width == 0 { width / heads } else { head_width };
    let dimensions = Dimensions {
        layers,
        width,
        query_width: heads * head_width,
        kv_width: kv_heads * head_width,
        heads,
        hidden,
        vocabulary,
        experts,
        active,
        stacked: mode != Mode::Training,
    };
    let precision = Precision {
        milli_bits: arguments.get(&BITS),
        trains_all: mode == Mode::Training && rank == 0,
        trains_adapters: mode == Mode::Training,
        copies: mode == Mode::Training && arguments.get(&OPTIMIZER) == AUTOCAST,
    };
    let mut network = Network::new(tape, dimensions, precision, rank, arguments);
    let [batch, sequence, micro] =
        [TEXTS, TOKENS, MICRO].map(|parameter| arguments.get(&parameter));
    for number in 0..micro {
        let prefix = if micro == 1 { String::new() } else { format!("micro{number}.") };
        let mut decoder = Decoder::new(tape, dimensions, mode, [batch, sequence], prefix);
        let saved = decoder.forward(&mut network);
        if mode == Mode::Training {
            decoder.backward(&mut network, saved);
        } else {
            decoder.scores(&network, &saved);
        }
    }
    if mode == Mode::Training {
        match arguments.get(&OPTIMIZER) {
            0 => network.update(tape, Rule::AdamW),
            1 => network.update(tape, Rule::Sgd),
            3 => network.update(tape, Rule::AdamW16),
            AUTOCAST => network.update(tape, Rule::Autocast),
            _ => {}
        }
    }
}
