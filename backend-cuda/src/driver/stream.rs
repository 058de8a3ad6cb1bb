//! Streams, their events, captures and graphs.

use super::api;
use super::context::{Context, make_current};
use super::lent;
use crate::error::CudaError;
use cudarc::driver::CudaStream;
use cudarc::driver::sys::{CUevent, CUgraph, CUgraphExec, CUstream};
use std::ffi::c_uint;
use std::ptr;
use std::sync::Arc;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`: any thread may end the capture.
const RELAXED: c_uint = 2;
/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING` and `CU_EVENT_DEFAULT`.
const UNTIMED: c_uint = 2;
const TIMED: c_uint = 0;
/// The code of work that has not ended and of an event in a capture.
const NOT_READY: i32 = 600;

/// A stream that does not wait for the default stream.
#[derive(Debug)]
pub(crate) struct Stream {
    raw: CUstream,
    context: Context,
    /// The same stream for an embedder, once one asks for it.
    lent: Option<Arc<CudaStream>>,
}

// SAFETY: any thread may use a stream after making its context current, and every function here
// makes it current.
unsafe impl Send for Stream {}
// SAFETY: the driver locks a stream itself ("thread safety" of the driver's manual: only graphs are
// not synchronized).
unsafe impl Sync for Stream {}

impl Stream {
    pub(crate) fn new(context: Context) -> Result<Self, CudaError> {
        make_current(context)?;
        let mut raw = ptr::null_mut();
        // SAFETY: the stream may be written.
        unsafe { api::cuStreamCreate(&raw mut raw, NON_BLOCKING) }?;
        Ok(Self { raw, context, lent: None })
    }

    pub(crate) const fn context(&self) -> Context {
        self.context
    }

    pub(super) const fn raw(&self) -> CUstream {
        self.raw
    }

    /// The stream, with its context current on this thread.
    pub(crate) fn current(&self) -> Result<CUstream, CudaError> {
        make_current(self.context)?;
        Ok(self.raw)
    }

    /// The stream as an object of cudarc.
    pub(crate) fn lend(&mut self) -> Result<&Arc<CudaStream>, CudaError> {
        let lent = match self.lent.take() {
            Some(lent) => lent,
            // SAFETY: the stream is not destroyed while anybody else has this object.
            None => unsafe { lent::stream(self.context, self.raw) }?,
        };
        Ok(self.lent.insert(lent))
    }

    /// Blocks until all work has ended.
    pub(crate) fn synchronize(&self) -> Result<(), CudaError> {
        make_current(self.context)?;
        // SAFETY: the stream lives.
        unsafe { api::cuStreamSynchronize(self.raw) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // An embedder who has kept the object may still use it.
        let is_ours = self.lent.take().is_none_or(|lent| Arc::into_inner(lent).is_some());
        if is_ours {
            let _ = make_current(self.context);
            // SAFETY: this object owns the stream, and nobody else has it.
            let _ = unsafe { api::cuStreamDestroy_v2(self.raw) };
        }
    }
}

/// A point of a stream.
#[derive(Debug)]
pub(crate) struct Event {
    raw: CUevent,
    context: Context,
}

// SAFETY: any thread may use an event after making its context current, and every method makes it
// current.
unsafe impl Send for Event {}
// SAFETY: the driver locks an event itself ("thread safety" of the driver's manual: only graphs are
// not synchronized).
unsafe impl Sync for Event {}

impl Event {
    /// Creates an event that does not record its time.
    pub(crate) fn new(context: Context) -> Result<Self, CudaError> {
        Self::with_flags(context, UNTIMED)
    }

    /// Creates an event that records its time.
    pub(crate) fn timed(context: Context) -> Result<Self, CudaError> {
        Self::with_flags(context, TIMED)
    }

    fn with_flags(context: Context, flags: c_uint) -> Result<Self, CudaError> {
        make_current(context)?;
        let mut raw = ptr::null_mut();
        // SAFETY: the event may be written.
        unsafe { api::cuEventCreate(&raw mut raw, flags) }?;
        Ok(Self { raw, context })
    }

