//! The tensors in storages. Ids are addresses, which the allocator reuses.

use super::value::View;
use hashbrown::{HashMap, HashSet};

/// The position of a tensor in [`Storages::tensors`].
pub(super) type TensorIndex = usize;

/// The origin of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The tensor existed before the iteration.
    Before,
    /// An allocating operator (`empty`, …) returned the tensor.
    Allocated,
    /// An operator returned the tensor without receiving it.
    Returned,
    /// The optimizer made the tensor as a new state, filled with zeros.
    Born,
}

/// The contents of a storage from one allocation to the next.
#[derive(Debug)]
pub(super) struct Tensor {
    pub(super) storage: i64,
    pub(super) bytes: u64,
    /// The largest element size of its views, in bytes.
    pub(super) element_bytes: u64,
    pub(super) origin: Origin,
    /// The node at which the tensor began; for [`Origin::Before`], the node that first mentions it.
    pub(super) node: usize,
    /// Whether the tensor holds a value: an op has written it, or it began with a value.
    pub(super) written: bool,
}

/// All tensors so far, and the current tensor of each storage.
#[derive(Default)]
pub(super) struct Storages {
    pub(super) tensors: Vec<Tensor>,
    current: HashMap<i64, TensorIndex>,
    /// The tensor objects made by `expand`, which claim more elements than their storage has.
    expanded: HashSet<i64>,
}

impl Storages {
    /// Returns the tensor that a storage holds, if any.
    pub(super) fn current(&self, storage: i64) -> Option<TensorIndex> {
        self.current.get(&storage).copied()
    }

    /// Returns the tensor of an existing view. A tensor that no node of the iteration made is from before it;
    /// its size is the end of the farthest view.
    pub(super) fn see(&mut self, view: &View, node: usize) -> TensorIndex {
        let tensor = match self.current(view.storage) {
            Some(tensor) => tensor,
            None => {
                // No `expand` made this object: its number is used again.
                self.expanded.remove(&view.tensor);
                self.begin(view, 0, Origin::Before, node)
            }
        };
        let seen = &mut self.tensors[tensor];
        if seen.origin == Origin::Before && !self.expanded.contains(&view.tensor) {
            seen.bytes = seen.bytes.max(view.end_byte);
            seen.element_bytes = seen.element_bytes.max(view.element_bytes);
        }
        tensor
    }

    /// Begins a tensor with this view.
    pub(super) fn allocate(&mut self, view: &View, origin: Origin, node: usize) -> TensorIndex {
        self.expanded.remove(&view.tensor);
        self.begin(view, view.bytes, origin, node)
    }

    /// Notes a storage that an operator returns without receiving it. If no op has written the tensor since
    /// its allocation, it is the allocated tensor. Otherwise the address is used again.
    pub(super) fn receive(&mut self, view: &View, node: usize) -> TensorIndex {
        match self.current(view.storage) {
            Some(tensor) if !self.tensors[tensor].written => {
                self.expanded.remove(&view.tensor);
                tensor
            }
            _ => self.allocate(view, Origin::Returned, node),
        }
    }

    /// Notes whether the tensor object `view` claims more elements than its storage has.
    pub(super) fn mark_expanded(&mut self, view: &View, expanded: bool) {
        if expanded {
            self.expanded.insert(view.tensor);
        } else {
            self.expanded.remove(&view.tensor);
        }
    }

    /// Returns whether the tensor object came from `expand`.
    pub(super) fn is_expanded(&self, view: &View) -> bool {
        self.expanded.contains(&view.tensor)
    }

    fn begin(&mut self, view: &View, bytes: u64, origin: Origin, node: usize) -> TensorIndex {
        let tensor = self.tensors.len();
        self.tensors.push(Tensor {
            storage: view.storage,
            bytes,
            element_bytes: view.element_bytes,
            origin,
            node,
            written: matches!(origin, Origin::Before | Origin::Born),
        });
        self.current.insert(view.storage, tensor);
        tensor
    }
}
