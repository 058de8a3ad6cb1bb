//! What a stream or a graph does, one thing at a time.
#![allow(unsafe_code, reason = "bytes are copied between addresses")]

use crate::Outcome;
use crate::driver::DRIVER;
use crate::kernels::Kernel;

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
    Launch { kernel: &'static Kernel, arguments: Vec<u64> },
}

impl Task {
    /// Does it. While it uses memory, nothing is mapped or unmapped.
    pub(crate) fn run(&self) -> Outcome {
        match *self {
            Self::Upload { host, device, bytes } => DRIVER.upward.carry(bytes, || {
                let space = DRIVER.space();
                space.check_access(device, bytes)?;
                // SAFETY: the device's bytes may be written, and the host's are pinned, which
                // was checked when the copy was enqueued. C's function does not mind races.
                unsafe { libc::memcpy(device as *mut _, host as *const _, bytes as usize) };
                Ok(())
            })?,
            Self::Download { device, host, bytes } => DRIVER.downward.carry(bytes, || {
                let space = DRIVER.space();
                space.check_access(device, bytes)?;
                // SAFETY: as above.
                unsafe { libc::memcpy(host as *mut _, device as *const _, bytes as usize) };
                Ok(())
            })?,
            Self::Fill { device, byte, bytes } => {
                let space = DRIVER.space();
                space.check_access(device, bytes)?;
                // SAFETY: the bytes may be written.
                unsafe { libc::memset(device as *mut _, byte.into(), bytes as usize) };
            }
            Self::Launch { kernel, ref arguments } => (kernel.run)(arguments)?,
        }
        Ok(())
    }
}
