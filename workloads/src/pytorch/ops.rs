//! Which nodes are ops, and what each of them reads and writes.
//!
//! A trace nests: `linear` calls `t` and `addmm`, and `addmm` asks for a workspace. An op is a
//! node that must have written what no op inside it has written.

use super::operands::Draft;
use super::role::{Role, fills, role};
use super::storage::{Origin, Storages, TensorIndex};
use super::value::{Value, views};
use super::window::Window;
use hashbrown::HashMap;
use std::collections::BTreeMap;

/// How an op uses a part of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    /// Reads and writes.
    Update,
    /// Writes without looking.
    Overwrite,
}

/// One use of a tensor by an op.
#[derive(Debug)]
pub(super) struct Touch {
    pub(super) tensor: TensorIndex,
    pub(super) access: Access,
    /// The bytes concerned, where every byte between the two is.
    pub(super) bytes: Option<(u64, u64)>,
}

/// An op, before it is known which of its tensors outlive the iteration.
#[derive(Debug)]
pub(super) struct TracedOp {
    pub(super) node: usize,
    /// Position in the lists of a `_foreach_*`.
    pub(super) position: Option<usize>,
    pub(super) touches: Vec<Touch>,
    /// Bytes read and written, as recorded.
    pub(super) traffic_bytes: u64,
}

/// What ops inside a node have done to a tensor.
#[derive(Default)]
pub(super) struct Inside {
    pub(super) written: bool,
    /// Written by a plain fill, which prepares a tensor for the node around it.
    pub(super) filled: bool,
    /// Holds something that no op inside the node has read.
    pub(super) unread: bool,
}

/// What is known of a node that has started.
pub(super) struct Progress {
    role: Role,
    /// The tensors it was given, by storage.
    pub(super) given: HashMap<i64, TensorIndex>,
    pub(super) inside: BTreeMap<TensorIndex, Inside>,
}

/// The ops of an iteration in the order of their ends, and the tensors they use.
pub(super) fn find(window: &Window) -> (Vec<TracedOp>, Storages) {
    let mut walk = Walk {
        window,
        storages: Storages::default(),
        progress: Vec::with_capacity(window.nodes.len()),
        ops: Vec::new(),
    };
    for node in 0..window.nodes.len() {
        walk.start(node);
        for ended in window.ends_after(node) {
            walk.end(ended);
        }
    }
    (walk.ops, walk.storages)
}

struct Walk<'a> {
    window: &'a Window,
    storages: Storages,
    progress: Vec<Progress>,
    ops: Vec<TracedOp>,
}

impl<'a> Walk<'a> {
    /// What is returned exists, unwritten, before anything inside the node runs.
    fn start(&mut self, node: usize) {
        let window = self.window;
        let outer = window.parent(node).map(|outer| self.progress[outer].role);
        let role =
            if outer.is_some_and(Role::is_closed) { Role::Hidden } else { role(window, node) };
        let mut given = HashMap::new();
        if !matches!(role, Role::Hidden | Role::Transparent) {
            for view in views(&window.nodes[node].inputs) {
                given.insert(view.storage, self.storages.see(view, node));
            }
            for view in views(&window.nodes[node].outputs) {
                match role {
                    _ if given.contains_key(&view.storage) => continue,
                    Role::Allocates => self.storages.allocate(view, Origin::Allocated, node),
                    Role::MakesState => self.storages.allocate(view, Origin::Born, node),
                    _ => self.storages.receive(view, node),
                };
            }
        }
        self.progress.push(Progress { role, given, inside: BTreeMap::new() });
    }

    fn end(&mut self, node: usize) {
        let role = self.progress[node].role;
        if matches!(role, Role::Hidden | Role::Transparent) {
            return;
        }
        self.see_aliases(node, role == Role::Expands);
        let traced = &self.window.nodes[node];
        let draft = |position| {
            Draft::new(self.window, &self.storages, &self.progress[node], node, position)
        };
        let ops: Vec<Option<TracedOp>> = match role {
            Role::Communicates => vec![draft(None).collective()],
            Role::Computes if traced.base_name().starts_with("_foreach_") => {
                let length = traced.inputs.iter().map(Value::list_length).max().unwrap_or(0);
                (0..length).map(|position| draft(Some(position)).operator()).collect()
            }
            Role::Computes => vec![draft(None).operator()],
            _ => Vec::new(),
        };
        ops.into_iter().flatten().for_each(|op| self.push(op));
    }

    /// Learns from returned views of what the node was given.
    fn see_aliases(&mut self, node: usize, expands: bool) {
        let window = self.window;
        let inputs = views(&window.nodes[node].inputs);
        for view in views(&window.nodes[node].outputs) {
            let expanded = expands
                || inputs
                    .iter()
                    .any(|input| input.storage == view.storage && self.storages.is_expanded(input));
            self.storages.mark_expanded(view, expanded);
            if self.progress[node].given.contains_key(&view.storage) {
                self.storages.see(view, node);
            }
        }
    }

    /// Adds an op and tells the nodes around it.
    fn push(&mut self, op: TracedOp) {
        let fills = fills(self.window.nodes[op.node].base_name());
        for touch in &op.touches {
            let writes = touch.access != Access::Read;
            self.storages.tensors[touch.tensor].written |= writes;
            for outer in self.window.ancestors(op.node) {
                let inside = self.progress[outer].inside.entry(touch.tensor).or_default();
                inside.written |= writes && !fills;
                inside.filled |= writes && fills;
                inside.unread = writes;
            }
        }
        self.ops.push(op);
    }
}
