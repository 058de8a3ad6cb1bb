//! A device under test, and short calls for the work that checks do with it.

use super::Bench;
use super::failure::{Failure, Outcome, ensure};
use integrity::{Backend, FoldOrder, Reading, Value, value};
use planner_core::backend::{
    Chunks, DeviceAddress, DeviceRange, DeviceRanges, HostLaunch, HostRange, HostRanges,
    InputWriter, Kernels, Launch, Paging, Point, StateWriter, Streams, Transfers,
};
use planner_core::planner::{Request, Strategy};
use planner_core::{
    Graph, HostLayout, Kind, Launched, Limits, Machine, OpId, Scratch, Stream, TensorId,
};
use spillway::planning;
use std::iter;
use std::ops::Range;
use workloads::OwnedGraph;

/// The number of chunks for checks.
const CHUNKS: u64 = 32;
/// The number of launches or copies that keep a stream busy.
const BUSY_STEPS: usize = 8;

pub(super) const A: TensorId = TensorId(0);
pub(super) const B: TensorId = TensorId(1);
pub(super) const C: TensorId = TensorId(2);
pub(super) const D: TensorId = TensorId(3);
/// A state that a link copies in a millisecond.
const LOAD: TensorId = TensorId(4);

/// The state that ops on the host update while other streams wait.
const HOST_LOAD: TensorId = TensorId(15);
/// A state of nine bytes.
pub(super) const COUNT: TensorId = TensorId(16);
/// The most bytes of [`HOST_LOAD`]. An op on the host takes about a tenth of a millisecond for
/// them.
const HOST_LOAD_BYTES: u64 = 64 << 10;

/// Reads [`A`], writes [`B`].
pub(super) const COPY: OpId = OpId(0);
/// Reads and writes [`C`], reads [`D`].
pub(super) const UPDATE: OpId = OpId(1);
/// Reads [`A`], writes [`B`], and has a workspace of the same size.
pub(super) const WASTE: OpId = OpId(2);
/// Reads and writes [`LOAD`].
const WORK: OpId = OpId(3);

/// Ops that read and write a small state and read [`A`], with the sizes of the states in bytes.
pub(super) const SMALL: [(OpId, TensorId, u64); 7] = [
    (OpId(4), TensorId(5), 1),
    (OpId(5), TensorId(6), 2),
    (OpId(6), TensorId(7), 3),
    (OpId(7), TensorId(8), 4),
    (OpId(8), TensorId(9), 5),
    (OpId(9), TensorId(10), 8),
    (OpId(10), TensorId(11), 9),
];

/// An input that no op reads.
pub(super) const INPUT: TensorId = TensorId(12);

/// Repeatable: reads [`C`], [`A`] and [`FLAGS`] and writes [`C`], [`MADE`] and [`FLAGS`], in this
/// order. It has a workspace of the same size.
pub(super) const NORM: OpId = OpId(11);
/// Repeatable: updates [`MADE`] in place, and reads [`D`].
pub(super) const GROW: OpId = OpId(12);
/// Reads and writes [`HOST_LOAD`].
const HOST_WORK: OpId = OpId(13);
/// Reads and writes [`COUNT`].
pub(super) const TICK: OpId = OpId(14);
/// A temporary.
pub(super) const MADE: TensorId = TensorId(13);
/// An input that an op updates in place.
pub(super) const FLAGS: TensorId = TensorId(14);

