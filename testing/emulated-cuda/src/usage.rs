//! Which addresses the work under way uses, on the device and on the host.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The ranges in use, by the order in which their use began.
#[derive(Debug, Default)]
pub(crate) struct Usage(Mutex<BTreeMap<u64, Range<u64>>>);

/// A range in use, until this is dropped.
#[derive(Debug)]
pub(crate) struct InUse<'u> {
    usage: &'u Usage,
    number: u64,
}

impl Usage {
    fn ranges(&self) -> MutexGuard<'_, BTreeMap<u64, Range<u64>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(&self, range: Range<u64>) -> InUse<'_> {
        let mut ranges = self.ranges();
        let number = ranges.last_key_value().map_or(0, |(number, _)| number + 1);
        ranges.insert(number, range);
        InUse { usage: self, number }
    }

    /// Whether work uses any of a range.
    pub(crate) fn overlaps(&self, range: &Range<u64>) -> bool {
        self.ranges().values().any(|used| used.start < range.end && range.start < used.end)
    }
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        self.usage.ranges().remove(&self.number);
    }
}
