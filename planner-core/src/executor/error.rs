//! What can go wrong while a plan is carried out.

use crate::backend::{FillError, WriteError};
use crate::graph::TensorId;
use crate::plan::PlanError;
use crate::schedule::Stream;
use crate::scratch::OutOfScratch;
use crate::switch::SwitchError;
use core::cmp::Ordering;
use core::fmt;

/// When something went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Moment {
    /// While memory was set up.
    SetUp,
    /// While memory was set up for this tensor, which is on the device when an iteration starts.
    Start(TensorId),
    /// While the states were put into their slots.
    States,
    /// While the inputs of this iteration were put into their slots.
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
    /// While all work was waited for and states were saved.
    Save,
    /// While the outputs of this iteration were waited for and read.
    Outputs(u64),
    /// While this step of a switch was enqueued.
    Switch(u32),
    /// While the memory of the plan before was unmapped.
    TakeDown,
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SetUp => write!(f, "setting up memory"),
            Self::Start(tensor) => {
                write!(f, "bringing {tensor} to the device before the first step")
            }
            Self::States => write!(f, "filling the states"),
            Self::State(tensor) => write!(f, "reading or writing {tensor}"),
            Self::Inputs(iteration) => write!(f, "filling the inputs of iteration {iteration}"),
            Self::Step { iteration, step } => write!(f, "step {step} of iteration {iteration}"),
            Self::Save => write!(f, "waiting for all work and saving the states"),
            Self::Outputs(iteration) => write!(f, "reading the outputs of iteration {iteration}"),
            Self::Switch(step) => write!(f, "step {step} of a switch"),
            Self::TakeDown => write!(f, "unmapping the memory of the plan before"),
        }
    }
}

/// The iterations of whose outputs the host holds the values, or will hold them when they have ended: the
/// last two that a plan has enqueued. None if `first` is greater than `last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldOutputs {
    /// The first of them.
    pub first: u64,
    /// The last of them.
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

/// Why a plan could not be carried out. The host copies are as the last step that has ended
/// left them: none that was valid has been overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExecuteError<E> {
    /// Working memory is too small for a plan of this size.
    Scratch(OutOfScratch),
    /// The plan's pieces cannot be laid out.
    Plan(PlanError),
    /// The device maps memory in another unit than the machine of the plan.
    ChunkBytes {
        /// The plan's machine.
        planned_bytes: u64,
        /// The device.
        device_bytes: u64,
    },
    /// The device reports an error. It may belong to work that was enqueued earlier.
    Device {
        /// When it was reported.
        at: Moment,
        /// The device's error.
        error: E,
    },
    /// The kernels' value for a state or an input does not fit it.
    Write {
        /// When.
        at: Moment,
        /// Which tensor, and why.
        error: WriteError,
    },
    /// Free memory is in more runs than fit into working memory.
    Fragmented(Moment),
    /// A pool has fewer free objects than the plan promised.
    PoolEmpty {
        /// When.
        at: Moment,
        /// The pool.
        pool: u32,
    },
    /// The device reserved addresses that do not end within 64 bits.
    Addresses(Moment),
    /// The stream was signalled by someone else, so its values no longer name steps.
    ForeignSignal {
        /// When it was noticed.
        at: Moment,
        /// The stream.
        stream: Stream,
    },
    /// The plan runs ops on the host, for which the device has no stream.
    NoHostStream,
    /// The plan runs ops on the host, for which there are no kernels.
    NoHostKernels,
    /// The host does not hold the outputs of this iteration.
    NoOutputs {
        /// The iteration.
        iteration: u64,
        /// Those whose outputs it holds.
        held: HeldOutputs,
    },
    /// A switch was planned for another plan, or for another time of this one.
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
                "{at}: free memory is in too many pieces: give the executor scratch for more runs"
            ),
            Self::PoolEmpty { at, pool } => {
                write!(f, "{at}: pool {pool} has too few free objects; verify the plan again")
            }
            Self::Addresses(at) => write!(
                f,
                "{at}: the device reserved addresses that end beyond 64 bits: mend its `reserve`"
            ),
            Self::ForeignSignal { at, stream } => write!(
                f,
                "{at}: the {stream} stream was signalled by others: signal it nowhere else"
            ),
            Self::NoHostStream => write!(
                f,
                "the plan runs ops on the host, and this device has no stream for them: make a plan \
                 that runs every op on the device"
            ),
            Self::NoHostKernels => write!(
                f,
                "the plan runs ops on the host, and these kernels have none for it: bring kernels \
                 for the host, or make a plan that runs every op on the device"
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

/// An error that does not know yet when it happened.
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
