//! What a stream or a graph does, one thing at a time.
#![allow(unsafe_code, reason = "bytes are copied between addresses")]

use crate::Outcome;
use crate::driver::DRIVER;
use crate::ptx;
use std::sync::Arc;

/// What is copied at once.
const PIECE_BYTES: u64 = 256 << 10;

/// Work of the device.
#[derive(Clone, Debug)]
pub(crate) enum Task {
    /// To the device.
    Upload { host: usize, device: u64, bytes: u64 },
    /// From the device.
    Download { device: u64, host: usize, bytes: u64 },
    /// Sets bytes.
    Fill { device: u64, byte: u8, bytes: u64 },
    /// Runs a kernel.
    Launch(Arc<ptx::Launch>),
}

impl Task {
    /// Does it. While it uses memory, nothing is mapped or unmapped, but for between the pieces of
    /// a copy; a kernel that waits for time to pass uses none.
    pub(crate) fn run(&self) -> Outcome {
        match *self {
            Self::Upload { host, device, bytes } => DRIVER.upward.carry(bytes, || {
                in_pieces(device, bytes, |at, len| {
                    let host = host + (at - device) as usize;
                    // SAFETY: the device's bytes may be written, and the host's are pinned,
                    // which was checked when the copy was enqueued. C's function does not mind
                    // races.
                    unsafe { libc::memcpy(at as *mut _, host as *const _, len as usize) };
                })
            })?,
            Self::Download { device, host, bytes } => DRIVER.downward.carry(bytes, || {
                in_pieces(device, bytes, |at, len| {
                    let host = host + (at - device) as usize;
                    // SAFETY: as above.
                    unsafe { libc::memcpy(host as *mut _, at as *const _, len as usize) };
                })
            })?,
            Self::Fill { device, byte, bytes } => {
                let space = DRIVER.space();
                space.check_access(device, bytes)?;
                // SAFETY: the bytes may be written.
                unsafe { libc::memset(device as *mut _, byte.into(), bytes as usize) };
            }
            Self::Launch(ref launch) => launch.run()?,
        }
        Ok(())
    }
}

/// Uses a range of the device piece by piece, between which others may map and unmap.
fn in_pieces(start: u64, bytes: u64, mut each: impl FnMut(u64, u64)) -> Outcome {
    let end = start + bytes;
    for at in (start..end).step_by(PIECE_BYTES as usize) {
        let len = PIECE_BYTES.min(end - at);
        let space = DRIVER.space();
        space.check_access(at, len)?;
        each(at, len);
    }
    Ok(())
}
