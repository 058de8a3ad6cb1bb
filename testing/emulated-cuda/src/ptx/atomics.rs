//! Atomic accesses to device memory, which other streams may use at the same time.
#![allow(unsafe_code, reason = "kernels work on addresses")]

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Reads device memory.
///
/// # Safety
/// The bytes are aligned and may be used.
pub(super) unsafe fn load<const BYTES: u64>(at: u64) -> u64 {
    // SAFETY: by the promise above.
    unsafe {
        match BYTES {
            1 => AtomicU8::from_ptr(at as *mut u8).load(Relaxed).into(),
            2 => AtomicU16::from_ptr(at as *mut u16).load(Relaxed).into(),
            4 => AtomicU32::from_ptr(at as *mut u32).load(Relaxed).into(),
            _ => AtomicU64::from_ptr(at as *mut u64).load(Relaxed),
        }
    }
}

/// Writes device memory.
///
/// # Safety
/// The bytes are aligned and may be used.
pub(super) unsafe fn store<const BYTES: u64>(at: u64, value: u64) {
    // SAFETY: by the promise above.
    unsafe {
        match BYTES {
            1 => AtomicU8::from_ptr(at as *mut u8).store(value as u8, Relaxed),
            2 => AtomicU16::from_ptr(at as *mut u16).store(value as u16, Relaxed),
            4 => AtomicU32::from_ptr(at as *mut u32).store(value as u32, Relaxed),
            _ => AtomicU64::from_ptr(at as *mut u64).store(value, Relaxed),
        }
    }
}

/// Changes device memory atomically. Returns what was there before.
///
/// # Safety
/// The bytes are aligned and may be used.
pub(super) unsafe fn update<const BYTES: u64>(at: u64, change: impl Fn(u64) -> u64) -> u64 {
    let changed = if BYTES == 4 {
        // SAFETY: by the promise above.
        let word = unsafe { AtomicU32::from_ptr(at as *mut u32) };
        let change = |old: u32| Some(change(old.into()) as u32);
        word.fetch_update(Relaxed, Relaxed, change).map(u64::from).map_err(u64::from)
    } else {
        // SAFETY: by the promise above.
        let long = unsafe { AtomicU64::from_ptr(at as *mut u64) };
        long.fetch_update(Relaxed, Relaxed, |old| Some(change(old)))
    };
    changed.unwrap_or_else(|old| old)
}
