//! Every read finds the current value, nothing that is still needed is lost, and an
//! iteration ends as it began (format, "A valid plan", rules 2 to 6).

use crate::graph::{Graph, Kind, OpId, TensorId};
use crate::pieces::Pieces;
use crate::plan::{Part, Place, Plan, PlanError, Step};
use crate::scratch::{Limits, Scratch, total, words};

pub(super) const fn scratch_words(limits: &Limits) -> usize {
    total([
        words::<u8>(limits.pieces),
        words::<u32>(limits.tensors),
        words::<u8>(limits.steps).saturating_mul(2),
        words::<u8>(limits.tensors),
    ])
}

/// The piece is on the device.
const RESIDENT: u8 = 1;
/// The device copy holds the current value (of an input after its last read: the next one).
const CURRENT: u8 = 2;
/// The host copy holds that value.
const HOST: u8 = 4;
/// The piece is on the device when an iteration starts.
const AT_START: u8 = 8;
/// And the plan claims a host copy then.
const CLAIMED: u8 = 16;

const UNREAD: u32 = u32::MAX;

pub(super) fn check(
    graph: &Graph<'_>,
    plan: &Plan<'_>,
    pieces: &Pieces<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<(), PlanError> {
    let needed = scratch.take(plan.steps.len(), 0u8)?;
    find_needed(graph, plan, needed, scratch)?;
    let mut walk = Walk {
        graph,
        plan,
        pieces,
        state: scratch.take(pieces.len(), 0u8)?,
        last_read: scratch.take(graph.tensors().len(), UNREAD)?,
    };
    walk.find_last_reads();
    walk.start()?;
    walk.check_arena()?;
    // The second iteration finds what the first one left: an input that nobody brought in
    // again is on the device without a value.
    for _lap in 0..2 {
        for ((at, step), &needed) in (0..).zip(plan.steps).zip(&*needed) {
            let place = Place::Step(at);
            match *step {
                Step::Prefetch(part) => walk.prefetch(place, part)?,
                Step::Launch(op) => walk.launch(place, at, op)?,
                Step::Offload(part) => walk.offload(place, part)?,
                Step::Evict(part) => walk.evict(place, part, needed == 1)?,
            }
        }
        walk.end()?;
    }
    Ok(())
}

/// Marks the evicts after which the value of the tensor is still read: by a later op, or,
/// for a state, by the next iteration.
fn find_needed(
    graph: &Graph<'_>,
    plan: &Plan<'_>,
    needed: &mut [u8],
    scratch: &mut Scratch<'_>,
) -> Result<(), PlanError> {
    let mut scratch = scratch.reborrow();
    let later = scratch.take(graph.tensors().len(), 0u8)?;
    for (later, tensor) in later.iter_mut().zip(graph.tensors()) {
        *later = u8::from(tensor.kind == Kind::State);
    }
    for (step, needed) in plan.steps.iter().zip(needed).rev() {
        match *step {
            Step::Evict(part) => *needed = later[part.tensor.index()],
            Step::Launch(op) => {
                for &tensor in graph.writes(op) {
                    later[tensor.index()] = 0;
                }
                for &tensor in graph.reads(op) {
                    later[tensor.index()] = 1;
                }
            }
            Step::Prefetch(_) | Step::Offload(_) => {}
        }
    }
    Ok(())
}

struct Walk<'w> {
    graph: &'w Graph<'w>,
    plan: &'w Plan<'w>,
    pieces: &'w Pieces<'w>,
    state: &'w mut [u8],
    /// The step of an input's last read.
    last_read: &'w mut [u32],
}

