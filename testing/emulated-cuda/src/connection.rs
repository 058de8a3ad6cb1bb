//! Hardware queues. A device has few, and streams share them. Work begins in the order in which it
//! was enqueued in its hardware queue, even if its stream could run it sooner (CUDA C++ Programming
//! Guide, `CUDA_DEVICE_MAX_CONNECTIONS`).
//!
//! Work that waits holds up all work behind it: waits for events and for values, functions of the
//! host, and graphs, whose nodes wait for each other.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

#[derive(Debug, Default)]
struct State {
    /// The number of places that were taken.
    taken: u64,
    /// The number of places whose work lets the work behind it begin.
    passed: u64,
    /// The time at which the last of these places did so.
    last: Option<Instant>,
}

/// A hardware queue.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    state: Mutex<State>,
    changed: Condvar,
}

impl Connection {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the next place for some work.
    pub(crate) fn enter(&self) -> u64 {
        let mut state = self.lock();
        state.taken += 1;
        state.taken - 1
    }

    /// Blocks until the work at all earlier places lets this place begin. Returns the time from which
    /// it may begin.
    pub(crate) fn turn(&self, place: u64) -> Option<Instant> {
        let state = self.changed.wait_while(self.lock(), |state| state.passed < place);
        state.unwrap_or_else(PoisonError::into_inner).last
    }

    /// Lets the next place begin, at a time of the device.
    pub(crate) fn pass(&self, at: Instant) {
        let mut state = self.lock();
        state.passed += 1;
        state.last = state.last.max(Some(at));
        self.changed.notify_all();
    }
}

/// The hardware queues of a device, which new streams share in turn.
#[derive(Debug, Default)]
pub(crate) struct Connections(Mutex<(usize, Vec<Arc<Connection>>)>);

impl Connections {
    /// Returns the hardware queue of a new stream. `count` is the number of queues.
    pub(crate) fn next(&self, count: u64) -> Arc<Connection> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (streams, connections) = &mut *all;
        let number = *streams % usize::try_from(count.max(1)).unwrap_or(usize::MAX);
        *streams += 1;
        if connections.len() <= number {
            connections.resize_with(number + 1, Arc::default);
        }
        Arc::clone(&connections[number])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn streams_share_queues_in_turn() {
        let connections = Connections::default();
        let [first, second, third] = [(); 3].map(|()| connections.next(2));
        assert!(Arc::ptr_eq(&first, &third) && !Arc::ptr_eq(&first, &second));
        assert!(Arc::ptr_eq(&connections.next(1), &first));
    }

    #[test]
    fn a_place_waits_for_those_before_it() {
        let (connection, now) = (Arc::new(Connection::default()), Instant::now());
        let [one, two] = [(); 2].map(|()| connection.enter());
        assert_eq!(connection.turn(one), None);
        let of_thread = Arc::clone(&connection);
        let thread = std::thread::spawn(move || of_thread.turn(two));
        std::thread::sleep(Duration::from_millis(5));
        assert!(!thread.is_finished());
        connection.pass(now);
        assert_eq!(thread.join().ok(), Some(Some(now)));
    }
}