/// The graph of all rigs on a machine. The states `A` to `D` have two and a half chunks and three
/// bytes each. Other tensors serve single checks.
pub(super) fn work(machine: &Machine) -> OwnedGraph {
    let bytes = 2 * machine.chunk_bytes + machine.chunk_bytes / 2 + 3;
    let load_bytes = machine.h2d_bytes_per_s / 1000;
    let load_bytes = load_bytes.clamp(1, (machine.device_bytes / 8).max(1));
    let mut graph = OwnedGraph::new("rig");
    for name in ["a", "b", "c", "d"] {
        graph.push_tensor(name, bytes, Kind::State);
    }
    graph.push_tensor("load", load_bytes, Kind::State);
    graph.push_op("copy", 1, 0, &[A], &[B]);
    graph.push_op("update", 1, 0, &[C, D], &[C]);
    graph.push_op("waste", 1, bytes, &[A], &[B]);
    graph.push_op("work", 1, 0, &[LOAD], &[LOAD]);
    for (_, small, bytes) in SMALL {
        graph.push_tensor("small", bytes, Kind::State);
        graph.push_op("small", 1, 0, &[small, A], &[small]);
    }
    graph.push_tensor("input", bytes, Kind::Input);
    graph.push_tensor("made", bytes, Kind::Temporary);
    graph.push_tensor("flags", bytes, Kind::Input);
    graph.push_op("norm", 1, bytes, &[C, A, FLAGS], &[C, MADE, FLAGS]);
    graph.push_op("grow", 1, 0, &[MADE, D], &[MADE]);
    graph.set_repeatable(NORM);
    graph.set_repeatable(GROW);
    graph.push_tensor("host load", load_bytes.min(HOST_LOAD_BYTES), Kind::State);
    graph.push_tensor("count", 9, Kind::State);
    graph.push_op("host work", 1, 0, &[HOST_LOAD], &[HOST_LOAD]);
    graph.push_op("tick", 1, 0, &[COUNT], &[COUNT]);
    for op in [COPY, UPDATE, HOST_WORK, TICK] {
        graph.set_host_ns(op, 1);
    }
    graph
}

/// A fresh device with a small graph. Kernels, the host block, chunks and ranges are made when a
/// check asks for them.
#[derive(Debug)]
pub struct Rig<'g, T: Backend> {
    backend: &'g T,
    graph: Graph<'g>,
    machine: Machine,
    device: T::Device,
    kernels: Option<T::Kernels<'g>>,
    /// The start of the slots of each tensor, once the block is created.
    slots: Vec<[u64; 2]>,
    block_bytes: u64,
    /// The number of chunks that [`Rig::range`] has mapped.
    used_chunks: u64,
    /// The range of [`LOAD`].
    load: Option<DeviceAddress>,
}

impl<'g, T: Backend> Rig<'g, T> {
    /// Opens a device.
    pub(super) fn open(bench: &Bench<'g, T>, work: &'g OwnedGraph) -> Outcome<Self> {
        let (graph, machine) = (work.graph()?, bench.machine);
        let device = bench.backend.open(machine, bench.order).map_err(Failure::new)?;
        Ok(Self {
            backend: bench.backend,
            graph,
            machine,
            device,
            kernels: None,
            slots: Vec::new(),
            block_bytes: 0,
            used_chunks: 0,
            load: None,
        })
    }

    /// Closes the device.
    pub(super) fn close(self) -> Outcome {
        self.backend.close(self.device).map_err(Failure::new)
    }

    /// Makes the device's next wait for all work of a stream fail.
    pub(super) fn fail_next_wait(&mut self) -> Outcome {
        self.backend.fail_next_wait(&mut self.device).map_err(Failure::unsupported)
    }

    /// Ends a check of ops on the host if the device has no host stream or the kernels have no ops
    /// for it.
    pub(super) fn needs_host_stream(&mut self) -> Outcome {
        if !self.device.has_host_stream() {
            return Err(Failure::unsupported("the device has no stream for ops on the host"));
        }
        match self.kernels()?.1.on_host() {
            Some(_) => Ok(()),
            None => Err(Failure::unsupported("the integrity kernels have no ops for the host")),
        }
    }

    /// Ends a check of collectives if the device has no stream for them.
    pub(super) fn needs_network_stream(&self) -> Outcome {
        match self.device.has_network_stream() {
            true => Ok(()),
            false => Err(Failure::unsupported("the device has no stream for collectives")),
        }
    }

    /// Makes an op fail when it runs on the host in an iteration.
    pub(super) fn fail_host_op(&mut self, op: OpId, iteration: u64) -> Outcome {
        let backend = self.backend;
        let kernels = self.kernels()?.1;
        backend.fail_host_op(kernels, op, iteration).map_err(Failure::unsupported)
    }

    /// The device itself.
    pub fn device(&mut self) -> &mut T::Device {
        &mut self.device
    }

