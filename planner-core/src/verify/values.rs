//! Proves that every launch reads the right values, that no value is lost while it is needed, and
//! that an iteration ends in the state in which it began (`docs/format.md`, rules 2 to 6).

#![expect(
    clippy::indexing_slicing,
    reason = "ids are those of the checked graph, and `on_device_only` has an entry for each \
              tensor"
)]

use super::copies::{Change, Copies, Held};
use super::versions::Versions;
use crate::graph::{Graph, Kind, Launched, OpId, TensorId};
use crate::pieces::Pieces;
use crate::plan::{Location, Part, Plan, PlanError, Step};
use crate::ranges::Flags;
use crate::scratch::{Limits, Scratch, total, words};

pub(super) const fn scratch_words(limits: &Limits) -> usize {
    total([
        Versions::scratch_words(limits),
        words::<u32>(limits.steps),
        Flags::scratch_words(limits),
        Copies::scratch_words(limits),
        words::<u32>(limits.tensors),
    ])
}

/// The piece is on the device.
const RESIDENT: u8 = 1;
/// The piece is on the device when an iteration starts.
const AT_START: u8 = 2;
/// The plan claims that the host holds the value of this piece then, too.
const CLAIMED: u8 = 4;

/// Checks the values. Requires that the list launches every op for the first time exactly once, in
/// an order that keeps the dependencies. O((steps + operands) log pieces).
pub(super) fn check(
    graph: &Graph<'_>,
    plan: &Plan<'_>,
    pieces: &Pieces<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<(), PlanError> {
    let versions = Versions::new(pieces, scratch)?;
    let needed = scratch.take(plan.steps.len(), Held::NONE.version)?;
    versions.find_needed(needed, scratch)?;
    let mut walk = Walk {
        graph,
        plan,
        pieces,
        versions: &versions,
        flags: Flags::new(pieces.len(), scratch)?,
        copies: Copies::new(pieces.len(), scratch)?,
        on_device_only: scratch.take(graph.tensors().len(), Held::NONE.version)?,
    };
    walk.start()?;
    walk.check_arena()?;
    // The second iteration starts with what the first one left; for example, an input that no step
    // prefetched again is on the device without a value. If the second iteration would find every
    // value that the first one found, it cannot break a rule that the first one kept.
    for _iteration in 0..2 {
        for ((at, step), &needed) in (0..).zip(plan.steps).zip(&*needed) {
            let location = Location::Step(at);
            match *step {
                Step::Prefetch(part) => walk.prefetch(location, at, part)?,
                Step::Launch(launched) => walk.launch(location, at, launched)?,
                Step::Host(op) => walk.run_on_host(location, at, op)?,
                Step::Offload(part) => walk.offload(location, at, part)?,
                Step::Evict(part) => walk.evict(location, part, needed)?,
            }
        }
        if walk.end()? {
            break;
        }
        walk.start_again();
    }
    Ok(())
}

struct Walk<'w> {
    graph: &'w Graph<'w>,
    plan: &'w Plan<'w>,
    pieces: &'w Pieces<'w>,
    versions: &'w Versions<'w, 'w>,
    flags: Flags<'w>,
    copies: Copies<'w>,
    /// For each tensor, the version of all resident pieces whose host copy holds another version,
    /// if a launch, which writes the whole tensor, wrote the device copies. No version if an op on
    /// the host wrote the tensor last.
    on_device_only: &'w mut [u32],
}

