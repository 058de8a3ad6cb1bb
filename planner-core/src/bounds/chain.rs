//! A chain of ops, each of which waits for the op before it, and the positions of all other ops
//! relative to it.

#![expect(
    clippy::indexing_slicing,
    reason = "ops are those of the checked graph, and the arrays have an entry for each"
)]

use super::BoundOrder;
use super::reached::Reached;
use crate::graph::{Graph, OpId};
use crate::scratch::{Limits, OutOfScratch, Scratch, words};

/// The most links of a chain. The tables of windows have about as many rows and columns, so they
/// take about 100 KB.
pub(super) const LINKS: usize = 64;

/// A chain of links. Links count from 1; 0 is the start of the iteration, and [`Chain::end`] its
/// end.
pub(super) struct Chain<'a> {
    /// For each op, the last link that comes before it in every order, or that it is itself.
    before: &'a mut [u32],
    /// For each op, the first link that comes after it in every order, or that it is itself;
    /// counted from the end.
    after: &'a mut [u32],
    links: u32,
}

/// The length of a path of ops, and its last op, counted from 1.
type Path = [u64; 2];

#[expect(
    clippy::arithmetic_side_effects,
    reason = "a path has at least one op and at most those of the graph, and links are at most `LINKS`"
)]
impl<'a> Chain<'a> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        words::<u32>(limits.ops)
            .saturating_mul(4)
            .saturating_add(Reached::<Path>::scratch_words(limits))
    }

    /// Takes ops at equal distances, including `through`, from the path through that op with the
    /// longest compute time; in the given order, that path has all ops. O(operands).
    pub(super) fn new(
        graph: &Graph<'_>,
        order: BoundOrder,
        through: OpId,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let ops = graph.ops().len();
        let (before, after) = (scratch.take(ops, 0u32)?, scratch.take(ops, 0u32)?);
        let mut chain = Self { before, after, links: 0 };
        chain.link(graph, order, through, &mut scratch.reborrow())?;
        let mut scratch = scratch.reborrow();
        let mut reached = Reached::new(graph, order, 0u32, u32::max, &mut scratch)?;
        for op in graph.op_ids() {
            let own = chain.before[op.index()];
            chain.before[op.index()] = reached.step(graph, op, |before| before.max(own));
        }
        reached.clear();
        for op in graph.op_ids().rev() {
            let own = chain.after[op.index()];
            chain.after[op.index()] = reached.step(graph, op, |after| after.max(own));
        }
        Ok(chain)
    }

    /// Chooses the links.
    fn link(
        &mut self,
        graph: &Graph<'_>,
        order: BoundOrder,
        through: OpId,
        scratch: &mut Scratch<'_>,
    ) -> Result<(), OutOfScratch> {
        let ops = graph.ops().len();
        let (nearest, path) = (scratch.take(ops, 0u32)?, scratch.take(ops, through.0)?);
        let mut paths = Reached::new(graph, order, [0, 0], Path::max, scratch)?;
        extend(graph, graph.op_ids(), &mut paths, nearest);
        let at = follow(nearest, through, path);
        path[..at].reverse();
        paths.clear();
        extend(graph, graph.op_ids().rev(), &mut paths, nearest);
        let len = at + 1 + follow(nearest, through, &mut path[at + 1..]);
        let distance = len.div_ceil(LINKS);
        self.links = (len - at % distance).div_ceil(distance) as u32;
        let links = path[..len].iter().skip(at % distance).step_by(distance);
        for (link, &op) in (1..).zip(links) {
            self.before[op as usize] = link;
            self.after[op as usize] = self.links + 1 - link;
        }
        Ok(())
    }

    /// The position after all links.
    pub(super) fn end(&self) -> usize {
        self.links as usize + 1
    }

    /// The last link before an op and the first link after it; twice the same link if the op is
    /// one.
    pub(super) fn around(&self, op: OpId) -> (usize, usize) {
        let (before, after) = (self.before[op.index()], self.after[op.index()]);
        (before as usize, self.end() - after as usize)
    }

    /// The link that an op is, if it is one.
    pub(super) fn link_of(&self, op: OpId) -> Option<usize> {
        let (before, after) = self.around(op);
        (before == after).then_some(before)
    }
}

/// Records for each op the op before it on the longest path that leads to it, counted from 1.
fn extend(
    graph: &Graph<'_>,
    ops: impl Iterator<Item = OpId>,
    paths: &mut Reached<'_, Path>,
    nearest: &mut [u32],
) {
    for op in ops {
        paths.step(graph, op, |[length_ns, other]| {
            nearest[op.index()] = other as u32;
            // Without the 1, ops that take no time would be left out.
            let length_ns = length_ns.saturating_add(graph.op(op).time_ns).saturating_add(1);
            [length_ns, u64::from(op.0).saturating_add(1)]
        });
    }
}

/// Writes the path from an op, without that op. Returns its length.
fn follow(nearest: &[u32], from: OpId, path: &mut [u32]) -> usize {
    let next = |&op: &u32| nearest[op as usize].checked_sub(1);
    let ops = core::iter::successors(next(&from.0), next);
    path.iter_mut().zip(ops).map(|(slot, op)| *slot = op).count()
}
