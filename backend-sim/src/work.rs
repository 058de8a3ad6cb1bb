//! Work: the bytes that it touches, that it reads when it begins, and that it changes when it ends.

use crate::SimDevice;
use crate::contents::{self, Effect, Memory, Segment};
use crate::error::SimError;
use crate::extents::{Extent, Extents};
use integrity::{Passes, Read, Write, value};
use planner_core::OpId;
use planner_core::backend::{DeviceAddress, HostRange, Point};
use std::collections::BTreeMap;

/// The operand number of a workspace.
const WORKSPACE: u32 = u32::MAX;
/// The operand number of the bytes that a copy moves, its only operand.
const COPIED: u32 = 0;

/// One piece of enqueued work.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Upload {
        host: HostRange,
        device: DeviceAddress,
        delay: u64,
    },
    Download {
        host: HostRange,
        device: DeviceAddress,
        delay: u64,
    },
    Launch {
        op: OpId,
        passes: Passes,
    },
    /// An op on the host; its addresses are offsets in the host block.
    Host {
        op: OpId,
        passes: Passes,
        /// The iteration in which the op fails.
        fails_in: Option<u64>,
    },
}

/// A device range that work touches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    /// The tensor, [`WORKSPACE`] or [`COPIED`].
    operand: u32,
    pub(crate) at: DeviceAddress,
    pub(crate) bytes: u64,
    writes: bool,
}

/// A host range that work touches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostSpan {
    /// The tensor, or [`COPIED`].
    operand: u32,
    pub(crate) range: HostRange,
    writes: bool,
}

/// How running work uses some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Use {
    operand: u32,
    writes: bool,
}

impl Extent for Use {
    fn after(self, _: u64) -> Self {
        self
    }

    fn continues(self, _: u64, next: Self) -> bool {
        self == next
    }
}

/// Work that has begun and not ended.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) point: Point,
    pub(crate) work: Work,
    /// Events that must pass before the work ends.
    pub(crate) delay: u64,
    uses: BTreeMap<Memory, Extents<Use>>,
    effects: Vec<Effect>,
}

impl Work {
    /// The device ranges that the work touches. For a launch, all reads come first, then all
    /// writes.
    pub(crate) fn spans(&self) -> Vec<Span> {
        match *self {
            Self::Upload { host, device, .. } => vec![copy_span(host, device, true)],
            Self::Download { host, device, .. } => vec![copy_span(host, device, false)],
            Self::Host { .. } => Vec::new(),
            Self::Launch { ref passes, .. } => {
                let reads = passes.reads.iter().map(|&Read { tensor, at, bytes }| Span {
                    operand: tensor.0,
                    at,
                    bytes,
                    writes: false,
                });
                let writes = passes.writes.iter().map(|&Write { tensor, at, bytes, .. }| Span {
                    operand: tensor.map_or(WORKSPACE, |tensor| tensor.0),
                    at,
                    bytes,
                    writes: true,
                });
                reads.chain(writes).collect()
            }
        }
    }

    fn delay(&self) -> u64 {
        match *self {
            Self::Upload { delay, .. } | Self::Download { delay, .. } => delay,
            Self::Launch { .. } | Self::Host { .. } => 0,
        }
    }

    /// The host ranges that the work touches, each as an operand.
    pub(crate) fn host(&self) -> Vec<HostSpan> {
        let copied = |range, writes| vec![HostSpan { operand: COPIED, range, writes }];
        match *self {
            Self::Upload { host, .. } => copied(host, false),
            Self::Download { host, .. } => copied(host, true),
            Self::Launch { .. } => Vec::new(),
            Self::Host { ref passes, .. } => {
                let reads = passes.reads.iter().map(|&Read { tensor, at, bytes }| HostSpan {
                    operand: tensor.0,
                    range: HostRange { offset_bytes: at.0, bytes },
                    writes: false,
                });
                let writes =
                    passes.writes.iter().map(|&Write { tensor, at, bytes, .. }| HostSpan {
                        operand: tensor.map_or(WORKSPACE, |tensor| tensor.0),
                        range: HostRange { offset_bytes: at.0, bytes },
                        writes: true,
                    });
                reads.chain(writes).collect()
            }
        }
    }

    const fn is_copy(&self) -> bool {
        matches!(self, Self::Upload { .. } | Self::Download { .. })
    }
}

fn copy_span(host: HostRange, at: DeviceAddress, writes: bool) -> Span {
    Span { operand: COPIED, at, bytes: host.bytes, writes }
}

