//! Arrays in one buffer of the caller.

use core::marker::PhantomData;
use core::slice;
use planner_core::Scratch;

/// The free part of a buffer. Arrays are taken from its front.
pub(crate) struct Memory<'m> {
    at: *mut u8,
    bytes: usize,
    buffer: PhantomData<&'m mut [u8]>,
}

/// The most bytes that an array takes, wherever it begins.
pub(crate) const fn array_bytes<T>(count: usize) -> usize {
    count.saturating_mul(size_of::<T>()).saturating_add(align_of::<T>() - 1)
}

impl<'m> Memory<'m> {
    /// # Safety
    /// `at` points to `bytes` bytes. Nobody else uses them as long as the arrays from them exist.
    pub(crate) const unsafe fn new(at: *mut u8, bytes: usize) -> Self {
        Self { at, bytes, buffer: PhantomData }
    }

    /// Takes an array and sets each entry to `fill`. `None` if too little is left.
    pub(crate) fn take<T: Copy>(&mut self, count: usize, fill: T) -> Option<&'m mut [T]> {
        let padding = self.at.align_offset(align_of::<T>());
        let bytes = count.checked_mul(size_of::<T>())?;
        self.bytes = self.bytes.checked_sub(padding.checked_add(bytes)?)?;
        let array = self.at.wrapping_add(padding).cast::<T>();
        self.at = self.at.wrapping_add(padding + bytes);
        for entry in 0..count {
            // SAFETY: the entry is aligned, and lies inside the part of the buffer that has just
            // been taken.
            unsafe { array.add(entry).write(fill) };
        }
        // SAFETY: the array is initialised above, and it is taken only once.
        Some(unsafe { slice::from_raw_parts_mut(array, count) })
    }

    /// All of the remaining bytes, as working memory.
    pub(crate) fn rest(&mut self) -> Scratch<'m> {
        let padding = self.at.align_offset(align_of::<u64>());
        let words = self.bytes.saturating_sub(padding) / size_of::<u64>();
        Scratch::new(self.take(words, 0).unwrap_or_default())
    }
}
