//! Plans that run on a device.

use crate::cuda::Cuda;
use crate::device::{Device, DeviceError};
use crate::error::{SessionError, SwitchError};
use crate::exit;
use crate::kernels::{PyKernels, copied};
use crate::memory::Buffer;
use crate::plan::Plan;
use crate::switch::SwitchFigures;
use backend_host::{MappedDevice, MappingLimit};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use spillway::TensorId;
use spillway::planner_core::switch::Capacity;
use spillway::planner_core::{ExecuteError, Kind, Stream};
use std::mem;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// A plan that runs on a device. Without a device, it runs on host memory: one file of pages as
/// large as the plan's memory, mapped at the addresses that kernels get. Copies run in their own
/// threads. Host memory needs Linux.
///
/// `kernels` is an object with these methods. `step` calls them in its thread:
///
/// - `launch(op, iteration, is_repeat, reads, writes, workspace)` computes an op. `reads` and
///   `writes` have a `MemoryRange` for each operand in the op's order, and each is a whole tensor.
///   `workspace` is a `MemoryRange` or None. A repeat gets None for the states, inputs and outputs
///   that the op writes, and neither reads nor writes them.
/// - `fill_input(tensor, iteration, memory)` writes the value of an input in an iteration, counted
///   from 1, into a `MemoryRange`. It is needed if the graph has inputs. The first step asks for the
///   values of iterations 1 and 2, and each later step for the values of the next iteration.
/// - `launch_on_host(op, iteration, reads, writes)` computes an op on host memory. It is needed if the
///   plan runs ops on the host. A thread of the session calls it for one op after the other, and
///   `step` may call `launch` at the same time. A tensor that the op updates in place has equal
///   ranges in `reads` and `writes`. On CUDA, nothing may wait for the device while it holds the
///   interpreter's lock, which the op needs.
///
/// On host memory, a call may use its memory until it returns. On CUDA, the memory of a launch is
/// on the device. `launch` enqueues the op on `stream`, or a collective on `network_stream`, and the
/// addresses are valid for work that it enqueues there before it returns. The memory of an input is
/// always on the host.
///
/// States are zero until they are written.
///
/// The device's memory is enough for `plan` and for each of `others`, so that `switch` can change
/// to these plans. The host block is also enough for all other plans of the same graph, except on
/// CUDA.
#[pyclass(frozen, module = "spillway")]
pub(crate) struct Session {
    shared: Arc<Shared>,
    stream: Option<u64>,
    network_stream: Option<u64>,
}

/// The contents of a session, for Python's objects and for the exit of Python.
pub(crate) struct Shared {
    state: Mutex<State>,
    /// The process that made the session. A forked child lacks its threads and its driver.
    process: u32,
}

impl Drop for Session {
    fn drop(&mut self) {
        // This holds even if a step was running in another thread when the process forked.
        if self.shared.is_foreign() {
            mem::forget(Arc::clone(&self.shared));
        } else {
            Python::attach(|py| self.shared.close(py));
        }
    }
}

type Running = spillway::Session<Device, PyKernels>;

enum State {
    /// Before the first step.
    Ready(Box<(spillway::Plan, Device, PyKernels, Capacity)>),
    Running(Box<Running>),
    Closed,
}

