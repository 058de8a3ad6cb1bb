//! A plan under way on a device.

use crate::error::Error;
use crate::growth::grow;
use crate::plan::Plan;
use crate::planning::{executor_words, switch_words};
use crate::switching;
use planner_core::backend::{ErrorType, Kernels, Paging, Transfers};
use planner_core::switch::{Capacity, SwitchError, SwitchPrediction};
use planner_core::{ExecuteError, Executor, HostLayout, Kind, Scratch, TensorId, Verified};
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
    /// The process has too little memory, or there is no switch to the plan.
    Plan(Error),
    /// The device or the kernels failed, or the plan is for a device of other chunks.
    Execute(ExecuteError<E>),
    /// The graph has no such tensor, or it is no state.
    NotAState(TensorId),
    /// The graph has no such tensor, or it is no output.
    NotAnOutput(TensorId),
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
            Self::NotAnOutput(tensor) => write!(f, "{tensor} is not an output of the graph"),
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

impl<E> From<SwitchError> for SessionError<E> {
    fn from(error: SwitchError) -> Self {
        Self::Plan(error.into())
    }
}

impl<E> From<ExecuteError<E>> for SessionError<E> {
    fn from(error: ExecuteError<E>) -> Self {
        match error {
            ExecuteError::Switch(error) => error.into(),
            error => Self::Execute(error),
        }
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
        device: D,
        kernels: K,
    ) -> Result<Self, SessionError<<D as ErrorType>::Error>> {
        Self::with_capacity(plan, Capacity::default(), device, kernels)
    }

    /// The same, with at least so much memory on the device and on the host, for plans to
    /// [switch](Self::switch) to. [`Plan::capacity`] says what each needs.
    ///
    /// # Errors
    /// Those of [`Session::new`].
    pub fn with_capacity(
        plan: Plan,
        capacity: Capacity,
        mut device: D,
        mut kernels: K,
    ) -> Result<Self, SessionError<D::Error>> {
        let words = executor_words(&plan.verified()?);
        let running = start(plan, words, |verified, scratch| {
            let (device, kernels) = (&mut device, &mut kernels);
            Ok(Executor::start_with(verified, capacity, device, kernels, scratch)?)
        })?;
        Ok(Self { device, kernels, running, iterations: 0, saved: true })
    }

    /// Ends the plan and starts another between two iterations. States that both hold on the
    /// device stay there where the new plan can have their memory; the others go to the host if it
    /// lacks them, and come from there if the new plan wants them. The switch is planned and proved
    /// first; its figures are returned.
    ///
    /// The graphs may differ in all but their states: names and sizes of these must be the same.
    /// `change` is called once all iterations have ended, to make the kernels those of the new graph.
    /// Then they fill the inputs of the next iteration, which may have been filled before for the
    /// old plan. Iterations are counted on.
    ///
    /// # Errors
    /// [`Error::States`] and [`Error::Switch`], where the session goes on with the old plan: the
    /// states differ, or the device or the host block is too small ([`Session::with_capacity`]).
    /// After an error of the device, no further iteration runs.
    pub fn switch(
        &mut self,
        plan: Plan,
        change: impl FnOnce(&mut K),
    ) -> Result<SwitchPrediction, SessionError<D::Error>> {
        let Self { device, kernels, running, .. } = self;
        let states = switching::shared_states(running.borrow_owner().plan.graph(), plan.graph())?;
        let (planned, words) = {
            let (to, mut held) = (plan.verified()?, Vec::new());
            let executor = running.borrow_dependent();
            let holding = switching::holding(executor, &mut held)?;
            let planned = switching::plan(&holding, &to, &states)?;
            let words = switch_words(executor, &to, planned.chunks.len());
            (planned, words)
        };
        let mut change = Some(change);
        let next = running.with_dependent_mut(|_, executor| {
            start(plan, words, |to, scratch| {
                let mut held = Vec::new();
                let holding = switching::holding(executor, &mut held)?;
                let switch = planned.switch();
                let proved = switching::prove(&holding, to, &states, &switch)?;
                let (kernels, change) = (&mut *kernels, &mut change);
                let changed = move || {
                    if let Some(change) = change.take() {
                        change(kernels);
                    }
                    kernels
                };
                Ok(executor.switch(&proved, device, changed, scratch)?)
            })
        })?;
        *running = next;
        self.saved = false;
        Ok(planned.predicted)
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
        // Also if it fails: the host copies may then belong to different iterations.
        self.saved = false;
        let Self { device, kernels, running, .. } = self;
        running.with_dependent_mut(|_, executor| executor.run(device, kernels, iterations))?;
        self.iterations = self.iterations.saturating_add(iterations);
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
        self.check_buffer(state, Kind::State, into.len() as u64)?;
        self.save_states()?;
        let offset_bytes = self.running.borrow_dependent().host_layout().offset_bytes(state, 0, 0);
        let read = self.device.read_host(offset_bytes, into);
        let at = planner_core::executor::Moment::Save;
        Ok(read.map_err(|error| ExecuteError::Device { at, error })?)
    }

