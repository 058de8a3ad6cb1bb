//! The driver and its devices, and how a device is opened.

use crate::CudaDevice;
use crate::driver::{self, Context, Pinned, granularity_bytes};
use crate::error::{CudaError, Unavailable};
use crate::host_memory::HostMemory;
use cudarc::driver::sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED;
use std::path::Path;
use std::time::{Duration, Instant};

/// The oldest version of CUDA that a driver must support, as the driver counts versions.
const VERSION: i32 = 12_000;

/// The driver.
#[derive(Clone, Copy, Debug)]
pub struct Cuda {
    version: i32,
}

/// The properties of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its index among the devices.
    pub ordinal: usize,
    /// Its name.
    pub name: String,
    /// The version of CUDA that the driver supports.
    pub driver: String,
    /// Memory that is free now.
    pub free_bytes: u64,
    /// Total memory.
    pub memory_bytes: u64,
    /// The amount of host memory that can be pinned, as reported by the system.
    pub host_bytes: u64,
    /// A chunk size must be a multiple of this.
    pub granularity_bytes: u64,
}

/// How a device is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Its index among the devices.
    pub ordinal: usize,
    /// The size of chunks, a multiple of the granularity. `None` for the granularity itself.
    pub chunk_bytes: Option<u64>,
}

/// A device that has been opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opened {
    pub(crate) context: Context,
    pub(crate) chunk_bytes: u64,
    pub(crate) memory_bytes: u64,
}

impl Cuda {
    /// Finds the driver: the library at `path`, or the system's library. A library at a path serves
    /// the whole process and must have the name `libcuda.so`. It is opened, which runs its code,
    /// and called like a driver: name only a file that you trust.
    ///
    /// # Errors
    /// Why there is no driver.
    pub fn load(path: Option<&Path>) -> Result<Self, Unavailable> {
        driver::load(path)?;
        let version = driver::version()?;
        if version < VERSION {
            return Err(Unavailable(format!(
                "the CUDA driver supports version {}, but version {} is needed",
                shown(version),
                shown(VERSION)
            )));
        }
        Ok(Self { version })
    }

    /// Reads the properties of a device.
    ///
    /// # Errors
    /// The device does not exist or has no virtual memory management, and the errors of the driver.
    pub fn device(&self, ordinal: usize) -> Result<DeviceInfo, Unavailable> {
        let context = self.context(ordinal)?;
        let [free_bytes, memory_bytes] = driver::memory_bytes(context)?;
        Ok(DeviceInfo {
            ordinal,
            name: driver::device_name(ordinal)?,
            driver: format!("CUDA {}", shown(self.version)),
            free_bytes,
            memory_bytes,
            host_bytes: HostMemory::read(Path::new("/")).free_bytes.unwrap_or(u64::MAX),
            granularity_bytes: granularity_bytes(context)?,
        })
    }

    /// Host memory in bytes that can be pinned. The system reports it, and the driver is tried in
    /// steps if the report leaves doubt. A limit of locked memory counts if a block beyond it
    /// cannot be pinned. If the system reports nothing, the largest block counts that is pinned
    /// within seconds.
    ///
    /// # Errors
    /// The errors of [`Cuda::device`].
    pub fn pinnable_bytes(&self, ordinal: usize) -> Result<u64, Unavailable> {
        let context = self.context(ordinal)?;
        let can_pin = |bytes| Pinned::new(context, bytes).is_ok();
        Ok(pinnable_bytes(HostMemory::read(Path::new("/")), can_pin))
    }

    /// Fails unless a block of this size can be pinned.
    pub(crate) fn check_pinnable(self, ordinal: usize, bytes: u64) -> Result<(), Unavailable> {
        let pinned = Pinned::new(self.context(ordinal)?, bytes);
        pinned.map(drop).map_err(|error| {
            Unavailable(format!("host memory of {bytes} bytes cannot be pinned: {error}"))
        })
    }

