//! The work that compute and the links must do one after the other. Ops that wait for each other
//! cut an iteration into windows, each as long as the computing, downloading or uploading that must
//! happen within it. `docs/research/bounds.md` has the proof.

#![expect(
    clippy::indexing_slicing,
    reason = "links are at most `LINKS`, and tables have a side of `SIDE`"
)]

use super::any_order::{OVERWRITTEN, flags};
use super::chain::{Chain, LINKS};
use super::{BoundOrder, Reads};
use crate::graph::{Graph, Kind, OpId, TensorId};
use crate::machine::{Machine, transmission_ns};
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};

pub(super) const fn scratch_words(limits: &Limits) -> usize {
    total([
        Chain::scratch_words(limits),
        words::<u8>(limits.tensors),
        Reads::scratch_words(limits),
        Lives::scratch_words(limits),
        words::<u64>(SIDE * SIDE).saturating_mul(3),
    ])
}

/// Returns a bound on the period from windows between the ops of a chain through an op.
/// O(operands).
pub(super) fn period_ns(
    graph: &Graph<'_>,
    machine: &Machine,
    budget_bytes: u64,
    (order, through): (BoundOrder, OpId),
    scratch: &mut Scratch<'_>,
) -> Result<u64, OutOfScratch> {
    let mut scratch = scratch.reborrow();
    let chain = Chain::new(graph, order, through, &mut scratch)?;
    let mut windows = Windows {
        compute_ns: Table::new(&mut scratch)?,
        download_bytes: Table::new(&mut scratch)?,
        upload_bytes: Table::new(&mut scratch)?,
        op_ns: [0; SIDE],
        end: chain.end(),
    };
    windows.add_compute(graph, &chain);
    windows.add_values(graph, &chain, &mut scratch)?;
    Ok(windows.longest_ns(machine, budget_bytes))
}

/// The value that each tensor holds. Positions are links of the chain; 0 is the start of the
/// iteration.
struct Lives<'a> {
    /// The first link after its first use; no link before its first use.
    from: &'a mut [u32],
    /// The last link before its last use, or the use itself.
    until: &'a mut [u32],
    /// The last link before the op that wrote it, or that op itself; no link if the host has it.
    written: &'a mut [u32],
    /// The last link for which it is known when absent bytes come back.
    returns: &'a mut [u32],
}

const NONE: u32 = u32::MAX;

impl<'a> Lives<'a> {
    const fn scratch_words(limits: &Limits) -> usize {
        words::<u32>(limits.tensors).saturating_mul(4)
    }

    fn new(graph: &Graph<'_>, scratch: &mut Scratch<'a>) -> Result<Self, OutOfScratch> {
        let tensors = graph.tensors().len();
        Ok(Self {
            from: scratch.take(tensors, NONE)?,
            until: scratch.take(tensors, 0u32)?,
            written: scratch.take(tensors, NONE)?,
            returns: scratch.take(tensors, 0u32)?,
        })
    }

    fn begin(&mut self, tensor: TensorId, from: usize, written: u32) {
        let at = tensor.index();
        (self.from[at], self.written[at]) = (from as u32, written);
        (self.until[at], self.returns[at]) = (0, (from as u32).saturating_sub(1));
    }

    fn is_begun(&self, tensor: TensorId) -> bool {
        self.from[tensor.index()] != NONE
    }
}

/// Links, start and end, and one more for differences.
const SIDE: usize = LINKS + 3;

/// The work in each window, from a link (or the start of the iteration) to a later link (or the end
/// of the iteration).
struct Windows<'a> {
    compute_ns: Table<'a>,
    /// Bytes held at the window's end that were written within it or cannot leave.
    download_bytes: Table<'a>,
    /// Bytes held at the window's start that are read within it or cannot leave.
    upload_bytes: Table<'a>,
    op_ns: [u64; SIDE],
    end: usize,
}

