//! Memory that takes only as much space as is written to it.

use std::collections::BTreeMap;
use std::sync::Arc;

/// The value of all bytes that nobody has written.
const JUNK: u8 = 0xa5;
const PAGE_BYTES: u64 = 4096;

type Page = [u8; PAGE_BYTES as usize];

/// Bytes by address, without a last address.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sparse {
    /// The pages that were written, by number. Copies share them until one is written again.
    pages: BTreeMap<u64, Arc<Page>>,
}

/// The parts of a range that lie in one page each: the number of the page, where the part begins in
/// the page and in the range, and its length.
fn parts(start: u64, bytes: u64) -> impl Iterator<Item = (u64, usize, u64, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = start + done;
        let in_page = at % PAGE_BYTES;
        let length = (PAGE_BYTES - in_page).min(bytes - done);
        let part = (at / PAGE_BYTES, in_page as usize, done, length as usize);
        done += length;
        (length > 0).then_some(part)
    })
}

impl Sparse {
    pub(crate) fn read(&self, start: u64, into: &mut [u8]) {
        for (page, at, done, length) in parts(start, into.len() as u64) {
            let into = &mut into[done as usize..][..length];
            match self.pages.get(&page) {
                Some(page) => into.copy_from_slice(&page[at..][..length]),
                None => into.fill(JUNK),
            }
        }
    }

    pub(crate) fn write(&mut self, start: u64, from: &[u8]) {
        for (page, at, done, length) in parts(start, from.len() as u64) {
            let page = self.pages.entry(page).or_insert_with(|| Arc::new([JUNK; _]));
            Arc::make_mut(page)[at..][..length].copy_from_slice(&from[done as usize..][..length]);
        }
    }

    /// Copies the bytes of a range that were written in another memory.
    pub(crate) fn copy(&mut self, to: u64, other: &Self, from: u64, bytes: u64) {
        let end = from + bytes;
        for (&page, written) in other.pages.range(from / PAGE_BYTES..end.div_ceil(PAGE_BYTES)) {
            let start = page * PAGE_BYTES;
            let (first, last) = (start.max(from), (start + PAGE_BYTES).min(end));
            let is_whole = last - first == PAGE_BYTES;
            let to_start = to + first - from;
            if is_whole && to_start.is_multiple_of(PAGE_BYTES) {
                self.pages.insert(to_start / PAGE_BYTES, Arc::clone(written));
                continue;
            }
            self.write(to_start, &written[(first - start) as usize..(last - start) as usize]);
        }
    }

    /// Fills a range with junk.
    pub(crate) fn forget(&mut self, start: u64, bytes: u64) {
        let end = start + bytes;
        let pages = self.pages.range_mut(start / PAGE_BYTES..end.div_ceil(PAGE_BYTES));
        let mut whole = Vec::new();
        for (&number, page) in pages {
            let at = number * PAGE_BYTES;
            let (first, last) = (start.max(at) - at, end.min(at + PAGE_BYTES) - at);
            if last - first == PAGE_BYTES {
                whole.push(number);
            } else {
                Arc::make_mut(page)[first as usize..last as usize].fill(JUNK);
            }
        }
        for number in whole {
            self.pages.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_written_is_junk_and_takes_no_memory() {
        const FAR: u64 = (1 << 40) - 3;
        let mut memory = Sparse::default();
        memory.write(FAR, &[1, 2, 3, 4, 5, 6]);
        let read = |memory: &Sparse, at| {
            let mut bytes = [0; 8];
            memory.read(at, &mut bytes);
            bytes
        };
        assert_eq!(read(&memory, FAR - 1), [JUNK, 1, 2, 3, 4, 5, 6, JUNK]);
        let mut other = Sparse::default();
        other.write(0, &[9; 8]);
        other.copy(2, &memory, 1, FAR + 3);
        assert_eq!(read(&other, 0), [9; 8], "junk is not taken over");
        assert_eq!(read(&other, FAR), [JUNK, 1, 2, 3, 4, JUNK, JUNK, JUNK]);
        memory.forget(FAR + 1, 1 << 50);
        assert_eq!(read(&memory, FAR - 1), [JUNK, 1, JUNK, JUNK, JUNK, JUNK, JUNK, JUNK]);
        assert_eq!(memory.pages.len(), 1);
    }
}
