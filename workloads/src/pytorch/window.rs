//! One iteration of the trace, and how its nodes lie inside each other.

use super::ImportError;
use super::trace::Node;
use hashbrown::HashMap;

/// The nodes of one iteration in the order of their starts.
pub(super) struct Window {
    pub(super) nodes: Vec<Node>,
    /// The `ProfilerStep#` annotation that it begins with.
    pub(super) step: Option<String>,
    parents: Vec<Option<usize>>,
    /// The last node inside each node, or the node itself.
    last_inside: Vec<usize>,
}

impl Window {
    /// Cuts an iteration out of a trace: from the last `ProfilerStep#` that another one
    /// follows up to that one, or everything. By id: backward nodes run on a thread of their
    /// own and are no descendants of the step.
    ///
    /// # Errors
    /// An id that two nodes have.
    pub(super) fn cut(mut nodes: Vec<Node>) -> Result<Self, ImportError> {
        nodes.sort_by_key(|node| node.id);
        if let Some(pair) = nodes.windows(2).find(|pair| pair[0].id == pair[1].id) {
            return Err(pair[1].error("has the id of another node"));
        }
        let starts_step = |node: &Node| node.name.starts_with("ProfilerStep#");
        let mut steps = (0..nodes.len()).rev().filter(|&at| starts_step(&nodes[at]));
        let mut step = None;
        if let (Some(end), Some(start)) = (steps.next(), steps.next()) {
            step = Some(nodes[start].name.clone());
            nodes.truncate(end);
            nodes.drain(..start);
        }
        let position: HashMap<u64, usize> =
            nodes.iter().enumerate().map(|(at, node)| (node.id, at)).collect();
        // A parent starts first; the root of a trace is its own parent.
        let parents: Vec<Option<usize>> = nodes
            .iter()
            .map(|node| position.get(&node.parent).copied().filter(|_| node.parent < node.id))
            .collect();
        let mut last_inside: Vec<usize> = (0..nodes.len()).collect();
        for at in (0..nodes.len()).rev() {
            if let Some(parent) = parents[at] {
                last_inside[parent] = last_inside[parent].max(last_inside[at]);
            }
        }
        Ok(Self { nodes, step, parents, last_inside })
    }

    /// The node around a node.
    pub(super) fn parent(&self, node: usize) -> Option<usize> {
        self.parents[node]
    }

    /// The nodes around a node, from the inside out.
    pub(super) fn ancestors(&self, node: usize) -> impl Iterator<Item = usize> {
        core::iter::successors(self.parents[node], |&node| self.parents[node])
    }

    /// Nodes that end right after the start of a node, from the inside out.
    pub(super) fn ends_after(&self, start: usize) -> impl Iterator<Item = usize> {
        core::iter::once(start)
            .chain(self.ancestors(start))
            .take_while(move |&node| self.last_inside[node] == start)
    }
}
