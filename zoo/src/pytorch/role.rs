//! What the names of operators say that their schemas do not.

use super::trace::Node;

/// What a node is to the importer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Inside a node that says all there is.
    Hidden,
    /// Nothing itself; what is inside it counts.
    Transparent,
    /// Returns memory without a value.
    Allocates,
    /// Makes optimizer state, full of zeros.
    MakesState,
    /// Shows elements more often than they are there.
    Expands,
    /// A collective operation.
    Communicates,
    /// Any other operator.
    Computes,
}

impl Role {
    /// Whether the node says all there is, so that nothing inside it counts.
    pub(super) fn is_closed(self) -> bool {
        !matches!(self, Self::Transparent | Self::Computes)
    }
}

/// In place by their schema, yet they move no data: they only track memory, or change shapes.
const NOTHING: &[&str] = &[
    "record_stream",
    "detach_",
    "lift_fresh",
    "set_",
    "result_type",
    "requires_grad_",
    "as_strided_",
    "squeeze_",
    "unsqueeze_",
    "t_",
    "transpose_",
    "swapaxes_",
    "swapdims_",
];
const EXPANDING: &[&str] = &["expand", "expand_as", "broadcast_to", "broadcast_tensors"];

/// The role of a node, by its name and where it stands.
pub(super) fn role(at: &Node, in_optimizer: bool) -> Role {
    let name = at.base_name();
    if at.schema.is_empty() || NOTHING.contains(&name) {
        Role::Transparent
    } else if at.name.starts_with("c10d::") {
        Role::Communicates
    } else if name.starts_with("empty") || name.starts_with("new_empty") || name == "resize_" {
        Role::Allocates
    } else if EXPANDING.contains(&name) {
        Role::Expands
    } else if name == "zeros_like" && in_optimizer {
        Role::MakesState
    } else {
        Role::Computes
    }
}

/// Whether an operator's `!` arguments are written without being looked at.
pub(super) fn overwrites(name: &str) -> bool {
    matches!(name, "copy_" | "fill_" | "zero_" | "_foreach_copy_" | "_foreach_zero_")
}

/// Whether an operator fills a tensor, maybe only to prepare it for the node around it.
pub(super) fn fills(name: &str) -> bool {
    matches!(name, "fill_" | "zero_")
}

const FILL_WRAPPERS: &[&str] = &[
    "zeros",
    "zeros_like",
    "new_zeros",
    "zero",
    "zero_",
    "ones",
    "ones_like",
    "new_ones",
    "full",
    "full_like",
    "new_full",
    "fill",
    "fill_",
    "scalar_tensor",
    "_foreach_zero_",
];

/// Whether an operator only fills, so that a fill inside it is all it does.
pub(super) fn only_fills(name: &str) -> bool {
    FILL_WRAPPERS.contains(&name)
}

/// Whether an operator takes tensors only for their shape or type, or hands all others to what is
/// inside it.
pub(super) fn takes_shapes(name: &str) -> bool {
    only_fills(name)
        || name.starts_with("new_")
        || name.ends_with("_like")
        || name.ends_with("_as")
        || matches!(name, "to" | "bernoulli" | "gather_backward")
}
