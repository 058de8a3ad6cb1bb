//! The device: what its work uses, whichever thread does it.

use crate::connection::Connections;
use crate::link::Link;
use crate::outcome::Outcome;
use crate::physical::PhysicalMemory;
use crate::pinned::PinnedMemory;
use crate::settings::Settings;
use crate::space::{AddressSpace, SharedSpace};
use crate::variables::{Variable, Variables};
use cudarc::driver::sys::CUresult::{self, *};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// An entry of the device's page tables.
const TABLE_ENTRY_BYTES: u64 = 8;

#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) space: SharedSpace,
    pub(crate) pinned: PinnedMemory,
    pub(crate) h2d: Link,
    pub(crate) d2h: Link,
    pub(crate) variables: Variables,
    pub(crate) connections: Connections,
    /// Work that a stream holds, at most.
    pub(crate) queue_depth: u64,
    /// When the timer stood at zero: before any call.
    pub(crate) timer_zero: Instant,
    /// The first error of work, or zero.
    error: AtomicU32,
    explanation: Mutex<String>,
    /// Held while a stream calls a function of the host.
    pub(crate) host_functions: Mutex<()>,
}

impl Device {
    /// Creates the device.
    ///
    /// # Panics
    /// Where the granularity is no power of two or less than a page.
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            space: SharedSpace::new(space(settings.memory_bytes, settings.granularity_bytes)),
            pinned: PinnedMemory::new(settings.pinned_bytes),
            h2d: Link::new(settings.h2d),
            d2h: Link::new(settings.d2h),
            variables: Variables::from_environment(),
            connections: Connections::default(),
            queue_depth: settings.queue_depth,
            timer_zero: Instant::now(),
            error: AtomicU32::new(0),
            explanation: Mutex::default(),
            host_functions: Mutex::default(),
        }
    }

    /// Changes the size of the memory and of its mappings. Returns false where it is in use, or has
    /// no room for what the driver has taken.
    pub(crate) fn resize(&self, memory_bytes: u64, granularity_bytes: u64) -> bool {
        let mut space_now = self.space.write();
        let mut next = space(memory_bytes, granularity_bytes);
        let driver_bytes = space_now.memory().driver_bytes();
        let fits = space_now.live() == 0 && next.memory_mut().take(driver_bytes).is_ok();
        if fits {
            *space_now = next;
        }
        fits
    }

    /// Takes memory of the device for the driver. Returns what [`give_back`](Self::give_back) is to
    /// give back.
    pub(crate) fn take(&self, bytes: u64) -> Outcome<u64> {
        self.space.write().memory_mut().take(bytes)
    }

    pub(crate) fn give_back(&self, bytes: u64) {
        self.space.write().memory_mut().give_back(bytes);
    }

    /// Pins memory of the host. The device needs memory for the tables of its pages.
    pub(crate) fn pin(&self, bytes: usize) -> Outcome<usize> {
        let pages = (bytes as u64).div_ceil(self.variables.get(Variable::HostPage).max(1));
        let table_bytes = self.take(pages.saturating_mul(TABLE_ENTRY_BYTES))?;
        let pinned = self.pinned.allocate(bytes, table_bytes);
        pinned.inspect_err(|_| self.give_back(table_bytes))
    }

    /// Blocks while a stream calls a function of the host, since a driver may hold a lock meanwhile.
    pub(crate) fn let_host_function_end(&self) {
        drop(self.host_functions.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Fails once work has failed, with the error of that work.
    pub(crate) fn check(&self) -> Outcome {
        match self.error.load(Ordering::SeqCst) {
            0 => Ok(()),
            code if code == CUDA_ERROR_ILLEGAL_ADDRESS as u32 => Err(CUDA_ERROR_ILLEGAL_ADDRESS),
            code if code == CUDA_ERROR_MISALIGNED_ADDRESS as u32 => {
                Err(CUDA_ERROR_MISALIGNED_ADDRESS)
            }
            _ => Err(CUDA_ERROR_LAUNCH_FAILED),
        }
    }

    /// Notes that work has failed. Nothing else is done from now on, and every call fails.
    pub(crate) fn fail(&self, error: CUresult) {
        // The first failure stays.
        let _ = self.error.compare_exchange(0, error as u32, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Fails, as a device would, if work uses any of a range that is unmapped or freed.
    pub(crate) fn check_unused(&self, at: u64, bytes: u64) -> Outcome {
        if !self.space.usage.overlaps(&(at..at.saturating_add(bytes))) {
            return Ok(());
        }
        self.explain(format!("{bytes} bytes at {at:#x} are freed while work uses them"));
        self.fail(CUDA_ERROR_ILLEGAL_ADDRESS);
        Err(CUDA_ERROR_ILLEGAL_ADDRESS)
    }

    /// Forgets a failure, and frees the memory that nobody could free since, and that of the host.
    pub(crate) fn recover(&self) {
        if self.error.swap(0, Ordering::SeqCst) != 0 {
            self.space.write().clear();
        }
        self.give_back(self.pinned.clear());
    }

    /// Notes why PTX is refused or a kernel has failed, and prints it to the standard error.
    pub(crate) fn explain(&self, why: String) {
        eprintln!("emulated CUDA: {why}");
        *self.explanation.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// Returns what was explained last.
    pub(crate) fn explanation(&self) -> String {
        self.explanation.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// An address space with nothing in it.
fn space(memory_bytes: u64, granularity_bytes: u64) -> AddressSpace {
    assert!(
        granularity_bytes.is_power_of_two() && granularity_bytes >= 4096,
        "EMULATED_CUDA_GRANULARITY has to be a power of two and at least 4096"
    );
    let memory = PhysicalMemory::new(memory_bytes - memory_bytes % granularity_bytes);
    AddressSpace::new(memory, granularity_bytes)
}
