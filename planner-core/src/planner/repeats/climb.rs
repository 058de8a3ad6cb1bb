//! The search for the best price of compute.

#![expect(clippy::indexing_slicing, reason = "prices are below `PRICES`")]

use super::judged::Rank;

/// Prices of a nanosecond of compute, if a nanosecond of a link under full pressure costs 255. They
/// span this number of octaves above the least price, with [`RUNGS`] in each.
const OCTAVES: usize = 12;
const LEAST_PRICE: u64 = 16;

/// Prices within an octave, in thousandths of the first. Closer prices usually lead to the same
/// lists.
const RUNGS: [u64; 16] = [
    1000, 1044, 1091, 1139, 1189, 1242, 1297, 1354, 1414, 1477, 1542, 1610, 1682, 1756, 1834, 1915,
];

/// The prices that are tried first. Costs may have several minima, and a good price near each.
const COARSE: [usize; 9] = [132, 100, 68, 116, 148, 124, 140, 36, 164];

/// The number of prices that a round usually tries at most.
pub(super) const CLIMBED: usize = 22;

/// The first distance between the best price so far and the next prices to try: an octave.
const STRIDE: usize = RUNGS.len();

/// The number of prices.
const PRICES: usize = OCTAVES * RUNGS.len();

/// A search for the price with the best list, over the whole scale: it tries prices one stride
/// below and above the best price so far, and halves the stride if neither is better.
pub(super) struct Climb {
    is_tried: [bool; PRICES],
    /// The best price, and the rank of its list.
    pub(super) best: (usize, Rank),
    stride: usize,
}

impl Climb {
    pub(super) const fn new() -> Self {
        Self { is_tried: [false; PRICES], best: (COARSE[0], (u64::MAX, (0, 0))), stride: STRIDE }
    }

    /// The next price to try; `None` after the last.
    pub(super) fn next(&mut self) -> Option<usize> {
        if let Some(&next) = COARSE.iter().find(|&&at| !self.is_tried[at]) {
            return Some(next);
        }
        let (best, _) = self.best;
        while self.stride > 0 {
            let near = [best.checked_sub(self.stride), best.checked_add(self.stride)];
            let untried = |at: &usize| self.is_tried.get(*at) == Some(&false);
            if let Some(next) = near.into_iter().flatten().find(untried) {
                return Some(next);
            }
            self.stride /= 2;
        }
        None
    }

    /// Whether all of [`COARSE`] have been tried.
    pub(super) fn tried_coarse(&self) -> bool {
        COARSE.iter().all(|&at| self.is_tried[at])
    }

    /// Records the rank of a price's list. Keeps the price if its rank is less, or equal with
    /// cheaper compute.
    pub(super) fn record(&mut self, at: usize, cost: Rank) {
        self.is_tried[at] = true;
        let (best, least) = self.best;
        if (cost, at) <= (least, best) {
            self.best = (at, cost);
        }
    }

    /// The price of a nanosecond of compute.
    pub(super) fn price(at: usize) -> u64 {
        (LEAST_PRICE << (at / STRIDE)).saturating_mul(RUNGS[at % STRIDE]) / 1000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The prices that are tried if ranks grow with the distance from the best price.
    fn tried(best: u64) -> heapless::Vec<u64, 32> {
        let mut climb = Climb::new();
        let next = || {
            let at = climb.next()?;
            let price = Climb::price(at);
            climb.record(at, (0, (price.max(best) * 1000 / price.min(best), 0)));
            Some(price)
        };
        core::iter::from_fn(next).collect()
    }

    #[test]
    fn prices_find_their_scale() {
        for best in [16, 20, 73, 300, 1200, 4700, 16_000, 60_000] {
            let tried = tried(best);
            let nearest = tried.iter().map(|&price| price.abs_diff(best)).min().unwrap();
            assert!(nearest * 20 <= best, "{best}: {tried:?}");
            assert!(tried.len() <= CLIMBED, "{best}: {tried:?}");
        }
    }

    #[test]
    fn if_all_prices_cost_the_same_compute_is_cheap() {
        let mut climb = Climb::new();
        while let Some(at) = climb.next() {
            climb.record(at, (0, (7, 7)));
        }
        assert_eq!(Climb::price(climb.best.0), LEAST_PRICE);
    }
}
