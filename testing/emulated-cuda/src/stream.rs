//! Streams: a thread that works through a queue.

use crate::capture::{Capture, CapturePoint};
use crate::clock::{CallerClock, Clock};
use crate::device::Device;
use crate::event::Recorded;
use crate::faults::Faults;
use crate::graph::ExecutableGraph;
use crate::outcome::Outcome;
use crate::queue::{Queue, Work};
use crate::task::Task;
use crate::variables::Variable;
use crate::worker::Worker;
use cudarc::driver::sys::CUresult::*;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// A stream of the driver.
#[derive(Debug)]
pub(crate) struct Stream {
    handle: usize,
    queue: Arc<Queue>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Where its next work goes, while it is captured.
    capture: Mutex<Option<CapturePoint>>,
}

impl Stream {
    /// Creates a stream and its thread.
    pub(crate) fn new(handle: usize, device: Arc<Device>, faults: Faults) -> Self {
        let connection = device.connections.next(device.variables.get(Variable::Connections));
        let queue = Arc::new(Queue::new(device.queue_depth, connection));
        let of_thread = Arc::clone(&queue);
        let thread = std::thread::spawn(move || run(&of_thread, &device, faults, handle));
        Self { handle, queue, thread: Mutex::new(Some(thread)), capture: Mutex::default() }
    }

    pub(crate) fn capture(&self) -> MutexGuard<'_, Option<CapturePoint>> {
        self.capture.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails if it is captured, which ruins the capture.
    pub(crate) fn check_uncaptured(&self) -> Outcome {
        match &*self.capture() {
            Some(point) => Err(point.capture.refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)),
            None => Ok(()),
        }
    }

    /// Enqueues a task, or records it in the capture.
    pub(crate) fn push(&self, task: Task, caller: &CallerClock) -> Outcome {
        match &mut *self.capture() {
            Some(point) => point.record(task, self.handle)?,
            None => drop(self.queue.push(Work::Task(task), caller)),
        }
        Ok(())
    }

    pub(crate) fn push_graph(&self, graph: Arc<ExecutableGraph>, caller: &CallerClock) -> Outcome {
        self.check_uncaptured()?;
        self.queue.push(Work::Graph(graph), caller);
        Ok(())
    }

    /// Marks the point after all that it has, for an event.
    pub(crate) fn record(&self, caller: &CallerClock) -> Outcome<Recorded> {
        Ok(match &*self.capture() {
            Some(point) => {
                point.capture.check()?;
                Recorded::InCapture(point.clone())
            }
            None => Recorded::InQueue(self.queue.mark(caller)),
        })
    }

    /// Lets its next work wait for an event. One that was recorded in a capture takes this stream
    /// into the capture.
    pub(crate) fn wait(&self, event: Recorded, caller: &CallerClock) -> Outcome {
        let mut captured = self.capture();
        match (event, &mut *captured) {
            (Recorded::InCapture(other), Some(point)) if other.is_in(&point.capture) => {
                point.capture.check()?;
                point.join(&other);
            }
            (Recorded::InCapture(other), Some(point)) => {
                let refusals = [&other, point]
                    .map(|point| point.capture.refuse(CUDA_ERROR_STREAM_CAPTURE_MERGE));
                return Err(refusals[1]);
            }
            (Recorded::InCapture(other), None) if other.capture.is_open() => {
                other.capture.check()?;
                *captured = Some(other);
            }
            (Recorded::InCapture(_), None) => return Err(CUDA_ERROR_INVALID_VALUE),
            (_, Some(point)) => {
                return Err(point.capture.refuse(CUDA_ERROR_STREAM_CAPTURE_ISOLATION));
            }
            (Recorded::InQueue(marker), None) => drop(self.queue.push(Work::Wait(marker), caller)),
            (Recorded::Never, None) => {}
        }
        Ok(())
    }

    pub(crate) fn begin_capture(&self) -> Outcome {
        let mut captured = self.capture();
        if captured.is_some() {
            return Err(CUDA_ERROR_ILLEGAL_STATE);
        }
        let capture = Arc::new(Capture::new(self.handle));
        *captured = Some(CapturePoint { capture, nodes: Vec::new() });
        Ok(())
    }

    /// Blocks the caller until all that is enqueued has ended.
    pub(crate) fn synchronize(&self, caller: &CallerClock) -> Outcome {
        self.check_uncaptured()?;
        self.drain(caller);
        Ok(())
    }

    /// The same, whether it is captured or not.
    pub(crate) fn drain(&self, caller: &CallerClock) {
        caller.wait(|| self.queue.drain());
    }

    /// Lets the thread end after all work that is enqueued, and returns it. As on a device, nobody
    /// waits for that work (CUDA Driver API, `cuStreamDestroy`).
    pub(crate) fn end(&self, caller: &CallerClock) -> Option<JoinHandle<()>> {
        self.queue.push_last(Work::End, caller);
        self.thread.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The thread of a stream.
fn run(queue: &Queue, device: &Device, faults: Faults, handle: usize) {
    let clock = Clock::new(device.timer_zero, device.variables.get(Variable::TimerTickNs));
    let mut worker = Worker::new(device, clock, faults, handle as u64);
    loop {
        let (since, work) = queue.take();
        worker.clock.advance_to(since);
        let (is_end, waits) = (matches!(work, Work::End), work.waits());
        if !waits {
            queue.pass(worker.clock.now());
        }
        match work {
            Work::Task(task) => worker.run(&task),
            Work::Graph(graph) => graph.run(&mut worker),
            Work::Wait(marker) => {
                if let Some(time) = marker.wait() {
                    worker.wait_until(time);
                }
            }
            Work::Mark(time) => {
                // Nothing else sets it.
                let _ = time.set(worker.clock.now());
            }
            Work::End => {}
        }
        if waits {
            queue.pass(worker.clock.now());
        }
        queue.finish(worker.clock.now());
        if is_end {
            return;
        }
    }
}
