//! Fixed offsets for layers that come one after the other through the same memory.

use super::streamed::{Layers, Slots};
use std::iter;

/// The rule for a layer that fits in several gaps between other layers.
#[derive(Clone, Copy, Debug)]
enum Fit {
    First,
    Last,
    /// The smallest gap.
    Best,
    /// The first gap after the layer that came before.
    Next,
    /// The first gap and the last gap in turn.
    Ends,
}

const FITS: [Fit; 5] = [Fit::First, Fit::Last, Fit::Best, Fit::Next, Fit::Ends];

impl Fit {
    /// Returns the rule for the layer at a position.
    const fn of(self, position: usize) -> Self {
        match self {
            Self::Ends if position.is_multiple_of(2) => Self::First,
            Self::Ends => Self::Last,
            fit => fit,
        }
    }
}

/// The number of iterations after which layers keep their offsets.
const ITERATIONS: usize = 3;

/// A layer in memory.
#[derive(Clone, Copy, Debug)]
struct Held {
    /// The position in the order of layers.
    position: usize,
    begin: u64,
    end: u64,
}

/// Fixes the first object of each layer so that the period is short. It uses rules, then moves one layer
/// after the other next to another layer, while the period is above `least_ns` and `looks` remain. Returns
/// `None` if no rule finds offsets, or if no layer is streamed.
pub(super) fn fixed(
    layers: &Layers,
    order: &[usize],
    slots: &Slots,
    least_ns: u64,
    looks: &mut usize,
) -> Option<Slots> {
    let timed = |first: Vec<u64>| {
        let slots = Slots { first: Some(first), ..slots.clone() };
        layers.period_ns(order, &slots).map(|period_ns| (period_ns, slots))
    };
    let fits = FITS.into_iter().filter(|_| !order.is_empty());
    let by_rules = fits.filter_map(|fit| by_rule(layers.len(), order, slots, fit));
    let mut best = by_rules.filter_map(timed).min_by_key(|&(period_ns, _)| period_ns)?;
    let pairs = (0..order.len()).flat_map(|at| (0..order.len()).map(move |other| (at, other)));
    let mut unchanged = 0;
    for (at, other) in pairs.cycle() {
        if unchanged > order.len().pow(2) || best.0 <= least_ns {
            break;
        }
        unchanged += 1;
        for begin in beside(&best.1, at, other) {
            let Some(left) = looks.checked_sub(layers.len()) else { return Some(best.1) };
            *looks = left;
            let mut first = best.1.first.clone()?;
            first[at] = begin;
            if let Some(better) = timed(first).filter(|&(period_ns, _)| period_ns < best.0) {
                (best, unchanged) = (better, 0);
            }
        }
    }
    Some(best.1)
}

/// Returns the places of a layer beside another layer. For the layer itself, returns the ends of memory.
fn beside(slots: &Slots, at: usize, other: usize) -> impl Iterator<Item = u64> + use<> {
    let (taken, last) = (&slots.taken, slots.count - slots.taken[at]);
    let first = slots.first.as_ref().map_or([0; 2], |first| [first[at], first[other]]);
    let begins = match at == other {
        true => [Some(0), Some(last)],
        false => [first[1].checked_add(taken[other]), first[1].checked_sub(taken[at])],
    };
    begins.into_iter().flatten().filter(move |&begin| begin <= last && begin != first[0])
}

/// Gives each layer a gap when it comes, in the order of launches.
fn by_rule(layers: usize, order: &[usize], slots: &Slots, fit: Fit) -> Option<Vec<u64>> {
    let mut first = vec![0; order.len()];
    let (mut held, mut next, mut last_end): (Vec<Held>, _, _) = (Vec::new(), 0, 0);
    for layer in (0..ITERATIONS).flat_map(|_| 0..layers) {
        while held.iter().all(|held| held.position != next)
            && let Some(begin) = gap(&held, slots.taken[next], slots.count, last_end, fit.of(next))
        {
            first[next] = begin;
            last_end = begin + slots.taken[next];
            held.push(Held { position: next, begin, end: last_end });
            held.sort_unstable_by_key(|held| held.begin);
            next = (next + 1) % order.len();
        }
        if let Some(position) = order.iter().position(|&streamed| streamed == layer) {
            let at = held.iter().position(|held| held.position == position)?;
            held.remove(at);
        }
    }
    Some(first)
}

/// Returns the start of a free range of `objects` objects in memory of `count` objects.
fn gap(held: &[Held], objects: u64, count: u64, last_end: u64, fit: Fit) -> Option<u64> {
    let begins = iter::once(0).chain(held.iter().map(|held| held.end));
    let ends = held.iter().map(|held| held.begin).chain([count]);
    let mut gaps = begins.zip(ends).filter(|(begin, end)| end - begin >= objects);
    match fit {
        Fit::First | Fit::Ends => gaps.next().map(|(begin, _)| begin),
        Fit::Last => gaps.last().map(|(_, end)| end - objects),
        Fit::Best => gaps.min_by_key(|(begin, end)| end - begin).map(|(begin, _)| begin),
        Fit::Next => {
            let after = gaps.clone().map(|(begin, end)| (begin.max(last_end), end));
            let mut after = after.filter(|&(begin, end)| begin + objects <= end);
            after.next().or_else(|| gaps.next()).map(|(begin, _)| begin)
        }
    }
}
