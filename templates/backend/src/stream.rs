//! [`Streams`]: a queue and a thread for each, and the points that they reach.

use crate::{MyDevice, MyError};
use backend_checks::Refused;
use planner_core::backend::{ErrorKind, Point, Streams};
use planner_core::{PerStream, Stream};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};

/// A copy or an op.
pub(crate) type Work = Box<dyn FnOnce() + Send>;

enum Command {
    Run(Work),
    Wait(Point),
    Signal(Point),
}

/// The thread of a stream. A driver has a queue of the device here.
#[derive(Debug)]
pub(crate) struct Worker {
    queue: Option<Sender<Command>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    pub(crate) fn start(stream: Stream, progress: Arc<Progress>) -> io::Result<Self> {
        let (queue, commands) = mpsc::channel();
        let run = move || {
            for command in commands {
                match command {
                    Command::Run(work) => progress.run(work),
                    // Where the device is lost, nothing more runs, and there is nothing to wait for.
                    Command::Wait(point) => drop(progress.block_until(point)),
                    Command::Signal(point) => progress.reach(point),
                }
            }
        };
        let thread = thread::Builder::new().name(stream.to_string()).spawn(run)?;
        Ok(Self { queue: Some(queue), thread: Some(thread) })
    }

    fn enqueue(&self, command: Command) {
        let queue = self.queue.as_ref().expect("only a drop ends the queue");
        queue.send(command).expect("the thread runs until the queue ends");
    }
}

/// Work uses memory until it ends, so a driver waits for its queues before it frees anything.
impl Drop for Worker {
    fn drop(&mut self) {
        self.queue = None;
        // The thread catches all panics of work.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// How far each stream has come. A driver has a timeline semaphore for each stream, or events.
#[derive(Debug)]
pub(crate) struct Progress {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// The last point that each stream has reached.
    reached: PerStream<u64>,
    /// Whether work has panicked.
    is_lost: bool,
}

impl Progress {
    pub(crate) fn new() -> Self {
        let state = State { reached: PerStream::all(0), is_lost: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it holds the lock")
    }

    fn run(&self, work: Work) {
        let is_lost = self.lock().is_lost;
        if !is_lost && catch_unwind(AssertUnwindSafe(work)).is_err() {
            self.lock().is_lost = true;
            self.changed.notify_all();
        }
    }

    fn reach(&self, Point { stream, value }: Point) {
        self.lock().reached[stream] = value;
        self.changed.notify_all();
    }

    fn has_reached(&self, Point { stream, value }: Point) -> Result<bool, MyError> {
        let state = self.lock();
        if state.is_lost {
            return Err(MyError::new(ErrorKind::Lost, "work panicked on the device"));
        }
        Ok(state.reached[stream] >= value)
    }

    fn block_until(&self, point: Point) -> Result<(), MyError> {
        let is_waiting =
            |state: &mut State| !state.is_lost && state.reached[point.stream] < point.value;
        let state = self.changed.wait_while(self.lock(), is_waiting);
        drop(state.expect("nothing panics while it holds the lock"));
        self.has_reached(point).map(drop)
    }
}

impl MyDevice {
    /// Enqueues work. A driver enqueues a copy, or launches a kernel, on the queue of the stream.
    pub(crate) fn enqueue(&self, stream: Stream, work: Work) {
        self.workers[stream].enqueue(Command::Run(work));
    }

    fn check_signalled(&self, point: Point) -> Result<(), Refused> {
        let is_signalled = point.value <= self.signals[point.stream];
        if is_signalled { Ok(()) } else { Err(Refused::Unsignalled(point)) }
    }
}

impl Streams for MyDevice {
    /// A driver makes the queue wait: `cuStreamWaitEvent`, or a semaphore in the next `vkQueueSubmit`.
    fn wait(&mut self, stream: Stream, point: Point) -> Result<(), MyError> {
        self.check_signalled(point)?;
        self.workers[stream].enqueue(Command::Wait(point));
        Ok(())
    }

    /// A driver enqueues a signal: `cuEventRecord`, or a semaphore in `vkQueueSubmit`. It comes after
    /// all waits of the stream, also where no work lies between them.
    fn signal(&mut self, stream: Stream) -> Result<Point, MyError> {
        self.signals[stream] += 1;
        let point = Point { stream, value: self.signals[stream] };
        self.workers[stream].enqueue(Command::Signal(point));
        Ok(point)
    }

    /// A driver asks: `cuEventQuery`, `vkGetSemaphoreCounterValue`.
    fn reached(&mut self, point: Point) -> Result<bool, MyError> {
        self.check_signalled(point)?;
        self.progress.has_reached(point)
    }

    /// A driver blocks: `cuEventSynchronize`, `vkWaitSemaphores`.
    fn block_until(&mut self, point: Point) -> Result<(), MyError> {
        self.check_signalled(point)?;
        self.progress.block_until(point)
    }

    /// Leave this out, and the kernels' `on_host`, where no op runs on the host.
    fn has_host_stream(&self) -> bool {
        true
    }

    /// Leave this out where no op exchanges data with other processes.
    fn has_network_stream(&self) -> bool {
        true
    }
}
