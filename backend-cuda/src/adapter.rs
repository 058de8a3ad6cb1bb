//! The driver, its devices, and how one is opened.

use crate::CudaDevice;
use crate::driver::{self, granularity_bytes};
use crate::error::{CudaError, Unavailable, named};
use cudarc::driver::sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED;
use cudarc::driver::{CudaContext, result};
use std::path::Path;
use std::sync::Arc;

/// The oldest version of CUDA that a driver must support, as the driver counts them.
const VERSION: i32 = 12_000;

/// The driver.
#[derive(Clone, Copy, Debug)]
pub struct Cuda {
    version: i32,
}

/// What is known of a device.
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
    /// All of its memory.
    pub memory_bytes: u64,
    /// Memory of the host, as far as the system tells.
    pub host_bytes: u64,
    /// What sizes of chunks must be multiples of.
    pub granularity_bytes: u64,
}

/// How a device is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Its index among the devices.
    pub ordinal: usize,
    /// Size of chunks, a multiple of the granularity; else that.
    pub chunk_bytes: Option<u64>,
}

/// A device that has been opened.
pub(crate) struct Opened {
    pub(crate) context: Arc<CudaContext>,
    pub(crate) chunk_bytes: u64,
    pub(crate) memory_bytes: u64,
}

impl Cuda {
    /// Finds the driver: the library at `path`, or the system's. A library by its path is taken
    /// for the whole process, and must call itself `libcuda.so`. Opening it runs its code in this
    /// process, so pass only a path that you trust.
    ///
    /// # Errors
    /// Why there is none.
    pub fn load(path: Option<&Path>) -> Result<Self, Unavailable> {
        driver::load(path)?;
        let version = driver::version()?;
        if version < VERSION {
            return Err(Unavailable(format!(
                "the CUDA driver supports version {}, but {} is needed",
                shown(version),
                shown(VERSION)
            )));
        }
        Ok(Self { version })
    }

    /// What is known of a device.
    ///
    /// # Errors
    /// A device that does not exist or has no virtual memory management, and those of the
    /// driver.
    pub fn device(&self, ordinal: usize) -> Result<DeviceInfo, Unavailable> {
        let context = self.context(ordinal)?;
        let (free, total) = named("cuMemGetInfo", context.mem_get_info())?;
        Ok(DeviceInfo {
            ordinal,
            name: named("cuDeviceGetName", context.name())?,
            driver: format!("CUDA {}", shown(self.version)),
            free_bytes: free as u64,
            memory_bytes: total as u64,
            host_bytes: host_bytes(),
            granularity_bytes: granularity_bytes(&context)?,
        })
    }

    /// How many devices there are.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn count(&self) -> Result<usize, Unavailable> {
        let count = named("cuDeviceGetCount", result::device::get_count())?;
        Ok(count.max(0) as usize)
    }

    /// Which devices there are, in words.
    fn names(self) -> Result<String, Unavailable> {
        let name = |ordinal| {
            let device = named("cuDeviceGet", result::device::get(ordinal))?;
            let name = named("cuDeviceGetName", result::device::get_name(device))?;
            Ok(format!("{ordinal} ({name})"))
        };
        let names = (0..self.count()? as i32).map(name).collect::<Result<Vec<_>, CudaError>>()?;
        Ok(match &names[..] {
            [] => "the machine has none".to_owned(),
            names => format!("there is {}", names.join(", ")),
        })
    }

    fn context(self, ordinal: usize) -> Result<Arc<CudaContext>, Unavailable> {
        if ordinal >= self.count()? {
            let there_are = self.names()?;
            return Err(Unavailable(format!("there is no CUDA device {ordinal}; {there_are}")));
        }
        let context = named("cuDevicePrimaryCtxRetain", CudaContext::new(ordinal))?;
        let attribute = CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED;
        match named("cuDeviceGetAttribute", context.attribute(attribute))? {
            0 => Err(Unavailable("the device has no virtual memory management".to_owned())),
            _ => Ok(context),
        }
    }

    /// Opens a device.
    ///
    /// # Errors
    /// Those of [`Cuda::device`], and a size of chunks that the device does not have.
    pub fn open(&self, options: &Options) -> Result<CudaDevice, Unavailable> {
        let context = self.context(options.ordinal)?;
        let granularity = granularity_bytes(&context)?;
        let chunk_bytes = options.chunk_bytes.unwrap_or(granularity);
        if chunk_bytes == 0 || !chunk_bytes.is_multiple_of(granularity) {
            return Err(Unavailable(format!(
                "a chunk size of {chunk_bytes} bytes is not a positive multiple of the device's \
                 granularity of {granularity} bytes"
            )));
        }
        let (_, memory_bytes) = named("cuMemGetInfo", context.mem_get_info())?;
        let opened = Opened { context, chunk_bytes, memory_bytes: memory_bytes as u64 };
        Ok(CudaDevice::new(opened)?)
    }
}

fn shown(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// The host's memory, as Linux has it; more than there can be where the system does not tell.
fn host_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.map_or(u64::MAX, |kib| kib * 1024)
}
