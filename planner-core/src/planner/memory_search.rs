//! Tries other divisions of memory once a good list is known: more tensors in the arena, slabs for
//! small tensors, and resident states in the arena. Keeps a division if the plan does not get
//! longer.

#![expect(
    clippy::indexing_slicing,
    reason = "the arena has an entry for each placed tensor, and tensor ids are those of the \
              sequence"
)]

use super::error::PlanningError;
use super::memory::Memory;
use super::recipe::Entrant;
use super::slabs;
use super::trials::{Candidate, Context, Search, Trials};
use super::uses::Uses;
use crate::plan::ArenaPlacement;
use crate::scratch::{Limits, Scratch, words};

/// Sizes in chunks, as numerators and denominators; tensors below a size lie in the arena. The
/// largest size comes first, since a tensor in the arena leaves no part of a chunk unused.
const SIZES: [(u64, u64); 6] = [(4, 1), (2, 1), (1, 1), (1, 2), (1, 4), (0, 1)];

/// The tensor is not in the arena.
const NOWHERE: u64 = u64::MAX;

/// Words of scratch for further divisions: the objects of all tensors with a fuller arena and,
/// twice, with resident states in the arena; and the offsets of the first arena while others are
/// tried.
pub(super) const fn scratch_words(limits: &Limits) -> usize {
    words::<u64>(limits.tensors).saturating_mul(4)
}

/// The best list so far, and the memory for which it was written.
pub(super) struct BestList<'s, 'm> {
    pub(super) best: Candidate<'s>,
    pub(super) memory: Memory<'m>,
}

/// Searches divisions of memory for better lists of an entrant.
pub(super) struct MemorySearch<'a, 's, 'd, 'r, 'g> {
    pub(super) trials: &'a mut Trials<'d, 'r>,
    pub(super) entrant: &'s Entrant,
    pub(super) uses: &'a Uses<'a>,
    pub(super) search: &'a mut Search<'g>,
    /// The arena of the best list.
    pub(super) arena: &'a mut [ArenaPlacement],
}

impl<'s> MemorySearch<'_, 's, '_, '_, '_> {
    /// The best list and memory after trying other divisions, or the given list and memory. A rule
    /// has only one list for each memory, so for rules only resident states move to the arena.
    pub(super) fn improve<'m>(
        &mut self,
        list: BestList<'s, 'm>,
        scratch: &mut Scratch<'m>,
    ) -> Result<BestList<'s, 'm>, PlanningError> {
        if !self.entrant.is_auto() {
            return self.move_staying_to_arena(list, scratch);
        }
        let list = self.with_slabs(list, scratch)?;
        if self.entrant.has_small_arena() {
            return Ok(list);
        }
        let list = self.move_staying_to_arena(list, scratch)?;
        let (list, is_fuller) = self.fill_arena(list, scratch)?;
        if is_fuller { self.move_staying_to_arena(list, scratch) } else { Ok(list) }
    }

    /// Tries larger tensors in the arena; also returns whether the arena has become fuller. In the
    /// arena a tensor leaves no part of a chunk unused, but no other tensor can use its bytes while
    /// it is away; only a list shows which costs less.
    fn fill_arena<'m>(
        &mut self,
        BestList { best, memory }: BestList<'s, 'm>,
        scratch: &mut Scratch<'m>,
    ) -> Result<(BestList<'s, 'm>, bool), PlanningError> {
        let task = self.trials.task;
        if memory.pools() > 1 {
            return Ok((BestList { best, memory }, false));
        }
        let (has_tried, fuller) = self.try_sizes(best, &memory, &mut scratch.reborrow())?;
        if let Some((below_bytes, best)) = fuller {
            let fuller = Memory::with_arena(task, below_bytes, self.arena, scratch)?;
            let memory = fuller.ok_or(PlanningError::Stuck)?;
            return Ok((BestList { best, memory }, true));
        }
        if !has_tried {
            return Ok((BestList { best, memory }, false));
        }
        let context =
            Context { memory: &memory, uses: self.uses, arena: &self.arena[..memory.placed] };
        let again = self.trials.again(best, &context, self.search, scratch)?;
        Ok((BestList { best: again.unwrap_or(best), memory }, false))
    }

    /// Whether any size was tried, and the first size for which the tensors below it fit into the
    /// arena without a longer list. If there is none, restores the arena.
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
        let sizes_bytes = SIZES.map(|(times, part)| {
            task.machine.chunk_bytes.saturating_mul(times).checked_div(part).unwrap_or(0)
        });
        let mut has_tried = false;
        for (&below_bytes, &smaller_bytes) in sizes_bytes.iter().zip(&sizes_bytes[1..]) {
            // If no tensor of this size leaves part of a chunk unused, the next smaller size gives
            // the same arena.
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

    /// A list that is not longer than the best one with all tensors below a size in the arena.
    fn try_arena(
        &mut self,
        best: Candidate<'s>,
        below_bytes: u64,
        scratch: &mut Scratch<'_>,
    ) -> Result<Option<Candidate<'s>>, PlanningError> {
        let mut scratch = scratch.reborrow();
        let fuller = Memory::with_arena(self.trials.task, below_bytes, self.arena, &mut scratch)?;
        let Some(memory) = &fuller else { return Ok(None) };
        let context = Context { memory, uses: self.uses, arena: &self.arena[..memory.placed] };
        let [_, rounds] = self.entrant.rounds(self.trials.task);
        self.trials.better(rounds.fewer(), best, &context, self.search, &mut scratch)
    }

    /// Tries slabs for small tensors, but only if no op waits for memory. Chunks serve all tensors
    /// in turn, so if memory is short, a part of it that only some tensors can use costs more time
    /// than half-empty chunks do (0.5 to 3 % on recorded training steps).
    fn with_slabs<'m>(
        &mut self,
        BestList { best, memory }: BestList<'s, 'm>,
        scratch: &mut Scratch<'m>,
    ) -> Result<BestList<'s, 'm>, PlanningError> {
        if !best.is_ideal {
            return Ok(BestList { best, memory });
        }
        let lists = self.trials.lists(best.lengths);
        let Some(with_slabs) = slabs::divide(self.trials.task, &memory, lists, scratch)? else {
            return Ok(BestList { best, memory });
        };
        self.keep_better(best, [memory, with_slabs], scratch)
    }

    /// Tries the arena for states that never leave the device.
    fn move_staying_to_arena<'m>(
        &mut self,
        BestList { best, memory }: BestList<'s, 'm>,
        scratch: &mut Scratch<'m>,
    ) -> Result<BestList<'s, 'm>, PlanningError> {
        let lists = self.trials.lists(best.lengths);
        let other = memory.with_staying_states(self.trials.task, lists, self.arena, scratch)?;
        let Some(other) = other else { return Ok(BestList { best, memory }) };
        self.keep_better(best, [memory, other], scratch)
    }

    /// The other memory with a list that is not longer than the best one; or the own memory, with
    /// the best list written again.
    fn keep_better<'m>(
        &mut self,
        best: Candidate<'s>,
        [own, other]: [Memory<'m>; 2],
        scratch: &mut Scratch<'_>,
    ) -> Result<BestList<'s, 'm>, PlanningError> {
        let (uses, arena) = (self.uses, &*self.arena);
        let contexts =
            [&own, &other].map(|memory| Context { memory, uses, arena: &arena[..memory.placed] });
        let (best, is_other) =
            self.trials.keep_better(self.entrant, best, contexts, self.search, scratch)?;
        Ok(BestList { best, memory: if is_other { other } else { own } })
    }
}
