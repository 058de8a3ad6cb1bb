//! The locally adaptive window (Hayakawa & Narihira, section 3, figure 2).
//!
//! The ops in order, each with the variables that it uses, form a cyclic sequence of variables. A
//! window of a given number of bytes begins with the variables of the op that runs next.
//!
//! * A variable that enters the window and is not on the device is swapped in (figure 2a). A
//!   variable that its op will write, and the op's workspace, take their memory when they enter, so
//!   that the ops in the window can run.
//! * Before that, the oldest swap-outs are completed until the variable fits (2b). If it does not
//!   fit, the window ends there for now; but it always covers the op that runs next, which is
//!   possible because everything else on the device is then waiting to be swapped out.
//! * After an op, its variables are swapped out (2c), unless they are in the window again or never
//!   used again (2d). The copy starts at once; the memory is freed when 2b needs it, and a variable
//!   that enters the window before that simply stays.
//!
//! A value that the host already holds is not copied, except in the published variant. The second
//! of two iterations is kept, so that variables that the window reaches beyond the end of an
//! iteration are resident at the start of the next one.

#![expect(
    clippy::indexing_slicing,
    reason = "tensors are those of the sequence, and the arrays have an entry for each"
)]

use super::builder::Builder;
use super::list::{Lengths, Stuck};
use super::memory::CHUNKS;
use super::queue::Queue;
use super::request::Task;
use super::strategy::{Parameter, Rule, Takes};
use super::trials::Search;
use crate::graph::{Kind, TensorId};
use crate::scratch::{Limits, Scratch, total, words};
use crate::sequence::{LaunchId, Sequence};

/// The window sizes that are tried if no size is given, as fractions of four times the budget. With
/// the largest one, only memory limits the window.
const FRACTIONS: [u64; 6] = [1, 4, 8, 16, 32, 64];

/// Parameters of [`Strategy::Window`](super::Strategy::Window).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Window {
    /// Bytes of the sequence of variables that the window covers. If not given, several sizes are
    /// tried in the timeline.
    pub bytes: Option<u64>,
    /// Exactly as published: also copies values that the host already holds.
    pub published: bool,
}

impl Window {
    /// The default parameters.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: None, published: false }
    }
}

setters!(Window {
    bytes: u64 as Some => with_bytes,
    published: bool => with_published,
});

impl Rule for Window {
    fn parameters(&self) -> &'static [Parameter] {
        &[
            Parameter { name: "bytes", takes: Takes::Bytes },
            Parameter { name: "variant", takes: Takes::Word(&["best", "published"]) },
        ]
    }

    fn set(&mut self, parameter: &str, value: u64) {
        match parameter {
            "bytes" => self.bytes = Some(value),
            "variant" => self.published = value == 1,
            _ => {}
        }
    }

    fn lists(&self, _: &Task<'_>) -> usize {
        if self.bytes.is_some() { 1 } else { FRACTIONS.len() }
    }

    fn write(
        &self,
        list: usize,
        builder: Builder<'_>,
        _: &mut Search<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Lengths, Stuck> {
        let most_bytes = builder.task.budget_bytes.saturating_mul(4);
        let bytes = self.bytes.unwrap_or(most_bytes.checked_div(FRACTIONS[list]).unwrap_or(0));
        write(builder, *self, bytes, scratch)
    }
}

pub(super) const fn scratch_words(limits: &Limits) -> usize {
    total([
        Queue::scratch_words(limits),
        words::<u32>(limits.tensors).saturating_mul(3),
        words::<u8>(limits.tensors),
    ])
}

/// A position in the cyclic sequence of variables: an operand of an op, or, after its last operand,
/// its workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Position {
    iteration: u32,
    op: LaunchId,
    operand: u32,
}

