//! Fault injection: delays and failures at random, by seed.

use std::time::Duration;

/// One task in this many is delayed.
const DELAYED_ONE_IN: u64 = 8;
/// The upper bound of a delay.
const MAX_DELAY_NS: u64 = 200_000;

/// The faults that a thread of the host has asked for, for its calls and for the streams that it
/// creates.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    /// Delays work at random. `None` for no delays.
    pub(crate) seed: Option<u64>,
    /// One call in this many is refused; 0 for none.
    pub(crate) refused_one_in: u64,
    /// One task in this many fails on the device; 0 for none.
    pub(crate) failed_one_in: u64,
}

/// A generator of random numbers: `SplitMix64` (Steele, Lea, Flood, OOPSLA 2014).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Returns true once in this many times, and never for 0.
    pub(crate) fn one_in(&mut self, times: u64) -> bool {
        times > 0 && self.next().is_multiple_of(times)
    }

    /// Sleeps for a random time, in one call of [`DELAYED_ONE_IN`].
    pub(crate) fn delay(&mut self) {
        if self.one_in(DELAYED_ONE_IN) {
            std::thread::sleep(Duration::from_nanos(self.next() % MAX_DELAY_NS));
        }
    }
}
