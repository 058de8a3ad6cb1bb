//! How far each stream has come, and which op on the host failed first.

use backend_checks::HostFailure;
use planner_core::PerStream;
use planner_core::backend::Point;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The state that the threads of a device share with its caller.
#[derive(Debug)]
pub(crate) struct Progress {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// The last signal that each stream has reached.
    reached: PerStream<u64>,
    /// How many copies and ops on the host run now.
    running: u32,
    /// The first op on the host that failed. Nothing starts after it.
    failure: Option<HostFailure>,
    /// The device is about to be dropped, so no more work starts.
    is_dropped: bool,
}

impl Progress {
    pub(crate) fn new() -> Self {
        let state =
            State { reached: PerStream::all(0), running: 0, failure: None, is_dropped: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while<'a>(
        &self,
        state: MutexGuard<'a, State>,
        is_waiting: impl FnMut(&mut State) -> bool,
    ) -> MutexGuard<'a, State> {
        self.changed.wait_while(state, is_waiting).unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs work of a stream, unless work has failed or the device is being dropped.
    pub(crate) fn carry_out(&self, work: impl FnOnce() -> Result<(), HostFailure>) {
        let mut state = self.lock();
        if state.is_dropped || state.failure.is_some() {
            return;
        }
        state.running += 1;
        drop(state);
        let outcome = work();
        let mut state = self.lock();
        state.running -= 1;
        if let Err(failure) = outcome {
            state.failure.get_or_insert(failure);
        }
        self.changed.notify_all();
    }

    /// Records a signal, unless work has failed.
    pub(crate) fn reach(&self, Point { stream, value }: Point) {
        let mut state = self.lock();
        if state.failure.is_none() {
            state.reached[stream] = value;
            self.changed.notify_all();
        }
    }

    /// Blocks until a point is reached.
    ///
    /// # Errors
    /// The first failure of an op on the host. Then no more copies and ops on the host start.
    pub(crate) fn block_until(&self, point: Point) -> Result<(), HostFailure> {
        let state = self.wait_while(self.lock(), |state| {
            state.failure.is_none() && state.reached[point.stream] < point.value
        });
        self.check_state(state)
    }

    /// Whether a point has been reached.
    ///
    /// # Errors
    /// As for [`block_until`](Self::block_until).
    pub(crate) fn has_reached(&self, point: Point) -> Result<bool, HostFailure> {
        let state = self.lock();
        let is_reached = state.reached[point.stream] >= point.value;
        self.check_state(state).map(|()| is_reached)
    }

    /// Fails if work has failed.
    ///
    /// # Errors
    /// As for [`block_until`](Self::block_until).
    pub(crate) fn check(&self) -> Result<(), HostFailure> {
        self.check_state(self.lock())
    }

    fn check_state(&self, state: MutexGuard<'_, State>) -> Result<(), HostFailure> {
        if state.failure.is_none() {
            return Ok(());
        }
        // A caller that gets the failure may read the host block, so no running work may still use
        // it.
        let state = self.wait_while(state, |state| state.running > 0);
        state.failure.clone().map_or(Ok(()), Err)
    }

    /// Skips all work that has not begun.
    pub(crate) fn drop_work(&self) {
        self.lock().is_dropped = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use planner_core::{OpId, Stream};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn whoever_hears_of_a_failure_finds_nothing_under_way() {
        let (progress, has_ended) = (Progress::new(), AtomicBool::new(false));
        let (started, has_started) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                progress.carry_out(|| {
                    started.send(()).expect("it is awaited");
                    thread::sleep(Duration::from_millis(50));
                    has_ended.store(true, Ordering::SeqCst);
                    Ok(())
                });
            });
            has_started.recv().expect("it starts");
            let reason = String::from("the disk is full");
            let failure = HostFailure { op: OpId(1), iteration: 2, reason };
            progress.carry_out(|| Err(failure.clone()));
            let told = progress.block_until(Point { stream: Stream::Host, value: 1 });
            assert_eq!(told, Err(failure));
            assert!(has_ended.load(Ordering::SeqCst));
        });
    }
}
