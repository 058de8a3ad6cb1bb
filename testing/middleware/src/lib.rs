//! Layers between an executor and a device. A device with a layer looks like a device itself.
//!
//! A [`Layer`] sees every call on its way to a device, and passes it on unless it overrides the
//! call. [`Layered`] is a device with a layer. It runs any verified plan:
//!
//! ```
//! # use backend_sim::{SimDevice, SimKernels};
//! # use middleware::{Layered, LayeredKernels, Tracer};
//! # use planner_core::{Kind, Machine, MachineParameters};
//! # use planner_core::planner::{Request, Strategy};
//! # use spillway::planning;
//! # use workloads::OwnedGraph;
//! # let mut work = OwnedGraph::new("work");
//! # let weight = work.push_tensor("weight", 1000, Kind::State);
//! # work.push_op("step", 100, 0, &[weight], &[weight]);
//! # let graph = work.graph()?;
//! # let parameters = MachineParameters::new()
//! #     .with_device_bytes(1 << 20)
//! #     .with_host_bytes(1 << 20)
//! #     .with_chunk_bytes(256)
//! #     .with_h2d_bytes_per_s(1_000_000_000)
//! #     .with_d2h_bytes_per_s(1_000_000_000)
//! #     .with_transfer_latency_ns(10);
//! # let machine = Machine::new(parameters)?;
//! # let request = Request { graph: &graph, machine: &machine, budget_bytes: 1 << 16 };
//! # let plan = planning::plan(&request, Strategy::OnDemand)?;
//! # let plan = plan.plan();
//! # let schedule = planning::schedule(&graph, &machine, &plan)?;
//! # let schedule = schedule.schedule();
//! # let verified = planning::prove(&graph, &machine, &plan, &schedule)?;
//! let device = SimDevice::new(machine);
//! let mut device = Layered::new(device, Tracer::new(|device: &SimDevice| device.host_ns()));
//! let mut kernels = LayeredKernels(SimKernels::new(graph));
//! planning::execute(&verified, &mut device, &mut kernels, 10)?;
//! let trace = device.layer.json();
//! # assert!(trace.to_string().contains("upload"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - [`Tracer`] records when each call was enqueued, for Perfetto or Chrome's tracing page.
//! - [`Faults`] makes copies and allocations fail and copies take long, drawn from a seed.
//! - [`SlowLink`] makes all copies take several times as long.
//! - An embedder can write other layers, with one method for each call that they change.
#![forbid(unsafe_code)]

mod faults;
mod layer;
mod slow_link;
mod tracer;

pub use faults::{Faults, FaultyError};
pub use layer::{Layer, Layered, LayeredKernels};
pub use slow_link::SlowLink;
pub use tracer::Tracer;