impl Walk<'_> {
    fn kind(&self, tensor: TensorId) -> Kind {
        self.graph.tensor(tensor).kind
    }

    fn find_last_reads(&mut self) {
        for (at, step) in (0..).zip(self.plan.steps) {
            let Step::Launch(op) = *step else { continue };
            for &tensor in self.graph.reads(op) {
                if self.kind(tensor) == Kind::Input {
                    self.last_read[tensor.index()] = at;
                }
            }
        }
    }

    fn start(&mut self) -> Result<(), PlanError> {
        for (id, tensor) in self.graph.tensor_ids().zip(self.graph.tensors()) {
            if tensor.kind != Kind::Temporary {
                self.state[self.pieces.of(id)].fill(HOST);
            }
        }
        for (at, entry) in (0..).zip(self.plan.resident_at_start) {
            let (place, tensor) = (Place::Start(at), entry.part.tensor);
            if self.kind(tensor) == Kind::Temporary {
                return Err(PlanError::TemporaryAtStart(place, tensor));
            }
            // An input's fresh value lies on the host whatever the plan claims.
            let stale = !entry.host_copy && self.kind(tensor) == Kind::State;
            for piece in self.pieces.of_part(entry.part) {
                if self.state[piece] & AT_START != 0 {
                    return Err(PlanError::AlreadyResident(place, tensor));
                }
                let host = if stale { 0 } else { HOST };
                let claimed = if entry.host_copy { CLAIMED } else { 0 };
                self.state[piece] = RESIDENT | CURRENT | AT_START | host | claimed;
            }
        }
        Ok(())
    }

    fn check_arena(&self) -> Result<(), PlanError> {
        for placement in self.plan.arena {
            let tensor = placement.tensor;
            match self.kind(tensor) {
                Kind::State if self.state[self.pieces.of(tensor).start] & AT_START == 0 => {
                    return Err(PlanError::ArenaStateNotResident(tensor));
                }
                Kind::Input if self.last_read[tensor.index()] == UNREAD => {
                    return Err(PlanError::ArenaInput(tensor));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn prefetch(&mut self, place: Place, part: Part) -> Result<(), PlanError> {
        let tensor = part.tensor;
        if self.pieces.in_arena(tensor) && self.kind(tensor) == Kind::Temporary {
            return Err(PlanError::ArenaStep(place, tensor));
        }
        for piece in self.pieces.of_part(part) {
            let state = &mut self.state[piece];
            if *state & RESIDENT != 0 {
                return Err(PlanError::AlreadyResident(place, tensor));
            }
            if *state & HOST == 0 {
                return Err(PlanError::NoHostCopy(place, tensor));
            }
            *state |= RESIDENT | CURRENT;
        }
        Ok(())
    }

    fn launch(&mut self, place: Place, at: u32, op: OpId) -> Result<(), PlanError> {
        for &tensor in self.graph.reads(op) {
            for piece in self.pieces.of(tensor) {
                if self.state[piece] & RESIDENT == 0 {
                    return Err(PlanError::NotResident(place, tensor));
                }
                if self.state[piece] & CURRENT == 0 {
                    return Err(PlanError::NoValue(place, tensor));
                }
            }
        }
        for &tensor in self.graph.writes(op) {
            let last_read = self.last_read[tensor.index()];
            let after_last_read = last_read != UNREAD && at > last_read;
            if after_last_read && self.pieces.in_arena(tensor) {
                return Err(PlanError::ArenaInput(tensor));
            }
            for piece in self.pieces.of(tensor) {
                let state = &mut self.state[piece];
                // What the host holds after the last read is the next value, which this
                // write does not touch; on the device it leaves no value.
                *state = match after_last_read {
                    true => (*state | RESIDENT) & !CURRENT,
                    false => (*state | RESIDENT | CURRENT) & !HOST,
                };
            }
        }
        for &tensor in self.graph.reads(op) {
            if self.last_read[tensor.index()] == at {
                self.forget_input(tensor);
            }
        }
        Ok(())
    }

    /// After an input's last read the host has the next iteration's value.
    fn forget_input(&mut self, tensor: TensorId) {
        let gone = if self.pieces.in_arena(tensor) { RESIDENT | CURRENT } else { CURRENT };
        for piece in self.pieces.of(tensor) {
            self.state[piece] = (self.state[piece] | HOST) & !gone;
        }
    }

    fn offload(&mut self, place: Place, part: Part) -> Result<(), PlanError> {
        let tensor = part.tensor;
        if self.pieces.in_arena(tensor) && self.kind(tensor) == Kind::Temporary {
            return Err(PlanError::ArenaStep(place, tensor));
        }
        for piece in self.pieces.of_part(part) {
            let state = &mut self.state[piece];
            if *state & RESIDENT == 0 {
                return Err(PlanError::NotResident(place, tensor));
            }
            if *state & CURRENT == 0 {
                return Err(PlanError::NoValue(place, tensor));
            }
            *state |= HOST;
        }
        Ok(())
    }

    fn evict(&mut self, place: Place, part: Part, needed: bool) -> Result<(), PlanError> {
        let tensor = part.tensor;
        if self.pieces.in_arena(tensor) {
            return Err(PlanError::ArenaStep(place, tensor));
        }
        for piece in self.pieces.of_part(part) {
            let state = &mut self.state[piece];
            if *state & RESIDENT == 0 {
                return Err(PlanError::NotResident(place, tensor));
            }
            if needed && *state & HOST == 0 {
                return Err(PlanError::ValueLost(place, tensor));
            }
            *state &= !(RESIDENT | CURRENT);
        }
        Ok(())
    }

    /// The end of the list is its start; then fresh inputs lie on the host.
    fn end(&mut self) -> Result<(), PlanError> {
        for tensor in self.graph.tensor_ids() {
            let kind = self.kind(tensor);
            if kind == Kind::Temporary && self.pieces.in_arena(tensor) {
                continue;
            }
            for piece in self.pieces.of(tensor) {
                let state = self.state[piece];
                let has = |flag| state & flag != 0;
                if has(RESIDENT) && !has(AT_START) {
                    return Err(PlanError::AlreadyResident(Place::End, tensor));
                }
                if has(AT_START) && !has(RESIDENT) {
                    return Err(PlanError::NotResident(Place::End, tensor));
                }
                if has(CLAIMED) && !has(HOST) {
                    return Err(PlanError::NoHostCopy(Place::End, tensor));
                }
                if kind == Kind::Input {
                    self.state[piece] |= HOST;
                }
            }
        }
        Ok(())
    }
}
