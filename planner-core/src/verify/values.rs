//! Every read finds the current value, nothing that is still needed is lost, and an
//! iteration ends as it began (`docs/format.md`, rules 2 to 6).

use crate::graph::{Graph, Kind, Launched, TensorId};
use crate::pieces::Pieces;
use crate::plan::{Part, Place, Plan, PlanError, Step};
use crate::ranges::Flags;
use crate::scratch::{Limits, Scratch, total, words};

pub(super) const fn scratch_words(limits: &Limits) -> usize {
    total([
        Flags::scratch_words(limits),
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
        state: Flags::new(pieces.len(), scratch)?,
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
                Step::Launch(launched) => walk.launch(place, at, launched)?,
                Step::Offload(part) => walk.offload(place, at, part)?,
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
            Step::Launch(launched) => {
                for tensor in graph.written_by(launched) {
                    later[tensor.index()] = 0;
                }
                for tensor in graph.read_by(launched) {
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
    state: Flags<'w>,
    /// The step of an input's last read.
    last_read: &'w mut [u32],
}

impl Walk<'_> {
    /// The flags that all pieces of a part have, and those that any has.
    fn look(&mut self, part: Part) -> [u8; 2] {
        self.state.look(&self.pieces.of(part.tensor), &self.pieces.of_part(part))
    }

    /// Takes flags from all pieces of a part, then gives them others.
    fn change(&mut self, part: Part, taken: u8, given: u8) {
        let (of, range) = (self.pieces.of(part.tensor), self.pieces.of_part(part));
        self.state.change(&of, &range, taken, given);
    }

    fn kind(&self, tensor: TensorId) -> Kind {
        self.graph.tensor(tensor).kind
    }

    fn find_last_reads(&mut self) {
        for (at, step) in (0..).zip(self.plan.steps) {
            let Step::Launch(launched) = *step else { continue };
            for tensor in self.graph.read_by(launched) {
                if self.kind(tensor) == Kind::Input {
                    self.last_read[tensor.index()] = at;
                }
            }
        }
    }

    fn start(&mut self) -> Result<(), PlanError> {
        for (id, tensor) in self.graph.tensor_ids().zip(self.graph.tensors()) {
            if tensor.kind != Kind::Temporary {
                self.change(Part::whole(id), 0, HOST);
            }
        }
        for (at, entry) in (0..).zip(self.plan.resident_at_start) {
            let (place, tensor) = (Place::Start(at), entry.part.tensor);
            if self.kind(tensor) == Kind::Temporary {
                return Err(PlanError::TemporaryAtStart(place, tensor));
            }
            // An input's fresh value lies on the host whatever the plan claims.
            let stale = !entry.host_copy && self.kind(tensor) == Kind::State;
            let [_, any] = self.look(entry.part);
            if any & AT_START != 0 {
                return Err(PlanError::AlreadyResident(place, tensor));
            }
            let claimed = if entry.host_copy { CLAIMED } else { 0 };
            let taken = if stale { HOST } else { 0 };
            self.change(entry.part, taken, RESIDENT | CURRENT | AT_START | claimed);
        }
        Ok(())
    }

    fn check_arena(&mut self) -> Result<(), PlanError> {
        for placement in self.plan.arena {
            let tensor = placement.tensor;
            match self.kind(tensor) {
                Kind::State if self.look(Part::whole(tensor))[0] & AT_START == 0 => {
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
        let [all, any] = self.look(part);
        if any & RESIDENT != 0 {
            return Err(PlanError::AlreadyResident(place, tensor));
        }
        if all & HOST == 0 {
            return Err(PlanError::NoHostCopy(place, tensor));
        }
        self.change(part, 0, RESIDENT | CURRENT);
        Ok(())
    }

    fn launch(&mut self, place: Place, at: u32, launched: Launched) -> Result<(), PlanError> {
        for tensor in self.graph.read_by(launched) {
            self.check_value(place, Part::whole(tensor))?;
        }
        for tensor in self.graph.written_by(launched) {
            let last_read = self.last_read[tensor.index()];
            let after_last_read = last_read != UNREAD && at > last_read;
            if self.pieces.in_arena(tensor) && self.kind(tensor) == Kind::Input {
                self.check_arena_write(place, tensor, after_last_read)?;
            }
            // What the host holds after the last read is the next value, which this write does
            // not touch; on the device it leaves no value.
            match after_last_read {
                true => self.change(Part::whole(tensor), CURRENT, RESIDENT),
                false => self.change(Part::whole(tensor), HOST, RESIDENT | CURRENT),
            }
        }
        for tensor in self.graph.read_by(launched) {
            if self.last_read[tensor.index()] == at {
                self.forget_input(tensor);
            }
        }
        Ok(())
    }

    /// An input in the arena is there before an op writes it: its one prefetch cannot follow,
    /// and what is written after its last read would spoil its next value.
    fn check_arena_write(
        &mut self,
        place: Place,
        tensor: TensorId,
        after_last_read: bool,
    ) -> Result<(), PlanError> {
        if after_last_read {
            return Err(PlanError::ArenaInput(tensor));
        }
        let [all, _] = self.look(Part::whole(tensor));
        if all & RESIDENT == 0 {
            return Err(PlanError::ArenaInputAbsent(place, tensor));
        }
        Ok(())
    }

    /// Whether a copy of the tensor at this step would be of an input's next value. That is the
    /// only one of an input that no op reads.
    fn holds_next(&self, tensor: TensorId, at: u32) -> bool {
        let last_read = self.last_read[tensor.index()];
        self.kind(tensor) == Kind::Input && (last_read == UNREAD || at > last_read)
    }

    /// After an input's last read the host has the next iteration's value.
    fn forget_input(&mut self, tensor: TensorId) {
        let gone = if self.pieces.in_arena(tensor) { RESIDENT | CURRENT } else { CURRENT };
        self.change(Part::whole(tensor), gone, HOST);
    }

    fn offload(&mut self, place: Place, at: u32, part: Part) -> Result<(), PlanError> {
        let tensor = part.tensor;
        if self.pieces.in_arena(tensor) && self.kind(tensor) == Kind::Temporary {
            return Err(PlanError::ArenaStep(place, tensor));
        }
        if self.holds_next(tensor, at) {
            return Err(PlanError::NextInput(place, tensor));
        }
        self.check_value(place, part)?;
        self.change(part, 0, HOST);
        Ok(())
    }

    /// Whether a part is resident, with its current value.
    fn check_value(&mut self, place: Place, part: Part) -> Result<(), PlanError> {
        let [all, _] = self.look(part);
        if all & RESIDENT == 0 {
            return Err(PlanError::NotResident(place, part.tensor));
        }
        if all & CURRENT == 0 {
            return Err(PlanError::NoValue(place, part.tensor));
        }
        Ok(())
    }

    fn evict(&mut self, place: Place, part: Part, needed: bool) -> Result<(), PlanError> {
        let tensor = part.tensor;
        if self.pieces.in_arena(tensor) {
            return Err(PlanError::ArenaStep(place, tensor));
        }
        let [all, _] = self.look(part);
        if all & RESIDENT == 0 {
            return Err(PlanError::NotResident(place, tensor));
        }
        if needed && all & HOST == 0 {
            return Err(PlanError::ValueLost(place, tensor));
        }
        self.change(part, RESIDENT | CURRENT, 0);
        Ok(())
    }

    /// The end of the list is its start; then fresh inputs lie on the host.
    fn end(&mut self) -> Result<(), PlanError> {
        for tensor in self.graph.tensor_ids() {
            let kind = self.kind(tensor);
            if kind == Kind::Temporary && self.pieces.in_arena(tensor) {
                continue;
            }
            let of = self.pieces.of(tensor);
            for piece in of.clone() {
                let [state, _] = self.state.look(&of, &(piece..piece + 1));
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
            }
            if kind == Kind::Input {
                self.state.change(&of, &of, 0, HOST);
            }
        }
        Ok(())
    }
}
