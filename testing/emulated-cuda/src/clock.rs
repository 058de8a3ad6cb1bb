//! The time of the device. It passes as the host's does, but work takes as long as the device
//! needs for it, and not as long as a busy host. So times between events do not depend on what
//! else the host does, if work is enqueued ahead.
//!
//! Each thread of the device has a [`Clock`]. No work begins before it is enqueued or before what
//! it waits for has ended. Work that the host does late keeps the time at which it was due. A
//! caller that waits for it is then as late; its [`CallerClock`] takes that off the times of what
//! it enqueues afterwards.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// A shorter sleep takes longer than asked for.
const MIN_SLEEP: Duration = Duration::from_micros(100);
/// How far the timer moves when it is read, at least; else by this part of what it has moved.
const MIN_TICK: Duration = Duration::from_nanos(50);
const TICK_PART: u32 = 2048;

/// The clock of a thread of the host. It lags behind the host's time.
#[derive(Debug)]
pub(crate) struct CallerClock {
    lag: Cell<Duration>,
}

impl CallerClock {
    pub(crate) const fn new() -> Self {
        Self { lag: Cell::new(Duration::ZERO) }
    }

    pub(crate) fn now(&self) -> Instant {
        let now = Instant::now();
        now.checked_sub(self.lag.get()).unwrap_or(now)
    }

    /// Blocks the caller in `wait`, which returns when its end was due. The caller goes on at
    /// that time.
    pub(crate) fn wait(&self, wait: impl FnOnce() -> Option<Instant>) {
        let before = self.now();
        let due = wait().map_or(before, |end| end.max(before));
        self.lag.set(Instant::now().saturating_duration_since(due));
    }
}

/// The clock of a thread that does the device's work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// When the device's timer stood at zero: before any work.
    zero: Instant,
    /// The nanoseconds between two ticks of the timer.
    tick_ns: u64,
    now: Instant,
    /// When the work began that is under way.
    work_start: Instant,
}

impl Clock {
    pub(crate) fn new(zero: Instant, tick_ns: u64) -> Self {
        Self { zero, tick_ns: tick_ns.max(1), now: zero, work_start: zero }
    }

    pub(crate) const fn now(&self) -> Instant {
        self.now
    }

    /// Moves forward to a time, if it is not later already.
    pub(crate) fn advance_to(&mut self, time: Instant) {
        self.now = self.now.max(time);
    }

    /// Does some work. It takes as long as it says with [`advance_to`](Self::advance_to) and
    /// [`timer_ns`](Self::timer_ns), or else as long as the host takes. Returns no sooner.
    pub(crate) fn time<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        let start = self.now;
        let began = Instant::now();
        self.work_start = start;
        let done = work(self);
        if self.now == start {
            self.advance_to(start + began.elapsed());
        }
        self.let_host_follow();
        done
    }

    /// Lets some time pass.
    pub(crate) fn spend(&mut self, duration: Duration) {
        self.advance_to(self.now + duration);
        self.let_host_follow();
    }

    fn let_host_follow(&self) {
        let ahead = self.now.saturating_duration_since(Instant::now());
        if ahead >= MIN_SLEEP {
            std::thread::sleep(ahead);
        }
    }

    /// Reads the device's timer, in nanoseconds: its last tick. Each read moves the time.
    pub(crate) fn timer_ns(&mut self) -> u64 {
        let now = self.now;
        let passed = now.saturating_duration_since(self.work_start);
        self.advance_to(now + MIN_TICK.max(passed / TICK_PART));
        let passed_ns = now.saturating_duration_since(self.zero).as_nanos() as u64;
        passed_ns - passed_ns % self.tick_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_takes_what_it_says() {
        let start = Instant::now();
        let mut clock = Clock::new(start, 1);
        clock.time(|clock| clock.advance_to(start + Duration::from_micros(300)));
        assert_eq!(clock.now(), start + Duration::from_micros(300));
        assert!(Instant::now() >= clock.now(), "it has ended before its time");
        // What is waited for and ended long ago changes nothing.
        clock.advance_to(start);
        assert_eq!(clock.now(), start + Duration::from_micros(300));
        // On the host's clock, this is over already.
        clock.time(|_| std::thread::sleep(Duration::from_micros(10)));
        assert!(clock.now() >= start + Duration::from_micros(310));
    }

    #[test]
    fn a_caller_is_not_held_up_by_work_that_is_done_late() {
        let clock = CallerClock::new();
        let before = clock.now();
        let end = before + Duration::from_millis(5);
        clock.wait(|| {
            std::thread::sleep(Duration::from_millis(50));
            Some(end)
        });
        let after = clock.now();
        assert!(after >= end, "it goes on before what it waits for");
        assert!(clock.lag.get() >= Duration::from_millis(45), "{clock:?}");
        // What ended long ago costs nothing, and what ends later than now makes nobody early.
        clock.wait(|| Some(before));
        assert!(clock.now() >= after && clock.lag.get() >= Duration::from_millis(45));
        clock.wait(|| Some(Instant::now() + Duration::from_secs(1)));
        assert_eq!(clock.lag.get(), Duration::ZERO);
    }

    #[test]
    fn the_timer_moves_by_being_read() {
        let start = Instant::now();
        let mut clock = Clock::new(start, 1);
        clock.time(|clock| {
            let (first, mut reads) = (clock.timer_ns(), 1u32);
            while clock.timer_ns() - first < 10_000_000 {
                reads += 1;
            }
            assert!(reads < 30_000, "{reads}");
        });
        let taken = clock.now() - start;
        assert!(taken >= Duration::from_millis(10), "{taken:?}");
        assert!(taken < Duration::from_micros(10_011), "{taken:?}");
    }
    #[test]
    fn the_timer_shows_its_last_tick() {
        let start = Instant::now();
        let mut clock = Clock::new(start, 1024);
        clock.time(|clock| {
            let mut reads: Vec<_> = (0..100).map(|_| clock.timer_ns()).collect();
            assert!(reads.iter().all(|read| read.is_multiple_of(1024)), "{reads:?}");
            reads.dedup();
            assert!((4..8).contains(&reads.len()), "each read takes 50 ns: {reads:?}");
        });
    }
}
