//! Plans that run on a device.

use crate::cuda::Cuda;
use crate::device::{Device, DeviceError};
use crate::error::SessionError;
use crate::kernels::{PyKernels, copied};
use crate::plan::Plan;
use backend_host::MappedDevice;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};
use spillway::TensorId;
use spillway::core::Kind;
use spillway::names::Mentions;
use std::mem;
use std::sync::{Mutex, MutexGuard, TryLockError};

/// A plan that runs on a device. Without one, it runs on host memory: one file of pages as large as
/// the plan's memory, mapped at the addresses that kernels get. Copies run in threads of their own.
/// For Linux.
///
/// `kernels` is an object with these methods, which are called by `step`, in its thread:
///
/// - `launch(op, iteration, is_repeat, reads, writes, workspace)` computes an op. `reads` and
///   `writes` are the addresses of its operands in the op's order, each a whole tensor;
///   `workspace` is that of its workspace, or 0. A repeat gets 0 for the states and inputs that
///   the op writes, and neither reads nor writes them.
/// - `fill_input(tensor, iteration, address, bytes)` writes the value that an input has in an
///   iteration, counted from 1; needed if the graph has inputs. The first step asks for the values
///   of iteration 1, and each step for those of the next iteration.
///
/// On host memory, addresses hold until the call returns. On CUDA, those of a launch are the device's;
/// `launch` enqueues the op on `stream`, and the addresses hold for what is enqueued there before it
/// returns. The address of an input is the host's on both.
///
/// States are zeros until they are written.
#[pyclass(frozen, module = "spillway")]
pub(crate) struct Session {
    state: Mutex<State>,
    stream: Option<u64>,
    graph: spillway::Graph,
}

type Running = spillway::Session<Device, PyKernels>;

enum State {
    /// Before the first step.
    Ready(Box<(spillway::Plan, Device, PyKernels)>),
    Running(Box<Running>),
    Closed,
}

impl State {
    /// The running session, which is started if need be.
    fn running(&mut self) -> PyResult<&mut Running> {
        if matches!(self, Self::Ready(_)) {
            // A session that cannot start stays closed.
            if let Self::Ready(parts) = mem::replace(self, Self::Closed) {
                let (plan, device, kernels) = *parts;
                let raised = kernels.raised.clone();
                let session = spillway::Session::new(plan.clone(), device, kernels);
                let session = session
                    .map_err(|error| raised.take().unwrap_or_else(|| of_session(&plan, &error)))?;
                *self = Self::Running(Box::new(session));
            }
        }
        match self {
            Self::Running(session) => Ok(session),
            _ => Err(closed()),
        }
    }

    fn kernels(&self) -> Option<&PyKernels> {
        match self {
            Self::Ready(parts) => Some(&parts.2),
            Self::Running(session) => Some(session.kernels()),
            Self::Closed => None,
        }
    }
}

fn closed() -> PyErr {
    SessionError::new_err("the session is closed")
}

/// The exception for an error of a session.
fn of_session(plan: &spillway::Plan, error: &spillway::SessionError<DeviceError>) -> PyErr {
    let message = match error {
        spillway::SessionError::Execute(error) => {
            plan.names().execute_error(error, |_| Mentions::default())
        }
        error => error.to_string(),
    };
    SessionError::new_err(message)
}

impl Session {
    /// The state, unless a step is under way.
    fn state(&self) -> PyResult<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Ok(state),
            Err(TryLockError::Poisoned(state)) => Ok(state.into_inner()),
            Err(TryLockError::WouldBlock) => {
                Err(SessionError::new_err("the session is in a step, which has not ended"))
            }
        }
    }

    /// Checks that a tensor is a state, and returns its size.
    fn state_bytes(&self, tensor: u32) -> PyResult<u64> {
        let graph = self.graph.owned();
        let found = graph.tensors.get(TensorId(tensor).index());
        let found = found.ok_or_else(|| {
            SessionError::new_err(format!("the graph {:?} has no tensor {tensor}", graph.name))
        })?;
        match found.kind {
            Kind::State => Ok(found.bytes),
            _ => Err(SessionError::new_err(format!("{} is no state", self.name(tensor)))),
        }
    }

    /// Checks the size of a buffer for a state.
    fn check_bytes(&self, tensor: u32, buffer_bytes: usize) -> PyResult<()> {
        let bytes = self.state_bytes(tensor)?;
        if bytes == buffer_bytes as u64 {
            return Ok(());
        }
        let name = self.name(tensor);
        let message = format!("the buffer for {name} has {buffer_bytes} bytes, not {bytes}");
        Err(SessionError::new_err(message))
    }

    fn name(&self, tensor: u32) -> String {
        spillway::names::Names::new(self.graph.owned(), &[]).tensor(TensorId(tensor))
    }
}

