//! Ops that the driver calls on the host.

use super::api;
use super::context::make_current;
use super::stream::Stream;
use crate::error::CudaError;
use backend_checks::{HostFailure, HostOp};
use planner_core::backend::HostRange;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The first failure of an op on the host; no op runs after it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failures(Arc<Mutex<Option<HostFailure>>>);

impl Failures {
    pub(crate) fn check(&self) -> Result<(), CudaError> {
        locked(&self.0).clone().map_or(Ok(()), |failure| Err(CudaError::HostOp(failure)))
    }
}

/// An op, and the iterations in which the driver will call it.
#[derive(Debug)]
pub(crate) struct HostTask {
    op: Mutex<HostOp>,
    iterations: Mutex<VecDeque<u64>>,
    /// The address of the host block.
    block: u64,
    failures: Failures,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HostTask {
    /// An op over ranges of the block at an address.
    pub(crate) fn new(op: HostOp, block: u64, failures: Failures) -> Self {
        Self { op: Mutex::new(op), iterations: Mutex::default(), block, failures }
    }

    /// Notes that it will be called once more, in an iteration.
    pub(crate) fn expect(&self, iteration: u64) {
        locked(&self.iterations).push_back(iteration);
    }

    /// Takes that back.
    pub(crate) fn expect_one_less(&self) {
        locked(&self.iterations).pop_back();
    }

    fn run(&self) {
        let iteration = locked(&self.iterations).pop_front();
        let Some(iteration) = iteration.filter(|_| self.failures.check().is_ok()) else { return };
        let start = |range: HostRange| (self.block + range.offset_bytes) as *mut u8;
        let outcome = locked(&self.op).run(
            iteration,
            // SAFETY: the ranges lie in the block, which outlives all enqueued work. The waits of the plan
            // keep other work away from them, and a written range overlaps no other range.
            |range| unsafe { slice::from_raw_parts(start(range), range.bytes as usize) },
            // SAFETY: the same.
            |range| unsafe { slice::from_raw_parts_mut(start(range), range.bytes as usize) },
        );
        if let Err(failure) = outcome {
            locked(&self.failures.0).get_or_insert(failure);
        }
    }
}

/// What the driver calls.
///
/// # Safety
/// `task` is a [`HostTask`] that lives.
unsafe extern "C" fn call(task: *mut c_void) {
    // SAFETY: as the caller promises.
    unsafe { &*task.cast::<HostTask>() }.run();
}

/// Enqueues an op. The caller keeps the task until it has run, or for as long as a graph that holds it
/// may run. The driver's call cannot free the task: if the context is in error, the driver makes no call (CUDA
/// Driver API, `cuLaunchHostFunc`).
pub(crate) fn launch_on_host(stream: &Stream, task: &Arc<HostTask>) -> Result<(), CudaError> {
    make_current(stream.context())?;
    // SAFETY: the stream lives, and so does the task: `CudaDevice` keeps it.
    unsafe { api::cuLaunchHostFunc(stream.raw(), call, Arc::as_ptr(task).cast_mut().cast()) }
}
