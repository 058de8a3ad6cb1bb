//! Memory that is divided anew once a good list is known: more tensors in the arena, slabs for small
//! ones, and states that never move in the arena. A change is kept if the plan is no longer for it.

use super::error::PlanningError;
use super::memory::Memory;
use super::recipe::Entrant;
use super::slabs;
use super::trials::{Basis, Candidate, Search, Trials};
use super::uses::Uses;
use crate::plan::ArenaPlacement;
use crate::scratch::{Limits, Scratch, words};

/// The sizes in chunks, as numerators and denominators, below which tensors go to the arena instead.
/// The largest comes first: what lies in the arena fills no chunk in part.
const SIZES: [(u64, u64); 6] = [(4, 1), (2, 1), (1, 1), (1, 2), (1, 4), (0, 1)];

/// Not in the arena.
const NOWHERE: u64 = u64::MAX;

/// Words that are kept beside the memory that is divided anew: the objects of tensors where more lie in
/// the arena and twice where states settle; and while others are tried, the offsets of the first.
pub(super) const fn scratch_words(limits: &Limits) -> usize {
    words::<u64>(limits.tensors).saturating_mul(4)
}

/// The best list so far, and the memory that it is for.
pub(super) struct Divided<'s, 'm> {
    pub(super) best: Candidate<'s>,
    pub(super) memory: Memory<'m>,
}

/// Tries lists of an entrant in other memory.
pub(super) struct Divider<'a, 's, 'd, 'r, 'g> {
    pub(super) trials: &'a mut Trials<'d, 'r>,
    pub(super) entrant: &'s Entrant,
    pub(super) uses: &'a Uses<'a>,
    pub(super) search: &'a mut Search<'g>,
    /// The arena of the best list.
    pub(super) arena: &'a mut [ArenaPlacement],
}

