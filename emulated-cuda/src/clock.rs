//! The time of the device. It passes as the host's does, but work lasts as long as the device
//! takes for it, and not as long as a busy host: so times between events do not depend on what
//! else the host does, as long as work is enqueued ahead.
//!
//! Each thread that does work has its own point of time, and no work begins before it is
//! enqueued or before what it waits for has ended. Work that is done late keeps the time at which
//! it should have been done. A caller that waits for it is then as late, which is taken off
//! the times of what it enqueues afterwards.

use std::cell::Cell;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// To sleep for less takes longer than one asks for.
const LEAST_SLEEP: Duration = Duration::from_micros(100);
/// How far the timer moves when it is read, at least; else by this part of what it has moved.
const LEAST_TICK: Duration = Duration::from_nanos(50);
const TICK_PART: u32 = 2048;

/// When the timer stood at zero.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

thread_local! {
    static NOW: Cell<Option<Instant>> = const { Cell::new(None) };
    /// When the work of this thread began that is under way.
    static SINCE: Cell<Option<Instant>> = const { Cell::new(None) };
    /// How much later than it should be it is for this thread, as a caller.
    static LATE: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// The time of the host, once the timer has stood at zero: no work begins before that.
fn host_now() -> Instant {
    LazyLock::force(&START);
    Instant::now()
}

/// The time of this thread, as a caller.
pub(crate) fn caller_now() -> Instant {
    let now = host_now();
    now.checked_sub(LATE.get()).unwrap_or(now)
}

/// Lets this thread, as a caller, wait for something; `wait` returns when that was to be done.
pub(crate) fn caller_waits(wait: impl FnOnce() -> Option<Instant>) {
    let before = caller_now();
    let should = wait().map_or(before, |end| end.max(before));
    LATE.set(Instant::now().saturating_duration_since(should));
}

/// The time of this thread's work.
pub(crate) fn now() -> Instant {
    NOW.get().unwrap_or_else(host_now)
}

/// What this thread does next begins at a time, or later.
pub(crate) fn reach(time: Instant) {
    NOW.set(Some(NOW.get().map_or(time, |now| now.max(time))));
}

/// Does some work, which takes as long as it says with [`reach`] and [`timer_ns`], or else as the
/// host does; returns no sooner than that.
pub(crate) fn work<T>(work: impl FnOnce() -> T) -> T {
    let start = now();
    let began = Instant::now();
    reach(start);
    SINCE.set(Some(start));
    let done = work();
    if now() == start {
        reach(start + began.elapsed());
    }
    let ahead = now().saturating_duration_since(Instant::now());
    if ahead >= LEAST_SLEEP {
        std::thread::sleep(ahead);
    }
    done
}

/// The device's timer, in nanoseconds, which moves when it is read.
pub(crate) fn timer_ns() -> u64 {
    let start = *START;
    let now = now();
    let passed = SINCE.get().map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
    reach(now + LEAST_TICK.max(passed / TICK_PART));
    now.saturating_duration_since(start).as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_takes_what_it_says() {
        let start = now();
        reach(start);
        work(|| reach(start + Duration::from_micros(300)));
        assert_eq!(now(), start + Duration::from_micros(300));
        assert!(Instant::now() >= now(), "it has ended before its time");
        // What is waited for and has long ended changes nothing.
        reach(start);
        assert_eq!(now(), start + Duration::from_micros(300));
        // On the host's clock, this is over already.
        work(|| std::thread::sleep(Duration::from_micros(10)));
        assert!(now() >= start + Duration::from_micros(310));
    }

    #[test]
    fn a_caller_is_not_held_up_by_work_that_is_done_late() {
        let before = caller_now();
        let end = before + Duration::from_millis(5);
        caller_waits(|| {
            std::thread::sleep(Duration::from_millis(50));
            Some(end)
        });
        let after = caller_now();
        assert!(after >= end, "it goes on before what it waits for");
        assert!(LATE.get() >= Duration::from_millis(45), "{:?}", LATE.get());
        // What has long ended costs nothing, and what ends later than now makes nobody early.
        caller_waits(|| Some(before));
        assert!(caller_now() >= after && LATE.get() >= Duration::from_millis(45));
        caller_waits(|| Some(Instant::now() + Duration::from_secs(1)));
        assert_eq!(LATE.get(), Duration::ZERO);
    }

    #[test]
    fn the_timer_moves_by_being_read() {
        let start = now();
        reach(start);
        work(|| {
            let (first, mut reads) = (timer_ns(), 1u32);
            while timer_ns() - first < 10_000_000 {
                reads += 1;
            }
            assert!(reads < 30_000, "{reads}");
        });
        let taken = now() - start;
        assert!(taken >= Duration::from_millis(10), "{taken:?}");
        assert!(taken < Duration::from_micros(10_011), "{taken:?}");
    }
}
