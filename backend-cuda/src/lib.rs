//! Spillway on CUDA: virtual ranges and chunks are those of the driver's virtual memory
//! management, a stream is a stream, a point of it an event, and copies go between pinned host
//! memory and those ranges.
//!
//! [`Cuda::load`] finds the driver, and [`Cuda::open`] gives a [`CudaDevice`], which implements
//! the traits of [`planner_core::backend`]. An embedder's kernels get the context and the
//! stream from [`CudaDevice::compute`], and the addresses from the launch. Work whose memory is
//! mapped once can be captured as a graph ([`Replay`]).
//!
//! [`Cuda::measure`] finds what a plan has to know of a device.
//!
//! The driver is loaded when the program runs: it builds and starts on machines without one.
//!
//! Modules: `driver` has the driver's functions and all unsafe code; `adapter` opens a device; `paging`,
//! `stream` and `transfer` implement the traits; `graph` captures and `replay` launches iterations as graphs,
//! and `iteration` puts their number where kernels find it; `host_op` runs ops on the host in a thread of the
//! device; `measure` makes a machine file. The examples are `cuda-figures` (predictions against the device),
//! `train-cuda` and `hold-cuda`. `pack` builds a folder whose script `go` measures a device without Rust.

mod adapter;
mod driver;
mod error;
mod graph;
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
pub use integrity_kernels::{Integrity, IntegrityKernels};
pub use measure::{Copies, Link, Load, Mapping, Measured};
pub use replay::{Cycle, Replay, cycle};
pub use timestamp::Timestamp;

use adapter::Opened;
use cudarc::driver::sys::CUstream;
use cudarc::driver::{CudaContext, CudaStream};
use driver::{Context, Working};
use host_op::HostOps;
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

/// What a device has done so far, set-up included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Virtual ranges reserved.
    pub ranges: u64,
    /// Calls of `map`.
    pub map_calls: u64,
    /// Calls of `unmap`.
    pub unmap_calls: u64,
    /// Chunks mapped by all of those calls together, each by a `cuMemMap`.
    pub chunks_mapped: u64,
    /// Calls of `cuMemSetAccess`, each for all that was mapped side by side.
    pub access_calls: u64,
    /// Time that the host has spent mapping and unmapping, those calls included.
    pub mapping_ns: u64,
    /// Time that the host has been blocked until points were reached.
    pub blocked_ns: u64,
    /// Bytes copied to the device; those of graphs count once, when they are captured.
    pub h2d_bytes: u64,
    /// Bytes copied to the host; likewise.
    pub d2h_bytes: u64,
    /// Launches of graphs.
    pub graph_launches: u64,
}

/// An open device, with the host block that it copies from and to.
///
/// It may move to another thread, with what was captured on it.
///
/// When it is dropped, it waits for its work. If that fails on any of its streams, nobody knows what
/// still uses its memory: then mappings, chunks and the host block are leaked, and a line on the
/// standard error says so.
pub struct CudaDevice {
    /// The four streams.
    queued: [Queued; 4],
    /// How many signals of each stream came before the capture that is under way, if one is.
    captured_from: Option<[u64; 4]>,
    space: Space,
    /// Dropped before the host block, which they use.
    host_ops: HostOps,
    /// The host block, once it is created.
    host: Option<HostBlock>,
    /// Loaded when one is launched first.
    kernels: Option<Kernels>,
    /// Memory beside the chunks.
    working: Vec<Working>,
    /// Where kernels find the number of the iteration, once one asks.
    iteration_words: Option<u64>,
    /// The number that they find there, if it is known.
    iteration_shown: Option<u64>,
    /// No other device of this process has this number.
    number: u64,
    counters: Counters,
    context: Context,
}

/// How many devices were opened.
static DEVICES: AtomicU64 = AtomicU64::new(0);

impl CudaDevice {
    fn new(Opened { context, chunk_bytes, memory_bytes }: Opened) -> Result<Self, CudaError> {
        let queued = || Queued::new(context);
        Ok(Self {
            queued: [queued()?, queued()?, queued()?, queued()?],
            captured_from: None,
            space: Space::new(context, chunk_bytes, memory_bytes),
            host: None,
            host_ops: HostOps::default(),
            kernels: None,
            working: Vec::new(),
            iteration_words: None,
            iteration_shown: None,
            number: DEVICES.fetch_add(1, Ordering::Relaxed),
            counters: Counters::default(),
            context,
        })
    }

    /// What was done so far.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// The context, and the stream of [`Stream::Compute`], for kernels of an embedder's own:
    /// what they enqueue there before [`signal`](planner_core::backend::Streams::signal) is
    /// part of the step.
    ///
    /// cudarc's functions take the driver's codes as an enumeration, and a code that it lacks is
    /// undefined behaviour. This crate makes none of their calls unless this is called;
    /// [`raw_stream`](Self::raw_stream) does without.
    ///
    /// # Errors
    /// Those of the driver, for what has been mapped since.
    pub fn compute(&mut self) -> Result<Compute<'_>, CudaError> {
        self.allow_access()?;
        let stream = self.queued[Stream::Compute as usize].stream_mut().lend()?;
        Ok(Compute { context: stream.context(), stream })
    }

    /// The stream of [`compute`](Self::compute) as the driver knows it, with its context current on
    /// this thread: for an embedder who calls the driver by [`driver_functions`], without cudarc. It
    /// lives as long as the device.
    ///
    /// # Errors
    /// Those of the driver, for what has been mapped since.
    pub fn raw_stream(&mut self) -> Result<CUstream, CudaError> {
        self.allow_access()?;
        self.queued[Stream::Compute as usize].stream().current()
    }

    /// Blocks until everything that is enqueued has ended, on all four streams even if one of
    /// them reports an error.
    ///
    /// # Errors
    /// The first of the driver, and that of an op on the host.
    pub fn wait_idle(&mut self) -> Result<(), CudaError> {
        self.synchronize()?;
        self.check_host_ops()
    }

    fn synchronize(&self) -> Result<(), CudaError> {
        self.queued.each_ref().map(Queued::synchronize).into_iter().collect()
    }

    /// Gives up all memory without freeing it: work may still use it.
    fn leak(&mut self) {
        self.space.leak();
        let host = (self.host.take(), mem::take(&mut self.host_ops));
        mem::forget((host, self.kernels.take(), mem::take(&mut self.working)));
    }
}

/// Where an embedder's kernels run.
#[derive(Clone, Copy, Debug)]
pub struct Compute<'d> {
    /// The context, the primary one of the device.
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
        // What is enqueued uses what is dropped next.
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
