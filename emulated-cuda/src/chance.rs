//! What happens at random: delays and faults, by seed.

use std::cell::Cell;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// One task in so many is delayed.
const DELAYED: u64 = 8;
/// The longest delay.
const MOST_DELAY_NS: u64 = 200_000;

/// What a thread of the host has asked for. Streams that it creates are delayed by this seed,
/// and its calls fail by it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Settings {
    /// No delays without one.
    pub(crate) seed: Option<u64>,
    /// One call in so many is refused; 0 for none.
    pub(crate) refused: u64,
    /// One task in so many fails on the device; 0 for none.
    pub(crate) lost: u64,
}

/// The seed of threads that have set nothing of their own; zero for none.
static SEED: LazyLock<AtomicU64> = LazyLock::new(|| {
    let seed = std::env::var("EMULATED_CUDA_SEED").ok().and_then(|text| text.parse().ok());
    AtomicU64::new(seed.unwrap_or(0))
});

/// Delays the work of all streams from now on, by the seed of the environment or else by 1.
pub(crate) fn delay_all() {
    // A seed that is set stays.
    let _ = SEED.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst);
}

thread_local! {
    static OF_THREAD: Cell<Option<Settings>> = const { Cell::new(None) };
    static CALLS: Cell<Chance> = const { Cell::new(Chance(0)) };
}

impl Settings {
    pub(crate) fn now() -> Self {
        OF_THREAD.get().unwrap_or_else(|| {
            let seed = SEED.load(Ordering::SeqCst);
            Self { seed: (seed > 0).then_some(seed), ..Self::default() }
        })
    }

    pub(crate) fn set(self) {
        OF_THREAD.set(Some(self));
        CALLS.set(Chance::new(self.seed.unwrap_or(0)));
    }
}

/// Whether a call of this thread is to be refused.
pub(crate) fn refuses() -> bool {
    let one_in = Settings::now().refused;
    let mut chance = CALLS.get();
    let strikes = chance.strikes(one_in);
    CALLS.set(chance);
    strikes
}

/// Numbers at random: `SplitMix64` (Steele, Lea, Flood, OOPSLA 2014).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Whether something that happens once in so many times happens now.
    pub(crate) fn strikes(&mut self, one_in: u64) -> bool {
        one_in > 0 && self.next().is_multiple_of(one_in)
    }

    /// Sleeps for a while, now and then.
    pub(crate) fn delay(&mut self) {
        if self.strikes(DELAYED) {
            std::thread::sleep(Duration::from_nanos(self.next() % MOST_DELAY_NS));
        }
    }
}
