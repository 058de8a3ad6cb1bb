//! Selects the tensors that leave (algorithm 1): weights, states of the optimizer, or activations.

#![expect(
    clippy::indexing_slicing,
    reason = "layers and ops are those of the chain, and the arrays have an entry for each"
)]

use super::chain::{Chain, Item, most_layers};
use crate::scratch::{Limits, OutOfScratch, Scratch, words};
use core::mem;
use core::ops::Range;

/// A span in which an item may be away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Span {
    /// A weight, between its backward op and the next forward one: `(k, 0)`.
    Around,
    /// A weight, between its forward op and its backward one: `(k, 1)`.
    Across,
    /// The state of the optimizer, between two backward ops.
    Updates,
    /// The input activation of the layer, between its forward op and its backward one.
    Saved,
}

impl Span {
    pub(super) const fn item(self) -> Item {
        match self {
            Self::Around | Self::Across => Item::Weight,
            Self::Updates => Item::Optimizer,
            Self::Saved => Item::Handed,
        }
    }

    /// The other span of a weight.
    const fn other(self) -> Option<Self> {
        match self {
            Self::Around => Some(Self::Across),
            Self::Across => Some(Self::Around),
            Self::Updates | Self::Saved => None,
        }
    }
}

/// Memory that the selection keeps free for transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::planner) enum Reserve {
    /// The size of the op's own weight: the paper's formula, read literally.
    OwnWeight,
    /// Sixteenths of the largest weight.
    Sixteenths(u8),
    /// The same, but only while the upper half of the layers runs backward: there memory is short,
    /// and prefetches cannot start before updated weights leave.
    Turn(u8),
}

/// The choice among equally profitable tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::planner) enum TieBreak {
    Last,
    First,
}

/// The measure of a choice's profit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::planner) enum Profit {
    /// The number of relieved ops.
    Ops,
    /// The time of the relieved ops.
    Time,
}

/// The criteria of a selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::planner) struct Criteria {
    pub(super) reserve: Reserve,
    pub(super) tie: TieBreak,
    pub(super) profit: Profit,
    /// Whether activations may leave too.
    pub(super) activations: bool,
    /// The number of parts of the largest item; other items have parts of the same size.
    pub(super) parts: u64,
}

impl Criteria {
    pub(super) const PUBLISHED: Self = Self {
        reserve: Reserve::Sixteenths(0),
        tie: TieBreak::Last,
        profit: Profit::Ops,
        activations: false,
        parts: 1,
    };
}

/// The number of spans of a layer.
const SPANS: usize = 4;

/// The number of objects of each layer and span that leave, from the item's end.
#[derive(Debug)]
pub(super) struct Selection<'s> {
    moved: &'s mut [[u64; SPANS]],
    /// The number of objects that leave and come back together.
    pub(super) part: u64,
}

/// The excess of memory at each op, and the sums from which profits are computed.
struct Excess<'e> {
    objects: &'e mut [u64],
    sums: &'e mut [[u64; 2]],
    profit: Profit,
    /// The number of objects for which the sums were computed.
    summed: u64,
}

/// A choice with its benefit and its cost.
#[derive(Clone, Copy)]
struct Choice {
    layer: usize,
    span: Span,
    objects: u64,
    benefit: u128,
    cost: u128,
}

impl Choice {
    /// Exact if the products are below 2^128.
    fn is_below(&self, other: &Self) -> bool {
        self.benefit.saturating_mul(other.cost) < other.benefit.saturating_mul(self.cost)
    }
}

impl<'s> Selection<'s> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        words::<[u64; SPANS]>(most_layers(limits))
    }

    /// Words of scratch while selecting.
    pub(super) const fn working_words(limits: &Limits) -> usize {
        limits.ops.saturating_add(words::<[u64; 2]>(limits.ops.saturating_add(1)))
    }

    /// Takes the most profitable choice until there is no excess, or no choice helps any more;
    /// without a reserve, the latter means that a single op needs more than there is. There are up
    /// to two choices for each part, and each takes O(ops) for each run of layers with the same
    /// weight.
    pub(super) fn new(
        chain: &Chain<'_>,
        criteria: Criteria,
        scratch: &mut Scratch<'s>,
    ) -> Result<Self, OutOfScratch> {
        let size = |(layer, span): (usize, Span)| chain.size(layer, span.item());
        let largest = spans(chain, criteria.activations).map(size).max().unwrap_or(0);
        let selection = Self {
            moved: scratch.take(chain.layers(), [0; SPANS])?,
            part: largest.div_ceil(criteria.parts.max(1)).max(1),
        };
        let mut scratch = scratch.reborrow();
        let mut excess = Excess {
            objects: scratch.take(chain.ops(), 0)?,
            sums: scratch.take(chain.ops().saturating_add(1), [0; 2])?,
            profit: criteria.profit,
            summed: 0,
        };
        excess.measure(chain, criteria.reserve);
        while let Some(choice) = selection.best(chain, &mut excess, criteria) {
            let moved = &mut selection.moved[choice.layer][choice.span as usize];
            *moved = moved.saturating_add(choice.objects);
            excess.relieve(chain, choice);
        }
        Ok(selection)
    }

    /// The number of objects that leave in a span, from the item's end.
    pub(super) fn moved(&self, layer: usize, span: Span) -> u64 {
        self.moved[layer][span as usize]
    }

    /// The number of objects that stay in a span.
    pub(super) fn kept(&self, chain: &Chain<'_>, layer: usize, span: Span) -> u64 {
        chain.size(layer, span.item()).saturating_sub(self.moved(layer, span))
    }

    /// The size of the first part of some objects, if all other parts are whole.
    pub(super) const fn first_part(&self, objects: u64) -> u64 {
        match objects.saturating_sub(1).checked_rem(self.part) {
            Some(before_last) => before_last.saturating_add(1),
            None => objects,
        }
    }

    /// Whether any object leaves in a span.
    pub(super) fn leaves(&self, layer: usize, span: Span) -> bool {
        self.moved(layer, span) > 0
    }

    fn best(
        &self,
        chain: &Chain<'_>,
        excess: &mut Excess<'_>,
        criteria: Criteria,
    ) -> Option<Choice> {
        let mut best: Option<Choice> = None;
        excess.summed = 0;
        for (layer, span) in spans(chain, criteria.activations) {
            let moved = self.moved(layer, span);
            let objects = self.part.min(self.kept(chain, layer, span));
            let other = span.other().map_or(0, |other| self.moved(layer, other));
            // Objects that leave in the other span already have a host copy, and so does the input.
            let (objects, transfers) = match other.saturating_sub(moved) {
                0 if span == Span::Saved && layer == 0 => (objects, 1),
                0 => (objects, 2),
                copied => (objects.min(copied), 1),
            };
            if objects == 0 {
                continue;
            }
            excess.sum(chain, objects);
            let benefit = excess.benefit(chain, layer, span);
            let cost = u128::from(objects).saturating_mul(transfers);
            let choice = Choice { layer, span, objects, benefit, cost };
            let is_better = best.is_none_or(|best| match criteria.tie {
                TieBreak::Last => !choice.is_below(&best),
                TieBreak::First => best.is_below(&choice),
            });
            if choice.benefit > 0 && is_better {
                best = Some(choice);
            }
        }
        best
    }
}

