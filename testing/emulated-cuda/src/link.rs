//! The links between the host and the device, with the speeds that the settings give.

use crate::clock::Clock;
use crate::outcome::Outcome;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A direction counts as in use for so long after a copy: the next one is enqueued already, but its
/// thread may be late.
const IN_USE: Duration = Duration::from_millis(1);

/// What the copies of one direction take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Speed {
    /// 0 for a link as fast as the host copies.
    pub(crate) bytes_per_s: u64,
    /// While the other direction is in use as well; 0 for the same speed.
    pub(crate) both_bytes_per_s: u64,
    pub(crate) latency_ns: u64,
}

/// One direction. Copies in several streams do not share its speed: the backend has one stream
/// for each direction.
#[derive(Debug)]
pub(crate) struct Link {
    speed: Speed,
    uses: Mutex<Uses>,
}

#[derive(Debug, Default)]
struct Uses {
    /// When the last copy ends.
    end: Option<Instant>,
    /// Whether the host is busy with it, perhaps late.
    is_under_way: bool,
}

impl Link {
    pub(crate) fn new(speed: Speed) -> Self {
        Self { speed, uses: Mutex::default() }
    }

    fn uses(&self) -> MutexGuard<'_, Uses> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_in_use(&self, at: Instant) -> bool {
        let Uses { end, is_under_way } = *self.uses();
        is_under_way || end.is_some_and(|end| at < end + IN_USE)
    }

    /// Copies some bytes, in the time that the link takes for them beside the other direction.
    pub(crate) fn transfer(
        &self,
        other: &Self,
        bytes: u64,
        clock: &mut Clock,
        copy: impl FnOnce() -> Outcome,
    ) -> Outcome {
        let start = clock.now();
        let end = self.speed.duration(bytes, other.is_in_use(start)).map(|takes| start + takes);
        *self.uses() = Uses { end, is_under_way: true };
        let copied = copy();
        self.uses().is_under_way = false;
        copied?;
        if let Some(end) = end {
            clock.advance_to(end);
        }
        Ok(())
    }
}

impl Speed {
    /// Returns `None` for a link as fast as the host.
    fn duration(self, bytes: u64, both_in_use: bool) -> Option<Duration> {
        let Self { mut bytes_per_s, both_bytes_per_s, latency_ns } = self;
        if both_in_use && both_bytes_per_s > 0 {
            bytes_per_s = both_bytes_per_s;
        }
        let copy_ns = (u128::from(bytes) * 1_000_000_000).checked_div(bytes_per_s.into())?;
        let copy_ns = u64::try_from(copy_ns).unwrap_or(u64::MAX);
        Some(Duration::from_nanos(latency_ns.saturating_add(copy_ns)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_takes_the_latency_and_its_bytes_over_the_speed() {
        let fast = speed(2_000_000_000, 500);
        assert_eq!(fast.duration(1000, false), Some(Duration::from_nanos(1000)));
        assert_eq!(fast.duration(0, true), Some(Duration::from_nanos(500)));
        assert_eq!(speed(0, 0).duration(u64::MAX, true), None);
        // A copy that would take centuries does so without an overflow.
        let slow = speed(1, u64::MAX);
        assert_eq!(slow.duration(u64::MAX, false), Some(Duration::from_nanos(u64::MAX)));
        let [link, other] = [(); 2].map(|()| Link::new(fast));
        let start = Instant::now();
        let mut clock = Clock::new(start, 1);
        assert_eq!(link.transfer(&other, 1000, &mut clock, || Ok(())), Ok(()));
        assert_eq!(clock.now(), start + Duration::from_nanos(1000));
    }

    fn speed(bytes_per_s: u64, latency_ns: u64) -> Speed {
        Speed { bytes_per_s, both_bytes_per_s: 0, latency_ns }
    }

    #[test]
    fn a_copy_is_slower_while_the_other_direction_is_in_use() {
        let speed = Speed { both_bytes_per_s: 500_000_000, ..speed(1_000_000_000, 0) };
        let [up, down] = [(); 2].map(|()| Link::new(speed));
        let start = Instant::now();
        let copy = |link: &Link, other: &Link, at: Instant| {
            let mut clock = Clock::new(at, 1);
            link.transfer(other, 1000, &mut clock, || Ok(())).map(|()| clock.now() - at)
        };
        let micros = |micros| Ok(Duration::from_micros(micros));
        assert_eq!(copy(&up, &down, start), micros(1));
        assert_eq!(copy(&down, &up, start), micros(2));
        assert_eq!(copy(&up, &down, start + 2 * IN_USE), micros(1), "long after");
    }

    #[test]
    fn what_fails_takes_no_time() {
        let [link, other] = [(); 2].map(|()| Link::new(speed(1, 1)));
        let error = cudarc::driver::sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
        let start = Instant::now();
        let mut clock = Clock::new(start, 1);
        assert_eq!(link.transfer(&other, 1, &mut clock, || Err(error)), Err(error));
        assert_eq!(clock.now(), start);
    }
}