    /// Creates the chunks and the host block and fills the states, as an executor does.
    pub(super) fn set_up(&mut self) -> Outcome {
        self.create()?;
        self.create_host()
    }

    /// Creates the chunks.
    pub(super) fn create(&mut self) -> Outcome {
        let count = self.created();
        Ok(self.device.create(count)?)
    }

    /// Creates the host block with the slots of a plan that keeps everything on the device, and
    /// fills the states.
    pub(super) fn create_host(&mut self) -> Outcome {
        let graph = self.graph;
        with_layout(&graph, self.machine, |layout| {
            self.device.create_host(layout.bytes())?;
            self.block_bytes = layout.bytes();
            let slots = |tensor| [0, 1].map(|slot| layout.offset_bytes(tensor, slot, 0));
            self.slots = graph.tensor_ids().map(slots).collect();
            let (device, kernels) = self.kernels()?;
            Ok(kernels.fill_states(&mut StateWriter::new(&graph, device, layout))?)
        })
    }

    /// Fills the input of an iteration.
    pub(super) fn fill_inputs(&mut self, iteration: u64) -> Outcome {
        let graph = self.graph;
        with_layout(&graph, self.machine, |layout| {
            let (device, kernels) = self.kernels()?;
            Ok(kernels.fill_inputs(&mut InputWriter::new(&graph, device, layout, iteration))?)
        })
    }

    /// The device and its kernels.
    fn kernels(&mut self) -> Outcome<(&mut T::Device, &mut T::Kernels<'g>)> {
        let kernels = match self.kernels.take() {
            Some(kernels) => kernels,
            None => self.backend.kernels(&mut self.device, self.graph)?,
        };
        Ok((&mut self.device, self.kernels.insert(kernels)))
    }

    /// The machine for which the rig was opened.
    pub(super) const fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The size of a chunk.
    pub(super) fn chunk_bytes(&self) -> u64 {
        self.device.chunk_bytes()
    }

    /// The number of chunks that the rig creates.
    pub(super) fn created(&self) -> u64 {
        CHUNKS + self.graph.tensor(LOAD).bytes.div_ceil(self.machine.chunk_bytes)
    }

    /// The size of each of the states `A` to `D`.
    pub(super) fn bytes(&self) -> u64 {
        self.graph.tensor(A).bytes
    }

    /// The size of the host block.
    pub(super) const fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// A range of bytes in a state's slot.
    pub(super) fn host(&self, tensor: TensorId, bytes: Range<u64>) -> HostRange {
        let start = self.slots.get(tensor.index()).map_or(0, |slots| slots[0]);
        let offset_bytes = start + bytes.start;
        HostRange { offset_bytes, bytes: bytes.end - bytes.start }
    }

    /// The slot of [`INPUT`] in an iteration.
    pub(super) fn input_slot(&self, iteration: u64) -> HostRange {
        let slot = HostLayout::slot(iteration) as usize;
        let offset_bytes = self.slots.get(INPUT.index()).map_or(0, |slots| slots[slot]);
        HostRange { offset_bytes, bytes: self.graph.tensor(INPUT).bytes }
    }

    /// The whole slot of a state, or the whole first slot of an input.
    pub(super) fn slot(&self, tensor: TensorId) -> HostRange {
        self.host(tensor, 0..self.graph.tensor(tensor).bytes)
    }

    /// Writes bytes into a range on the host.
    pub(super) fn write(&mut self, range: HostRange, bytes: &[u8]) -> Outcome {
        Ok(self.device.write_host(range.offset_bytes, bytes)?)
    }

    /// Writes bytes drawn from a seed into a range on the host, and returns them.
    pub(super) fn fill(&mut self, range: HostRange, seed: u64) -> Outcome<Vec<u8>> {
        let bytes = filled(value::input(INPUT, seed, u64::MAX), range.bytes);
        self.write(range, &bytes)?;
        Ok(bytes)
    }

