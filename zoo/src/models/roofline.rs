//! The time of an op on a device described by two speeds.

/// The launch time of an op, as in the published graphs used for comparison.
const LAUNCH_NS: u128 = 5_000;

/// A roofline: arithmetic or memory bounds an op, whichever takes longer. A speed of 0 does not bound it.
///
/// The defaults, 14 TFLOP/s and 800 GB/s, are a V100's single-precision peak (PCIe version)
/// and the part of its nominal 900 GB/s that a kernel reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Roofline {
    /// Thousandths of a TFLOP/s, which are operations per nanosecond.
    pub(super) milli_tflops: u64,
    /// Thousandths of a GB/s, which are bytes per microsecond.
    pub(super) milli_gb_s: u64,
}

/// The speeds of the device, and of the host if ops may run there. A host without an arithmetic speed runs
/// only updates.
#[derive(Clone, Copy, Debug)]
pub(super) struct Speeds {
    pub(super) device: Roofline,
    pub(super) host: Option<Roofline>,
}

impl Roofline {
    /// `5000 + max(flops / (1000 tflops), bytes / memory_gb_s)`, each division rounded down.
    /// At most 2^64 - 1.
    pub(super) fn time_ns(self, flops: u128, bytes: u128) -> u64 {
        let compute_ns = flops.checked_div(u128::from(self.milli_tflops)).unwrap_or(0);
        let memory_ns = bytes.saturating_mul(1_000) / u128::from(self.milli_gb_s);
        let time_ns = LAUNCH_NS.saturating_add(compute_ns.max(memory_ns));
        u64::try_from(time_ns).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slower_side_decides_and_is_rounded_down() {
        let v100 = Roofline { milli_tflops: 14_000, milli_gb_s: 800_000 };
        assert_eq!(v100.time_ns(0, 0), 5_000);
        assert_eq!(v100.time_ns(27_999, 799), 5_001);
        assert_eq!(v100.time_ns(0, 1_600), 5_002);
        assert_eq!(v100.time_ns(u128::MAX, u128::MAX), u64::MAX);
        let slow = Roofline { milli_tflops: 1, milli_gb_s: 500 };
        assert_eq!(slow.time_ns(7, 1), 5_007);
        assert_eq!(slow.time_ns(0, 3), 5_006);
    }
}
