//! Which nodes are ops, and what each of them reads and writes.
//!
//! A trace nests: `linear` calls `t` and `addmm`, and `addmm` asks for a workspace. An op is a
//! node that must have written what no op inside it has written, or that must have read what nothing
//! inside it has read: `addmm` on a CPU copies its bias into its result first.

use super::operands::{Draft, inputs, outputs};
use super::role::{Role, fills, role};
use super::storage::{Origin, Storages, Tensor, TensorIndex};
use super::trace::Node;
use super::value::{Value, views};
use super::window::Window;
use core::ops::{Range, RangeInclusive};
use hashbrown::{HashMap, HashSet};
use std::collections::BTreeSet;

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
    /// Position in the lists of a `_foreach_*` or `_fused_*`.
    pub(super) position: Option<usize>,
    pub(super) touches: Vec<Touch>,
    /// Bytes read and written, as recorded.
    pub(super) traffic_bytes: u64,
}

/// What ops inside a node have done to a tensor.
#[derive(Clone, Copy)]
pub(super) struct Inside {
    pub(super) written: bool,
    /// Written by a plain fill, which prepares a tensor for the node around it.
    pub(super) filled: bool,
    pub(super) read: bool,
    /// Holds something that no op inside the node has read.
    unread: bool,
    /// When it was touched last.
    touched: usize,
}

impl Inside {
    /// Read by a node that is no op, as `item` is.
    const READ: Self =
        Self { written: false, filled: false, read: true, unread: false, touched: 0 };
}

/// What ops inside a node have done.
#[derive(Default)]
pub(super) struct AllInside {
    tensors: HashMap<TensorIndex, Inside>,
    /// Tensors that hold something unread and began in the iteration: the position of the node at
    /// which each began, and the tensor.
    unread: BTreeSet<(usize, TensorIndex)>,
}

impl AllInside {
    pub(super) fn get(&self, tensor: TensorIndex) -> Option<&Inside> {
        self.tensors.get(&tensor)
    }

    /// What holds something unread and began at some positions, in order.
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

    /// Notes what was done to a tensor that began at a position, or before the iteration.
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

/// What is known of a node that has started.
pub(super) struct Progress {
    role: Role,
    /// The tensors it was given, by storage.
    pub(super) given: HashMap<i64, TensorIndex>,
    pub(super) inside: AllInside,
    in_optimizer: bool,
    /// Whether it is `aten::embedding`, or inside one.
    pub(super) in_embedding: bool,
}

/// The ops of an iteration in the order of their ends, and the tensors they use.
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

/// An operator on lists with more tensors outside its lists than this is one op: each position
/// would have all of them as operands.
const MOST_SHARED: usize = 4;

/// The positions in the lists of a `_foreach_*` or `_fused_*` of which each is an op.
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
    /// Touches of all ops so far.
    touches: usize,
}

impl<'a> Walk<'a> {
    /// What is returned exists, unwritten, before anything inside the node runs.
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
                    // Work is that of the positions that lists have, not of all lists for each.
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

    /// Learns from returned views of what the node was given.
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

    /// Where a tensor began; none for what was there before the iteration.
    fn began(&self, tensor: TensorIndex) -> Option<usize> {
        let Tensor { origin, node, .. } = self.storages.tensors[tensor];
        (origin != Origin::Before).then(|| self.window.position(node))
    }

    /// Tells the node around one that has ended what was done inside. The shorter notes join
    /// the longer ones, so that no depth of nesting multiplies them.
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

    /// Adds an op and tells its node, which tells those around it.
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
