//! The reads and writes of an op.

use super::ops::{Access, Progress, Touch, TracedOp};
use super::role::{only_fills, overwrites, takes_shapes};
use super::schema::{self, Argument};
use super::storage::{Storages, TensorIndex};
use super::trace::Node;
use super::value::{Value, View, views};
use super::window::Window;
use hashbrown::HashSet;

/// An op under construction.
pub(super) struct Draft<'a> {
    window: &'a Window,
    storages: &'a Storages,
    progress: &'a Progress,
    op: TracedOp,
    /// The tensors that the op writes and that ops inside it have written.
    done: Vec<TensorIndex>,
    /// Whether the op reads a tensor that no node inside it has read.
    reads_alone: bool,
}

impl<'a> Draft<'a> {
    /// Begins the op of a node, or of one position in its lists.
    pub(super) fn new(
        window: &'a Window,
        storages: &'a Storages,
        progress: &'a Progress,
        node: usize,
        position: Option<usize>,
    ) -> Self {
        let op = TracedOp { node, position, touches: Vec::new(), traffic_bytes: 0 };
        Self { window, storages, progress, op, done: Vec::new(), reads_alone: false }
    }

    fn node(&self) -> &'a Node {
        &self.window.nodes[self.op.node]
    }

    /// Returns the op of an operator with its [`inputs`] and [`outputs`]. Returns `None` if ops inside it
    /// have made all writes and reads that it must make.
    pub(super) fn operator(
        mut self,
        inputs: &[(&Value, Access)],
        outputs: &[&Value],
    ) -> Option<TracedOp> {
        for &(value, access) in inputs {
            self.each_view(value, |draft, view| draft.input(view, access));
        }
        if self.op.position.is_none_or(|position| position == 0) {
            self.private_temporaries();
        }
        for value in outputs {
            self.each_view(value, Self::output);
        }
        if self.progress.in_embedding {
            // An embedding reads the rows that it looks up, not the whole table.
            self.op.traffic_bytes = 0;
            for value in outputs {
                self.each_view(value, |draft, view| draft.add_traffic(view.bytes));
            }
            self.op.traffic_bytes = self.op.traffic_bytes.saturating_mul(2);
        }
        let writes = |op: &TracedOp| op.touches.iter().any(|touch| touch.access != Access::Read);
        if !writes(&self.op) && self.reads_alone && !takes_shapes(self.node().base_name()) {
            let update = |tensor| Touch { tensor, access: Access::Update, bytes: None };
            self.op.touches.extend(self.done.drain(..).map(update));
        }
        writes(&self.op).then_some(self.op)
    }

    /// Returns the op of a collective. It updates lists in place; the `_base_` form writes its first
    /// argument.
    pub(super) fn collective(mut self) -> Option<TracedOp> {
        let node = self.node();
        let base = node.name.contains("_base_");
        for (at, value) in node.inputs.iter().enumerate() {
            let access = match value {
                Value::List(_) if !base => Access::Update,
                _ if base && at == 0 => Access::Overwrite,
                _ => Access::Read,
            };
            self.each_view(value, |draft, view| draft.input(view, access));
        }
        for value in &node.outputs {
            self.each_view(value, Self::output);
        }
        (!self.op.touches.is_empty()).then_some(self.op)
    }

    /// Calls `touch` with the tensors of a value, or of its entry at this op's position.
    fn each_view(&mut self, value: &Value, mut touch: impl FnMut(&mut Self, &View)) {
        let value = match (value, self.op.position) {
            (Value::List(values), Some(position)) => values.get(position),
            _ => Some(value),
        };
        if let Some(value) = value {
            views(core::slice::from_ref(value)).iter().for_each(|view| touch(self, view));
        }
    }

    fn input(&mut self, view: &View, access: Access) {
        let Some(&tensor) = self.progress.given.get(&view.storage) else {
            return;
        };
        let copies = if access == Access::Update && self.has_value(tensor) { 2 } else { 1 };
        self.add_traffic(view.bytes.saturating_mul(copies));
        let bytes = view.dense.then_some((view.first_byte, view.end_byte));
        let done = access != Access::Read && self.is_done(tensor);
        if done {
            self.done.push(tensor);
        }
        let access = match access {
            Access::Read => {
                self.reads_alone |= !self.is_read(tensor);
                Access::Read
            }
            Access::Update if done => Access::Read,
            Access::Overwrite if done => return,
            Access::Overwrite if self.is_filled(tensor) => Access::Update,
            _ => access,
        };
        self.op.touches.push(Touch { tensor, access, bytes });
    }

    /// Adds a result. Skips a tensor that the operator was given, since it is an input.
    fn output(&mut self, view: &View) {
        if self.progress.given.contains_key(&view.storage) {
            return;
        }
        self.add_traffic(view.bytes);
        let Some(tensor) = self.storages.current(view.storage) else { return };
        if self.is_done(tensor) {
            self.done.push(tensor);
        } else {
            let filled = self.is_filled(tensor);
            let access = if filled { Access::Update } else { Access::Overwrite };
            self.op.touches.push(Touch { tensor, access, bytes: Some((0, u64::MAX)) });
        }
    }

    /// Adds reads of private temporaries: tensors that ops inside have written, no node inside has read, and
    /// the node does not return. The node itself reads them (`_softmax_backward_data` multiplies first).
    fn private_temporaries(&mut self) {
        let returned: HashSet<_> = views(&self.node().outputs)
            .iter()
            .filter_map(|view| self.storages.current(view.storage))
            .collect();
        for tensor in self.progress.inside.unread(self.window.inside(self.op.node)) {
            if !returned.contains(&tensor) {
                self.op.touches.push(Touch { tensor, access: Access::Read, bytes: None });
            }
        }
    }

    fn add_traffic(&mut self, bytes: u64) {
        self.op.traffic_bytes = self.op.traffic_bytes.saturating_add(bytes);
    }

    /// Returns whether an op inside has written the tensor permanently.
    fn is_done(&self, tensor: TensorIndex) -> bool {
        let wrapper = only_fills(self.node().base_name());
        let inside = self.progress.inside.get(tensor);
        inside.is_some_and(|inside| inside.written || (inside.filled && wrapper))
    }

    /// Returns whether a node inside has read the tensor.
    fn is_read(&self, tensor: TensorIndex) -> bool {
        self.progress.inside.get(tensor).is_some_and(|inside| inside.read)
    }

    fn is_filled(&self, tensor: TensorIndex) -> bool {
        let inside = self.progress.inside.get(tensor);
        inside.is_some_and(|inside| inside.filled)
    }

    fn has_value(&self, tensor: TensorIndex) -> bool {
        self.storages.tensors[tensor].written
    }
}

