//! Facts about the recorded program that the graph does not contain.

use super::trace::Node;
use super::value::{Value, views};
use super::window::Window;

/// Nodes of one kind in an iteration, without nodes inside other counted nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes {
    /// The number of nodes, at least 1.
    pub count: usize,
    /// The name of the first node, with its id.
    pub first: String,
}

/// Returns the regions that a compiler made kernels for. The trace does not have these kernels.
pub(super) fn compiled_regions(window: &Window) -> Option<Nodes> {
    outermost(window, |node| {
        ["Torch-Compiled Region", "## Call CompiledFxGraph"]
            .iter()
            .any(|name| node.name.starts_with(name))
    })
}

/// Returns the operators at which the program on the host waits for a value of the device.
pub(super) fn synchronisations(window: &Window) -> Option<Nodes> {
    outermost(window, |node| !node.schema.is_empty() && waits(node))
}

fn waits(node: &Node) -> bool {
    match node.base_name() {
        "item"
        | "_local_scalar_dense"
        | "is_nonzero"
        | "equal"
        | "nonzero"
        | "masked_select"
        | "_unique"
        | "_unique2"
        | "unique_dim"
        | "unique_consecutive" => !views(&node.inputs).is_empty(),
        "copy_" => matches!(
            node.inputs.as_slice(),
            [Value::Other, Value::Tensor(_), Value::Bool(false), ..]
        ),
        _ => false,
    }
}

fn outermost(window: &Window, is_wanted: impl Fn(&Node) -> bool) -> Option<Nodes> {
    let wanted: Vec<bool> = window.nodes.iter().map(is_wanted).collect();
    let around = window.innermost(|node| wanted[node]);
    let mut found = (0..wanted.len()).filter(|&at| wanted[at] && around[at].is_none());
    let first = &window.nodes[found.next()?];
    Some(Nodes { count: 1 + found.count(), first: format!("{}@{}", first.base_name(), first.id) })
}
