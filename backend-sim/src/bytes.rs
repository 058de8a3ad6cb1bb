//! Real bytes on the device, by physical address, and on the host.

use crate::contents::{Change, Effect, Memory, Segment};
use crate::sparse::Sparse;
use integrity::Value;
use planner_core::backend::HostRange;

/// Both memories.
#[derive(Debug, Default)]
pub(crate) struct Bytes {
    device: Sparse,
    host: Sparse,
}

impl Bytes {
    fn memory(&self, memory: Memory) -> &Sparse {
        match memory {
            Memory::Device => &self.device,
            Memory::Host => &self.host,
        }
    }

    fn memory_mut(&mut self, memory: Memory) -> &mut Sparse {
        match memory {
            Memory::Device => &mut self.device,
            Memory::Host => &mut self.host,
        }
    }

    /// Reads bytes of the host block.
    pub(crate) fn read_host(&self, offset_bytes: u64, into: &mut [u8]) {
        self.host.read(offset_bytes, into);
    }

    /// Writes bytes of the host block.
    pub(crate) fn write_host(&mut self, offset_bytes: u64, from: &[u8]) {
        self.host.write(offset_bytes, from);
    }

    /// All bytes of a range of the host block.
    pub(crate) fn host(&self, range: HostRange) -> Vec<u8> {
        let mut bytes = vec![0; range.bytes as usize];
        self.read_host(range.offset_bytes, &mut bytes);
        bytes
    }

    /// Sets a segment to the bytes at the start of another memory.
    pub(crate) fn set(&mut self, to: Segment, new: &Sparse) {
        let memory = self.memory_mut(to.memory);
        memory.forget(to.start, to.bytes);
        memory.copy(to.start, new, 0, to.bytes);
    }

    pub(crate) fn spoil(&mut self, to: Segment) {
        self.memory_mut(to.memory).forget(to.start, to.bytes);
    }

    /// The bytes of some segments, one after the other.
    pub(crate) fn gather(&self, from: &[Segment]) -> Sparse {
        let mut gathered = Sparse::default();
        let mut position = 0;
        for &Segment { memory, start, bytes } in from {
            gathered.copy(position, self.memory(memory), start, bytes);
            position += bytes;
        }
        gathered
    }

    /// The bytes of some segments in one array, one segment after the other.
    pub(crate) fn gather_all(&self, from: &[Segment]) -> Vec<u8> {
        let mut bytes = vec![0; length(from) as usize];
        self.gather(from).read(0, &mut bytes);
        bytes
    }

    /// The effects of writing bytes to segments, one segment after the other.
    pub(crate) fn write(to: &[Segment], bytes: &Sparse) -> Vec<Effect> {
        let mut effects = Vec::new();
        let mut position = 0;
        for &to in to {
            let mut part = Sparse::default();
            part.copy(0, bytes, position, to.bytes);
            effects.push(Effect { to, change: Change::Bytes(part) });
            position += to.bytes;
        }
        effects
    }

    /// The effects of filling segments with the bytes of a value.
    pub(crate) fn write_value(to: &[Segment], value: Value) -> Vec<Effect> {
        let mut bytes = vec![0; length(to) as usize];
        value.fill(0, &mut bytes);
        let mut sparse = Sparse::default();
        sparse.write(0, &bytes);
        Self::write(to, &sparse)
    }
}

fn length(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| segment.bytes).sum()
}
