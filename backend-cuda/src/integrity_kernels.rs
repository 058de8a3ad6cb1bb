//! Kernels whose results show every wrong byte, and the device that the conformance suite tests.

use crate::driver::{self, Argument::Long, Argument::Word};
use crate::error::{CudaError, Unavailable};
use crate::{Cuda, CudaDevice, Options};
use backend_checks::{Refused, check_host_launch, check_launch};
use integrity::{
    Backend, Found, Graphs, HostArithmetic, Passes, RUN_WORDS, Read, Write, fill_inputs,
    fill_states,
};
use planner_core::backend::{
    DeviceAddress, FillError, HostKernels, HostLaunch, InputWriter, Kernels, Launch, StateWriter,
};
use planner_core::{Graph, Kind, Machine, MachineParameters, OpId, Stream};
use std::path::PathBuf;

/// The number of threads in a block.
const THREADS: u32 = RUN_WORDS as u32;

/// Blocks and threads for a tensor. With the most blocks, each thread takes many words.
fn grid(bytes: u64, spread_words: u64, most_blocks: u64) -> [u32; 2] {
    let blocks = bytes.div_ceil(4).div_ceil(spread_words).clamp(1, most_blocks);
    [blocks as u32, THREADS]
}

/// The size of a reading, as in the source.
const READING_BYTES: u64 = 12;
/// The size of a result. An op has two results.
const RESULT_BYTES: u64 = 8;

/// Kernels for every op of a graph on one device, with the arithmetic of the crate `integrity`.
#[derive(Clone, Copy, Debug)]
pub struct IntegrityKernels<'g> {
    graph: Graph<'g>,
    /// The memory of the launches on compute and on the network, which run at once.
    working: [Memory; 2],
    /// The distance in words between the starts of the runs that are touched.
    spread_words: u64,
    /// The op that fails on the host, and the iteration in which it fails.
    failing: Option<(OpId, u64)>,
}

/// The memory that one launch needs beside its tensors.
#[derive(Clone, Copy, Debug)]
struct Memory {
    /// The address of a reading for each operand of the op with the most operands.
    readings: u64,
    /// The address of the two results of an op.
    results: u64,
}

impl Memory {
    /// Allocates memory for the launches of a stream. The deviations of its readings are zero.
    fn new(device: &mut CudaDevice, of: Stream, most_reads: u64) -> Result<Self, CudaError> {
        let bytes = most_reads * READING_BYTES;
        let readings = device.working_memory(bytes + 2 * RESULT_BYTES)?;
        driver::fill(device.queued[of as usize].stream(), readings, bytes + 2 * RESULT_BYTES)?;
        Ok(Self { readings, results: readings + bytes })
    }
}

impl<'g> IntegrityKernels<'g> {
    /// Loads the kernels of a graph.
    ///
    /// # Errors
    /// The errors of the driver.
    pub fn new(device: &mut CudaDevice, graph: Graph<'g>) -> Result<Self, CudaError> {
        device.load_kernels()?;
        let most_reads = graph.op_ids().map(|op| graph.reads(op).len()).max();
        let mut memory = |of| Memory::new(device, of, most_reads.unwrap_or(0) as u64);
        let working = [memory(Stream::Compute)?, memory(Stream::Network)?];
        Ok(Self { graph, working, spread_words: RUN_WORDS, failing: None })
    }
}

impl Kernels<CudaDevice> for IntegrityKernels<'_> {
    fn launch(&mut self, device: &mut CudaDevice, launch: &Launch<'_>) -> Result<(), CudaError> {
        device.allow_access()?;
        device.load_kernels()?;
        check_launch(&self.graph, launch)?;
        let Passes { reads, repeated, writes } = Passes::new(&self.graph, launch);
        let operands = reads.iter().map(|read| (read.at, read.bytes));
        device.check_mapped(operands.chain(writes.iter().map(|write| (write.at, write.bytes))))?;
        let Some(kernels) = &device.kernels else { return Ok(()) };
        let stream = device.queued[launch.stream as usize].stream();
        let Memory { readings, results } =
            self.working[usize::from(launch.stream == Stream::Network)];
        let spread_words = self.spread_words;
        let most_blocks = kernels.most_blocks;
        for (number, &Read { at, bytes, .. }) in (0..).zip(&reads) {
            let reading = readings + number * READING_BYTES;
            let arguments = [Long(at.0), Long(bytes), Long(reading), Long(spread_words)];
            let grid = grid(bytes, spread_words, most_blocks);
            driver::launch(stream, kernels.read, grid, &arguments)?;
        }
        let [repeated, count] = [repeated, reads.len()].map(|count| Word(count as u32));
        let arguments = [Long(readings), Long(results), Word(launch.op.0), repeated, count];
        driver::launch(stream, kernels.combine, [1, 1], &arguments)?;
        for &Write { kind, position, at, bytes, .. } in &writes {
            let result = if kind == Kind::Temporary { results } else { results + RESULT_BYTES };
            let arguments =
                [Long(at.0), Long(bytes), Long(result), Word(position), Long(spread_words)];
            let grid = grid(bytes, spread_words, most_blocks);
            driver::launch(stream, kernels.write, grid, &arguments)?;
        }
        Ok(())
    }

    fn on_host(&mut self) -> Option<&mut dyn HostKernels<CudaDevice>> {
        Some(self)
    }

    fn fill_states(
        &mut self,
        states: &mut StateWriter<'_, CudaDevice>,
    ) -> Result<(), FillError<CudaError>> {
        fill_states(states)
    }

    fn fill_inputs(
        &mut self,
        inputs: &mut InputWriter<'_, CudaDevice>,
    ) -> Result<(), FillError<CudaError>> {
        fill_inputs(inputs)
    }
}

