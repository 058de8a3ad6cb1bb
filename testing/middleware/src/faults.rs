//! Random faults.

use crate::Layer;
use planner_core::backend::{
    BackendError, Chunks, DeviceAddress, ErrorKind, FillError, HostRange, InputWriter, Paging,
    StateWriter, Transfers,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::fmt;

/// Random faults: copies that fail or take long, allocations that fail, and states and inputs that
/// cannot be filled. The same seed and the same calls give the same faults. A call that fails
/// changes nothing.
#[derive(Clone, Debug)]
pub struct Faults {
    rng: ChaCha8Rng,
    delayed_copies: u32,
    failed_copies: u32,
    failed_allocations: u32,
    failed_fills: u32,
}

/// The most repetitions of a delayed copy.
const MOST_DELAY: u32 = 32;

impl Faults {
    /// Makes no faults until some are requested.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let rng = ChaCha8Rng::seed_from_u64(seed);
        Self { rng, delayed_copies: 0, failed_copies: 0, failed_allocations: 0, failed_fills: 0 }
    }

    /// Makes one copy in `one_in` take up to 32 times as long, by repeating it.
    #[must_use]
    pub fn delayed_copies(self, one_in: u32) -> Self {
        Self { delayed_copies: one_in, ..self }
    }

    /// Makes one copy in `one_in` fail.
    #[must_use]
    pub fn failed_copies(self, one_in: u32) -> Self {
        Self { failed_copies: one_in, ..self }
    }

    /// Makes one allocation in `one_in` fail: of chunks, of the host block, of addresses, or of a
    /// mapping.
    #[must_use]
    pub fn failed_allocations(self, one_in: u32) -> Self {
        Self { failed_allocations: one_in, ..self }
    }

    /// Makes one call in `one_in` fail by which kernels fill states and inputs.
    #[must_use]
    pub fn failed_fills(self, one_in: u32) -> Self {
        Self { failed_fills: one_in, ..self }
    }

    /// Whether a fault that happens once in `one_in` times happens now.
    fn occurs(&mut self, one_in: u32) -> bool {
        one_in > 0 && self.rng.random_range(0..one_in) == 0
    }

    fn copy<E>(&mut self, mut copy: impl FnMut() -> Result<(), E>) -> Result<(), FaultyError<E>> {
        if self.occurs(self.failed_copies) {
            return Err(FaultyError::Injected(ErrorKind::Other));
        }
        let times = if self.occurs(self.delayed_copies) {
            self.rng.random_range(2..=MOST_DELAY)
        } else {
            1
        };
        (0..times).try_for_each(|_| copy()).map_err(FaultyError::Device)
    }

    fn fill<E>(
        &mut self,
        fill: impl FnOnce() -> Result<(), FillError<E>>,
    ) -> Result<(), FillError<FaultyError<E>>> {
        if self.occurs(self.failed_fills) {
            return Err(FillError::Device(FaultyError::Injected(ErrorKind::Other)));
        }
        fill().map_err(|error| error.map(FaultyError::Device))
    }

    fn allocate<E, T>(
        &mut self,
        kind: ErrorKind,
        allocate: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, FaultyError<E>> {
        if self.occurs(self.failed_allocations) {
            return Err(FaultyError::Injected(kind));
        }
        allocate().map_err(FaultyError::Device)
    }
}

/// An error of a device with [`Faults`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultyError<E> {
    /// A fault, reported as an error of this kind.
    Injected(ErrorKind),
    /// An error of the device itself.
    Device(E),
}

impl<E> From<E> for FaultyError<E> {
    fn from(error: E) -> Self {
        Self::Device(error)
    }
}

impl<E: fmt::Display> fmt::Display for FaultyError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Injected(ErrorKind::Other) => {
                write!(f, "injected fault: a copy or a fill failed")
            }
            Self::Injected(kind) => write!(f, "injected fault: an allocation failed with {kind:?}"),
            Self::Device(error) => error.fmt(f),
        }
    }
}

impl<E: BackendError> std::error::Error for FaultyError<E> {}

impl<E: BackendError> BackendError for FaultyError<E> {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Injected(kind) => *kind,
            Self::Device(error) => error.kind(),
        }
    }
}

impl<D: Transfers + Paging> Layer<D> for Faults {
    type Error = FaultyError<D::Error>;

    fn create_host(&mut self, device: &mut D, bytes: u64) -> Result<(), Self::Error> {
        self.allocate(ErrorKind::OutOfHostMemory, || device.create_host(bytes))
    }

    fn upload(
        &mut self,
        device: &mut D,
        from: HostRange,
        to: DeviceAddress,
    ) -> Result<(), Self::Error> {
        self.copy(|| device.upload(from, to))
    }

    fn download(
        &mut self,
        device: &mut D,
        from: DeviceAddress,
        to: HostRange,
    ) -> Result<(), Self::Error> {
        self.copy(|| device.download(from, to))
    }

    fn create(&mut self, device: &mut D, count: u64) -> Result<(), Self::Error> {
        self.allocate(ErrorKind::OutOfDeviceMemory, || device.create(count))
    }

    fn reserve(&mut self, device: &mut D, chunks: u64) -> Result<DeviceAddress, Self::Error> {
        self.allocate(ErrorKind::OutOfDeviceMemory, || device.reserve(chunks))
    }

    fn map(
        &mut self,
        device: &mut D,
        at: DeviceAddress,
        chunks: Chunks,
    ) -> Result<(), Self::Error> {
        self.allocate(ErrorKind::OutOfDeviceMemory, || device.map(at, chunks))
    }

    fn fill_states(
        &mut self,
        states: &mut StateWriter<'_, D>,
        fill: impl FnOnce(&mut StateWriter<'_, D>) -> Result<(), FillError<D::Error>>,
    ) -> Result<(), FillError<Self::Error>> {
        self.fill(|| fill(states))
    }

    fn fill_inputs(
        &mut self,
        inputs: &mut InputWriter<'_, D>,
        fill: impl FnOnce(&mut InputWriter<'_, D>) -> Result<(), FillError<D::Error>>,
    ) -> Result<(), FillError<Self::Error>> {
        self.fill(|| fill(inputs))
    }
}
