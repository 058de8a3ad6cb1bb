//! Ops on the host: a thread that waits for and signals timeline semaphores.

use super::Semaphore;
use crate::error::VulkanError;
use backend_checks::HostOp;
use planner_core::backend::HostRange;
use std::io;
use std::slice;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// The addresses of the host block's segments in the process. All segments except the last have the
/// same size.
#[derive(Debug)]
pub(crate) struct Segments {
    pub(crate) starts: Vec<u64>,
    pub(crate) bytes: u64,
}

impl Segments {
    /// The parts of a range in each segment, as address and number of bytes.
    fn parts(&self, range: HostRange) -> impl Iterator<Item = (u64, usize)> {
        let end = range.offset_bytes + range.bytes;
        let mut next = range.offset_bytes;
        std::iter::from_fn(move || {
            let offset = next % self.bytes;
            let start = *self.starts.get((next / self.bytes) as usize)?;
            let bytes = (self.bytes - offset).min(end - next);
            next += bytes;
            (bytes > 0).then_some((start + offset, bytes as usize))
        })
    }

    /// Whether a range lies in several segments.
    fn is_split(&self, range: HostRange) -> bool {
        range.offset_bytes / self.bytes != (range.offset_bytes + range.bytes - 1) / self.bytes
    }

    /// The address of a range in one segment.
    fn address(&self, range: HostRange) -> u64 {
        self.parts(range).next().map_or(0, |(at, _)| at)
    }

    /// Copies the bytes of a range out of the block.
    ///
    /// # Safety
    /// The bytes can be read, and nothing writes them.
    unsafe fn read(&self, range: HostRange) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(range.bytes as usize);
        for (at, len) in self.parts(range) {
            // SAFETY: as the caller promises.
            bytes.extend_from_slice(unsafe { slice::from_raw_parts(at as *const u8, len) });
        }
        bytes
    }

    /// Copies bytes into the block.
    ///
    /// # Safety
    /// The bytes can be written, and nothing uses them.
    unsafe fn write(&self, range: HostRange, mut from: &[u8]) {
        for (at, len) in self.parts(range) {
            let (first, rest) = from.split_at(len);
            // SAFETY: as the caller promises.
            unsafe { slice::from_raw_parts_mut(at as *mut u8, len) }.copy_from_slice(first);
            from = rest;
        }
    }
}

/// An op, the ranges that it uses, and whether it writes each of them.
#[derive(Debug)]
pub(crate) struct HostTask {
    pub(crate) op: HostOp,
    pub(crate) iteration: u64,
    pub(crate) ranges: Vec<(HostRange, bool)>,
    pub(crate) segments: Arc<Segments>,
}

impl HostTask {
    /// Runs the op. A range in several segments is copied into one buffer before, and copied back
    /// afterwards.
    ///
    /// # Safety
    /// No other work writes the ranges that the op reads, or uses the ranges that it writes.
    unsafe fn run(self) -> Result<(), VulkanError> {
        let Self { mut op, iteration, ranges, segments } = self;
        let split = ranges.into_iter().filter(|(range, _)| segments.is_split(*range));
        let mut copied: Vec<(HostRange, bool, Vec<u8>)> = split
            // SAFETY: as the caller promises.
            .map(|(range, is_written)| (range, is_written, unsafe { segments.read(range) }))
            .collect();
        // A range that is updated in place occurs twice, and the written one counts.
        copied.sort_by_key(|&(_, is_written, _)| !is_written);
        let starts: Vec<(HostRange, *mut u8)> =
            copied.iter_mut().map(|(range, _, bytes)| (*range, bytes.as_mut_ptr())).collect();
        let start = |range: HostRange| {
            let copied = starts.iter().find(|(copied, _)| *copied == range);
            copied.map_or_else(|| segments.address(range) as *mut u8, |&(_, start)| start)
        };
        let ran = op.run(
            iteration,
            // SAFETY: the bytes are in one segment or were copied, as many as the range has. A
            // written range overlaps no other range.
            |range| unsafe { slice::from_raw_parts(start(range), range.bytes as usize) },
            // SAFETY: as above.
            |range| unsafe { slice::from_raw_parts_mut(start(range), range.bytes as usize) },
        );
        for (range, _, bytes) in copied.iter().filter(|(_, is_written, _)| *is_written) {
            // SAFETY: as the caller promises.
            unsafe { segments.write(*range, bytes) };
        }
        ran.map_err(VulkanError::HostOp)
    }
}

#[derive(Debug)]
enum Work {
    Wait(Arc<Semaphore>, u64),
    Run(HostTask),
    Signal(Arc<Semaphore>, u64),
}

#[derive(Debug, Default)]
struct State {
    /// The first failure. No op runs after it.
    reached: u64,
    /// The device is about to be dropped, so no more ops begin.
    failure: Option<VulkanError>,
    /// Whether ops are left out, since the device is about to be dropped.
    is_dropped: bool,
}