impl<'s> Divider<'_, 's, '_, '_, '_> {
    /// A list and its memory once memory is divided anew, or the same again. Rules have one list for
    /// each memory, so that only states settle.
    pub(super) fn divide<'m>(
        &mut self,
        divided: Divided<'s, 'm>,
        scratch: &mut Scratch<'m>,
    ) -> Result<Divided<'s, 'm>, PlanningError> {
        if !self.entrant.is_auto() {
            return self.settle(divided, scratch);
        }
        let divided = self.with_slabs(divided, scratch)?;
        let divided = self.settle(divided, scratch)?;
        let (divided, is_fuller) = self.fill_arena(divided, scratch)?;
        if is_fuller { self.settle(divided, scratch) } else { Ok(divided) }
    }

    /// The same once larger tensors lie in the arena too, and whether they do. There a tensor fills no
    /// chunk in part, but nothing else can have its bytes while it is away: only a list tells which
    /// costs less.
    fn fill_arena<'m>(
        &mut self,
        Divided { best, memory }: Divided<'s, 'm>,
        scratch: &mut Scratch<'m>,
    ) -> Result<(Divided<'s, 'm>, bool), PlanningError> {
        let task = self.trials.task;
        if memory.pools() > 1 {
            return Ok((Divided { best, memory }, false));
        }
        let (has_tried, fuller) = self.try_sizes(best, &memory, &mut scratch.reborrow())?;
        if let Some((below_bytes, best)) = fuller {
            let fuller = Memory::with_arena(task, below_bytes, self.arena, scratch)?;
            let memory = fuller.ok_or(PlanningError::Stuck)?;
            return Ok((Divided { best, memory }, true));
        }
        if !has_tried {
            return Ok((Divided { best, memory }, false));
        }
        let basis = Basis { memory: &memory, uses: self.uses, arena: &self.arena[..memory.placed] };
        let again = self.trials.again(best, &basis, self.search, scratch)?;
        Ok((Divided { best: again.unwrap_or(best), memory }, false))
    }

    /// Whether a size was tried; the first below which all tensors may lie in the arena, and its list.
    /// Where there is none, the arena is as before.
    fn try_sizes(
        &mut self,
        best: Candidate<'s>,
        memory: &Memory<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<(bool, Option<(u64, Candidate<'s>)>), PlanningError> {
        let task = self.trials.task;
        let offsets = scratch.take(task.sequence.tensors().len(), NOWHERE)?;
        for placement in &self.arena[..memory.placed] {
            offsets[placement.tensor.index()] = placement.offset_bytes;
        }
        let sizes_bytes =
            SIZES.map(|(times, part)| task.machine.chunk_bytes.saturating_mul(times) / part);
        let mut has_tried = false;
        for (&below_bytes, &smaller_bytes) in sizes_bytes.iter().zip(&sizes_bytes[1..]) {
            // Where no tensor of this size gains by it, the next smaller one is the same.
            let added = smaller_bytes.max(memory.below_bytes())..below_bytes;
            if memory.fills_in_part(task, added) {
                has_tried = true;
                if let Some(better) = self.try_arena(best, below_bytes, scratch)? {
                    return Ok((true, Some((below_bytes, better))));
                }
            }
        }
        let offsets = task.sequence.tensor_ids().zip(&*offsets);
        let placed = offsets.filter(|&(_, &offset_bytes)| offset_bytes != NOWHERE);
        for (slot, (tensor, &offset_bytes)) in self.arena.iter_mut().zip(placed) {
            *slot = ArenaPlacement { tensor, offset_bytes };
        }
        Ok((has_tried, None))
    }

    /// A list that is no longer than the best where all tensors below a size lie in the arena.
    fn try_arena(
        &mut self,
        best: Candidate<'s>,
        below_bytes: u64,
        scratch: &mut Scratch<'_>,
    ) -> Result<Option<Candidate<'s>>, PlanningError> {
        let mut scratch = scratch.reborrow();
        let fuller = Memory::with_arena(self.trials.task, below_bytes, self.arena, &mut scratch)?;
        let Some(memory) = &fuller else { return Ok(None) };
        let basis = Basis { memory, uses: self.uses, arena: &self.arena[..memory.placed] };
        let [_, rounds] = self.entrant.rounds(self.trials.task.sequence);
        self.trials.better(rounds.fewer(), best, &basis, self.search, &mut scratch)
    }

    /// The same once what is small has slabs of its own. Only where no op waits for memory anyway:
    /// chunks serve all tensors in turn, so where memory is short a part of it for some alone costs
    /// more time than their half-empty chunks do (0.5 to 3 % on recorded training steps).
    fn with_slabs<'m>(
        &mut self,
        Divided { best, memory }: Divided<'s, 'm>,
        scratch: &mut Scratch<'m>,
    ) -> Result<Divided<'s, 'm>, PlanningError> {
        if !best.is_ideal {
            return Ok(Divided { best, memory });
        }
        let lists = self.trials.lists(best.lengths);
        let Some(divided) = slabs::divide(self.trials.task, &memory, lists, scratch)? else {
            return Ok(Divided { best, memory });
        };
        self.keep_better(best, [memory, divided], scratch)
    }

    /// The same once the states that stay for good lie in the arena.
    fn settle<'m>(
        &mut self,
        Divided { best, memory }: Divided<'s, 'm>,
        scratch: &mut Scratch<'m>,
    ) -> Result<Divided<'s, 'm>, PlanningError> {
        let lists = self.trials.lists(best.lengths);
        let settled = memory.settle(self.trials.task, lists, self.arena, scratch)?;
        let Some(settled) = settled else { return Ok(Divided { best, memory }) };
        self.keep_better(best, [memory, settled], scratch)
    }

    /// The other memory with a list that is no longer than the best, or the same again, written.
    fn keep_better<'m>(
        &mut self,
        best: Candidate<'s>,
        [own, other]: [Memory<'m>; 2],
        scratch: &mut Scratch<'_>,
    ) -> Result<Divided<'s, 'm>, PlanningError> {
        let (uses, arena) = (self.uses, &*self.arena);
        let bases =
            [&own, &other].map(|memory| Basis { memory, uses, arena: &arena[..memory.placed] });
        let (best, is_other) =
            self.trials.keep_better(self.entrant, best, bases, self.search, scratch)?;
        Ok(Divided { best, memory: if is_other { other } else { own } })
    }
}
