//! Errors of an executor.

use crate::backend::{FillError, WriteError};
use crate::graph::TensorId;
use crate::plan::PlanError;
use crate::schedule::Stream;
use crate::scratch::OutOfScratch;
use crate::switch::SwitchError;
use core::cmp::Ordering;
use core::fmt;

/// The activity of an executor when an error was reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Moment {
    /// While memory was set up.
    SetUp,
    /// While memory was set up for this tensor, which is resident when an iteration starts.
    Start(TensorId),
    /// While the states were written into their slots.
    States,
    /// While the inputs of this iteration were written into their slots.
    Inputs(u64),
    /// While this state was read or written between two iterations.
    State(TensorId),
    /// While this step was enqueued.
    Step {
        /// The iteration, counted from 1.
        iteration: u64,
        /// The position in the plan's list.
        step: u32,
    },
    /// While the executor waited for all work and saved the states.
    Save,
    /// While the executor waited for the outputs of this iteration.
    Outputs(u64),
    /// While this step of a switch was enqueued.
    Switch(u32),
    /// While the memory of the previous plan was unmapped.
    TakeDown,
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SetUp => write!(f, "setting up memory"),
            Self::Start(tensor) => {
                write!(f, "uploading {tensor} before the first step")
            }
            Self::States => write!(f, "filling the states"),
            Self::State(tensor) => write!(f, "reading or writing {tensor}"),
            Self::Inputs(iteration) => write!(f, "filling the inputs of iteration {iteration}"),
            Self::Step { iteration, step } => write!(f, "step {step} of iteration {iteration}"),
            Self::Save => write!(f, "waiting for all work and saving the states"),
            Self::Outputs(iteration) => write!(f, "reading the outputs of iteration {iteration}"),
            Self::Switch(step) => write!(f, "step {step} of a switch"),
            Self::TakeDown => write!(f, "unmapping the memory of the previous plan"),
        }
    }
}

/// The iterations whose outputs the host holds, or will hold once they have ended: the last two
/// that a plan has enqueued. Empty if `first` is greater than `last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldOutputs {
    /// The first iteration.
    pub first: u64,
    /// The last iteration.
    pub last: u64,
}

impl fmt::Display for HeldOutputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, last } = self;
        match first.cmp(last) {
            Ordering::Greater => write!(f, "this plan has enqueued no iteration yet"),
            Ordering::Equal => write!(f, "it holds those of iteration {last}"),
            Ordering::Less => write!(f, "it holds those of iterations {first} and {last}"),
        }
    }
}

/// Why a plan could not be run. The host copies are as the last step that ended left them: no valid
/// copy has been overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExecuteError<E> {
    /// Working memory is too small for a plan of this size.
    Scratch(OutOfScratch),
    /// The plan's pieces are invalid.
    Plan(PlanError),
    /// The device's chunk has another size than the chunk of the plan's machine.
    ChunkBytes {
        /// Chunk size of the plan's machine.
        planned_bytes: u64,
        /// Chunk size of the device.
        device_bytes: u64,
    },
    /// The device reported an error. It may belong to work that was enqueued earlier.
    Device {
        /// When it was reported.
        at: Moment,
        /// The device's error.
        error: E,
    },
    /// The kernels' value for a state or an input does not fit its tensor.
    Write {
        /// When it was written.
        at: Moment,
        /// The tensor, and the reason.
        error: WriteError,
    },
    /// Free memory is in more runs than working memory has entries for.
    Fragmented(Moment),
    /// A pool has fewer free objects than the plan promised.
    PoolEmpty {
        /// When.
        at: Moment,
        /// The pool.
        pool: u32,
    },
    /// The device reserved addresses that end beyond 64 bits.
    Addresses(Moment),
    /// Someone else signalled the stream, so its values no longer name steps.
    ForeignSignal {
        /// When the executor noticed it.
        at: Moment,
        /// The stream.
        stream: Stream,
    },
    /// The plan runs ops on the host, for which the device has no stream.
    NoHostStream,
    /// The plan runs ops on the host, for which there are no kernels.
    NoHostKernels,
    /// The graph has collectives, for which the device has no stream.
    NoNetworkStream,
    /// The host does not hold the outputs of this iteration.
    NoOutputs {
        /// The iteration.
        iteration: u64,
        /// The iterations whose outputs it holds.
        held: HeldOutputs,
    },
    /// The switch was planned for another plan, or for another point in time of this plan.
    OtherHolding,
    /// The plan cannot be switched to.
    Switch(SwitchError),
    /// An earlier call failed.
    Failed,
}

