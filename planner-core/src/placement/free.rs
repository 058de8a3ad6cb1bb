//! The free objects of each pool, in the order of their releases.

#![expect(
    clippy::indexing_slicing,
    reason = "nodes are the objects and one for each pool, and the arrays have an entry for each"
)]

use crate::scratch::{Limits, OutOfScratch, Scratch, words};

/// A ring of free objects for each pool. A node after all objects closes the ring of each pool.
pub(super) struct Free<'a> {
    next: &'a mut [u32],
    previous: &'a mut [u32],
    objects: u32,
}

#[expect(clippy::arithmetic_side_effects, reason = "nodes are numbered in 32 bits")]
impl<'a> Free<'a> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        words::<u32>(limits.objects.saturating_add(limits.pools)).saturating_mul(2)
    }

    /// Creates rings without free objects.
    pub(super) fn new(
        objects: u32,
        pools: usize,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let nodes = u32::try_from(pools).ok().and_then(|pools| objects.checked_add(pools));
        let free_words = scratch.free_words();
        let nodes = nodes.ok_or(OutOfScratch { needed_words: usize::MAX, free_words })?;
        let next = scratch.take(nodes as usize, 0)?;
        let previous = scratch.take(nodes as usize, 0)?;
        for node in objects..nodes {
            next[node as usize] = node;
            previous[node as usize] = node;
        }
        Ok(Self { next, previous, objects })
    }

    /// Appends an object to the free objects of a pool.
    pub(super) fn append(&mut self, pool: usize, object: u32) {
        let node = self.objects + pool as u32;
        self.link(self.previous[node as usize], object);
        self.link(object, node);
    }

    fn link(&mut self, one: u32, other: u32) {
        self.next[one as usize] = other;
        self.previous[other as usize] = one;
    }

    /// Removes a free object.
    pub(super) fn remove(&mut self, object: u32) {
        self.link(self.previous[object as usize], self.next[object as usize]);
    }

    /// Replaces a free object by another one.
    pub(super) fn replace(&mut self, object: u32, by: u32) {
        self.link(self.previous[object as usize], by);
        self.link(by, self.next[object as usize]);
    }

    /// The object that was released first.
    pub(super) fn first(&self, pool: usize) -> Option<u32> {
        self.after(self.objects + pool as u32)
    }

    /// The object that was released after another one.
    pub(super) fn after(&self, object: u32) -> Option<u32> {
        Some(self.next[object as usize]).filter(|&next| next < self.objects)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_come_out_in_the_order_in_which_they_went_in() {
        let mut memory = [0; 16];
        let mut free = Free::new(5, 2, &mut Scratch::new(&mut memory)).unwrap();
        let holds = |free: &Free<'_>, pool, objects: &[u32]| {
            let all = core::iter::successors(free.first(pool), |&object| free.after(object));
            all.eq(objects.iter().copied())
        };
        for object in [3, 0, 4] {
            free.append(1, object);
        }
        free.append(0, 1);
        assert!(holds(&free, 1, &[3, 0, 4]) && holds(&free, 0, &[1]));
        free.replace(0, 2);
        free.remove(3);
        assert!(holds(&free, 1, &[2, 4]));
        free.remove(4);
        free.remove(2);
        assert_eq!((free.first(1), free.first(0)), (None, Some(1)));
    }
}
