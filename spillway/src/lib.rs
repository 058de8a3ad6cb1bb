//! Runs computations that need more memory than the GPU has, by planning every transfer ahead.

pub mod budget;
mod course;
pub mod error;
pub mod figures;
pub mod graph;
pub mod names;
pub mod placing;
pub mod plan;
pub mod plan_builder;
pub mod planning;
pub mod proof;
pub mod report;
pub mod strategy;
pub mod summary;
pub mod swapping;
mod trace;
pub mod units;

pub use budget::Budget;
pub use error::Error;
pub use figures::Figures;
pub use graph::{Graph, GraphBuilder, OpBuilder};
pub use plan::{Parts, Plan};
pub use plan_builder::PlanBuilder;
pub use planner_core as core;
pub use strategy::Strategy;
pub use workloads::{OwnedGraph, OwnedMachine, OwnedPlan, machines};
