//! The contents of both memories: the shadow of what every byte should hold, or real bytes.

use crate::bytes::Bytes;
use crate::error::SimError;
use crate::shadow::{Content, Shadow};
use crate::sparse::Sparse;
use integrity::{Reading, Value};
use planner_core::backend::{HostRange, Point};
use planner_core::{OpId, TensorId};

/// One of the memories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Memory {
    /// The device, by physical address.
    Device,
    /// The host block, by offset.
    Host,
}

/// Consecutive bytes of one memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) memory: Memory,
    pub(crate) start: u64,
    pub(crate) bytes: u64,
}

impl Segment {
    pub(crate) const fn of_host(range: HostRange) -> Self {
        Self { memory: Memory::Host, start: range.offset_bytes, bytes: range.bytes }
    }
}

/// A change of the contents of some bytes.
#[derive(Clone, Debug)]
pub(crate) struct Effect {
    pub(crate) to: Segment,
    pub(crate) change: Change,
}

#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// Content of the shadow. `None` stands for garbage.
    Content(Option<Content>),
    Bytes(Sparse),
}

/// A read that an op is about to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    pub(crate) work: Point,
    pub(crate) op: OpId,
    pub(crate) tensor: TensorId,
}

/// The contents of both memories.
#[derive(Debug)]
pub(crate) enum Contents {
    Shadow(Shadow),
    Bytes(Bytes),
}

impl Contents {
    pub(crate) fn bytes(&self) -> Option<&Bytes> {
        match self {
            Self::Shadow(_) => None,
            Self::Bytes(bytes) => Some(bytes),
        }
    }

    pub(crate) fn bytes_mut(&mut self) -> Option<&mut Bytes> {
        match self {
            Self::Shadow(_) => None,
            Self::Bytes(bytes) => Some(bytes),
        }
    }

    /// Writes a tensor's value into a range on the host.
    pub(crate) fn write_host(&mut self, to: HostRange, tensor: TensorId, value: Value) {
        for effect in self.write(&[Segment::of_host(to)], tensor, value) {
            self.apply(effect);
        }
    }

    pub(crate) fn apply(&mut self, effect: Effect) {
        match (self, effect.change) {
            (Self::Shadow(shadow), Change::Content(content)) => shadow.set(effect.to, content),
            (Self::Bytes(bytes), Change::Bytes(new)) => bytes.set(effect.to, &new),
            _ => unreachable!("effects are made by the contents that they change"),
        }
    }

    /// Fills a segment with garbage.
    pub(crate) fn spoil(&mut self, to: Segment) {
        match self {
            Self::Shadow(shadow) => shadow.set(to, None),
            Self::Bytes(bytes) => bytes.spoil(to),
        }
    }

    /// The effects of a copy.
    pub(crate) fn copy(&self, from: &[Segment], to: &[Segment]) -> Vec<Effect> {
        match self {
            Self::Shadow(shadow) => shadow.copy(from, to),
            Self::Bytes(bytes) => Bytes::write(to, &bytes.gather(from)),
        }
    }

    /// The effects of writing a tensor.
    pub(crate) fn write(&self, to: &[Segment], tensor: TensorId, value: Value) -> Vec<Effect> {
        match self {
            Self::Shadow(_) => Shadow::write(to, Some(Content { tensor, offset_bytes: 0, value })),
            Self::Bytes(_) => Bytes::write_value(to, value),
        }
    }

    /// The effects of using a workspace.
    pub(crate) fn waste(&self, to: &[Segment], value: Value) -> Vec<Effect> {
        match self {
            Self::Shadow(_) => Shadow::write(to, None),
            Self::Bytes(_) => Bytes::write_value(to, value),
        }
    }

    /// The value that an op reads.
    pub(crate) fn read(&self, from: &[Segment], read: Read) -> Result<Reading, SimError> {
        match self {
            Self::Shadow(shadow) => shadow.read(from, read).map(Reading::exact),
            Self::Bytes(bytes) => Ok(Reading::of(&bytes.gather_all(from))),
        }
    }

    /// The value of a tensor's host copy.
    pub(crate) fn read_host(&self, from: HostRange, tensor: TensorId) -> Result<Reading, SimError> {
        match self {
            Self::Shadow(shadow) => shadow.read_host(from, tensor).map(Reading::exact),
            Self::Bytes(bytes) => Ok(Reading::of(&bytes.host(from))),
        }
    }
}
