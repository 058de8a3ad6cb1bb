//! Facts about operators by name that their schemas do not contain.

use super::trace::Node;

/// The role of a node for the importer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// A node inside a closed node.
    Hidden,
    /// Not an op itself; only the nodes inside count.
    Transparent,
    /// Returns memory without a value.
    Allocates,
    /// Makes optimizer state, filled with zeros.
    MakesState,
    /// Returns a view that repeats elements.
    Expands,
    /// A collective operation.
    Communicates,
    /// Any other operator.
    Computes,
}

impl Role {
    /// Returns whether the node is closed: the nodes inside it do not count.
    pub(super) fn is_closed(self) -> bool {
        !matches!(self, Self::Transparent | Self::Computes)
    }
}

/// Operators that are in place by their schema, but move no data: they only track memory, or change shapes.
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

/// Returns the role of a node by its name and its place.
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

/// Returns whether an operator writes its `!` arguments without reading them.
pub(super) fn overwrites(name: &str) -> bool {
    matches!(name, "copy_" | "fill_" | "zero_" | "_foreach_copy_" | "_foreach_zero_")
}

/// Returns whether an operator fills a tensor, possibly only to prepare it for the node around it.
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

/// Returns whether an operator only fills, so that a fill inside it is all of its work.
pub(super) fn only_fills(name: &str) -> bool {
    FILL_WRAPPERS.contains(&name)
}

/// Returns whether an operator takes tensors only for their shape or type, or passes all other tensors to
/// nodes inside it.
pub(super) fn takes_shapes(name: &str) -> bool {
    only_fills(name)
        || name.starts_with("new_")
        || name.ends_with("_like")
        || name.ends_with("_as")
        || matches!(name, "to" | "bernoulli" | "gather_backward")
}
