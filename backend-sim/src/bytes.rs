//! Real bytes, on the device (by physical address) and on the host.

use crate::contents::{Change, Effect, Memory, Segment};
use integrity::Value;
use planner_core::backend::HostRange;

/// What memory holds that nobody has written.
const JUNK: u8 = 0xa5;

/// Both memories.
#[derive(Debug)]
pub(crate) struct Bytes {
    chunk_bytes: u64,
    device: Vec<u8>,
    host: Vec<u8>,
}

impl Bytes {
    pub(crate) const fn new(chunk_bytes: u64) -> Self {
        Self { chunk_bytes, device: Vec::new(), host: Vec::new() }
    }

    pub(crate) fn create(&mut self, chunks: u64) {
        self.device = vec![JUNK; (chunks * self.chunk_bytes) as usize];
    }

    pub(crate) fn create_host(&mut self, bytes: u64) {
        self.host = vec![JUNK; bytes as usize];
    }

    /// Bytes of the host block, which must be there.
    pub(crate) fn host(&self, range: HostRange) -> &[u8] {
        &self.host[range.offset_bytes as usize..][..range.bytes as usize]
    }

    /// Bytes of the host block, which must be there.
    pub(crate) fn host_mut(&mut self, range: HostRange) -> &mut [u8] {
        &mut self.host[range.offset_bytes as usize..][..range.bytes as usize]
    }

    pub(crate) fn set(&mut self, to: Segment, bytes: &[u8]) {
        let memory = match to.memory {
            Memory::Device => &mut self.device,
            Memory::Host => &mut self.host,
        };
        memory[to.start as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn spoil(&mut self, to: Segment) {
        self.set(to, &vec![JUNK; to.bytes as usize]);
    }

    /// The bytes of some segments, one after the other.
    pub(crate) fn gather(&self, from: &[Segment]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for &Segment { memory, start, bytes: length } in from {
            let memory = match memory {
                Memory::Device => &self.device,
                Memory::Host => &self.host,
            };
            bytes.extend_from_slice(&memory[start as usize..][..length as usize]);
        }
        bytes
    }

    /// What it does to write bytes to segments, one after the other.
    pub(crate) fn write(to: &[Segment], mut bytes: &[u8]) -> Vec<Effect> {
        let mut effects = Vec::new();
        for &to in to {
            let (first, rest) = bytes.split_at(to.bytes as usize);
            effects.push(Effect { to, change: Change::Bytes(first.to_vec()) });
            bytes = rest;
        }
        effects
    }

    /// What it does to fill segments with the bytes of a value.
    pub(crate) fn write_value(to: &[Segment], value: Value) -> Vec<Effect> {
        let length: u64 = to.iter().map(|to| to.bytes).sum();
        let mut bytes = vec![0; length as usize];
        value.fill(0, &mut bytes);
        Self::write(to, &bytes)
    }
}
