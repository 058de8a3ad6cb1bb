//! The pressure on each link and each pool at each op, measured from a list.
//!
//! The cost of a transfer depends on the time at which its link must carry it: it costs nothing
//! while the link is idle, and its whole time while ops wait for the link. Memory costs nothing at
//! an op that leaves memory free. One list shows these times, and they weight the gaps of the next
//! list.

#![expect(
    clippy::indexing_slicing,
    reason = "ops and positions are those of the lists, and the arrays have an entry for each"
)]

use super::chance::Chance;
use super::request::POOLS;
use crate::scratch::{Limits, OutOfScratch, Scratch, words};
use crate::sequence::LaunchId;

/// The pressure on a link that is always busy and makes ops wait.
pub(super) const FULL: u8 = 255;

/// Added to a pressure when gaps are weighted, since even on an idle link moving less is better.
pub(super) const IDLE: u64 = 8;

/// The number of parts of an iteration whose pressures are perturbed alike. A balance: neighbouring
/// pressures must move together, but few parts give few different lists.
const PERTURBED_PARTS: usize = 16;

/// The numbers of consecutive parts that a perturbation changes. If it changes many, a list that gains
/// by one change usually loses by another.
const PERTURBED_AT_ONCE: [usize; 5] = [1, 2, 4, 8, PERTURBED_PARTS];

/// Whether a perturbation changes the pressures of the memory, the uplink and the downlink.
const PERTURBED_KINDS: [[bool; 3]; 4] =
    [[true, false, false], [false, true, false], [false, false, true], [true; 3]];

/// The largest factor of a perturbation. A balance: a smaller factor finds the same list again, a
/// larger factor loses the best list.
const PERTURBED_BY: f32 = 1.4;

/// Added to a link's pressure before it is perturbed, so that a pressure of 0 may change too.
const AT_REST: f32 = 8.0;

/// The pressure on each link and on the memory of each pool at each op.
#[derive(Debug)]
pub(super) struct Pressure<'a> {
    pub(super) up: &'a mut [u8],
    pub(super) down: &'a mut [u8],
    /// From 0 to 1; the ops of the second pool follow the ops of the first.
    pub(super) memory: &'a mut [f32],
}

impl<'a> Pressure<'a> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        words::<u8>(limits.ops)
            .saturating_mul(2)
            .saturating_add(words::<f32>(limits.ops.saturating_mul(POOLS)))
    }

    /// The pressure at the start: every transfer costs its time, and every op needs its memory.
    pub(super) fn new(ops: usize, scratch: &mut Scratch<'a>) -> Result<Self, OutOfScratch> {
        Ok(Self {
            up: scratch.take(ops, FULL)?,
            down: scratch.take(ops, FULL)?,
            memory: scratch.take(ops.saturating_mul(POOLS), 1.0)?,
        })
    }

    /// The mean pressure of both links, plus [`IDLE`].
    pub(super) fn mean_of_links(&self) -> u64 {
        let links = self.up.iter().chain(&*self.down);
        let sum = links.map(|&link| u64::from(link)).fold(0, u64::saturating_add);
        let links = self.up.len().saturating_add(self.down.len()) as u64;
        sum.checked_div(links).unwrap_or(0).saturating_add(IDLE)
    }

    /// Becomes the pressures of a list that has these launches at `positions`, each after the
    /// launches repeated for it.
    pub(super) fn copy_at(&mut self, seen: &Pressure<'_>, positions: &[u32]) {
        let mut from = 0;
        for (at, position) in positions.iter().map(|&position| LaunchId(position)).enumerate() {
            let to = position.next().index();
            let most = |link: &[u8]| link[from..to].iter().copied().max().unwrap_or(0);
            self.up[at] = most(seen.up);
            self.down[at] = most(seen.down);
            self.memory[at] = seen.memory[position.index()];
            from = to;
        }
    }

    pub(super) fn copy_from(&mut self, other: &Pressure<'_>) {
        self.up.copy_from_slice(other.up);
        self.down.copy_from_slice(other.down);
        self.memory.copy_from_slice(other.memory);
    }

    /// Moves the link pressures halfway, and the memory pressures all the way, to other pressures.
    pub(super) fn approach(&mut self, other: &Pressure<'_>) {
        let halfway = |ours: &mut [u8], theirs: &[u8]| {
            for (ours, &theirs) in ours.iter_mut().zip(theirs) {
                *ours = u8::midpoint(*ours, theirs);
            }
        };
        halfway(self.up, other.up);
        halfway(self.down, other.down);
        self.memory.copy_from_slice(other.memory);
    }

    /// Raises or lowers the pressures of one kind or of all kinds a little, in some consecutive parts
    /// of the iteration: the pressures of a part by the same factor.
    fn perturb(&mut self, chance: &mut Chance) {
        let ops = self.up.len();
        let [memory, up, down] = chance.one_of(&PERTURBED_KINDS);
        let first = chance.below(PERTURBED_PARTS as u64) as usize;
        let parts = Parts { first, count: chance.one_of(&PERTURBED_AT_ONCE) };
        for pool in self.memory.chunks_mut(ops.max(1)).filter(|_| memory) {
            for part in parts.of(pool) {
                let factor = chance.factor(PERTURBED_BY);
                part.iter_mut().for_each(|memory| *memory = (*memory * factor).min(1.0));
            }
        }
        let links = [(up, &mut *self.up), (down, &mut *self.down)];
        for (_, link) in links.into_iter().filter(|&(is_changed, _)| is_changed) {
            for part in parts.of(link) {
                let factor = chance.factor(PERTURBED_BY);
                // The cast saturates.
                let perturbed = |link: u8| ((f32::from(link) + AT_REST) * factor - AT_REST) as u8;
                part.iter_mut().for_each(|link| *link = perturbed(*link));
            }
        }
    }
}

