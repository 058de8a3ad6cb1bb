//! Work that is captured once and launched as often as wanted.

use crate::CudaDevice;
use crate::driver::{self, Event, Executable, HostTask};
use crate::error::CudaError;
use crate::stream::Queued;
use planner_core::Stream;
use std::fmt;
use std::sync::Arc;

/// Captured work of one device. Only that device launches it, and no longer once memory has been
/// unmapped.
pub struct Graph {
    captured: Executable,
    /// The device's number.
    device: u64,
    /// How often the device had unmapped memory.
    unmap_calls: u64,
    /// Whether a kernel reads the number of its iteration.
    shows_iteration: bool,
    /// Its ops on the host, each with the iteration that was captured.
    host_tasks: Vec<(u64, Arc<HostTask>)>,
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph").field("device", &self.device).finish_non_exhaustive()
    }
}

/// The streams beside compute, where graphs begin and end.
const OTHERS: [Stream; 3] = [Stream::Upload, Stream::Download, Stream::Host];

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
        // A capture can neither load kernels nor allocate.
        self.iteration_words()?;
        driver::begin_capture(self.queued[Stream::Compute as usize].stream())?;
        self.captured_from = Some(self.queued.each_ref().map(Queued::signalled));
        self.iteration_shown = None;
        self.fork()
    }

    /// What all other streams do next follows compute.
    fn fork(&mut self) -> Result<(), CudaError> {
        OTHERS.into_iter().try_for_each(|stream| self.follow(stream, Stream::Compute))
    }

    /// What compute does next follows all streams.
    fn join(&mut self) -> Result<(), CudaError> {
        OTHERS.into_iter().try_for_each(|stream| self.follow(Stream::Compute, stream))
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
        let ended = Executable::end_capture(self.queued[Stream::Compute as usize].stream());
        self.captured_from = None;
        self.queued.iter_mut().for_each(Queued::forget_captured);
        let host_tasks = self.host_ops.end_capture();
        let shows_iteration = self.iteration_shown.take().is_some();
        joined?;
        let unmap_calls = self.counters.unmap_calls;
        let (captured, device) = (ended?, self.number);
        Ok(Graph { captured, device, unmap_calls, shows_iteration, host_tasks })
    }

    /// Fails for graphs that this device cannot launch.
    pub(crate) fn check_graph(&self, graph: &Graph) -> Result<(), CudaError> {
        if graph.device != self.number {
            return Err(CudaError::ForeignGraph);
        }
        if graph.unmap_calls != self.counters.unmap_calls {
            return Err(CudaError::LateGraph);
        }
        if self.captured_from.is_some() { Err(CudaError::CapturedTwice) } else { Ok(()) }
    }

    /// Enqueues a graph of this device: after all that is enqueued, and before all that will
    /// be. The last point of each stream is reached when it has run.
    ///
    /// Kernels that read [`CudaDevice::iteration`] find the number that they were captured with, and
    /// `iterations_later` added to it; so do ops on the host.
    ///
    /// # Errors
    /// A graph of another device, memory that has been unmapped since the capture, a capture that
    /// is under way, and errors of the driver.
    pub fn launch_graph(&mut self, graph: &Graph, iterations_later: u64) -> Result<(), CudaError> {
        self.check_graph(graph)?;
        self.check_host_ops()?;
        self.allow_access()?;
        self.join()?;
        if graph.shows_iteration {
            self.set_first_iteration(iterations_later)?;
        }
        let tasks = &graph.host_tasks;
        tasks.iter().for_each(|(captured, task)| task.expect(captured + iterations_later));
        let launched = graph.captured.launch(self.queued[Stream::Compute as usize].stream());
        if launched.is_err() {
            tasks.iter().for_each(|(_, task)| task.expect_one_less());
        }
        launched?;
        self.counters.graph_launches += 1;
        self.iteration_shown = None;
        self.fork()?;
        self.queued.iter_mut().try_for_each(Queued::mark_again)
    }

    /// An event after everything that is enqueued on compute, where graphs end.
    pub(crate) fn end_of_graph(&mut self) -> Result<Event, CudaError> {
        self.queued[Stream::Compute as usize].record()
    }

    /// Blocks until an event of [`end_of_graph`](Self::end_of_graph) is reached.
    pub(crate) fn wait_for_end(&mut self, end: Event) -> Result<(), CudaError> {
        self.block_for(&end)?;
        self.queued[Stream::Compute as usize].give_back(end);
        Ok(())
    }
}
