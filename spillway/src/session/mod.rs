//! A plan that runs on a device.

mod error;
mod file;

use crate::error::Error;
use crate::growth::grow;
use crate::plan::Plan;
use crate::planning::{executor_words, switch_words};
use crate::switching::{self, SwitchFigures};
pub use error::SessionError;
use error::{Failure, Wanted, check};
pub use file::Copied;
use planner_core::backend::{BackendError, ErrorType, Kernels, Paging, Transfers};
use planner_core::executor::Moment;
use planner_core::switch::{Capacity, Memory};
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

/// The data that an executor borrows.
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

impl<D: Transfers + Paging, K: Kernels<D>> Session<D, K> {
    /// Sets up device and host memory, fills states and the first inputs, and uploads all tensors that are
    /// resident at the start of an iteration.
    ///
    /// # Errors
    /// The errors of [`Executor::start`].
    pub fn new(
        plan: Plan,
        device: D,
        kernels: K,
    ) -> Result<Self, SessionError<<D as ErrorType>::Error>> {
        Self::with_capacity(plan, Capacity::default(), device, kernels)
    }

    /// Starts a session with at least this much memory on the device and on the host, for plans to
    /// [switch](Self::switch) to. [`Plan::capacity`] returns the needs of each plan.
    ///
    /// # Errors
    /// The errors of [`Session::new`].
    pub fn with_capacity(
        plan: Plan,
        capacity: Capacity,
        mut device: D,
        mut kernels: K,
    ) -> Result<Self, SessionError<D::Error>> {
        let words = executor_words(plan.verified());
        let running = start(plan, words, |verified, scratch| {
            let (device, kernels) = (&mut device, &mut kernels);
            Ok(Executor::start_with(verified, capacity, device, kernels, scratch)?)
        });
        let running = running.map_err(|unstarted| unstarted.1.named(&unstarted.0))?;
        Ok(Self { device, kernels, running, iterations: 0, saved: true })
    }

    /// Starts a session with enough memory for each of some other plans, to [switch](Self::switch) to them.
    ///
    /// # Errors
    /// The errors of [`Session::new`].
    pub fn with_others(
        plan: Plan,
        others: &[&Plan],
        device: D,
        kernels: K,
    ) -> Result<Self, SessionError<D::Error>> {
        let mut capacity = Capacity::default();
        for other in others {
            capacity = capacity.max(other.capacity());
        }
        Self::with_capacity(plan, capacity, device, kernels)
    }

