//! Spillway on CUDA.
//!
//! | Spillway | CUDA |
//! |---|---|
//! | device | the primary context, kept as long as the process |
//! | virtual range | a part of a reservation of 16 GiB or more (`cuMemAddressReserve`) |
//! | chunk | a handle of `cuMemCreate`, a multiple of the device's granularity, created at set-up |
//! | `map` | `cuMemMap` for each chunk; before the next work, one `cuMemSetAccess` for adjacent chunks |
//! | stream, point | a stream that does not wait for the default stream; an event for each signal that a wait may name, used again once it is reached. After 4,096 events the host waits for the oldest |
//! | host block | one block of pinned memory |
//! | op on the host | `cuLaunchHostFunc` in a stream of its own hands the op to a thread, and the stream waits for a value that the thread sets (`cuStreamWaitValue32`); in a graph, a host node |
//!
//! A plan without placements is mapped during the run, up to three iterations ahead of the device,
//! and takes three times the addresses.
//!
//! [`Cuda::load`] finds the driver, and [`Cuda::open`] returns a [`CudaDevice`], which implements
//! the traits of [`planner_core::backend`]. An embedder's kernels get the context and the stream
//! from [`CudaDevice::lend`], and the addresses from the launch. Work whose memory is mapped
//! once can be captured as a graph ([`Replay`], and `GraphSession` for a session).
//!
//! [`Cuda::measure`] measures the properties of a device that a plan needs.
//!
//! The driver is loaded at run time: a program builds and starts on machines without a driver.
//!
//! Modules: `driver` has the driver's functions and all unsafe code. `adapter` opens a device.
//! `paging`, `stream` and `transfer` implement the traits. `graph` captures iterations, `replay`
//! launches them as graphs, also in a session (`graph_session`), and `iteration` gives kernels the
//! number of the iteration. `host_op` runs ops on the host in a thread of the device. `measure`
//! makes a machine file. The examples are `cuda-figures` (predictions against the device),
//! `train-cuda` and `hold-cuda`. `pack` builds a folder whose script `go` measures a device without
//! Rust.

mod adapter;
mod driver;
mod error;
mod graph;
#[cfg(feature = "facade")]
mod graph_session;
mod host_memory;
mod host_op;
mod integrity_kernels;
mod iteration;
mod kernel;
mod measure;
mod paging;
mod replay;
mod stream;
mod timestamp;
mod transfer;

pub use adapter::{Cuda, DeviceInfo, Options};
pub use backend_checks::{HostFailure, HostRead, HostRun};
pub use cudarc;
pub use error::{CudaError, Unavailable};
pub use graph::Graph;
#[cfg(feature = "facade")]
pub use graph_session::GraphSession;
pub use integrity_kernels::{Integrity, IntegrityKernels};
pub use measure::{Copies, Costs, Link, Load, Mapping, Measured, Measurement};
pub use replay::{Cycle, Replay, cycle};
pub use timestamp::Timestamp;

use adapter::Opened;
use cudarc::driver::sys::CUstream;
use cudarc::driver::{CudaContext, CudaStream};
use driver::{Context, Working};
use host_op::HostOps;
use iteration::Shown;
use kernel::Kernels;
use paging::Space;
use planner_core::Stream;
use planner_core::backend::ErrorType;
use std::fmt;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stream::Queued;
use transfer::HostBlock;

/// What a device has done so far, including set-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Virtual ranges reserved.
    pub ranges: u64,
    /// Calls of `map`.
    pub map_calls: u64,
    /// Calls of `unmap`.
    pub unmap_calls: u64,
    /// Chunks mapped by all calls of `map` together, each by one `cuMemMap`.
    pub chunks_mapped: u64,
    /// Calls of `cuMemSetAccess`, each for all chunks that were mapped side by side.
    pub access_calls: u64,
    /// Time that the host has spent mapping and unmapping, including calls of `cuMemSetAccess`.
    pub mapping_ns: u64,
    /// Signals with an event.
    pub events: u64,
    /// Waits of a stream for an event.
    pub waits: u64,
    /// Copies in both directions. The copies of a graph count once, when they are captured.
    pub copies: u64,
    /// Time that the host has been blocked until points were reached.
    pub blocked_ns: u64,
    /// Bytes copied to the device. The copies of a graph count once, when they are captured.
    pub h2d_bytes: u64,
    /// Bytes copied to the host, counted in the same way.
    pub d2h_bytes: u64,
    /// Launches of graphs.
    pub graph_launches: u64,
}

