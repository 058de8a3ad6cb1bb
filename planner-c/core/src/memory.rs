//! Arrays in one buffer of the caller's.

use core::marker::PhantomData;
use core::slice;
use planner_core::Scratch;

/// The free part of a buffer, from which arrays are taken, front to back.
pub(crate) struct Memory<'m> {
    at: *mut u8,
    bytes: usize,
    buffer: PhantomData<&'m mut [u8]>,
}

/// Bytes that an array takes at most, wherever it begins.
pub(crate) const fn array_bytes<T>(count: usize) -> usize {
    count.saturating_mul(size_of::<T>()).saturating_add(align_of::<T>() - 1)
}

impl<'m> Memory<'m> {
    /// # Safety
    /// `at` points to as many bytes, which nobody else uses for as long as what is taken from them.
    pub(crate) const unsafe fn new(at: *mut u8, bytes: usize) -> Self {
        Self { at, bytes, buffer: PhantomData }
    }

    /// Takes an array, each entry of it set to `fill`. None where there is too little left.
    pub(crate) fn take<T: Copy>(&mut self, count: usize, fill: T) -> Option<&'m mut [T]> {
        let padding = self.at.align_offset(align_of::<T>());
        let bytes = count.checked_mul(size_of::<T>())?;
        self.bytes = self.bytes.checked_sub(padding.checked_add(bytes)?)?;
        let array = self.at.wrapping_add(padding).cast::<T>();
        self.at = self.at.wrapping_add(padding + bytes);
        for entry in 0..count {
            // SAFETY: aligned, and inside the part of the buffer that has just been taken.
            unsafe { array.add(entry).write(fill) };
        }
        // SAFETY: initialised above, and handed out once.
        Some(unsafe { slice::from_raw_parts_mut(array, count) })
    }

    /// All that is left, as working memory.
    pub(crate) fn rest(&mut self) -> Scratch<'m> {
        let padding = self.at.align_offset(align_of::<u64>());
        let words = self.bytes.saturating_sub(padding) / size_of::<u64>();
        Scratch::new(self.take(words, 0).unwrap_or_default())
    }
}
