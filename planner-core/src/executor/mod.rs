//! Runs a verified plan on any backend.
//!
//! The executor knows steps and no strategies. [`Executor::start`] sets up memory and uploads the
//! tensors that are resident at start (the prologue). [`Executor::run`] enqueues iterations.
//! [`Executor::save_states`] waits for them and downloads every state whose host copy is stale;
//! then the host block holds all states, at the offsets of [`Executor::host_layout`], and running
//! can go on.
//!
//! Each step signals its stream once, even if nothing waits for its end. So step `i` of an iteration has
//! a known value on its stream, and a wait of the schedule is a wait for that value. Nothing else
//! orders the work. The host runs ahead, and blocks only in two cases: before it fills a slot whose
//! last value is still being copied, and before it maps a range whose mapping of three iterations
//! ago is still in use.
//!
//! A plan with placements is mapped once, before it runs: it calls neither `map` nor `unmap` after
//! [`Executor::start`]. Any other plan is mapped as it runs.

mod error;
mod inputs;
mod layout;
mod mappings;
mod memory;
mod objects;
mod placed;
mod points;
mod queued;
mod ranges;
mod spares;
mod switch;
mod unmaps;

use crate::backend::{
    DeviceAddress, DeviceRange, DeviceRanges, HostLaunch, HostRange, HostRanges, InputWriter,
    Kernels, Launch, Paging, Point, StateWriter, Streams, Transfers,
};
use crate::graph::{Graph, Kind, Launched, OpId, TensorId};
use crate::host::HostLayout;
use crate::plan::{Part, PlanError, Resident, Step};
use crate::schedule::{PerStream, Scheduled, Stream};
use crate::scratch::{Limits, Scratch, total, words};
use crate::switch::{Capacity, ChunkMap, ChunkRun};
use crate::verify::Verified;
use core::ops::Range;
use error::Fault;
pub use error::{ExecuteError, HeldOutputs, Moment};
use inputs::Inputs;
pub use mappings::{Mappings, mappings};
use memory::Memory;
use points::Points;
pub use spares::{AddressRanges, SetUp};
use spares::{Mapper, Spares};
pub use switch::switch_scratch_words;

/// Words of scratch that an executor needs, by [`Limits::of_plan`]. `runs` bounds the number of
/// runs of consecutive objects into which memory may break; one for each object always suffices,
/// and an executor uses scratch beyond this size for more runs. With placements, `runs` bounds the
/// number of runs in all virtual ranges together; if it is too small, [`Executor::start`] fails
/// before it calls the device.
#[must_use]
pub const fn scratch_words(limits: &Limits, runs: usize) -> usize {
    total([
        HostLayout::scratch_words(limits),
        Inputs::scratch_words(limits),
        Points::scratch_words(limits),
        words::<[u64; 2]>(limits.operands),
        words::<[u64; 2]>(limits.operands),
        words::<ChunkRun>(1),
        Memory::scratch_words(limits, runs),
    ])
}

/// A plan that runs on a device.
#[derive(Debug)]
pub struct Executor<'a> {
    verified: Verified<'a>,
    memory: Memory<'a>,
    host: HostLayout<'a>,
    inputs: Inputs<'a>,
    points: Points<'a>,
    /// The last value that is enqueued on each stream; 0 before the first iteration.
    enqueued: PerStream<u64>,
    /// Buffer for the device ranges of one launch.
    operands: &'a mut [[u64; 2]],
    /// Buffer for the host ranges of one op on the host.
    host_operands: &'a mut [[u64; 2]],
    /// Iterations enqueued.
    iterations: u64,
    /// Iterations of all plans that ran before.
    before: u64,
    /// Memory created on the device and on the host.
    capacity: Capacity,
    /// Address ranges of plans that ran before.
    spares: Spares<'a>,
    /// The chunks mapped and unmapped to start this plan.
    set_up: SetUp,
    /// Whether the host block held the last value of every state when this plan started.
    starts_saved: bool,
    failed: bool,
}

