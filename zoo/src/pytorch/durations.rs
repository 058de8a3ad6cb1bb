//! The time of an op, estimated from its operations and bytes: a roofline of 14 TFLOP/s and 800 GB/s, about
//! that of a V100 in single precision, plus 5 µs for a launch.

use super::ops::TracedOp;
use super::schema;
use super::trace::Node;
use super::value::{Value, View};
use super::window::Window;

const LAUNCH_NS: u64 = 5000;
const FLOPS_PER_NS: u128 = 14_000;
const BYTES_PER_NS: u64 = 800;

/// Returns the estimated time of every op in ns. A `_foreach_*` is one launch.
pub(super) fn estimate_ns(window: &Window, ops: &[TracedOp]) -> Vec<u64> {
    let mut launched = None;
    ops.iter()
        .map(|op| {
            let launch_ns = if launched.replace(op.node) == Some(op.node) { 0 } else { LAUNCH_NS };
            let moving_ns = op.traffic_bytes / BYTES_PER_NS;
            if op.position.is_some() {
                return launch_ns + moving_ns + 1;
            }
            let computing_ns = flops(&window.nodes[op.node]) / FLOPS_PER_NS;
            launch_ns.saturating_add(moving_ns.max(u64::try_from(computing_ns).unwrap_or(u64::MAX)))
        })
        .collect()
}

/// Returns the floating-point operations of matrix products and convolutions. Returns 0 for all other
/// operators, which memory bounds.
fn flops(node: &Node) -> u128 {
    let shape = |at: usize| node.inputs.get(at).and_then(Value::view).map(|view| &*view.shape);
    let name = node.base_name();
    match name {
        "mm" | "bmm" => product_flops(shape(0), shape(1)),
        "addmm" => product_flops(shape(1), shape(2)),
        _ if name.contains("conv") => convolution_flops(node, name.contains("backward")),
        _ => 0,
    }
}

/// Returns `2mnk` times the batch.
fn product_flops(left: Option<&[u64]>, right: Option<&[u64]>) -> u128 {
    match (left, right) {
        (Some([batch @ .., m, k]), Some([.., n])) => {
            [2, *m, *n, *k].iter().chain(batch).fold(1, saturating_product)
        }
        _ => 0,
    }
}

fn convolution_flops(node: &Node, backward: bool) -> u128 {
    let arguments = schema::arguments(&node.schema);
    let argument = |name| {
        let at = arguments.iter().position(|argument| argument.name == name)?;
        node.inputs.get(at)
    };
    let weight = argument("weight").and_then(Value::view);
    let (result, passes) = if backward {
        let gradients = match argument("output_mask") {
            Some(Value::List(mask)) => mask.iter().filter(|&m| *m == Value::Bool(true)).count(),
            _ => 0,
        };
        (argument("grad_output").and_then(Value::view), gradients as u64)
    } else {
        (node.outputs.first().and_then(Value::view), 1)
    };
    let (Some(weight), Some(result)) = (weight, result) else { return 0 };
    let filters = weight.shape.first().copied().unwrap_or(0).max(1);
    let each = |view: &View| view.elements();
    [2, passes, each(result), each(weight)].iter().fold(1, saturating_product) / u128::from(filters)
}

fn saturating_product(product: u128, factor: &u64) -> u128 {
    product.saturating_mul(u128::from(*factor))
}
