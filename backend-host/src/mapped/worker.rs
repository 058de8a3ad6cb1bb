//! A thread that carries out one stream: copies, or ops on the host.
#![allow(unsafe_code, reason = "bytes are copied and lent at their addresses")]

use super::memory;
use super::progress::Progress;
use backend_checks::HostOp;
use planner_core::Stream;
use planner_core::backend::{HostRange, Point};
use std::io;
use std::slice;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

/// Work of one stream.
#[derive(Debug)]
enum Task {
    Copy { from: u64, to: u64, bytes: u64 },
    Run { op: HostOp, iteration: u64, block: u64 },
    Wait(Point),
    Signal(Point),
}

/// The thread of a stream, which ends when this is dropped and all tasks are done.
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
    /// Until the next signal is reached, both ranges can be accessed. Once the tasks before are done, no
    /// other work writes the range `from` or uses the range `to`.
    pub(crate) unsafe fn copy(&self, from: u64, to: u64, bytes: u64) {
        self.enqueue(Task::Copy { from, to, bytes });
    }

    /// Enqueues an op on the host, whose ranges count from the address of the block.
    ///
    /// # Safety
    /// As for a copy: of the ranges that the op names.
    pub(crate) unsafe fn run(&self, op: HostOp, iteration: u64, block: u64) {
        self.enqueue(Task::Run { op, iteration, block });
    }

    /// Enqueues a wait for a point, which has been signalled.
    pub(crate) fn wait(&self, point: Point) {
        self.enqueue(Task::Wait(point));
    }

    /// Enqueues a signal.
    pub(crate) fn signal(&self, point: Point) {
        self.enqueue(Task::Signal(point));
    }

    fn enqueue(&self, task: Task) {
        let tasks = self.tasks.as_ref().expect("only a drop ends the queue");
        tasks.send(task).expect("the thread runs until the queue ends");
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
                    // SAFETY: the caller of `run` promises it. A written range overlaps no other.
                    |range| unsafe { slice::from_raw_parts(start(range), range.bytes as usize) },
                    // SAFETY: the same.
                    |range| unsafe {
                        slice::from_raw_parts_mut(start(range), range.bytes as usize)
                    },
                )
            });
        }
        // Where work has failed, nothing that follows is carried out.
        Task::Wait(point) => drop(progress.block_until(point)),
        Task::Signal(point) => progress.reach(point),
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.tasks = None;
        // A thread that has panicked has ended as well.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
