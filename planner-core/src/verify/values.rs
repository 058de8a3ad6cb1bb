//! Every read finds the current value, nothing that is still needed is lost, and an
//! iteration ends as it began (`docs/format.md`, rules 2 to 6).
//!
//! A copy holds a value, which has a [number](super::versions). A device copy holds what the last
//! launch wrote or read, whole; or, where it came by a prefetch or was copied by an offload since, the
//! value of the host copy, piece by piece.

use super::versions::{self, NOTHING, Versions};
use crate::graph::{Graph, Kind, Launched, TensorId};
use crate::pieces::Pieces;
use crate::plan::{Part, Place, Plan, PlanError, Step};
use crate::ranges::{Flags, Numbers};
use crate::scratch::{Limits, Scratch, total, words};
use core::ops::Range;

pub(super) const fn scratch_words(limits: &Limits) -> usize {
    total([
        Flags::scratch_words(limits),
        Numbers::scratch_words(limits),
        Versions::scratch_words(limits),
        words::<u32>(limits.steps),
        words::<u32>(limits.tensors).saturating_mul(4),
    ])
}

/// The piece is on the device.
const RESIDENT: u8 = 1;
/// The device copy holds what the host copy does.
const LINKED: u8 = 2;
/// The piece is on the device when an iteration starts.
const AT_START: u8 = 4;
/// And the plan claims a host copy then.
const CLAIMED: u8 = 8;