impl HostKernels<CudaDevice> for IntegrityKernels<'_> {
    fn launch_on_host(
        &mut self,
        device: &mut CudaDevice,
        launch: &HostLaunch<'_>,
    ) -> Result<(), CudaError> {
        check_host_launch(&self.graph, launch)?;
        let arithmetic = HostArithmetic::new(&self.graph, launch.op);
        let arithmetic = arithmetic.sparse(self.spread_words).failing(self.failing);
        device.launch_on_host(launch, move |mut run| {
            let values = arithmetic.values(run.iteration, |position| run.read(position));
            values.map(|values| arithmetic.write(values, &mut run.writes))
        })
    }
}

impl CudaDevice {
    /// Checks that each operand, an address and a size in bytes, is completely mapped, and that
    /// kernels can use its address.
    fn check_mapped(
        &self,
        operands: impl IntoIterator<Item = (DeviceAddress, u64)>,
    ) -> Result<(), Refused> {
        operands.into_iter().try_for_each(|(at, bytes)| {
            if !at.0.is_multiple_of(4) {
                return Err(Refused::Misaligned(at));
            }
            self.space.addresses.check_mapped(at, bytes.next_multiple_of(4)).map(drop)
        })
    }
}

/// The environment variable that names a library to use as the driver, instead of the system's.
const DRIVER: &str = "SPILLWAY_CUDA_DRIVER";
/// The environment variable for the index of the device.
const DEVICE: &str = "SPILLWAY_CUDA_DEVICE";

/// Opens this machine's CUDA devices for integrity kernels and the conformance suite.
#[derive(Clone, Debug, Default)]
pub struct Integrity {
    /// The library of the driver. `None` for the system's.
    pub driver: Option<PathBuf>,
    /// The device's index among the devices.
    pub ordinal: usize,
}

impl Integrity {
    /// The speed for which the suite plans if nothing was measured.
    const BYTES_PER_S: u64 = 10_000_000_000;

    /// The driver and the device that the environment names. By default, the system's driver and
    /// its first device.
    ///
    /// # Errors
    /// The device in the environment is not a number.
    pub fn from_environment() -> Result<Self, Unavailable> {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let ordinal = set(DEVICE).map_or(Ok(0), |device| {
            let ordinal = device.to_str().and_then(|device| device.parse().ok());
            ordinal.ok_or_else(|| {
                Unavailable(format!(
                    "{DEVICE} is {device:?}, but must be a device number from 0 on"
                ))
            })
        });
        Ok(Self { driver: set(DRIVER).map(PathBuf::from), ordinal: ordinal? })
    }
}

impl Backend for Integrity {
    type Error = CudaError;
    type Device = CudaDevice;
    type Kernels<'g> = IntegrityKernels<'g>;

    fn name(&self) -> &'static str {
        "cuda"
    }

    fn find(&self) -> Result<Found, String> {
        let info = Cuda::load(self.driver.as_deref())?.device(self.ordinal)?;
        let parameters = MachineParameters::new()
            .with_device_bytes(info.free_bytes)
            .with_host_bytes(info.host_bytes)
            .with_chunk_bytes(info.granularity_bytes)
            .with_h2d_bytes_per_s(Self::BYTES_PER_S)
            .with_d2h_bytes_per_s(Self::BYTES_PER_S)
            .with_transfer_latency_ns(10_000)
            .with_map_ns_per_chunk(40_000)
            .with_unmap_ns_per_chunk(40_000);
        let machine = Machine::new(parameters).map_err(|error| error.to_string())?;
        Ok(Found { device: format!("{}, {}", info.name, info.driver), machine })
    }

    fn open(&self, machine: Machine, _: u64) -> Result<CudaDevice, String> {
        let chunk_bytes = Some(machine.chunk_bytes);
        let options = Options { ordinal: self.ordinal, chunk_bytes };
        Ok(Cuda::load(self.driver.as_deref())?.open(&options)?)
    }

    fn kernels<'g>(
        &self,
        device: &mut CudaDevice,
        graph: Graph<'g>,
    ) -> Result<IntegrityKernels<'g>, CudaError> {
        IntegrityKernels::new(device, graph)
    }

    fn sparse_kernels<'g>(
        &self,
        device: &mut CudaDevice,
        graph: Graph<'g>,
        spread_words: u64,
    ) -> Result<IntegrityKernels<'g>, String> {
        let kernels = IntegrityKernels::new(device, graph).map_err(|error| error.to_string())?;
        Ok(IntegrityKernels { spread_words: spread_words.max(RUN_WORDS), ..kernels })
    }

    fn fail_host_op(
        &self,
        kernels: &mut IntegrityKernels<'_>,
        op: OpId,
        iteration: u64,
    ) -> Result<(), String> {
        kernels.failing = Some((op, iteration));
        Ok(())
    }
}

impl Graphs for Integrity {
    type Graph = crate::Graph;

    fn begin_capture(&self, device: &mut CudaDevice) -> Result<(), CudaError> {
        device.begin_capture()
    }

    fn end_capture(&self, device: &mut CudaDevice) -> Result<crate::Graph, CudaError> {
        device.end_capture()
    }

    fn launch_graph(
        &self,
        device: &mut CudaDevice,
        graph: &crate::Graph,
        iterations_later: u64,
    ) -> Result<(), CudaError> {
        device.launch_graph(graph, iterations_later)
    }

    fn write_iteration(
        &self,
        device: &mut CudaDevice,
        launch: &Launch<'_>,
        at: DeviceAddress,
    ) -> Result<(), CudaError> {
        device.check_mapped([(at, 8)])?;
        device.write_iteration(launch, at)
    }
}
