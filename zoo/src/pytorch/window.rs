//! One iteration of the trace, and the nesting of its nodes.

use super::ImportError;
use super::trace::Node;
use core::ops::RangeInclusive;
use hashbrown::{HashMap, HashSet};

/// The nodes of one iteration in the order of their starts.
pub(super) struct Window {
    pub(super) nodes: Vec<Node>,
    /// The `ProfilerStep#` annotation at the start of the iteration.
    pub(super) step: Option<String>,
    /// The nodes of the other steps.
    pub(super) other_steps: Vec<Node>,
    parents: Vec<Option<usize>>,
    /// The last node inside each node, or the node itself.
    last_inside: Vec<usize>,
    /// The position of each node and of the last node inside it, in an order in which the nodes inside a node
    /// come right after it.
    nested: Vec<[usize; 2]>,
}

impl Window {
    /// Cuts an iteration out of a trace: from the last `ProfilerStep#` that another one follows up to the
    /// following one, or the whole trace. It cuts by id, since backward nodes run on a thread of their own
    /// and are not descendants of the step.
    ///
    /// # Errors
    /// Two nodes have the same id, or a node lies inside a node that does not start before it.
    pub(super) fn cut(mut nodes: Vec<Node>) -> Result<Self, ImportError> {
        nodes.sort_by_key(|node| node.id);
        if let Some(pair) = nodes.windows(2).find(|pair| pair[0].id == pair[1].id) {
            return Err(pair[1].error("has the id of another node"));
        }
        check_parents(&nodes)?;
        let starts_step = |node: &Node| node.name.starts_with("ProfilerStep#");
        let mut steps = (0..nodes.len()).rev().filter(|&at| starts_step(&nodes[at]));
        let (mut step, mut other_steps) = (None, Vec::new());
        if let (Some(end), Some(start)) = (steps.next(), steps.next()) {
            let first = steps.next_back().unwrap_or(start);
            step = Some(nodes[start].name.clone());
            other_steps = nodes.split_off(end);
            other_steps.extend(nodes.drain(..start).skip(first));
        }
        let position: HashMap<u64, usize> =
            nodes.iter().enumerate().map(|(at, node)| (node.id, at)).collect();
        // A parent starts before its children. The root of a trace is its own parent.
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
        let nested = nested(&parents);
        Ok(Self { nodes, step, other_steps, parents, last_inside, nested })
    }

    /// Returns the node around a node.
    pub(super) fn parent(&self, node: usize) -> Option<usize> {
        self.parents[node]
    }

    /// Returns the innermost wanted node around each node.
    pub(super) fn innermost(&self, is_wanted: impl Fn(usize) -> bool) -> Vec<Option<usize>> {
        let mut innermost = Vec::with_capacity(self.nodes.len());
        for parent in &self.parents {
            innermost.push(match *parent {
                Some(parent) if is_wanted(parent) => Some(parent),
                Some(parent) => innermost[parent],
                None => None,
            });
        }
        innermost
    }

    /// Returns the positions of the nodes inside a node; see [`Window::position`].
    pub(super) fn inside(&self, node: usize) -> RangeInclusive<usize> {
        let [first, last] = self.nested[node];
        first + 1..=last
    }

    /// Returns the position of a node in an order in which the nodes inside a node are adjacent.
    pub(super) fn position(&self, node: usize) -> usize {
        self.nested[node][0]
    }

    /// Returns the nodes around a node, from the inside out.
    fn ancestors(&self, node: usize) -> impl Iterator<Item = usize> {
        core::iter::successors(self.parents[node], |&node| self.parents[node])
    }

    /// Returns the nodes that end right after the start of a node, from the inside out.
    pub(super) fn ends_after(&self, start: usize) -> impl Iterator<Item = usize> {
        core::iter::once(start)
            .chain(self.ancestors(start))
            .take_while(move |&node| self.last_inside[node] == start)
    }
}

/// Refuses cycles of nodes: each cycle has a node inside a node that starts later. Only the root of a trace,
/// which starts first, may be its own parent.
fn check_parents(nodes: &[Node]) -> Result<(), ImportError> {
    let ids: HashSet<u64> = nodes.iter().map(|node| node.id).collect();
    if let Some(node) = nodes.iter().skip(1).find(|node| node.parent == node.id) {
        return Err(node.error("is its own parent"));
    }
    match nodes.iter().find(|node| node.parent > node.id && ids.contains(&node.parent)) {
        Some(node) => Err(node.error("lies inside a node that starts after it")),
        None => Ok(()),
    }
}

/// Returns the position of each node and of the last node inside it, in an order in which the nodes inside a
/// node come right after it.
fn nested(parents: &[Option<usize>]) -> Vec<[usize; 2]> {
    let mut inside = vec![0; parents.len()];
    for (node, parent) in parents.iter().enumerate().rev() {
        if let Some(parent) = *parent {
            inside[parent] += inside[node] + 1;
        }
    }
    let mut nested = vec![[0; 2]; parents.len()];
    let (mut next, mut next_inside) = (0, vec![0; parents.len()]);
    for (node, parent) in parents.iter().enumerate() {
        let next = parent.map_or(&mut next, |parent| &mut next_inside[parent]);
        let position = *next;
        *next += inside[node] + 1;
        (nested[node], next_inside[node]) = ([position, position + inside[node]], position + 1);
    }
    nested
}
