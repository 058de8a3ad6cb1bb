//! Switching from one plan to another between two iterations: what stays on the device, and what
//! moves.
//!
//! The two plans may be for the same graph or for two, which have the same states. Temporaries and
//! inputs end with an iteration, so only states go from one plan to the other. Each byte of a state
//! that the first plan holds at the end of an iteration stays where it is if the second plan holds
//! it at its start, and can have its chunk there: the second plan's chunks are numbered anew, so
//! that a chunk with what stays is one and the same in both. All else goes to the host if the host
//! lacks it, and comes from there if the second plan needs it.
//!
//! ```text
//! Holding of the first plan ─┐
//! Verified second plan ──────┼─► plan ──► Switch ──► verify ──► VerifiedSwitch ──► Executor
//! states of both ────────────┘            untrusted
//! ```
//!
//! [`plan`] plans a switch, and [`verify()`] proves one, whoever planned it:
//!
//! - Every byte of every state keeps its value: it stays, or it is copied from what holds it.
//! - A copy reads what is valid, and overwrites nothing that is still needed.
//! - In the end the second plan finds what it expects at its start, on the device and on the host.
//! - At each step, all that is held lies in the chunks that the device has, without an overlap.
//!   If these were created for the two plans ([`Capacity`]), they are the larger of what the two
//!   plans need, and so within the larger of the two budgets.

mod arena;
mod chunks;
mod error;
mod held;
mod list;
mod matching;
mod planner;
mod states;
mod verify;

pub use arena::{keep_offsets, keep_offsets_scratch_words};
pub(crate) use chunks::ChunkMap;
pub use chunks::ChunkRun;
pub use error::{Side, SwitchError};
pub use held::{Capacity, Held, Holding};
pub(crate) use held::{Rows, chunks};
pub use planner::{Memory, SwitchOutput, plan, scratch_words};
pub use states::SharedState;
pub use verify::{VerifiedSwitch, verify, verify_scratch_words};

use crate::graph::TensorId;
use crate::machine::{Direction, Machine};

/// Consecutive bytes of a tensor, by its id in the second graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorBytes {
    /// The tensor.
    pub tensor: TensorId,
    /// The first of the bytes.
    pub first_byte: u64,
    /// How many, not zero.
    pub bytes: u64,
}

/// A step of a switch. Offloads run on the download stream and prefetches on the upload stream, in
/// the order of the list, at the same time; a prefetch waits for every offload that is listed
/// before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SwitchStep {
    /// These bytes of a state stay where they are on the device.
    Keep(TensorBytes),
    /// Copy to the host. The same bytes are kept or evicted.
    Offload(TensorBytes),
    /// Give back the device memory.
    Evict(TensorBytes),
    /// Copy from the host to where the second plan holds the bytes.
    Prefetch(TensorBytes),
}

/// A plan of a switch. It is untrusted: only [`verify()`] makes of it what an executor carries out.
#[derive(Clone, Copy, Debug)]
pub struct Switch<'a> {
    /// Which chunks of the device the second plan has.
    pub chunks: &'a [ChunkRun],
    /// What stays, and what moves.
    pub steps: &'a [SwitchStep],
    /// What the switch promises.
    pub predicted: SwitchPrediction,
}

/// What a switch costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchPrediction {
    /// Bytes of states that stay on the device.
    pub kept_bytes: u64,
    /// Bytes copied to the device, those of inputs included that the second plan holds at its
    /// start.
    pub h2d_bytes: u64,
    /// Bytes copied to the host.
    pub d2h_bytes: u64,
    /// Time of all copies, with both links in use at the same time. Like every prediction without
    /// the time of mapping.
    pub time_ns: u64,
}

impl SwitchPrediction {
    /// Adds up the steps of a switch on a machine; none where a figure exceeds 64 bits. O(steps).
    #[must_use]
    pub fn of(steps: &[SwitchStep], machine: &Machine) -> Option<Self> {
        let mut all = Self::default();
        let (mut uploaded_ns, mut downloaded_ns) = (0u64, 0u64);
        for step in steps {
            match *step {
                SwitchStep::Keep(kept) => {
                    all.kept_bytes = all.kept_bytes.checked_add(kept.bytes)?;
                }
                SwitchStep::Evict(_) => {}
                SwitchStep::Offload(TensorBytes { bytes, .. }) => {
                    all.d2h_bytes = all.d2h_bytes.checked_add(bytes)?;
                    let copy_ns = machine.transfer_ns(Direction::DeviceToHost, bytes)?;
                    downloaded_ns = downloaded_ns.checked_add(copy_ns)?;
                }
                SwitchStep::Prefetch(TensorBytes { bytes, .. }) => {
                    all.h2d_bytes = all.h2d_bytes.checked_add(bytes)?;
                    let copy_ns = machine.transfer_ns(Direction::HostToDevice, bytes)?;
                    uploaded_ns = uploaded_ns.max(downloaded_ns).checked_add(copy_ns)?;
                }
            }
        }
        Some(Self { time_ns: uploaded_ns.max(downloaded_ns), ..all })
    }
}
