//! The smallest backend: a device made of host memory, as an example for authors of backends.
//!
//! A call that enqueues work also does the work, so every wait is satisfied before it is enqueued,
//! and a stream is only a number. `docs/backends.md` explains the traits. `templates/backend` is a
//! backend with threads from which an author can start.
//!
//! An embedder's kernels read and write device memory by [`HostDevice::read`] and
//! [`HostDevice::write`]. These kernels add an input to a sum:
//!
//! ```
//! use backend_host::{HostDevice, HostError};
//! use planner_core::backend::{FillError, InputWriter, Kernels, Launch, StateWriter, Transfers};
//! use planner_core::planner::{Request, Strategy};
//! use planner_core::{Kind, Machine, MachineParameters, TensorId};
//! use spillway::planning;
//! use workloads::OwnedGraph;
//!
//! struct Adder { sum: TensorId, number: TensorId }
//!
//! impl Kernels<HostDevice> for Adder {
//!     fn launch(&mut self, device: &mut HostDevice, launch: &Launch<'_>) -> Result<(), HostError> {
//!         let mut total = 0u64;
//!         for from in launch.reads.iter().flatten() {
//!             let mut number = [0];
//!             device.read(from, &mut number)?;
//!             total += number[0];
//!         }
//!         launch.writes.iter().flatten().try_for_each(|to| device.write(to, &[total]))
//!     }
//!     fn fill_states(
//!         &mut self, states: &mut StateWriter<'_, HostDevice>,
//!     ) -> Result<(), FillError<HostError>> {
//!         states.write(self.sum, &[100u64])
//!     }
//!     fn fill_inputs(
//!         &mut self, inputs: &mut InputWriter<'_, HostDevice>,
//!     ) -> Result<(), FillError<HostError>> {
//!         inputs.write(self.number, &[inputs.iteration()])
//!     }
//! }
//!
//! let mut graph = OwnedGraph::new("sums");
//! let sum = graph.push_tensor("sum", 8, Kind::State);
//! let number = graph.push_tensor("number", 8, Kind::Input);
//! graph.push_op("add", 1000, 0, &[sum, number], &[sum]);
//! let graph = graph.graph()?;
//! let parameters = MachineParameters::new()
//!     .with_device_bytes(1 << 16)
//!     .with_host_bytes(1 << 16)
//!     .with_chunk_bytes(1024)
//!     .with_h2d_bytes_per_s(1_000_000_000)
//!     .with_d2h_bytes_per_s(1_000_000_000);
//! let machine = Machine::new(parameters)?;
//! let request = Request { graph: &graph, machine: &machine, budget_bytes: 1 << 16 };
//! let plan = planning::plan(&request, Strategy::OnDemand)?;
//! let plan = plan.plan();
//! let schedule = planning::schedule(&graph, &machine, &plan)?;
//! let schedule = schedule.schedule();
//! let verified = planning::prove(&graph, &machine, &plan, &schedule)?;
//!
//! let mut device = HostDevice::new(machine.chunk_bytes, machine.device_bytes);
//! let mut adder = Adder { sum, number };
//! planning::with_executor(&verified, &mut device, &mut adder, |mut executor, device, adder| {
//!     executor.run(device, adder, 4)?;
//!     executor.save_states(device)?;
//!     let mut saved = [0; 8];
//!     let offset_bytes = executor.host_layout().offset_bytes(sum, 0, 0);
//!     device.read_host(offset_bytes, &mut saved).expect("the slot of a state");
//!     assert_eq!(u64::from_le_bytes(saved), 100 + 1 + 2 + 3 + 4);
//!     Ok(())
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Ops on the host also run on the calling thread.
//!
//! [`MappedDevice`] is for kernels that work on memory directly: its addresses are addresses of the
//! process, and copies and ops on the host run at the same time as kernels. Its memory is one file
//! of pages (`mapped::memory`). It has one thread for each copy direction and one for ops on the
//! host (`mapped::worker`), and `mapped::limit` counts the mappings that the process may still
//! have. It exists only on Linux.

mod error;
mod integrity_kernels;
#[cfg(target_os = "linux")]
mod mapped;
mod paging;
mod stream;
mod transfer;

pub use backend_checks::{HostFailure, HostRead, HostRun};
pub use error::HostError;

pub use integrity_kernels::{Host, IntegrityKernels};
#[cfg(target_os = "linux")]
pub use {
    integrity_kernels::Mapped,
    mapped::{MappedDevice, MappingLimit, SetUpCosts},
};

use bytemuck::{NoUninit, Pod};
use paging::Pages;
use planner_core::PerStream;
use planner_core::backend::{DeviceRange, ErrorType};

/// A device of host memory.
#[derive(Debug)]
pub struct HostDevice {
    pages: Pages,
    /// The host block, once it is created.
    block: Option<Vec<u8>>,
    /// Signals of each stream.
    signals: PerStream<u64>,
}

impl HostDevice {
    /// Makes a device of `device_bytes` bytes. They are allocated when the chunks are created.
    ///
    /// # Panics
    /// If a chunk has no bytes.
    #[must_use]
    pub fn new(chunk_bytes: u64, device_bytes: u64) -> Self {
        assert!(chunk_bytes > 0, "a chunk has bytes");
        Self {
            pages: Pages::new(chunk_bytes, device_bytes),
            block: None,
            signals: PerStream::all(0),
        }
    }

    /// Reads values from device memory, for kernels.
    ///
    /// # Errors
    /// The range is not completely mapped, or differs in size from the values.
    pub fn read<T: Pod>(&self, from: DeviceRange, into: &mut [T]) -> Result<(), HostError> {
        check_size(from, into)?;
        Ok(self.pages.read(from.address, bytemuck::cast_slice_mut(into))?)
    }

    /// Writes values to device memory, for kernels.
    ///
    /// # Errors
    /// The range is not completely mapped, or differs in size from the values. Then nothing is
    /// written.
    pub fn write<T: NoUninit>(&mut self, to: DeviceRange, values: &[T]) -> Result<(), HostError> {
        check_size(to, values)?;
        Ok(self.pages.write(to.address, bytemuck::cast_slice(values))?)
    }
}

/// Checks that values have the size of a range.
fn check_size<T>(range: DeviceRange, values: &[T]) -> Result<(), HostError> {
    let value_bytes = size_of_val(values) as u64;
    if value_bytes == range.bytes {
        return Ok(());
    }
    Err(HostError::Size { range_bytes: range.bytes, value_bytes })
}

impl ErrorType for HostDevice {
    type Error = HostError;
}
