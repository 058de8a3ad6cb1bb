//! The links between the host and the device, as slow as the environment says.

use crate::Outcome;
use crate::driver::setting;
use std::time::{Duration, Instant};

/// Before this, the end of a wait is slept for; then it is waited for awake, since to sleep takes
/// longer than one asks for.
const AWAKE: Duration = Duration::from_micros(200);

/// One direction. Streams that copy the same way share no link: the backend has one for each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    /// 0 for a link as fast as the host copies.
    bytes_per_s: u64,
    latency_ns: u64,
}

impl Link {
    /// The link whose speed a variable gives.
    pub(crate) fn of(speed: &str) -> Self {
        Self {
            bytes_per_s: setting(speed, 0),
            latency_ns: setting("EMULATED_CUDA_COPY_LATENCY_NS", 0),
        }
    }

    /// Copies, and returns no sooner than the link would have carried so many bytes.
    pub(crate) fn carry(&self, bytes: u64, copy: impl FnOnce() -> Outcome) -> Outcome {
        let start = Instant::now();
        copy()?;
        let end = start + self.duration(bytes);
        std::thread::sleep(end.saturating_duration_since(Instant::now()).saturating_sub(AWAKE));
        while Instant::now() < end {
            std::hint::spin_loop();
        }
        Ok(())
    }

    fn duration(self, bytes: u64) -> Duration {
        let Self { bytes_per_s, latency_ns } = self;
        let copy_ns = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_s.max(1));
        let copy_ns = if bytes_per_s == 0 { 0 } else { copy_ns };
        Duration::from_nanos(latency_ns.saturating_add(u64::try_from(copy_ns).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_takes_the_latency_and_its_bytes_over_the_speed() {
        let link = Link { bytes_per_s: 2_000_000_000, latency_ns: 500 };
        assert_eq!(link.duration(1000), Duration::from_nanos(1000));
        assert_eq!(link.duration(0), Duration::from_nanos(500));
        let unlimited = Link { bytes_per_s: 0, latency_ns: 0 };
        assert_eq!(unlimited.duration(u64::MAX), Duration::ZERO);
        // A copy that would take for ever does so without an overflow.
        let slow = Link { bytes_per_s: 1, latency_ns: u64::MAX };
        assert_eq!(slow.duration(u64::MAX), Duration::from_nanos(u64::MAX));
    }

    #[test]
    fn what_fails_is_not_waited_for() {
        let link = Link { bytes_per_s: 1, latency_ns: u64::MAX };
        let error = cudarc::driver::sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
        assert_eq!(link.carry(1, || Err(error)), Err(error));
    }
}
