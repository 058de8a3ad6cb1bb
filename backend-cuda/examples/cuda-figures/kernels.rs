//! Kernels that last as long as was recorded of the ops.

use backend_cuda::{Cuda, CudaDevice, CudaError, Options};
use planner_core::backend::{FillError, InputWriter, Kernels, Launch, StateWriter, Streams};
use planner_core::{Graph, Stream};

/// Kernels in a row, and how long each waits.
const ROW: u32 = 200;
const ROW_NS: u64 = 50_000;
/// How long a stream is kept busy while a row is enqueued.
const GATE_NS: u64 = 20_000_000;
const REPEATS: usize = 5;

/// What launching a kernel that waits costs the device besides, of those that follow each other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Occupying {
    pub(crate) eager_ns: u64,
    pub(crate) graph_ns: u64,
}

impl Occupying {
    /// Measures rows of kernels, each with its signal.
    pub(crate) fn measure(cuda: &Cuda, options: &Options) -> Result<Self, String> {
        let mut device = cuda.open(options)?;
        let mut least = |as_graph| -> Result<u64, CudaError> {
            let mut times_ns = (0..REPEATS).map(|_| row_ns(&mut device, as_graph));
            times_ns.try_fold(u64::MAX, |least, ns| Ok(least.min(ns?)))
        };
        let rows = least(false).and_then(|eager_ns| Ok((eager_ns, least(true)?)));
        let (eager_ns, graph_ns) = rows.map_err(|error| error.to_string())?;
        Ok(Self { eager_ns, graph_ns })
    }

    pub(crate) fn print(&self) {
        let Self { eager_ns, graph_ns } = self;
        println!(
            "A kernel that waits takes {eager_ns} ns longer than it waits, and {graph_ns} ns as \
             part of a graph, so it waits less.\n"
        );
    }
}

/// What a kernel of a row takes beyond its wait.
fn row_ns(device: &mut CudaDevice, as_graph: bool) -> Result<u64, CudaError> {
    device.occupy(Stream::Compute, 1)?;
    let row = |device: &mut CudaDevice| -> Result<(), CudaError> {
        for _ in 0..ROW {
            device.occupy(Stream::Compute, ROW_NS)?;
            device.signal(Stream::Compute)?;
        }
        Ok(())
    };
    let captured = if as_graph {
        device.begin_capture()?;
        row(device)?;
        Some(device.end_capture()?)
    } else {
        None
    };
    device.occupy(Stream::Compute, GATE_NS)?;
    let start = device.timestamp(Stream::Compute)?;
    match &captured {
        Some(graph) => device.launch_graph(graph, 0)?,
        None => row(device)?,
    }
    let end = device.timestamp(Stream::Compute)?;
    device.wait_idle()?;
    Ok((start.ns_until(&end)? as u64 / u64::from(ROW)).saturating_sub(ROW_NS))
}

/// Kernels that last as long as the ops, launch included, whatever tensors hold.
pub(crate) struct Recorded<'g> {
    pub(crate) graph: Graph<'g>,
    /// What a launch takes by itself.
    pub(crate) launch_ns: u64,
}

impl Kernels<CudaDevice> for Recorded<'_> {
    fn launch(&mut self, device: &mut CudaDevice, launch: &Launch<'_>) -> Result<(), CudaError> {
        let time_ns = self.graph.op(launch.op).time_ns;
        device.occupy(Stream::Compute, time_ns.saturating_sub(self.launch_ns))
    }

    fn fill_states(
        &mut self,
        _: &mut StateWriter<'_, CudaDevice>,
    ) -> Result<(), FillError<CudaError>> {
        Ok(())
    }

    fn fill_inputs(
        &mut self,
        _: &mut InputWriter<'_, CudaDevice>,
    ) -> Result<(), FillError<CudaError>> {
        Ok(())
    }
}