pub(super) fn check(
    graph: &Graph<'_>,
    plan: &Plan<'_>,
    pieces: &Pieces<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<(), PlanError> {
    let versions = Versions::new(graph, plan, scratch)?;
    let needed = scratch.take(plan.steps.len(), NOTHING)?;
    find_needed(graph, plan, &versions, needed, scratch)?;
    let tensors = graph.tensors().len();
    let mut walk = Walk {
        graph,
        plan,
        pieces,
        versions: &versions,
        state: Flags::new(pieces.len(), scratch)?,
        on_host: Numbers::new(pieces.len(), scratch)?,
        launched: scratch.take(tensors, NOTHING)?,
        current: scratch.take(tensors, 0u32)?,
        start: scratch.take(tensors, 0u32)?,
    };
    walk.start()?;
    walk.check_arena()?;
    // The second iteration finds what the first one left: an input that nobody brought in
    // again is on the device without a value.
    for _iteration in 0..2 {
        for ((at, step), &needed) in (0..).zip(plan.steps).zip(&*needed) {
            let place = Place::Step(at);
            match *step {
                Step::Prefetch(part) => walk.prefetch(place, at, part)?,
                Step::Launch(launched) => walk.launch(place, at, launched)?,
                Step::Offload(part) => walk.offload(place, at, part)?,
                Step::Evict(part) => walk.evict(place, part, needed)?,
            }
        }
        walk.end()?;
    }
    Ok(())
}

/// For each evict, the value that the launch that touches the tensor next reads, or, where no
/// launch does, that the next iteration reads of a state.
fn find_needed(
    graph: &Graph<'_>,
    plan: &Plan<'_>,
    versions: &Versions<'_>,
    needed: &mut [u32],
    scratch: &mut Scratch<'_>,
) -> Result<(), PlanError> {
    let mut scratch = scratch.reborrow();
    let later = scratch.take(graph.tensors().len(), NOTHING)?;
    for (id, tensor) in graph.tensor_ids().zip(graph.tensors()) {
        if tensor.kind == Kind::State {
            later[id.index()] = versions.last(id);
        }
    }
    for (step, needed) in plan.steps.iter().zip(needed).rev() {
        match *step {
            Step::Evict(part) => *needed = later[part.tensor.index()],
            Step::Launch(launched) => {
                for (_, tensor) in versions::writes(graph, launched) {
                    later[tensor.index()] = NOTHING;
                }
                for (slot, tensor) in versions::reads(graph, launched) {
                    later[tensor.index()] = versions.of_operand(slot);
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
    versions: &'w Versions<'w>,
    state: Flags<'w>,
    /// The value of each host copy.
    on_host: Numbers<'w>,
    /// The value of each tensor's device copy, where that is not linked to the host copy.
    launched: &'w mut [u32],
    /// The current value of each tensor; of an input after its last read, the next one.
    current: &'w mut [u32],
    /// What to add to the numbers of the values of this iteration.
    start: &'w mut [u32],
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

    /// Whether a value is current, or read by a launch after a step.
    fn is_valid(&self, tensor: TensorId, version: u32, at: u32) -> bool {
        let Some(number) = version.checked_sub(self.start[tensor.index()]) else { return false };
        version != NOTHING
            && (version == self.current[tensor.index()]
                || self.versions.is_read_after(tensor, number, at))
    }

    /// The longest part of a range, from its start, in which all pieces are linked or none is, and
    /// which.
    fn run(&mut self, of: &Range<usize>, range: &Range<usize>) -> (Range<usize>, bool) {
        self.longest(range, |walk, range| {
            let [all, any] = walk.state.look(of, range);
            (all & LINKED == any & LINKED).then_some(any & LINKED != 0)
        })
    }

    /// The longest part of a range, from its start, whose pieces are all alike, and how. A single
    /// piece is.
    fn longest<T: Default>(
        &mut self,
        range: &Range<usize>,
        mut alike: impl FnMut(&mut Self, &Range<usize>) -> Option<T>,
    ) -> (Range<usize>, T) {
        if let Some(how) = alike(self, range) {
            return (range.clone(), how);
        }
        let (mut least, mut most) = (range.start + 1, range.end);
        while most - least > 1 {
            let middle = usize::midpoint(least, most);
            match alike(self, &(range.start..middle)) {
                Some(_) => least = middle,
                None => most = middle,
            }
        }
        let found = range.start..least;
        let how = alike(self, &found).unwrap_or_default();
        (found, how)
    }

    /// Whether the host copies of a range all hold valid values.
    fn is_host_valid(&mut self, tensor: TensorId, range: &Range<usize>, at: u32) -> bool {
        let of = self.pieces.of(tensor);
        let mut rest = range.clone();
        while !rest.is_empty() {
            let (run, version) = self.longest(&rest, |walk, range| walk.on_host.of_all(&of, range));
            if !self.is_valid(tensor, version, at) {
                return false;
            }
            rest.start = run.end;
        }
        true
    }

    fn start(&mut self) -> Result<(), PlanError> {
        for (id, tensor) in self.graph.tensor_ids().zip(self.graph.tensors()) {
            if tensor.kind != Kind::Temporary {
                let of = self.pieces.of(id);
                self.on_host.set(&of, &of, 0);
                self.launched[id.index()] = 0;
            }
        }
        for (at, entry) in (0..).zip(self.plan.resident_at_start) {
            let (place, tensor) = (Place::Start(at), entry.part.tensor);
            if self.kind(tensor) == Kind::Temporary {
                return Err(PlanError::TemporaryAtStart(place, tensor));
            }
            let [_, any] = self.look(entry.part);
            if any & AT_START != 0 {
                return Err(PlanError::AlreadyResident(place, tensor));
            }
            // An input's fresh value lies on the host whatever the plan claims.
            if !entry.host_copy && self.kind(tensor) == Kind::State {
                let (of, range) = (self.pieces.of(tensor), self.pieces.of_part(entry.part));
                self.on_host.set(&of, &range, STALE);
            }
            let claimed = if entry.host_copy { CLAIMED } else { 0 };
            self.change(entry.part, 0, RESIDENT | AT_START | claimed);
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
                Kind::Input if self.versions.last_read(tensor).is_none() => {
                    return Err(PlanError::ArenaInput(tensor));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn prefetch(&mut self, place: Place, at: u32, part: Part) -> Result<(), PlanError> {
        let tensor = part.tensor;
        if self.pieces.in_arena(tensor) && self.kind(tensor) == Kind::Temporary {
            return Err(PlanError::ArenaStep(place, tensor));
        }
        let [_, any] = self.look(part);
        if any & RESIDENT != 0 {
            return Err(PlanError::AlreadyResident(place, tensor));
        }
        if !self.is_host_valid(tensor, &self.pieces.of_part(part), at) {
            return Err(PlanError::NoHostCopy(place, tensor));
        }
        self.change(part, 0, RESIDENT | LINKED);
        Ok(())
    }

    fn launch(&mut self, place: Place, at: u32, launched: Launched) -> Result<(), PlanError> {
        let graph = self.graph;
        for (slot, tensor) in versions::reads(graph, launched) {
            let version = self.start[tensor.index()] + self.versions.of_operand(slot);
            self.read(place, launched, tensor, version)?;
        }
        for (slot, tensor) in versions::writes(graph, launched) {
            let is_after_last_read =
                self.holds_next(tensor, at) && self.versions.last_read(tensor).is_some();
            if self.pieces.in_arena(tensor) && self.kind(tensor) == Kind::Input {
                self.check_arena_write(place, tensor, is_after_last_read)?;
            }
            let version = self.start[tensor.index()] + self.versions.of_operand(slot);
            // What the host holds after the last read is the next value, which this write does
            // not touch; on the device it leaves no value.
            self.launched[tensor.index()] = if is_after_last_read { NOTHING } else { version };
            if !launched.is_repeat && !is_after_last_read {
                self.current[tensor.index()] = version;
            }
            self.change(Part::whole(tensor), LINKED, RESIDENT);
        }
        for (_, tensor) in versions::reads(graph, launched) {
            if self.kind(tensor) == Kind::Input && self.versions.last_read(tensor) == Some(at) {
                self.forget_input(tensor);
            }
        }
        Ok(())
    }

    /// Checks that a launch finds a value of a tensor. From then on all of the tensor is what a
    /// launch has touched.
    fn read(
        &mut self,
        place: Place,
        launched: Launched,
        tensor: TensorId,
        version: u32,
    ) -> Result<(), PlanError> {
        let whole = Part::whole(tensor);
        if self.look(whole)[0] & RESIDENT == 0 {
            return Err(PlanError::NotResident(place, tensor));
        }
        let of = self.pieces.of(tensor);
        let mut rest = of.clone();
        while !rest.is_empty() {
            let (run, is_linked) = self.run(&of, &rest);
            let found = match is_linked {
                true => self.on_host.of_all(&of, &run),
                false => Some(self.launched[tensor.index()]),
            };
            if found != Some(version) {
                return Err(match launched {
                    Launched { op, is_repeat: true } => {
                        PlanError::RepeatReads { place, op, tensor }
                    }
                    _ => PlanError::NoValue(place, tensor),
                });
            }
            rest.start = run.end;
        }
        self.launched[tensor.index()] = version;
        self.change(whole, LINKED, 0);
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
        self.kind(tensor) == Kind::Input
            && self.versions.last_read(tensor).is_none_or(|last_read| at > last_read)
    }

    /// After an input's last read the host has the next iteration's value.
    fn forget_input(&mut self, tensor: TensorId) {
        let gone = if self.pieces.in_arena(tensor) { RESIDENT | LINKED } else { LINKED };
        self.change(Part::whole(tensor), gone, 0);
        self.launched[tensor.index()] = NOTHING;
        let next = self.next_start(tensor);
        let of = self.pieces.of(tensor);
        self.on_host.set(&of, &of, next);
        self.current[tensor.index()] = next;
    }

    fn offload(&mut self, place: Place, at: u32, part: Part) -> Result<(), PlanError> {
        let tensor = part.tensor;
        if self.pieces.in_arena(tensor) && self.kind(tensor) == Kind::Temporary {
            return Err(PlanError::ArenaStep(place, tensor));
        }
        if self.holds_next(tensor, at) {
            return Err(PlanError::NextInput(place, tensor));
        }
        if self.look(part)[0] & RESIDENT == 0 {
            return Err(PlanError::NotResident(place, tensor));
        }
        let of = self.pieces.of(tensor);
        let mut rest = self.pieces.of_part(part);
        while !rest.is_empty() {
            let (run, is_linked) = self.run(&of, &rest);
            let version = self.launched[tensor.index()];
            let is_valid = match is_linked {
                true => self.is_host_valid(tensor, &run, at),
                false => self.is_valid(tensor, version, at),
            };
            if !is_valid {
                return Err(PlanError::NoValue(place, tensor));
            }
            if !is_linked {
                self.on_host.set(&of, &run, version);
            }
            rest.start = run.end;
        }
        self.change(part, 0, LINKED);
        Ok(())
    }

    /// Gives back a part of which the next launch reads this value, or none.
    fn evict(&mut self, place: Place, part: Part, needed: u32) -> Result<(), PlanError> {
        let tensor = part.tensor;
        if self.pieces.in_arena(tensor) {
            return Err(PlanError::ArenaStep(place, tensor));
        }
        if self.look(part)[0] & RESIDENT == 0 {
            return Err(PlanError::NotResident(place, tensor));
        }
        let version = self.launched[tensor.index()];
        let is_needed = needed != NOTHING && version == self.start[tensor.index()] + needed;
        let of = self.pieces.of(tensor);
        let mut rest = self.pieces.of_part(part);
        while is_needed && !rest.is_empty() {
            let (run, is_linked) = self.run(&of, &rest);
            if !is_linked && self.on_host.of_all(&of, &run) != Some(version) {
                return Err(PlanError::ValueLost(place, tensor));
            }
            rest.start = run.end;
        }
        self.change(part, RESIDENT | LINKED, 0);
        Ok(())
    }

    /// The number of the value with which the next iteration begins.
    fn next_start(&self, tensor: TensorId) -> u32 {
        let last = self.start[tensor.index()] + self.versions.last(tensor);
        // Only a state's last value is the next iteration's first.
        if self.kind(tensor) == Kind::State { last } else { last + 1 }
    }

    /// The iteration ends as it began; the next one begins.
    fn end(&mut self) -> Result<(), PlanError> {
        for tensor in self.graph.tensor_ids() {
            let kind = self.kind(tensor);
            let next = self.next_start(tensor);
            let of = self.pieces.of(tensor);
            if !(kind == Kind::Temporary && self.pieces.in_arena(tensor)) {
                for piece in of.clone() {
                    self.check_end(tensor, piece)?;
                }
            }
            if kind == Kind::Input {
                self.on_host.set(&of, &of, next);
            }
            (self.start[tensor.index()], self.current[tensor.index()]) = (next, next);
        }
        Ok(())
    }

    fn check_end(&mut self, tensor: TensorId, piece: usize) -> Result<(), PlanError> {
        let (of, piece) = (self.pieces.of(tensor), piece..piece + 1);
        let [state, _] = self.state.look(&of, &piece);
        let has = |flag| state & flag != 0;
        if has(RESIDENT) && !has(AT_START) {
            return Err(PlanError::AlreadyResident(Place::End, tensor));
        }
        if has(AT_START) && !has(RESIDENT) {
            return Err(PlanError::NotResident(Place::End, tensor));
        }
        let current = self.current[tensor.index()];
        let is_on_host = self.on_host.of_all(&of, &piece) == Some(current);
        if has(CLAIMED) && !is_on_host {
            return Err(PlanError::NoHostCopy(Place::End, tensor));
        }
        let is_here =
            if has(LINKED) { is_on_host } else { self.launched[tensor.index()] == current };
        if self.kind(tensor) == Kind::State && has(RESIDENT) && !is_here {
            return Err(PlanError::NoValue(Place::End, tensor));
        }
        Ok(())
    }
}

/// The host copy of a state that is said to be on the device alone.
const STALE: u32 = NOTHING - 1;
