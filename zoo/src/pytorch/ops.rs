//! The choice of nodes that are ops, and the reads and writes of each.
//!
//! A trace nests: `linear` calls `t` and `addmm`, and `addmm` asks for a workspace. An op is a node that must
//! write a tensor that no op inside it has written, or must read a tensor that no node inside it has read.
//! For example, `addmm` on a CPU copies its bias into its result first.

use super::operands::{Draft, inputs, outputs};
use super::role::{Role, fills, role};
use super::storage::{Origin, Storages, Tensor, TensorIndex};
use super::trace::Node;
use super::value::{Value, views};
use super::window::Window;
use core::ops::{Range, RangeInclusive};
use hashbrown::{HashMap, HashSet};
use std::collections::BTreeSet;

/// The access of an op to a part of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    /// Reads and writes.
    Update,
    /// Writes without reading.
    Overwrite,
}

/// One use of a tensor by an op.
#[derive(Debug)]
pub(super) struct Touch {
    pub(super) tensor: TensorIndex,
    pub(super) access: Access,
    /// The range of bytes, if the access covers the whole range.
    pub(super) bytes: Option<(u64, u64)>,
}

/// An op before the import knows the kinds of its tensors.
#[derive(Debug)]
pub(super) struct TracedOp {
    pub(super) node: usize,
    /// The position in the lists of a `_foreach_*` or `_fused_*`.
    pub(super) position: Option<usize>,
    pub(super) touches: Vec<Touch>,
    /// Bytes read and written, as recorded.
    pub(super) traffic_bytes: u64,
}

/// The accesses of ops inside a node to a tensor.
#[derive(Clone, Copy)]
pub(super) struct Inside {
    pub(super) written: bool,
    /// Whether a plain fill has written the tensor, which prepares it for the node around it.
    pub(super) filled: bool,
    pub(super) read: bool,
    /// Whether the tensor holds a value that no op inside the node has read.
    unread: bool,
    /// The number of the last touch.
    touched: usize,
}

impl Inside {
    /// A read by a node that is not an op, such as `item`.
    const READ: Self =
        Self { written: false, filled: false, read: true, unread: false, touched: 0 };
}

/// The accesses of ops inside a node.
#[derive(Default)]
pub(super) struct AllInside {
    tensors: HashMap<TensorIndex, Inside>,
    /// Tensors that hold an unread value and began in the iteration: the position of the first node of each,
    /// and the tensor.
    unread: BTreeSet<(usize, TensorIndex)>,
}

impl AllInside {
    pub(super) fn get(&self, tensor: TensorIndex) -> Option<&Inside> {
        self.tensors.get(&tensor)
    }

    /// Returns the tensors that hold an unread value and began at these positions, in order.
    pub(super) fn unread(&self, positions: RangeInclusive<usize>) -> Vec<TensorIndex> {
        let (from, to) = positions.into_inner();
        if from > to {
            return Vec::new();
        }
        let range = self.unread.range((from, 0)..=(to, TensorIndex::MAX));
        let mut tensors: Vec<_> = range.map(|&(_, tensor)| tensor).collect();
        tensors.sort_unstable();
        tensors
    }

    /// Notes an access to a tensor that began at a position, or before the iteration.
    fn note(&mut self, tensor: TensorIndex, began: Option<usize>, new: Inside) {
        let noted = self.tensors.entry(tensor).or_insert(new);
        noted.written |= new.written;
        noted.filled |= new.filled;
        noted.read |= new.read;
        if noted.touched <= new.touched {
            (noted.unread, noted.touched) = (new.unread, new.touched);
        }
        match began {
            Some(position) if noted.unread => drop(self.unread.insert((position, tensor))),
            Some(position) => drop(self.unread.remove(&(position, tensor))),
            None => {}
        }
    }
}

/// The state of a node that has started.
pub(super) struct Progress {
    role: Role,
    /// The tensors that the node was given, by storage.
    pub(super) given: HashMap<i64, TensorIndex>,
    pub(super) inside: AllInside,
    in_optimizer: bool,
    /// Whether the node is `aten::embedding`, or inside one.
    pub(super) in_embedding: bool,
}

/// Returns the ops of an iteration in the order of their ends, and the tensors that they use.
pub(super) fn find(window: &Window) -> (Vec<TracedOp>, Storages) {
    let mut walk = Walk {
        window,
        storages: Storages::default(),
        progress: Vec::with_capacity(window.nodes.len()),
        ops: Vec::new(),
        touches: 0,
    };
    for node in 0..window.nodes.len() {
        walk.start(node);
        for ended in window.ends_after(node) {
            walk.end(ended);
            walk.hand_on(ended);
        }
    }
    (walk.ops, walk.storages)
}

/// The most tensors outside of the lists of an operator that is divided into one op per position. With more,
/// the operator is one op, since each position would have all these tensors as operands.
const MOST_SHARED: usize = 4;

