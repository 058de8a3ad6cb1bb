//! Storages that stay the same from step to step: frozen weights, and in inference all weights.

use super::operands::inputs;
use super::ops::Access;
use super::role::{Role, role};
use super::schema;
use super::trace::Node;
use super::value::{Value, views};
use super::window::Window;
use hashbrown::HashSet;

/// Names of arguments that are batches or derived from batches, never weights. A benchmark may read one batch
/// in all steps.
const BATCHES: &[&str] = &["input", "target"];

/// Returns the storages that other steps of the trace read, but not as batches, and that no other step writes
/// or allocates.
pub(super) fn constants(window: &Window) -> HashSet<i64> {
    let (mut read, mut others) = (HashSet::new(), HashSet::new());
    for node in &window.other_steps {
        if role(node, false) == Role::Transparent {
            continue;
        }
        let mut given = HashSet::new();
        for (value, access) in inputs(node) {
            given.extend(storages(value));
            match access {
                Access::Read => read.extend(storages(value)),
                _ => others.extend(storages(value)),
            }
        }
        let returned = node.outputs.iter().flat_map(storages);
        others.extend(returned.filter(|storage| !given.contains(storage)));
        others.extend(batches(node).flat_map(storages));
    }
    read.retain(|storage| !others.contains(storage));
    read
}

/// Returns the values that a node takes as batches.
fn batches(node: &Node) -> impl Iterator<Item = &Value> {
    let arguments = schema::arguments(&node.schema).into_iter().zip(&node.inputs);
    arguments.filter(|(argument, _)| BATCHES.contains(&argument.name)).map(|(_, value)| value)
}

fn storages(value: &Value) -> impl Iterator<Item = i64> {
    views(core::slice::from_ref(value)).into_iter().map(|view| view.storage)
}