impl<E> From<OutOfScratch> for ExecuteError<E> {
    fn from(error: OutOfScratch) -> Self {
        Self::Scratch(error)
    }
}

impl<E> From<SwitchError> for ExecuteError<E> {
    fn from(error: SwitchError) -> Self {
        Self::Switch(error)
    }
}

impl<E> From<PlanError> for ExecuteError<E> {
    fn from(error: PlanError) -> Self {
        match error {
            PlanError::Scratch(error) => Self::Scratch(error),
            error => Self::Plan(error),
        }
    }
}

impl<E> ExecuteError<E> {
    /// The error of an executor whose states or inputs were not filled.
    pub fn from_fill(error: FillError<E>, at: Moment) -> Self {
        match error {
            FillError::Device(error) => Self::Device { at, error },
            FillError::Write(error) => Self::Write { at, error },
        }
    }
}

impl<E: fmt::Display> fmt::Display for ExecuteError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scratch(error) => error.fmt(f),
            Self::Plan(error) => error.fmt(f),
            Self::ChunkBytes { planned_bytes, device_bytes } => write!(
                f,
                "the plan is for chunks of {planned_bytes} bytes and the device has chunks of \
                 {device_bytes}: plan for a machine with chunk_bytes {device_bytes}"
            ),
            Self::Device { at, error } => write!(f, "{at}: {error}"),
            Self::Write { at, error } => write!(f, "{at}: {error}"),
            Self::Fragmented(at) => write!(
                f,
                "{at}: the free chunks form too many runs: give the executor scratch for more runs"
            ),
            Self::PoolEmpty { at, pool } => {
                write!(f, "{at}: pool {pool} has too few free objects; verify the plan again")
            }
            Self::Addresses(at) => write!(
                f,
                "{at}: the device reserved addresses that end beyond 64 bits: correct its `reserve`"
            ),
            Self::ForeignSignal { at, stream } => write!(
                f,
                "{at}: the {stream} stream has signals of others: let only the executor signal it"
            ),
            Self::NoHostStream => write!(
                f,
                "the plan runs ops on the host, but the device has no stream for them: make a plan \
                 that runs every op on the device"
            ),
            Self::NoHostKernels => write!(
                f,
                "the plan runs ops on the host, but there are no host kernels: add kernels for the \
                 host, or make a plan that runs every op on the device"
            ),
            Self::NoNetworkStream => write!(
                f,
                "the graph has collectives, but the device has no stream for them: mark no op as a \
                 collective"
            ),
            Self::NoOutputs { iteration, held } => {
                write!(f, "the host has no outputs of iteration {iteration}: {held}")
            }
            Self::OtherHolding => write!(
                f,
                "the switch was planned for other contents of the device: plan it after the last \
                 iteration"
            ),
            Self::Switch(error) => error.fmt(f),
            Self::Failed => write!(f, "an earlier call failed: start again from saved states"),
        }
    }
}

impl<E: core::error::Error> core::error::Error for ExecuteError<E> {}

/// An error without the time at which it happened.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault<E> {
    Device(E),
    Fragmented,
    PoolEmpty(u32),
    Addresses,
    ForeignSignal(Stream),
    NoHostKernels,
}

impl<E> From<E> for Fault<E> {
    fn from(error: E) -> Self {
        Self::Device(error)
    }
}

impl<E> Fault<E> {
    pub(super) fn at(self, at: Moment) -> ExecuteError<E> {
        match self {
            Self::Device(error) => ExecuteError::Device { at, error },
            Self::Fragmented => ExecuteError::Fragmented(at),
            Self::PoolEmpty(pool) => ExecuteError::PoolEmpty { at, pool },
            Self::Addresses => ExecuteError::Addresses(at),
            Self::ForeignSignal(stream) => ExecuteError::ForeignSignal { at, stream },
            Self::NoHostKernels => ExecuteError::NoHostKernels,
        }
    }
}
