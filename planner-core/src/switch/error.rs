//! Errors of planning, verifying and running a switch.

use crate::graph::TensorId;
use crate::plan::PlanError;
use crate::scratch::{BufferTooShort, OutOfScratch};
use core::fmt;

/// One of the two plans of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The plan that ends.
    From,
    /// The plan that begins.
    To,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::From => "the first plan",
            Self::To => "the second plan",
        })
    }
}

/// Why a switch cannot be planned or is rejected. Steps are positions in the list of the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SwitchError {
    /// Working memory is too small.
    Scratch(OutOfScratch),
    /// An output buffer is too short.
    BufferTooShort(BufferTooShort),
    /// The plan's pieces are invalid.
    Plan(PlanError),
    /// The two plans are for machines with different chunk sizes.
    ChunkBytes {
        /// Chunk size of the first plan.
        from_bytes: u64,
        /// Chunk size of the second plan.
        to_bytes: u64,
    },
    /// A pair of states names a tensor that does not exist or is not a state.
    NotAState(Side, TensorId),
    /// Two pairs of states name the same tensor.
    PairedTwice(Side, TensorId),
    /// No pair of states names this state.
    Unpaired(Side, TensorId),
    /// Two states of a pair differ in size.
    StateBytes {
        /// The state of the first plan.
        from: TensorId,
        /// Its size in bytes.
        from_bytes: u64,
        /// The state of the second plan.
        to: TensorId,
        /// Its size in bytes.
        to_bytes: u64,
    },
    /// The device has fewer chunks than the second plan needs.
    DeviceMemory {
        /// Bytes that the second plan needs, in whole chunks.
        needed_bytes: u64,
        /// Bytes that were created on the device.
        created_bytes: u64,
    },
    /// The host block is smaller than the second plan needs.
    HostMemory {
        /// Bytes that the second plan needs.
        needed_bytes: u64,
        /// Bytes that were created.
        created_bytes: u64,
    },
    /// The runs do not list every chunk of the second plan once and in order, or they list a chunk
    /// of the device twice or one that does not exist.
    Chunks {
        /// A position in [`Switch::chunks`](super::Switch::chunks), or the end.
        run: u32,
    },
    /// The step names bytes that the first plan does not hold in one contiguous range.
    NotHeld {
        /// The step.
        step: u32,
    },
    /// The step names bytes that the second plan does not hold in one contiguous range at its
    /// start.
    NotWanted {
        /// The step.
        step: u32,
    },
    /// The same bytes are kept or evicted twice, offloaded twice, or prefetched twice.
    Twice {
        /// The second step that does so.
        step: u32,
    },
    /// Bytes that the first plan holds are neither kept nor evicted.
    LeftOver(TensorId),
    /// Bytes that the second plan holds at its start are neither kept nor prefetched.
    Missing(TensorId),
    /// The step keeps bytes that the second plan holds at another place.
    Elsewhere {
        /// The step.
        step: u32,
    },
    /// The step evicts the only copy of a value.
    ValueLost {
        /// The step.
        step: u32,
    },
    /// The step offloads bytes that the host already has.
    NeedlessOffload {
        /// The step.
        step: u32,
    },
    /// The step overwrites bytes that are still needed.
    Overwrites {
        /// The step.
        step: u32,
    },
    /// The step prefetches bytes of which the host has no copy.
    NoHostCopy {
        /// The step.
        step: u32,
    },
    /// The second plan expects a host copy of this state at its start, but there is none.
    ClaimedHostCopy(TensorId),
    /// A figure exceeds 64 bits.
    Overflow,
    /// A predicted figure is wrong.
    Prediction {
        /// The name of the figure.
        figure: &'static str,
        /// The predicted value.
        claimed: u64,
        /// The exact value.
        exact: u64,
    },
}

impl From<OutOfScratch> for SwitchError {
    fn from(error: OutOfScratch) -> Self {
        Self::Scratch(error)
    }
}

impl From<BufferTooShort> for SwitchError {
    fn from(error: BufferTooShort) -> Self {
        Self::BufferTooShort(error)
    }
}

impl From<PlanError> for SwitchError {
    fn from(error: PlanError) -> Self {
        match error {
            PlanError::Scratch(error) => Self::Scratch(error),
            error => Self::Plan(error),
        }
    }
}

impl fmt::Display for SwitchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scratch(error) => error.fmt(f),
            Self::BufferTooShort(error) => error.fmt(f),
            Self::Plan(error) => error.fmt(f),
            Self::ChunkBytes { from_bytes, to_bytes } => write!(
                f,
                "the first plan has chunks of {from_bytes} bytes and the second of {to_bytes}: plan \
                 both for one machine"
            ),
            Self::NotAState(side, tensor) => {
                write!(f, "{tensor} is not a state in the graph of {side}")
            }
            Self::PairedTwice(side, tensor) => {
                write!(f, "{tensor} of {side} has more than one state of the other plan")
            }
            Self::Unpaired(side, tensor) => write!(
                f,
                "{tensor} is a state of {side} alone: declare it in both graphs, even if no op \
                 uses it"
            ),
            Self::StateBytes { from, from_bytes, to, to_bytes } => write!(
                f,
                "{from} has {from_bytes} bytes in the first plan, and {to} has {to_bytes} in the \
                 second"
            ),
            Self::DeviceMemory { needed_bytes, created_bytes } => write!(
                f,
                "the second plan needs {needed_bytes} bytes of device memory and {created_bytes} were \
                 created: start with capacity for both plans"
            ),
            Self::HostMemory { needed_bytes, created_bytes } => write!(
                f,
                "the second plan needs {needed_bytes} bytes of host memory and {created_bytes} were \
                 created: start with capacity for both plans"
            ),
            Self::Chunks { run } => write!(
                f,
                "chunks[{run}]: the runs must name each chunk of the second plan once, in order, and \
                 no chunk of the device twice"
            ),
            Self::NotHeld { step } => {
                write!(
                    f,
                    "step {step}: the first plan does not hold these bytes in one contiguous range"
                )
            }
            Self::NotWanted { step } => {
                write!(
                    f,
                    "step {step}: the second plan does not hold these bytes in one contiguous range"
                )
            }
            Self::Twice { step } => write!(f, "step {step}: another step does this already"),
            Self::LeftOver(tensor) => {
                write!(f, "bytes of {tensor} are neither kept nor evicted")
            }
            Self::Missing(tensor) => {
                write!(f, "bytes of {tensor} are neither kept nor prefetched")
            }
            Self::Elsewhere { step } => {
                write!(f, "step {step}: the second plan holds these bytes elsewhere")
            }
            Self::ValueLost { step } => {
                write!(f, "step {step}: the only copy of a value would be lost")
            }
            Self::NeedlessOffload { step } => write!(f, "step {step}: the host has these bytes"),
            Self::Overwrites { step } => {
                write!(f, "step {step}: it overwrites bytes that are still needed")
            }
            Self::NoHostCopy { step } => {
                write!(f, "step {step}: the host has no copy of these bytes yet")
            }
            Self::ClaimedHostCopy(tensor) => {
                write!(f, "the second plan expects a host copy of {tensor} at its start")
            }
            Self::Overflow => write!(f, "bytes or times exceed 64 bits"),
            Self::Prediction { figure, claimed, exact } => {
                write!(f, "{figure} is {exact}, and the switch promises {claimed}")
            }
        }
    }
}

impl core::error::Error for SwitchError {}