    /// Ends the plan and starts another between two iterations. States that both plans hold on the device
    /// stay there if the new plan can take over their memory. Other states go to the host if the host lacks
    /// their values, and come back if the new plan holds them on the device. The session plans and proves the
    /// switch first, and returns its figures. The memory of the old plan stays mapped for four more switches,
    /// so that a plan that comes again maps only the changed parts.
    ///
    /// The graphs may differ in everything except the names and sizes of their states. The session calls
    /// `change` after all iterations have ended; it must turn the kernels into the kernels of the new graph.
    /// Then the kernels fill the inputs of the next iteration, which they may have filled for the old plan
    /// already. The count of iterations continues.
    ///
    /// # Errors
    /// [`Error::States`] if the states differ; [`Error::Switch`] if the device or the host block is too small
    /// ([`Session::with_capacity`]). After both, the session continues with the old plan. After an error of
    /// the device, no further iteration runs.
    pub fn switch(
        &mut self,
        plan: Plan,
        change: impl FnOnce(&mut K),
    ) -> Result<SwitchFigures, SessionError<D::Error>> {
        let Self { device, kernels, running, .. } = self;
        let states = switching::shared_states(running.borrow_owner().plan.graph(), plan.graph())?;
        let (to, executor, mut held) = (plan.verified(), running.borrow_dependent(), Vec::new());
        let planned = switching::holding(executor, &mut held)
            .and_then(|holding| switching::plan(&holding, to, &states, Memory::Chunks))
            .map_err(Error::from)?;
        let words = switch_words(executor, to, planned.chunks.len());
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
        });
        *running = next.map_err(|unstarted| match *unstarted {
            // An iteration of the old plan has failed.
            (_, failure @ Failure::Execute(ExecuteError::Device { at: Moment::Save, .. })) => {
                failure.named(&running.borrow_owner().plan)
            }
            (plan, failure) => failure.named(&plan),
        })?;
        self.saved = false;
        let next = running.borrow_dependent();
        Ok(SwitchFigures::new(planned.predicted, next.set_up(), next.verified().machine()))
    }

    /// Enqueues one iteration.
    ///
    /// # Errors
    /// The errors of [`Executor::run`].
    pub fn step(&mut self) -> Result<(), SessionError<D::Error>> {
        self.run(1)
    }

    /// Enqueues iterations. Returns when the last one is enqueued, not when it has ended.
    ///
    /// # Errors
    /// The errors of [`Executor::run`].
    pub fn run(&mut self, iterations: u64) -> Result<(), SessionError<D::Error>> {
        self.run_with(iterations, |executor, device, kernels| {
            executor.run(device, kernels, iterations)
        })
    }

    /// Calls a function that enqueues this many iterations, for example as CUDA graphs.
    ///
    /// # Errors
    /// The errors of the function, with the plan's names.
    pub fn run_with<T>(
        &mut self,
        iterations: u64,
        body: impl FnOnce(&mut Executor<'_>, &mut D, &mut K) -> Result<T, ExecuteError<D::Error>>,
    ) -> Result<T, SessionError<D::Error>> {
        // This holds also after a failure: the host copies may then belong to different iterations.
        self.saved = false;
        let Self { device, kernels, running, .. } = self;
        let ran = running.with_dependent_mut(|_, executor| body(executor, device, kernels));
        let ran = ran.map_err(|error| SessionError::of(self.plan(), error))?;
        self.iterations = self.iterations.saturating_add(iterations);
        Ok(ran)
    }

    /// Waits until all iterations so far have ended, with all copies for the next one.
    ///
    /// # Errors
    /// The errors of [`Executor::await_all`]. If earlier calls did not report failed work, this call does.
    pub fn wait(&mut self) -> Result<(), SessionError<D::Error>> {
        self.execute(|executor, device| executor.await_all(device))
    }

    /// Waits for all enqueued iterations, and reads the value of a state. Copies only the bytes of the state
    /// whose value is only on the device.
    ///
    /// # Errors
    /// [`SessionError::Tensor`] if the tensor is not a state; [`SessionError::Bytes`] if the buffer has
    /// another size; the errors of [`Executor::save_state`].
    pub fn read_state(
        &mut self,
        state: TensorId,
        into: &mut [u8],
    ) -> Result<(), SessionError<D::Error>> {
        self.read(state, Wanted::All(into.len() as u64), into)
    }

    /// Does the same for some bytes of the state, from `first_byte` on, and copies only these bytes.
    ///
    /// # Errors
    /// [`SessionError::Tensor`] if the tensor is not a state; [`SessionError::Bytes`] if the bytes are
    /// outside of it; the errors of [`Executor::save_state`].
    pub fn read_state_at(
        &mut self,
        state: TensorId,
        first_byte: u64,
        into: &mut [u8],
    ) -> Result<(), SessionError<D::Error>> {
        self.read(state, Wanted::From(first_byte, into.len() as u64), into)
    }

    fn read(
        &mut self,
        state: TensorId,
        wanted: Wanted,
        into: &mut [u8],
    ) -> Result<(), SessionError<D::Error>> {
        let bytes = check(self.plan(), state, Kind::State, wanted)?;
        if bytes.is_empty() {
            return Ok(());
        }
        if !self.saved {
            self.execute(|executor, device| executor.save_state(device, state, &bytes))?;
        }
        self.read_host(Moment::State(state), state, 0, bytes.start, into)
    }

    /// Waits for all enqueued iterations, and reads the value of an output.
    ///
    /// # Errors
    /// The errors of [`Session::read_output_of`].
    pub fn read_output(
        &mut self,
        output: TensorId,
        into: &mut [u8],
    ) -> Result<(), SessionError<D::Error>> {
        let last = self.running.borrow_dependent().last_iteration();
        self.read_output_of(last, output, into)
    }

    /// Waits for an iteration, and reads the value that it left in an output. The iteration must be the last
    /// enqueued iteration or the iteration before it, whose outputs can be read while the last iteration
    /// runs. Iterations count from 1, over all plans.
    ///
    /// # Errors
    /// [`SessionError::Tensor`] if the tensor is not an output; [`SessionError::Bytes`] if the buffer has
    /// another size; the errors of [`Executor::await_outputs`].
    pub fn read_output_of(
        &mut self,
        iteration: u64,
        output: TensorId,
        into: &mut [u8],
    ) -> Result<(), SessionError<D::Error>> {
        check(self.plan(), output, Kind::Output, Wanted::All(into.len() as u64))?;
        self.execute(|executor, device| executor.await_outputs(device, iteration))?;
        let slot = HostLayout::slot(iteration);
        self.read_host(Moment::Outputs(iteration), output, slot, 0, into)
    }

    /// Waits for all enqueued iterations, and writes a new value of a state. The next iteration begins with
    /// this value.
    ///
    /// # Errors
    /// [`SessionError::Tensor`] if the tensor is not a state; [`SessionError::Bytes`] if the buffer has
    /// another size; the errors of [`Executor::write_state`].
    pub fn write_state(
        &mut self,
        state: TensorId,
        value: &[u8],
    ) -> Result<(), SessionError<D::Error>> {
        self.write(state, Wanted::All(value.len() as u64), value)
    }

    /// Does the same for some bytes of the state, from `first_byte` on, and copies only these bytes.
    ///
    /// # Errors
    /// [`SessionError::Tensor`] if the tensor is not a state; [`SessionError::Bytes`] if the bytes are
    /// outside of it; the errors of [`Executor::write_state`].
    pub fn write_state_at(
        &mut self,
        state: TensorId,
        first_byte: u64,
        value: &[u8],
    ) -> Result<(), SessionError<D::Error>> {
        self.write(state, Wanted::From(first_byte, value.len() as u64), value)
    }

    fn write(
        &mut self,
        state: TensorId,
        wanted: Wanted,
        value: &[u8],
    ) -> Result<(), SessionError<D::Error>> {
        let first_byte = check(self.plan(), state, Kind::State, wanted)?.start;
        if value.is_empty() {
            return Ok(());
        }
        self.execute(|executor, device| executor.write_state(device, state, first_byte, value))
    }

    /// Reads the value of a tensor from the host block.
    fn read_host(
        &mut self,
        at: Moment,
        tensor: TensorId,
        slot: u32,
        first_byte: u64,
        into: &mut [u8],
    ) -> Result<(), SessionError<D::Error>> {
        self.execute(|executor, device| {
            let offset_bytes = executor.host_layout().offset_bytes(tensor, slot, first_byte);
            let read = device.read_host(offset_bytes, into);
            read.map_err(|error| ExecuteError::Device { at, error })
        })
    }

    /// Waits for all iterations, and downloads each state of which only the device has the last
    /// value.
    fn save(&mut self) -> Result<(), SessionError<D::Error>> {
        if !self.saved {
            #[expect(
                clippy::redundant_closure_for_method_calls,
                reason = "the method is for one lifetime of the executor, the closure for all"
            )]
            self.execute(|executor, device| executor.save_states(device))?;
            self.saved = true;
        }
        Ok(())
    }

    /// Calls a function with the executor and the device, and adds names to its error.
    fn execute(
        &mut self,
        body: impl FnOnce(&mut Executor<'_>, &mut D) -> Result<(), ExecuteError<D::Error>>,
    ) -> Result<(), SessionError<D::Error>> {
        let Self { device, running, .. } = self;
        let done = running.with_dependent_mut(|_, executor| body(executor, device));
        done.map_err(|error| SessionError::of(self.plan(), error))
    }
}

