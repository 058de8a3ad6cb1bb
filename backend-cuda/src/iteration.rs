//! The number of the iteration, at an address for kernels.

use crate::CudaDevice;
use crate::driver::{self, Argument};
use crate::error::CudaError;
use planner_core::Stream;
use planner_core::backend::{DeviceAddress, Launch};

/// The size of each of two numbers: the addend of a graph launch for the captured numbers, and the
/// number of the iteration.
const WORD_BYTES: u64 = 8;

impl CudaDevice {
    /// The address of a number of 64 bits in device memory. While the work of this launch runs,
    /// enqueued or captured, the number is [`Launch::iteration`].
    ///
    /// A capture freezes `Launch::iteration` itself: a seed or a step size that the host computes
    /// from it stays the same in every launch of the graph. A kernel that reads this number gets
    /// the iteration in which it runs. The number stays at its address as long as the device lives,
    /// and only work on the compute stream may read it.
    ///
    /// # Errors
    /// The errors of the driver.
    pub fn iteration(&mut self, launch: &Launch<'_>) -> Result<DeviceAddress, CudaError> {
        let first = self.iteration_words()?;
        let shown = DeviceAddress(first + WORD_BYTES);
        if self.iteration_shown != Some(launch.iteration) {
            let other = if self.is_capturing() { first } else { 0 };
            self.set_number(shown.0, other, launch.iteration)?;
            self.iteration_shown = Some(launch.iteration);
        }
        Ok(shown)
    }

    /// Sets the number that the next launch of a graph adds to the captured iterations.
    pub(crate) fn set_first_iteration(&mut self, iterations_later: u64) -> Result<(), CudaError> {
        let first = self.iteration_words()?;
        self.set_number(first, 0, iterations_later)
    }

    /// The address of both numbers. The first call allocates them and loads the kernel that sets
    /// them.
    pub(crate) fn iteration_words(&mut self) -> Result<u64, CudaError> {
        self.load_kernels()?;
        let words = match self.iteration_words {
            Some(words) => words,
            None => self.working_memory(2 * WORD_BYTES)?,
        };
        Ok(*self.iteration_words.insert(words))
    }

    /// Enqueues a kernel that writes the number of an iteration to an address. It reads the number
    /// where other kernels read it.
    pub(crate) fn write_iteration(
        &mut self,
        launch: &Launch<'_>,
        at: DeviceAddress,
    ) -> Result<(), CudaError> {
        self.allow_access()?;
        let shown = self.iteration(launch)?;
        self.set_number(at.0, shown.0, 0)
    }

    fn set_number(&mut self, at: u64, other: u64, addend: u64) -> Result<(), CudaError> {
        let set_number = self.load_kernels()?.set_number;
        let compute = self.queued[Stream::Compute as usize].stream();
        let arguments = [at, other, addend].map(Argument::Long);
        driver::launch(compute, set_number, [1, 1], &arguments)
    }
}
