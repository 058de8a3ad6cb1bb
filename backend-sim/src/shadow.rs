//! What every byte holds, on the device (by physical address) and on the host.

use crate::error::SimError;
use crate::extents::{Extent, Extents};
use crate::value;
use planner_core::backend::Point;
use planner_core::{Graph, Kind, OpId, TensorId};

/// What some bytes hold: those of one version of a tensor, from an offset on. Bytes
/// without content hold garbage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) tensor: TensorId,
    pub(crate) offset_bytes: u64,
    pub(crate) value: u64,
}

impl Extent for Content {
    fn after(self, length: u64) -> Self {
        Self { offset_bytes: self.offset_bytes + length, ..self }
    }

    fn continues(self, length: u64, next: Self) -> bool {
        self.after(length) == next
    }
}

/// One of the memories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Memory {
    /// The device, by physical address.
    Device,
    /// A tensor's room on the host, by offset in the tensor.
    Host(TensorId, u32),
}

/// Consecutive bytes of one memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) memory: Memory,
    pub(crate) start: u64,
    pub(crate) bytes: u64,
}

/// A change of what bytes hold; no content is garbage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effect {
    pub(crate) to: Segment,
    pub(crate) content: Option<Content>,
}

/// All contents.
#[derive(Clone, Debug)]
pub(crate) struct Shadow {
    device: Extents<Content>,
    /// The two rooms of each tensor.
    host: Vec<[Extents<Content>; 2]>,
}

impl Shadow {
    /// Memory before the first iteration: the states lie on the host, all else is garbage.
    pub(crate) fn new(graph: &Graph<'_>) -> Self {
        let host = graph.tensors().iter().map(|_| Default::default()).collect();
        let mut shadow = Self { device: Extents::default(), host };
        for tensor in graph.tensor_ids().filter(|&id| graph.tensor(id).kind == Kind::State) {
            shadow.fill_host(graph, tensor, 0, value::initial_state(tensor));
        }
        shadow
    }

    /// Puts a value into a room on the host.
    pub(crate) fn fill_host(&mut self, graph: &Graph<'_>, tensor: TensorId, room: u32, value: u64) {
        let memory = Memory::Host(tensor, room);
        let to = Segment { memory, start: 0, bytes: graph.tensor(tensor).bytes };
        self.apply(&Effect { to, content: Some(Content { tensor, offset_bytes: 0, value }) });
    }

    fn memory(&self, memory: Memory) -> &Extents<Content> {
        match memory {
            Memory::Device => &self.device,
            Memory::Host(tensor, room) => &self.host[tensor.index()][room as usize],
        }
    }

    pub(crate) fn apply(&mut self, effect: &Effect) {
        let Segment { memory, start, bytes } = effect.to;
        let extents = match memory {
            Memory::Device => &mut self.device,
            Memory::Host(tensor, room) => &mut self.host[tensor.index()][room as usize],
        };
        match effect.content {
            Some(content) => extents.insert(start, bytes, content),
            None => extents.remove(start, bytes),
        }
    }

    /// The contents of some segments, as those of one range that starts at 0.
    fn gather(&self, from: &[Segment]) -> Extents<Content> {
        let mut gathered = Extents::default();
        let mut position = 0;
        for &Segment { memory, start, bytes } in from {
            for (at, length, content) in self.memory(memory).over(start, bytes) {
                gathered.insert(position + at - start, length, content);
            }
            position += bytes;
        }
        gathered
    }

    /// What a copy does.
    pub(crate) fn copy(&self, from: &[Segment], to: &[Segment]) -> Vec<Effect> {
        let gathered = self.gather(from);
        let mut effects = Vec::new();
        let mut position = 0;
        for &segment in to {
            effects.push(Effect { to: segment, content: None });
            for (at, bytes, content) in gathered.over(position, segment.bytes) {
                let start = segment.start + at - position;
                let to = Segment { start, bytes, ..segment };
                effects.push(Effect { to, content: Some(content) });
            }
            position += segment.bytes;
        }
        effects
    }

    /// The one value that all bytes of a tensor hold in some segments.
    ///
    /// # Errors
    /// The first byte that holds something else, and whether it is at least a byte of the
    /// same tensor at the same offset.
    pub(crate) fn whole(&self, from: &[Segment], tensor: TensorId) -> Result<u64, BadByte> {
        let bytes: u64 = from.iter().map(|segment| segment.bytes).sum();
        let mut value = None;
        let mut next = 0;
        for (at, length, content) in self.gather(from).over(0, bytes) {
            let expected = Content { tensor, offset_bytes: at, value: content.value };
            if at != next || content != expected {
                return Err(BadByte { offset_bytes: next, is_other_version: false });
            }
            if *value.get_or_insert(content.value) != content.value {
                return Err(BadByte { offset_bytes: at, is_other_version: true });
            }
            next = at + length;
        }
        value
            .filter(|_| next == bytes)
            .ok_or(BadByte { offset_bytes: next, is_other_version: false })
    }

    /// The value that an op reads.
    pub(crate) fn read(
        &self,
        from: &[Segment],
        tensor: TensorId,
        op: OpId,
        work: Point,
    ) -> Result<u64, SimError> {
        self.whole(from, tensor).map_err(|BadByte { offset_bytes, is_other_version }| {
            if is_other_version {
                SimError::MixedVersions { work, op, tensor, offset_bytes }
            } else {
                SimError::WrongContent { work, op, tensor, offset_bytes }
            }
        })
    }

    /// One number for the host copies of all states.
    pub(crate) fn digest(&self, graph: &Graph<'_>) -> Result<u64, SimError> {
        let mut states = Vec::new();
        for tensor in graph.tensor_ids().filter(|&id| graph.tensor(id).kind == Kind::State) {
            let bytes = graph.tensor(tensor).bytes;
            let copy = Segment { memory: Memory::Host(tensor, 0), start: 0, bytes };
            let value = self.whole(&[copy], tensor).map_err(|bad| {
                let offset_bytes = bad.offset_bytes;
                SimError::HostCopy { tensor, offset_bytes }
            })?;
            states.push(value);
        }
        Ok(value::digest(states.into_iter()))
    }
}

/// A byte that does not hold what it should.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BadByte {
    offset_bytes: u64,
    is_other_version: bool,
}
