//! Which tensor a storage holds. Ids are addresses, which the allocator reuses.

use super::value::View;
use hashbrown::{HashMap, HashSet};

/// Position of a tensor in [`Storages::tensors`].
pub(super) type TensorIndex = usize;

/// How a tensor came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// It was there before the iteration.
    Before,
    /// An allocating operator (`empty`, …) returned it.
    Allocated,
    /// An operator returned it that had not been given it.
    Returned,
    /// The optimizer made it, full of zeros: a new state.
    Born,
}

/// The contents of a storage from one allocation to the next.
#[derive(Debug)]
pub(super) struct Tensor {
    pub(super) storage: i64,
    pub(super) bytes: u64,
    /// Size of the largest element that it was seen with.
    pub(super) element_bytes: u64,
    pub(super) origin: Origin,
    /// The node at which it began; for [`Origin::Before`], that first mentions it.
    pub(super) node: usize,
    /// Whether it holds a value: an op has written it, or it began with one.
    pub(super) written: bool,
}

/// All tensors so far, and which of them each storage holds now.
#[derive(Default)]
pub(super) struct Storages {
    pub(super) tensors: Vec<Tensor>,
    current: HashMap<i64, TensorIndex>,
    /// Tensor objects made by `expand`, which claim more elements than their storage has.
    expanded: HashSet<i64>,
}

impl Storages {
    /// The tensor that a storage holds, if any.
    pub(super) fn current(&self, storage: i64) -> Option<TensorIndex> {
        self.current.get(&storage).copied()
    }

    /// The tensor that an existing view shows. One that nothing in the iteration made was
    /// there before; it is as large as the farthest view of it reaches.
    pub(super) fn see(&mut self, view: &View, node: usize) -> TensorIndex {
        let tensor = match self.current(view.storage) {
            Some(tensor) => tensor,
            None => {
                // No `expand` made it: an object number is used again.
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

    /// A tensor begins with this view of it.
    pub(super) fn allocate(&mut self, view: &View, origin: Origin, node: usize) -> TensorIndex {
        self.expanded.remove(&view.tensor);
        self.begin(view, view.bytes, origin, node)
    }

    /// An operator returns a storage that it was not given. What nobody has written since
    /// its allocation is that allocation, and otherwise the address has been used again.
    pub(super) fn receive(&mut self, view: &View, node: usize) -> TensorIndex {
        match self.current(view.storage) {
            Some(tensor) if !self.tensors[tensor].written => {
                self.expanded.remove(&view.tensor);
                tensor
            }
            _ => self.allocate(view, Origin::Returned, node),
        }
    }

    /// Notes whether the tensor object `view` claims more elements than there are.
    pub(super) fn mark_expanded(&mut self, view: &View, expanded: bool) {
        if expanded {
            self.expanded.insert(view.tensor);
        } else {
            self.expanded.remove(&view.tensor);
        }
    }

    /// Whether the tensor object came from `expand`.
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
