//! The number of the iteration, at addresses for kernels.

use crate::CudaDevice;
use crate::driver::{self, Argument};
use crate::error::CudaError;
use planner_core::Stream;
use planner_core::backend::{DeviceAddress, Launch};

/// The size of each of three numbers: the addend of a graph launch for the captured numbers, and the
/// number of the iteration for each stream of launches.
const WORD_BYTES: u64 = 8;

/// The numbers in device memory.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    /// The address of the addend, once a kernel needs it. The numbers follow.
    words: Option<u64>,
    /// The numbers of compute and of the network, if they are known.
    iterations: [Option<u64>; 2],
}

impl Shown {
    /// Forgets the numbers, and returns whether any number was known.
    pub(crate) fn forget(&mut self) -> bool {
        std::mem::take(&mut self.iterations).iter().any(Option::is_some)
    }
}

impl CudaDevice {
    /// The address of a number of 64 bits in device memory. While the work of this launch runs,
    /// enqueued or captured, the number is [`Launch::iteration`].
    ///
    /// A capture freezes `Launch::iteration` itself: a seed or a step size that the host computes
    /// from it stays the same in every launch of the graph. A kernel that reads this number gets
    /// the iteration in which it runs. The number stays at its address as long as the device lives,
    /// and only work on the stream of the launch may read it.
    ///
    /// # Errors
    /// The errors of the driver.
    pub fn iteration(&mut self, launch: &Launch<'_>) -> Result<DeviceAddress, CudaError> {
        let addend = self.iteration_words()?;
        let number = usize::from(launch.stream == Stream::Network);
        let shown = addend + (1 + number as u64) * WORD_BYTES;
        if self.shown.iterations[number] != Some(launch.iteration) {
            let other = if self.is_capturing() { addend } else { 0 };
            self.set_number(launch.stream, shown, other, launch.iteration)?;
            self.shown.iterations[number] = Some(launch.iteration);
        }
        Ok(DeviceAddress(shown))
    }

    /// Sets the number that the next launch of a graph adds to the captured iterations.
    pub(crate) fn set_first_iteration(&mut self, iterations_later: u64) -> Result<(), CudaError> {
        let addend = self.iteration_words()?;
        self.set_number(Stream::Compute, addend, 0, iterations_later)
    }

    /// The address of the numbers. The first call allocates them and loads the kernel that sets
    /// them.
    pub(crate) fn iteration_words(&mut self) -> Result<u64, CudaError> {
        self.load_kernels()?;
        let words = match self.shown.words {
            Some(words) => words,
            None => self.working_memory(3 * WORD_BYTES)?,
        };
        Ok(*self.shown.words.insert(words))
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
        self.set_number(launch.stream, at.0, shown.0, 0)
    }

    fn set_number(
        &mut self,
        on: Stream,
        at: u64,
        other: u64,
        addend: u64,
    ) -> Result<(), CudaError> {
        let set_number = self.load_kernels()?.set_number;
        let arguments = [at, other, addend].map(Argument::Long);
        driver::launch(self.queued[on as usize].stream(), set_number, [1, 1], &arguments)
    }
}
