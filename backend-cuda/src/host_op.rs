//! Ops on the host, in the order of their stream.
//!
//! Outside of graphs a thread of the device calls them, since functions that the driver calls itself
//! have deadlocked Python programs (numba-cuda 317, LMCache 2952).

use crate::CudaDevice;
use crate::driver::{self, HandedTask, HostEnd, HostTask, HostThread};
use crate::error::CudaError;
use backend_checks::{HostOp, HostRun};
use planner_core::Stream;
use planner_core::backend::HostLaunch;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

/// The ops on the host that may still run.
#[derive(Debug, Default)]
pub(crate) struct HostOps {
    end: HostEnd,
    /// The thread that runs the ops outside of graphs. The first such op starts it.
    thread: Option<HostThread>,
    /// Ops of the thread. The stream reaches the signal of an op after the op has run.
    pending: VecDeque<(u64, Arc<HandedTask>)>,
    /// Ops of the capture that is under way, each with its iteration.
    captured: Vec<(u64, Arc<HostTask>)>,
    /// Ops of all graphs. A graph may be dropped while it runs.
    of_graphs: Vec<Arc<HostTask>>,
}

impl HostOps {
    /// Ends a capture, and returns its ops.
    pub(crate) fn end_capture(&mut self) -> Vec<(u64, Arc<HostTask>)> {
        let captured = std::mem::take(&mut self.captured);
        self.of_graphs.extend(captured.iter().map(|(_, task)| Arc::clone(task)));
        captured
    }

    /// Lets no more ops begin.
    pub(crate) fn leave_out(&self) {
        self.end.leave_out();
    }
}

impl CudaDevice {
    /// Enqueues an op on [`Stream::Host`], for [`HostKernels`](planner_core::backend::HostKernels).
    /// A thread of the device calls `work` on the ranges that the launch names, after all work for
    /// which the stream waits. No op is called once the context is in error (CUDA Driver API,
    /// `cuLaunchHostFunc`), and an op that has not begun when the device is dropped is skipped.
    /// `work` must not wait for work of a device unless that work is ordered before it. `work` is
    /// dropped on the thread that has the device.
    ///
    /// In a capture, the op becomes a node, and the driver calls it on one of its own threads in
    /// every launch of the graph. [`HostRun::iteration`] is then the iteration that runs. In a
    /// graph, `work` must not call CUDA, and CUDA calls of other threads may wait until it returns.
    ///
    /// If `work` fails or panics, no more ops on the host run. This call and all later copies,
    /// calls of [`Streams`](planner_core::backend::Streams) and calls for graphs then report
    /// [`CudaError::HostOp`]. Work that is already enqueued on the device still runs, since it
    /// cannot be cancelled.
    ///
    /// # Errors
    /// A range lies outside the block, two ranges overlap, earlier work has failed, the driver
    /// fails, or the thread does not start.
    pub fn launch_on_host<E: fmt::Display>(
        &mut self,
        launch: &HostLaunch<'_>,
        work: impl FnMut(HostRun<'_>) -> Result<(), E> + Send + 'static,
    ) -> Result<(), CudaError> {
        self.check_host_ops()?;
        let mut block = 0;
        for range in launch.reads.iter().chain(launch.writes.iter()) {
            block = self.host_address(range)? - range.offset_bytes;
        }
        let op = HostOp::new(launch, work)?;
        let queued = &self.queued[Stream::Host as usize];
        let ops = &mut self.host_ops;
        while ops.pending.front().is_some_and(|&(value, _)| value <= queued.reached()) {
            ops.pending.pop_front();
        }
        let task = HostTask::new(op, block, ops.end.clone());
        if queued.is_capturing() {
            let task = Arc::new(task);
            driver::capture(queued.stream(), &task)?;
            ops.captured.push((launch.iteration, task));
            return Ok(());
        }
        let thread = match &ops.thread {
            Some(thread) => thread,
            None => ops.thread.insert(HostThread::start(queued.stream())?),
        };
        task.expect(launch.iteration);
        let task = thread.launch(queued.stream(), task)?;
        ops.pending.push_back((queued.signalled() + 1, task));
        Ok(())
    }

    /// Fails if an op on the host has failed.
    pub(crate) fn check_host_ops(&self) -> Result<(), CudaError> {
        self.host_ops.end.check()
    }
}