impl Walk<'_> {
    fn kind(&self, tensor: TensorId) -> Kind {
        self.graph.tensor(tensor).kind
    }

    fn start(&mut self) -> Result<(), PlanError> {
        for (id, tensor) in self.graph.tensor_ids().zip(self.graph.tensors()) {
            if !tensor.kind.is_made() {
                self.copies.change(self.pieces.whole(id), Change::host(self.first(id)));
            }
            if tensor.kind == Kind::State {
                self.on_device_only[id.index()] = 0;
            }
        }
        for (at, entry) in (0..).zip(self.plan.resident_at_start) {
            let (location, tensor) = (Location::Start(at), entry.part.tensor);
            if self.kind(tensor).is_made() {
                return Err(PlanError::NoValueAtStart(location, tensor));
            }
            let span = self.pieces.span(entry.part);
            let [_, any] = self.flags.query(span);
            if any & AT_START != 0 {
                return Err(PlanError::AlreadyResident(location, tensor));
            }
            let claimed = if entry.host_copy { CLAIMED } else { 0 };
            self.flags.change(span, 0, RESIDENT | AT_START | claimed);
            // The host has an input's fresh value, whatever the plan claims.
            let is_stale = !entry.host_copy && self.kind(tensor) == Kind::State;
            let held = self.first(tensor);
            let on_host = if is_stale { Held::NONE } else { held };
            self.copies.change(span, Change::both(held, on_host));
        }
        Ok(())
    }

    fn check_arena(&mut self) -> Result<(), PlanError> {
        for placement in self.plan.arena {
            let tensor = placement.tensor;
            match self.kind(tensor) {
                Kind::State if self.flags.query(self.pieces.whole(tensor))[0] & AT_START == 0 => {
                    return Err(PlanError::ArenaStateNotResident(tensor));
                }
                Kind::Input if self.versions.is_unread(tensor) => {
                    return Err(PlanError::ArenaInput(tensor));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn prefetch(&mut self, location: Location, at: u32, part: Part) -> Result<(), PlanError> {
        let tensor = part.tensor;
        if self.pieces.in_arena(tensor) && self.kind(tensor) == Kind::Temporary {
            return Err(PlanError::ArenaStep(location, tensor));
        }
        let span = self.pieces.span(part);
        let [_, any] = self.flags.query(span);
        if any & RESIDENT != 0 {
            return Err(PlanError::AlreadyResident(location, tensor));
        }
        if self.copies.query(span).host.valid_until <= at {
            return Err(PlanError::NoHostCopy(location, tensor));
        }
        self.flags.change(span, 0, RESIDENT);
        self.copies.change(span, Change::PREFETCH);
        Ok(())
    }

    fn launch(&mut self, location: Location, at: u32, launched: Launched) -> Result<(), PlanError> {
        for (tensor, version) in self.versions.reads(launched) {
            self.check_read(location, launched, tensor, version)?;
        }
        for (tensor, version) in self.versions.writes(launched) {
            self.write(location, at, tensor, version)?;
        }
        self.forget_inputs(launched, at);
        Ok(())
    }

    /// After the last read of an input, the host has the next iteration's value.
    fn forget_inputs(&mut self, launched: Launched, at: u32) {
        for tensor in self.pieces.read_by(launched) {
            if self.kind(tensor) == Kind::Input && self.versions.is_last_read(tensor, at) {
                self.forget_input(tensor);
            }
        }
    }

    /// Checks that a tensor is resident with the version that the launch reads: the current value,
    /// or, for a repeat, the version that the first launch of the op read.
    fn check_read(
        &mut self,
        location: Location,
        launched: Launched,
        tensor: TensorId,
        version: u32,
    ) -> Result<(), PlanError> {
        let span = self.pieces.whole(tensor);
        let [all, _] = self.flags.query(span);
        let is_resident = all & RESIDENT != 0;
        let op = launched.op;
        match is_resident && self.copies.query(span).device.version == version {
            true => Ok(()),
            false if launched.is_repeat => Err(PlanError::RepeatReads { location, op, tensor }),
            false if is_resident => Err(PlanError::NoValue(location, tensor)),
            false => Err(PlanError::NotResident(location, tensor)),
        }
    }

    /// Checks that the host holds the current values that the op reads, and gives it the values
    /// that the op writes. Device copies keep their contents.
    fn run_on_host(&mut self, location: Location, at: u32, op: OpId) -> Result<(), PlanError> {
        let launched = Launched::first(op);
        for (tensor, version) in self.versions.reads(launched) {
            if self.copies.query(self.pieces.whole(tensor)).host.version != version {
                return Err(PlanError::HostReads { location, op, tensor });
            }
        }
        for (tensor, version) in self.versions.writes(launched) {
            let held = self.versions.held(tensor, version);
            self.copies.change(self.pieces.whole(tensor), Change::host(held));
            // No device copy has the current value any more.
            self.on_device_only[tensor.index()] = Held::NONE.version;
        }
        self.forget_inputs(launched, at);
        Ok(())
    }

    fn write(
        &mut self,
        location: Location,
        at: u32,
        tensor: TensorId,
        version: u32,
    ) -> Result<(), PlanError> {
        let is_input = self.kind(tensor) == Kind::Input;
        let is_after_reads = is_input && self.versions.is_after_reads(tensor, at);
        if is_input && self.pieces.in_arena(tensor) {
            self.check_arena_write(location, tensor, is_after_reads)?;
        }
        // After the last read, the host holds the next value, which this write does not change. On
        // the device, the write leaves no value.
        let held = if is_after_reads { Held::NONE } else { self.versions.held(tensor, version) };
        let span = self.pieces.whole(tensor);
        self.flags.change(span, 0, RESIDENT);
        self.copies.change(span, Change::device(held));
        self.on_device_only[tensor.index()] = held.version;
        Ok(())
    }

    /// An input in the arena must be resident before an op writes it, since its only prefetch
    /// cannot come later. And a write after the last read would destroy its next value.
    fn check_arena_write(
        &mut self,
        location: Location,
        tensor: TensorId,
        is_after_reads: bool,
    ) -> Result<(), PlanError> {
        if is_after_reads {
            return Err(PlanError::ArenaInput(tensor));
        }
        let [all, _] = self.flags.query(self.pieces.whole(tensor));
        if all & RESIDENT == 0 {
            return Err(PlanError::ArenaInputAbsent(location, tensor));
        }
        Ok(())
    }

    fn forget_input(&mut self, tensor: TensorId) {
        let span = self.pieces.whole(tensor);
        if self.pieces.in_arena(tensor) {
            self.flags.change(span, RESIDENT, 0);
        }
        self.copies.change(span, Change::both(Held::NONE, Held::NEXT));
        self.on_device_only[tensor.index()] = Held::NONE.version;
    }

    fn offload(&mut self, location: Location, at: u32, part: Part) -> Result<(), PlanError> {
        let tensor = part.tensor;
        if self.pieces.in_arena(tensor) && self.kind(tensor) == Kind::Temporary {
            return Err(PlanError::ArenaStep(location, tensor));
        }
        if self.kind(tensor) == Kind::Input && self.versions.is_after_reads(tensor, at) {
            return Err(PlanError::NextInput(location, tensor));
        }
        let span = self.pieces.span(part);
        let [all, _] = self.flags.query(span);
        if all & RESIDENT == 0 {
            return Err(PlanError::NotResident(location, tensor));
        }
        if self.copies.query(span).device.valid_until <= at {
            return Err(PlanError::NoValue(location, tensor));
        }
        self.copies.change(span, Change::OFFLOAD);
        Ok(())
    }

    fn evict(&mut self, location: Location, part: Part, needed: u32) -> Result<(), PlanError> {
        let tensor = part.tensor;
        if self.pieces.in_arena(tensor) {
            return Err(PlanError::ArenaStep(location, tensor));
        }
        let span = self.pieces.span(part);
        let [all, _] = self.flags.query(span);
        if all & RESIDENT == 0 {
            return Err(PlanError::NotResident(location, tensor));
        }
        let pair = self.copies.query(span);
        if pair.differ == 1 {
            let version = match pair.device.version {
                Held::MIXED => self.on_device_only[tensor.index()],
                version => version,
            };
            let is_kept = matches!(self.kind(tensor), Kind::State | Kind::Output);
            let is_result = is_kept && version == self.versions.last(tensor);
            if is_result || (version != Held::NONE.version && version == needed) {
                return Err(PlanError::ValueLost(location, tensor));
            }
        }
        self.flags.change(span, RESIDENT, 0);
        self.copies.change(span, Change::device(Held::NONE));
        Ok(())
    }

    /// Checks that the end of the list matches its start. Returns whether all values are where they
    /// were at the start of the first iteration.
    fn end(&mut self) -> Result<bool, PlanError> {
        let mut all_there = true;
        for tensor in self.graph.tensor_ids() {
            let kind = self.kind(tensor);
            if kind == Kind::Temporary && self.pieces.in_arena(tensor) {
                continue;
            }
            let last = self.last(tensor);
            for piece in self.pieces.of(tensor) {
                let span = self.pieces.span_of(tensor, piece);
                let [flags, _] = self.flags.query(span);
                let has = |flag| flags & flag != 0;
                // An output in the arena stays resident.
                let stays = kind == Kind::Output && self.pieces.in_arena(tensor);
                if has(RESIDENT) && !has(AT_START) && !stays {
                    return Err(PlanError::AlreadyResident(Location::End, tensor));
                }
                if has(AT_START) && !has(RESIDENT) {
                    return Err(PlanError::NotResident(Location::End, tensor));
                }
                let held = self.copies.query(span);
                if has(CLAIMED) && held.host.version != last {
                    return Err(PlanError::NoHostCopy(Location::End, tensor));
                }
                let on_device = has(AT_START) && held.device.version == last;
                let is_lost = match kind {
                    Kind::State => !on_device && held.host.version != last,
                    Kind::Output => held.host.version != last,
                    Kind::Input | Kind::Temporary => false,
                };
                if is_lost {
                    return Err(PlanError::ValueLost(Location::End, tensor));
                }
                all_there &= on_device || !has(AT_START);
            }
        }
        Ok(all_there)
    }

    /// The copy of a tensor that an iteration begins with.
    fn first(&self, tensor: TensorId) -> Held {
        let is_next = self.kind(tensor) == Kind::Input && self.versions.is_unread(tensor);
        if is_next { Held::NEXT } else { self.versions.held(tensor, 0) }
    }

    /// The version that the next iteration begins with.
    fn last(&self, tensor: TensorId) -> u32 {
        let is_input = self.kind(tensor) == Kind::Input;
        if is_input { Held::NEXT.version } else { self.versions.last(tensor) }
    }

    /// Makes the values that the last iteration left the values that the next one begins with. The
    /// host gets fresh inputs.
    fn start_again(&mut self) {
        for tensor in self.graph.tensor_ids() {
            let kind = self.kind(tensor);
            if kind == Kind::Temporary && self.pieces.in_arena(tensor) {
                continue;
            }
            let (last, first) = (self.last(tensor), self.first(tensor));
            let next = |held: Held| {
                let is_last = !kind.is_made() && held.version == last;
                if is_last { first } else { Held::NONE }
            };
            for piece in self.pieces.of(tensor) {
                let span = self.pieces.span_of(tensor, piece);
                let held = self.copies.query(span);
                let host = if kind == Kind::Input { first } else { next(held.host) };
                self.copies.change(span, Change::both(next(held.device), host));
            }
            match kind {
                Kind::State => {
                    // If the host holds the whole tensor, no value is only on the device.
                    let held = self.copies.query(self.pieces.whole(tensor)).host;
                    let is_on_host = held.version == first.version;
                    self.on_device_only[tensor.index()] =
                        if is_on_host { Held::NONE.version } else { first.version };
                }
                Kind::Input => self.on_device_only[tensor.index()] = Held::NONE.version,
                Kind::Temporary | Kind::Output => {}
            }
        }
    }
}