impl<'a> Executor<'a> {
    /// Sets up the device's memory and the host block, fills states and the first inputs, and
    /// uploads the tensors that are resident at start.
    ///
    /// # Errors
    /// Too little scratch, a device with chunks of another size, and errors of the device.
    pub fn start<B: Transfers + Paging, K: Kernels<B>>(
        verified: &Verified<'a>,
        device: &mut B,
        kernels: &mut K,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, ExecuteError<B::Error>> {
        Self::start_with(verified, Capacity::default(), device, kernels, scratch)
    }

    /// Does the same with at least `capacity` of memory on the device and on the host, for plans
    /// that the executor will [switch](Self::switch) to.
    ///
    /// # Errors
    /// The errors of [`Executor::start`].
    pub fn start_with<B: Transfers + Paging, K: Kernels<B>>(
        verified: &Verified<'a>,
        capacity: Capacity,
        device: &mut B,
        kernels: &mut K,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, ExecuteError<B::Error>> {
        let planned_bytes = verified.machine().chunk_bytes;
        let device_bytes = device.chunk_bytes();
        if planned_bytes != device_bytes {
            return Err(ExecuteError::ChunkBytes { planned_bytes, device_bytes });
        }
        check_streams(verified, device)?;
        check_host_kernels(verified, kernels)?;
        let chunks = crate::switch::chunks(verified);
        let all = scratch.take(1, ChunkRun { first: 0, device_first: 0, count: chunks })?;
        let most_range_chunks = device.most_range_chunks();
        let mut executor = Self::lay_out(verified, ChunkMap(all), most_range_chunks, scratch)?;
        executor.capacity = capacity.max(Capacity { chunks, host_bytes: executor.host.bytes() });
        let set_up = |error| Fault::Device(error).at(Moment::SetUp);
        device.create(executor.capacity.chunks).map_err(set_up)?;
        let mut mapper = Mapper::new(&mut *device, &mut executor.spares);
        executor.memory.set_up(&mut mapper).map_err(|fault| fault.at(Moment::SetUp))?;
        executor.set_up = mapper.done;
        device.create_host(executor.capacity.host_bytes).map_err(set_up)?;
        kernels
            .fill_states(&mut StateWriter::new(verified.graph(), device, &executor.host))
            .map_err(|error| ExecuteError::from_fill(error, Moment::States))?;
        executor.fill_first(device, kernels)?;
        executor.upload_residents(device)?;
        Ok(executor)
    }

    /// Computes the layout of all memory, without calling the device.
    fn lay_out(
        verified: &Verified<'a>,
        chunk_map: ChunkMap<'a>,
        most_range_chunks: u64,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, PlanError> {
        let (graph, machine, plan) = (verified.graph(), verified.machine(), verified.plan());
        let host = HostLayout::new(graph, machine, plan, scratch)?;
        let most_operands = graph.op_ids().map(|op| graph.operands_of(op).len()).max().unwrap_or(0);
        let inputs = Inputs::new(verified, scratch)?;
        Ok(Self {
            points: Points::new(verified, &inputs, scratch)?,
            inputs,
            operands: scratch.take(most_operands, [0; 2])?,
            host_operands: scratch.take(most_operands, [0; 2])?,
            // Last, since it takes all that is left.
            memory: Memory::new(verified, chunk_map, most_range_chunks, scratch)?,
            host,
            enqueued: PerStream::all(0),
            verified: *verified,
            iterations: 0,
            before: 0,
            capacity: Capacity::default(),
            spares: Spares::none(),
            set_up: SetUp::default(),
            starts_saved: true,
            failed: false,
        })
    }

    /// Fills the inputs of the first iteration.
    fn fill_first<B: Transfers + Paging, K: Kernels<B>>(
        &self,
        device: &mut B,
        kernels: &mut K,
    ) -> Result<(), ExecuteError<B::Error>> {
        let iteration = self.number(1);
        let graph = self.verified.graph();
        kernels
            .fill_inputs(&mut InputWriter::new(graph, device, &self.host, iteration))
            .map_err(|error| ExecuteError::from_fill(error, Moment::Inputs(iteration)))
    }

    /// The number of an iteration of this plan, counted over all plans.
    const fn number(&self, iteration: u64) -> u64 {
        self.before.saturating_add(iteration)
    }

    /// Runs the prologue.
    #[expect(
        clippy::indexing_slicing,
        reason = "`verify` checked the tensor ids, and `value` has an entry for each"
    )]
    fn upload_residents<B: Transfers + Paging>(
        &mut self,
        device: &mut B,
    ) -> Result<(), ExecuteError<B::Error>> {
        for &Resident { part, .. } in self.verified.plan().resident_at_start {
            self.inputs.value[part.tensor.index()] = 1;
            self.upload(device, part, 1).map_err(|fault| fault.at(Moment::Start(part.tensor)))?;
        }
        self.points.start(device).map_err(|error| Fault::Device(error).at(Moment::SetUp))
    }

    /// The plan.
    #[must_use]
    pub const fn verified(&self) -> &Verified<'a> {
        &self.verified
    }

