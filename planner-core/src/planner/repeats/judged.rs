//! The judgement of a list of launches, and the lists that a round has judged.

#![expect(clippy::indexing_slicing, reason = "positions are below `REMEMBERED`")]

use crate::planner::pressure::Pressure;
use crate::scratch::{Limits, OutOfScratch, Scratch};

/// The number of lists that a round remembers. A balance: each one keeps its pressures in scratch.
const REMEMBERED: usize = 24;

/// The bytes that the host lacks, and the cost of the plan.
pub(super) type Rank = (u64, (u64, u64));

/// The judgement of a sequence by its best paced list.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Judged {
    /// The [cost](crate::plan::Prediction::cost) of the list's plan, if a list fits.
    pub(super) cost: Option<(u64, u64)>,
    /// The bytes that the host lacked for the first choice.
    pub(super) excess_bytes: u64,
}

impl Judged {
    /// No judgement yet; any list is better.
    pub(super) const UNKNOWN: Self = Self { cost: None, excess_bytes: u64::MAX };

    pub(super) fn rank(&self) -> Rank {
        match (self.cost, self.excess_bytes) {
            (Some(cost), _) => (0, cost),
            (None, 0) => (u64::MAX, (0, 0)),
            (None, excess_bytes) => (excess_bytes, (0, 0)),
        }
    }
}

/// A list that a round has judged.
pub(super) struct KnownList<'k> {
    pub(super) judged: Judged,
    /// If the list fits, its pressures, by the launches of the round's first sequence.
    pub(super) pressure: Pressure<'k>,
    /// The hash of its launches. `None` before a list was judged.
    hash: Option<u64>,
}

/// The last lists that a round has judged. Many prices lead to the same list.
pub(super) struct Known<'k> {
    lists: heapless::Vec<KnownList<'k>, REMEMBERED>,
    /// The position of the oldest list.
    oldest: usize,
}

impl<'k> Known<'k> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        Pressure::scratch_words(limits).saturating_mul(REMEMBERED)
    }

    /// No list, for sequences of `launches`.
    pub(super) fn new(launches: usize, scratch: &mut Scratch<'k>) -> Result<Self, OutOfScratch> {
        let mut lists = heapless::Vec::new();
        for _ in 0..REMEMBERED {
            let pressure = Pressure::new(launches, scratch)?;
            let _ = lists.push(KnownList { judged: Judged::default(), pressure, hash: None });
        }
        Ok(Self { lists, oldest: 0 })
    }

    /// The list with these launches. Calls `judge` if it is not known, and forgets the oldest list.
    pub(super) fn get_or_judge<E>(
        &mut self,
        hash: u64,
        judge: impl FnOnce(&mut Pressure<'k>) -> Result<Judged, E>,
    ) -> Result<&KnownList<'k>, E> {
        if let Some(at) = self.lists.iter().position(|list| list.hash == Some(hash)) {
            return Ok(&self.lists[at]);
        }
        let list = &mut self.lists[self.oldest];
        self.oldest = self.oldest.saturating_add(1) % REMEMBERED;
        list.hash = None;
        list.judged = judge(&mut list.pressure)?;
        list.hash = Some(hash);
        Ok(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAUNCHES: usize = 3;

    #[test]
    fn a_list_is_known_until_it_is_the_oldest() {
        let mut memory = [0; 1024];
        let mut scratch = Scratch::new(&mut memory);
        let mut known = Known::new(LAUNCHES, &mut scratch).unwrap();
        let mut judgements = 0;
        let mut judge = |known: &mut Known<'_>, hash: u64| {
            let before = judgements;
            let list = known.get_or_judge(hash, |pressure| {
                judgements += 1;
                pressure.up.fill(hash as u8);
                Ok::<_, OutOfScratch>(Judged { cost: Some((hash, 0)), excess_bytes: 0 })
            });
            let list = list.unwrap();
            assert_eq!((list.judged.cost, list.pressure.up[0]), (Some((hash, 0)), hash as u8));
            judgements > before
        };
        for list in 0..REMEMBERED as u64 {
            assert!(judge(&mut known, list));
        }
        assert!(!judge(&mut known, 0));
        assert!(judge(&mut known, REMEMBERED as u64));
        assert!(judge(&mut known, 0), "it was the oldest");
        assert!(!judge(&mut known, 2));
    }
}