    /// Fails unless a range on the host holds these bytes.
    pub(super) fn expect(&mut self, range: HostRange, expected: &[u8], what: &str) -> Outcome {
        let mut found = vec![0; range.bytes as usize];
        self.device.read_host(range.offset_bytes, &mut found)?;
        let wrong = found.iter().zip(expected).position(|(found, expected)| found != expected);
        if let Some(at) = wrong {
            let (found, expected) = (found[at], expected[at]);
            ensure!(false, "{what}: byte {at} is {found:#04x} instead of {expected:#04x}");
        }
        ensure!(found.len() == expected.len(), "{what}: the number of bytes is not as expected");
        Ok(())
    }

    /// A new range over chunks that lie in no other range.
    pub(super) fn range(&mut self, count: u64) -> Outcome<DeviceAddress> {
        let first = self.used_chunks;
        self.used_chunks += count;
        self.mapped(Chunks { first, count })
    }

    /// A new range over chunks that lie in no other range. The chunks are mapped one by one, the
    /// last first.
    pub(super) fn scattered(&mut self, count: u64) -> Outcome<DeviceAddress> {
        let at = self.device.reserve(count)?;
        for position in 0..count {
            let address = DeviceAddress(at.0 + position * self.chunk_bytes());
            let first = self.used_chunks + count - 1 - position;
            self.device.map(address, Chunks { first, count: 1 })?;
        }
        self.used_chunks += count;
        Ok(at)
    }

    /// A new range of two chunks. Only the first is mapped.
    pub(super) fn half_mapped(&mut self) -> Outcome<DeviceAddress> {
        let at = self.device.reserve(2)?;
        self.device.map(at, Chunks { first: self.used_chunks, count: 1 })?;
        self.used_chunks += 1;
        Ok(at)
    }

    /// A new range over these chunks.
    pub(super) fn mapped(&mut self, chunks: Chunks) -> Outcome<DeviceAddress> {
        let at = self.device.reserve(chunks.count)?;
        self.device.map(at, chunks)?;
        Ok(at)
    }

    /// Enqueues an upload of a state's slot.
    pub(super) fn send(&mut self, tensor: TensorId, to: DeviceAddress) -> Outcome {
        let slot = self.slot(tensor);
        Ok(self.device.upload(slot, to)?)
    }

    /// Enqueues a download to a state's slot.
    pub(super) fn fetch(&mut self, from: DeviceAddress, tensor: TensorId) -> Outcome {
        let slot = self.slot(tensor);
        Ok(self.device.download(from, slot)?)
    }

    /// Uploads and waits.
    pub(super) fn put(&mut self, from: HostRange, to: DeviceAddress) -> Outcome {
        self.device.upload(from, to)?;
        self.finish(Stream::Upload)
    }

    /// Downloads and waits.
    pub(super) fn get(&mut self, from: DeviceAddress, to: HostRange) -> Outcome {
        self.device.download(from, to)?;
        self.finish(Stream::Download)
    }

    /// Signals a stream.
    pub(super) fn signal(&mut self, stream: Stream) -> Outcome<Point> {
        Ok(self.device.signal(stream)?)
    }

    /// Waits for all work on a stream.
    pub(super) fn finish(&mut self, stream: Stream) -> Outcome {
        let point = self.device.signal(stream)?;
        Ok(self.device.block_until(point)?)
    }

    /// Lets later work on one stream wait for the enqueued work of another.
    pub(super) fn order(&mut self, before: Stream, after: Stream) -> Outcome {
        let point = self.device.signal(before)?;
        Ok(self.device.wait(after, point)?)
    }

    /// Enqueues an op without a workspace.
    pub(super) fn launch(
        &mut self,
        op: OpId,
        reads: &[DeviceAddress],
        writes: &[DeviceAddress],
    ) -> Outcome {
        self.launch_with(op, reads, writes, None)
    }

    /// Enqueues an op.
    pub(super) fn launch_with(
        &mut self,
        op: OpId,
        reads: &[DeviceAddress],
        writes: &[DeviceAddress],
        workspace: Option<DeviceAddress>,
    ) -> Outcome {
        self.enqueue(Stream::Compute, Launched::first(op), reads, writes, workspace)
    }

    /// Enqueues an op without a workspace on a stream of launches.
    pub(super) fn launch_on(
        &mut self,
        stream: Stream,
        op: OpId,
        reads: &[DeviceAddress],
        writes: &[DeviceAddress],
    ) -> Outcome {
        self.enqueue(stream, Launched::first(op), reads, writes, None)
    }