    /// The memory created on the device and on the host.
    #[must_use]
    pub const fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Whether each iteration copies from or to the slots of its own inputs; and whether it copies
    /// from the slots of the next iteration's inputs. For embedders that launch captured iterations
    /// and fill inputs themselves.
    #[must_use]
    pub const fn input_slots_used(&self) -> [bool; 2] {
        self.inputs.slots_used()
    }

    /// Enqueues iterations. Returns once the last is enqueued, not when it has ended.
    ///
    /// # Errors
    /// Errors of the device, and [`ExecuteError::Fragmented`]. After an error, the executor can
    /// neither run nor save.
    pub fn run<B: Transfers + Paging, K: Kernels<B>>(
        &mut self,
        device: &mut B,
        kernels: &mut K,
        iterations: u64,
    ) -> Result<(), ExecuteError<B::Error>> {
        if core::mem::replace(&mut self.failed, true) {
            return Err(ExecuteError::Failed);
        }
        for _ in 0..iterations {
            self.iterate(device, kernels)?;
        }
        self.failed = false;
        Ok(())
    }

    fn iterate<B: Transfers + Paging, K: Kernels<B>>(
        &mut self,
        device: &mut B,
        kernels: &mut K,
    ) -> Result<(), ExecuteError<B::Error>> {
        let entries = self.verified.schedule().of_iteration(self.iterations);
        self.iterations = self.iterations.saturating_add(1);
        let iteration = self.number(self.iterations);
        for (step, entry) in (0..).zip(entries) {
            // As late as possible, since it blocks for the last copy of the previous iteration.
            if self.inputs.needs_next(step) {
                self.fill_next(device, kernels)?;
            }
            self.enqueue(device, kernels, step, entry)
                .map_err(|fault| fault.at(Moment::Step { iteration, step }))?;
        }
        if self.inputs.needs_no_next() {
            self.fill_next(device, kernels)?;
        }
        let step = self.verified.plan().steps.len().saturating_sub(1) as u32;
        device.submit().map_err(|error| Fault::Device(error).at(Moment::Step { iteration, step }))
    }

    /// Fills the inputs of the next iteration, after their slots are free.
    fn fill_next<B: Transfers + Paging, K: Kernels<B>>(
        &self,
        device: &mut B,
        kernels: &mut K,
    ) -> Result<(), ExecuteError<B::Error>> {
        let next = self.number(self.iterations.saturating_add(1));
        self.inputs
            .free_slots(&self.points, self.iterations)
            .try_for_each(|point| device.block_until(point))
            .map_err(|error| Fault::Device(error).at(Moment::Inputs(next)))?;
        let graph = self.verified.graph();
        kernels
            .fill_inputs(&mut InputWriter::new(graph, device, &self.host, next))
            .map_err(|error| ExecuteError::from_fill(error, Moment::Inputs(next)))
    }

