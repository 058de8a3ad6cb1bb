//! The backend on the emulated driver, which lets waits fail and notices what is freed while work
//! uses it; perhaps with a bug.

use backend_cuda::{CudaDevice, CudaError, Graph as CudaGraph, Integrity, IntegrityKernels};
use emulated_cuda::Emulated;
use integrity::{Backend, Found, Graphs};
use planner_core::backend::{Chunks, DeviceAddress, HostRange, Launch, Paging, Transfers};
use planner_core::{Graph, Machine, OpId, Stream};

/// What is wrong with a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    None,
    /// Graphs keep the iteration that was captured.
    FreezesTheIteration,
    /// Graphs are taken and not launched.
    LosesGraphs,
    /// Graphs of other devices, and those whose memory is gone, are taken and not launched.
    TakesAnyGraph,
    /// A device is opened once the work of all others has ended.
    WaitsBeforeOpening,
    /// Kernels have the offsets of words in 32 bits.
    CutsOffsets,
    /// A device that is dropped unmaps what an upload is to write.
    UnmapsBeforeTheEnd,
}

pub(crate) struct Watched {
    pub(crate) integrity: Integrity,
    pub(crate) emulated: Emulated,
    pub(crate) bug: Bug,
}

/// `CUDA_ERROR_TIMEOUT`, which says nothing of the work.
const TIMEOUT: u32 = 909;

impl Backend for Watched {
    type Error = CudaError;
    type Device = CudaDevice;
    type Kernels<'g> = IntegrityKernels<'g>;

    fn name(&self) -> &'static str {
        self.integrity.name()
    }

    fn find(&self) -> Result<Found, String> {
        self.integrity.find()
    }

    fn open(&self, machine: Machine, order: u64) -> Result<CudaDevice, String> {
        let mut device = self.integrity.open(machine, order)?;
        if self.bug == Bug::WaitsBeforeOpening {
            let compute = device.lend(Stream::Compute).map_err(|error| error.to_string())?;
            // Whether that is allowed is another matter.
            let _ = compute.context.synchronize();
        }
        Ok(device)
    }

    fn kernels<'g>(
        &self,
        device: &mut CudaDevice,
        graph: Graph<'g>,
    ) -> Result<IntegrityKernels<'g>, CudaError> {
        self.integrity.kernels(device, graph)
    }

    fn sparse_kernels<'g>(
        &self,
        device: &mut CudaDevice,
        graph: Graph<'g>,
        spread_words: u64,
    ) -> Result<IntegrityKernels<'g>, String> {
        if self.bug == Bug::CutsOffsets {
            self.emulated.load_instead(cut_offsets().leak());
        }
        self.integrity.sparse_kernels(device, graph, spread_words)
    }

    fn close(&self, mut device: CudaDevice) -> Result<(), String> {
        let before = self.emulated.counters().freed_in_use;
        if self.bug == Bug::UnmapsBeforeTheEnd {
            // Devices without memory have nothing to unmap.
            let _ = upload_and_unmap(&mut device);
        }
        drop(device);
        let freed = self.emulated.counters().freed_in_use - before;
        if freed == 0 { Ok(()) } else { Err(format!("{freed} ranges were freed while in use")) }
    }

    fn fail_host_op(
        &self,
        kernels: &mut IntegrityKernels<'_>,
        op: OpId,
        iteration: u64,
    ) -> Result<(), String> {
        self.integrity.fail_host_op(kernels, op, iteration)
    }

    fn fail_next_wait(&self, _: &mut CudaDevice) -> Result<(), String> {
        self.emulated.inject("cuStreamSynchronize", TIMEOUT);
        Ok(())
    }
}

/// The kernels, with what makes an offset of an index cut to 32 bits.
fn cut_offsets() -> String {
    let mut cut = String::new();
    for line in include_str!("../../src/kernels.ptx").lines() {
        cut += line;
        cut += "\n";
        if let Some(shift) = line.trim().strip_prefix("shl.b64") {
            let offset = shift.split(',').next().unwrap_or_default().trim();
            cut += &format!("and.b64 {offset}, {offset}, {};\n", u32::MAX);
        }
    }
    cut
}

fn upload_and_unmap(device: &mut CudaDevice) -> Result<(), CudaError> {
    let at = device.reserve(1)?;
    device.map(at, Chunks { first: 0, count: 1 })?;
    device.upload(HostRange { offset_bytes: 0, bytes: 64 }, at)?;
    device.unmap(at, 1)
}

impl Graphs for Watched {
    type Graph = CudaGraph;

    fn begin_capture(&self, device: &mut CudaDevice) -> Result<(), CudaError> {
        self.integrity.begin_capture(device)
    }

    fn end_capture(&self, device: &mut CudaDevice) -> Result<CudaGraph, CudaError> {
        self.integrity.end_capture(device)
    }

    fn launch_graph(
        &self,
        device: &mut CudaDevice,
        graph: &CudaGraph,
        iterations_later: u64,
    ) -> Result<(), CudaError> {
        let later = if self.bug == Bug::FreezesTheIteration { 0 } else { iterations_later };
        if self.bug == Bug::LosesGraphs {
            return Ok(());
        }
        match self.integrity.launch_graph(device, graph, later) {
            Err(_) if self.bug == Bug::TakesAnyGraph => Ok(()),
            launched => launched,
        }
    }

    fn write_iteration(
        &self,
        device: &mut CudaDevice,
        launch: &Launch<'_>,
        at: DeviceAddress,
    ) -> Result<(), CudaError> {
        self.integrity.write_iteration(device, launch, at)
    }
}
