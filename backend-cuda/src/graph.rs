//! Work that is captured once and launched as often as wanted.

use crate::CudaDevice;
use crate::error::{CudaError, named};
use crate::stream::Queued;
use cudarc::driver::CudaGraph;
use cudarc::driver::sys::CUgraphInstantiate_flags as Flags;
use cudarc::driver::sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
use planner_core::Stream;
use std::fmt;

/// Captured work of one device.
pub struct Graph(CudaGraph);

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph").finish_non_exhaustive()
    }
}

impl CudaDevice {
    /// From now on, what is enqueued on any stream is captured instead of done, until
    /// [`CudaDevice::end_capture`].
    ///
    /// All of a graph runs after everything that was enqueued before its launch, so waits for
    /// points from before the capture are left out. Signals count as always: their points are
    /// reached when the graph is launched and has run.
    ///
    /// # Errors
    /// A capture that is under way, and errors of the driver. Until the end of a capture, memory
    /// that is mapped and a point of the graph that the host asks for are errors as well.
    pub fn begin_capture(&mut self) -> Result<(), CudaError> {
        if self.captured_from.is_some() {
            return Err(CudaError::CapturedTwice);
        }
        self.allow_access()?;
        let [compute, upload, download] = &mut self.queued;
        let begun = compute.stream().begin_capture(CU_STREAM_CAPTURE_MODE_RELAXED);
        named("cuStreamBeginCapture", begun)?;
        self.captured_from = Some([compute, upload, download].map(|queued| queued.signalled()));
        let fork = self.queued[Stream::Compute as usize].record()?;
        for stream in [Stream::Upload, Stream::Download] {
            self.queued[stream as usize].wait(&fork)?;
        }
        Ok(())
    }

    /// Ends a capture.
    ///
    /// # Errors
    /// No capture to end, and errors of the driver; then nothing is captured any more.
    pub fn end_capture(&mut self) -> Result<Graph, CudaError> {
        if self.captured_from.is_none() {
            return Err(CudaError::NotCaptured);
        }
        let joined = self.join();
        let ended = self.queued[Stream::Compute as usize].stream().end_capture(Flags(0));
        self.captured_from = None;
        self.queued.iter_mut().for_each(Queued::forget_captured);
        joined?;
        let graph = named("cuStreamEndCapture", ended)?;
        graph.map(Graph).ok_or(CudaError::NotCaptured)
    }

    /// What compute does next follows all three streams.
    fn join(&mut self) -> Result<(), CudaError> {
        for stream in [Stream::Upload, Stream::Download] {
            let end = self.queued[stream as usize].record()?;
            self.queued[Stream::Compute as usize].wait(&end)?;
        }
        Ok(())
    }

    /// Enqueues a graph of this device: after all that is enqueued, and before all that will
    /// be. The last point of each stream is reached when it has run.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn launch_graph(&mut self, graph: &Graph) -> Result<(), CudaError> {
        self.join()?;
        named("cuGraphLaunch", graph.0.launch())?;
        self.counters.graph_launches += 1;
        let end = self.queued[Stream::Compute as usize].record()?;
        for stream in [Stream::Upload, Stream::Download] {
            self.queued[stream as usize].wait(&end)?;
        }
        self.queued.iter_mut().try_for_each(Queued::mark_again)
    }
}
