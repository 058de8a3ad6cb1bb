//! Memory pools. They keep nothing back: what is freed is freed at once.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a pool was told to keep, which it only remembers.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    release_threshold_bytes: AtomicU64,
}

impl Pool {
    pub(crate) fn release_threshold_bytes(&self) -> u64 {
        self.release_threshold_bytes.load(Ordering::SeqCst)
    }

    pub(crate) fn set_release_threshold(&self, bytes: u64) {
        self.release_threshold_bytes.store(bytes, Ordering::SeqCst);
    }
}
