//! How many more mappings this process may have.

use std::fs;

/// The mappings of this process, and the most that the system allows (`vm.max_map_count`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappingLimit {
    /// The mappings that the process has now.
    pub used: u64,
    /// The most mappings that the process may have.
    pub most: u64,
}

impl MappingLimit {
    /// Mappings that stay free for threads, libraries and the allocator. They end the process if
    /// they get none.
    pub const KEPT: u64 = 4096;

    /// Reads both numbers from the system. `None` if the system does not report them.
    #[must_use]
    pub fn read() -> Option<Self> {
        let most = fs::read_to_string("/proc/sys/vm/max_map_count").ok()?;
        let used = fs::read("/proc/self/maps").ok()?;
        let used = used.iter().filter(|&&byte| byte == b'\n').count() as u64;
        Some(Self { used, most: most.trim().parse().ok()? })
    }

    /// The mappings that a device may make.
    #[must_use]
    pub const fn left(&self) -> u64 {
        self.most.saturating_sub(self.used).saturating_sub(Self::KEPT)
    }
}
