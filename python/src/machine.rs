//! Machines.

use crate::error::{Error, FormatError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use spillway::planner_core::{self, MachineParameters};
use spillway::{OwnedMachine, machines};
use workloads::format;

/// The sizes, link speeds and mapping costs for which a plan is made.
#[pyclass(frozen, module = "spillway")]
pub(crate) struct Machine {
    owned: OwnedMachine,
}

impl From<OwnedMachine> for Machine {
    fn from(owned: OwnedMachine) -> Self {
        Self { owned }
    }
}

impl Machine {
    pub(crate) const fn owned(&self) -> &OwnedMachine {
        &self.owned
    }
}

#[pymethods]
impl Machine {
    #[new]
    #[pyo3(signature = (
        name, device_bytes, host_bytes, chunk_bytes, h2d_bytes_per_s, d2h_bytes_per_s,
        transfer_latency_ns=0, map_ns_per_chunk=0, unmap_ns_per_chunk=0
    ))]
    #[allow(clippy::too_many_arguments, reason = "they are passed by name")]
    fn new(
        name: String,
        device_bytes: u64,
        host_bytes: u64,
        chunk_bytes: u64,
        h2d_bytes_per_s: u64,
        d2h_bytes_per_s: u64,
        transfer_latency_ns: u64,
        map_ns_per_chunk: u64,
        unmap_ns_per_chunk: u64,
    ) -> PyResult<Self> {
        let machine = planner_core::Machine::new(
            MachineParameters::new()
                .with_device_bytes(device_bytes)
                .with_host_bytes(host_bytes)
                .with_chunk_bytes(chunk_bytes)
                .with_h2d_bytes_per_s(h2d_bytes_per_s)
                .with_d2h_bytes_per_s(d2h_bytes_per_s)
                .with_transfer_latency_ns(transfer_latency_ns)
                .with_map_ns_per_chunk(map_ns_per_chunk)
                .with_unmap_ns_per_chunk(unmap_ns_per_chunk),
        );
        let machine = machine.map_err(|error| FormatError::new_err(error.to_string()))?;
        Ok(Self { owned: OwnedMachine::new(name, machine) })
    }

    /// A machine from the list that `spillway plan --machine list` prints. Raises `Error` with all
    /// names if no machine has this name.
    #[staticmethod]
    fn builtin(name: &str) -> PyResult<Self> {
        let owned = machines::builtin(name).ok_or_else(|| {
            let names: Vec<_> = machines::all().map(|(machine, _)| machine.name).collect();
            let names = names.join(", ");
            Error::new_err(format!("there is no machine {name:?}; the built-in ones are {names}"))
        })?;
        Ok(Self { owned })
    }

    /// Reads a machine from the bytes of a machine file. Raises `FormatError`.
    #[staticmethod]
    fn from_json(json: &[u8]) -> PyResult<Self> {
        let owned = format::read_machine(json);
        Ok(Self { owned: owned.map_err(|error| FormatError::new_err(error.to_string()))? })
    }

    /// The bytes of a machine file (`spillway.machine.v1`).
    fn to_json<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &format::write_machine(&self.owned))
    }

    /// The name, by which plans refer to the machine.
    #[getter]
    fn name(&self) -> &str {
        &self.owned.name
    }

    /// Device memory.
    #[getter]
    fn device_bytes(&self) -> u64 {
        self.owned.machine.device_bytes
    }

    /// The size of a chunk, the unit of mapping.
    #[getter]
    fn chunk_bytes(&self) -> u64 {
        self.owned.machine.chunk_bytes
    }

    /// The same machine with chunks of another size. Raises `FormatError` for 0.
    fn with_chunk_bytes(&self, chunk_bytes: u64) -> PyResult<Self> {
        let parameters = (*self.owned.machine).with_chunk_bytes(chunk_bytes);
        let machine = planner_core::Machine::new(parameters);
        let machine = machine.map_err(|error| FormatError::new_err(error.to_string()))?;
        Ok(Self { owned: self.owned.clone().with_machine(machine) })
    }

    fn __repr__(&self) -> String {
        format!("Machine({:?}, {} bytes)", self.owned.name, self.owned.machine.device_bytes)
    }
}
