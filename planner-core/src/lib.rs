//! Plans every memory transfer of a computation that is larger than its device.
//!
//! ```text
//! Graph ──► planner ──► Plan ──► lower ──► Schedule ──► verify ──► Verified ──► Executor ──► backend
//! checked                steps in           the waits               no race,     one loop
//! once                   list order         between steps           in budget
//! ```
//!
//! Data moves from left to right and never back. A [`Graph`] and a [`Machine`] are
//! checked by their constructors. A [`Plan`] is untrusted, wherever it comes from. [`lower()`]
//! turns it into five streams and the waits between them. [`verify()`] trusts neither the plan nor
//! the schedule, and only its result can be run by an [`Executor`]. The traits that a backend
//! implements are in [`mod@backend`].
//!
//! The crate does not allocate: inputs and outputs are slices of the caller, and working memory is
//! a [`Scratch`] over the caller's words. Beside each function that needs scratch stands a `const
//! fn` with the number of words.
//!
//! For any numbers in a graph, a machine or a plan, functions return a result or an error and do
//! not panic. Only functions that take an id, such as [`Graph::tensor`], panic if the id is of
//! another graph; their docs say so under "Panics". Lints deny explicit panics and index
//! expressions in the whole crate; each module with index expressions states, at its exception from
//! the lint, why its indices are in range. Another lint denies arithmetic that may overflow in all
//! modules but [`planner`]; each exception states why the results fit.
//!
//! # A complete example
//!
//! Three layers that need seven chunks run on a device with four: plan, verify, and run. The device
//! is a table in host memory, at the end of the example; the crates `backend-…` have real devices.
//!
//! ```
//! use core::fmt;
//! use planner_core::backend::{
//!     BackendError, Chunks, DeviceAddress, DeviceRange, ErrorKind, ErrorType, FillError, HostRange, InputWriter, Kernels, Launch, Paging, Point, StateWriter, Streams, Transfers,
//! };
//! use planner_core::plan::{ArenaPlacement, Part, Pool, Resident};
//! use planner_core::planner::{self, Auto, Output, Request, Strategy};
//! use planner_core::{
//!     Executor, Graph, HostLayout, Kind, Limits, Machine, MachineParameters, Op, OpId, PerStream,
//!     Scheduled, Scratch, Step, Stream, Tensor, TensorId, executor, lower, verify,
//! };
//!
//! const CHUNK: u64 = 256;
//! const X: TensorId = TensorId(0);
//! const WEIGHTS: [TensorId; 3] = [TensorId(1), TensorId(2), TensorId(3)];
//! const SUM: TensorId = TensorId(4);
//!
//! // Each op adds a weight to the value before it. The last one adds the result to a sum.
//! let tensor = |kind| Tensor::new(CHUNK, kind);
//! let (state, temporary) = (tensor(Kind::State), tensor(Kind::Temporary));
//! let tensors = [tensor(Kind::Input), state, state, state, state, temporary, temporary];
//! let operands = [0, 1, 5, 5, 2, 6, 6, 3, 4, 4].map(TensorId);
//! let op = |first_operand, reads| {
//!     Op::new(10_000).with_first_operand(first_operand).with_reads(reads).with_writes(1)
//! };
//! let ops = [op(0, 2), op(3, 2), op(6, 3)];
//! let mut memory = [0; 16];
//! let graph = Graph::new(&tensors, &ops, &operands, &mut Scratch::new(&mut memory))?;
//! let parameters = MachineParameters::new()
//!     .with_device_bytes(4 * CHUNK)
//!     .with_host_bytes(1 << 20)
//!     .with_chunk_bytes(CHUNK)
//!     .with_h2d_bytes_per_s(1_000_000_000)
//!     .with_d2h_bytes_per_s(1_000_000_000)
//!     .with_transfer_latency_ns(100);
//! let machine = Machine::new(parameters)?;
//!
//! // Plan. The sizes of all memory follow from the graph.
//! let limits = Limits::of_graph(&graph);
//! let mut memory = vec![0; planner::scratch_words(&limits)];
//! let request = Request { graph: &graph, machine: &machine, budget_bytes: 4 * CHUNK };
//! let output = Output {
//!     steps: &mut vec![Step::launch(OpId(0)); limits.steps],
//!     resident: &mut vec![Resident { part: Part::whole(X), host_copy: false }; 2 * limits.tensors],
//!     arena: &mut vec![ArenaPlacement { tensor: X, offset_bytes: 0 }; limits.tensors],
//!     pools: &mut [Pool { object_bytes: 1, count: 0 }; 2],
//!     tensor_pool: &mut vec![0; limits.tensors],
//! };
//! let strategy = Strategy::Auto(Auto::default());
//! let plan = planner::plan(&request, strategy, output, &mut Scratch::new(&mut memory))?;
//! assert!(plan.predicted.peak_bytes <= 4 * CHUNK && plan.predicted.h2d_bytes > CHUNK);
//!
//! // Verify. From here on, the sizes follow from the plan.
//! let limits = Limits::of_plan(&graph, &plan);
//! let mut memory = vec![0; lower::scratch_words(&limits).max(verify::scratch_words(&limits))];
//! let mut scratch = Scratch::new(&mut memory);
//! let mut entries = vec![Scheduled::EMPTY; limits.entries()];
//! let schedule = lower(&graph, &machine, &plan, &mut entries, &mut scratch)?;
//! let verified = verify(&graph, &machine, &plan, &schedule, &mut scratch)?;
//!
//! // Run. The sum is read back from the host block.
//! let mut device = Device::default();
//! let mut memory = vec![0; executor::scratch_words(&limits, 4)];
//! let mut scratch = Scratch::new(&mut memory);
//! let mut executor = Executor::start(&verified, &mut device, &mut Layers, &mut scratch)?;
//! executor.run(&mut device, &mut Layers, 10)?;
//! executor.save_states(&mut device)?;
//! let mut sum = [0; CHUNK as usize];
//! device.read_host(executor.host_layout().offset_bytes(SUM, 0, 0), &mut sum)?;
//! assert_eq!(sum, [(1 + 2 + 3 + 4 + 5 + 6 + 7 + 8 + 9 + 10) + 10 * (1 + 1 + 1); CHUNK as usize]);
//!
//! /// What the ops compute, and the values of states and inputs.
//! struct Layers;
//!
//! impl Kernels<Device> for Layers {
//!     fn launch(&mut self, device: &mut Device, launch: &Launch<'_>) -> Result<(), Never> {
//!         for at in 0..CHUNK {
//!             let read = |from: DeviceRange| *device.byte(from.address.0 + at);
//!             let total = launch.reads.iter().flatten().map(read).sum();
//!             launch.writes.iter().flatten().for_each(|to| *device.byte(to.address.0 + at) = total);
//!         }
//!         Ok(())
//!     }
//!     fn fill_states(
//!         &mut self, states: &mut StateWriter<'_, Device>,
//!     ) -> Result<(), FillError<Never>> {
//!         WEIGHTS.into_iter().try_for_each(|weight| states.write(weight, &[1u8; CHUNK as usize]))
//!     }
//!     fn fill_inputs(
//!         &mut self, inputs: &mut InputWriter<'_, Device>,
//!     ) -> Result<(), FillError<Never>> {
//!         inputs.write(X, &[inputs.iteration() as u8; CHUNK as usize])
//!     }
//! }
//!
//! /// A device on which all work is done when it is enqueued. It trusts its caller.
//! #[derive(Default)]
//! struct Device {
//!     memory: Vec<u8>,
//!     /// The physical chunk that is mapped at each chunk of addresses.
//!     mapped: Vec<u64>,
//!     host: Vec<u8>,
//!     signals: PerStream<u64>,
//! }
//!
//! impl Device {
//!     fn byte(&mut self, address: u64) -> &mut u8 {
//!         let chunk = self.mapped[(address / CHUNK) as usize];
//!         &mut self.memory[(chunk * CHUNK + address % CHUNK) as usize]
//!     }
//! }
//!
//! impl Streams for Device {
//!     fn wait(&mut self, _: Stream, _: Point) -> Result<(), Never> { Ok(()) }
//!     fn signal(&mut self, stream: Stream) -> Result<Point, Never> {
//!         self.signals[stream] += 1;
//!         Ok(Point { stream, value: self.signals[stream] })
//!     }
//!     fn reached(&mut self, _: Point) -> Result<bool, Never> { Ok(true) }
//!     fn block_until(&mut self, _: Point) -> Result<(), Never> { Ok(()) }
//! }
//!
//! impl Paging for Device {
//!     fn chunk_bytes(&self) -> u64 { CHUNK }
//!     fn create(&mut self, count: u64) -> Result<(), Never> {
//!         Ok(self.memory.resize((count * CHUNK) as usize, 0))
//!     }
//!     fn reserve(&mut self, chunks: u64) -> Result<DeviceAddress, Never> {
//!         let first = self.mapped.len().max(1); // Nothing lies at address 0.
//!         self.mapped.resize(first + chunks as usize, u64::MAX);
//!         Ok(DeviceAddress(first as u64 * CHUNK))
//!     }
//!     fn map(&mut self, at: DeviceAddress, chunks: Chunks) -> Result<(), Never> {
//!         let slots = &mut self.mapped[(at.0 / CHUNK) as usize..];
//!         Ok(slots.iter_mut().zip(chunks.first..chunks.first + chunks.count)
//!             .for_each(|(slot, chunk)| *slot = chunk))
//!     }
//!     fn unmap(&mut self, _: DeviceAddress, _: u64) -> Result<(), Never> { Ok(()) }
//! }
//!
//! impl Transfers for Device {
//!     fn create_host(&mut self, bytes: u64) -> Result<(), Never> {
//!         Ok(self.host.resize(bytes as usize, 0))
//!     }
//!     fn write_host(&mut self, offset_bytes: u64, from: &[u8]) -> Result<(), Never> {
//!         Ok(self.host[offset_bytes as usize..][..from.len()].copy_from_slice(from))
//!     }
//!     fn read_host(&mut self, offset_bytes: u64, into: &mut [u8]) -> Result<(), Never> {
//!         Ok(into.copy_from_slice(&self.host[offset_bytes as usize..][..into.len()]))
//!     }
//!     fn upload(&mut self, from: HostRange, to: DeviceAddress) -> Result<(), Never> {
//!         Ok((0..from.bytes).for_each(|at| {
//!             *self.byte(to.0 + at) = self.host[(from.offset_bytes + at) as usize];
//!         }))
//!     }
//!     fn download(&mut self, from: DeviceAddress, to: HostRange) -> Result<(), Never> {
//!         Ok((0..to.bytes).for_each(|at| {
//!             self.host[(to.offset_bytes + at) as usize] = *self.byte(from.0 + at);
//!         }))
//!     }
//! }
//!
//! /// The error of a device on which nothing fails.
//! #[derive(Debug)]
//! enum Never {}
//!
//! impl fmt::Display for Never {
//!     fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result { match *self {} }
//! }
//! impl core::error::Error for Never {}
//! impl BackendError for Never {
//!     fn kind(&self) -> ErrorKind { match *self {} }
//! }
//! impl ErrorType for Device {
//!     type Error = Never;
//! }
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```
#![no_std]
#![forbid(unsafe_code)]
// Tests may panic. Elsewhere, each exception states why it cannot.
#![cfg_attr(
    not(test),
    warn(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::todo,
        clippy::unimplemented,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

#[macro_use]
mod setters;
mod allocations;
mod arena;
pub mod backend;
pub mod bounds;
pub mod executor;
pub mod footprint;
pub mod graph;
pub mod host;
mod host_steps;
mod hosted;
mod index_set;
pub mod lower;
pub mod machine;
pub mod packing;
pub mod pieces;
pub mod placement;
pub mod plan;
pub mod planner;
mod ranges;
mod residency;
pub mod schedule;
pub mod scratch;
mod sequence;
pub mod switch;
pub mod timeline;
pub mod verify;

pub use executor::{ExecuteError, Executor};
pub use graph::{Graph, GraphError, Kind, Launched, Op, OpId, Tensor, TensorId};
pub use host::HostLayout;
pub use lower::lower;
pub use machine::{Machine, MachineParameters};
pub use plan::{Part, Placements, Plan, PlanError, Step};
pub use schedule::{PerStream, Schedule, Scheduled, Stream, Wait};
pub use scratch::{Limits, OutOfScratch, Scratch};
pub use verify::{Verified, VerifyError, verify};