/// Consecutive parts of an iteration, in a cycle.
#[derive(Clone, Copy)]
struct Parts {
    first: usize,
    count: usize,
}

impl Parts {
    /// The values at these parts, if there is a value for each op.
    fn of<T>(self, values: &mut [T]) -> impl Iterator<Item = &mut [T]> {
        let len = values.len().div_ceil(PERTURBED_PARTS).max(1);
        let is_in = move |part: usize| part.wrapping_sub(self.first) % PERTURBED_PARTS < self.count;
        values
            .chunks_mut(len)
            .enumerate()
            .filter(move |&(part, _)| is_in(part))
            .map(|(_, part)| part)
    }
}

/// The pressures by which lists are made, and the pressures that lists show.
#[derive(Debug)]
pub(super) struct Pressures<'a> {
    /// The pressures for the next list.
    pub(super) used: Pressure<'a>,
    /// The pressures that the last list showed.
    pub(super) seen: Pressure<'a>,
    /// The pressures for the best list.
    kept: Pressure<'a>,
}

impl<'a> Pressures<'a> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        Pressure::scratch_words(limits).saturating_mul(3)
    }

    pub(super) fn new(ops: usize, scratch: &mut Scratch<'a>) -> Result<Self, OutOfScratch> {
        Ok(Self {
            used: Pressure::new(ops, scratch)?,
            seen: Pressure::new(ops, scratch)?,
            kept: Pressure::new(ops, scratch)?,
        })
    }

    /// Records that the last list is the best so far.
    pub(super) fn keep(&mut self) {
        self.kept.copy_from(&self.used);
    }

    /// Restores the pressures of the best list.
    pub(super) fn recall(&mut self) {
        self.used.copy_from(&self.kept);
    }

    /// Moves the pressures for the next list halfway to the pressures that the last list showed.
    pub(super) fn update(&mut self) {
        self.used.approach(&self.seen);
    }

    /// Perturbs the pressures of the best list for the next list.
    pub(super) fn perturb(&mut self, chance: &mut Chance) {
        self.recall();
        self.used.perturb(chance);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_pressures_change_by_one_factor() {
        let mut memory = [0; 1024];
        let mut pressures = Pressures::new(160, &mut Scratch::new(&mut memory)).unwrap();
        pressures.used.memory.fill(0.5);
        pressures.used.up.fill(100);
        pressures.used.down.fill(100);
        pressures.keep();
        // How often each kind of pressure has changed: alone, and with the others.
        let (mut alone, mut together) = ([0; 3], 0);
        let (mut fewest, mut most) = (PERTURBED_PARTS, 0);
        for seed in 0..50 {
            pressures.perturb(&mut Chance::new(seed));
            let Pressure { up, down, memory } = &pressures.used;
            let mut parts = [0; 3];
            for at in (0..160).step_by(10) {
                assert!(up[at..at + 10].iter().all(|&other| other == up[at]));
                // Each time, the perturbation starts from the kept pressures.
                assert!((0.35..=0.7).contains(&memory[at]));
                assert!((69..=144).contains(&up[at]) && (69..=144).contains(&down[at]));
                let is_other = memory[at].to_bits() != 0.5f32.to_bits();
                let here = [is_other, up[at] != 100, down[at] != 100];
                (0..3).for_each(|kind| parts[kind] += usize::from(here[kind]));
            }
            match parts.map(|changed| changed > 0) {
                [true, false, false] => alone[0] += 1,
                [false, true, false] => alone[1] += 1,
                [false, false, true] => alone[2] += 1,
                _ => together += 1,
            }
            let changed = parts.into_iter().max().unwrap();
            (fewest, most) = (fewest.min(changed), most.max(changed));
        }
        assert!(alone.into_iter().all(|times| times > 4) && together > 4, "{alone:?} {together}");
        assert_eq!((fewest, most), (1, PERTURBED_PARTS));
    }
}
