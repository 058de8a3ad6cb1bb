//! The intervals in which each op may end.

use super::{PriceError, Prices, begun_by, intervals};
use crate::bounds::reached::Reached;
use crate::graph::Graph;
use crate::scratch::{OutOfScratch, Scratch};

/// With this number of marks, the intervals of four iterations do not fit into 32 bits.
const TOO_MANY_MARKS: u32 = 1 << 28;

/// The first interval of an op for which no interval is known. The iteration begins later.
const NO_FIRST: u32 = 0;

/// The last interval of an op that may end at any time.
pub(super) const NO_LAST: u32 = u32::MAX;

/// Finds the first and the last interval in which each op may end. Intervals count from the iteration
/// before, since a collective may end before the iteration begins, or in a later iteration. Also
/// sets the number of each mark, which counts from 1. O(operands).
#[expect(
    clippy::arithmetic_side_effects,
    reason = "there are fewer than `TOO_MANY_MARKS` marks, and facts of ops on compute are at least 1"
)]
pub(super) fn find(
    graph: &Graph<'_>,
    prices: &Prices<'_>,
    runs: &mut [[u32; 2]],
    mark_of: &mut [u32],
    scratch: &mut Scratch<'_>,
) -> Result<(), PriceError> {
    let last = u32::try_from(prices.marks.len()).ok().filter(|&last| last < TOO_MANY_MARKS);
    let free_words = scratch.free_words();
    let last = last.ok_or(OutOfScratch { needed_words: usize::MAX, free_words })?;
    number_marks(graph, prices, mark_of)?;
    let iteration = intervals(prices.marks.len()) as u32;
    let after_mark = |mark| iteration + after_mark(mark);
    // One more than the last mark before an op; 0 if no op on compute is before it.
    let mut before = Reached::new(graph, prices.order, 0u32, Ord::max, scratch)?;
    for ((op, run), &number) in graph.op_ids().zip(runs.iter_mut()).zip(mark_of.iter()) {
        let is_collective = graph.op(op).collective;
        let mut previous = 0;
        let fact = before.step(graph, op, |reached| {
            previous = reached.max(1);
            if is_collective { reached } else { reached.max(number + 1) }
        });
        if number > 0 && previous != number {
            return Err(PriceError::MarkOutOfOrder(op));
        }
        *run = [fact.checked_sub(1).map_or(NO_FIRST, after_mark), NO_LAST];
    }
    // The first mark after an op; `last + 1` if no mark is, and one more if no op on compute is.
    let mut after = Reached::new(graph, prices.order, last + 2, Ord::min, scratch)?;
    let ops = graph.op_ids().zip(runs.iter_mut()).zip(mark_of.iter());
    for ((op, run), &number) in ops.rev() {
        let is_collective = graph.op(op).collective;
        let fact = after.step(graph, op, |reached| match number {
            0 if is_collective => reached,
            0 => reached.min(last + 1),
            number => number,
        });
        match number {
            0 if fact <= last + 1 => run[1] = after_mark(fact - 1),
            0 => {}
            number => *run = [iteration + during_mark(number); 2],
        }
    }
    order_collectives(graph, iteration, runs);
    Ok(())
}

fn number_marks(
    graph: &Graph<'_>,
    prices: &Prices<'_>,
    mark_of: &mut [u32],
) -> Result<(), PriceError> {
    for (number, &mark) in (1..).zip(prices.marks) {
        let of = mark_of.get_mut(mark.index()).ok_or(PriceError::UnknownOp(mark))?;
        if core::mem::replace(of, number) != 0 {
            return Err(PriceError::MarkOutOfOrder(mark));
        }
        if graph.op(mark).collective {
            return Err(PriceError::CollectiveMark(mark));
        }
    }
    Ok(())
}

/// Limits collectives whose interval is not known by the other collectives: the network ends all collectives of
/// one iteration before it begins a collective of the next.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "known intervals are at least `iteration`, and with fewer than `TOO_MANY_MARKS` marks they \
              are below a fourth of 32 bits"
)]
fn order_collectives(graph: &Graph<'_>, iteration: u32, runs: &mut [[u32; 2]]) {
    let collectives = || graph.ops().iter().map(|op| op.collective);
    let (mut latest, mut earliest) = (NO_FIRST, NO_LAST);
    for (&[first, last], _) in runs.iter().zip(collectives()).filter(|&(_, is)| is) {
        (latest, earliest) = (latest.max(first), earliest.min(last));
    }
    for ([first, last], _) in runs.iter_mut().zip(collectives()).filter(|&(_, is)| is) {
        if *last == NO_LAST && earliest != NO_LAST {
            *last = earliest + iteration;
        }
        if *first == NO_FIRST {
            match latest {
                NO_FIRST => *last = NO_LAST,
                latest => *first = latest - iteration,
            }
        }
    }
}

/// The interval in which a mark runs, from the start of the iteration.
const fn during_mark(mark: u32) -> u32 {
    begun_by(mark as usize)[0] as u32
}

/// The interval from the end of a mark to the next mark; the first interval for 0.
pub(super) const fn after_mark(mark: u32) -> u32 {
    begun_by(mark as usize)[1] as u32
}
