//! The links between the host and the device, with the speeds that the settings give.

use crate::clock::Clock;
use crate::outcome::Outcome;
use std::time::Duration;

/// One direction. Copies in several streams do not share its speed: the backend has one stream
/// for each direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    /// 0 for a link as fast as the host copies.
    pub(crate) bytes_per_s: u64,
    pub(crate) latency_ns: u64,
}

impl Link {
    /// Copies some bytes, in the time that the link takes for them.
    pub(crate) fn transfer(
        self,
        bytes: u64,
        clock: &mut Clock,
        copy: impl FnOnce() -> Outcome,
    ) -> Outcome {
        let start = clock.now();
        copy()?;
        if let Some(duration) = self.duration(bytes) {
            clock.advance_to(start + duration);
        }
        Ok(())
    }

    /// Returns `None` for a link as fast as the host.
    fn duration(self, bytes: u64) -> Option<Duration> {
        let Self { bytes_per_s, latency_ns } = self;
        let copy_ns = (u128::from(bytes) * 1_000_000_000).checked_div(bytes_per_s.into())?;
        let copy_ns = u64::try_from(copy_ns).unwrap_or(u64::MAX);
        Some(Duration::from_nanos(latency_ns.saturating_add(copy_ns)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_copy_takes_the_latency_and_its_bytes_over_the_speed() {
        let link = Link { bytes_per_s: 2_000_000_000, latency_ns: 500 };
        assert_eq!(link.duration(1000), Some(Duration::from_nanos(1000)));
        assert_eq!(link.duration(0), Some(Duration::from_nanos(500)));
        assert_eq!(Link { bytes_per_s: 0, latency_ns: 0 }.duration(u64::MAX), None);
        // A copy that would take centuries does so without an overflow.
        let slow = Link { bytes_per_s: 1, latency_ns: u64::MAX };
        assert_eq!(slow.duration(u64::MAX), Some(Duration::from_nanos(u64::MAX)));
        let start = Instant::now();
        let mut clock = Clock::new(start);
        assert_eq!(link.transfer(1000, &mut clock, || Ok(())), Ok(()));
        assert_eq!(clock.now(), start + Duration::from_nanos(1000));
    }

    #[test]
    fn what_fails_takes_no_time() {
        let link = Link { bytes_per_s: 1, latency_ns: 1 };
        let error = cudarc::driver::sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
        let start = Instant::now();
        let mut clock = Clock::new(start);
        assert_eq!(link.transfer(1, &mut clock, || Err(error)), Err(error));
        assert_eq!(clock.now(), start);
    }
}