impl Running {
    /// Records a use. Returns false if another operand of the same work uses the bytes and one of
    /// the two writes them.
    fn note(&mut self, segment: Segment, used: Use) -> bool {
        let Segment { memory, start, bytes } = segment;
        let extents = self.uses.entry(memory).or_default();
        let alone = extents.over(start, bytes).all(|(_, _, earlier)| {
            earlier.operand == used.operand || !(earlier.writes || used.writes)
        });
        extents.insert(start, bytes, used);
        alone
    }

    /// Whether two works use the same byte and one of them writes it.
    fn races(&self, other: &Self) -> bool {
        self.uses.iter().any(|(memory, uses)| {
            let Some(others) = other.uses.get(memory) else { return false };
            uses.over(0, u64::MAX).any(|(start, bytes, mine)| {
                others.over(start, bytes).any(|(_, _, theirs)| mine.writes || theirs.writes)
            })
        })
    }
}

impl SimDevice {
    /// Starts work. Until it ends, no other work may write bytes that it touches or touch bytes
    /// that it writes.
    pub(crate) fn begin(&self, point: Point, work: Work) -> Result<Running, SimError> {
        let spans = work.spans();
        let delay = work.delay();
        let mut running =
            Running { point, work, delay, uses: BTreeMap::new(), effects: Vec::new() };
        let mut segments = Vec::new();
        for &span in &spans {
            let unmapped = SimError::Unmapped { work: point, at: span.at };
            let found = self.space.physical(span.at, span.bytes).ok_or(unmapped)?;
            for &segment in &found {
                let Span { operand, writes, .. } = span;
                if !running.note(segment, Use { operand, writes }) && !self.is_forgiving {
                    return Err(SimError::Race { work: point, other: point });
                }
            }
            segments.push(found);
        }
        for HostSpan { operand, range, writes } in running.work.host() {
            let is_alone = running.note(Segment::of_host(range), Use { operand, writes });
            if !is_alone && !self.is_forgiving {
                return Err(SimError::Race { work: point, other: point });
            }
        }
        let mut others = self.queues.0.iter().filter_map(|queue| queue.running.as_ref());
        if let Some(other) = others.find(|other| !self.is_forgiving && running.races(other)) {
            return Err(SimError::Race { work: point, other: other.point });
        }
        running.effects = self.effects(&running, &segments)?;
        Ok(running)
    }

    /// Ends work, so that its writes become visible.
    pub(crate) fn end(&mut self, running: Running) -> Result<(), SimError> {
        let failure = match running.work {
            Work::Host { op, fails_in: Some(iteration), .. } => {
                Some(SimError::HostOpFailed { op, iteration })
            }
            _ if running.work.is_copy() && self.copy_fails() => {
                Some(SimError::CopyFailed(running.point))
            }
            _ => None,
        };
        for effect in running.effects {
            if failure.is_some() {
                self.contents.spoil(effect.to);
            } else {
                self.contents.apply(effect);
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// The changes that work will make, from the bytes that it reads now. `segments` are the
    /// segments of its spans.
    fn effects(
        &self,
        running: &Running,
        segments: &[Vec<Segment>],
    ) -> Result<Vec<Effect>, SimError> {
        let device = segments.first().map_or(&[][..], Vec::as_slice);
        match &running.work {
            &Work::Upload { host, .. } => Ok(self.contents.copy(&[Segment::of_host(host)], device)),
            &Work::Download { host, .. } => {
                Ok(self.contents.copy(device, &[Segment::of_host(host)]))
            }
            Work::Host { op, passes, .. } => {
                let on_host = running.work.host().into_iter();
                let segments: Vec<_> =
                    on_host.map(|span| vec![Segment::of_host(span.range)]).collect();
                self.computed(running.point, *op, passes, &segments)
            }
            Work::Launch { op, passes } => self.computed(running.point, *op, passes, segments),
        }
    }

    /// The bytes that an op will write, from the bytes that it reads now. `segments` belong to its
    /// operands.
    fn computed(
        &self,
        work: Point,
        op: OpId,
        passes: &Passes,
        segments: &[Vec<Segment>],
    ) -> Result<Vec<Effect>, SimError> {
        let mut segments = segments.iter();
        let mut readings = Vec::new();
        for (&Read { tensor, .. }, from) in passes.reads.iter().zip(segments.by_ref()) {
            let read = contents::Read { work, op, tensor };
            readings.push(self.contents.read(from, read)?);
        }
        let results = value::op_results(op, passes.repeated, readings.into_iter());
        let mut effects = Vec::new();
        for (write, to) in passes.writes.iter().zip(segments) {
            let result = results.of(write.kind);
            let value = value::written(result, write.position, write.bytes);
            effects.extend(match write.tensor {
                Some(tensor) => self.contents.write(to, tensor, value),
                None => self.contents.waste(to, value),
            });
        }
        Ok(effects)
    }
}
