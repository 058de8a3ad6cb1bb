//! Kernels whose results show every wrong byte, and the device that the conformance suite tests.

mod shaders;

use crate::address_space::SPARSE_BYTES;
use crate::driver::BufferRange;
use crate::error::{Unavailable, VulkanError};
use crate::kernel::{Compute, Kernel, KernelError};
use crate::{Options, Vulkan, VulkanDevice};
use backend_checks::{Refused, check_host_launch, check_launch};
use integrity::{Backend, Found, HostArithmetic, fill_inputs, fill_states};
use planner_core::backend::{
    DeviceAddress, FillError, HostKernels, HostLaunch, InputWriter, Kernels, Launch, StateWriter,
};
use planner_core::{Graph, Kind, Machine, MachineParameters, OpId};

/// The number of threads in a group, a constant in the source. Every device supports it.
const GROUP: u64 = 128;
/// The most groups of a launch. Each of their threads takes many words.
const MOST_GROUPS: u64 = 4096;

/// Kernels for every op of a graph on one device, with the arithmetic of the crate `integrity`.
#[derive(Clone, Copy, Debug)]
pub struct IntegrityKernels<'g> {
    graph: Graph<'g>,
    passes: Passes,
    /// The op that fails on the host, and the iteration in which it fails.
    failing: Option<(OpId, u64)>,
}

/// The three passes, and the memory for readings and results between them.
#[derive(Clone, Copy, Debug)]
struct Passes {
    read: Kernel,
    combine: Kernel,
    write: Kernel,
    readings: BufferRange,
    /// The distance between two readings, at least 16. Both results lie behind the last reading.
    stride_bytes: u64,
}

/// The immediates of all three passes, in the passes' order.
#[derive(Clone, Copy, Debug, Default)]
struct Immediates {
    skip: u32,
    first: u32,
    words: u32,
    last_mask: u32,
    masks: [u32; 2],
    head: u32,
    number: u32,
    reads: u32,
    stride: u32,
    result: u32,
    repeated: u32,
}

impl Immediates {
    fn words(self) -> [u32; 12] {
        let Self { skip, first, words, last_mask, masks: [low, high], head, .. } = self;
        let Self { number, reads, stride, result, repeated, .. } = self;
        [skip, first, words, last_mask, low, high, head, number, reads, stride, result, repeated]
    }
}

/// A tensor or a workspace, with its offset in a range.
#[derive(Clone, Copy, Debug)]
struct Operand {
    /// A range that begins at the last aligned offset at or before the operand.
    range: BufferRange,
    /// The number of words of the range before the operand.
    skip: u64,
    bytes: u64,
}

/// An operand that an op writes.
#[derive(Clone, Copy, Debug)]
struct Output {
    operand: Operand,
    /// Its position among all operands that the op writes.
    position: u32,
    /// Whether its value follows from all tensors that the op reads. Otherwise it follows only from
    /// tensors that repeats also read.
    of_all: bool,
}

/// One launch of an op.
#[derive(Debug)]
struct Op {
    number: u32,
    /// The number of inputs that repeats also read.
    repeated: u32,
    inputs: Vec<Operand>,
    outputs: Vec<Output>,
}

impl Operand {
    /// Its pieces, each no larger than a binding: the binding, the words that belong to the piece,
    /// and the number of groups.
    fn pieces(self, most_bytes: u64) -> impl Iterator<Item = (BufferRange, Immediates, [u32; 3])> {
        let words = self.bytes.div_ceil(4);
        let most_words = most_bytes / 4;
        let mut next = 0;
        std::iter::from_fn(move || {
            // Counts words of the range, so that each piece starts where a binding may start.
            let (first, skip) = (next, if next == 0 { self.skip } else { 0 });
            let count = (words - first).min(most_words - skip);
            next += count;
            let range = BufferRange {
                offset_bytes: self.range.offset_bytes
                    + 4 * if first == 0 { 0 } else { first + self.skip },
                bytes: 4 * (skip + count),
                ..self.range
            };
            let last_mask = mask(self.bytes - 4 * (words - 1));
            let immediates = Immediates {
                skip: skip as u32,
                first: first as u32,
                words: count as u32,
                last_mask: if next == words { last_mask } else { u32::MAX },
                masks: [mask(self.bytes), mask(self.bytes.saturating_sub(4))],
                head: self.skip as u32,
                ..Immediates::default()
            };
            let groups = count.div_ceil(GROUP).min(MOST_GROUPS) as u32;
            (count > 0).then_some((range, immediates, [groups, 1, 1]))
        })
    }

    /// Its first two words, or its only word.
    fn head(self) -> BufferRange {
        BufferRange { bytes: 4 * (self.skip + self.bytes.div_ceil(4).min(2)), ..self.range }
    }
}

