//! The traits that a backend implements (streams, transfers and paging), and the trait that an
//! embedder implements (kernels).
//!
//! # How to write a backend
//!
//! A backend is one value that implements [`Streams`], [`Transfers`] and [`Paging`]. It knows bytes
//! and addresses; it knows no graph, tensors or values. All calls come from one host thread, in
//! list order of the schedule.
//!
//! A call that returns an error changes nothing, and the backend must go on working. After an error
//! of work on the device, only [`Transfers::read_host`] must still work. An embedder may drop a
//! backend at any time, also while work is running. `docs/backends.md` shows how to write a
//! backend; the crate `conformance` checks every promise that is made here.
//!
//! ```
//! use planner_core::{PerStream, Stream};
//! use planner_core::backend::{BackendError, ErrorKind, ErrorType, Point, Streams};
//! # use core::fmt;
//!
//! /// Does all work when it is enqueued, so every point that is signalled is reached.
//! struct Device {
//!     signals: PerStream<u64>,
//! }
//!
//! #[derive(Debug)]
//! struct Unsignalled(Point);
//! # impl fmt::Display for Unsignalled {
//! #     fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { write!(f, "{:?}", self.0) }
//! # }
//! # impl core::error::Error for Unsignalled {}
//!
//! impl BackendError for Unsignalled {
//!     fn kind(&self) -> ErrorKind { ErrorKind::Other }
//! }
//!
//! impl ErrorType for Device {
//!     type Error = Unsignalled;
//! }
//!
//! impl Streams for Device {
//!     fn wait(&mut self, _: Stream, point: Point) -> Result<(), Unsignalled> {
//!         self.block_until(point)
//!     }
//!     fn signal(&mut self, stream: Stream) -> Result<Point, Unsignalled> {
//!         self.signals[stream] += 1;
//!         Ok(Point { stream, value: self.signals[stream] })
//!     }
//!     fn reached(&mut self, point: Point) -> Result<bool, Unsignalled> {
//!         self.block_until(point).map(|()| true)
//!     }
//!     fn block_until(&mut self, point: Point) -> Result<(), Unsignalled> {
//!         let is_signalled = point.value <= self.signals[point.stream];
//!         if is_signalled { Ok(()) } else { Err(Unsignalled(point)) }
//!     }
//! }
//! # let mut device = Device { signals: PerStream::all(0) };
//! # let point = device.signal(Stream::Upload).unwrap();
//! # assert!(device.reached(point).unwrap());
//! ```
//!
//! # How to write kernels
//!
//! Implement [`Kernels`] for a backend's device: kernels launch ops by methods of that device, and
//! write the values of states and inputs by typed writers. Nothing else knows the meaning of
//! tensors.
//!
//! ```
//! use planner_core::TensorId;
//! use planner_core::backend::{
//!     FillError, InputWriter, Kernels, Launch, StateWriter, Transfers,
//! };
//!
//! const WEIGHT: TensorId = TensorId(0);
//! const BATCH: TensorId = TensorId(1);
//!
//! struct Network {
//!     weight: Vec<f32>,
//!     batches: Vec<Vec<f32>>,
//! }
//!
//! impl<D: Transfers> Kernels<D> for Network {
//!     fn launch(&mut self, device: &mut D, launch: &Launch<'_>) -> Result<(), D::Error> {
//!         # let _ = (device, launch);
//!         // Enqueues the op at launch.reads and launch.writes, by methods of the device's own.
//!         Ok(())
//!     }
//!     fn fill_states(
//!         &mut self,
//!         states: &mut StateWriter<'_, D>,
//!     ) -> Result<(), FillError<D::Error>> {
//!         states.write(WEIGHT, &self.weight)
//!     }
//!     fn fill_inputs(
//!         &mut self,
//!         inputs: &mut InputWriter<'_, D>,
//!     ) -> Result<(), FillError<D::Error>> {
//!         let batch = &self.batches[inputs.iteration() as usize % self.batches.len()];
//!         inputs.write(BATCH, batch)
//!     }
//! }
//! ```
//!
//! A `&mut` of a backend is a backend, and a `&mut` of kernels is kernels.

use crate::graph::{OpId, TensorId};

mod fill;
mod kernel;
mod paging;
mod stream;
mod transfer;

pub use fill::{FillError, InputWriter, StateWriter, WriteError};
pub use kernel::{HostKernels, HostLaunch, Kernels, Launch};
pub use paging::{Chunks, DeviceAddress, DeviceRange, DeviceRanges, Paging};
pub use stream::{Point, Streams};
pub use transfer::{HostRange, HostRanges, Transfers};

/// The kinds of device errors. An executor or an embedder reacts to each kind differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The device has no memory left.
    OutOfDeviceMemory,
    /// The host has no memory left, or no memory that can be pinned.
    OutOfHostMemory,
    /// The device is lost; no work enqueued on it will end.
    Lost,
    /// Anything else; the error's text says more.
    Other,
}

/// An error of a backend: a kind, and the driver's own code.
pub trait BackendError: core::error::Error {
    /// The kind.
    fn kind(&self) -> ErrorKind;

    /// The op and the tensor that the error's text names by number, so that a caller that knows the
    /// graph can add their names.
    fn ids(&self) -> ErrorIds {
        ErrorIds::default()
    }
}

/// The ids that an error's text prints as numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ErrorIds {
    /// The op.
    pub op: Option<OpId>,
    /// The tensor.
    pub tensor: Option<TensorId>,
}

impl ErrorIds {
    /// The same ids with a tensor.
    #[must_use]
    pub const fn with_tensor(self, tensor: TensorId) -> Self {
        Self { op: self.op, tensor: Some(tensor) }
    }

    /// The ids of an error that names only a tensor.
    #[must_use]
    pub const fn of_tensor(tensor: TensorId) -> Self {
        Self { op: None, tensor: Some(tensor) }
    }

    /// The ids of an error that names only an op.
    #[must_use]
    pub const fn of_op(op: OpId) -> Self {
        Self { op: Some(op), tensor: None }
    }
}

/// The error type that all traits of one backend share.
pub trait ErrorType {
    /// The error.
    type Error: BackendError;
}

impl<T: ErrorType + ?Sized> ErrorType for &mut T {
    type Error = T::Error;
}
