//! Decisions of a generator, as a list of small numbers that a property test can shrink.

use proptest::prelude::*;

/// The decisions still to be taken. Zero is always the plainest decision, and a list that
/// is used up goes on with zeros, so that a shorter list makes a plainer result.
#[derive(Clone, Debug)]
pub struct Choices {
    numbers: std::vec::IntoIter<u16>,
}

impl Choices {
    /// Takes its decisions from the front of the list.
    #[must_use]
    pub fn new(numbers: Vec<u16>) -> Self {
        Self { numbers: numbers.into_iter() }
    }

    /// A number below `bound`; 0 where nothing is below it.
    pub fn below(&mut self, bound: usize) -> usize {
        let number = usize::from(self.numbers.next().unwrap_or(0));
        number.checked_rem(bound).unwrap_or(0)
    }

    /// Sets this many decisions aside. What is decided by them then stays the same when others
    /// need fewer, and a property test can shrink one thing without disturbing the next.
    #[must_use]
    pub fn fork(&mut self, count: usize) -> Self {
        Self::new(self.numbers.by_ref().take(count).collect())
    }

    /// True in one of this many cases.
    pub fn one_in(&mut self, cases: usize) -> bool {
        self.below(cases) + 1 == cases
    }

    /// One of the items; none where there are none.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> Option<T> {
        let index = self.below(items.len());
        items.get(index).copied()
    }
}

/// Lists of at most this many decisions.
pub fn choices(most: usize) -> impl Strategy<Value = Choices> {
    proptest::collection::vec(any::<u16>(), 0..=most).prop_map(Choices::new)
}