/// Returns the inputs of an operator that hold tensors, and its access to them by its schema.
pub(super) fn inputs(node: &Node) -> Vec<(&Value, Access)> {
    let arguments = schema::arguments(&node.schema);
    let training = arguments
        .iter()
        .zip(&node.inputs)
        .any(|(argument, value)| argument.name == "training" && *value == Value::Bool(true));
    let access =
        |at| arguments.get(at).map_or(Access::Read, |argument| access(node, argument, training));
    let inputs = node.inputs.iter().enumerate().map(|(at, value)| (value, access(at)));
    inputs.filter(|(value, _)| !views(core::slice::from_ref(*value)).is_empty()).collect()
}

/// Returns the outputs of an operator that hold tensors.
pub(super) fn outputs(node: &Node) -> Vec<&Value> {
    let has_tensors = |value: &&Value| !views(core::slice::from_ref(*value)).is_empty();
    node.outputs.iter().filter(has_tensors).collect()
}

/// Returns the access to an argument by the schema. The schema does not mark running statistics.
fn access(node: &Node, argument: &Argument<'_>, training: bool) -> Access {
    let statistics = matches!(argument.name, "running_mean" | "running_var");
    if argument.written && (argument.keyword || overwrites(node.base_name())) {
        Access::Overwrite
    } else if argument.written || (training && statistics) {
        Access::Update
    } else {
        Access::Read
    }
}
