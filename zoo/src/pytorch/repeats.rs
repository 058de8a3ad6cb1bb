//! Which operators write the same bytes again when they run again on the same values
//! (`docs/models.md`, *What may run again*).

use super::schema;
use super::trace::Node;

/// Operators that draw random numbers, without the underscore of their forms in place. Others
/// show it by a generator or a share to drop among their arguments.
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

/// Batch norms in training: they update running statistics, which nothing else that they write
/// depends on.
const BATCH_NORMS: &[&str] = &[
    "_native_batch_norm_legit",
    "batch_norm",
    "cudnn_batch_norm",
    "miopen_batch_norm",
    "native_batch_norm",
];

/// What is known of the repeats of an operator's ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeats {
    /// They write other bytes, or nothing is known of them.
    Never,
    /// They write the same bytes, unless the op updates a state or an input: what else it writes
    /// may depend on the old value, which a repeat does not find.
    WithoutUpdate,
    /// The same, if it also reads something: what it copies comes from another device otherwise.
    OfCopy,
    /// They always write the same bytes.
    Always,
}

impl Repeats {
    /// What is known by the name and the declaration, in O(length of the declaration). What is
    /// not PyTorch's own is not known well enough: custom kernels, and collectives.
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

    /// Whether an op of the operator may run again, given whether it reads anything, and whether
    /// it updates a state or an input.
    pub(super) const fn allow(self, reads: bool, updates: bool) -> bool {
        match self {
            Self::Never => false,
            Self::WithoutUpdate => !updates,
            Self::OfCopy => reads && !updates,
            Self::Always => true,
        }
    }
}

/// Whether an operator draws random numbers.
fn is_random(node: &Node) -> bool {
    let name = node.base_name();
    let draws = |argument: &schema::Argument<'_>| argument.name.starts_with("dropout");
    RANDOM.contains(&name.strip_suffix('_').unwrap_or(name))
        || node.schema.contains("Generator?")
        || schema::arguments(&node.schema).iter().any(draws)
}