/// Returns the positions in the lists of a `_foreach_*` or `_fused_*`, if each position is an op.
fn positions(node: &Node) -> Option<Range<usize>> {
    let values = || node.inputs.iter().chain(&node.outputs);
    let shared = values().filter(|value| value.view().is_some()).count();
    let longest = node.inputs.iter().map(Value::list_length).max().unwrap_or(0);
    let name = node.base_name();
    let on_lists = name.starts_with("_foreach_") || name.starts_with("_fused_") && longest > 0;
    (on_lists && shared <= MOST_SHARED).then_some(0..longest)
}

struct Walk<'a> {
    window: &'a Window,
    storages: Storages,
    progress: Vec<Progress>,
    ops: Vec<TracedOp>,
    /// The number of touches of all ops so far.
    touches: usize,
}

impl<'a> Walk<'a> {
    /// Starts a node. A returned tensor exists before any node inside runs, but is not written.
    fn start(&mut self, node: usize) {
        let window = self.window;
        let traced = &window.nodes[node];
        let outer = window.parent(node).map(|outer| (&self.progress[outer], &window.nodes[outer]));
        let in_optimizer = outer.is_some_and(|(progress, outer)| {
            progress.in_optimizer || outer.name.starts_with("Optimizer.step#")
        });
        let in_embedding = traced.name == "aten::embedding"
            || outer.is_some_and(|(progress, _)| progress.in_embedding);
        let role = match outer {
            Some((outer, _)) if outer.role.is_closed() => Role::Hidden,
            _ => role(traced, in_optimizer),
        };
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
        let inside = AllInside::default();
        self.progress.push(Progress { role, given, inside, in_optimizer, in_embedding });
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
            Role::Computes => {
                let (mut inputs, mut outputs) = (inputs(traced), outputs(traced));
                let operator = |position| {
                    // The work is per position of the lists, not per position and list.
                    inputs.retain(|(value, _)| value.has_position(position));
                    outputs.retain(|value| value.has_position(position));
                    draft(Some(position)).operator(&inputs, &outputs)
                };
                match positions(traced) {
                    Some(positions) => positions.map(operator).collect(),
                    None => vec![draft(None).operator(&inputs, &outputs)],
                }
            }
            _ => Vec::new(),
        };
        let ops: Vec<TracedOp> = ops.into_iter().flatten().collect();
        if ops.is_empty() && views(&traced.outputs).is_empty() {
            let Progress { given, inside, .. } = &mut self.progress[node];
            given.values().for_each(|&tensor| inside.note(tensor, None, Inside::READ));
        }
        ops.into_iter().for_each(|op| self.push(op));
    }

    /// Learns from returned views of the given tensors.
    fn see_aliases(&mut self, node: usize, expands: bool) {
        let window = self.window;
        let inputs = views(&window.nodes[node].inputs);
        let inputs = inputs.into_iter().filter(|input| self.storages.is_expanded(input));
        let expanded_inputs: HashSet<i64> = inputs.map(|input| input.storage).collect();
        for view in views(&window.nodes[node].outputs) {
            let expanded = expands || expanded_inputs.contains(&view.storage);
            self.storages.mark_expanded(view, expanded);
            if self.progress[node].given.contains_key(&view.storage) {
                self.storages.see(view, node);
            }
        }
    }

    /// Returns the position of the node at which a tensor began; `None` if the tensor is from before the
    /// iteration.
    fn began(&self, tensor: TensorIndex) -> Option<usize> {
        let Tensor { origin, node, .. } = self.storages.tensors[tensor];
        (origin != Origin::Before).then(|| self.window.position(node))
    }

    /// Passes the notes of an ended node to the node around it. The shorter notes join the longer ones, so
    /// that nesting does not multiply the work.
    fn hand_on(&mut self, node: usize) {
        let mut shorter = std::mem::take(&mut self.progress[node].inside);
        let Some(outer) = self.window.parent(node) else { return };
        let mut longer = std::mem::take(&mut self.progress[outer].inside);
        if longer.tensors.len() < shorter.tensors.len() {
            std::mem::swap(&mut longer, &mut shorter);
        }
        for (tensor, inside) in shorter.tensors {
            longer.note(tensor, self.began(tensor), inside);
        }
        self.progress[outer].inside = longer;
    }

    /// Adds an op and notes it in its node, which passes the notes to the nodes around it.
    fn push(&mut self, op: TracedOp) {
        let fills = fills(self.window.nodes[op.node].base_name());
        for touch in &op.touches {
            let writes = touch.access != Access::Read;
            self.storages.tensors[touch.tensor].written |= writes;
            self.touches += 1;
            let inside = Inside {
                written: writes && !fills,
                filled: writes && fills,
                read: touch.access != Access::Overwrite,
                unread: writes,
                touched: self.touches,
            };
            let began = self.began(touch.tensor);
            self.progress[op.node].inside.note(touch.tensor, began, inside);
        }
        self.ops.push(op);
    }
}
