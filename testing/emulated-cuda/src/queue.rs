//! The queue of a stream, and markers in it that others may wait for.

use crate::clock::CallerClock;
use crate::connection::Connection;
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

impl Work {
    /// Whether it holds up its hardware queue until it ends, and not only until it begins.
    pub(crate) fn waits(&self) -> bool {
        matches!(
            self,
            Self::Graph(_) | Self::Wait(_) | Self::Task(Task::WaitValue { .. } | Task::Host { .. })
        )
    }
}

#[derive(Debug, Default)]
struct State {
    /// With the time at which it was enqueued, and its place in the hardware queue.
    work: VecDeque<(Instant, u64, Work)>,
    enqueued: u64,
    done: u64,
    /// When the work that was done last ended, for as much work as the queue holds.
    ends: VecDeque<Instant>,
}

impl State {
    /// Returns when some work ended, by its number, or else the first whose end is known.
    fn end(&self, number: u64) -> Option<Instant> {
        let since = usize::try_from(self.done.saturating_sub(number)).unwrap_or(usize::MAX);
        self.ends.iter().rev().nth(since).or(self.ends.front()).copied()
    }
}

/// A queue with one thread that takes work from it. It holds so much work that has not ended,
/// and blocks whoever enqueues more, as drivers do.
#[derive(Debug)]
pub(crate) struct Queue {
    depth: u64,
    connection: Arc<Connection>,
    state: Mutex<State>,
    changed: Condvar,
}

impl Queue {
    /// Creates a queue that holds at least one piece of work, in a hardware queue.
    pub(crate) fn new(depth: u64, connection: Arc<Connection>) -> Self {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Self { depth: depth.max(1), connection, state, changed }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while(&self, holds: impl FnMut(&mut State) -> bool) -> MutexGuard<'_, State> {
        self.changed.wait_while(self.lock(), holds).unwrap_or_else(PoisonError::into_inner)
    }

    /// Enqueues work. Blocks the caller while the queue is full; the time passes on the caller's
    /// clock. Returns how much has been enqueued, with it.
    pub(crate) fn push(&self, work: Work, caller: &CallerClock) -> u64 {
        let number = (self.lock().enqueued + 1).saturating_sub(self.depth);
        if number > 0 {
            caller.wait(|| self.wait_while(|state| state.done < number).end(number));
        }
        self.push_last(work, caller)
    }

    /// Enqueues work even if the queue is full: nothing may follow.
    pub(crate) fn push_last(&self, work: Work, caller: &CallerClock) -> u64 {
        let mut state = self.lock();
        state.work.push_back((caller.now(), self.connection.enter(), work));
        state.enqueued += 1;
        self.changed.notify_all();
        state.enqueued
    }

    /// Enqueues a marker.
    pub(crate) fn mark(self: &Arc<Self>, caller: &CallerClock) -> Marker {
        let time = Arc::default();
        let number = self.push(Work::Mark(Arc::clone(&time)), caller);
        Marker { queue: Arc::clone(self), number, time }
    }

    /// Blocks until there is work whose turn it is, and takes it, with the time since which it may
    /// begin.
    pub(crate) fn take(&self) -> (Instant, Work) {
        loop {
            let next = self.wait_while(|state| state.work.is_empty()).work.pop_front();
            if let Some((enqueued, place, work)) = next {
                let turn = self.connection.turn(place).unwrap_or(enqueued);
                return (enqueued.max(turn), work);
            }
        }
    }

    /// Lets the work behind that which was taken last go ahead in the hardware queue.
    pub(crate) fn pass(&self, at: Instant) {
        self.connection.pass(at);
    }

    /// Notes that the work that was taken last has ended.
    pub(crate) fn finish(&self, end: Instant) {
        let mut state = self.lock();
        state.done += 1;
        if state.ends.len() as u64 == self.depth {
            state.ends.pop_front();
        }
        state.ends.push_back(end);
        self.changed.notify_all();
    }

    /// Blocks until all that is enqueued now has ended. Returns when the work done last ended.
    pub(crate) fn drain(&self) -> Option<Instant> {
        let enqueued = self.lock().enqueued;
        self.wait_while(|state| state.done < enqueued).ends.back().copied()
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_full_queue_blocks_the_caller_on_its_clock() {
        let queue = Arc::new(Queue::new(2, Arc::default()));
        let caller = CallerClock::new();
        let (queue_of_thread, start) = (Arc::clone(&queue), caller.now());
        let [first, second] = [5, 9].map(|ms| start + Duration::from_millis(ms));
        // It works late: the ends are when the work was due.
        let thread = std::thread::spawn(move || {
            for end in [first, second] {
                std::thread::sleep(Duration::from_millis(30));
                queue_of_thread.take();
                queue_of_thread.pass(end);
                queue_of_thread.finish(end);
            }
        });
        let mark = || queue.mark(&caller);
        let [one, _] = [mark(), mark()];
        assert!(!one.is_reached() && caller.now() < first, "nothing blocks yet");
        mark();
        assert!(one.is_reached(), "the third waits for the first");
        assert!((first..second).contains(&caller.now()), "on the caller's clock");
        mark();
        let after = caller.now();
        assert!((second..second + Duration::from_millis(15)).contains(&after), "the second");
        assert!(thread.join().is_ok());
    }
}
