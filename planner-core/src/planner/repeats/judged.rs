//! How lists of launches are judged, and which lists have been.

use crate::planner::pressure::Pressure;
use crate::scratch::{Limits, OutOfScratch, Scratch};

/// The number of lists in a round that use learned pressures.
pub(super) const LEARNED: usize = 24;

/// The number of lists that a round remembers.
const REMEMBERED: usize = 48;

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
    pub(super) fn rank(&self) -> Rank {
        match (self.cost, self.excess_bytes) {
            (Some(cost), _) => (0, cost),
            (None, 0) => (u64::MAX, (0, 0)),
            (None, excess_bytes) => (excess_bytes, (0, 0)),
        }
    }
}

/// A list that a round has judged.
struct KnownList<'k> {
    hash: u64,
    judged: Judged,
    /// The pressures of the list, by the launches of the round's first sequence. None if the list
    /// does not fit, or if its pressures were not needed.
    pressure: Option<Pressure<'k>>,
}

/// The lists that a round has judged. Many prices lead to the same list.
pub(super) struct Known<'k> {
    /// The [`near_ns`](crate::planner::trials::Judging::near_ns) with which all were judged.
    near_ns: u64,
    lists: heapless::Vec<KnownList<'k>, REMEMBERED>,
    /// Pressures that no list has.
    spare: heapless::Vec<Pressure<'k>, LEARNED>,
}

impl<'k> Known<'k> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        Pressure::scratch_words(limits).saturating_mul(LEARNED)
    }

    /// No list, for sequences of `launches`.
    pub(super) fn new(launches: usize, scratch: &mut Scratch<'k>) -> Result<Self, OutOfScratch> {
        let mut spare = heapless::Vec::new();
        for _ in 0..LEARNED {
            let _ = spare.push(Pressure::new(launches, scratch)?);
        }
        Ok(Self { near_ns: u64::MAX, lists: heapless::Vec::new(), spare })
    }

    /// The judgement of a list, if it is known for this `near_ns`. If there is a learner, it
    /// approaches the pressures of the list, without which a list that fits is not known.
    pub(super) fn get(
        &mut self,
        hash: u64,
        near_ns: u64,
        learner: Option<&mut Pressure<'_>>,
    ) -> Option<Judged> {
        if near_ns != self.near_ns {
            self.near_ns = near_ns;
            while let Some(known) = self.lists.pop() {
                self.keep_spare(known.pressure);
            }
        }
        let known = self.lists.iter().find(|known| known.hash == hash)?;
        match (learner, &known.pressure) {
            (Some(learner), Some(pressure)) => learner.approach(pressure),
            (Some(_), None) if known.judged.cost.is_some() => return None,
            _ => {}
        }
        Some(known.judged)
    }

    /// Memory for the pressures of a list.
    pub(super) fn take_spare(&mut self) -> Option<Pressure<'k>> {
        self.spare.pop().or_else(|| self.lists.iter_mut().find_map(|known| known.pressure.take()))
    }

    /// Remembers a list. If it fits, its pressures are remembered too.
    pub(super) fn add(&mut self, hash: u64, judged: Judged, mut pressure: Option<Pressure<'k>>) {
        let of_list = judged.cost.and_then(|_| pressure.take());
        self.keep_spare(pressure);
        let list = KnownList { hash, judged, pressure: of_list };
        if let Some(known) = self.lists.iter_mut().find(|known| known.hash == hash) {
            *known = list;
        } else if let Err(forgotten) = self.lists.push(list) {
            self.keep_spare(forgotten.pressure);
        }
    }

    fn keep_spare(&mut self, pressure: Option<Pressure<'k>>) {
        if let Some(pressure) = pressure {
            let _ = self.spare.push(pressure);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAUNCHES: usize = 3;
    const FITS: Judged = Judged { cost: Some((7, 1)), excess_bytes: 0 };

    #[test]
    fn a_list_is_known_with_its_pressures_until_others_are_near() {
        let mut memory = [0; 1024];
        let mut scratch = Scratch::new(&mut memory);
        let mut known = Known::new(LAUNCHES, &mut scratch).unwrap();
        let mut learner = Pressure::new(LAUNCHES, &mut scratch).unwrap();
        assert!(known.get(1, 9, None).is_none());
        known.add(1, FITS, None);
        assert_eq!(known.get(1, 9, None).map(|judged| judged.rank()), Some(FITS.rank()));
        assert!(known.get(1, 9, Some(&mut learner)).is_none(), "its pressures are not known");

        let pressure = known.take_spare().unwrap();
        pressure.up.fill(55);
        known.add(1, FITS, Some(pressure));
        assert!(known.get(1, 9, Some(&mut learner)).is_some());
        assert_eq!((learner.up[0], learner.down[0]), (155, 255));

        assert!(known.get(1, 8, None).is_none(), "fewer lists are near");
    }

    #[test]
    fn pressures_are_never_lost() {
        let mut memory = [0; 1024];
        let mut scratch = Scratch::new(&mut memory);
        let mut known = Known::new(LAUNCHES, &mut scratch).unwrap();
        for list in 0..3 * REMEMBERED as u64 {
            assert!(known.get(list, list / 40, None).is_none());
            let pressure = known.take_spare();
            assert!(pressure.is_some(), "list {list}");
            let judged = if list % 3 == 0 { Judged::default() } else { FITS };
            known.add(list, judged, pressure);
        }
    }
}