    /// Enqueues the step at a position of the plan's list.
    #[expect(
        clippy::indexing_slicing,
        reason = "the schedule has an entry for each step of the plan"
    )]
    fn enqueue<B: Transfers + Paging, K: Kernels<B>>(
        &mut self,
        device: &mut B,
        kernels: &mut K,
        step: u32,
        entry: &Scheduled,
    ) -> Result<(), Fault<B::Error>> {
        self.memory.reclaim(device)?;
        let waits = self.points.awaited(&entry.waits(), self.iterations);
        match self.verified.plan().steps[step as usize] {
            Step::Prefetch(part) => {
                self.wait(device, Stream::Upload, waits)?;
                let value = self.inputs.arrives(part.tensor, step, self.iterations);
                self.upload(device, part, value)?;
                self.signal(device, Stream::Upload, entry)?;
            }
            Step::Offload(part) => {
                self.wait(device, Stream::Download, waits)?;
                self.download(device, part)?;
                self.signal(device, Stream::Download, entry)?;
            }
            Step::Launch(launched) => self.launch(device, kernels, launched, entry, waits)?,
            Step::Host(op) => {
                self.wait(device, Stream::Host, waits)?;
                self.launch_on_host(device, kernels, op)?;
                self.signal(device, Stream::Host, entry)?;
            }
            Step::Evict(part) => self.memory.evict(device, part, waits)?,
        }
        Ok(())
    }

    fn wait<B: Streams>(
        &self,
        device: &mut B,
        stream: Stream,
        points: PerStream<u64>,
    ) -> Result<(), Fault<B::Error>> {
        for (of, value) in points.into_iter().filter(|&(_, value)| value > 0) {
            device.wait(stream, Point { stream: of, value })?;
        }
        Ok(())
    }

    /// Signals the end of a step; returns the value.
    fn signal<B: Streams>(
        &mut self,
        device: &mut B,
        stream: Stream,
        entry: &Scheduled,
    ) -> Result<u64, Fault<B::Error>> {
        let point = self.points.signal(device, stream, entry.index())?;
        if point.value != self.points.value(stream, entry.index(), self.iterations) {
            return Err(Fault::ForeignSignal(stream));
        }
        self.enqueued[stream] = point.value;
        Ok(point.value)
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "tensor ids are those of the graph, and `value` has an entry for each"
    )]
    fn launch<B: Transfers + Paging, K: Kernels<B>>(
        &mut self,
        device: &mut B,
        kernels: &mut K,
        launched: Launched,
        entry: &Scheduled,
        waits: PerStream<u64>,
    ) -> Result<(), Fault<B::Error>> {
        let graph = *self.verified.graph();
        for tensor in graph.written_by(launched) {
            let pieces = self.memory.pieces().of(tensor);
            self.memory.allocate(device, tensor, pieces, self.enqueued)?;
            self.inputs.value[tensor.index()] = self.iterations;
        }
        let Launched { op, is_repeat } = launched;
        let workspace = self.memory.allocate_workspace(device, op)?;
        let workspace_bytes = graph.op(op).workspace_bytes;
        let workspace = workspace.map(|address| DeviceRange { address, bytes: workspace_bytes });
        let stream = graph.op(op).stream();
        self.wait(device, stream, waits)?;
        let iteration = self.number(self.iterations);
        let (reads, writes) = operands(self.operands, &self.memory, &graph, launched);
        let launch = Launch { op, is_repeat, iteration, stream, reads, writes, workspace };
        kernels.launch(device, &launch)?;
        let end = self.signal(device, stream, entry)?;
        self.memory.release_workspace(device, op, end)
    }

    /// Enqueues an op on the host, over the host copies of its tensors.
    #[expect(
        clippy::indexing_slicing,
        reason = "`operands` and `host_operands` have room for the operands of any op"
    )]
    fn launch_on_host<B: Transfers, K: Kernels<B>>(
        &mut self,
        device: &mut B,
        kernels: &mut K,
        op: OpId,
    ) -> Result<(), Fault<B::Error>> {
        let graph = *self.verified.graph();
        let operands = graph.operands_of(op);
        for (at, &tensor) in operands.iter().enumerate() {
            let slot = self.slot(tensor, self.iterations);
            let offset_bytes = self.host.offset_bytes(tensor, slot, 0);
            self.host_operands[at] = [offset_bytes, graph.tensor(tensor).bytes];
        }
        let (reads, writes) = self.host_operands[..operands.len()].split_at(graph.reads(op).len());
        let (reads, writes) = (HostRanges::new(reads), HostRanges::new(writes));
        let iteration = self.number(self.iterations);
        let kernels = kernels.on_host().ok_or(Fault::NoHostKernels)?;
        Ok(kernels.launch_on_host(device, &HostLaunch { op, iteration, reads, writes })?)
    }

    /// Allocates a part and uploads it. For an input, uploads the value of iteration `value`.
    fn upload<B: Transfers + Paging>(
        &mut self,
        device: &mut B,
        part: Part,
        value: u64,
    ) -> Result<(), Fault<B::Error>> {
        let pieces = self.memory.pieces().of_part(part);
        self.memory.allocate(device, part.tensor, pieces, self.enqueued)?;
        let to = self.address(part);
        Ok(device.upload(self.host_range(part, value), to)?)
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "`verify` checked the tensor ids, and `value` has an entry for each"
    )]
    fn download<B: Transfers>(&self, device: &mut B, part: Part) -> Result<(), Fault<B::Error>> {
        let to = self.host_range(part, self.inputs.value[part.tensor.index()]);
        Ok(device.download(self.address(part), to)?)
    }

    /// The address of a part.
    fn address(&self, part: Part) -> DeviceAddress {
        self.memory.address(part.tensor, self.memory.pieces().offset_bytes(part))
    }

    /// The host copy of a part. For an input, it lies in the slot of iteration `value`; for an
    /// output, in the slot of the iteration that is being enqueued.
    fn host_range(&self, part: Part, value: u64) -> HostRange {
        let graph = self.verified.graph();
        let (tensor, pieces) = (part.tensor, self.memory.pieces());
        let slot = self.slot(tensor, value);
        let offset_bytes = self.host.offset_bytes(tensor, slot, pieces.offset_bytes(part));
        HostRange { offset_bytes, bytes: pieces.part_bytes(graph, part) }
    }

    /// The slot of a tensor's value in an iteration of this plan.
    fn slot(&self, tensor: TensorId, value: u64) -> u32 {
        match self.verified.graph().tensor(tensor).kind {
            Kind::Input => HostLayout::slot(self.number(value)),
            Kind::Output => HostLayout::slot(self.number(self.iterations)),
            Kind::State | Kind::Temporary => 0,
        }
    }

    /// The offset of each tensor's host copy in the host block.
    #[must_use]
    pub const fn host_layout(&self) -> &HostLayout<'a> {
        &self.host
    }

    /// Waits for all enqueued work, and downloads every state whose last value only the device has:
    /// then the host block holds all states. May be called at any time between runs; running can go
    /// on. O(entries of `resident_at_start`).
    ///
    /// # Errors
    /// Errors of the device; after one, the executor can neither run nor save. And
    /// [`ExecuteError::Failed`], without a copy, after an error of an earlier call.
    pub fn save_states<B: Transfers + Paging>(
        &mut self,
        device: &mut B,
    ) -> Result<(), ExecuteError<B::Error>> {
        if core::mem::replace(&mut self.failed, true) {
            return Err(ExecuteError::Failed);
        }
        if !self.is_saved() {
            self.download_states(device, None).map_err(|fault| fault.at(Moment::Save))?;
        }
        self.failed = false;
        Ok(())
    }

    /// Does the same for a range of bytes of one state, and copies nothing else. O(entries of
    /// `resident_at_start`).
    ///
    /// # Errors
    /// The errors of [`Executor::save_states`].
    pub fn save_state<B: Transfers + Paging>(
        &mut self,
        device: &mut B,
        state: TensorId,
        bytes: &Range<u64>,
    ) -> Result<(), ExecuteError<B::Error>> {
        if core::mem::replace(&mut self.failed, true) {
            return Err(ExecuteError::Failed);
        }
        if !self.is_saved() {
            let only = Some((state, bytes));
            self.download_states(device, only).map_err(|fault| fault.at(Moment::State(state)))?;
        }
        self.failed = false;
        Ok(())
    }

    /// Overwrites bytes of a state between two iterations, starting at `first_byte`: on the host,
    /// and wherever the device holds them. Waits for all enqueued work. O(entries of
    /// `resident_at_start`).
    ///
    /// # Errors
    /// Errors of the device; after one, the executor can neither run nor save. And
    /// [`ExecuteError::Failed`], without a copy, after an error of an earlier call.
    pub fn write_state<B: Transfers + Paging>(
        &mut self,
        device: &mut B,
        state: TensorId,
        first_byte: u64,
        value: &[u8],
    ) -> Result<(), ExecuteError<B::Error>> {
        if core::mem::replace(&mut self.failed, true) {
            return Err(ExecuteError::Failed);
        }
        let replaced = self.replace_state(device, state, first_byte, value);
        replaced.map_err(|fault| fault.at(Moment::State(state)))?;
        self.failed = false;
        Ok(())
    }

    fn replace_state<B: Transfers + Paging>(
        &mut self,
        device: &mut B,
        state: TensorId,
        first_byte: u64,
        value: &[u8],
    ) -> Result<(), Fault<B::Error>> {
        self.finish(device)?;
        self.memory.reclaim(device)?;
        device.write_host(self.host.offset_bytes(state, 0, first_byte), value)?;
        let bytes = first_byte..first_byte.saturating_add(value.len() as u64);
        for resident in self.verified.plan().resident_at_start {
            if resident.part.tensor == state
                && let Some((on_host, on_device)) = self.within(resident.part, &bytes)
            {
                device.upload(on_host, on_device)?;
            }
        }
        self.end_copies(device, Stream::Upload)
    }

    /// Blocks until copies between two iterations have ended.
    fn end_copies<B: Streams>(
        &mut self,
        device: &mut B,
        stream: Stream,
    ) -> Result<(), Fault<B::Error>> {
        let point = device.signal(stream)?;
        device.block_until(point)?;
        self.points.skip_signal(stream);
        self.enqueued[stream] = point.value;
        Ok(())
    }

    /// The host range and the device address of the bytes of a state's part that lie in `bytes`, if
    /// any do.
    fn within(&self, part: Part, bytes: &Range<u64>) -> Option<(HostRange, DeviceAddress)> {
        let pieces = self.memory.pieces();
        let first = pieces.offset_bytes(part);
        let end = first.saturating_add(pieces.part_bytes(self.verified.graph(), part));
        let (first, end) = (first.max(bytes.start), end.min(bytes.end));
        let count = end.checked_sub(first).filter(|&count| count > 0)?;
        let offset_bytes = self.host.offset_bytes(part.tensor, 0, first);
        let address = self.memory.address(part.tensor, first);
        Some((HostRange { offset_bytes, bytes: count }, address))
    }

    /// Whether the host block holds the last value of every state because no iteration has run.
    /// Later saves are not recorded, since a captured graph of the device may run iterations
    /// without a call.
    const fn is_saved(&self) -> bool {
        self.starts_saved && self.iterations == 0
    }

    /// Blocks until the outputs of an iteration are on the host. The iteration must be the last
    /// enqueued iteration or the iteration before it. Outputs lie at [`HostLayout::offset_bytes`]
    /// in the [slot](HostLayout::slot) of that iteration, until the second iteration after it is
    /// enqueued.
    ///
    /// # Errors
    /// [`ExecuteError::NoOutputs`] for any other iteration, [`ExecuteError::Failed`] after an error
    /// of an earlier call, and errors of the device.
    pub fn await_outputs<B: Streams>(
        &self,
        device: &mut B,
        iteration: u64,
    ) -> Result<(), ExecuteError<B::Error>> {
        if self.failed {
            return Err(ExecuteError::Failed);
        }
        let last = self.last_iteration();
        let held = HeldOutputs { first: last.saturating_sub(1).max(self.number(1)), last };
        if !(held.first..=last).contains(&iteration) {
            return Err(ExecuteError::NoOutputs { iteration, held });
        }
        let own = iteration.saturating_sub(self.before);
        let mut streams = self.points.streams().filter(|&stream| stream != Stream::Upload);
        streams
            .try_for_each(|stream| device.block_until(self.points.end(stream, own)))
            .map_err(|error| Fault::Device(error).at(Moment::Outputs(iteration)))
    }

    /// The number of the last enqueued iteration, counted over all plans; 0 before the first.
    #[must_use]
    pub const fn last_iteration(&self) -> u64 {
        self.number(self.iterations)
    }

    /// Blocks until all enqueued work has ended.
    ///
    /// # Errors
    /// [`ExecuteError::Failed`] after an error of an earlier call, and errors of the device.
    pub fn await_all<B: Streams>(&self, device: &mut B) -> Result<(), ExecuteError<B::Error>> {
        if self.failed {
            return Err(ExecuteError::Failed);
        }
        self.finish(device).map_err(|error| Fault::Device(error).at(Moment::Save))
    }

    /// Blocks until all iterations have ended.
    fn finish<B: Streams>(&self, device: &mut B) -> Result<(), B::Error> {
        let mut streams = self.points.streams();
        streams.try_for_each(|stream| device.block_until(self.points.end(stream, self.iterations)))
    }

    /// Downloads states whose last value only the device has, or such bytes of one state.
    fn download_states<B: Transfers + Paging>(
        &mut self,
        device: &mut B,
        only: Option<(TensorId, &Range<u64>)>,
    ) -> Result<(), Fault<B::Error>> {
        self.finish(device)?;
        self.memory.reclaim(device)?;
        let all = 0..u64::MAX;
        for resident in self.verified.plan().resident_at_start {
            let tensor = resident.part.tensor;
            let bytes = match only {
                Some((state, _)) if state != tensor => continue,
                Some((_, bytes)) => bytes,
                None => &all,
            };
            let kind = self.verified.graph().tensor(tensor).kind;
            // After a host op wrote the state last, the host has the last value and the device may
            // have an older one.
            let is_on_host = resident.host_copy || self.verified.is_last_written_on_host(tensor);
            if kind == Kind::State
                && !is_on_host
                && let Some((on_host, on_device)) = self.within(resident.part, bytes)
            {
                device.download(on_device, on_host)?;
            }
        }
        self.end_copies(device, Stream::Download)
    }
}