impl State {
    /// The running session. Starts it if necessary.
    fn running(&mut self) -> PyResult<&mut Running> {
        if matches!(self, Self::Ready(_)) {
            // A session that cannot start stays closed.
            if let Self::Ready(parts) = mem::replace(self, Self::Closed) {
                let (plan, device, kernels, capacity) = *parts;
                let raised = kernels.raised.clone();
                let session = spillway::Session::with_capacity(plan, capacity, device, kernels);
                let session =
                    session.map_err(|error| raised.take().unwrap_or_else(|| of_session(&error)))?;
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

    fn graph(&self) -> PyResult<&spillway::Graph> {
        match self {
            Self::Ready(parts) => Ok(parts.0.graph()),
            Self::Running(session) => Ok(session.plan().graph()),
            Self::Closed => Err(closed()),
        }
    }

    /// Checks that a tensor has this kind. A buffer for it must have its size or, with a first
    /// byte, lie within it. Returns its size.
    fn check_buffer(
        &self,
        tensor: u32,
        kind: Kind,
        buffer_bytes: usize,
        first_byte: Option<u64>,
    ) -> PyResult<u64> {
        let graph = self.graph()?.owned();
        let found = graph.tensors.get(TensorId(tensor).index());
        let found = found.ok_or_else(|| {
            SessionError::new_err(format!("the graph {:?} has no tensor {tensor}", graph.name))
        })?;
        let name = || spillway::names::Names::new(graph, &[]).tensor(TensorId(tensor));
        if found.kind != kind {
            let kind = if kind == Kind::Output { "output" } else { "state" };
            return Err(SessionError::new_err(format!("{} is no {kind}", name())));
        }
        let bytes = buffer_bytes as u64;
        match first_byte {
            None if bytes != found.bytes => Err(SessionError::new_err(format!(
                "the buffer for {} has {bytes} bytes, not {}",
                name(),
                found.bytes
            ))),
            Some(first) if first.checked_add(bytes).is_none_or(|end| end > found.bytes) => {
                Err(SessionError::new_err(format!(
                    "{bytes} bytes from byte {first} on are not all in {}, which has {} bytes",
                    name(),
                    found.bytes
                )))
            }
            _ => Ok(found.bytes),
        }
    }
}

fn in_step() -> PyErr {
    SessionError::new_err("the session is in a step, which has not ended")
}

fn closed() -> PyErr {
    SessionError::new_err("the session is closed")
}

/// The exception for an error of a session.
fn of_session(error: &spillway::SessionError<DeviceError>) -> PyErr {
    let message = error.to_string();
    match error {
        spillway::SessionError::Plan(spillway::Error::States(_) | spillway::Error::Switch(_)) => {
            SwitchError::new_err(message)
        }
        _ => SessionError::new_err(message),
    }
}

/// The exception for an error of a running session: the exception of its kernels, or one that gives
/// the reason.
fn failed(session: &Running, error: &spillway::SessionError<DeviceError>) -> PyErr {
    let kernels = session.kernels();
    let on_host = match error {
        spillway::SessionError::Execute { error: ExecuteError::Device { error, .. }, .. } => {
            error.of_host()
        }
        _ => None,
    };
    let raised = match (on_host, &kernels.on_host) {
        (Some(failure), Some(on_host)) => {
            let op = session.plan().names().op(failure.op);
            let raised = on_host.raised.take().or_else(|| kernels.raised.take());
            raised.inspect(|error| note_place(error, &op, failure.iteration))
        }
        _ => kernels.raised.take(),
    };
    raised.unwrap_or_else(|| of_session(error))
}

/// Notes where an op failed, since a later step may raise its exception.
fn note_place(error: &PyErr, op: &str, iteration: u64) {
    let note = format!("{op} has raised it on the host, in iteration {iteration}");
    // Exceptions have notes since Python 3.11.
    let _ = Python::attach(|py| error.value(py).call_method1("add_note", (note,)).map(drop));
}

/// Lets a session read a value without the interpreter's lock, since the work for which it waits
/// may need the lock.
fn read(
    py: Python<'_>,
    session: &mut Running,
    into: &mut [u8],
    read: impl FnOnce(&mut Running, &mut [u8]) -> Result<(), spillway::SessionError<DeviceError>> + Send,
) -> PyResult<()> {
    py.detach(|| read(session, into).map_err(|error| failed(session, &error)))
}

/// A callback for progress, and the exception that it raised.
struct Progress {
    callback: Option<Py<PyAny>>,
    raised: Mutex<Option<PyErr>>,
}

impl Progress {
    fn new(callback: Option<&Bound<'_, PyAny>>) -> Self {
        Self { callback: callback.map(|it| it.clone().unbind()), raised: Mutex::new(None) }
    }

    /// Calls the callback, unless it has raised an exception.
    fn report(&self, copied: spillway::Copied) {
        let Some(callback) = &self.callback else { return };
        let mut raised = self.raised.lock().unwrap_or_else(PoisonError::into_inner);
        if raised.is_none() {
            let called = Python::attach(|py| callback.call1(py, (copied.bytes, copied.of_bytes)));
            *raised = called.err();
        }
    }

    fn raised(&self) -> PyResult<()> {
        let mut raised = self.raised.lock().unwrap_or_else(PoisonError::into_inner);
        raised.take().map_or(Ok(()), Err)
    }
}

impl Shared {
    /// Whether this process is a forked child of the process that made the session.
    fn is_foreign(&self) -> bool {
        self.process != std::process::id()
    }

    /// Frees all memory, and returns whether it did: it does not within a step. First waits for
    /// running work on the device and the host, without the interpreter's lock. In a forked child,
    /// leaves everything to the process that made the session.
    pub(crate) fn close(&self, py: Python<'_>) -> bool {
        let state = match self.state.try_lock() {
            Ok(mut state) => mem::replace(&mut *state, State::Closed),
            // In a forked child, such a step never ends.
            Err(TryLockError::WouldBlock) => return self.is_foreign(),
            Err(TryLockError::Poisoned(state)) => {
                mem::replace(&mut *state.into_inner(), State::Closed)
            }
        };
        if self.is_foreign() {
            mem::forget(state);
        } else {
            py.detach(|| drop(state));
        }
        true
    }

    /// The state, unless a step is running.
    fn state(&self) -> PyResult<MutexGuard<'_, State>> {
        if self.is_foreign() {
            return Err(SessionError::new_err(
                "the session belongs to the process that made it: make one in this process",
            ));
        }
        match self.state.try_lock() {
            Ok(state) => Ok(state),
            Err(TryLockError::Poisoned(state)) => Ok(state.into_inner()),
            Err(TryLockError::WouldBlock) => Err(in_step()),
        }
    }
}

impl Session {
    fn state(&self) -> PyResult<MutexGuard<'_, State>> {
        self.shared.state()
    }
}

/// A size of the host block that is enough for every plan of a graph.
fn all_bytes(graph: &spillway::Graph) -> u64 {
    let slots = |kind| if kind == Kind::Input { 2 } else { 1 };
    let tensors = graph.owned().tensors.iter();
    let bytes = tensors.map(|tensor| tensor.bytes.saturating_mul(slots(tensor.kind)));
    bytes.fold(0, u64::saturating_add)
}

/// Refuses a plan that needs more mappings than the process may have. A plan that is mapped as it
/// runs may need fewer than are counted. It is not refused, and fails if the mappings run out.
fn check_mappings(py: Python<'_>, plan: &Plan, refuse: fn(String) -> PyErr) -> PyResult<()> {
    let Some(limit) = MappingLimit::read() else { return Ok(()) };
    let needed = plan.mapped(py)?.count;
    if plan.plan().owned().placements.is_none() || needed <= limit.left() {
        return Ok(());
    }
    let MappingLimit { used, most } = limit;
    Err(refuse(format!(
        "the plan takes {needed} mappings, but this process can have only {} more: it has {used} of the \
         {most} that the system allows (vm.max_map_count), and {} stay free for its other memory; plan \
         with larger chunks (chunk_bytes) than {} bytes",
        limit.left(),
        MappingLimit::KEPT,
        plan.plan().machine().machine.chunk_bytes,
    )))
}

#[pymethods]
impl Session {
    #[new]
    #[pyo3(
        signature = (plan, kernels, others=Vec::new(), device=None),
        text_signature = "(plan, kernels, others=(), device=None)"
    )]
    fn new(
        py: Python<'_>,
        plan: &Plan,
        kernels: &Bound<'_, PyAny>,
        others: Vec<PyRef<'_, Plan>>,
        device: Option<&Cuda>,
    ) -> PyResult<Self> {
        if device.is_none() {
            check_mappings(py, plan, SessionError::new_err)?;
        }
        let plan = plan.plan();
        let (mut budget_bytes, mut capacity) = (plan.owned().budget_bytes, Capacity::default());
        for other in others.iter().map(|other| other.plan()) {
            capacity = capacity.max(other.capacity());
            budget_bytes = budget_bytes.max(other.owned().budget_bytes);
        }
        if device.is_none() {
            // Untouched pages of the host block take no memory, unless they are pinned.
            let on_host = plan.machine().machine.host_bytes;
            capacity.host_bytes = capacity.host_bytes.max(on_host.min(all_bytes(plan.graph())));
        }
        let chunk_bytes = plan.machine().machine.chunk_bytes;
        let refused = |error: DeviceError| SessionError::new_err(error.to_string());
        let mut device = match device {
            Some(cuda) => Device::Cuda(Box::new(cuda.open(py, chunk_bytes)?)),
            None => MappedDevice::new(chunk_bytes, budget_bytes)
                .map(|device| Device::Mapped(Box::new(device)))
                .map_err(|error| refused(error.into()))?,
        };
        let mut raw = |stream| device.raw_stream(stream).map_err(refused);
        let (stream, network_stream) = (raw(Stream::Compute)?, raw(Stream::Network)?);
        let kernels = PyKernels::new(kernels, plan)?;
        let ready = State::Ready(Box::new((plan.clone(), device, kernels, capacity)));
        let shared = Arc::new(Shared { state: Mutex::new(ready), process: std::process::id() });
        exit::close_at_exit(Arc::downgrade(&shared));
        Ok(Self { shared, stream, network_stream })
    }

    /// Sets the value of a state, with which the next step begins, to a copy of a buffer of its
    /// size. With `first_byte`, sets only as many bytes as the buffer has, from that byte on. Waits
    /// for all steps so far.
    #[pyo3(signature = (tensor, buffer, first_byte=None))]
    fn write_state(
        &self,
        py: Python<'_>,
        tensor: u32,
        buffer: &Bound<'_, PyAny>,
        first_byte: Option<u64>,
    ) -> PyResult<()> {
        let value = copied(buffer)?;
        let mut state = self.state()?;
        let bytes = state.check_buffer(tensor, Kind::State, value.len(), first_byte)?;
        let first = first_byte.unwrap_or(0);
        match &mut *state {
            State::Ready(parts) => {
                let states = &mut parts.2.states;
                let whole =
                    states.entry(TensorId(tensor)).or_insert_with(|| vec![0; bytes as usize]);
                whole[first as usize..][..value.len()].copy_from_slice(&value);
                Ok(())
            }
            State::Running(session) => py.detach(|| {
                let written = session.write_state_at(TensorId(tensor), first, &value);
                written.map_err(|error| failed(session, &error))
            }),
            State::Closed => Err(closed()),
        }
    }

    /// Reads the value of a state after all steps so far into a buffer of its size. With
    /// `first_byte`, reads only as many bytes as the buffer has, from that byte on. Copies only
    /// these bytes from the device, and only if the host does not have them.
    #[pyo3(signature = (tensor, buffer, first_byte=None))]
    fn read_state(
        &self,
        py: Python<'_>,
        tensor: u32,
        buffer: &Bound<'_, PyAny>,
        first_byte: Option<u64>,
    ) -> PyResult<()> {
        let mut buffer = Buffer::new(buffer)?;
        let into = buffer.bytes();
        let mut state = self.state()?;
        state.check_buffer(tensor, Kind::State, into.len(), first_byte)?;
        let first = first_byte.unwrap_or(0);
        match &mut *state {
            // A start would ask for inputs, so a session that has not started is not started here.
            State::Ready(parts) => match parts.2.states.get(&TensorId(tensor)) {
                Some(whole) => into.copy_from_slice(&whole[first as usize..][..into.len()]),
                None => into.fill(0),
            },
            started => read(py, started.running()?, into, |session, into| {
                session.read_state_at(TensorId(tensor), first, into)
            })?,
        }
        Ok(())
    }

    /// Writes the value of every state after all steps so far into a file, and starts the session
    /// if necessary. The file is in the format safetensors: each state is a tensor of bytes (`U8`)
    /// under its name, and the metadata `spillway.iterations` gives the number of steps so far. An
    /// older file of this name is replaced once everything is written. `progress` is called after
    /// each copy, with the bytes so far and in total. An exception of `progress` is raised once the
    /// copies have ended.
    #[pyo3(signature = (path, progress=None))]
    fn save_states(
        &self,
        py: Python<'_>,
        path: PathBuf,
        progress: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let progress = Progress::new(progress);
        py.detach(|| {
            let mut state = self.state()?;
            let session = state.running()?;
            let saved = session.save_states(path, |copied| progress.report(copied));
            progress.raised()?;
            saved.map_err(|error| failed(session, &error))
        })
    }

    /// Sets states to the values in a file in the format safetensors, with which the next step
    /// begins, and starts the session if necessary. The tensors in the file may have any type, and
    /// must have the names and sizes of states. With `all`, every state must be in the file.
    /// Otherwise, states that the file lacks keep their values. If something in the file does not
    /// fit, nothing is written. Returns the number of steps before the file was saved, or None if
    /// the file does not give it. `progress` is called after each copy, with the bytes so far and
    /// in total.
    #[pyo3(signature = (path, all=true, progress=None))]
    fn load_states(
        &self,
        py: Python<'_>,
        path: PathBuf,
        all: bool,
        progress: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<u64>> {
        let progress = Progress::new(progress);
        py.detach(|| {
            let mut state = self.state()?;
            let session = state.running()?;
            let loaded = session.load_states(path, all, |copied| progress.report(copied));
            let loaded = loaded.map_err(|error| failed(session, &error))?;
            progress.raised().map(|()| loaded)
        })
    }

    /// Reads the value that an iteration left in an output into a buffer of its size, and waits
    /// until that iteration has ended. The default is the last step. The value of the step before
    /// can also be read while the last step runs. Older values cannot be read.
    #[pyo3(signature = (tensor, buffer, iteration=None))]
    fn read_output(
        &self,
        py: Python<'_>,
        tensor: u32,
        buffer: &Bound<'_, PyAny>,
        iteration: Option<u64>,
    ) -> PyResult<()> {
        let mut buffer = Buffer::new(buffer)?;
        let into = buffer.bytes();
        let mut state = self.state()?;
        state.check_buffer(tensor, Kind::Output, into.len(), None)?;
        if let State::Ready(_) = &*state {
            return Err(SessionError::new_err("there are no outputs before the first step"));
        }
        read(py, state.running()?, into, |session, into| match iteration {
            Some(iteration) => session.read_output_of(iteration, TensorId(tensor), into),
            None => session.read_output(TensorId(tensor), into),
        })
    }

    /// Runs one iteration. On host memory, its ops on the device have run when it returns, but ops
    /// on the host and copies may still run. On CUDA, all work is enqueued, and may not have begun.
    ///
    /// An exception of the kernels' methods is raised unchanged. A later call may raise an
    /// exception of `launch_on_host`, with a note that names the op and the iteration. After that
    /// or any other error, the session cannot continue.
    fn step(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| {
            let mut state = self.state()?;
            let session = state.running()?;
            session.step().map_err(|error| failed(session, &error))
        })
    }

    /// Runs iterations, one step after the other.
    ///
    /// An exception of the kernels' methods is raised as by `step`, and later iterations do not
    /// run.
    fn run(&self, py: Python<'_>, iterations: u64) -> PyResult<()> {
        py.detach(|| {
            let mut state = self.state()?;
            let session = state.running()?;
            session.run(iterations).map_err(|error| failed(session, &error))
        })
    }

    /// Waits until all steps so far and all copies have ended, on the device and on the host.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| match &mut *self.state()? {
            State::Running(session) => session.wait().map_err(|error| failed(session, &error)),
            State::Ready(_) => Ok(()),
            State::Closed => Err(closed()),
        })
    }

    /// Continues with another plan from the next iteration on, and starts the session if necessary.
    /// States that both plans hold on the device stay there, and other states are copied if
    /// necessary. Returns the predicted cost.
    ///
    /// The graphs may differ in everything except their states, which are paired by name. From now
    /// on, tensors and ops have the numbers of the new graph. `kernels` are the kernels for it.
    /// Without them, the session keeps the same object. They are asked for the inputs of the next
    /// iteration, even if the old kernels were asked before. The count of iterations continues.
    ///
    /// Raises `SwitchError` if the states differ or the memory is too small. Also raises the
    /// exceptions of reading the kernels' methods. In these cases the old plan continues. After any
    /// other error, the session cannot continue.
    #[pyo3(signature = (plan, kernels=None))]
    fn switch(
        &self,
        py: Python<'_>,
        plan: &Plan,
        kernels: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<SwitchFigures> {
        if self.stream.is_none() {
            check_mappings(py, plan, SwitchError::new_err)?;
        }
        let plan = plan.plan();
        let object = match kernels {
            Some(object) => object.clone(),
            None => self.state()?.kernels().ok_or_else(closed)?.object.bind(py).clone(),
        };
        let next = PyKernels::new(&object, plan)?;
        py.detach(|| {
            let mut state = self.state()?;
            let session = state.running()?;
            let switched = session.switch(plan.clone(), |kernels| *kernels = next);
            switched.map(SwitchFigures::from).map_err(|error| match &error {
                spillway::SessionError::Execute { .. } => failed(session, &error),
                _ => of_session(&error),
            })
        })
    }

    /// The number of iterations so far.
    #[getter]
    fn iterations(&self) -> PyResult<u64> {
        match &*self.state()? {
            State::Running(session) => Ok(session.iterations()),
            State::Ready(_) => Ok(0),
            State::Closed => Err(closed()),
        }
    }

    /// The stream for ops, as the driver's handle (`CUstream`), in the device's primary context. It
    /// lives until the session is closed. None on host memory.
    #[getter]
    const fn stream(&self) -> Option<u64> {
        self.stream
    }

    /// The stream for collectives, as `stream`.
    #[getter]
    const fn network_stream(&self) -> Option<u64> {
        self.network_stream
    }

    /// The device memory that the session takes for its plans. 0 before the start.
    #[getter]
    fn device_bytes(&self) -> PyResult<u64> {
        match &*self.state()? {
            State::Running(session) => Ok(session.device_bytes()),
            State::Ready(_) => Ok(0),
            State::Closed => Err(closed()),
        }
    }

    /// Frees all memory. No other method works afterwards, and closing again does nothing. In a
    /// forked child, only forgets the session, which belongs to the process that made it.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.shared.close(py) { Ok(()) } else { Err(in_step()) }
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
        let Ok(state) = self.shared.state.try_lock() else { return Ok(()) };
        let Some(kernels) = state.kernels() else { return Ok(()) };
        visit.call(&kernels.object)?;
        visit.call(&kernels.launch)?;
        if let Some(on_host) = &kernels.on_host {
            visit.call(&*on_host.launch)?;
        }
        kernels.fill_input.as_ref().map_or(Ok(()), |fill_input| visit.call(fill_input))
    }

    fn __clear__(&self, py: Python<'_>) {
        self.shared.close(py);
    }
}
