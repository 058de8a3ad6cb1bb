//! Operators that write the same bytes when they run again on the same values (`docs/models.md`, *What may
//! run again*): all operators of `aten`, except
//!
//! - random operators, and operators with a generator or an argument that begins with `dropout`, whatever its
//!   value;
//! - `copy_`, `_to_copy` and `_foreach_copy_` from another device;
//! - operators that update a state or an input in place and write a temporary, which may depend on the old
//!   value. Batch norms are marked: their repeats leave the running statistics alone.

use super::schema;
use super::trace::Node;

/// Operators that draw random numbers, without the underscore of their forms in place. Other such operators
/// have a generator or a dropout probability among their arguments.
const RANDOM: &[&str] = &[
    "_sample_dirichlet",
    "_standard_gamma",
    "alpha_dropout",
    "bernoulli",
    "binomial",
    "cauchy",
    "dropout",
    "exponential",
    "feature_alpha_dropout",
    "feature_dropout",
    "_fused_dropout",
    "geometric",
    "log_normal",
    "multinomial",
    "native_dropout",
    "normal",
    "normal_like",
    "poisson",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "random",
    "randperm",
    "rrelu",
    "rrelu_with_noise",
    "uniform",
];

/// Batch norms in training. They update running statistics, and no other output depends on these statistics.
const BATCH_NORMS: &[&str] = &[
    "_native_batch_norm_legit",
    "batch_norm",
    "cudnn_batch_norm",
    "miopen_batch_norm",
    "native_batch_norm",
];

/// The rule for repeats of an operator's ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeats {
    /// No repeats: the ops write other bytes, or their behaviour is not known.
    Never,
    /// The op writes the same bytes, unless it updates a state or an input. Its other outputs may depend on
    /// the old value, which a repeat does not find.
    WithoutUpdate,
    /// Like `WithoutUpdate`, if the op also reads a tensor. Otherwise it copies from another device.
    OfCopy,
    /// The op always writes the same bytes.
    Always,
}

impl Repeats {
    /// Returns the rule by the name and the declaration. Custom kernels and collectives have no repeats,
    /// since they are not known well enough. O(length of the declaration).
    pub(super) fn of(node: &Node) -> Self {
        let name = node.base_name();
        if !node.name.starts_with("aten::") || is_random(node) {
            Self::Never
        } else if BATCH_NORMS.contains(&name) {
            Self::Always
        } else if matches!(name, "copy_" | "_to_copy" | "_foreach_copy_") {
            Self::OfCopy
        } else {
            Self::WithoutUpdate
        }
    }

    /// Returns whether an op of the operator may run again. `reads` says whether it reads a tensor, and
    /// `updates` whether it updates a state or an input.
    pub(super) const fn allow(self, reads: bool, updates: bool) -> bool {
        match self {
            Self::Never => false,
            Self::WithoutUpdate => !updates,
            Self::OfCopy => reads && !updates,
            Self::Always => true,
        }
    }
}

/// Returns whether an operator draws random numbers.
fn is_random(node: &Node) -> bool {
    let name = node.base_name();
    let draws = |argument: &schema::Argument<'_>| argument.name.starts_with("dropout");
    RANDOM.contains(&name.strip_suffix('_').unwrap_or(name))
        || node.schema.contains("Generator?")
        || schema::arguments(&node.schema).iter().any(draws)
}
