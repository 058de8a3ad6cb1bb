//! The kernels of this crate, in `kernels.ptx`.

use crate::CudaDevice;
use crate::driver::{self, Argument, Function, Module, Working};
use crate::error::CudaError;
use cudarc::driver::sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as MULTIPROCESSOR_COUNT;
use planner_core::Stream;
use planner_core::backend::DeviceAddress;
use std::ffi::CStr;

/// The output of `compile-kernels` for `kernels.cu`.
const PTX: &CStr =
    match CStr::from_bytes_with_nul(concat!(include_str!("kernels.ptx"), "\0").as_bytes()) {
        Ok(ptx) => ptx,
        Err(_) => panic!("a text without zeros"),
    };

/// The number of blocks of 256 threads that a multiprocessor of most devices holds.
const BLOCKS_OF_MULTIPROCESSOR: u64 = 8;

/// The kernels.
#[derive(Debug)]
pub(crate) struct Kernels {
    pub(crate) read: Function,
    pub(crate) combine: Function,
    pub(crate) write: Function,
    occupy: Function,
    timer_tick: Function,
    pub(crate) set_number: Function,
    /// The number of blocks that the device runs at once.
    pub(crate) most_blocks: u64,
    _module: Module,
}

impl CudaDevice {
    /// Loads the kernels, unless they are loaded.
    pub(crate) fn load_kernels(&mut self) -> Result<&Kernels, CudaError> {
        let kernels = match self.kernels.take() {
            Some(kernels) => kernels,
            None => self.loaded()?,
        };
        Ok(self.kernels.insert(kernels))
    }

    fn loaded(&self) -> Result<Kernels, CudaError> {
        let module = Module::new(self.context, PTX)?;
        let multiprocessors = driver::attribute(self.context, MULTIPROCESSOR_COUNT)?;
        Ok(Kernels {
            most_blocks: multiprocessors.max(1) as u64 * BLOCKS_OF_MULTIPROCESSOR,
            read: module.function(c"integrity_read")?,
            combine: module.function(c"integrity_combine")?,
            write: module.function(c"integrity_write")?,
            occupy: module.function(c"occupy")?,
            timer_tick: module.function(c"timer_tick")?,
            set_number: module.function(c"set_number")?,
            _module: module,
        })
    }

    /// The address of new working memory for kernels. It lives as long as the device.
    pub(crate) fn working_memory(&mut self, bytes: u64) -> Result<u64, CudaError> {
        let working = Working::new(self.context, bytes)?;
        let at = working.at;
        self.working.push(working);
        Ok(at)
    }

    /// Keeps a stream busy for a time with one waiting thread: for schedules whose ops have only
    /// durations, and for delays in tests.
    ///
    /// # Errors
    /// The errors of the driver.
    pub fn occupy(&mut self, stream: Stream, duration_ns: u64) -> Result<(), CudaError> {
        self.allow_access()?;
        let occupy = self.load_kernels()?.occupy;
        let stream = self.queued[stream as usize].stream();
        driver::launch(stream, occupy, [1, 1], &[Argument::Long(duration_ns)])
    }

    /// Writes the time between two ticks of the kernels' timer in nanoseconds (64 bits) to an address,
    /// by work on compute.
    pub(crate) fn write_timer_tick(&mut self, to: DeviceAddress) -> Result<(), CudaError> {
        self.allow_access()?;
        self.space.addresses.check_mapped(to, 8)?;
        let timer_tick = self.load_kernels()?.timer_tick;
        let stream = self.queued[Stream::Compute as usize].stream();
        driver::launch(stream, timer_tick, [1, 1], &[Argument::Long(to.0)])
    }
}
