//! Tasks: what a stream or a graph does, one thing at a time.
#![allow(unsafe_code, reason = "bytes are copied between addresses")]

use crate::clock::Clock;
use crate::device::Device;
use crate::outcome::Outcome;
use crate::ptx::Launch;
use crate::space::{AddressSpace, SharedSpace};
use crate::usage::InUse;
use cudarc::driver::sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
use std::cell::Cell;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::Duration;

/// What is copied at once.
const PIECE_BYTES: u64 = 256 << 10;

/// Work of the device.
#[derive(Clone, Debug)]
pub(crate) enum Task {
    /// Copies to the device.
    CopyH2D { host: usize, device: u64, bytes: u64 },
    /// Copies from the device.
    CopyD2H { device: u64, host: usize, bytes: u64 },
    /// Sets bytes.
    Fill { device: u64, byte: u8, bytes: u64 },
    /// Runs a kernel.
    Launch(Arc<Launch>),
    /// Frees memory.
    Free { at: u64, bytes: u64 },
    /// Calls a function of the host.
    Host { function: HostFunction, data: usize },
    /// Waits until pinned memory holds a value.
    WaitValue { host: usize, value: u32 },
}

/// How often memory is looked at for a value.
const LOOK_EVERY: Duration = Duration::from_micros(20);

/// A function of the host that a stream calls.
pub(crate) type HostFunction = unsafe extern "C" fn(*mut c_void);

thread_local! {
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is in a function of the host that a stream has called.
pub(crate) fn in_host_function() -> bool {
    IN_HOST_FUNCTION.get()
}

impl Task {
    /// Returns the addresses that it uses. Those of a kernel are not known beforehand.
    fn ranges(&self) -> Vec<Range<u64>> {
        let range = |start: u64, bytes: u64| start..start.saturating_add(bytes);
        match *self {
            Self::CopyH2D { host, device, bytes } | Self::CopyD2H { device, host, bytes } => {
                vec![range(host as u64, bytes), range(device, bytes)]
            }
            Self::Fill { device, bytes, .. } => vec![range(device, bytes)],
            Self::WaitValue { host, .. } => vec![range(host as u64, 4)],
            Self::Launch(_) | Self::Free { .. } | Self::Host { .. } => Vec::new(),
        }
    }

    /// Does it. Returns what it uses until it has ended. While it accesses memory, nothing is mapped
    /// or unmapped: this happens between the pieces of a copy, and between the blocks and the loops
    /// of a kernel.
    pub(crate) fn run<'d>(&self, on: &'d Device, clock: &mut Clock) -> Outcome<Vec<InUse<'d>>> {
        let ranges = self.ranges().into_iter();
        let used = ranges.map(|range| on.space.usage.begin(range)).collect();
        let pinned = match *self {
            Self::CopyH2D { host, bytes, .. } | Self::CopyD2H { host, bytes, .. } => {
                Some((host, bytes))
            }
            Self::WaitValue { host, .. } => Some((host, 4)),
            _ => None,
        };
        if let Some((host, bytes)) = pinned {
            // It may have been freed since the task was enqueued.
            on.pinned.check(host, bytes).map_err(|_| CUDA_ERROR_ILLEGAL_ADDRESS)?;
        }
        match *self {
            Self::CopyH2D { host, device, bytes } => on.h2d.transfer(&on.d2h, bytes, clock, || {
                in_pieces(&on.space, device, bytes, |space, at, len| {
                    let host = host + (at - device) as usize;
                    let are_zero = [on.pinned.is_unwritten(host, len), space.is_unwritten(at, len)];
                    // SAFETY: the device's bytes may be written, and the host's are pinned and
                    // not freed while they are in use.
                    unsafe { copy(host as u64, at, len, are_zero) };
                })
            }),
            Self::CopyD2H { device, host, bytes } => on.d2h.transfer(&on.h2d, bytes, clock, || {
                in_pieces(&on.space, device, bytes, |space, at, len| {
                    let host = host + (at - device) as usize;
                    let are_zero = [space.is_unwritten(at, len), on.pinned.is_unwritten(host, len)];
                    // SAFETY: as above.
                    unsafe { copy(at, host as u64, len, are_zero) };
                })
            }),
            Self::Fill { device, byte, bytes } => {
                let space = on.space.read();
                space.check_access(device, bytes)?;
                // SAFETY: the bytes may be written.
                unsafe { libc::memset(device as *mut _, byte.into(), bytes as usize) };
                Ok(())
            }
            Self::Free { at, bytes } => {
                let mut space = on.space.write();
                on.check_unused(at, bytes)?;
                // It may have been freed since.
                space.free(at).map_err(|_| CUDA_ERROR_ILLEGAL_ADDRESS)
            }
            Self::Host { function, data } => {
                // A driver may call such functions one after the other, whatever their streams.
                let _alone = on.host_functions.lock().unwrap_or_else(PoisonError::into_inner);
                IN_HOST_FUNCTION.set(true);
                // SAFETY: whoever enqueued it promises that.
                unsafe { function(data as *mut c_void) };
                IN_HOST_FUNCTION.set(false);
                Ok(())
            }
            Self::WaitValue { host, value } => {
                // SAFETY: four bytes are pinned there, aligned, and not freed while they are in use.
                let word = unsafe { AtomicU32::from_ptr(host as *mut u32) };
                while word.load(Ordering::Acquire) != value {
                    on.check()?;
                    thread::sleep(LOOK_EVERY);
                }
                Ok(())
            }
            Self::Launch(ref launch) => {
                return launch.run(&on.space, clock).map_err(|fault| {
                    on.explain(fault.why);
                    fault.code
                });
            }
        }?;
        Ok(used)
    }
}

/// Copies bytes. Those of either range may be known to be zero: then they take no memory.
///
/// # Safety
/// The bytes at `from` may be read, and those at `to` written.
unsafe fn copy(from: u64, to: u64, bytes: u64, are_zero: [bool; 2]) {
    let bytes = bytes as usize;
    match are_zero {
        [true, true] => {}
        // SAFETY: by the promise above.
        [true, false] => drop(unsafe { libc::memset(to as *mut _, 0, bytes) }),
        // SAFETY: by the promise above. C's function does not mind races.
        [false, _] => drop(unsafe { libc::memcpy(to as *mut _, from as *const _, bytes) }),
    }
}

/// Uses a range of the device piece by piece. Others may map and unmap between the pieces.
fn in_pieces(
    space: &SharedSpace,
    start: u64,
    bytes: u64,
    mut each: impl FnMut(&AddressSpace, u64, u64),
) -> Outcome {
    let end = start + bytes;
    for at in (start..end).step_by(PIECE_BYTES as usize) {
        let len = PIECE_BYTES.min(end - at);
        let space = space.read();
        space.check_access(at, len)?;
        each(&space, at, len);
    }
    Ok(())
}