#[expect(clippy::arithmetic_side_effects, reason = "links count from 1 and are at most `LINKS`")]
impl Windows<'_> {
    fn add_compute(&mut self, graph: &Graph<'_>, chain: &Chain<'_>) {
        for op in graph.op_ids() {
            let (before, after) = chain.around(op);
            let time_ns = graph.op(op).time_ns;
            let after = if before == after { after + 1 } else { after };
            self.compute_ns.add((0, before), (after, self.end), time_ns);
            if let Some(link) = chain.link_of(op) {
                self.op_ns[link] = time_ns;
            }
        }
    }

    fn add_values(
        &mut self,
        graph: &Graph<'_>,
        chain: &Chain<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<(), OutOfScratch> {
        let mut reads = Reads::new(graph, scratch)?;
        let flags = flags(graph, &mut reads, scratch)?;
        let mut lives = Lives::new(graph, scratch)?;
        let is_state = |tensor: TensorId| graph.tensor(tensor).kind == Kind::State;
        for op in graph.op_ids() {
            let (before, after) = chain.around(op);
            reads.note(graph, op);
            for tensor in reads.overwrites(graph, op).filter(|&tensor| !is_state(tensor)) {
                self.add_written(graph, tensor, &lives);
                lives.begin(tensor, after, before as u32);
            }
            for tensor in reads.touches(graph, op) {
                if !lives.is_begun(tensor) {
                    // A state has a value from the start.
                    lives.begin(tensor, if is_state(tensor) { 1 } else { after }, NONE);
                }
                // If an op overwrites a state without reading it, the state may be dead here.
                if !(is_state(tensor) && flags[tensor.index()] & OVERWRITTEN != 0) {
                    self.add_read(graph, tensor, (before, after), &mut lives);
                }
            }
            self.add_held(graph, chain, op, &reads, &lives);
        }
        for tensor in graph.tensor_ids() {
            self.add_written(graph, tensor, &lives);
        }
        Ok(())
    }

    /// If a tensor is absent at a link before an op that uses it, it is uploaded before the op. If
    /// several ops after a link use it, the first one in the given order counts.
    fn add_read(
        &mut self,
        graph: &Graph<'_>,
        tensor: TensorId,
        (before, after): (usize, usize),
        lives: &mut Lives<'_>,
    ) {
        let at = tensor.index();
        let first = lives.returns[at] as usize + 1;
        // If the op is a link itself, none of its operands is absent there.
        let last = if before == after { before - 1 } else { before };
        self.upload_bytes.add((first, last), (after, self.end), graph.tensor(tensor).bytes);
        lives.returns[at] = lives.returns[at].max(before as u32);
        lives.until[at] = lives.until[at].max(before as u32);
    }

    /// If a written tensor is absent at a link, it has been downloaded before the link.
    fn add_written(&mut self, graph: &Graph<'_>, tensor: TensorId, lives: &Lives<'_>) {
        let at = tensor.index();
        if lives.written[at] != NONE {
            let alive = (lives.from[at] as usize, lives.until[at] as usize);
            let bytes = graph.tensor(tensor).bytes;
            self.download_bytes.add((0, lives.written[at] as usize), alive, bytes);
        }
    }

    /// The operands and the workspace of a link are on the device there.
    fn add_held(
        &mut self,
        graph: &Graph<'_>,
        chain: &Chain<'_>,
        op: OpId,
        reads: &Reads<'_>,
        lives: &Lives<'_>,
    ) {
        let Some(link) = chain.link_of(op) else { return };
        let mut hold = |bytes, first| {
            self.upload_bytes.add((link, link), (link + 1, self.end), bytes);
            self.download_bytes.add((first, link - 1), (link, link), bytes);
        };
        hold(graph.op(op).workspace_bytes, 0);
        for tensor in reads.touches(graph, op) {
            // Windows that contain the write count the tensor already.
            let written = lives.written[tensor.index()];
            let first = if written == NONE { 0 } else { written as usize + 1 };
            hold(graph.tensor(tensor).bytes, first);
        }
    }

    /// Returns the longest path from the iteration's start to its end by windows.
    fn longest_ns(self, machine: &Machine, budget_bytes: u64) -> u64 {
        let Self { mut compute_ns, mut download_bytes, mut upload_bytes, op_ns, end } = self;
        for table in [&mut compute_ns, &mut download_bytes, &mut upload_bytes] {
            table.sum();
        }
        // No value is downloaded before it is written, and no byte that is absent while an op runs
        // is uploaded before the op ends.
        let link_ns = |from: usize, bytes: u64, bytes_per_s| match transmission_ns(
            bytes.saturating_sub(budget_bytes),
            bytes_per_s,
        ) {
            Some(0) => 0,
            ns => ns.unwrap_or(u64::MAX).saturating_add(op_ns[from]),
        };
        let mut longest_ns = [0u64; SIDE];
        for to in 1..=end {
            for from in 0..to {
                let window_ns = compute_ns
                    .at(from, to)
                    .max(link_ns(from, download_bytes.at(from, to), machine.d2h_bytes_per_s))
                    .max(link_ns(from, upload_bytes.at(from, to), machine.h2d_bytes_per_s));
                longest_ns[to] = longest_ns[to].max(longest_ns[from].saturating_add(window_ns));
            }
        }
        longest_ns[end]
    }
}

/// A figure for each window: at first differences, then sums, both modulo 2^64. Sums are exact,
/// since all sizes together fit into 64 bits, and so do all times.
struct Table<'a> {
    cells: &'a mut [u64],
}

#[expect(
    clippy::arithmetic_side_effects,
    reason = "starts and ends are below `SIDE`, so cells are positions in `cells`"
)]
impl<'a> Table<'a> {
    fn new(scratch: &mut Scratch<'a>) -> Result<Self, OutOfScratch> {
        Ok(Self { cells: scratch.take(SIDE * SIDE, 0u64)? })
    }

    /// Adds to all windows that start and end in these ranges.
    fn add(&mut self, start: (usize, usize), end: (usize, usize), figure: u64) {
        if start.0 > start.1 || end.0 > end.1 {
            return;
        }
        let mut change = |start, end, figure| {
            let cell: &mut u64 = &mut self.cells[start * SIDE + end];
            *cell = cell.wrapping_add(figure);
        };
        change(start.0, end.0, figure);
        change(start.1 + 1, end.0, figure.wrapping_neg());
        change(start.0, end.1 + 1, figure.wrapping_neg());
        change(start.1 + 1, end.1 + 1, figure);
    }

    fn sum(&mut self) {
        for at in 0..self.cells.len() {
            if at % SIDE > 0 {
                self.cells[at] = self.cells[at].wrapping_add(self.cells[at - 1]);
            }
        }
        for at in SIDE..self.cells.len() {
            self.cells[at] = self.cells[at].wrapping_add(self.cells[at - SIDE]);
        }
    }

    fn at(&self, start: usize, end: usize) -> u64 {
        self.cells[start * SIDE + end]
    }
}
