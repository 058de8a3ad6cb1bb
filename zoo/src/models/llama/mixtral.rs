//! The Llama decoder with several perceptrons in each layer. A router chooses some of them for each token.
//!
//! A. Jiang et al.: Mixtral of experts, 2024. A plan knows only sizes, so each expert has the same part of
//! the tokens, at least one, and all experts run in each pass.

use super::{
    BIAS, BILLIONS, BITS, DENSE_TFLOPS, GDDR_GB_S, HEAD, HEADS, HIDDEN, KV_HEADS, LLAMA, MICRO,
    MODES, OF_LAYERS, OF_VOCABULARY, OF_WIDTH, OPTIMIZER, RANK, SLICES, TEXTS, TOKENS, check,
    decode,
};
use crate::models::Model;
use crate::models::spec::{Arguments, Domain, HOST_GB_S, HOST_TFLOPS, Parameter};

pub(in crate::models) const MIXTRAL: Model = Model {
    name: "mixtral",
    about: "llama with experts, as Mixtral 8x7B and 8x22B are",
    parameters: &[
        Parameter { default: "47", domain: Domain::OneOf(&["47", "141"]), ..BILLIONS },
        of(&OF_LAYERS, &[32, 56]),
        of(&OF_WIDTH, &[4096, 6144]),
        of(&HEADS, &[32, 48]),
        of(&KV_HEADS, &[8, 8]),
        of(&HIDDEN, &[14_336, 16_384]),
        EXPERTS,
        ACTIVE,
        of(&OF_VOCABULARY, &[32_000, 32_000]),
        of(&HEAD, &[0, 0]),
        of(&BIAS, &[0, 0]),
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
/// 46,702,792,704 and 140,620,634,112 parameters.
const fn of(parameter: &Parameter, values: &'static [u64; 2]) -> Parameter {
    let Domain::Preset { of, .. } = parameter.domain else { panic!("no preset decides it") };
    let Parameter { name, default, about, .. } = *parameter;
    Parameter { name, default, domain: Domain::Preset { of, values }, about }
}

const EXPERTS: Parameter = Parameter {
    name: "experts",
    default: "8",
    domain: Domain::Count(1 << 10),
    about: "perceptrons of a layer",
};
const ACTIVE: Parameter =
    Parameter { name: "active", default: "2", about: "experts that see a token", ..EXPERTS };

fn check_experts(arguments: &Arguments) -> Result<(), String> {
    let [experts, active] = [&EXPERTS, &ACTIVE].map(|parameter| arguments.get(parameter));
    if active > experts {
        return Err(format!("active={active} is more than experts={experts}"));
    }
    check(arguments)
}
