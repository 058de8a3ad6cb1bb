//! What a graph does not tell of the recorded program.

use super::trace::Node;
use super::value::{Value, views};
use super::window::Window;

/// Nodes of one kind in an iteration, not counting those inside each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes {
    /// How many there are, at least 1.
    pub count: usize,
    /// The name of the first one, with its id.
    pub first: String,
}

/// Regions that a compiler made kernels for: the trace has none of these.
pub(super) fn compiled_regions(window: &Window) -> Option<Nodes> {
    outermost(window, |node| {
        ["Torch-Compiled Region", "## Call CompiledFxGraph"]
            .iter()
            .any(|name| node.name.starts_with(name))
    })
}

/// Operators for which the program on the host waits until it has a value of the device.
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
