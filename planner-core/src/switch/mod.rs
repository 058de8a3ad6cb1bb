//! Switches from one plan to another between two iterations: finds the data that stays on the
//! device, and moves the rest.
//!
//! The two plans may be for one graph or for two graphs with the same states. Temporaries and
//! inputs end with an iteration, so only states go from one plan to the other. A byte of a state
//! that the first plan holds at the end of an iteration stays in place if the second plan holds it
//! at its start and can have the same chunk. For this, the second plan's chunks are renumbered so
//! that a chunk with bytes that stay is the same chunk in both plans. Other bytes are copied to the
//! host if the host lacks them, and copied back if the second plan needs them.
//!
//! | in the first plan | in the second plan | the byte stays |
//! |---|---|---|
//! | objects of whole chunks | objects of whole chunks | always: the chunks are mapped at the new addresses |
//! | arena | arena | if the offset is the same, modulo the chunk |
//! | slabs | slabs | if both plans have the same slab in a chunk |
//! | arena, or objects | objects, or arena | if its offset in the arena is a multiple of the chunk |
//!
//! If two chunks compete for one chunk of the device, the chunk with more bytes gets it.
//!
//! ```text
//! Holding of the first plan ─┐
//! Verified second plan ──────┼─► plan ──► Switch ──► verify ──► VerifiedSwitch ──► Executor
//! states of both ────────────┘            untrusted
//! ```
//!
//! [`plan`] plans a switch, and [`verify()`] proves any planned switch safe:
//!
//! * Every byte of every state keeps its value: it stays, or it is copied from a valid copy.
//! * A copy reads valid bytes, and overwrites no bytes that are still needed.
//! * In the end the device and the host hold all values that the second plan expects at its start.
//! * At each step, all held bytes lie in chunks that the device has, without an overlap. If the
//!   chunks were created for the two plans ([`Capacity`]), their number is the larger of the two
//!   plans' numbers, so the switch stays within the larger of the two budgets.

mod arena;
mod chunks;
mod error;
mod held;
mod list;
mod matching;
mod planner;
mod push_list;
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
    /// Number of bytes, not zero.
    pub bytes: u64,
}

/// A step of a switch. Offloads run on the download stream and prefetches on the upload stream,
/// each in list order; the two streams run concurrently. A prefetch waits for every offload that is
/// listed before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SwitchStep {
    /// These bytes of a state stay in place on the device.
    Keep(TensorBytes),
    /// Copy to the host. Another step keeps or evicts the same bytes.
    Offload(TensorBytes),
    /// Free the device memory.
    Evict(TensorBytes),
    /// Copy from the host to the place of the bytes in the second plan.
    Prefetch(TensorBytes),
}

/// A plan of a switch. It is untrusted: an executor runs only the result of [`verify()`].
#[derive(Clone, Copy, Debug)]
pub struct Switch<'a> {
    /// The device's chunks that the second plan has.
    pub chunks: &'a [ChunkRun],
    /// The steps, in list order.
    pub steps: &'a [SwitchStep],
    /// The predicted cost.
    pub predicted: SwitchPrediction,
}

/// The cost of a switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchPrediction {
    /// Bytes of states that stay on the device.
    pub kept_bytes: u64,
    /// Bytes copied to the device, including the inputs that the second plan holds at its start.
    pub h2d_bytes: u64,
    /// Bytes copied to the host.
    pub d2h_bytes: u64,
    /// Time of all copies, with both links in use concurrently. As in every prediction, mapping
    /// takes no time.
    pub time_ns: u64,
}

impl SwitchPrediction {
    /// Adds up the steps of a switch on a machine. `None` if a figure exceeds 64 bits. O(steps).
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
