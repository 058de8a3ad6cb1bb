//! The steps of a plan.

use planner_core::schedule::Scheduled;
use planner_core::{Launched, Part, PerStream, Step};

/// Allocates device memory for a range of a tensor, and copies its value to the device. For an
/// input, after the last launch of the list that reads it, this is the value of the next iteration.
pub const PREFETCH: u32 = 0;
/// Runs an op. Its workspace and the tensors that it writes are allocated if they are not on the
/// device.
pub const LAUNCH: u32 = 1;
/// Copies a range of a tensor to the host. The range stays on the device.
pub const OFFLOAD: u32 = 2;
/// Frees the device memory of a range of a tensor.
pub const EVICT: u32 = 3;
/// Runs an op on the host: on the host's copies of its tensors, and without device memory. The
/// value of an input is the value of this iteration.
pub const HOST_RUN: u32 = 4;

/// Launches run on this stream, except of collectives.
pub const COMPUTE: u32 = 0;
/// Prefetches run on this stream.
pub const UPLOAD: u32 = 1;
/// Offloads run on this stream.
pub const DOWNLOAD: u32 = 2;
/// Ops that run on the host run on this stream.
pub const HOST: u32 = 3;
/// Launches of collectives run on this stream.
pub const NETWORK: u32 = 4;

/// No step, so there is nothing to wait for.
pub const NONE: u32 = u32::MAX;
/// All objects of a tensor.
pub const ALL: u64 = u64::MAX;

/// A step of a stream that must have ended before another step starts. Later versions add no
/// fields.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The position of the awaited step among the steps of its stream in one iteration. The largest
    /// number if there is nothing to wait for.
    pub index: u32,
    /// The number of iterations since the awaited step. If it lies before the first iteration,
    /// there is nothing to wait for.
    pub iterations_back: u32,
}

const NOTHING: Wait = Wait { index: NONE, iterations_back: 0 };

/// One step. Steps are enqueued in the order of the list, each on the stream of its kind; the launch
/// of a collective on the stream for collectives.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepDescription {
    /// A prefetch, a launch, an offload, an evict or a host run.
    pub kind: u32,
    /// The op of a launch or of a host run. Otherwise the tensor.
    pub id: u32,
    /// The first object of the range. 0 for an op.
    pub first_object: u64,
    /// The number of objects. The largest number stands for all. 0 for an op.
    pub object_count: u64,
    /// Whether the op has been launched before in this iteration: 1 or 0.
    pub is_repeat: u8,
    /// The position among the steps of its stream in one iteration. An evict is on no stream and
    /// has the largest number.
    pub index: u32,
    /// The waits on each stream, by number. For an evict, the steps that must have ended before its
    /// memory is free.
    pub waits: [Wait; 5],
}

impl StepDescription {
    /// A placeholder for a step.
    #[must_use]
    pub const fn empty() -> Self {
        Self {
            kind: 0,
            id: 0,
            first_object: 0,
            object_count: 0,
            is_repeat: 0,
            index: 0,
            waits: [NOTHING; 5],
        }
    }

    /// Describes a step and its waits.
    #[must_use]
    pub fn new(step: &Step, entry: &Scheduled) -> Self {
        let PerStream(waits) = entry.waits().map(|wait| match wait {
            Some(wait) => Wait { index: wait.index, iterations_back: wait.iterations_back },
            None => NOTHING,
        });
        let index = entry.stream().map_or(NONE, |_| entry.index());
        let of_part = |kind, part: Part| (kind, part.tensor.0, [part.first, part.count], false);
        let (kind, id, [first_object, object_count], is_repeat) = match *step {
            Step::Prefetch(part) => of_part(PREFETCH, part),
            Step::Offload(part) => of_part(OFFLOAD, part),
            Step::Evict(part) => of_part(EVICT, part),
            Step::Host(op) => (HOST_RUN, op.0, [0, 0], false),
            Step::Launch(Launched { op, is_repeat }) => (LAUNCH, op.0, [0, 0], is_repeat),
        };
        let is_repeat = u8::from(is_repeat);
        Self { kind, id, first_object, object_count, is_repeat, index, waits }
    }
}
