//! Writes the list of steps, and keeps what every strategy must know: what is resident,
//! which host copies are valid, what is still needed, and how much memory is free.

use super::Request;
use super::memory::Memory;
use super::uses::{Use, Uses};
use crate::graph::{Kind, OpId, TensorId};
use crate::plan::{ArenaPlacement, Part, Resident, Step};
use crate::scratch::{Limits, OutOfScratch, Scratch, words};

const RESIDENT: u8 = 1;
/// The host copy is valid.
const HOST: u8 = 2;
const AT_START: u8 = 4;
/// The host copy was valid when the iteration began.
const HOST_AT_START: u8 = 8;

/// A list of steps in the making. It follows the rules of a valid plan as long as tensors
/// are prefetched before they are read and memory is freed before it is taken.
#[derive(Debug)]
pub(super) struct Builder<'b> {
    pub(super) request: &'b Request<'b>,
    pub(super) memory: &'b Memory<'b>,
    uses: &'b Uses<'b>,
    steps: &'b mut [Step],
    len: usize,
    resident: &'b mut [Resident],
    state: &'b mut [u8],
    /// The next [`Use`] of each tensor.
    upcoming: &'b mut [u32],
    free_objects: u64,
}

/// How long the lists of a finished plan are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lengths {
    pub(super) steps: usize,
    pub(super) resident: usize,
}

/// Why a list cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stuck {
    /// The strategy needs more memory than there is.
    NoRoom,
    /// The output has room for too few entries.
    OutputFull,
}

