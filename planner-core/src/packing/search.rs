//! A tree search for a packing with a height close to its load.

#![expect(
    clippy::indexing_slicing,
    reason = "items, sections and decisions are below the lengths of their arrays"
)]

use super::spans::Spans;
use super::stack::{Stack, unit_bytes};
use crate::scratch::{OutOfScratch, Scratch, total, words};
use core::cmp::Reverse;
use core::ops::Range;

pub(super) struct Search<'a> {
    stack: Stack<'a>,
    /// The decisions on the path to the current node: the item that was placed or postponed,
    item: &'a mut [u32],
    /// for a postponed item, the sections on which the failure to place it depends,
    sections: &'a mut [[u32; 2]],
    /// and the least offset that it had before.
    least: &'a mut [u32],
    decisions: usize,
    /// The position of each item in the order of preference, at first and in this run.
    first_rank: &'a mut [u32],
    rank: &'a mut [u32],
    /// The number of times that an item was alive in a section that overflowed.
    blame: &'a mut [u32],
    /// A lower bound on the height of the open items of each section.
    reach: &'a mut [u32],
    target: u32,
    /// The lowest height above the target at which a node failed in this run.
    missed: u32,
    steps: u64,
}

/// Marks a decision to place an item.
const PLACED: [u32; 2] = [u32::MAX, 0];

/// The result of judging a node.
enum Node {
    Packed,
    /// The open items of these sections do not fit.
    Failed([u32; 2]),
    /// The item to place next.
    Next(u32),
}

/// The result of a run.
enum Outcome {
    Packed,
    /// No packing is lower than this height.
    Impossible(u32),
    CutOff,
}

/// The most decisions on a path: every item is placed once, and may be postponed several times
/// before.
const fn most_decisions(items: usize) -> usize {
    items.saturating_mul(2).saturating_add(64)
}

pub(super) const fn scratch_words(items: usize) -> usize {
    let decisions = most_decisions(items);
    total([
        Stack::scratch_words(items),
        words::<u32>(decisions).saturating_mul(2),
        words::<[u32; 2]>(decisions),
        words::<u32>(items).saturating_mul(4),
    ])
}

/// Searches for packings lower than `height_bytes` until one is as low as the load, until that is
/// proved impossible, or until the steps are used up. Returns the height of the offsets.
pub(super) fn improve(
    spans: Spans<'_>,
    mut height_bytes: u64,
    most_steps: u64,
    offsets: &mut [u64],
    scratch: &mut Scratch<'_>,
) -> Result<u64, OutOfScratch> {
    let lengths = spans.ids().map(|item| spans.sections_of(spans.get(item)) as u64);
    let straight_steps = (lengths.sum::<u64>() / 2).saturating_mul(spans.len() as u64);
    if straight_steps > most_steps {
        return Ok(height_bytes);
    }
    let unit_bytes = unit_bytes(&spans);
    let units = |bytes: u64| bytes.div_ceil(unit_bytes) as u32;
    let mut search = Search::new(spans, unit_bytes, &mut scratch.reborrow())?;
    let mut least = units(spans.most_load_bytes());
    for run in 0..=u32::MAX {
        let height = units(height_bytes);
        if least >= height || search.steps >= most_steps {
            break;
        }
        match search.run(run, least..height, most_steps) {
            Outcome::Impossible(lowest) => least = lowest,
            Outcome::CutOff => {}
            Outcome::Packed => {
                for (offset, item) in offsets.iter_mut().zip(spans.ids()) {
                    *offset = unit_bytes.saturating_mul(search.stack.floor(item).into());
                }
                height_bytes = spans.height_bytes(offsets);
            }
        }
    }
    Ok(height_bytes)
}

