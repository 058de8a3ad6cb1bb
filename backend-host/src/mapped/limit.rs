//! How many mappings this process may still have.

use std::fs;

/// Mappings of this process, and how many the system allows (`vm.max_map_count`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappingLimit {
    /// Those that it has now.
    pub used: u64,
    /// The most that it may have.
    pub most: u64,
}

impl MappingLimit {
    /// Mappings that are left to threads, libraries and the allocator, which end the process where
    /// they get none.
    pub const KEPT: u64 = 4096;

    /// Reads both from the system. `None` where it does not say.
    #[must_use]
    pub fn read() -> Option<Self> {
        let most = fs::read_to_string("/proc/sys/vm/max_map_count").ok()?;
        let used = fs::read("/proc/self/maps").ok()?;
        let used = used.iter().filter(|&&byte| byte == b'\n').count() as u64;
        Some(Self { used, most: most.trim().parse().ok()? })
    }

    /// How many a device may make.
    #[must_use]
    pub const fn left(&self) -> u64 {
        self.most.saturating_sub(self.used).saturating_sub(Self::KEPT)
    }
}
