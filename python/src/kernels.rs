//! The embedder's kernels, as a Python object has them.

use crate::device::{Device, DeviceError};
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use spillway::TensorId;
use spillway::core::backend::{HostRange, Kernels, Launch, Transfers as _};
use spillway::core::{HostLayout, Kind};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The exception that a callback has raised, until it is raised again.
#[derive(Clone, Default)]
pub(crate) struct Raised(Arc<Mutex<Option<PyErr>>>);

impl Raised {
    pub(crate) fn take(&self) -> Option<PyErr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Keeps the exception of a call.
    fn keep<T>(&self, called: PyResult<T>) -> Result<T, DeviceError> {
        called.map_err(|error| {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            DeviceError::Raised
        })
    }
}

/// An object with the methods `launch` and, where the graph has inputs, `fill_input`.
pub(crate) struct PyKernels {
    pub(crate) object: Py<PyAny>,
    pub(crate) launch: Py<PyAny>,
    pub(crate) fill_input: Option<Py<PyAny>>,
    /// The inputs of the graph, with their sizes.
    inputs: Vec<(TensorId, u64)>,
    /// First values of states, until the host block has them.
    pub(crate) states: HashMap<TensorId, Vec<u8>>,
    pub(crate) raised: Raised,
}

impl PyKernels {
    pub(crate) fn new(object: &Bound<'_, PyAny>, graph: &spillway::Graph) -> PyResult<Self> {
        let tensors = (0..).map(TensorId).zip(&graph.owned().tensors);
        let inputs = tensors.filter(|(_, tensor)| tensor.kind == Kind::Input);
        let inputs: Vec<_> = inputs.map(|(id, tensor)| (id, tensor.bytes)).collect();
        let fill_input = match inputs.is_empty() {
            true => None,
            false => Some(object.getattr("fill_input")?.unbind()),
        };
        Ok(Self {
            object: object.clone().unbind(),
            launch: object.getattr("launch")?.unbind(),
            fill_input,
            inputs,
            states: HashMap::new(),
            raised: Raised::default(),
        })
    }
}

impl Kernels<Device> for PyKernels {
    fn launch(&mut self, device: &mut Device, launch: &Launch<'_>) -> Result<(), DeviceError> {
        // A stream that is asked for may use all that is mapped by now.
        device.stream()?;
        let reads: Vec<u64> = launch.reads.iter().map(|address| address.0).collect();
        let writes: Vec<u64> = launch.writes.iter().map(|address| address.0).collect();
        let workspace = launch.workspace.map_or(0, |address| address.0);
        let arguments = (launch.op.0, launch.iteration, launch.is_repeat, reads, writes, workspace);
        self.raised.keep(Python::attach(|py| self.launch.call1(py, arguments).map(drop)))
    }

    fn fill_states(
        &mut self,
        device: &mut Device,
        layout: &HostLayout<'_>,
    ) -> Result<(), DeviceError> {
        // One by one, so that no more than one state is held twice.
        for (state, value) in self.states.drain() {
            device.write_host(layout.offset_bytes(state, 0, 0), &value)?;
        }
        Ok(())
    }

    fn fill_inputs(
        &mut self,
        device: &mut Device,
        iteration: u64,
        layout: &HostLayout<'_>,
    ) -> Result<(), DeviceError> {
        let Some(fill_input) = &self.fill_input else { return Ok(()) };
        let slot = HostLayout::slot(iteration);
        for &(input, bytes) in &self.inputs {
            let offset_bytes = layout.offset_bytes(input, slot, 0);
            let address = device.host_address(HostRange { offset_bytes, bytes })?;
            let arguments = (input.0, iteration, address, bytes);
            self.raised.keep(Python::attach(|py| fill_input.call1(py, arguments).map(drop)))?;
        }
        Ok(())
    }
}

/// Copies a buffer.
pub(crate) fn copied(buffer: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    let view = pyo3::types::PyMemoryView::from(buffer)?;
    let bytes = view.call_method0("tobytes")?;
    let bytes: &[u8] = bytes.extract()?;
    let mut copy = Vec::new();
    let reserved = copy.try_reserve_exact(bytes.len());
    reserved.map_err(|error| PyMemoryError::new_err(error.to_string()))?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}
