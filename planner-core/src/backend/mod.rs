//! What a backend provides: streams, transfers, paging; and what an embedder brings: kernels.
//!
//! A backend is one value that implements [`Streams`], [`Transfers`] and [`Paging`]. All
//! calls come from one host thread, in list order of the schedule.
//!
//! A call that is refused changes nothing, and the backend goes on working; after an error of
//! work on the device, nothing more need work but reading the host's block. A backend may be
//! dropped at any time, with work under way. `docs/backends.md` shows how to write one; the
//! crate `conformance` checks every promise that is made here.

mod kernel;
mod paging;
mod stream;
mod transfer;

pub use kernel::{Kernels, Launch};
pub use paging::{Addresses, Chunks, DeviceAddress, Paging};
pub use stream::{Point, Streams};
pub use transfer::{HostRange, Transfers};

/// What went wrong on a device, in the terms that an executor or an embedder acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The device has no memory left.
    OutOfDeviceMemory,
    /// The host has no memory left, or none that can be pinned.
    OutOfHostMemory,
    /// The device is gone; nothing enqueued on it will end.
    Lost,
    /// Anything else; the error itself says more.
    Other,
}

/// An error of a backend: a kind, with the driver's own code inside.
pub trait BackendError: core::error::Error {
    /// The kind.
    fn kind(&self) -> ErrorKind;
}

/// The error type that all traits of one backend share.
pub trait ErrorType {
    /// The error.
    type Error: BackendError;
}