    /// Reads the value that an output has after all iterations so far, and waits for these to end.
    ///
    /// # Errors
    /// Those of [`Session::read_output_of`].
    pub fn read_output(
        &mut self,
        output: TensorId,
        into: &mut [u8],
    ) -> Result<(), SessionError<D::Error>> {
        let last = self.running.borrow_dependent().last_iteration();
        self.read_output_of(last, output, into)
    }

    /// Reads the value that an iteration left in an output, and waits for that iteration to end. It is
    /// the last one that was enqueued, or the one before, whose outputs can be read while the last one
    /// runs. Iterations are counted from 1, over all plans.
    ///
    /// # Errors
    /// A tensor that is no output, a buffer of another size, and those of
    /// [`Executor::await_outputs`].
    pub fn read_output_of(
        &mut self,
        iteration: u64,
        output: TensorId,
        into: &mut [u8],
    ) -> Result<(), SessionError<D::Error>> {
        self.check_buffer(output, Kind::Output, into.len() as u64)?;
        let executor = self.running.borrow_dependent();
        executor.await_outputs(&mut self.device, iteration)?;
        let slot = HostLayout::slot(iteration);
        let offset_bytes = executor.host_layout().offset_bytes(output, slot, 0);
        let read = self.device.read_host(offset_bytes, into);
        let at = planner_core::executor::Moment::Outputs(iteration);
        Ok(read.map_err(|error| ExecuteError::Device { at, error })?)
    }

    /// Gives a state another value, with which the next iteration begins. Waits for all iterations
    /// so far.
    ///
    /// # Errors
    /// A tensor that is no state, a buffer of another size, and those of
    /// [`Executor::write_state`].
    pub fn write_state(
        &mut self,
        state: TensorId,
        value: &[u8],
    ) -> Result<(), SessionError<D::Error>> {
        self.check_buffer(state, Kind::State, value.len() as u64)?;
        let Self { device, running, .. } = self;
        running.with_dependent_mut(|_, executor| executor.write_state(device, state, value))?;
        Ok(())
    }

    /// Checks that a tensor is a state or an output, and that a buffer for it has its size.
    fn check_buffer(
        &self,
        tensor: TensorId,
        kind: Kind,
        buffer_bytes: u64,
    ) -> Result<(), SessionError<D::Error>> {
        let tensors = &self.plan().graph().owned().tensors;
        let found = tensors.get(tensor.index()).filter(|tensor| tensor.kind == kind);
        let tensor_bytes = match (found, kind) {
            (Some(found), _) => found.bytes,
            (None, Kind::Output) => return Err(SessionError::NotAnOutput(tensor)),
            (None, _) => return Err(SessionError::NotAState(tensor)),
        };
        if buffer_bytes != tensor_bytes {
            return Err(SessionError::BufferSize { tensor_bytes, buffer_bytes });
        }
        Ok(())
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

/// Makes an executor in memory of its own, of so many words or of more.
fn start<E>(
    plan: Plan,
    words: usize,
    mut executor: impl for<'a> FnMut(
        &Verified<'a>,
        &mut Scratch<'a>,
    ) -> Result<Executor<'a>, SessionError<E>>,
) -> Result<Running, SessionError<E>> {
    let owner = Owner { plan, memory: MutBorrow::new(Vec::new()) };
    grow(words, owner, |mut owner, words| {
        owner.memory = MutBorrow::new(vec![0; words]);
        let started = Running::try_new_or_recover(owner, |owner| {
            let verified = owner.plan.verified()?;
            executor(&verified, &mut Scratch::new(owner.memory.borrow_mut()))
        });
        match started {
            // Memory is split into more runs than usual. The device has not been called.
            Err((owner, SessionError::Execute(ExecuteError::Scratch(_)))) => Continue((owner, 0)),
            Err((_, error)) => Break(Err(error)),
            Ok(running) => Break(Ok(running)),
        }
    })
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
