//! A plan under way on a device.

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
        let words = executor_words(plan.verified());
        let running = start(plan, words, |verified, scratch| {
            let (device, kernels) = (&mut device, &mut kernels);
            Ok(Executor::start_with(verified, capacity, device, kernels, scratch)?)
        });
        let running = running.map_err(|unstarted| unstarted.1.named(&unstarted.0))?;
        Ok(Self { device, kernels, running, iterations: 0, saved: true })
    }

    /// The same with enough memory for each of some other plans, to [switch](Self::switch) to them.
    ///
    /// # Errors
    /// Those of [`Session::new`].
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

    /// Ends the plan and starts another between two iterations. States that both hold on the
    /// device stay there where the new plan can have their memory; the others go to the host if it
    /// lacks them, and come from there if the new plan wants them. The switch is planned and proved
    /// first; its figures are returned. The memory of the old plan stays mapped for four more switches, so
    /// that a plan that comes again maps only what has changed.
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
        running
            .with_dependent_mut(|_, executor| executor.run(device, kernels, iterations))
            .map_err(|error| SessionError::of(&running.borrow_owner().plan, error))?;
        self.iterations = self.iterations.saturating_add(iterations);
        Ok(())
    }

    /// Waits until all iterations so far have ended, with all copies for the next one.
    ///
    /// # Errors
    /// Those of [`Executor::await_all`]: work that has failed is reported here at the latest.
    pub fn wait(&mut self) -> Result<(), SessionError<D::Error>> {
        self.execute(|executor, device| executor.await_all(device))
    }

    /// Reads the value that a state has after all iterations so far, and waits for these to end. Copies
    /// from the device what only the device has of this state, and nothing else.
    ///
    /// # Errors
    /// A tensor that is no state, a buffer of another size, and those of [`Executor::save_state`].
    pub fn read_state(
        &mut self,
        state: TensorId,
        into: &mut [u8],
    ) -> Result<(), SessionError<D::Error>> {
        self.read(state, Wanted::All(into.len() as u64), into)
    }

    /// The same for some bytes of the state, from `first_byte` on: only these are copied.
    ///
    /// # Errors
    /// A tensor that is no state, bytes outside of it, and those of [`Executor::save_state`].
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
        check(self.plan(), output, Kind::Output, Wanted::All(into.len() as u64))?;
        self.execute(|executor, device| executor.await_outputs(device, iteration))?;
        let slot = HostLayout::slot(iteration);
        self.read_host(Moment::Outputs(iteration), output, slot, 0, into)
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
        self.write(state, Wanted::All(value.len() as u64), value)
    }

    /// The same for some bytes of the state, from `first_byte` on: only these are copied.
    ///
    /// # Errors
    /// A tensor that is no state, bytes outside of it, and those of [`Executor::write_state`].
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

    /// Reads from the host block what a tensor has there.
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

    /// Has the executor do something with the device, and names what fails.
    fn execute(
        &mut self,
        body: impl FnOnce(&mut Executor<'_>, &mut D) -> Result<(), ExecuteError<D::Error>>,
    ) -> Result<(), SessionError<D::Error>> {
        let Self { device, running, .. } = self;
        let done = running.with_dependent_mut(|_, executor| body(executor, device));
        done.map_err(|error| SessionError::of(self.plan(), error))
    }
}

/// Makes an executor in memory of its own, of so many words or of more. Gives the plan back where there
/// is none.
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

    /// Iterations that were enqueued.
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
