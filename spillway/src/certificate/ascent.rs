//! Gradient ascent on the sum of the prices, which is concave.

use super::point::Point;
use super::relaxed::Relaxed;

/// Lengths of the first and the last step, relative to usual prices.
const FIRST_STEP: f64 = 0.3;
const LAST_STEP: f64 = 0.001;

/// Decay in each step of the average direction and of the average size of past changes.
const INERTIA: f64 = 0.9;
const MEMORY: f64 = 0.99;

/// The least size, which keeps divisors above zero.
const LEAST: f64 = 1e-9;

/// Climbs in a number of steps, each at most as long as the step before. Every price moves about equally far,
/// no matter how strongly the sum depends on it. `byte_ns` is the usual price of a byte. Returns the best
/// prices on the way.
pub(super) fn climb(
    relaxed: &mut Relaxed,
    start: Vec<Point>,
    byte_ns: f64,
    steps: u32,
) -> Vec<Point> {
    let mut at = start;
    let mut change = at.clone();
    let mut trend = vec![Trend::default(); at.len()];
    let (mut best_ns, mut best) = (f64::NEG_INFINITY, at.clone());
    for step in 0..steps {
        let sum_ns = relaxed.sum_ns(&at, &mut change);
        if sum_ns > best_ns {
            (best_ns, best) = (sum_ns, at.clone());
        }
        let share = f64::from(step) / f64::from(steps);
        let rate = FIRST_STEP * (LAST_STEP / FIRST_STEP).powf(share);
        // The averages start at zero, so early values are too small by this factor.
        let warm = |left: f64| 1.0 - left.powf(f64::from(step) + 1.0);
        let warmth = [warm(INERTIA), warm(MEMORY)];
        for ((point, change), trend) in at.iter_mut().zip(&change).zip(&mut trend) {
            trend.follow(change, byte_ns);
            trend.step(point, byte_ns, rate, warmth);
        }
    }
    best
}

/// Averages of the past changes of the sum with the prices of an interval.
#[derive(Clone, Copy, Default)]
struct Trend {
    memory: f64,
    host: f64,
    shares: [f64; 3],
    memory_size: f64,
    host_size: f64,
    shares_size: f64,
}

impl Trend {
    fn follow(&mut self, change: &Point, byte_ns: f64) {
        let average =
            |past: &mut f64, now: f64, left: f64| *past = left * *past + (1.0 - left) * now;
        let memory = change.memory * byte_ns;
        average(&mut self.memory, memory, INERTIA);
        average(&mut self.memory_size, memory * memory, MEMORY);
        let host = change.host * byte_ns;
        average(&mut self.host, host, INERTIA);
        average(&mut self.host_size, host * host, MEMORY);
        // Shares add up to one, so only their differences count.
        let mean = change.shares.iter().sum::<f64>() / 3.0;
        let shares = change.shares.map(|share| share - mean);
        for (past, now) in self.shares.iter_mut().zip(shares) {
            average(past, now, INERTIA);
        }
        let size = shares.iter().map(|share| share * share).sum();
        average(&mut self.shares_size, size, MEMORY);
    }

    fn step(&self, point: &mut Point, byte_ns: f64, rate: f64, [inertia, memory]: [f64; 2]) {
        let length = |size: f64| rate / (inertia * ((size / memory).sqrt() + LEAST));
        let moved = point.memory + byte_ns * self.memory * length(self.memory_size);
        point.memory = moved.max(0.0);
        let moved = point.host + byte_ns * self.host * length(self.host_size);
        point.host = moved.max(0.0);
        for (share, trend) in point.shares.iter_mut().zip(self.shares) {
            *share += trend * length(self.shares_size);
        }
        project(&mut point.shares);
    }
}

/// Moves to the nearest shares that are at least 0 and add up to 1.
fn project(shares: &mut [f64; 3]) {
    let mut sorted = *shares;
    sorted.sort_unstable_by(|one, other| other.total_cmp(one));
    let (mut sum, mut shift) = (0.0, 0.0);
    for (count, share) in [1.0, 2.0, 3.0].into_iter().zip(sorted) {
        sum += share;
        let candidate = (sum - 1.0) / count;
        if share > candidate {
            shift = candidate;
        }
    }
    shares.iter_mut().for_each(|share| *share = (*share - shift).max(0.0));
}