/// All spans in which an item may leave, grouped by kind of item.
fn spans(chain: &Chain<'_>, activations: bool) -> impl Iterator<Item = (usize, Span)> {
    let layers = 0..chain.layers();
    let weights = layers.clone().flat_map(|layer| [(layer, Span::Around), (layer, Span::Across)]);
    let optimizer = layers.clone().map(|layer| (layer, Span::Updates));
    let handed = layers.filter(move |_| activations).map(|layer| (layer, Span::Saved));
    weights.chain(optimizer).chain(handed)
}

/// The ops strictly within a span, in the order of the sequence.
fn covered(chain: &Chain<'_>, layer: usize, span: Span) -> [Range<usize>; 2] {
    let back = chain.backward(layer);
    let [after, after_back] = [layer, back].map(|op| op.saturating_add(1));
    match span {
        Span::Around => [0..layer, after_back..chain.ops()],
        Span::Across | Span::Saved => [after..back, 0..0],
        Span::Updates => [0..back, after_back..chain.ops()],
    }
}

impl Excess<'_> {
    fn measure(&mut self, chain: &Chain<'_>, reserve: Reserve) {
        let states = (0..chain.layers())
            .flat_map(|layer| [Item::Weight, Item::Optimizer].map(|item| chain.size(layer, item)));
        let all = states.fold(0, u64::saturating_add);
        let largest = chain.weights().max().unwrap_or(0);
        for (op, excess) in self.objects.iter_mut().enumerate() {
            let layer = chain.layer(op);
            let reserve = match reserve {
                Reserve::OwnWeight => chain.size(layer, Item::Weight),
                Reserve::Turn(_) if op < chain.layers() || layer < chain.layers() / 2 => 0,
                Reserve::Sixteenths(count) | Reserve::Turn(count) => {
                    (largest / 16).saturating_mul(u64::from(count))
                }
            };
            *excess = all
                .saturating_add(chain.alive[layer])
                .saturating_add(chain.workspaces[op])
                .saturating_add(reserve)
                .saturating_sub(chain.pool_objects);
        }
    }

    /// Sums, over the ops up to each, the part of its excess that `objects` can relieve.
    fn sum(&mut self, chain: &Chain<'_>, objects: u64) {
        if mem::replace(&mut self.summed, objects) == objects {
            return;
        }
        let mut sum = 0u128;
        for ((excess, op_ns), slot) in self.objects.iter().zip(chain.op_ns).zip(&mut self.sums[1..])
        {
            let relieved = u128::from(objects.min(*excess));
            sum = sum.saturating_add(match self.profit {
                Profit::Ops => relieved,
                Profit::Time => relieved.saturating_mul(u128::from(*op_ns)),
            });
            *slot = [(sum >> 64) as u64, sum as u64];
        }
    }

    fn benefit(&self, chain: &Chain<'_>, layer: usize, span: Span) -> u128 {
        let sum = |op: usize| {
            let [high, low] = self.sums[op];
            u128::from(high) << 64 | u128::from(low)
        };
        let ranges = covered(chain, layer, span);
        ranges.into_iter().fold(0, |benefit, ops| {
            benefit.saturating_add(sum(ops.end.max(ops.start)).saturating_sub(sum(ops.start)))
        })
    }

    fn relieve(&mut self, chain: &Chain<'_>, Choice { layer, span, objects, .. }: Choice) {
        for ops in covered(chain, layer, span) {
            for excess in self.objects.get_mut(ops).unwrap_or_default() {
                *excess = excess.saturating_sub(objects);
            }
        }
    }
}