/// Makes an executor in memory of its own, with this many words or more. Returns the plan if this fails.
fn start<E: BackendError>(
    plan: Plan,
    words: usize,
    mut executor: impl for<'a> FnMut(
        &Verified<'a>,
        &mut Scratch<'a>,
    ) -> Result<Executor<'a>, Failure<E>>,
) -> Result<Running, Box<(Plan, Failure<E>)>> {
    let owner = Owner { plan, memory: MutBorrow::new(Vec::new()) };
    grow(words, owner, |mut owner, words| {
        owner.memory = MutBorrow::new(vec![0; words]);
        let started = Running::try_new_or_recover(owner, |owner| {
            executor(owner.plan.verified(), &mut Scratch::new(owner.memory.borrow_mut()))
        });
        match started {
            // Memory is split into more runs than usual. The device has not been called.
            Err((owner, Failure::Execute(ExecuteError::Scratch(_)))) => Continue((owner, 0)),
            Err((owner, failure)) => Break(Err(Box::new((owner.plan, failure)))),
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

    /// The number of enqueued iterations.
    #[must_use]
    pub const fn iterations(&self) -> u64 {
        self.iterations
    }

    /// The device's memory that the session has taken for its plans.
    #[must_use]
    pub fn device_bytes(&self) -> u64 {
        let executor = self.running.borrow_dependent();
        executor.capacity().chunks.saturating_mul(executor.verified().machine().chunk_bytes)
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

    /// The kernels, for changes between iterations. Enqueued iterations may still run.
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
