//! The queue of a stream, and markers in it that others may wait for.

use crate::graph::ExecutableGraph;
use crate::task::Task;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

/// What a stream does next.
#[derive(Debug)]
pub(crate) enum Work {
    Task(Task),
    Graph(Arc<ExecutableGraph>),
    /// Waits until a marker is reached.
    Wait(Marker),
    /// Notes when this is reached.
    Mark(Arc<OnceLock<Instant>>),
    /// Ends the stream's thread.
    End,
}

#[derive(Debug, Default)]
struct State {
    /// With the time at which it was enqueued.
    work: VecDeque<(Instant, Work)>,
    enqueued: u64,
    done: u64,
    /// When the work that was done last ended.
    end: Option<Instant>,
}

/// A queue with one thread that takes work from it.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while(&self, holds: impl FnMut(&mut State) -> bool) -> MutexGuard<'_, State> {
        self.changed.wait_while(self.lock(), holds).unwrap_or_else(PoisonError::into_inner)
    }

    /// Enqueues work. Returns how much has been enqueued, with it.
    pub(crate) fn push(&self, work: Work, now: Instant) -> u64 {
        let mut state = self.lock();
        state.work.push_back((now, work));
        state.enqueued += 1;
        self.changed.notify_all();
        state.enqueued
    }

    /// Enqueues a marker.
    pub(crate) fn mark(self: &Arc<Self>, now: Instant) -> Marker {
        let time = Arc::default();
        let number = self.push(Work::Mark(Arc::clone(&time)), now);
        Marker { queue: Arc::clone(self), number, time }
    }

    /// Blocks until there is work, and takes it, with the time at which it was enqueued.
    pub(crate) fn take(&self) -> (Instant, Work) {
        loop {
            if let Some(next) = self.wait_while(|state| state.work.is_empty()).work.pop_front() {
                return next;
            }
        }
    }

    /// Notes that the work that was taken last has ended.
    pub(crate) fn finish(&self, end: Instant) {
        let mut state = self.lock();
        state.done += 1;
        state.end = Some(end);
        self.changed.notify_all();
    }

    /// Blocks until all that is enqueued now has ended. Returns when the work done last ended.
    pub(crate) fn drain(&self) -> Option<Instant> {
        let enqueued = self.lock().enqueued;
        self.wait_while(|state| state.done < enqueued).end
    }
}

/// A point in a queue, which is reached once all work before it has ended.
#[derive(Clone, Debug)]
pub(crate) struct Marker {
    queue: Arc<Queue>,
    number: u64,
    time: Arc<OnceLock<Instant>>,
}

impl Marker {
    pub(crate) fn is_reached(&self) -> bool {
        self.queue.lock().done >= self.number
    }

    /// Returns when it was reached on the device's clock, if it is.
    pub(crate) fn time(&self) -> Option<Instant> {
        self.time.get().copied()
    }

    /// Blocks until it is reached. Returns when it was.
    pub(crate) fn wait(&self) -> Option<Instant> {
        drop(self.queue.wait_while(|state| state.done < self.number));
        self.time()
    }
}
