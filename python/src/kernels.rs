//! The embedder's kernels, as methods of a Python object.

use crate::device::{Device, DeviceError};
use crate::memory::Lent;
use crate::operands::Operands;
use backend_host::{HostError, HostRun, MappedDevice};
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use spillway::TensorId;
use spillway::names::Names;
use spillway::planner_core::backend::{
    FillError, HostKernels, HostLaunch, InputWriter, Kernels, Launch, StateWriter,
};
use spillway::planner_core::plan::Step;
use spillway::planner_core::{Kind, Stream};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The exception that a callback raised, until it is raised again.
#[derive(Clone, Default)]
pub(crate) struct Raised(Arc<Mutex<Option<PyErr>>>);

impl Raised {
    pub(crate) fn take(&self) -> Option<PyErr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Keeps an exception.
    fn keep(&self, error: PyErr) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    /// Runs a call in a thread of the device, and keeps its exception.
    ///
    /// # Errors
    /// The message of the exception; Python is ending.
    fn attached(&self, call: impl FnOnce(Python<'_>) -> PyResult<()>) -> Result<(), String> {
        match Python::try_attach(call) {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => {
                let reason = error.to_string();
                self.keep(error);
                Err(reason)
            }
            None => Err("Python is ending".to_owned()),
        }
    }
}

/// An object with the method `launch`. It has `fill_input` if the graph has inputs, and
/// `launch_on_host` if the plan runs ops on the host.
pub(crate) struct PyKernels {
    pub(crate) object: Py<PyAny>,
    pub(crate) launch: Py<PyAny>,
    pub(crate) fill_input: Option<Py<PyAny>>,
    pub(crate) on_host: Option<OnHost>,
    /// The inputs of the graph, with their sizes and their names in messages.
    inputs: Vec<(TensorId, u64, Arc<str>)>,
    /// The arguments of each op's last launch and last repeat.
    operands: Vec<[Option<Operands>; 2]>,
    /// First values of states, until the host block has them.
    pub(crate) states: HashMap<TensorId, Vec<u8>>,
    /// The exception of `launch` or `fill_input`.
    pub(crate) raised: Raised,
}

/// The method `launch_on_host`, which a thread of the session calls.
#[derive(Clone)]
pub(crate) struct OnHost {
    pub(crate) launch: Arc<Py<PyAny>>,
    /// The exception of `launch_on_host`.
    pub(crate) raised: Raised,
}

impl PyKernels {
    pub(crate) fn new(object: &Bound<'_, PyAny>, plan: &spillway::Plan) -> PyResult<Self> {
        let graph = plan.graph().owned();
        let names = Names::new(graph, &[]);
        let tensors = (0..).map(TensorId).zip(&graph.tensors);
        let inputs = tensors.filter(|(_, tensor)| tensor.kind == Kind::Input);
        let inputs: Vec<_> =
            inputs.map(|(id, tensor)| (id, tensor.bytes, names.tensor(id).into())).collect();
        let fill_input = match inputs.is_empty() {
            true => None,
            false => Some(object.getattr("fill_input")?.unbind()),
        };
        let is_on_host = |step: &Step| matches!(step, Step::Host(_));
        let on_host = match plan.owned().steps.iter().any(is_on_host) {
            true => {
                let launch = Arc::new(object.getattr("launch_on_host")?.unbind());
                Some(OnHost { launch, raised: Raised::default() })
            }
            false => None,
        };
        Ok(Self {
            object: object.clone().unbind(),
            launch: object.getattr("launch")?.unbind(),
            fill_input,
            on_host,
            inputs,
            operands: graph.ops.iter().map(|_| [None, None]).collect(),
            states: HashMap::new(),
            raised: Raised::default(),
        })
    }

    /// Enqueues a collective, for which a thread of the session calls `launch`.
    fn launch_on_network(
        &self,
        device: &mut MappedDevice,
        launch: &Launch<'_>,
    ) -> Result<(), HostError> {
        let Launch { op, iteration, is_repeat, .. } = *launch;
        let (raised, called) =
            (self.raised.clone(), Python::attach(|py| self.launch.clone_ref(py)));
        let operands = Python::attach(|py| Operands::new(py, launch));
        device.launch_on_network(launch, move || {
            raised.attached(|py| {
                let Operands { reads, writes, workspace, lent, .. } = operands?;
                let arguments = (op.0, iteration, is_repeat, reads, writes, workspace);
                lent.during(py, true, || called.call1(py, arguments).map(drop))
            })
        })
    }