#[pymethods]
impl Session {
    #[new]
    #[pyo3(signature = (plan, kernels, device=None))]
    fn new(plan: &Plan, kernels: &Bound<'_, PyAny>, device: Option<&Cuda>) -> PyResult<Self> {
        let plan = plan.plan();
        let chunk_bytes = plan.machine().machine.chunk_bytes;
        let refused = |error: DeviceError| SessionError::new_err(error.to_string());
        let mut device = match device {
            Some(cuda) => Device::Cuda(Box::new(cuda.open(chunk_bytes)?)),
            None => MappedDevice::new(chunk_bytes, plan.owned().budget_bytes)
                .map(|device| Device::Mapped(Box::new(device)))
                .map_err(|error| refused(error.into()))?,
        };
        let stream = device.stream().map_err(refused)?;
        let graph = plan.graph().clone();
        let kernels = PyKernels::new(kernels, &graph)?;
        let ready = State::Ready(Box::new((plan.clone(), device, kernels)));
        Ok(Self { state: Mutex::new(ready), stream, graph })
    }

    /// Sets the first value of a state, from a buffer of its size, which is copied. Only before the
    /// first step.
    fn write_state(&self, tensor: u32, buffer: &Bound<'_, PyAny>) -> PyResult<()> {
        let value = copied(buffer)?;
        self.check_bytes(tensor, value.len())?;
        match &mut *self.state()? {
            State::Ready(parts) => {
                parts.2.states.insert(TensorId(tensor), value);
                Ok(())
            }
            State::Running(_) => {
                Err(SessionError::new_err("states can be written only before the first step"))
            }
            State::Closed => Err(closed()),
        }
    }

    /// Reads the value that a state has after all steps so far into a buffer of its size.
    fn read_state(&self, py: Python<'_>, tensor: u32, buffer: &Bound<'_, PyAny>) -> PyResult<()> {
        let view = PyMemoryView::from(buffer)?.call_method1("cast", ("B",))?;
        self.check_bytes(tensor, view.len()?)?;
        let mut state = self.state()?;
        let session = match &mut *state {
            // The start would ask for inputs, so what is not started yet is not started here.
            State::Ready(parts) => {
                let zeros = || vec![0; view.len().unwrap_or(0)];
                let value = parts.2.states.get(&TensorId(tensor)).cloned();
                let value = PyBytes::new(py, &value.unwrap_or_else(zeros));
                drop(state);
                return view.set_item(pyo3::types::PySlice::full(py), value);
            }
            started => started.running()?,
        };
        let mut failed = None;
        let value = PyBytes::new_with(py, view.len()?, |into| {
            failed = session.read_state(TensorId(tensor), into).err();
            Ok(())
        })?;
        if let Some(error) = failed {
            return Err(of_session(session.plan(), &error));
        }
        drop(state);
        view.set_item(pyo3::types::PySlice::full(py), value)
    }

    /// Runs one iteration. On host memory its ops have run when it returns, and copies may still be
    /// under way. On CUDA both are enqueued, and may not have begun.
    ///
    /// What a method of the kernels raises comes out unchanged. Then, and after any other error,
    /// the session cannot go on.
    fn step(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| {
            let mut state = self.state()?;
            let session = state.running()?;
            session.step().map_err(|error| {
                let raised = session.kernels().raised.take();
                raised.unwrap_or_else(|| of_session(session.plan(), &error))
            })
        })
    }

    /// Iterations so far.
    #[getter]
    fn iterations(&self) -> PyResult<u64> {
        match &*self.state()? {
            State::Running(session) => Ok(session.iterations()),
            State::Ready(_) => Ok(0),
            State::Closed => Err(closed()),
        }
    }

    /// The stream for ops, as the driver knows it (`CUstream`), in the device's primary context. It
    /// lives until the session is closed. None on host memory.
    #[getter]
    const fn stream(&self) -> Option<u64> {
        self.stream
    }

    /// The device's memory that the session takes for the plan; 0 before the first step.
    #[getter]
    fn device_bytes(&self) -> PyResult<u64> {
        match &*self.state()? {
            State::Running(session) => Ok(session.device().created_bytes()),
            State::Ready(_) => Ok(0),
            State::Closed => Err(closed()),
        }
    }

    /// Gives all memory back. Nothing else works afterwards, and closing again does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let state = mem::replace(&mut *self.state()?, State::Closed);
        // What is under way ends first.
        py.detach(|| drop(state));
        Ok(())
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _type: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.close(py)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // A session in a step is in use, and so are its kernels.
        let Ok(state) = self.state.try_lock() else { return Ok(()) };
        let Some(kernels) = state.kernels() else { return Ok(()) };
        visit.call(&kernels.launch)?;
        kernels.fill_input.as_ref().map_or(Ok(()), |fill_input| visit.call(fill_input))
    }

    fn __clear__(&self) {
        if let Ok(mut state) = self.state.try_lock() {
            *state = State::Closed;
        }
    }
}
