//! The points of one iteration at which each value may be absent.
//!
//! An iteration of `n` ops has `2 n` points in time: `2 i` is the start of op `i`, `2 i + 1`
//! its end. Spans are half open and wrap around: from 5 to 2 is 5, ..., `2 n - 1`, 0, 1.

use crate::Options;
use planner_core::{Graph, Kind, OpId, TensorId};

/// The points between two touches of a tensor, at which the tensor may be absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    /// The bytes of memory that are free while the tensor is absent.
    pub(crate) memory_bytes: u64,
    /// The bytes that cross the link in each direction.
    pub(crate) link_bytes: u64,
    /// The first point at which the tensor may be absent.
    pub(crate) opens: usize,
    /// The point by which the tensor is resident again.
    pub(crate) closes: usize,
    /// The end of the op that wrote the value. `None` if the host already has it.
    pub(crate) written: Option<usize>,
    /// Whether the gap before this one holds the same written value.
    pub(crate) continues: bool,
}

/// Bytes that arrive once per iteration in every plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) bytes: u64,
    /// The point by which the bytes are resident.
    pub(crate) due: usize,
}

/// The memory and the traffic of one iteration in the given order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spans {
    /// Gaps of one value are adjacent and in order.
    pub(crate) gaps: Vec<Gap>,
    pub(crate) arrivals: Vec<Arrival>,
    /// The memory at each point with every live value on the device.
    pub(crate) alive_bytes: Vec<u64>,
    /// The memory that each op needs alone.
    op_bytes: Vec<u64>,
}

/// A part of a tensor with one ratio of memory to traffic: the whole tensor, its full pages, or its
/// last page.
#[derive(Clone, Copy, Debug)]
struct Share {
    memory_bytes: u64,
    link_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Touch {
    op: usize,
    reads: bool,
    writes: bool,
}

impl Spans {
    pub(crate) fn new(graph: &Graph<'_>, options: Options) -> Self {
        let workspace = |bytes| shares(bytes, options).map(|share| share.memory_bytes);
        let op_bytes: Vec<u64> =
            graph.ops().iter().map(|op| workspace(op.workspace_bytes).into_iter().sum()).collect();
        let alive_bytes = vec![0; 2 * op_bytes.len()];
        let mut spans = Self { alive_bytes, op_bytes, ..Self::default() };
        for (tensor, touches) in graph.tensor_ids().zip(touches(graph)) {
            spans.add(graph, tensor, &touches, options);
        }
        for (point, alive_bytes) in spans.alive_bytes.iter_mut().enumerate() {
            *alive_bytes += spans.op_bytes[point / 2];
        }
        spans
    }

    /// An op that alone needs more than the budget, with its need in bytes.
    pub(crate) fn does_not_fit(&self, budget_bytes: u64) -> Option<(OpId, u64)> {
        let at = self.op_bytes.iter().position(|&bytes| bytes > budget_bytes)?;
        Some((OpId(at as u32), self.op_bytes[at]))
    }

    fn add(&mut self, graph: &Graph<'_>, tensor: TensorId, touches: &[Touch], options: Options) {
        let Some(&first) = touches.first() else { return };
        let data = graph.tensor(tensor);
        // A state that always stays resident may lie outside the pages.
        let options = if data.kind == Kind::State { Options::default() } else { options };
        for share in shares(data.bytes, options) {
            if share.memory_bytes == 0 {
                continue;
            }
            for touch in touches {
                self.op_bytes[touch.op] += share.memory_bytes;
            }
            if data.kind == Kind::Input && first.reads {
                self.arrivals.push(Arrival { bytes: share.link_bytes, due: 2 * first.op });
            }
            self.add_gaps(share, data.kind, touches);
        }
    }

    /// Adds the gaps from the first write on, so that the gaps of one value are adjacent.
    fn add_gaps(&mut self, share: Share, kind: Kind, touches: &[Touch]) {
        let count = touches.len();
        let around = kind == Kind::State;
        let first = match around {
            true => touches.iter().position(|touch| touch.writes).unwrap_or(0),
            false => 0,
        };
        let mut written = None;
        let mut continues = false;
        for step in 0..count - usize::from(!around) {
            let (from, to) = (touches[(first + step) % count], touches[(first + step + 1) % count]);
            if from.writes {
                written = Some(2 * from.op + 1);
                continues = false;
            }
            let points = self.alive_bytes.len();
            let (opens, closes) = ((2 * from.op + 2) % points, 2 * to.op);
            // A value that is overwritten before a read is dead, so its memory does not count.
            if opens == closes || !to.reads {
                continue;
            }
            for point in around_from(opens, closes, points) {
                self.alive_bytes[point] += share.memory_bytes;
            }
            let Share { memory_bytes, link_bytes } = share;
            self.gaps.push(Gap { memory_bytes, link_bytes, opens, closes, written, continues });
            continues = written.is_some();
        }
    }
}

/// The points of a span.
fn around_from(from: usize, to: usize, points: usize) -> impl Iterator<Item = usize> {
    let length = (to + points - from) % points;
    (from..from + length).map(move |point| point % points)
}

/// The shares of this many bytes. The second share may be empty.
fn shares(bytes: u64, options: Options) -> [Share; 2] {
    let exact = |bytes| Share { memory_bytes: bytes, link_bytes: bytes };
    match options.pages {
        Some(pages) if bytes >= pages.least_bytes => {
            let last_bytes = bytes % pages.page_bytes;
            let memory_bytes = if last_bytes == 0 { 0 } else { pages.page_bytes };
            [exact(bytes - last_bytes), Share { memory_bytes, link_bytes: last_bytes }]
        }
        _ => [exact(bytes), exact(0)],
    }
}

/// The touches of each tensor, in the order of the ops.
fn touches(graph: &Graph<'_>) -> Vec<Vec<Touch>> {
    let mut touches = vec![Vec::<Touch>::new(); graph.tensors().len()];
    for id in graph.op_ids() {
        let op = id.index();
        for &tensor in graph.reads(id) {
            touches[tensor.index()].push(Touch { op, reads: true, writes: false });
        }
        for &tensor in graph.writes(id) {
            match touches[tensor.index()].last_mut() {
                Some(touch) if touch.op == op => touch.writes = true,
                _ => touches[tensor.index()].push(Touch { op, reads: false, writes: true }),
            }
        }
    }
    touches
}
