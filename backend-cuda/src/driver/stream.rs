//! Events, captures and graphs of streams.

use super::api;
use super::context::make_current;
use crate::error::CudaError;
use cudarc::driver::sys::{CUevent, CUgraph, CUgraphExec};
use cudarc::driver::{CudaContext, CudaStream};
use std::ffi::c_uint;
use std::ptr;
use std::sync::Arc;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`: any thread may end the capture.
const RELAXED: c_uint = 2;
/// `CU_EVENT_DISABLE_TIMING`.
const UNTIMED: c_uint = 2;
/// The codes of work that has not ended and of an event in a capture.
const NOT_READY: i32 = 600;

/// Blocks until all work of a stream has ended.
pub(crate) fn synchronize(stream: &CudaStream) -> Result<(), CudaError> {
    make_current(stream.context())?;
    // SAFETY: the stream lives.
    unsafe { api::cuStreamSynchronize(stream.cu_stream()) }
}

/// A point of a stream.
#[derive(Debug)]
pub(crate) struct Event {
    raw: CUevent,
    context: Arc<CudaContext>,
}

// SAFETY: an event is used from any thread that makes its context current, as every method does.
unsafe impl Send for Event {}
// SAFETY: the driver locks an event itself ("thread safety" of the driver's manual: only graphs are
// not synchronized).
unsafe impl Sync for Event {}

impl Event {
    /// Creates an event whose time is not taken.
    pub(crate) fn new(context: &Arc<CudaContext>) -> Result<Self, CudaError> {
        make_current(context)?;
        let mut raw = ptr::null_mut();
        // SAFETY: the event may be written.
        unsafe { api::cuEventCreate(&raw mut raw, UNTIMED) }?;
        Ok(Self { raw, context: Arc::clone(context) })
    }

    /// Moves after everything that a stream of the same context has.
    pub(crate) fn record(&self, stream: &CudaStream) -> Result<(), CudaError> {
        make_current(&self.context)?;
        // SAFETY: both live, and the driver refuses a stream of another context.
        unsafe { api::cuEventRecord(self.raw, stream.cu_stream()) }
    }

    /// What the stream does from now on waits for this.
    pub(crate) fn hold(&self, stream: &CudaStream) -> Result<(), CudaError> {
        make_current(&self.context)?;
        // SAFETY: both live.
        unsafe { api::cuStreamWaitEvent(stream.cu_stream(), self.raw, 0) }
    }

    pub(crate) fn is_reached(&self) -> Result<bool, CudaError> {
        make_current(&self.context)?;
        // SAFETY: the event lives.
        match unsafe { api::cuEventQuery(self.raw) } {
            Err(CudaError::Driver { code: NOT_READY, .. }) => Ok(false),
            asked => asked.map(|()| true),
        }
    }

    /// Blocks until it is reached.
    pub(crate) fn synchronize(&self) -> Result<(), CudaError> {
        make_current(&self.context)?;
        // SAFETY: the event lives.
        unsafe { api::cuEventSynchronize(self.raw) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = make_current(&self.context);
        // SAFETY: the event is this object's. The driver keeps what waits still need (manual,
        // cuEventDestroy).
        let _ = unsafe { api::cuEventDestroy_v2(self.raw) };
    }
}

/// Captures what is enqueued on a stream from now on.
pub(crate) fn begin_capture(stream: &CudaStream) -> Result<(), CudaError> {
    make_current(stream.context())?;
    // SAFETY: the stream lives.
    unsafe { api::cuStreamBeginCapture_v2(stream.cu_stream(), RELAXED) }
}

/// Captured work.
pub(crate) struct Executable {
    raw: CUgraphExec,
    context: Arc<CudaContext>,
}

// SAFETY: one thread at a time uses it, which is what the driver asks of graphs ("Graph object
// thread safety" of the driver's manual); it has no method that takes `&self` from two threads,
// since it is not `Sync`.
unsafe impl Send for Executable {}

impl Executable {
    /// Ends the capture of a stream.
    pub(crate) fn end_capture(stream: &CudaStream) -> Result<Self, CudaError> {
        let context = stream.context();
        make_current(context)?;
        let mut graph: CUgraph = ptr::null_mut();
        // SAFETY: the stream lives, and the graph may be written.
        unsafe { api::cuStreamEndCapture(stream.cu_stream(), &raw mut graph) }?;
        if graph.is_null() {
            return Err(CudaError::NotCaptured);
        }
        let mut raw = ptr::null_mut();
        // SAFETY: the graph was just made, the result may be written, and an executable graph does
        // not need the graph that it was made of (manual, cuGraphInstantiate).
        let made = unsafe {
            let made = api::cuGraphInstantiateWithFlags(&raw mut raw, graph, 0);
            let _ = api::cuGraphDestroy(graph);
            made
        };
        made.map(|()| Self { raw, context: Arc::clone(context) })
    }

    /// Enqueues all of it on a stream.
    pub(crate) fn launch(&self, stream: &CudaStream) -> Result<(), CudaError> {
        make_current(&self.context)?;
        // SAFETY: both live, and what the work uses is still mapped and pinned, which
        // `CudaDevice::check_graph` has seen to.
        unsafe { api::cuGraphLaunch(self.raw, stream.cu_stream()) }
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        let _ = make_current(&self.context);
        // SAFETY: it is this object's. A launch that is under way ends first (manual,
        // cuGraphExecDestroy).
        let _ = unsafe { api::cuGraphExecDestroy(self.raw) };
    }
}