    /// Enqueues an op on the host, over these ranges of the block.
    pub(super) fn launch_on_host(
        &mut self,
        op: OpId,
        reads: &[HostRange],
        writes: &[HostRange],
    ) -> Outcome {
        self.launch_on_host_in(1, op, reads, writes)
    }

    /// Enqueues an op on the host in an iteration, over these ranges of the block.
    pub(super) fn launch_on_host_in(
        &mut self,
        iteration: u64,
        op: OpId,
        reads: &[HostRange],
        writes: &[HostRange],
    ) -> Outcome {
        let numbers = |ranges: &[HostRange]| {
            ranges.iter().map(|range| [range.offset_bytes, range.bytes]).collect()
        };
        let (reads, writes): (Vec<_>, Vec<_>) = (numbers(reads), numbers(writes));
        let (reads, writes) = (HostRanges::new(&reads), HostRanges::new(&writes));
        let mut launch = HostLaunch::new(op, reads, writes);
        launch.iteration = iteration;
        let (device, kernels) = self.kernels()?;
        let none = || Failure::new("the integrity kernels have no ops for the host any more");
        Ok(kernels.on_host().ok_or_else(none)?.launch_on_host(device, &launch)?)
    }

    /// Enqueues a copy of a state on the host.
    pub(super) fn copy_on_host(&mut self, from: TensorId, to: TensorId) -> Outcome {
        let (from, to) = (self.slot(from), self.slot(to));
        self.launch_on_host(COPY, &[from], &[to])
    }

    /// Enqueues a repeat of an op.
    pub(super) fn repeat(
        &mut self,
        op: OpId,
        reads: &[DeviceAddress],
        writes: &[DeviceAddress],
        workspace: Option<DeviceAddress>,
    ) -> Outcome {
        self.enqueue(Stream::Compute, Launched::repeat(op), reads, writes, workspace)
    }