/// The bits of a word's first `bytes` bytes.
fn mask(bytes: u64) -> u32 {
    if bytes >= 4 { u32::MAX } else { (1 << (8 * bytes)) - 1 }
}

impl<'g> IntegrityKernels<'g> {
    /// Compiles the kernels of a graph.
    ///
    /// # Errors
    /// The errors of the driver.
    pub fn new(device: &mut VulkanDevice, graph: Graph<'g>) -> Result<Self, VulkanError> {
        let most_reads = graph.op_ids().map(|op| graph.reads(op).len()).max();
        let stride_bytes = device.binding_alignment_bytes().max(16);
        let mut compiled = |shader| {
            device.compile(shader).map_err(|error| match error {
                KernelError::Driver(error) => error,
                KernelError::Source(text) | KernelError::Limits(text) => {
                    unreachable!("the source is a constant that every device can run: {text}")
                }
            })
        };
        let [take, combine, put] = shaders::passes();
        let [read, combine, write] = [compiled(take)?, compiled(combine)?, compiled(put)?];
        let slots = most_reads.unwrap_or(0) as u64 + 1;
        let readings = device.working_memory(slots * stride_bytes)?;
        let passes = Passes { read, combine, write, readings, stride_bytes };
        Ok(Self { graph, passes, failing: None })
    }
}

impl Kernels<VulkanDevice> for IntegrityKernels<'_> {
    fn launch(
        &mut self,
        device: &mut VulkanDevice,
        launch: &Launch<'_>,
    ) -> Result<(), VulkanError> {
        check_launch(&self.graph, launch)?;
        let integrity::Passes { reads, repeated, writes } =
            integrity::Passes::new(&self.graph, launch);
        let inputs = reads.iter().map(|read| device.operand(read.at, read.bytes));
        let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
        let mut outputs = Vec::new();
        for write in &writes {
            let of_all = write.kind != Kind::Temporary;
            let operand = device.operand(write.at, write.bytes)?;
            outputs.push(Output { operand, position: write.position, of_all });
        }
        let alignment_bytes = device.binding_alignment_bytes();
        let most_bytes = device.most_binding_bytes() / alignment_bytes * alignment_bytes;
        let op = Op { number: launch.op.0, repeated: repeated as u32, inputs, outputs };
        self.passes.launch(&mut device.compute()?, &op, most_bytes)
    }

    fn on_host(&mut self) -> Option<&mut dyn HostKernels<VulkanDevice>> {
        Some(self)
    }

    fn fill_states(
        &mut self,
        states: &mut StateWriter<'_, VulkanDevice>,
    ) -> Result<(), FillError<VulkanError>> {
        fill_states(states)
    }

    fn fill_inputs(
        &mut self,
        inputs: &mut InputWriter<'_, VulkanDevice>,
    ) -> Result<(), FillError<VulkanError>> {
        fill_inputs(inputs)
    }
}

impl HostKernels<VulkanDevice> for IntegrityKernels<'_> {
    fn launch_on_host(
        &mut self,
        device: &mut VulkanDevice,
        launch: &HostLaunch<'_>,
    ) -> Result<(), VulkanError> {
        check_host_launch(&self.graph, launch)?;
        let arithmetic = HostArithmetic::new(&self.graph, launch.op).failing(self.failing);
        device.launch_on_host(launch, move |mut run| {
            let values = arithmetic.values(run.iteration, |position| run.read(position));
            values.map(|values| arithmetic.write(values, &mut run.writes))
        })
    }
}

impl VulkanDevice {
    fn operand(&self, at: DeviceAddress, bytes: u64) -> Result<Operand, VulkanError> {
        let range = self.range(at, bytes.next_multiple_of(4))?;
        if !range.offset_bytes.is_multiple_of(4) {
            return Err(Refused::Misaligned(at).into());
        }
        let before = range.offset_bytes % self.binding_alignment_bytes();
        let range = BufferRange {
            offset_bytes: range.offset_bytes - before,
            bytes: range.bytes + before,
            ..range
        };
        Ok(Operand { range, skip: before / 4, bytes })
    }
}

