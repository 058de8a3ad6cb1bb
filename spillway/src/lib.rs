//! Spillway runs computations that need more memory than the GPU has. It plans every transfer
//! between host and device before the first one starts, and proves the plan safe.
//!
//! The computation is one iteration that repeats: a training step, or one pass of inference. Its ops, their
//! times, and the sizes of its tensors are known ahead. For a memory budget, Spillway decides which tensors
//! leave the device, when they come back, and where in memory they lie, so that ops wait as little as
//! possible.
//!
//! # What it does
//!
//! - **Plans.** [`Graph::plan`] takes a machine, a budget and a [`Strategy`]: the default
//!   [`Auto`](strategy::Auto) tries many plans, including the plans of published strategies.
//! - **Proves.** Every [`Plan`] is proved, no matter which planner made it: no op reads a wrong value, no
//!   memory is overwritten while it is used, and the budget holds in every order that the plan's waits allow.
//! - **Predicts.** The period, the stalls, the peak of memory and the bytes over each link are exact for the
//!   given times; [`Plan::lower_bound`] is a period that no comparable plan can beat.
//! - **Explains.** [`Plan::report`] is a page of HTML, [`Plan::trace`] opens in Perfetto, and each [`Error`]
//!   names its tensors and ops.
//!
//! # What it does not do
//!
//! - It computes nothing: ops are your kernels, on a backend of your choice.
//! - It measures nothing: the times of ops are yours, and so is the machine, unless it is one of
//!   the built-in [`machines`].
//! - It does not adapt while it runs: other sizes make another graph, which needs another plan.
//!
//! # Getting started
//!
//! A training step of two layers, planned for 80 % of the memory that it needs in-core:
//!
//! ```
//! use spillway::strategy::Auto;
//! use spillway::{GraphBuilder, machines};
//!
//! let mib = 1 << 20;
//! let mut graph = GraphBuilder::new("step");
//! let x = graph.input("x", 8 * mib);
//! let [w1, w2] = ["w1", "w2"].map(|name| graph.state(name, 64 * mib));
//! let [h, g2, g1] = ["h", "g2", "g1"].map(|name| graph.temporary(name, 8 * mib));
//! graph.op("forward 1", 5_000_000).reads([x, w1]).writes([h]);
//! graph.op("forward 2", 5_000_000).reads([h, w2]).writes([g2]);
//! graph.op("backward 2", 10_000_000).reads([g2, h, w2]).writes([w2, g1]);
//! graph.op("backward 1", 10_000_000).reads([g1, x, w1]).writes([w1]);
//! let graph = graph.build()?;
//!
//! let machine = machines::builtin("v100-pcie3").expect("the name is in the list");
//! let plan = graph.plan(&machine).budget("80%").strategy(Auto::default()).run()?;
//!
//! assert!(plan.figures().peak_bytes <= plan.owned().budget_bytes);
//! println!("{} ns an iteration", plan.figures().period_ns);
//! println!("{} ns at the least", plan.lower_bound().period_ns);
//! let page = plan.report();
//! # assert!(page.contains("backward 2"));
//! # Ok::<(), spillway::Error>(())
//! ```
//!
//! # Where to go next
//!
//! - [`Plan::save`] and [`Plan::read`] keep plans in files, which the program `spillway` reads and writes as
//!   well. A plan from a file is proved again.
//! - A [`Session`] runs a plan on a device, with your kernels. The example `train` trains a network with a
//!   session. [`planner_core::backend`] describes the functions of a backend and of kernels.
//! - [`streaming::plan`] takes a list of layers whose weights do not fit. [`Plan::addresses`] gives the
//!   address of each tensor in one plain allocation.
//! - [`Plan::verified`] is the plan for an [`Executor`](planner_core::Executor) of the core, for runtimes
//!   with a loop of their own.
//! - [`planning`], [`placing`], [`swapping`] and [`switching`] are the core's functions with allocation
//!   added, for your own planners and tools.
//! - The feature `search` adds the strategy `joint`, which searches for seconds. It includes the feature
//!   `baselines`, which adds published strategies to compare with.
//! - [`planner_core`] is the library below this one. It neither allocates nor needs an operating system.
//! - [`OwnedGraph`], [`OwnedMachine`] and [`OwnedPlan`] come from the crate `spillway-workloads`, which also
//!   reads files, imports traces of PyTorch, and generates graphs of well-known models; [`Graph::new`] takes
//!   these graphs.
#![forbid(unsafe_code)]

pub mod addresses;
mod between;
pub mod budget;
pub mod certificate;
mod course;
pub mod error;
pub mod figures;
pub mod graph;
mod growth;
pub mod names;
pub mod placing;
pub mod plan;
pub mod plan_builder;
pub mod planning;
mod proof;
pub mod report;
#[cfg(feature = "search")]
pub mod search;
mod session;
pub mod settings;
mod slab;
pub mod strategy;
pub mod streaming;
pub mod summary;
#[cfg(feature = "baselines")]
pub mod swapping;
pub mod switching;
mod trace;
pub mod units;

pub use addresses::Addresses;
pub use budget::Budget;
pub use error::Error;
pub use figures::Figures;
pub use graph::{Graph, GraphBuilder, OpBuilder};
pub use plan::Plan;
pub use plan_builder::{PlanBuilder, Prepared};
pub use planner_core;
pub use planner_core::switch::Capacity;
pub use planner_core::{OpId, TensorId};
pub use proof::Parts;
pub use session::{Copied, Session, SessionError};
pub use slab::{SlabCopy, SlabSwitch};
pub use strategy::Strategy;
pub use switching::SwitchFigures;
pub use workloads::{OwnedCertificate, OwnedGraph, OwnedMachine, OwnedPlan, machines};