    /// Moves the event after all work that a stream of the same context has.
    pub(crate) fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        make_current(self.context)?;
        // SAFETY: both live, and the driver refuses a stream of another context.
        unsafe { api::cuEventRecord(self.raw, stream.raw) }
    }

    /// Makes later work of the stream wait for this event.
    pub(crate) fn hold(&self, stream: &Stream) -> Result<(), CudaError> {
        make_current(self.context)?;
        // SAFETY: both live.
        unsafe { api::cuStreamWaitEvent(stream.raw, self.raw, 0) }
    }

    pub(crate) fn is_reached(&self) -> Result<bool, CudaError> {
        make_current(self.context)?;
        // SAFETY: the event lives.
        match unsafe { api::cuEventQuery(self.raw) } {
            Err(CudaError::Driver { code: NOT_READY, .. }) => Ok(false),
            asked => asked.map(|()| true),
        }
    }

    /// The time in nanoseconds from this event to another. Both must be timed and reached.
    pub(crate) fn ns_until(&self, end: &Self) -> Result<f64, CudaError> {
        make_current(self.context)?;
        let mut milliseconds = 0.0;
        // SAFETY: the number may be written, and both events live.
        unsafe { api::cuEventElapsedTime(&raw mut milliseconds, self.raw, end.raw) }?;
        Ok(f64::from(milliseconds) * 1e6)
    }

    /// Blocks until the event is reached.
    pub(crate) fn synchronize(&self) -> Result<(), CudaError> {
        make_current(self.context)?;
        // SAFETY: the event lives.
        unsafe { api::cuEventSynchronize(self.raw) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = make_current(self.context);
        // SAFETY: this object owns the event. The driver keeps the state that waits still need
        // (manual, cuEventDestroy).
        let _ = unsafe { api::cuEventDestroy_v2(self.raw) };
    }
}

/// Captures all work that is enqueued on a stream from now on.
pub(crate) fn begin_capture(stream: &Stream) -> Result<(), CudaError> {
    make_current(stream.context)?;
    // SAFETY: the stream lives.
    unsafe { api::cuStreamBeginCapture_v2(stream.raw, RELAXED) }
}

/// Captured work.
pub(crate) struct Executable {
    raw: CUgraphExec,
    context: Context,
}

// SAFETY: the driver requires that one thread at a time uses a graph ("Graph object thread safety"
// of the driver's manual). This type is not `Sync`, so two threads cannot call its methods with
// `&self`.
unsafe impl Send for Executable {}

impl Executable {
    /// Ends the capture of a stream.
    pub(crate) fn end_capture(stream: &Stream) -> Result<Self, CudaError> {
        let context = stream.context;
        make_current(context)?;
        let mut graph: CUgraph = ptr::null_mut();
        // SAFETY: the stream lives, and the graph may be written.
        unsafe { api::cuStreamEndCapture(stream.raw, &raw mut graph) }?;
        if graph.is_null() {
            return Err(CudaError::NotCaptured);
        }
        let mut raw = ptr::null_mut();
        // SAFETY: the graph was just made, the result may be written, and an executable graph does
        // not need the graph from which it was made (manual, cuGraphInstantiate).
        let made = unsafe {
            let made = api::cuGraphInstantiateWithFlags(&raw mut raw, graph, 0);
            let _ = api::cuGraphDestroy(graph);
            made
        };
        made.map(|()| Self { raw, context })
    }

    /// Enqueues the captured work on a stream.
    pub(crate) fn launch(&self, stream: &Stream) -> Result<(), CudaError> {
        make_current(self.context)?;
        // SAFETY: both live. `CudaDevice::check_graph` has checked that all memory of the work is
        // still mapped and pinned.
        unsafe { api::cuGraphLaunch(self.raw, stream.raw) }
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        let _ = make_current(self.context);
        // SAFETY: this object owns the graph. A running launch ends first (manual,
        // cuGraphExecDestroy).
        let _ = unsafe { api::cuGraphExecDestroy(self.raw) };
    }
}
