//! A thread that runs the work of one stream: copies, ops on the host or collectives.
#![allow(unsafe_code, reason = "bytes are copied and lent at their addresses")]

use super::memory;
use super::progress::Progress;
use backend_checks::{HostFailure, HostOp};
use planner_core::Stream;
use planner_core::backend::{HostRange, Point};
use std::io;
use std::slice;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

/// The work of a collective.
pub(crate) type Exchange = Box<dyn FnOnce() -> Result<(), HostFailure> + Send>;

/// A task of one stream.
enum Task {
    Copy { from: u64, to: u64, bytes: u64 },
    Run { op: HostOp, iteration: u64, block: u64 },
    Exchange(Exchange),
    Wait(Point),
    Signal(Point),
}

/// The thread of a stream. A drop waits until the thread has done all tasks and has ended.
#[derive(Debug)]
pub(crate) struct Worker {
    tasks: Option<Sender<Task>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    pub(crate) fn start(stream: Stream, progress: Arc<Progress>) -> io::Result<Self> {
        let (tasks, queue) = mpsc::channel();
        let run = move || queue.into_iter().for_each(|task| carry_out(task, &progress));
        let thread = thread::Builder::new().name(format!("{stream:?}")).spawn(run)?;
        Ok(Self { tasks: Some(tasks), thread: Some(thread) })
    }

    /// Enqueues a copy.
    ///
    /// # Safety
    /// Both ranges can be accessed until the next signal is reached. While the copy may run, no
    /// other work writes the range `from` or uses the range `to`.
    pub(crate) unsafe fn copy(&self, from: u64, to: u64, bytes: u64) {
        self.enqueue(Task::Copy { from, to, bytes });
    }

    /// Enqueues an op on the host. Its ranges count from `block`, the address of the host block.
    ///
    /// # Safety
    /// As for [`copy`](Self::copy), for the ranges that the op names.
    pub(crate) unsafe fn run(&self, op: HostOp, iteration: u64, block: u64) {
        self.enqueue(Task::Run { op, iteration, block });
    }

    /// Enqueues a collective.
    pub(crate) fn exchange(&self, work: Exchange) {
        self.enqueue(Task::Exchange(work));
    }

    /// Enqueues a wait for a point. The signal of the point is enqueued already.
    pub(crate) fn wait(&self, point: Point) {
        self.enqueue(Task::Wait(point));
    }

    /// Enqueues a signal.
    pub(crate) fn signal(&self, point: Point) {
        self.enqueue(Task::Signal(point));
    }

    fn enqueue(&self, task: Task) {
        let tasks = self.tasks.as_ref().expect("only a drop ends the queue");
        assert!(tasks.send(task).is_ok(), "the thread runs until the queue ends");
    }
}

fn carry_out(task: Task, progress: &Progress) {
    match task {
        Task::Copy { from, to, bytes } => progress.carry_out(|| {
            // SAFETY: the caller of `copy` promises it.
            unsafe { memory::copy(from, to, bytes) };
            Ok(())
        }),
        Task::Run { mut op, iteration, block } => {
            let start = |range: HostRange| (block + range.offset_bytes) as *mut u8;
            progress.carry_out(|| {
                op.run(
                    iteration,
                    // SAFETY: the caller of `run` promises it. A written range overlaps no other
                    // range.
                    |range| unsafe { slice::from_raw_parts(start(range), range.bytes as usize) },
                    // SAFETY: the same.
                    |range| unsafe {
                        slice::from_raw_parts_mut(start(range), range.bytes as usize)
                    },
                )
            });
        }
        Task::Exchange(work) => progress.carry_out(work),
        // After a failure, `carry_out` starts no more work.
        Task::Wait(point) => drop(progress.block_until(point)),
        Task::Signal(point) => progress.reach(point),
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.tasks = None;
        // A thread that has panicked has also ended.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
