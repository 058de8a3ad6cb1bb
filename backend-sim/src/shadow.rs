//! What every byte should hold, on the device (by physical address) and on the host.

use crate::contents::{Change, Effect, Memory, Read, Segment};
use crate::error::SimError;
use crate::extents::{Extent, Extents};
use integrity::Value;
use planner_core::TensorId;
use planner_core::backend::HostRange;

/// The content of some bytes: the bytes of one version of a tensor, from an offset on. Bytes
/// without content hold garbage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) tensor: TensorId,
    pub(crate) offset_bytes: u64,
    pub(crate) value: Value,
}

impl Extent for Content {
    fn after(self, length: u64) -> Self {
        Self { offset_bytes: self.offset_bytes + length, ..self }
    }

    fn continues(self, length: u64, next: Self) -> bool {
        self.after(length) == next
    }
}

/// All contents.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shadow {
    device: Extents<Content>,
    host: Extents<Content>,
}

impl Shadow {
    fn memory(&self, memory: Memory) -> &Extents<Content> {
        match memory {
            Memory::Device => &self.device,
            Memory::Host => &self.host,
        }
    }

    /// Sets the content of bytes. `None` stands for garbage.
    pub(crate) fn set(&mut self, to: Segment, content: Option<Content>) {
        let Segment { memory, start, bytes } = to;
        let extents = match memory {
            Memory::Device => &mut self.device,
            Memory::Host => &mut self.host,
        };
        match content {
            Some(content) => extents.insert(start, bytes, content),
            None => extents.remove(start, bytes),
        }
    }

    /// The contents of some segments in one range that starts at 0, one segment after the other.
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

    /// The effects of a copy.
    pub(crate) fn copy(&self, from: &[Segment], to: &[Segment]) -> Vec<Effect> {
        let gathered = self.gather(from);
        let mut effects = Vec::new();
        let mut position = 0;
        for &segment in to {
            effects.push(Effect { to: segment, change: Change::Content(None) });
            for (at, bytes, content) in gathered.over(position, segment.bytes) {
                let start = segment.start + at - position;
                let to = Segment { start, bytes, ..segment };
                effects.push(Effect { to, change: Change::Content(Some(content)) });
            }
            position += segment.bytes;
        }
        effects
    }

    /// The one value that all bytes of a tensor hold in some segments.
    ///
    /// # Errors
    /// The first byte that holds something else, and whether it is a byte of the same tensor at the
    /// same offset.
    pub(crate) fn whole(&self, from: &[Segment], tensor: TensorId) -> Result<Value, BadByte> {
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

    /// The effects of a write.
    pub(crate) fn write(to: &[Segment], mut content: Option<Content>) -> Vec<Effect> {
        let mut effects = Vec::new();
        for &to in to {
            effects.push(Effect { to, change: Change::Content(content) });
            content = content.map(|content| content.after(to.bytes));
        }
        effects
    }

    /// The value that an op reads.
    pub(crate) fn read(&self, from: &[Segment], read: Read) -> Result<Value, SimError> {
        let Read { work, op, tensor } = read;
        self.whole(from, tensor).map_err(|BadByte { offset_bytes, is_other_version }| {
            if is_other_version {
                SimError::MixedVersions { work, op, tensor, offset_bytes }
            } else {
                SimError::WrongContent { work, op, tensor, offset_bytes }
            }
        })
    }

    /// The value of a tensor's host copy.
    pub(crate) fn read_host(&self, from: HostRange, tensor: TensorId) -> Result<Value, SimError> {
        let whole = self.whole(&[Segment::of_host(from)], tensor);
        whole.map_err(|BadByte { offset_bytes, .. }| SimError::HostCopy { tensor, offset_bytes })
    }
}

/// A byte with the wrong content.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BadByte {
    offset_bytes: u64,
    is_other_version: bool,
}
