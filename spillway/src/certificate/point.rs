//! The prices of an interval, and the resources that have them.

/// The resources of an interval: shares of its time, and memory.
pub(super) const UPLOAD: usize = 0;
pub(super) const DOWNLOAD: usize = 1;
pub(super) const LAUNCHES: usize = 2;
pub(super) const MEMORY: usize = 3;

/// Prices of an interval, or the derivatives of the sum by these prices.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Point {
    /// The price of memory, in ns per byte.
    pub(super) memory: f64,
    /// The price of host memory, in ns per byte.
    pub(super) host: f64,
    /// Shares of the time of an interval: upload, download, launches.
    pub(super) shares: [f64; 3],
}

impl Point {
    pub(super) fn add(&mut self, other: &Self) {
        self.memory += other.memory;
        self.host += other.host;
        self.shares.iter_mut().zip(other.shares).for_each(|(sum, share)| *sum += share);
    }
}