/// Checks that the device has a stream for ops on the host and one for collectives, if the plan runs
/// any.
fn check_streams<B: Streams>(
    verified: &Verified<'_>,
    device: &B,
) -> Result<(), ExecuteError<B::Error>> {
    let runs_on_host = verified.schedule().stream_steps[Stream::Host] > 0;
    if runs_on_host && !device.has_host_stream() {
        return Err(ExecuteError::NoHostStream);
    }
    let exchanges = verified.schedule().stream_steps[Stream::Network] > 0;
    if exchanges && !device.has_network_stream() {
        return Err(ExecuteError::NoNetworkStream);
    }
    Ok(())
}

/// Checks that there are kernels for ops on the host, if the plan runs any.
fn check_host_kernels<B: Streams, K: Kernels<B>>(
    verified: &Verified<'_>,
    kernels: &mut K,
) -> Result<(), ExecuteError<B::Error>> {
    let runs_on_host = verified.schedule().stream_steps[Stream::Host] > 0;
    if runs_on_host && kernels.on_host().is_none() {
        return Err(ExecuteError::NoHostKernels);
    }
    Ok(())
}

/// Writes the ranges of an op's operands into `out`, first reads, then writes. The size is 0 for
/// operands that a repeat must not access.
#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "`out` has room for the operands of any op, and `reads_at` returns reads of this op"
)]
fn operands<'o>(
    out: &'o mut [[u64; 2]],
    memory: &Memory<'_>,
    graph: &Graph<'_>,
    launched: Launched,
) -> (DeviceRanges<'o>, DeviceRanges<'o>) {
    let (op, all) = (graph.op(launched.op), graph.operands_of(launched.op));
    let out = &mut out[..all.len()];
    let range = |tensor| [memory.address(tensor, 0).0, graph.tensor(tensor).bytes];
    out.fill([0; 2]);
    let (out_reads, out_writes) = out.split_at_mut(op.reads as usize);
    for (at, tensor) in memory.pieces().reads_at(launched) {
        out_reads[at - op.first_operand as usize] = range(tensor);
    }
    for (out, &tensor) in out_writes.iter_mut().zip(graph.writes(launched.op)) {
        if graph.is_written_by(launched, tensor) {
            *out = range(tensor);
        }
    }
    (DeviceRanges::new(out_reads), DeviceRanges::new(out_writes))
}
