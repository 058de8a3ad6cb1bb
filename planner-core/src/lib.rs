//! Plans every memory transfer of a computation that is larger than its device.
#![no_std]
#![forbid(unsafe_code)]

pub mod arena;
pub mod backend;
pub mod bounds;
pub mod executor;
pub mod footprint;
pub mod graph;
pub mod lower;
pub mod machine;
pub mod pieces;
pub mod plan;
pub mod planner;
mod residency;
pub mod schedule;
pub mod scratch;
pub mod timeline;
pub mod verify;

pub use executor::{ExecuteError, Executor};
pub use graph::{Graph, GraphError, Kind, Op, OpId, Tensor, TensorId};
pub use lower::lower;
pub use machine::Machine;
pub use plan::{Part, Plan, PlanError, Step};
pub use schedule::{Schedule, Scheduled, Stream, Wait};
pub use scratch::{Limits, OutOfScratch, Scratch};
pub use verify::{Verified, VerifyError, verify};
