//! Capture: work enqueued in streams is recorded as a graph instead.

use crate::graph::{Graph, Node};
use crate::outcome::Outcome;
use crate::task::Task;
use cudarc::driver::sys::CUresult::{
    self, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

/// A capture under way.
#[derive(Debug)]
pub(crate) struct Capture {
    /// The stream on which it began.
    pub(crate) origin: usize,
    thread: ThreadId,
    is_open: AtomicBool,
    is_valid: AtomicBool,
    nodes: Mutex<Vec<Node>>,
}

impl Capture {
    /// Begins a capture by this thread.
    pub(crate) fn new(origin: usize) -> Self {
        let thread = std::thread::current().id();
        let [is_open, is_valid] = [(); 2].map(|()| AtomicBool::new(true));
        Self { origin, thread, is_open, is_valid, nodes: Mutex::default() }
    }

    pub(crate) fn is_by_this_thread(&self) -> bool {
        self.thread == std::thread::current().id()
    }

    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::SeqCst)
    }

    /// Notes a call that is not allowed during a capture: no graph comes of it, and until the
    /// capture ends, every use of its streams and events fails (CUDA C++ Programming Guide,
    /// "Invalidation"). Returns the error of the call.
    pub(crate) fn refuse(&self, error: CUresult) -> CUresult {
        let was_valid = self.is_valid.swap(false, Ordering::SeqCst);
        if was_valid { error } else { CUDA_ERROR_STREAM_CAPTURE_INVALIDATED }
    }

    /// Fails once a call was not allowed.
    pub(crate) fn check(&self) -> Outcome {
        let is_valid = self.is_valid.load(Ordering::SeqCst);
        if is_valid { Ok(()) } else { Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) }
    }

    fn nodes(&self) -> MutexGuard<'_, Vec<Node>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a task. Returns the number of its node.
    fn add(&self, task: Task, stream: usize, dependencies: Vec<usize>) -> usize {
        let mut nodes = self.nodes();
        nodes.push(Node { task, stream, dependencies });
        nodes.len() - 1
    }

    /// Ends the capture and returns what was recorded. Fails unless the last nodes of the origin,
    /// `ends`, depend on all others.
    pub(crate) fn finish(&self, ends: &[usize]) -> Outcome<Graph> {
        self.is_open.store(false, Ordering::SeqCst);
        self.check()?;
        let nodes = self.nodes().clone();
        let mut joined = vec![false; nodes.len()];
        let mut next = ends.to_vec();
        while let Some(node) = next.pop() {
            if !std::mem::replace(&mut joined[node], true) {
                next.extend(&nodes[node].dependencies);
            }
        }
        let all = joined.into_iter().all(|joined| joined);
        if all { Ok(Graph(nodes)) } else { Err(CUDA_ERROR_STREAM_CAPTURE_UNJOINED) }
    }
}

/// A point in a capture: after some of its nodes.
#[derive(Clone, Debug)]
pub(crate) struct CapturePoint {
    pub(crate) capture: Arc<Capture>,
    /// What the next task depends on.
    pub(crate) nodes: Vec<usize>,
}

impl CapturePoint {
    pub(crate) fn is_in(&self, capture: &Arc<Capture>) -> bool {
        Arc::ptr_eq(&self.capture, capture)
    }

    /// Records a task of a stream, and moves after it. Fails for tasks that no graph can hold here.
    pub(crate) fn record(&mut self, task: Task, stream: usize) -> Outcome {
        self.capture.check()?;
        if matches!(task, Task::Free { .. }) {
            return Err(self.capture.refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
        }
        let dependencies = std::mem::take(&mut self.nodes);
        self.nodes = vec![self.capture.add(task, stream, dependencies)];
        Ok(())
    }

    /// Moves after another point of the same capture as well.
    pub(crate) fn join(&mut self, other: &Self) {
        self.nodes.extend(&other.nodes);
        self.nodes.sort_unstable();
        self.nodes.dedup();
    }
}
