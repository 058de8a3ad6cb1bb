//! The steps of a plan.

use planner_core::schedule::Scheduled;
use planner_core::{Launched, Part, PerStream, Step};

/// Allocates device memory for a range of a tensor, and copies its value in. Of an input, after the
/// last launch of the list that reads it: the value of the next iteration.
pub const PREFETCH: u32 = 0;
/// Runs an op. What it writes is allocated where it is not on the device, and so is its workspace.
pub const LAUNCH: u32 = 1;
/// Copies a range of a tensor to the host; it stays on the device.
pub const OFFLOAD: u32 = 2;
/// Gives back the device memory of a range of a tensor.
pub const EVICT: u32 = 3;
/// Runs an op on the host: on the host's copies of its tensors, and without device memory. Of an input,
/// that is the value of this iteration.
pub const HOST_RUN: u32 = 4;

/// Launches run on this stream.
pub const COMPUTE: u32 = 0;
/// Prefetches run on this stream.
pub const UPLOAD: u32 = 1;
/// Offloads run on this stream.
pub const DOWNLOAD: u32 = 2;
/// Ops that run on the host run on this stream.
pub const HOST: u32 = 3;

/// No step: there is nothing to wait for.
pub const NONE: u32 = u32::MAX;
/// All objects of a tensor.
pub const ALL: u64 = u64::MAX;

/// What must have ended on a stream before a step starts. It has no further fields in later versions.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The position of the awaited step among those of its stream in one iteration; the largest number
    /// if there is nothing to wait for.
    pub index: u32,
    /// How many iterations back that step lies. If that is before the first, there is nothing to
    /// wait for.
    pub iterations_back: u32,
}

const NOTHING: Wait = Wait { index: NONE, iterations_back: 0 };

/// One step. Steps are enqueued in the order of the list, each on the stream of its kind.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepDescription {
    /// A prefetch, a launch, an offload, an evict or a host run.
    pub kind: u32,
    /// The op of a launch or of a host run, else the tensor.
    pub id: u32,
    /// The first object of the range; 0 of an op.
    pub first_object: u64,
    /// How many objects, the largest number for all; 0 of an op.
    pub object_count: u64,
    /// Whether the op has been launched before in this iteration: 1, or 0.
    pub is_repeat: u8,
    /// The position among the steps of its stream in one iteration. An evict is on no stream: it has the
    /// largest number.
    pub index: u32,
    /// What it waits for on each stream, by number. For an evict: what must have ended before its
    /// memory is free.
    pub waits: [Wait; 4],
}

impl StepDescription {
    /// A step to be overwritten.
    #[must_use]
    pub const fn empty() -> Self {
        Self {
            kind: 0,
            id: 0,
            first_object: 0,
            object_count: 0,
            is_repeat: 0,
            index: 0,
            waits: [NOTHING; 4],
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