    /// Keeps the exception of a call.
    fn kept(&self, called: PyResult<()>) -> Result<(), DeviceError> {
        called.map_err(|error| {
            self.raised.keep(error);
            DeviceError::Raised
        })
    }
}

impl Kernels<Device> for PyKernels {
    fn launch(&mut self, device: &mut Device, launch: &Launch<'_>) -> Result<(), DeviceError> {
        if let (Stream::Network, Device::Mapped(device)) = (launch.stream, &mut *device) {
            return Ok(self.launch_on_network(device, launch)?);
        }
        // The stream may use all memory that is mapped when a caller asks for it.
        let is_on_host = device.raw_stream(launch.stream)?.is_none();
        let Launch { op, iteration, is_repeat, .. } = *launch;
        let called = Python::attach(|py| {
            let kept = &mut self.operands[op.index()][usize::from(is_repeat)];
            let operands = match kept.take() {
                Some(operands) if operands.are_those_of(launch) => operands,
                _ => Operands::new(py, launch)?,
            };
            let Operands { reads, writes, workspace, lent, .. } = kept.insert(operands);
            let arguments = (op.0, iteration, is_repeat, &*reads, &*writes, &*workspace);
            lent.during(py, is_on_host, || self.launch.call1(py, arguments).map(drop))
        });
        self.kept(called)
    }

    fn on_host(&mut self) -> Option<&mut dyn HostKernels<Device>> {
        self.on_host.as_mut().map(|kernels| kernels as _)
    }

    fn fill_states(
        &mut self,
        states: &mut StateWriter<'_, Device>,
    ) -> Result<(), FillError<DeviceError>> {
        // The states are written one by one, so that at most one state is held twice.
        for (state, value) in self.states.drain() {
            states.write(state, &value)?;
        }
        Ok(())
    }

    fn fill_inputs(
        &mut self,
        inputs: &mut InputWriter<'_, Device>,
    ) -> Result<(), FillError<DeviceError>> {
        let Some(fill_input) = &self.fill_input else { return Ok(()) };
        let iteration = inputs.iteration();
        for &(input, bytes, ref name) in &self.inputs {
            let range = inputs.range(input)?;
            let address = inputs.device().host_address(range)?;
            self.kept(Python::attach(|py| {
                let lent = Lent::new();
                let memory = lent.range(py, address, bytes, Some(name))?;
                let arguments = (input.0, iteration, memory);
                lent.during(py, true, || fill_input.call1(py, arguments).map(drop))
            }))?;
        }
        Ok(())
    }
}

impl HostKernels<Device> for OnHost {
    fn launch_on_host(
        &mut self,
        device: &mut Device,
        launch: &HostLaunch<'_>,
    ) -> Result<(), DeviceError> {
        let Self { launch: callback, raised } = self.clone();
        device.launch_on_host(launch, move |mut run: HostRun<'_>| {
            raised.attached(|py| called_on_host(py, &callback, &mut run))
        })
    }
}

/// Calls `launch_on_host`.
fn called_on_host(py: Python<'_>, callback: &Py<PyAny>, run: &mut HostRun<'_>) -> PyResult<()> {
    let lent = Lent::new();
    let range = |at: *const u8, bytes: usize| lent.range(py, at as u64, bytes as u64, None);
    let reads = (0..run.reads.len()).map(|position| run.read(position));
    let reads = reads.map(|read| range(read.as_ptr(), read.len())).collect::<PyResult<Vec<_>>>()?;
    let writes = run.writes.iter_mut().map(|write| range(write.as_mut_ptr(), write.len()));
    let writes = writes.collect::<PyResult<Vec<_>>>()?;
    let (reads, writes) = (PyTuple::new(py, reads)?, PyTuple::new(py, writes)?);
    let arguments = (run.op.0, run.iteration, reads, writes);
    lent.during(py, true, || callback.call1(py, arguments).map(drop))
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
