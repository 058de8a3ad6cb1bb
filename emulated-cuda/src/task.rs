//! Tasks: what a stream or a graph does, one thing at a time.
#![allow(unsafe_code, reason = "bytes are copied between addresses")]

use crate::clock::Clock;
use crate::device::Device;
use crate::outcome::Outcome;
use crate::ptx::Launch;
use crate::space::SharedSpace;
use std::sync::Arc;

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
}

impl Task {
    /// Does it. While it uses memory, nothing is mapped or unmapped, except between the pieces of
    /// a copy. A kernel that waits for time to pass uses none.
    pub(crate) fn run(&self, on: &Device, clock: &mut Clock) -> Outcome {
        match *self {
            Self::CopyH2D { host, device, bytes } => on.h2d.transfer(&on.d2h, bytes, clock, || {
                in_pieces(&on.space, device, bytes, |at, len| {
                    let host = host + (at - device) as usize;
                    // SAFETY: the device's bytes may be written, and the host's are pinned,
                    // which was checked when the copy was enqueued. C's function does not mind
                    // races.
                    unsafe { libc::memcpy(at as *mut _, host as *const _, len as usize) };
                })
            }),
            Self::CopyD2H { device, host, bytes } => on.d2h.transfer(&on.h2d, bytes, clock, || {
                in_pieces(&on.space, device, bytes, |at, len| {
                    let host = host + (at - device) as usize;
                    // SAFETY: as above.
                    unsafe { libc::memcpy(host as *mut _, at as *const _, len as usize) };
                })
            }),
            Self::Fill { device, byte, bytes } => {
                let space = on.space.read();
                space.check_access(device, bytes)?;
                // SAFETY: the bytes may be written.
                unsafe { libc::memset(device as *mut _, byte.into(), bytes as usize) };
                Ok(())
            }
            Self::Launch(ref launch) => launch.run(&on.space, clock).map_err(|fault| {
                on.explain(fault.why);
                fault.code
            }),
        }
    }
}

/// Uses a range of the device piece by piece. Others may map and unmap between the pieces.
fn in_pieces(
    space: &SharedSpace,
    start: u64,
    bytes: u64,
    mut each: impl FnMut(u64, u64),
) -> Outcome {
    let end = start + bytes;
    for at in (start..end).step_by(PIECE_BYTES as usize) {
        let len = PIECE_BYTES.min(end - at);
        let space = space.read();
        space.check_access(at, len)?;
        each(at, len);
    }
    Ok(())
}