/// The thread of the host stream.
#[derive(Debug)]
pub(crate) struct HostStream {
    work: Option<Sender<Work>>,
    thread: Option<JoinHandle<()>>,
    progress: Arc<Progress>,
}

/// The state that the thread shares with its caller.
#[derive(Debug, Default)]
struct Progress {
    state: Mutex<State>,
    changed: Condvar,
}

impl Progress {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HostStream {
    pub(crate) fn start() -> io::Result<Self> {
        let (work, queue) = mpsc::channel();
        let progress = Arc::<Progress>::default();
        let of_thread = Arc::clone(&progress);
        let run = move || {
            for work in queue {
                if let Err(failure) = carry_out(work, &of_thread) {
                    of_thread.lock().failure.get_or_insert(failure);
                }
                of_thread.changed.notify_all();
            }
        };
        let thread = thread::Builder::new().name("Host".to_owned()).spawn(run)?;
        Ok(Self { work: Some(work), thread: Some(thread), progress })
    }

    /// Fails if work on the thread has failed.
    pub(crate) fn check(&self) -> Result<(), VulkanError> {
        self.progress.lock().failure.clone().map_or(Ok(()), Err)
    }

    /// The last signal that was reached.
    pub(crate) fn reached(&self) -> u64 {
        self.progress.lock().reached
    }

    /// Blocks until a signal is reached.
    pub(crate) fn block_until(&self, value: u64) {
        let is_waiting = |state: &mut State| state.reached < value;
        drop(self.progress.changed.wait_while(self.progress.lock(), is_waiting));
    }

    /// Enqueues a wait for a submitted value.
    pub(crate) fn wait(&self, semaphore: &Arc<Semaphore>, value: u64) {
        self.enqueue(Work::Wait(Arc::clone(semaphore), value));
    }

    /// Enqueues a signal.
    pub(crate) fn signal(&self, semaphore: &Arc<Semaphore>, value: u64) {
        self.enqueue(Work::Signal(Arc::clone(semaphore), value));
    }

    /// Enqueues an op.
    ///
    /// The plan's waits keep other work on its ranges apart, and the block outlives the thread.
    pub(crate) fn run(&self, task: HostTask) {
        self.enqueue(Work::Run(task));
    }

    fn enqueue(&self, work: Work) {
        if let Some(sender) = &self.work {
            sender.send(work).expect("the thread runs until the queue ends");
        }
    }

    /// Ends the thread. Ops that have not begun are skipped, and all signals are reached.
    pub(crate) fn end(&mut self) {
        self.progress.lock().is_dropped = true;
        self.work = None;
        // A thread that has panicked has also ended.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Drop for HostStream {
    fn drop(&mut self) {
        self.end();
    }
}

fn carry_out(work: Work, progress: &Progress) -> Result<(), VulkanError> {
    match work {
        Work::Wait(semaphore, value) => semaphore.block_until(value),
        // Queues and the caller may wait for the signal even after a failure.
        Work::Signal(semaphore, value) => {
            let signalled = semaphore.signal(value);
            progress.lock().reached = value;
            signalled
        }
        Work::Run(task) => {
            let is_left_out = {
                let state = progress.lock();
                state.is_dropped || state.failure.is_some()
            };
            // SAFETY: the plan's waits keep other work apart, and the block outlives the thread.
            if is_left_out { Ok(()) } else { unsafe { task.run() } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use planner_core::OpId;
    use planner_core::backend::{HostLaunch, HostRanges};

    #[test]
    fn operands_in_several_segments_are_whole() {
        let mut memory = [[1u8; 8], [2; 8], [3; 8]];
        let starts = memory.each_mut().map(|segment| segment.as_mut_ptr() as u64).to_vec();
        let segments = Arc::new(Segments { starts, bytes: 8 });
        let (reads, writes) = ([[6, 4], [12, 8]], [[12, 8], [0, 4]]);
        let (read, written) = (HostRanges::new(&reads), HostRanges::new(&writes));
        let launch = HostLaunch::new(OpId(0), read, written);
        let op = HostOp::new(&launch, |mut run| {
            assert_eq!(run.read(0), [1, 1, 2, 2]);
            assert_eq!(run.read(1), [2, 2, 2, 2, 3, 3, 3, 3]);
            run.writes[0].iter_mut().for_each(|byte| *byte += 10);
            run.writes[1].fill(9);
            Ok::<_, &str>(())
        });
        let ranges = read.iter().map(|range| (range, false));
        let ranges = ranges.chain(written.iter().map(|range| (range, true))).collect();
        let op = op.expect("nothing overlaps");
        let task = HostTask { op, iteration: 1, ranges, segments };
        // SAFETY: nothing else uses the memory.
        unsafe { task.run() }.expect("the work does not fail");
        assert_eq!(memory[0], [9, 9, 9, 9, 1, 1, 1, 1]);
        assert_eq!(memory[1], [2, 2, 2, 2, 12, 12, 12, 12]);
        assert_eq!(memory[2], [13, 13, 13, 13, 3, 3, 3, 3]);
    }
}
