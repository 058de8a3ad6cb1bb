//! A map from ranges to values. It stores extents, so that its cost follows the number of pieces
//! and not the number of bytes.

use std::collections::BTreeMap;

/// A value that covers a range and may be cut at any unit.
pub(crate) trait Extent: Copy {
    /// The value of the rest after the first `length` units are cut off.
    fn after(self, length: u64) -> Self;

    /// Whether `next` continues this value if it begins `length` units later.
    fn continues(self, length: u64, next: Self) -> bool;
}

/// Disjoint ranges, each with a value.
#[derive(Clone, Debug)]
pub(crate) struct Extents<T> {
    /// From the start of a range to its length and value.
    ranges: BTreeMap<u64, (u64, T)>,
}

impl<T> Default for Extents<T> {
    fn default() -> Self {
        Self { ranges: BTreeMap::new() }
    }
}

impl<T: Extent> Extents<T> {
    /// The parts of `start..start + length` that have a value, in order. Each is a start, a length
    /// and a value.
    pub(crate) fn over(
        &self,
        start: u64,
        length: u64,
    ) -> impl Iterator<Item = (u64, u64, T)> + use<'_, T> {
        let end = start + length;
        let first = self.ranges.range(..=start).next_back().map_or(start, |(&at, _)| at);
        self.ranges.range(first..end).filter_map(move |(&at, &(length, value))| {
            let (from, to) = (at.max(start), (at + length).min(end));
            (from < to).then(|| (from, to - from, value.after(from - at)))
        })
    }

    /// Removes the values of a range.
    pub(crate) fn remove(&mut self, start: u64, length: u64) {
        self.split(start);
        self.split(start + length);
        while let Some((&at, _)) = self.ranges.range(start..start + length).next() {
            self.ranges.remove(&at);
        }
    }

    /// Gives a range a value and replaces earlier values there.
    pub(crate) fn insert(&mut self, start: u64, length: u64, value: T) {
        self.remove(start, length);
        let (mut start, mut length, mut value) = (start, length, value);
        if let Some((&at, &(before, previous))) = self.ranges.range(..start).next_back()
            && at + before == start
            && previous.continues(before, value)
        {
            (start, length, value) = (at, before + length, previous);
        }
        if let Some(&(after, next)) = self.ranges.get(&(start + length))
            && value.continues(length, next)
        {
            self.ranges.remove(&(start + length));
            length += after;
        }
        self.ranges.insert(start, (length, value));
    }

    fn split(&mut self, at: u64) {
        if let Some((&start, range)) = self.ranges.range_mut(..at).next_back()
            && start + range.0 > at
        {
            let after = (start + range.0 - at, range.1.after(at - start));
            range.0 = at - start;
            self.ranges.insert(at, after);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Extent for char {
        fn after(self, _: u64) -> Self {
            self
        }

        fn continues(self, _: u64, next: Self) -> bool {
            self == next
        }
    }

    #[test]
    fn ranges_are_cut_and_joined() {
        let mut extents = Extents::default();
        extents.insert(0, 10, 'a');
        extents.insert(4, 2, 'b');
        assert!(extents.over(0, 20).eq([(0, 4, 'a'), (4, 2, 'b'), (6, 4, 'a')]));
        assert!(extents.over(5, 2).eq([(5, 1, 'b'), (6, 1, 'a')]));
        extents.remove(3, 2);
        assert!(extents.over(0, 20).eq([(0, 3, 'a'), (5, 1, 'b'), (6, 4, 'a')]));
        extents.insert(3, 3, 'a');
        assert!(extents.ranges.iter().eq([(&0, &(10, 'a'))]));
    }
}
