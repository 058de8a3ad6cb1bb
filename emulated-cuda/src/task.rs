//! What a stream or a graph does, one thing at a time.
#![allow(unsafe_code, reason = "bytes are copied between addresses")]

use crate::Outcome;
use crate::driver::DRIVER;
use crate::ptx;
use std::sync::Arc;

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
    /// Does it. While it uses memory, nothing is mapped or unmapped; a kernel that waits for time
    /// to pass uses none.
    pub(crate) fn run(&self) -> Outcome {
        match *self {
            Self::Upload { host, device, bytes } => {
                let space = DRIVER.space();
                space.check_access(device, bytes)?;
                // SAFETY: the device's bytes may be written, and the host's are pinned, which
                // was checked when the copy was enqueued. C's function does not mind races.
                unsafe { libc::memcpy(device as *mut _, host as *const _, bytes as usize) };
            }
            Self::Download { device, host, bytes } => {
                let space = DRIVER.space();
                space.check_access(device, bytes)?;
                // SAFETY: as above.
                unsafe { libc::memcpy(host as *mut _, device as *const _, bytes as usize) };
            }
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