/// An open device, with the host block that it copies from and to.
///
/// A device may move to another thread together with the graphs that were captured on it.
///
/// A drop waits for the device's work. If that fails on any stream, nobody knows which memory the
/// work still uses. Then the drop leaks mappings, chunks and the host block, and reports it in one
/// line on standard error.
pub struct CudaDevice {
    /// The five streams.
    queued: [Queued; 5],
    space: Space,
    /// These are dropped before the host block, which they use.
    host_ops: HostOps,
    /// The host block, once it is created.
    host: Option<HostBlock>,
    /// The kernels, loaded at the first launch of one.
    kernels: Option<Kernels>,
    /// Memory of the device beside the chunks.
    working: Vec<Working>,
    /// The number of the iteration for kernels.
    shown: Shown,
    /// A number that no other device of this process has.
    number: u64,
    counters: Counters,
    context: Context,
}

/// The number of devices that were opened.
static DEVICES: AtomicU64 = AtomicU64::new(0);

impl CudaDevice {
    fn new(Opened { context, chunk_bytes, memory_bytes }: Opened) -> Result<Self, CudaError> {
        let queued = || Queued::new(context);
        Ok(Self {
            queued: [queued()?, queued()?, queued()?, queued()?, queued()?],
            space: Space::new(context, chunk_bytes, memory_bytes),
            host: None,
            host_ops: HostOps::default(),
            kernels: None,
            working: Vec::new(),
            shown: Shown::default(),
            number: DEVICES.fetch_add(1, Ordering::Relaxed),
            counters: Counters::default(),
            context,
        })
    }

    /// What the device has done so far.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// The context and a stream for an embedder's own kernels: the stream of the
    /// [launch](planner_core::backend::Launch::stream). Work that they enqueue there before
    /// [`signal`](planner_core::backend::Streams::signal) is part of the step.
    ///
    /// cudarc's functions take the driver's codes as an enumeration, and a code that it lacks is
    /// undefined behaviour. This crate calls none of these functions unless an embedder calls this
    /// one. [`raw_stream`](Self::raw_stream) does not need them.
    ///
    /// # Errors
    /// The errors of the driver when it gives access to memory that was mapped since.
    pub fn lend(&mut self, stream: Stream) -> Result<Lent<'_>, CudaError> {
        self.allow_access()?;
        let stream = self.queued[stream as usize].stream_mut().lend()?;
        Ok(Lent { context: stream.context(), stream })
    }

    /// The raw stream of [`lend`](Self::lend), with its context current on this thread. It is for
    /// an embedder who calls the driver by [`driver_functions`], without cudarc. It lives as long
    /// as the device.
    ///
    /// # Errors
    /// The errors of the driver when it gives access to memory that was mapped since.
    pub fn raw_stream(&mut self, stream: Stream) -> Result<CUstream, CudaError> {
        self.allow_access()?;
        self.queued[stream as usize].stream().current()
    }

    /// Blocks until all enqueued work has ended, on all five streams even if one of them reports an
    /// error.
    ///
    /// # Errors
    /// The first error of the driver, and the error of an op on the host.
    pub fn wait_idle(&mut self) -> Result<(), CudaError> {
        self.synchronize()?;
        self.check_host_ops()
    }

    fn synchronize(&self) -> Result<(), CudaError> {
        self.queued.each_ref().map(Queued::synchronize).into_iter().collect()
    }

    /// Gives up all memory without freeing it, since work may still use it.
    fn leak(&mut self) {
        self.space.leak();
        let host = (self.host.take(), mem::take(&mut self.host_ops));
        mem::forget((host, self.kernels.take(), mem::take(&mut self.working)));
    }
}

/// The place where an embedder's kernels run.
#[derive(Clone, Copy, Debug)]
pub struct Lent<'d> {
    /// The device's primary context.
    pub context: &'d Arc<CudaContext>,
    /// The stream.
    pub stream: &'d Arc<CudaStream>,
}

impl ErrorType for CudaDevice {
    type Error = CudaError;
}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaDevice")
            .field("queued", &self.queued)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        self.host_ops.leave_out();
        // Enqueued work uses the objects that are dropped next.
        let _ = self.end_capture();
        if let Err(error) = self.synchronize() {
            let host_bytes = self.host.as_ref().map_or(0, HostBlock::bytes);
            eprintln!(
                "a CUDA device is dropped, but its work cannot be waited for ({error}); its memory \
                 is not freed, nor are {host_bytes} bytes of pinned host memory"
            );
            self.leak();
        }
    }
}