#[expect(
    clippy::arithmetic_side_effects,
    reason = "at most `MOST_SEARCHED` items are searched, heights stay below 2^31, decisions are \
              positions in arrays, and steps are counted one by one"
)]
impl<'a> Search<'a> {
    fn new(
        spans: Spans<'a>,
        unit_bytes: u64,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let (items, sections) = (spans.len(), spans.sections());
        let decisions = most_decisions(items);
        let mut search = Self {
            stack: Stack::new(spans, unit_bytes, scratch)?,
            item: scratch.take(decisions, 0)?,
            sections: scratch.take(decisions, PLACED)?,
            least: scratch.take(decisions, 0)?,
            decisions: 0,
            first_rank: scratch.take(items, 0)?,
            rank: scratch.take(items, 0)?,
            blame: scratch.take(items, 0)?,
            reach: scratch.take(sections, 0)?,
            target: 0,
            missed: 0,
            steps: 0,
        };
        search.rank_first();
        Ok(search)
    }

    /// Searches for a packing of the first of these heights. The target grows with the cube of the
    /// number of failed nodes. The run is cut off when the target would leave the range.
    fn run(&mut self, run: u32, heights: Range<u32>, most_steps: u64) -> Outcome {
        self.stack.clear();
        self.rank();
        self.decisions = 0;
        self.missed = u32::MAX;
        let most_failed = 1 + self.rank.len() as u64 * (u64::from(run) + 32) / 64;
        for failed in 0..most_failed {
            let share = u128::from((failed << 16) / most_failed);
            let higher = (u128::from(heights.end - heights.start) * share.pow(3)) >> 48;
            self.target = heights.start + higher as u32;
            let sections = loop {
                if self.steps >= most_steps || self.decisions == self.item.len() {
                    return Outcome::CutOff;
                }
                match self.judge(run.is_multiple_of(2)) {
                    Node::Packed => return Outcome::Packed,
                    Node::Next(item) => self.place(item),
                    Node::Failed(sections) => break sections,
                }
            };
            if !self.backtrack(sections) {
                return Outcome::Impossible(self.missed);
            }
        }
        Outcome::CutOff
    }

    /// Prefers the items alive at the highest load, for the longest time, and with the most bytes.
    fn rank_first(&mut self) {
        let spans = self.stack.spans;
        let order = &mut self.item[..spans.len()];
        order.iter_mut().zip(spans.ids()).for_each(|(slot, item)| *slot = item);
        order.sort_unstable_by_key(|&item| {
            let span = spans.get(item);
            let weight = (spans.load_bytes(span), spans.sections_of(span), spans.bytes(item));
            (Reverse(weight), item)
        });
        for (rank, &item) in (0..).zip(&*order) {
            self.first_rank[item as usize] = rank;
        }
    }

    /// Prefers the items that have been blamed most often.
    fn rank(&mut self) {
        let (blame, first_rank) = (&*self.blame, &*self.first_rank);
        // The list of decisions is empty, and long enough.
        let order = &mut self.item[..blame.len()];
        order.iter_mut().zip(0..).for_each(|(slot, item)| *slot = item);
        order.sort_unstable_by_key(|&item| {
            (Reverse(blame[item as usize]), first_rank[item as usize])
        });
        for (rank, &item) in (0..).zip(&*order) {
            self.rank[item as usize] = rank;
        }
    }

    /// Judges the smallest part of the open items.
    ///
    /// The items of a section lie one above the other, each at or above its floor. In the order of
    /// the floors they reach the lowest height, so a section that overflows in this order overflows
    /// in any order.
    fn judge(&mut self, by_slack: bool) -> Node {
        if self.stack.open().is_empty() {
            return Node::Packed;
        }
        self.stack.sort();
        let [from, to] = self.stack.smallest_part();
        self.reach[from as usize..to as usize].fill(0);
        let spans = self.stack.spans;
        for &item in self.stack.open() {
            let span = spans.get(item);
            self.steps += 1;
            if span.from < from || to <= span.from {
                continue;
            }
            let (floor, size) = (self.stack.floor(item), self.stack.size(item));
            let mut highest = 0;
            for part in spans.parts(span) {
                self.steps += part.len() as u64;
                for reach in &mut self.reach[part] {
                    *reach = floor.max(*reach) + size;
                    highest = highest.max(*reach);
                }
            }
            if highest > self.target {
                self.missed = self.missed.min(highest);
                self.blame(item, highest);
                return Node::Failed([from, to]);
            }
        }
        Node::Next(self.next([from, to], by_slack))
    }

