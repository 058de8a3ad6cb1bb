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
//! turns it into three streams and the waits between them; [`verify()`] believes neither, and
//! makes the only thing that an [`Executor`] runs. What a backend must provide is in
//! [`mod@backend`].
//!
//! Nothing here allocates: inputs are slices, outputs are the caller's slices, and working
//! memory is a [`Scratch`] over words of the caller's. Beside each function that needs some
//! stands a `const fn` that says how much. Whatever numbers a graph, a machine or a plan holds,
//! nothing panics: there is an answer or an error. Only functions that take an id, such as
//! [`Graph::tensor`], panic where it is that of another graph; they say so under "Panics".
//!
//! # A complete example
//!
//! Three layers of which the device holds two: plan, lower, and prove.
//!
//! ```
//! use planner_core::plan::{ArenaPlacement, Part, Pool, Resident};
//! use planner_core::planner::{self, Auto, Output, Request, Strategy};
//! use planner_core::{
//!     Graph, Kind, Limits, Machine, MachineParameters, Op, OpId, Scheduled, Scratch, Step,
//!     Tensor, TensorId, lower, verify,
//! };
//!
//! // The input, three weights, and what each layer computes: 4 MiB each.
//! let mib = 1 << 20;
//! let tensor = |kind| Tensor { bytes: 4 * mib, kind };
//! let (state, temporary) = (tensor(Kind::State), tensor(Kind::Temporary));
//! let tensors = [tensor(Kind::Input), state, state, state, temporary, temporary, temporary];
//! // Each layer reads a value and its weight, and writes the next value.
//! let operands = [0, 1, 4, 4, 2, 5, 5, 3, 6].map(TensorId);
//! let layer = |first_operand| Op {
//!     time_ns: 1_000_000, first_operand, reads: 2, writes: 1, ..Op::default()
//! };
//! let ops = [layer(0), layer(3), layer(6)];
//!
//! let mut memory = [0; 16];
//! let graph = Graph::new(&tensors, &ops, &operands, &mut Scratch::new(&mut memory))?;
//! let machine = Machine::new(MachineParameters {
//!     device_bytes: 16 * mib, host_bytes: 1 << 30, chunk_bytes: 2 * mib,
//!     h2d_bytes_per_s: 12_000_000_000, d2h_bytes_per_s: 12_000_000_000,
//!     transfer_latency_ns: 10_000, map_ns_per_chunk: 0, unmap_ns_per_chunk: 0,
//! })?;
//!
//! // Memory for the answer: the sizes follow from the graph.
//! let limits = Limits::of_graph(&graph);
//! let mut memory = vec![0; planner::scratch_words(&limits)];
//! let mut scratch = Scratch::new(&mut memory);
//! let part = Part::whole(TensorId(0));
//! let request = Request { graph: &graph, machine: &machine, budget_bytes: 16 * mib };
//! let output = Output {
//!     steps: &mut vec![Step::launch(OpId(0)); limits.steps],
//!     resident: &mut vec![Resident { part, host_copy: false }; 2 * limits.tensors],
//!     arena: &mut vec![ArenaPlacement { tensor: TensorId(0), offset_bytes: 0 }; limits.tensors],
//!     pools: &mut [Pool { object_bytes: 1, count: 0 }; 2],
//!     tensor_pool: &mut vec![0; limits.tensors],
//! };
//! let plan = planner::plan(&request, Strategy::Auto(Auto::default()), output, &mut scratch)?;
//! assert!(plan.predicted.peak_bytes <= 16 * mib);
//!
//! // The sizes of a plan say what lowering and verifying it take.
//! let limits = Limits::of_plan(&graph, &plan);
//! let words = lower::scratch_words(&limits).max(verify::scratch_words(&limits));
//! let mut memory = vec![0; words];
//! let mut scratch = Scratch::new(&mut memory);
//! let mut entries = vec![Scheduled::EMPTY; limits.entries()];
//! let schedule = lower(&graph, &machine, &plan, &mut entries, &mut scratch)?;
//! let verified = verify(&graph, &machine, &plan, &schedule, &mut scratch)?;
//! // `Executor::start(&verified, …)` runs it on any backend.
//! # let _ = verified;
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```
#![no_std]
#![forbid(unsafe_code)]

mod allocations;
mod arena;
pub mod backend;
pub mod bounds;
pub mod executor;
pub mod footprint;
pub mod graph;
pub mod host;
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
