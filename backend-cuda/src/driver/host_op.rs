//! Ops on the host. A thread of the device runs them when the driver calls.
//!
//! A driver may hold a lock while it calls a function of the host, so that calls of other threads
//! wait until the function returns. The function must not call CUDA either (CUDA Driver API,
//! `cuLaunchHostFunc`). The function therefore only passes the op to the thread, and the stream
//! waits until the thread raises a flag (`cuStreamWaitValue32`). In a graph, the function itself
//! runs the op.

use super::api;
use super::context::{Context, make_current};
use super::host::Pinned;
use super::stream::Stream;
use crate::error::CudaError;
use backend_checks::{HostFailure, HostOp};
use planner_core::backend::HostRange;
use std::collections::VecDeque;
use std::ffi::{c_uint, c_void};
use std::mem;
use std::slice;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// `CU_STREAM_WAIT_VALUE_EQ`.
const EQUAL: c_uint = 1;

#[derive(Debug, Default)]
struct Ended {
    /// The first failure. No op runs after it.
    failure: Option<HostFailure>,
    /// The device is about to be dropped, so no more ops begin.
    is_dropped: bool,
}

/// Tells whether ops on the host still run. After a failure, or while the device is dropped, no op
/// begins.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostEnd(Arc<Mutex<Ended>>);

impl HostEnd {
    /// Fails if an op has failed.
    pub(crate) fn check(&self) -> Result<(), CudaError> {
        locked(&self.0).failure.clone().map_or(Ok(()), |failure| Err(CudaError::HostOp(failure)))
    }

    /// Skips all ops that have not begun.
    pub(crate) fn leave_out(&self) {
        locked(&self.0).is_dropped = true;
    }

    fn is_reached(&self) -> bool {
        let ended = locked(&self.0);
        ended.is_dropped || ended.failure.is_some()
    }
}

/// An op, and the iterations in which the driver will call it.
#[derive(Debug)]
pub(crate) struct HostTask {
    op: Mutex<HostOp>,
    iterations: Mutex<VecDeque<u64>>,
    /// The address of the host block.
    block: u64,
    end: HostEnd,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HostTask {
    /// An op on ranges of the block at an address.
    pub(crate) fn new(op: HostOp, block: u64, end: HostEnd) -> Self {
        Self { op: Mutex::new(op), iterations: Mutex::default(), block, end }
    }

    /// Records that the driver will call the op once more, in an iteration.
    pub(crate) fn expect(&self, iteration: u64) {
        locked(&self.iterations).push_back(iteration);
    }

    /// Removes the last recorded call.
    pub(crate) fn expect_one_less(&self) {
        locked(&self.iterations).pop_back();
    }

    fn run(&self) {
        let iteration = locked(&self.iterations).pop_front();
        let Some(iteration) = iteration.filter(|_| !self.end.is_reached()) else { return };
        let start = |range: HostRange| (self.block + range.offset_bytes) as *mut u8;
        let outcome = locked(&self.op).run(
            iteration,
            // SAFETY: the ranges lie in the block, which outlives all enqueued work. The plan's
            // waits keep other work away from them, and a written range overlaps no other range.
            |range| unsafe { slice::from_raw_parts(start(range), range.bytes as usize) },
            // SAFETY: as above.
            |range| unsafe { slice::from_raw_parts_mut(start(range), range.bytes as usize) },
        );
        if let Err(failure) = outcome {
            locked(&self.end.0).failure.get_or_insert(failure);
        }
    }
}

/// A number that the device reads. It is 0 while the thread has an op to run, and 1 otherwise.
#[derive(Debug)]
struct Flag(Pinned);

// SAFETY: only atomic operations use the memory.
unsafe impl Sync for Flag {}

impl Flag {
    fn new(context: Context) -> Result<Self, CudaError> {
        let flag = Self(Pinned::new(context, size_of::<AtomicU32>() as u64)?);
        flag.set(1);
        Ok(flag)
    }

    fn address(&self) -> u64 {
        self.0.address(&(0..size_of::<AtomicU32>() as u64))
    }

    fn set(&self, value: u32) {
        // SAFETY: the memory has this size, starts at a page, and lives as long as this object.
        let flag = unsafe { AtomicU32::from_ptr(self.address() as *mut u32) };
        // The writes of the op become visible before the flag.
        flag.store(value, Ordering::Release);
    }