struct Slide<'b, 's> {
    builder: Builder<'b>,
    window: Window,
    window_bytes: u64,
    /// Variables that wait to be swapped out, the oldest in front.
    leaving: Queue<'s>,
    leaving_objects: u64,
    /// The number of ops in the window that use each tensor.
    entries: &'s mut [u32],
    /// The last op by which each tensor entered the window, with the parity of the iteration: an op
    /// that reads and writes a tensor enters it once.
    entered_by: &'s mut [u32],
    /// The launch after which each tensor was last considered for a swap-out.
    left_behind: &'s mut [u32],
    launches: u32,
    /// 1 for tensors whose memory is reserved for an op in the window that will write them.
    reserved: &'s mut [u8],
    /// The number of reserved objects, including the objects for workspaces.
    reserved_objects: u64,
    /// Bytes of the variables in the window.
    covered_bytes: u64,
    /// The first variable after the window.
    next: Position,
}

/// Slides a window of this size over two iterations.
fn write(
    builder: Builder<'_>,
    window: Window,
    window_bytes: u64,
    scratch: &mut Scratch<'_>,
) -> Result<Lengths, Stuck> {
    let tensors = builder.task.sequence.tensors().len();
    let mut scratch = scratch.reborrow();
    let slide = Slide {
        builder,
        window,
        window_bytes,
        leaving: Queue::new(tensors, &mut scratch)?,
        leaving_objects: 0,
        entries: scratch.take(tensors, 0u32)?,
        entered_by: scratch.take(tensors, u32::MAX)?,
        left_behind: scratch.take(tensors, u32::MAX)?,
        launches: 0,
        reserved: scratch.take(tensors, 0u8)?,
        reserved_objects: 0,
        covered_bytes: 0,
        next: Position { iteration: 0, op: LaunchId(0), operand: 0 },
    };
    slide.two_iterations()
}

