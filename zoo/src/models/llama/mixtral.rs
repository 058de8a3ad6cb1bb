//! The Llama decoder with several perceptrons in each layer. A router chooses some of them for each token.
//!
//! A. Jiang et al.: Mixtral of experts, 2024. A plan knows only sizes. In training, each expert is a
//! perceptron of its own with the same part of the tokens, at least one. Otherwise the experts of a layer are
//! one op (T. Gale et al.: MegaBlocks, 2023), which moves the weights of the experts that some token
//! chooses, if each token chooses at random.

use super::{
    BIAS, BILLIONS, BITS, DENSE_TFLOPS, GDDR_GB_S, HEAD, HEAD_WIDTH, HEADS, HIDDEN, KV_HEADS,
    LLAMA, MICRO, MODES, OF_LAYERS, OF_VOCABULARY, OF_WIDTH, OPTIMIZER, RANK, SLICES, TEXTS,
    TOKENS, check, decode, dimension,
};
use crate::models::Model;
use crate::models::spec::{Arguments, Domain, HOST_GB_S, HOST_TFLOPS, Parameter};

pub(in crate::models) const MIXTRAL: Model = Model {
    name: "mixtral",
    about: "llama with experts, as Mixtral 8x7B and 8x22B and Qwen3 30B-A3B and 235B-A22B are",
    parameters: &[
        Parameter { default: "47", domain: Domain::OneOf(&["30", "47", "141", "235"]), ..BILLIONS },
        of(&OF_LAYERS, &[48, 32, 56, 94]),
        of(&OF_WIDTH, &[2048, 4096, 6144, 4096]),
        of(&HEADS, &[32, 32, 48, 64]),
        of(&KV_HEADS, &[4, 8, 8, 4]),
        of(&HEAD_WIDTH, &[128, 0, 0, 128]),
        of(&HIDDEN, &[768, 14_336, 16_384, 1536]),
        EXPERTS,
        ACTIVE,
        of(&OF_VOCABULARY, &[151_936, 32_000, 32_000, 151_936]),
        of(&HEAD, &[0; 4]),
        of(&BIAS, &[0; 4]),
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
    check: check_experts,
    build: |arguments, tape| {
        decode(arguments, tape, [&EXPERTS, &ACTIVE].map(|parameter| arguments.get(parameter)));
    },
    ..LLAMA
};

/// The same parameter with the values of these presets, from the `config.json` of each. The presets have
/// 30,532,110,336, 46,702,792,704, 140,620,634,112 and 235,093,610,496 parameters: Qwen3 has 256 more in
/// each layer, the norms of queries and keys.
const fn of(parameter: &Parameter, values: &'static [u64; 4]) -> Parameter {
    let Domain::Preset { of, .. } = parameter.domain else { panic!("no preset decides it") };
    let Parameter { name, default, about, .. } = *parameter;
    Parameter { name, default, domain: Domain::Preset { of, values }, about }
}

const EXPERTS: Parameter =
    dimension("experts", &Domain::Count(1 << 10), &[128, 8, 8, 128], "perceptrons of a layer");
const ACTIVE: Parameter =
    dimension("active", &Domain::Count(1 << 10), &[8, 2, 2, 8], "experts that see a token");

fn check_experts(arguments: &Arguments) -> Result<(), String> {
    let [experts, active] = [&EXPERTS, &ACTIVE].map(|parameter| arguments.get(parameter));
    if active > experts {
        return Err(format!("active={active} is more than experts={experts}"));
    }
    check(arguments)
}
