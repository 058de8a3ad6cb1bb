//! Work that is captured once and launched many times.

use crate::CudaDevice;
use crate::driver::{self, Event, Executable, HostTask};
use crate::error::CudaError;
use crate::stream::Queued;
use planner_core::Stream;
use std::fmt;
use std::sync::Arc;

/// Captured work of one device. Only that device can launch it, and only until it unmaps memory.
pub struct Graph {
    captured: Executable,
    /// The number of the device.
    device: u64,
    /// The number of times that the device had unmapped memory at the capture.
    unmap_calls: u64,
    /// Whether a kernel of it reads the number of its iteration.
    shows_iteration: bool,
    /// Its ops on the host, each with the captured iteration.
    host_tasks: Vec<(u64, Arc<HostTask>)>,
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph").field("device", &self.device).finish_non_exhaustive()
    }
}

/// The streams other than compute. A graph begins and ends on compute.
const OTHERS: [Stream; 4] = [Stream::Upload, Stream::Download, Stream::Host, Stream::Network];

impl CudaDevice {
    /// Captures all work that is enqueued on any stream from now on, instead of running it, until
    /// [`CudaDevice::end_capture`].
    ///
    /// A graph runs after all work that was enqueued before its launch, so waits for points from
    /// before the capture are left out. Signals count as usual: their points are reached once a
    /// launch of the graph has run.
    ///
    /// # Errors
    /// Another capture is under way, and the errors of the driver. Until the end of the capture, it
    /// is also an error to map or unmap memory, and for the host to ask for a point of the graph.
    pub fn begin_capture(&mut self) -> Result<(), CudaError> {
        if self.is_capturing() {
            return Err(CudaError::CapturedTwice);
        }
        self.allow_access()?;
        // A capture can neither load kernels nor allocate memory.
        self.iteration_words()?;
        self.shown.forget();
        driver::begin_capture(self.queued[Stream::Compute as usize].stream())?;
        self.queued.iter_mut().for_each(Queued::capture);
        self.fork()
    }

    /// Makes later work of all other streams wait for compute.
    fn fork(&mut self) -> Result<(), CudaError> {
        OTHERS.into_iter().try_for_each(|stream| self.follow(stream, Stream::Compute))
    }

    /// Makes later work of compute wait for all other streams.
    fn join(&mut self) -> Result<(), CudaError> {
        OTHERS.into_iter().try_for_each(|stream| self.follow(Stream::Compute, stream))
    }

    /// Ends a capture.
    ///
    /// # Errors
    /// No capture is under way, and the errors of the driver. After an error of the driver, no
    /// capture is under way.
    pub fn end_capture(&mut self) -> Result<Graph, CudaError> {
        if !self.is_capturing() {
            return Err(CudaError::NotCaptured);
        }
        let joined = self.join();
        let ended = Executable::end_capture(self.queued[Stream::Compute as usize].stream());
        self.queued.iter_mut().for_each(Queued::forget_captured);
        let host_tasks = self.host_ops.end_capture();
        let shows_iteration = self.shown.forget();
        joined?;
        let unmap_calls = self.counters.unmap_calls;
        let (captured, device) = (ended?, self.number);
        Ok(Graph { captured, device, unmap_calls, shows_iteration, host_tasks })
    }

    /// Fails if this device cannot launch the graph.
    pub(crate) fn check_graph(&self, graph: &Graph) -> Result<(), CudaError> {
        if graph.device != self.number {
            return Err(CudaError::ForeignGraph);
        }
        if graph.unmap_calls != self.counters.unmap_calls {
            return Err(CudaError::LateGraph);
        }
        if self.is_capturing() { Err(CudaError::CapturedTwice) } else { Ok(()) }
    }

    /// Enqueues a graph of this device after all earlier work and before all later work. The last
    /// point of each stream is reached once the graph has run.
    ///
    /// Kernels that read [`CudaDevice::iteration`] and ops on the host get the captured number plus
    /// `iterations_later`.
    ///
    /// # Errors
    /// The graph is of another device, memory was unmapped since the capture, a capture is under
    /// way, and the errors of the driver.
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
        self.shown.forget();
        self.fork()?;
        self.queued.iter_mut().try_for_each(Queued::mark_again)
    }

    /// An event after all work that is enqueued on compute, where graphs end.
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
