//! Objects in a line of positions, and a tree that finds the first object with a large key.

#![expect(
    clippy::indexing_slicing,
    reason = "positions and objects are below the lengths that `Line::new` gets"
)]

use crate::scratch::{OutOfScratch, Scratch, words};
use core::ops::Range;

/// An empty position.
const NONE: u32 = u32::MAX;
/// The positions of a block. A balance between the size of the tree and the time of an update.
const BLOCK: usize = 16;

/// Some objects, each at a position of its own. The caller passes the key of each object, which stays the
/// same while the object is in the line. An object with key 0 is never found. Each operation is O(log n)
/// for n positions.
pub(super) struct Line<'a> {
    /// The object at each position.
    objects: &'a mut [u32],
    /// The position of each object that is in the line.
    position: &'a mut [u32],
    /// The largest key below each node. The leaves are blocks of positions.
    largest: &'a mut [u32],
}

/// The number of leaves.
const fn leaves(positions: usize) -> usize {
    match (positions / BLOCK).saturating_add(1).checked_next_power_of_two() {
        Some(leaves) => leaves,
        None => usize::MAX,
    }
}

#[expect(clippy::arithmetic_side_effects, reason = "positions are counted in 32 bits")]
impl<'a> Line<'a> {
    pub(super) const fn scratch_words(positions: usize, objects: usize) -> usize {
        words::<u32>(positions)
            .saturating_add(words::<u32>(objects))
            .saturating_add(words::<u32>(leaves(positions).saturating_mul(2)))
    }

    /// Creates a line without objects.
    pub(super) fn new(
        positions: usize,
        objects: usize,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        Ok(Self {
            objects: scratch.take(positions, NONE)?,
            position: scratch.take(objects, NONE)?,
            largest: scratch.take(leaves(positions).saturating_mul(2), 0)?,
        })
    }

    /// The position of an object that is in the line.
    pub(super) fn position(&self, object: u32) -> u32 {
        self.position[object as usize]
    }

    /// Puts an object at a position, in place of the object there.
    pub(super) fn put(&mut self, position: u32, object: u32, key: impl Fn(u32) -> u32) {
        self.objects[position as usize] = object;
        self.position[object as usize] = position;
        self.update(position, key);
    }

    /// Removes an object that is in the line.
    pub(super) fn remove(&mut self, object: u32, key: impl Fn(u32) -> u32) {
        let position = self.position[object as usize];
        self.objects[position as usize] = NONE;
        self.update(position, key);
    }

    /// Updates the tree above a position.
    fn update(&mut self, position: u32, key: impl Fn(u32) -> u32) {
        let block = position as usize / BLOCK;
        let to = self.objects.len().min((block + 1) * BLOCK);
        let keys = self.objects[block * BLOCK..to].iter().map(|&object| key_of(object, &key));
        let mut largest = keys.max().unwrap_or(0);
        let mut node = self.largest.len() / 2 + block;
        while self.largest[node] != largest {
            self.largest[node] = largest;
            if node == 1 {
                break;
            }
            largest = largest.max(self.largest[node ^ 1]);
            node /= 2;
        }
    }

    /// The first object in a range of positions whose key is at least `least`. `least` is above 0.
    pub(super) fn first(
        &self,
        range: Range<u32>,
        least: u32,
        key: impl Fn(u32) -> u32,
    ) -> Option<u32> {
        let find = |from: usize, to: usize| {
            let objects = self.objects.get(from..to.min(range.end as usize))?;
            objects.iter().copied().find(|&object| key_of(object, &key) >= least)
        };
        let from = range.start as usize;
        let block = from / BLOCK;
        find(from, (block + 1) * BLOCK).or_else(|| {
            let start = self.block_after(block, least)? * BLOCK;
            find(start, start + BLOCK)
        })
    }

    /// The first block after another that has an object whose key is at least `least`.
    fn block_after(&self, block: usize, least: u32) -> Option<usize> {
        let leaves = self.largest.len() / 2;
        let mut node = leaves + block;
        while node & 1 == 1 || self.largest[node + 1] < least {
            node /= 2;
            if node <= 1 {
                return None;
            }
        }
        node += 1;
        while node < leaves {
            node *= 2;
            if self.largest[node] < least {
                node += 1;
            }
        }
        Some(node - leaves)
    }
}

/// The key of the object at a position; 0 for an empty position.
fn key_of(object: u32, key: impl Fn(u32) -> u32) -> u32 {
    if object == NONE { 0 } else { key(object) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_a_search_of_all_positions() {
        const POSITIONS: u32 = 700;
        const OBJECTS: u32 = 300;
        let mut memory = [0; 1024];
        let mut scratch = Scratch::new(&mut memory);
        let mut line = Line::new(POSITIONS as usize, OBJECTS as usize, &mut scratch).unwrap();
        let (mut keys, mut positions) = ([0; OBJECTS as usize], [None; OBJECTS as usize]);
        let mut seed = 1u64;
        let mut random = |below: u32| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            ((seed >> 33) as u32) % below
        };
        for _ in 0..4000 {
            let (object, position) = (random(OBJECTS), random(POSITIONS));
            let place = object as usize;
            if positions[place].is_some() {
                assert_eq!(Some(line.position(object)), positions[place]);
                positions[place] = None;
                line.remove(object, |object| keys[object as usize]);
            } else {
                keys[place] = random(99) + 1;
                // The object that was there before leaves.
                positions.iter_mut().filter(|at| **at == Some(position)).for_each(|at| *at = None);
                positions[place] = Some(position);
                line.put(position, object, |object| keys[object as usize]);
            }
            let (from, to, least) = (random(POSITIONS), random(POSITIONS + 1), random(120) + 1);
            let expected = (0..OBJECTS)
                .filter(|&object| keys[object as usize] >= least)
                .filter_map(|object| Some((positions[object as usize]?, object)))
                .filter(|(position, _)| (from..to).contains(position))
                .min();
            let found = line.first(from..to, least, |object| keys[object as usize]);
            assert_eq!(found, expected.map(|(_, object)| object));
        }
    }
}
