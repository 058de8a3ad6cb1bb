//! A plan under way on a device.

use crate::error::Error;
use crate::growth::grow;
use crate::plan::Plan;
use crate::planning::executor_words;
use planner_core::backend::{ErrorType, Kernels, Paging, Transfers};
use planner_core::{ExecuteError, Executor, Kind, Scratch, TensorId};
use self_cell::{MutBorrow, self_cell};
use std::fmt;
use std::ops::ControlFlow::{Break, Continue};

/// A plan, the device that runs it, and the kernels that compute its ops.
///
/// A session borrows nothing: it can be a field of a struct, and it can move to another thread
/// if the device and the kernels can. After an error of the device, no further iteration runs.
pub struct Session<D, K> {
    device: D,
    kernels: K,
    running: Running,
    iterations: u64,
    /// Whether the host block holds the last value of every state.
    saved: bool,
}

/// What an executor borrows.
struct Owner {
    plan: Plan,
    memory: MutBorrow<Vec<u64>>,
}

self_cell!(
    struct Running {
        owner: Owner,
        #[covariant]
        dependent: Executor,
    }
);

/// Why a session does not start or does not go on.
#[derive(Debug)]
#[non_exhaustive]
pub enum SessionError<E> {
    /// The process has too little memory.
    Plan(Error),
    /// The device or the kernels failed, or the plan is for a device of other chunks.
    Execute(ExecuteError<E>),
    /// The graph has no such tensor, or it is no state.
    NotAState(TensorId),
    /// The buffer does not have the size of the tensor.
    BufferSize {
        /// The size of the tensor.
        tensor_bytes: u64,
        /// The size of the buffer.
        buffer_bytes: u64,
    },
}

impl<E: fmt::Display> fmt::Display for SessionError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plan(error) => error.fmt(f),
            Self::Execute(error) => error.fmt(f),
            Self::NotAState(tensor) => write!(f, "{tensor} is not a state of the graph"),
            Self::BufferSize { tensor_bytes, buffer_bytes } => {
                write!(f, "the buffer has {buffer_bytes} bytes, but the tensor has {tensor_bytes}")
            }
        }
    }
}

impl<E: std::error::Error> std::error::Error for SessionError<E> {}

impl<E> From<Error> for SessionError<E> {
    fn from(error: Error) -> Self {
        Self::Plan(error)
    }
}

impl<E> From<ExecuteError<E>> for SessionError<E> {
    fn from(error: ExecuteError<E>) -> Self {
        Self::Execute(error)
    }
}

impl<D: Transfers + Paging, K: Kernels<D>> Session<D, K> {
    /// Sets up device and host memory, fills states and the first inputs, and uploads what is
    /// resident at the start of an iteration.
    ///
    /// # Errors
    /// Those of [`Executor::start`].
    pub fn new(
        plan: Plan,
        mut device: D,
        mut kernels: K,
    ) -> Result<Self, SessionError<<D as ErrorType>::Error>> {
        let words = executor_words(&plan.verified()?);
        let owner = Owner { plan, memory: MutBorrow::new(Vec::new()) };
        let running = grow(words, owner, |mut owner, words| {
            owner.memory = MutBorrow::new(vec![0; words]);
            let started = Running::try_new_or_recover(owner, |owner| {
                let verified = owner.plan.verified()?;
                let scratch = &mut Scratch::new(owner.memory.borrow_mut());
                Ok(Executor::start(&verified, &mut device, &mut kernels, scratch)?)
            });
            match started {
                // Memory is split into more runs than usual. The device has not been called.
                Err((owner, SessionError::Execute(ExecuteError::Scratch(_)))) => {
                    Continue((owner, 0))
                }
                Err((_, error)) => Break(Err(error)),
                Ok(running) => Break(Ok(running)),
            }
        })?;
        Ok(Self { device, kernels, running, iterations: 0, saved: true })
    }

    /// Enqueues one iteration.
    ///
    /// # Errors
    /// Those of [`Executor::run`].
    pub fn step(&mut self) -> Result<(), SessionError<D::Error>> {
        self.run(1)
    }

    /// Enqueues iterations. Returns when the last is enqueued, not when it has ended.
    ///
    /// # Errors
    /// Those of [`Executor::run`].
    pub fn run(&mut self, iterations: u64) -> Result<(), SessionError<D::Error>> {
        let Self { device, kernels, running, .. } = self;
        running.with_dependent_mut(|_, executor| executor.run(device, kernels, iterations))?;
        self.iterations = self.iterations.saturating_add(iterations);
        self.saved = false;
        Ok(())
    }

    /// Reads the value that a state has after all iterations so far, and waits for these to end.
    ///
    /// # Errors
    /// A tensor that is no state, a buffer of another size, and those of
    /// [`Executor::save_states`].
    pub fn read_state(
        &mut self,
        state: TensorId,
        into: &mut [u8],
    ) -> Result<(), SessionError<D::Error>> {
        let tensors = &self.plan().graph().owned().tensors;
        let tensor = tensors.get(state.index()).filter(|tensor| tensor.kind == Kind::State);
        let tensor_bytes = tensor.ok_or(SessionError::NotAState(state))?.bytes;
        let buffer_bytes = into.len() as u64;
        if buffer_bytes != tensor_bytes {
            return Err(SessionError::BufferSize { tensor_bytes, buffer_bytes });
        }
        self.save_states()?;
        let offset_bytes = self.running.borrow_dependent().host_layout().offset_bytes(state, 0, 0);
        let read = self.device.read_host(offset_bytes, into);
        let at = planner_core::executor::Moment::Save;
        Ok(read.map_err(|error| ExecuteError::Device { at, error })?)
    }

    /// Waits for all iterations, and downloads each state of which only the device has the last
    /// value.
    fn save_states(&mut self) -> Result<(), SessionError<D::Error>> {
        if !self.saved {
            let Self { device, running, .. } = self;
            running.with_dependent_mut(|_, executor| executor.save_states(device))?;
            self.saved = true;
        }
        Ok(())
    }
}

impl<D, K> Session<D, K> {
    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.running.borrow_owner().plan
    }

    /// Iterations that were enqueued.
    #[must_use]
    pub const fn iterations(&self) -> u64 {
        self.iterations
    }

    /// The device.
    #[must_use]
    pub const fn device(&self) -> &D {
        &self.device
    }

    /// The kernels.
    #[must_use]
    pub const fn kernels(&self) -> &K {
        &self.kernels
    }

    /// The kernels, to be changed between iterations: those that are enqueued may still run.
    pub const fn kernels_mut(&mut self) -> &mut K {
        &mut self.kernels
    }
}

impl<D, K> fmt::Debug for Session<D, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("graph", &self.plan().graph().name())
            .field("iterations", &self.iterations)
            .finish_non_exhaustive()
    }
}