impl<'b> Builder<'b> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        words::<u8>(limits.tensors) + words::<u32>(limits.tensors)
    }

    /// Starts with an empty device, but for the arena.
    pub(super) fn new(
        request: &'b Request<'b>,
        memory: &'b Memory<'b>,
        uses: &'b Uses<'b>,
        arena: &[ArenaPlacement],
        (steps, resident): (&'b mut [Step], &'b mut [Resident]),
        scratch: &mut Scratch<'b>,
    ) -> Result<Self, OutOfScratch> {
        let tensors = request.graph.tensors().len();
        let mut builder = Self {
            request,
            memory,
            uses,
            steps,
            len: 0,
            resident,
            state: scratch.take(tensors, HOST)?,
            upcoming: scratch.take(tensors, Use::NONE.0)?,
            free_objects: memory.pool_objects,
        };
        for placement in arena {
            let kind = request.graph.tensor(placement.tensor).kind;
            if kind != Kind::Temporary {
                builder.state[placement.tensor.index()] |= RESIDENT;
            }
        }
        builder.restart();
        Ok(builder)
    }

    /// Forgets the steps so far; what they left on the device is there at the start.
    pub(super) fn restart(&mut self) {
        self.len = 0;
        for (id, tensor) in self.request.graph.tensor_ids().zip(self.request.graph.tensors()) {
            let state = &mut self.state[id.index()];
            match tensor.kind {
                Kind::Input => *state |= HOST,
                Kind::Temporary => *state = 0,
                Kind::State => {}
            }
            *state &= RESIDENT | HOST;
            // An arena tensor stays, and its host copy counts only if nothing writes it.
            if self.memory.in_arena(id) && self.uses.is_written(id) && tensor.kind == Kind::State {
                *state &= !HOST;
            }
            *state |= (*state & (RESIDENT | HOST)) << 2;
            self.upcoming[id.index()] = self.uses.first(id).0;
        }
    }

    pub(super) fn is_resident(&self, tensor: TensorId) -> bool {
        self.memory.in_arena(tensor) || self.state[tensor.index()] & RESIDENT != 0
    }

    pub(super) fn has_host_copy(&self, tensor: TensorId) -> bool {
        self.state[tensor.index()] & HOST != 0
    }

    /// Whether the value that a tensor holds now is read again, by a later op or, for a
    /// state, by the next iteration.
    pub(super) fn is_needed(&self, tensor: TensorId) -> bool {
        let upcoming = self.upcoming(tensor);
        let is_state = self.request.graph.tensor(tensor).kind == Kind::State;
        upcoming.reads() || (upcoming.is_none() && is_state)
    }

    /// The next use of a tensor in this iteration.
    pub(super) fn upcoming(&self, tensor: TensorId) -> Use {
        Use(self.upcoming[tensor.index()])
    }

    /// The first use of a tensor in an iteration.
    pub(super) fn first_use(&self, tensor: TensorId) -> Use {
        self.uses.first(tensor)
    }

    /// Whether an iteration reads the value that a tensor has at its start.
    pub(super) fn reads_first(&self, tensor: TensorId) -> bool {
        self.first_use(tensor).reads()
    }

    pub(super) fn free_objects(&self) -> u64 {
        self.free_objects
    }

    /// Objects that a launch would still have to allocate, its workspace included.
    pub(super) fn launch_objects(&self, op: OpId) -> u64 {
        let missing = self.request.graph.writes(op).iter().filter(|&&t| !self.is_resident(t));
        missing.fold(self.memory.workspace(self.request, op), |sum, &tensor| {
            sum.saturating_add(self.memory.objects(tensor))
        })
    }

    fn push(&mut self, step: Step) -> Result<(), Stuck> {
        *self.steps.get_mut(self.len).ok_or(Stuck::OutputFull)? = step;
        self.len += 1;
        Ok(())
    }

    fn take(&mut self, tensor: TensorId) -> Result<(), Stuck> {
        let objects = self.memory.objects(tensor);
        self.free_objects = self.free_objects.checked_sub(objects).ok_or(Stuck::NoRoom)?;
        self.state[tensor.index()] |= RESIDENT;
        Ok(())
    }

    /// Brings a tensor in from the host.
    pub(super) fn prefetch(&mut self, tensor: TensorId) -> Result<(), Stuck> {
        self.take(tensor)?;
        self.push(Step::Prefetch(Part::whole(tensor)))
    }

    /// Copies a tensor to the host.
    pub(super) fn offload(&mut self, tensor: TensorId) -> Result<(), Stuck> {
        self.state[tensor.index()] |= HOST;
        self.push(Step::Offload(Part::whole(tensor)))
    }

    /// Gives a tensor's memory back, after copying a value that would be lost.
    pub(super) fn evict(&mut self, tensor: TensorId) -> Result<(), Stuck> {
        if self.is_needed(tensor) && !self.has_host_copy(tensor) {
            self.offload(tensor)?;
        }
        self.free_objects += self.memory.objects(tensor);
        self.state[tensor.index()] &= !RESIDENT;
        self.push(Step::Evict(Part::whole(tensor)))
    }

    /// Runs an op, and gives back what nobody needs after it.
    pub(super) fn launch(&mut self, op: OpId) -> Result<(), Stuck> {
        let graph = self.request.graph;
        if self.launch_objects(op) > self.free_objects {
            return Err(Stuck::NoRoom);
        }
        self.push(Step::Launch(op))?;
        for &tensor in graph.writes(op) {
            if !self.is_resident(tensor) {
                self.take(tensor)?;
            }
            // After an input's last read the host holds its next value, which stays.
            let is_input = graph.tensor(tensor).kind == Kind::Input;
            if !(is_input && self.uses.is_done_with(tensor, op)) {
                self.state[tensor.index()] &= !HOST;
            }
        }
        let operands = graph.operands_of(op);
        let first = graph.op(op).first_operand as usize;
        for (slot, &tensor) in (first..).zip(operands) {
            self.upcoming[tensor.index()] = self.uses.next(slot).0;
            // The next iteration's value is on the host now.
            let is_input = graph.tensor(tensor).kind == Kind::Input;
            if is_input && self.uses.is_last_read(tensor, op) {
                self.state[tensor.index()] |= HOST;
            }
        }
        for &tensor in operands {
            let dead = !self.memory.in_arena(tensor)
                && self.is_resident(tensor)
                && !self.is_needed(tensor);
            if dead {
                self.evict(tensor)?;
            }
        }
        Ok(())
    }

    /// Closes the cycle: the iteration ends with what it began with.
    pub(super) fn finish(mut self) -> Result<Lengths, Stuck> {
        let graph = self.request.graph;
        for tensor in graph.tensor_ids() {
            let state = self.state[tensor.index()];
            if state & RESIDENT != 0 && state & AT_START == 0 {
                self.evict(tensor)?;
            }
        }
        let mut resident = 0;
        for tensor in graph.tensor_ids() {
            let state = self.state[tensor.index()];
            if state & AT_START == 0 {
                continue;
            }
            let arena_input =
                self.memory.in_arena(tensor) && graph.tensor(tensor).kind == Kind::Input;
            let host_copy = state & HOST_AT_START != 0;
            if arena_input {
                self.push(Step::Prefetch(Part::whole(tensor)))?;
            } else if state & RESIDENT == 0 {
                self.prefetch(tensor)?;
            } else if host_copy && state & HOST == 0 {
                self.offload(tensor)?;
            }
            let slot = self.resident.get_mut(resident).ok_or(Stuck::OutputFull)?;
            *slot = Resident { part: Part::whole(tensor), host_copy };
            resident += 1;
        }
        Ok(Lengths { steps: self.len, resident })
    }
}
