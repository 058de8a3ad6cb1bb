//! A session whose iterations run as graphs.

use crate::CudaDevice;
use crate::error::CudaError;
use crate::replay::{Cycle, Recorded, cycle};
use planner_core::backend::Kernels;
use planner_core::executor::Moment;
use planner_core::{ExecuteError, TensorId};
use spillway::{Copied, Session, SessionError};
use std::path::Path;

/// A [`Session`] that runs all further iterations as graphs, like a [`Replay`](crate::Replay).
///
/// It has the calls of a session that work between launches of graphs. It cannot become a session
/// again, because the executor does not count launches of graphs.
#[derive(Debug)]
pub struct GraphSession<K> {
    session: Session<CudaDevice, K>,
    recorded: Recorded,
}

impl<K: Kernels<CudaDevice>> GraphSession<K> {
    /// Captures and launches the session's next iterations, for the length of a [`cycle`]. Run one
    /// iteration first: libraries load kernels in it, and cannot load kernels in a capture.
    ///
    /// # Errors
    /// [`CudaError::MappedInGraph`] if the plan has no placements ([`cycle`] then returns `None`); the
    /// errors of [`Replay::record`](crate::Replay::record).
    pub fn record(mut session: Session<CudaDevice, K>) -> Result<Self, SessionError<CudaError>> {
        let verified = session.plan().verified();
        let cycle = cycle(verified.graph(), verified.plan());
        let iterations = cycle.map_or(0, |cycle| cycle.length());
        let recorded = session.run_with(iterations, |executor, device, kernels| {
            let error = CudaError::MappedInGraph;
            let cycle = cycle.ok_or(ExecuteError::Device { at: Moment::SetUp, error })?;
            Recorded::new(executor, device, kernels, cycle)
        })?;
        Ok(Self { session, recorded })
    }

    /// Launches a whole cycle, as [`Replay::run`](crate::Replay::run) does.
    ///
    /// # Errors
    /// The errors of [`Replay::run`](crate::Replay::run).
    pub fn run(&mut self) -> Result<(), SessionError<CudaError>> {
        let Self { session, recorded } = self;
        session.run_with(recorded.cycle.length(), |executor, device, kernels| {
            recorded.run(executor, device, kernels)
        })
    }

    /// The iterations that [`run`](Self::run) launches.
    #[must_use]
    pub const fn cycle(&self) -> Cycle {
        self.recorded.cycle
    }

    /// Waits until all iterations so far have ended.
    ///
    /// # Errors
    /// The errors of [`Session::wait`].
    pub fn wait(&mut self) -> Result<(), SessionError<CudaError>> {
        self.session.wait()
    }

    /// Waits for all enqueued iterations, and reads bytes of a state, from `first_byte` on.
    ///
    /// # Errors
    /// The errors of [`Session::read_state_at`].
    pub fn read_state_at(
        &mut self,
        state: TensorId,
        first_byte: u64,
        into: &mut [u8],
    ) -> Result<(), SessionError<CudaError>> {
        self.session.read_state_at(state, first_byte, into)
    }

    /// Waits for all enqueued iterations, and writes bytes of a state, from `first_byte` on. The next
    /// iteration begins with this value.
    ///
    /// # Errors
    /// The errors of [`Session::write_state_at`].
    pub fn write_state_at(
        &mut self,
        state: TensorId,
        first_byte: u64,
        value: &[u8],
    ) -> Result<(), SessionError<CudaError>> {
        self.session.write_state_at(state, first_byte, value)
    }

    /// Waits for all enqueued iterations, and writes the values of all states to a file.
    ///
    /// # Errors
    /// The errors of [`Session::save_states`].
    pub fn save_states(
        &mut self,
        path: impl AsRef<Path>,
        progress: impl FnMut(Copied),
    ) -> Result<(), SessionError<CudaError>> {
        self.session.save_states(path, progress)
    }

    /// Waits for all enqueued iterations, and reads the value that the last one left in an output.
    ///
    /// # Errors
    /// The errors of [`Session::read_output`].
    pub fn read_output(
        &mut self,
        output: TensorId,
        into: &mut [u8],
    ) -> Result<(), SessionError<CudaError>> {
        // A cycle is even where outputs have two slots, so this is the slot of the captured iteration.
        self.session.read_output(output, into)
    }
}

impl<K> GraphSession<K> {
    /// The session, for its plan and the number of enqueued iterations. Its own calls no longer run
    /// iterations.
    #[must_use]
    pub const fn session(&self) -> &Session<CudaDevice, K> {
        &self.session
    }

    /// The kernels, for changes between launches. Captured work does not change.
    pub const fn kernels_mut(&mut self) -> &mut K {
        self.session.kernels_mut()
    }
}
