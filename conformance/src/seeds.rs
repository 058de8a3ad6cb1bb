//! Random values that are the same on every machine, and settings of long tests.

use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// For each case, the most cases that a test may skip.
const SKIPPED: u32 = 8;

/// Draws the same values for the same seed.
#[must_use]
pub fn runner(seed: u64) -> TestRunner {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    TestRunner::new_with_rng(Config::default(), rng)
}

/// The settings of a random family with so many cases. `SPILLWAY_CASES_PERCENT` scales their number.
/// `PROPTEST_CASES` sets one number for all families instead, even for families whose cases take seconds.
#[must_use]
pub fn config(cases: u32) -> Config {
    let config = Config::with_cases(u32::try_from(scaled(cases.into())).unwrap_or(u32::MAX).max(1));
    // Families that skip cases skip more of them if there are more cases.
    let most_skipped = config.cases.saturating_mul(SKIPPED).max(config.max_global_rejects);
    Config { max_global_rejects: most_skipped, ..config }
}

/// Whether a test that goes through many works takes the work at a place: as many in a hundred as
/// `SPILLWAY_CASES_PERCENT` says, at even distances.
#[must_use]
pub fn takes(at: u64) -> bool {
    scaled(at.saturating_add(1)) > scaled(at)
}

/// So many cases, scaled by `SPILLWAY_CASES_PERCENT`.
fn scaled(cases: u64) -> u64 {
    cases.saturating_mul(setting("SPILLWAY_CASES_PERCENT", 100)) / 100
}

/// The number in an environment variable, or a default.
///
/// # Panics
/// If the variable holds anything but a number.
#[must_use]
pub fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| {
        text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not {text:?}"))
    })
}
