//! Random numbers that are the same in every run.

#![expect(clippy::indexing_slicing, reason = "the number is below the length of the array")]

/// A random number generator (xorshift, with a product to spread the seeds: Marsaglia, "Xorshift
/// RNGs", 2003).
#[derive(Debug)]
pub(super) struct Chance(u64);

impl Chance {
    /// Creates a generator. The same seed gives the same numbers.
    pub(super) const fn new(seed: u64) -> Self {
        let state = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self(if state == 0 { 1 } else { state })
    }

    const fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `count`, or 0 if `count` is 0.
    pub(super) const fn below(&mut self, count: u64) -> u64 {
        // The upper bits are more random.
        match (self.bits() >> 32).checked_rem(count) {
            Some(number) => number,
            None => 0,
        }
    }

    /// True in `times` per cent of all cases.
    pub(super) const fn percent(&mut self, times: u64) -> bool {
        self.below(100) < times
    }

    /// One of the values, each with the same probability.
    pub(super) const fn one_of<T: Copy, const N: usize>(&mut self, these: &[T; N]) -> T {
        these[self.below(N as u64) as usize]
    }

    /// A factor from 1 to `most`, or its inverse.
    pub(super) fn factor(&mut self, most: f32) -> f32 {
        let factor = 1.0 + (most - 1.0) * (self.below(1 << 20) as f32 / (1 << 20) as f32);
        if self.below(2) == 0 { factor } else { 1.0 / factor }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected numbers were computed separately, by the definition of the generator.
    #[test]
    fn numbers_are_the_same_in_every_run() {
        for (seed, expected) in [
            (0, [630, 353, 201, 580]),
            (7, [560, 460, 393, 800]),
            // Without the special case, its state would be zero.
            (u64::MAX, [0, 102, 399, 667]),
        ] {
            let mut chance = Chance::new(seed);
            assert_eq!([(); 4].map(|()| chance.below(1000)), expected, "{seed}");
        }
    }

    #[test]
    fn numbers_are_spread() {
        let counts = |seed| {
            let mut chance = Chance::new(seed);
            let mut counts = [0; 6];
            for _ in 0..600 {
                counts[chance.one_of(&[0, 1, 2, 3, 4, 5])] += 1;
            }
            counts
        };
        for seed in 0..20 {
            assert!(counts(seed).iter().all(|count| (60..140).contains(count)), "{seed}");
            assert_ne!(counts(seed), counts(seed + 1));
        }
        assert!(counts(u64::MAX).iter().all(|&count| count > 0));
    }

    #[test]
    fn factors_go_either_way() {
        let mut chance = Chance::new(7);
        let factors: [f32; 100] = core::array::from_fn(|_| chance.factor(1.5));
        assert!(factors.iter().all(|factor| (0.66..=1.5).contains(factor)));
        assert!((30..70).contains(&factors.iter().filter(|&&factor| factor > 1.0).count()));
    }
}