    /// Passes on the backend, the device, and a launch without operands on a stream in an iteration.
    pub(super) fn in_iteration(
        &mut self,
        stream: Stream,
        iteration: u64,
        then: impl FnOnce(&T, &mut T::Device, &Launch<'_>) -> Result<(), T::Error>,
    ) -> Outcome {
        let [reads, writes] = [(); 2].map(|()| DeviceRanges::new(&[]));
        let mut launch = Launch::new(COPY, reads, writes);
        (launch.stream, launch.iteration) = (stream, iteration);
        Ok(then(self.backend, &mut self.device, &launch)?)
    }

    /// The backend and the device.
    pub(super) fn backend_and_device(&mut self) -> (&'g T, &mut T::Device) {
        (self.backend, &mut self.device)
    }

    fn enqueue(
        &mut self,
        stream: Stream,
        Launched { op, is_repeat }: Launched,
        reads: &[DeviceAddress],
        writes: &[DeviceAddress],
        workspace: Option<DeviceAddress>,
    ) -> Outcome {
        let graph = self.graph;
        // Operands that the op does not have or leaves alone have no bytes.
        let ranges = |addresses: &[DeviceAddress], tensors: &[TensorId]| {
            let bytes = tensors.iter().map(|&tensor| graph.tensor(tensor).bytes);
            let bytes = bytes.chain(iter::repeat(0));
            addresses
                .iter()
                .zip(bytes)
                .map(|(at, bytes)| [at.0, if at.0 == 0 { 0 } else { bytes }])
                .collect()
        };
        let reads: Vec<_> = ranges(reads, graph.reads(op));
        let writes: Vec<_> = ranges(writes, graph.writes(op));
        let (reads, writes) = (DeviceRanges::new(&reads), DeviceRanges::new(&writes));
        let bytes = graph.op(op).workspace_bytes;
        let workspace = workspace.map(|address| DeviceRange { address, bytes });
        let mut launch = Launch::new(op, reads, writes);
        (launch.stream, launch.is_repeat, launch.workspace) = (stream, is_repeat, workspace);
        let (device, kernels) = self.kernels()?;
        Ok(kernels.launch(device, &launch)?)
    }

    /// The bytes of the first tensor that an op writes, from the bytes that it reads, in the op's
    /// order.
    pub(super) fn computed(&self, op: OpId, reads: &[&[u8]]) -> Vec<u8> {
        self.written(op, 0, reads)
    }

    /// The bytes that an op writes to the tensor at a position. The position after the last is the
    /// workspace.
    pub(super) fn written(&self, op: OpId, position: usize, reads: &[&[u8]]) -> Vec<u8> {
        written(&self.graph, op, position, reads)
    }

    /// Enqueues work that takes a real device some time, on separate memory, so that later work on
    /// the stream is late.
    pub(super) fn keep_busy(&mut self, stream: Stream) -> Outcome {
        if stream == Stream::Host {
            let slot = self.slot(HOST_LOAD);
            return (0..BUSY_STEPS)
                .try_for_each(|_| self.launch_on_host(HOST_WORK, &[slot], &[slot]));
        }
        let slot = self.slot(LOAD);
        let load = match self.load {
            Some(load) => load,
            None => {
                let count = self.created() - CHUNKS;
                let load = self.mapped(Chunks { first: CHUNKS, count })?;
                self.put(slot, load)?;
                *self.load.insert(load)
            }
        };
        for _ in 0..BUSY_STEPS {
            match stream {
                Stream::Compute => self.launch(WORK, &[load], &[load])?,
                Stream::Upload => self.device.upload(slot, load)?,
                Stream::Download => self.device.download(load, slot)?,
                Stream::Network => self.launch_on(stream, WORK, &[load], &[load])?,
                Stream::Host => {}
            }
        }
        Ok(())
    }

    /// Fails unless the device still uploads, computes and downloads.
    pub(super) fn works(&mut self) -> Outcome {
        let (from, to) = (self.range(3)?, self.range(3)?);
        let sent = self.fill(self.slot(A), 77)?;
        self.send(A, from)?;
        self.order(Stream::Upload, Stream::Compute)?;
        self.launch(COPY, &[from], &[to])?;
        self.order(Stream::Compute, Stream::Download)?;
        self.get(to, self.slot(B))?;
        self.expect(self.slot(B), &self.computed(COPY, &[&sent]), "the bytes of later work")
    }
}

/// The bytes that an op writes to the tensor at a position, from the bytes that it reads. The
/// position after the last is the workspace.
pub(super) fn written(graph: &Graph<'_>, op: OpId, position: usize, reads: &[&[u8]]) -> Vec<u8> {
    let FoldOrder { reads: order, repeated } = FoldOrder::new(graph, op);
    let readings = order.iter().map(|&position| Reading::of(reads[position]));
    let results = value::op_results(op, repeated, readings);
    let tensor = graph.writes(op).get(position).map(|&tensor| graph.tensor(tensor));
    let (kind, bytes) = tensor.map_or_else(
        || (Kind::Temporary, graph.op(op).workspace_bytes),
        |tensor| (tensor.kind, tensor.bytes),
    );
    filled(value::written(results.of(kind), position as u32, bytes), bytes)
}

/// Passes on the layout of a plan that keeps everything on the device.
fn with_layout(
    graph: &Graph<'_>,
    machine: Machine,
    then: impl FnOnce(&HostLayout<'_>) -> Outcome,
) -> Outcome {
    let machine = machine.with_host_bytes(u64::MAX).with_device_bytes(u64::MAX);
    let request = Request { graph, machine: &machine, budget_bytes: 0 };
    let (budget_bytes, _) = planning::min_feasible(&request, Strategy::InCore)?;
    let plan = planning::plan(&Request { budget_bytes, ..request }, Strategy::InCore)?;
    let plan = plan.plan();
    let mut memory = vec![0; HostLayout::scratch_words(&Limits::of_plan(graph, &plan))];
    then(&HostLayout::new(graph, &machine, &plan, &mut Scratch::new(&mut memory))?)
}

/// The first bytes of a tensor with a value.
pub(super) fn filled(value: Value, bytes: u64) -> Vec<u8> {
    let mut filled = vec![0; bytes as usize];
    value.fill(0, &mut filled);
    filled
}
