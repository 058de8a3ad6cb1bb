//! A profile of the memory in use over time, as far as it is scheduled.

#![expect(clippy::indexing_slicing, reason = "positions are below the length of the moments")]

use crate::scratch::{OutOfScratch, Scratch, words};

/// The objects taken and released at each moment, in order. At one moment, releases come first.
#[derive(Debug)]
pub(super) struct Profile<'p> {
    /// A time; the objects taken, the objects released, and the objects in use only at this time.
    moments: &'p mut [[u64; 4]],
    first: usize,
    len: usize,
    /// The number of objects in use after the last moment.
    used: u64,
    capacity_objects: u64,
}

impl<'p> Profile<'p> {
    pub(super) const fn scratch_words(moments: usize) -> usize {
        words::<[u64; 4]>(moments)
    }

    pub(super) fn new(
        moments: usize,
        capacity_objects: u64,
        scratch: &mut Scratch<'p>,
    ) -> Result<Self, OutOfScratch> {
        let moments = scratch.take(moments, [0; 4])?;
        Ok(Self { moments, first: 0, len: 0, used: 0, capacity_objects })
    }

    /// Starts again, with `used` objects in use.
    pub(super) const fn restart(&mut self, used: u64) {
        (self.first, self.len, self.used) = (0, 0, used);
    }

    /// The first time at or after `from` from which on the objects stay free; `None` if there is no
    /// such time. It takes as many steps as there are moments after `from`.
    pub(super) fn earliest(&self, from: u64, objects: u64) -> Option<u64> {
        let fits =
            |used: u64| used.checked_add(objects).is_some_and(|used| used <= self.capacity_objects);
        let mut used = self.used;
        let mut earliest = None;
        for moment in self.moments[self.first..self.len].iter().rev() {
            let [at, taken, released, passing] = *moment;
            if !fits(used) {
                return earliest;
            }
            if at <= from {
                return Some(from);
            }
            earliest = Some(at);
            if !fits(used.saturating_add(passing)) {
                return earliest;
            }
            used = used.saturating_add(released).saturating_sub(taken);
        }
        if fits(used) { Some(from) } else { earliest }
    }

    /// Takes objects at a time; returns false if there is no room for another moment.
    pub(super) fn take(&mut self, at: u64, objects: u64) -> bool {
        self.used = self.used.saturating_add(objects);
        self.moment(at).map(|moment| moment[1] = moment[1].saturating_add(objects)).is_some()
    }

    /// Releases objects at a time; returns false if there is no room for another moment.
    pub(super) fn release(&mut self, at: u64, objects: u64) -> bool {
        self.used = self.used.saturating_sub(objects);
        self.moment(at).map(|moment| moment[2] = moment[2].saturating_add(objects)).is_some()
    }

    /// Uses objects only at a time, before others are released: an op without a time takes them
    /// from work that starts earlier. Returns false if there is no room for another moment.
    pub(super) fn pass(&mut self, at: u64, objects: u64, released: u64) -> bool {
        let passing = self.moment(at).map(|moment| {
            moment[3] = moment[3].max(objects).saturating_add(released);
        });
        passing.is_some() && self.release(at, released)
    }

    /// The record of a time; `None` if there is no room for another moment.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`first` is at most `len`, and both count moments"
    )]
    fn moment(&mut self, at: u64) -> Option<&mut [u64; 4]> {
        if self.len == self.moments.len() && self.first > 0 {
            self.moments.copy_within(self.first..self.len, 0);
            (self.first, self.len) = (0, self.len - self.first);
        }
        let moments = &self.moments[self.first..self.len];
        let position = self.first + moments.partition_point(|&[moment, ..]| moment < at);
        if position == self.len || self.moments[position][0] != at {
            if self.len == self.moments.len() {
                return None;
            }
            self.moments.copy_within(position..self.len, position + 1);
            self.moments[position] = [at, 0, 0, 0];
            self.len += 1;
        }
        self.moments.get_mut(position)
    }

    /// Drops moments before a time, at which nothing will be asked or recorded any more.
    pub(super) fn forget(&mut self, before: u64) {
        while self.first < self.len && self.moments[self.first][0] <= before {
            self.first = self.first.saturating_add(1);
        }
    }
}