impl Slide<'_, '_> {
    fn sequence(&self) -> &Sequence<'_> {
        self.builder.task.sequence
    }

    fn two_iterations(mut self) -> Result<Lengths, Stuck> {
        for (iteration, op) in self.sequence().iterations(2) {
            self.builder.reach(op);
            self.grow(iteration, op)?;
            self.builder.launch(op)?;
            self.leave(op)?;
        }
        self.builder.finish()
    }

    /// Enters variables: the variables of the running op in any case, other variables as long as
    /// the window has bytes and the device has memory for them, and at most one iteration ahead.
    fn grow(&mut self, iteration: u32, running: LaunchId) -> Result<(), Stuck> {
        loop {
            let must = self.next.iteration == iteration && self.next.op == running;
            let full_circle = self.next.iteration > iteration && self.next.op >= running;
            if full_circle {
                return Ok(());
            }
            match self.enter(must) {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(Stuck::NoMemory) if !must => return Ok(()),
                Err(stuck) => return Err(stuck),
            }
        }
    }

    /// Enters the next variable; returns `false` if it would exceed the window.
    fn enter(&mut self, must: bool) -> Result<bool, Stuck> {
        let Position { iteration, op, operand } = self.next;
        let sequence = self.builder.task.sequence;
        let operands = sequence.operands_of(op);
        let Some(&tensor) = operands.get(operand as usize) else {
            let bytes = sequence.workspace_bytes(op);
            if !must && self.covered_bytes.saturating_add(bytes) > self.window_bytes {
                return Ok(false);
            }
            let objects = self.builder.memory.workspace(self.builder.task, op);
            self.free(objects)?;
            self.reserved_objects = self.reserved_objects.saturating_add(objects);
            self.covered_bytes = self.covered_bytes.saturating_add(bytes);
            let next = sequence.following(op);
            let wraps = next == LaunchId(0);
            let iteration = iteration.saturating_add(wraps.into());
            self.next = Position { iteration, op: next, operand: 0 };
            return Ok(true);
        };
        let entrance = op.0 << 1 | (iteration & 1);
        let first_time = self.entered_by[tensor.index()] != entrance;
        if first_time && !self.builder.memory.in_arena(tensor) {
            let bytes = sequence.tensor(tensor).bytes;
            if !must && self.covered_bytes.saturating_add(bytes) > self.window_bytes {
                return Ok(false);
            }
            let reads = (operand as usize) < sequence.reads(op).len();
            self.swap_in(tensor, reads)?;
            self.covered_bytes = self.covered_bytes.saturating_add(bytes);
            let entries = &mut self.entries[tensor.index()];
            *entries = entries.saturating_add(1);
            self.entered_by[tensor.index()] = entrance;
        }
        self.next.operand = operand.saturating_add(1);
        Ok(true)
    }

    /// Swaps a variable in, or reserves memory for the op that writes it.
    fn swap_in(&mut self, tensor: TensorId, reads: bool) -> Result<(), Stuck> {
        if self.builder.is_resident(tensor) {
            if self.entries[tensor.index()] == 0 {
                self.stay(tensor);
            }
            return Ok(());
        }
        if self.reserved[tensor.index()] == 1 {
            return Ok(());
        }
        let objects = self.builder.memory.objects(tensor);
        self.free(objects)?;
        if reads && self.builder.has_host_copy(tensor) {
            return self.builder.prefetch(tensor);
        }
        self.reserved[tensor.index()] = 1;
        self.reserved_objects = self.reserved_objects.saturating_add(objects);
        Ok(())
    }

    /// Completes the oldest swap-outs until `objects` are free in addition to the reserved objects.
    fn free(&mut self, objects: u64) -> Result<(), Stuck> {
        let wanted = self.reserved_objects.saturating_add(objects);
        if self.builder.free_objects(CHUNKS).saturating_add(self.leaving_objects) < wanted {
            return Err(Stuck::NoMemory);
        }
        while self.builder.free_objects(CHUNKS) < wanted {
            let oldest = self.leaving.front().ok_or(Stuck::NoMemory)?;
            self.stay(oldest);
            self.builder.evict(oldest);
        }
        Ok(())
    }

    /// Removes a variable from the variables that wait to be swapped out.
    fn stay(&mut self, tensor: TensorId) {
        self.leaving.remove(tensor);
        let objects = self.builder.memory.objects(tensor);
        self.leaving_objects = self.leaving_objects.saturating_sub(objects);
    }

    /// Removes the variables of a launched op from the window.
    fn leave(&mut self, op: LaunchId) -> Result<(), Stuck> {
        let sequence = self.builder.task.sequence;
        let workspace = self.builder.memory.workspace(self.builder.task, op);
        self.reserved_objects = self.reserved_objects.saturating_sub(workspace);
        self.covered_bytes = self.covered_bytes.saturating_sub(sequence.workspace_bytes(op));
        for &tensor in sequence.writes(op) {
            if core::mem::take(&mut self.reserved[tensor.index()]) == 1 {
                let objects = self.builder.memory.objects(tensor);
                self.reserved_objects = self.reserved_objects.saturating_sub(objects);
            }
        }
        self.launches = self.launches.saturating_add(1);
        for &tensor in sequence.operands_of(op) {
            let left_behind = &mut self.left_behind[tensor.index()];
            let again = core::mem::replace(left_behind, self.launches) == self.launches;
            if again || self.builder.memory.in_arena(tensor) {
                continue;
            }
            let entries = &mut self.entries[tensor.index()];
            *entries = entries.saturating_sub(1);
            let is_in_window = *entries > 0;
            self.covered_bytes = self.covered_bytes.saturating_sub(sequence.tensor(tensor).bytes);
            match (self.builder.is_resident(tensor), is_in_window) {
                (true, true) | (false, false) => {}
                (true, false) => self.swap_out(tensor),
                // Its value is dead, and an op in the window needs the next one.
                (false, true) => self.swap_in_next(tensor)?,
            }
        }
        Ok(())
    }

    fn swap_out(&mut self, tensor: TensorId) {
        self.leaving.push(tensor);
        let objects = self.builder.memory.objects(tensor);
        self.leaving_objects = self.leaving_objects.saturating_add(objects);
        match self.window.published {
            true => self.builder.offload_again(tensor),
            false => self.builder.offload(tensor),
        }
    }

    /// Reserves the memory of a dead value for the next one, or prefetches the next iteration's
    /// input into it at once.
    fn swap_in_next(&mut self, tensor: TensorId) -> Result<(), Stuck> {
        let is_input = self.sequence().tensor(tensor).kind == Kind::Input;
        let next_iteration = self.builder.upcoming(tensor).is_none();
        let reads = is_input && next_iteration && self.builder.reads_first(tensor);
        self.swap_in(tensor, reads)
    }
}