    /// Makes the stream wait until the flag is raised.
    fn hold(&self, stream: &Stream) -> Result<(), CudaError> {
        make_current(stream.context())?;
        // SAFETY: the stream lives. With unified addresses, the device uses the same address, and
        // it keeps the memory until its streams have ended.
        unsafe { api::cuStreamWaitValue32_v2(stream.raw(), self.address(), 1, EQUAL) }
    }
}

/// Tasks for a thread. `None` ends the thread.
type Queue = Sender<Option<Arc<HostTask>>>;

/// A thread that runs the ops of one stream.
#[derive(Debug)]
pub(crate) struct HostThread {
    queue: Queue,
    flag: Arc<Flag>,
    thread: Option<JoinHandle<()>>,
}

/// A task that the driver passes to a thread.
#[derive(Debug)]
pub(crate) struct HandedTask {
    task: Arc<HostTask>,
    queue: Queue,
    flag: Arc<Flag>,
}

impl HandedTask {
    fn hand_over(&self) {
        self.flag.set(0);
        if self.queue.send(Some(Arc::clone(&self.task))).is_err() {
            // The thread has ended, so the device is about to be dropped.
            self.flag.set(1);
        }
    }
}

impl HostThread {
    /// Starts a thread for the ops of a stream.
    ///
    /// # Errors
    /// A thread or pinned memory cannot be had, or the stream cannot wait for values.
    pub(crate) fn start(stream: &Stream) -> Result<Self, CudaError> {
        let flag = Arc::new(Flag::new(stream.context())?);
        let (queue, tasks) = mpsc::channel::<Option<Arc<HostTask>>>();
        let raised = Arc::clone(&flag);
        let run = move || {
            for task in tasks.into_iter().map_while(|task| task) {
                task.run();
                // The device drops the op.
                drop(task);
                raised.set(1);
            }
        };
        let thread = thread::Builder::new().name("host ops".to_owned()).spawn(run);
        let thread = thread.map_err(|error| CudaError::Thread(error.to_string()))?;
        let started = Self { queue, flag, thread: Some(thread) };
        // A stream that cannot wait for the end of an op refuses this wait. Then no op is enqueued.
        started.flag.hold(stream)?;
        Ok(started)
    }

    /// Enqueues an op. The caller must keep the returned task until the stream has run the op. The
    /// driver's call cannot free the task: if the context is in error, the driver does not call
    /// (CUDA Driver API, `cuLaunchHostFunc`).
    ///
    /// # Errors
    /// The errors of the driver. The op may run even after an error.
    pub(crate) fn launch(
        &self,
        stream: &Stream,
        task: HostTask,
    ) -> Result<Arc<HandedTask>, CudaError> {
        let (queue, flag) = (self.queue.clone(), Arc::clone(&self.flag));
        let task = Arc::new(HandedTask { task: Arc::new(task), queue, flag });
        make_current(stream.context())?;
        let data = Arc::as_ptr(&task).cast_mut().cast();
        // SAFETY: the stream lives, and the task lives too: the caller keeps it, or it is leaked.
        unsafe { api::cuLaunchHostFunc(stream.raw(), hand_over, data) }?;
        if let Err(error) = self.flag.hold(stream) {
            mem::forget(task);
            return Err(error);
        }
        Ok(task)
    }
}

/// Captures an op. The driver runs it in every launch of the graph. The caller must keep the task
/// as long as the graph may run.
pub(crate) fn capture(stream: &Stream, task: &Arc<HostTask>) -> Result<(), CudaError> {
    make_current(stream.context())?;
    let data = Arc::as_ptr(task).cast_mut().cast();
    // SAFETY: the stream lives, and the task lives too: `CudaDevice` keeps it.
    unsafe { api::cuLaunchHostFunc(stream.raw(), run, data) }
}

/// The function that the driver calls outside of graphs.
///
/// # Safety
/// `task` is a [`HandedTask`] that lives.
unsafe extern "C" fn hand_over(task: *mut c_void) {
    // SAFETY: as the caller promises.
    unsafe { &*task.cast::<HandedTask>() }.hand_over();
}

/// The function that the driver calls in a graph.
///
/// # Safety
/// `task` is a [`HostTask`] that lives.
unsafe extern "C" fn run(task: *mut c_void) {
    // SAFETY: as the caller promises.
    unsafe { &*task.cast::<HostTask>() }.run();
}

impl Drop for HostThread {
    fn drop(&mut self) {
        let _ = self.queue.send(None);
        // A thread that has panicked has also ended.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
