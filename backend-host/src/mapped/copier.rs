//! A thread that carries out one stream of copies.
#![allow(unsafe_code, reason = "bytes are copied between addresses")]

use super::memory;
use planner_core::backend::Point;
use planner_core::{PerStream, Stream};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

/// The last signal that each stream has reached.
#[derive(Debug)]
pub(crate) struct Progress {
    reached: Mutex<PerStream<u64>>,
    changed: Condvar,
    /// Whether copies are left out, since the device is about to be dropped.
    is_dropped: AtomicBool,
}

impl Progress {
    pub(crate) fn new() -> Self {
        let reached = Mutex::new(PerStream::all(0));
        Self { reached, changed: Condvar::new(), is_dropped: AtomicBool::new(false) }
    }

    pub(crate) fn reach(&self, Point { stream, value }: Point) {
        self.reached.lock().unwrap_or_else(PoisonError::into_inner)[stream] = value;
        self.changed.notify_all();
    }

    pub(crate) fn has_reached(&self, point: Point) -> bool {
        let reached = self.reached.lock().unwrap_or_else(PoisonError::into_inner);
        reached[point.stream] >= point.value
    }

    pub(crate) fn block_until(&self, point: Point) {
        let reached = self.reached.lock().unwrap_or_else(PoisonError::into_inner);
        let is_waiting = |reached: &mut PerStream<u64>| reached[point.stream] < point.value;
        drop(self.changed.wait_while(reached, is_waiting));
    }

    pub(crate) fn drop_copies(&self) {
        self.is_dropped.store(true, Ordering::Relaxed);
    }
}

/// Work of one stream.
#[derive(Debug)]
enum Task {
    Copy { from: u64, to: u64, bytes: u64 },
    Wait(Point),
    Signal(u64),
}

/// The thread of a stream, which ends when this is dropped and all tasks are done.
#[derive(Debug)]
pub(crate) struct Copier {
    tasks: Option<Sender<Task>>,
    thread: Option<JoinHandle<()>>,
}

impl Copier {
    pub(crate) fn start(stream: Stream, progress: Arc<Progress>) -> io::Result<Self> {
        let (tasks, queue) = mpsc::channel();
        let run = move || {
            for task in queue {
                match task {
                    Task::Copy { .. } if progress.is_dropped.load(Ordering::Relaxed) => {}
                    // SAFETY: whoever enqueued it promises that.
                    Task::Copy { from, to, bytes } => unsafe { memory::copy(from, to, bytes) },
                    Task::Wait(point) => progress.block_until(point),
                    Task::Signal(value) => progress.reach(Point { stream, value }),
                }
            }
        };
        let thread = thread::Builder::new().name(format!("{stream:?}")).spawn(run)?;
        Ok(Self { tasks: Some(tasks), thread: Some(thread) })
    }

    /// Enqueues a copy.
    ///
    /// # Safety
    /// Until the next signal is reached, both ranges can be accessed; and once the tasks before are
    /// done, nothing writes what is read or uses what is written.
    pub(crate) unsafe fn copy(&self, from: u64, to: u64, bytes: u64) {
        self.enqueue(Task::Copy { from, to, bytes });
    }

    /// Enqueues a wait for a point, which has been signalled.
    pub(crate) fn wait(&self, point: Point) {
        self.enqueue(Task::Wait(point));
    }

    /// Enqueues a signal.
    pub(crate) fn signal(&self, value: u64) {
        self.enqueue(Task::Signal(value));
    }

    fn enqueue(&self, task: Task) {
        let tasks = self.tasks.as_ref().expect("only a drop ends the queue");
        tasks.send(task).expect("the thread runs until the queue ends");
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        self.tasks = None;
        // A thread that has panicked has ended as well.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