    /// The number of devices.
    ///
    /// # Errors
    /// The errors of the driver.
    pub fn count(&self) -> Result<usize, Unavailable> {
        Ok(driver::device_count()?)
    }

    /// The devices of the machine, as text.
    fn names(self) -> Result<String, Unavailable> {
        let name = |ordinal| Ok(format!("{ordinal} ({})", driver::device_name(ordinal)?));
        let names = (0..self.count()?).map(name).collect::<Result<Vec<_>, CudaError>>()?;
        Ok(match &names[..] {
            [] => "the machine has none".to_owned(),
            names => format!("there is {}", names.join(", ")),
        })
    }

    fn context(self, ordinal: usize) -> Result<Context, Unavailable> {
        if ordinal >= self.count()? {
            let there_are = self.names()?;
            return Err(Unavailable(format!("there is no CUDA device {ordinal}; {there_are}")));
        }
        let context = driver::context(ordinal)?;
        let attribute = CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED;
        match driver::attribute(context, attribute)? {
            0 => Err(Unavailable("the device has no virtual memory management".to_owned())),
            _ => Ok(context),
        }
    }

    /// Opens a device.
    ///
    /// # Errors
    /// The errors of [`Cuda::device`], and a chunk size that the device does not support.
    pub fn open(&self, options: &Options) -> Result<CudaDevice, Unavailable> {
        let context = self.context(options.ordinal)?;
        let granularity = granularity_bytes(context)?;
        let chunk_bytes = options.chunk_bytes.unwrap_or(granularity);
        if chunk_bytes == 0 || !chunk_bytes.is_multiple_of(granularity) {
            return Err(Unavailable(format!(
                "a chunk size of {chunk_bytes} bytes is not a positive multiple of the device's \
                 granularity of {granularity} bytes"
            )));
        }
        let [_, memory_bytes] = driver::memory_bytes(context)?;
        let opened = Opened { context, chunk_bytes, memory_bytes };
        Ok(CudaDevice::new(opened)?)
    }
}

/// The smallest block that is tried. A block beyond a limit of locked memory exceeds it by this
/// much.
const STEP_BYTES: u64 = 64 << 20;
/// How long larger blocks are tried.
const TRIALS: Duration = Duration::from_secs(2);

/// Host memory that can be pinned, from the report of the system and by trying.
fn pinnable_bytes(memory: HostMemory, can_pin: impl Fn(u64) -> bool) -> u64 {
    let HostMemory { free_bytes, lock_bytes } = memory;
    match (free_bytes, lock_bytes) {
        (Some(free), Some(lock)) if lock < free => {
            let beyond = lock.saturating_add(STEP_BYTES).min(free);
            if can_pin(beyond) { free } else { lock }
        }
        (Some(free), _) => free,
        (None, _) => {
            let start = Instant::now();
            let sizes = std::iter::successors(Some(STEP_BYTES), |bytes| bytes.checked_mul(2));
            let pinned = sizes.take_while(|&bytes| start.elapsed() < TRIALS && can_pin(bytes));
            pinned.last().unwrap_or(0)
        }
    }
}

fn shown(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_doubt_is_tried() {
        let pinnable = |free, lock, most| {
            let memory = HostMemory { free_bytes: free, lock_bytes: lock };
            pinnable_bytes(memory, |bytes| bytes <= most)
        };
        const GIB: u64 = 1 << 30;
        assert_eq!(pinnable(Some(9 * GIB), None, 0), 9 * GIB, "nothing is in doubt");
        assert_eq!(pinnable(Some(GIB), Some(2 * GIB), 0), GIB);
        // First a driver that pins memory itself, then a driver that locks memory.
        assert_eq!(pinnable(Some(9 * GIB), Some(8 << 20), 2 * GIB), 9 * GIB);
        assert_eq!(pinnable(Some(9 * GIB), Some(8 << 20), 8 << 20), 8 << 20);
        assert_eq!(pinnable(None, None, 3 * GIB), 2 * GIB);
        assert_eq!(pinnable(None, None, 0), 0);
    }
}
