//! A device that is only simulated: it has virtual time, and memory that knows what every byte
//! should hold.
//!
//! [`SimDevice`] implements the traits of [`planner_core::backend`]. It counts the time of a
//! machine with given speeds, and it finds mistakes that a real device hides: an op reads a byte
//! before it arrived, two tensors use one chunk, or a range is unmapped too early. With a seed, its
//! streams run in an adversarial order. The same seed gives the same order.

mod backend;
mod bytes;
mod clock;
mod contents;
pub mod contiguous;
mod error;
mod extents;
mod faults;
mod kernel;
mod paging;
mod shadow;
mod sparse;
mod stream;
mod transfer;
mod work;

pub use backend::Sim;
pub use error::SimError;
pub use faults::Fault;
pub use integrity::reference_digest;
pub use kernel::SimKernels;

use bytes::Bytes;
use clock::Clock;
use contents::Contents;
use faults::Faults;
use paging::AddressSpace;
use planner_core::backend::ErrorType;
use planner_core::{Machine, PerStream, Stream};
use stream::{Chance, Queue};

/// What a device has done so far, including set-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Virtual ranges reserved.
    pub ranges: u64,
    /// Calls of `map`.
    pub map_calls: u64,
    /// Calls of `unmap`.
    pub unmap_calls: u64,
    /// Chunks mapped by all calls of `map` together.
    pub chunks_mapped: u64,
    /// Time that the host has spent mapping and unmapping.
    pub mapping_ns: u64,
    /// The most chunks that had a mapping at the same time.
    pub peak_chunks: u64,
    /// Bytes copied to the device.
    pub h2d_bytes: u64,
    /// Bytes copied to the host.
    pub d2h_bytes: u64,
}

/// A simulated device, with the host block that it copies from and to.
#[derive(Debug)]
pub struct SimDevice {
    machine: Machine,
    clock: Clock,
    /// The streams.
    queues: PerStream<Queue>,
    /// Draws the order of effects. `None` for the order of submission.
    chance: Option<Chance>,
    space: AddressSpace,
    /// Size of the host block, once it is created.
    host_bytes: Option<u64>,
    contents: Contents,
    counters: Counters,
    failure: Option<SimError>,
    faults: Option<Faults>,
    /// Whether the device ignores mistakes that a real device does not notice.
    is_forgiving: bool,
    /// The most chunks of a virtual range.
    most_range_chunks: u64,
}

impl SimDevice {
    /// A device on which work takes effect in the order in which it is enqueued.
    #[must_use]
    pub fn new(machine: Machine) -> Self {
        Self {
            machine,
            clock: Clock::new(machine),
            queues: Default::default(),
            chance: None,
            space: AddressSpace::new(machine.chunk_bytes),
            host_bytes: None,
            contents: Contents::Shadow(Default::default()),
            counters: Counters::default(),
            failure: None,
            faults: None,
            is_forgiving: false,
            most_range_chunks: u64::MAX,
        }
    }

    /// A device on which work takes effect in an order that is drawn from `seed` among all orders
    /// that the waits allow.
    #[must_use]
    pub fn adversarial(machine: Machine, seed: u64) -> Self {
        let chance = Some(Chance::new(seed));
        Self { chance, ..Self::new(machine) }
    }

    /// The same device with real bytes, for small work. Like a real device, it also computes with
    /// wrong bytes and reports no error.
    #[must_use]
    pub fn with_bytes(self) -> Self {
        Self { contents: Contents::Bytes(Bytes::default()), ..self }
    }

    /// The same device, but it ignores mistakes that a real device does not notice: work that
    /// races, and bytes and ranges that change while work uses them.
    #[must_use]
    pub fn forgiving(self) -> Self {
        Self { is_forgiving: true, ..self }
    }

    /// The same device with a limit of the chunks in a virtual range.
    #[must_use]
    pub fn with_most_range_chunks(self, most_range_chunks: u64) -> Self {
        Self { most_range_chunks, ..self }
    }

    /// The same device with a fault, at times drawn from `seed`.
    #[must_use]
    pub fn failing(self, fault: Fault, seed: u64) -> Self {
        Self { faults: Some(Faults::new(fault, seed)), ..self }
    }

    /// When the last op of each iteration ends, on the device or on the host.
    #[must_use]
    pub fn iteration_ends_ns(&self) -> &[u64] {
        &self.clock.iteration_ends_ns
    }

    /// The time from one iteration to the next, on average over the iterations after `from` and up
    /// to `to`, rounded down. `None` unless both iterations have run and `from` is earlier.
    #[must_use]
    pub fn period_ns(&self, from: u64, to: u64) -> Option<u64> {
        let end_ns = |iteration: u64| {
            let index = usize::try_from(iteration.checked_sub(1)?).ok()?;
            self.iteration_ends_ns().get(index).copied()
        };
        let iterations = to.checked_sub(from).filter(|&count| count > 0)?;
        Some(end_ns(to)?.saturating_sub(end_ns(from)?) / iterations)
    }

    /// When the work before each signal of a stream started, and when the signal was reached.
    #[must_use]
    pub fn steps_ns(&self, stream: Stream) -> &[[u64; 2]] {
        self.clock.steps_ns(stream)
    }

    /// Time that a stream has spent in work.
    #[must_use]
    pub fn busy_ns(&self, stream: Stream) -> u64 {
        self.clock.busy_ns(stream)
    }

    /// The time of the host's calling thread.
    #[must_use]
    pub fn host_ns(&self) -> u64 {
        self.clock.host_ns()
    }

    /// What the device has done so far.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    fn check_failure(&self) -> Result<(), SimError> {
        self.failure.map_or(Ok(()), Err)
    }
}

impl ErrorType for SimDevice {
    type Error = SimError;
}