impl Passes {
    fn launch(
        self,
        compute: &mut Compute<'_>,
        op: &Op,
        most_bytes: u64,
    ) -> Result<(), VulkanError> {
        let Op { number, repeated, inputs, outputs } = op;
        let stride_bytes = self.stride_bytes;
        compute.fill(self.readings, 0)?;
        compute.barrier();
        for (index, input) in (0..).zip(inputs) {
            let reading = BufferRange {
                offset_bytes: index * stride_bytes,
                bytes: stride_bytes,
                ..self.readings
            };
            for (at, (piece, immediates, groups)) in input.pieces(most_bytes).enumerate() {
                if at > 0 {
                    compute.barrier();
                }
                let bindings = [input.head(), piece, reading];
                compute.dispatch(self.read, &bindings, &immediates.words(), groups)?;
            }
        }
        compute.barrier();
        let result = (self.readings.bytes / 4 - stride_bytes / 4) as u32;
        let all = Immediates {
            number: *number,
            reads: inputs.len() as u32,
            repeated: *repeated,
            stride: (stride_bytes / 4) as u32,
            result,
            ..Immediates::default()
        };
        compute.dispatch(self.combine, &[self.readings], &all.words(), [1, 1, 1])?;
        for &Output { operand, position, of_all } in outputs {
            let result = result + if of_all { 2 } else { 0 };
            for (piece, immediates, groups) in operand.pieces(most_bytes) {
                // The bindings of neighbours may overlap in the words before an operand.
                compute.barrier();
                let immediates = Immediates { number: position, result, ..immediates };
                let bindings = [self.readings, piece];
                compute.dispatch(self.write, &bindings, &immediates.words(), groups)?;
            }
        }
        Ok(())
    }
}

/// The environment variable with a part of the device's name.
const DEVICE: &str = "SPILLWAY_VULKAN_DEVICE";

/// Opens this machine's Vulkan devices for integrity kernels and the conformance suite.
#[derive(Clone, Debug, Default)]
pub struct Integrity {
    /// A part of the device's name. `None` for the fastest kind of device.
    pub device: Option<String>,
    /// See [`Options::sparse_bytes`].
    pub sparse_bytes: Option<u64>,
    /// Whether Khronos' layer checks every call and all synchronisation. Then each of its messages
    /// is an error when the device is closed.
    pub validation: bool,
}

impl Integrity {
    /// The speed for which the suite plans if nothing was measured.
    const BYTES_PER_S: u64 = 10_000_000_000;

    /// The device and the limit of its addresses that the environment names.
    ///
    /// # Errors
    /// The limit in the environment is not a number.
    pub fn from_environment(validation: bool) -> Result<Self, Unavailable> {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let sparse_bytes = set(SPARSE_BYTES).map(|limit| {
            limit.to_str().and_then(|limit| limit.parse().ok()).ok_or_else(|| {
                Unavailable(format!("{SPARSE_BYTES} is {limit:?}, but must be a number of bytes"))
            })
        });
        let device = set(DEVICE).map(|name| name.to_string_lossy().into_owned());
        Ok(Self { device, sparse_bytes: sparse_bytes.transpose()?, validation })
    }

    /// The options to open the device with.
    #[must_use]
    pub fn options(&self) -> Options<'_> {
        let device = self.device.as_deref();
        Options { device, sparse_bytes: self.sparse_bytes, chunk_bytes: None }
    }
}

impl Backend for Integrity {
    type Error = VulkanError;
    type Device = VulkanDevice;
    type Kernels<'g> = IntegrityKernels<'g>;

    fn name(&self) -> &'static str {
        "vulkan"
    }

    fn find(&self) -> Result<Found, String> {
        let vulkan = Vulkan::load(self.validation).map_err(|error| error.to_string())?;
        let info = vulkan.device(&self.options()).map_err(|error| error.to_string())?;
        let parameters = MachineParameters::new()
            .with_device_bytes(info.memory_bytes)
            .with_host_bytes(info.host_bytes)
            // The least chunks, since the suite maps ten thousand ranges, and lavapipe has few
            // addresses.
            .with_chunk_bytes(info.page_bytes)
            .with_h2d_bytes_per_s(Self::BYTES_PER_S)
            .with_d2h_bytes_per_s(Self::BYTES_PER_S)
            .with_transfer_latency_ns(10_000)
            .with_map_ns_per_chunk(10_000)
            .with_unmap_ns_per_chunk(10_000);
        let machine = Machine::new(parameters).map_err(|error| error.to_string())?;
        Ok(Found { device: format!("{}, {}", info.name, info.driver), machine })
    }

    fn open(&self, machine: Machine, _: u64) -> Result<VulkanDevice, String> {
        let options = Options { chunk_bytes: Some(machine.chunk_bytes), ..self.options() };
        let vulkan = Vulkan::load(self.validation).map_err(|error| error.to_string())?;
        vulkan.open(&options).map_err(|error| error.to_string())
    }

    fn kernels<'g>(
        &self,
        device: &mut VulkanDevice,
        graph: Graph<'g>,
    ) -> Result<IntegrityKernels<'g>, VulkanError> {
        IntegrityKernels::new(device, graph)
    }

    /// With validation, since the layer may crash: see [`Vulkan::load`].
    fn one_at_a_time(&self) -> bool {
        self.validation
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

    fn close(&self, device: VulkanDevice) -> Result<(), String> {
        let messages = device.device.messages();
        drop(device);
        let messages = messages.take();
        if messages.is_empty() { Ok(()) } else { Err(messages.join("\n")) }
    }
}
