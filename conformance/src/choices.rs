//! The decisions of a generator, as a list of small numbers that a property test can shrink.

use proptest::prelude::*;

/// A list of decisions that are still open. Zero is always the plainest decision, and a list that
/// is used up continues with zeros, so a shorter list makes a plainer result.
#[derive(Clone, Debug)]
pub struct Choices {
    numbers: std::vec::IntoIter<u16>,
}

impl Choices {
    /// Takes decisions from the front of the list.
    #[must_use]
    pub fn new(numbers: Vec<u16>) -> Self {
        Self { numbers: numbers.into_iter() }
    }

    /// A number below `bound`, or 0 if `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        let number = usize::from(self.numbers.next().unwrap_or(0));
        number.checked_rem(bound).unwrap_or(0)
    }

    /// Removes `count` decisions for one purpose. Other purposes that need fewer decisions then
    /// leave this one unchanged, and a property test can shrink one thing and keep the next.
    #[must_use]
    pub fn fork(&mut self, count: usize) -> Self {
        Self::new(self.numbers.by_ref().take(count).collect())
    }

    /// True in one of `cases` cases.
    pub fn one_in(&mut self, cases: usize) -> bool {
        self.below(cases) + 1 == cases
    }

    /// One of the items. `None` if there are no items.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> Option<T> {
        let index = self.below(items.len());
        items.get(index).copied()
    }
}

/// Lists of at most `most` decisions.
pub fn choices(most: usize) -> impl Strategy<Value = Choices> {
    proptest::collection::vec(any::<u16>(), 0..=most).prop_map(Choices::new)
}