    /// Blames the items in the first section of this span that reaches this height.
    fn blame(&mut self, item: u32, highest: u32) {
        let spans = self.stack.spans;
        let mut sections = spans.parts(spans.get(item)).into_iter().flatten();
        let Some(section) = sections.find(|&section| self.reach[section] == highest) else {
            return;
        };
        for &item in self.stack.open() {
            if spans.get(item).covers(section as u32) {
                self.blame[item as usize] = self.blame[item as usize].saturating_add(1);
            }
        }
    }

    /// An item with the lowest floor in a part: the item with the least slack, or the preferred
    /// item.
    fn next(&self, [from, to]: [u32; 2], by_slack: bool) -> u32 {
        let spans = self.stack.spans;
        let is_inside = |&item: &u32| (from..to).contains(&spans.get(item).from);
        let mut items = self.stack.open().iter().copied().filter(is_inside).peekable();
        let lowest = items.peek().map_or(0, |&item| self.stack.floor(item));
        let items = items.take_while(|&item| self.stack.floor(item) == lowest);
        let next = items.min_by_key(|&item| {
            let parts = spans.parts(spans.get(item)).into_iter();
            let reach = || parts.flat_map(|part| &self.reach[part]).max();
            (by_slack.then(|| Reverse(reach())), self.rank[item as usize])
        });
        next.unwrap_or(0)
    }

    fn place(&mut self, item: u32) {
        self.stack.place(item);
        self.item[self.decisions] = item;
        self.sections[self.decisions] = PLACED;
        self.decisions += 1;
        self.steps += self.stack.open().len() as u64;
    }

    /// Undoes decisions until one on which the failure depends can be reversed: an item that was
    /// placed is postponed. Returns false if there is none.
    ///
    /// A failure within some sections does not depend on decisions about items outside of them.
    fn backtrack(&mut self, mut failed: [u32; 2]) -> bool {
        let spans = self.stack.spans;
        while self.decisions > 0 {
            self.decisions -= 1;
            let item = self.item[self.decisions];
            let hull = spans.hull(spans.get(item));
            let sections = self.sections[self.decisions];
            if sections == PLACED {
                let path = self.item.iter().zip(&*self.sections).take(self.decisions);
                let placed = path.filter(|&(_, &sections)| sections == PLACED);
                self.stack.take_back(item, placed.map(|(&item, _)| item));
                self.steps += (self.decisions + self.stack.open().len()) as u64;
                if overlap(failed, hull) {
                    failed = join(failed, hull);
                    if self.postpone(item, &mut failed) {
                        return true;
                    }
                }
            } else {
                self.stack.postpone(item, self.least[self.decisions]);
                self.steps += self.stack.open().len() as u64;
                if overlap(failed, hull) {
                    failed = join(failed, sections);
                }
            }
        }
        false
    }

    /// Raises an item that failed at its offset, and all items like it, to the lowest top of an
    /// open item on which it can lie. Returns false if that is too high.
    fn postpone(&mut self, item: u32, failed: &mut [u32; 2]) -> bool {
        let spans = self.stack.spans;
        let span = spans.get(item);
        self.steps += 2 * self.stack.open().len() as u64;
        let mut least = u32::MAX;
        for &other in self.stack.open() {
            let support = spans.get(other);
            let holds = self.stack.size(other) > 0 && !self.stack.alike(item, other);
            if holds && support.meets(span) {
                least = least.min(self.stack.top(other));
                *failed = join(*failed, spans.hull(support));
            }
        }
        let top = least.saturating_add(self.stack.size(item));
        if top > self.target {
            self.missed = self.missed.min(top);
            return false;
        }
        self.item[self.decisions] = item;
        self.sections[self.decisions] = *failed;
        self.least[self.decisions] = self.stack.postpone(item, least);
        self.decisions += 1;
        true
    }
}

const fn overlap(one: [u32; 2], other: [u32; 2]) -> bool {
    one[0] < other[1] && other[0] < one[1]
}

fn join(one: [u32; 2], other: [u32; 2]) -> [u32; 2] {
    [one[0].min(other[0]), one[1].max(other[1])]
}
