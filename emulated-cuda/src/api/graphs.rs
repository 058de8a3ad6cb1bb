//! Graphs and how they are captured.

use super::{driver_functions, store};
use crate::driver::DRIVER;
use cudarc::driver::sys::CUresult::*;
use cudarc::driver::sys::CUstreamCaptureStatus_enum::{
    self as Status, CU_STREAM_CAPTURE_STATUS_ACTIVE, CU_STREAM_CAPTURE_STATUS_NONE,
};
use cudarc::driver::sys::{CUgraph, CUgraphExec, CUstream, CUstreamCaptureMode};
use std::ffi::c_ulonglong;

driver_functions! {
    fn cuStreamBeginCapture_v2(stream: CUstream, _mode: CUstreamCaptureMode) {
        DRIVER.check_context()?;
        DRIVER.begin_capture(stream as usize)?;
    }

    fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph) {
        DRIVER.check_context()?;
        // SAFETY: the caller's.
        unsafe { store(graph, DRIVER.end_capture(stream as usize)? as CUgraph) }?;
    }

    fn cuStreamIsCapturing(stream: CUstream, status: *mut Status) {
        DRIVER.check_context()?;
        let is_capturing = DRIVER.streams.get(stream as usize)?.capture().is_some();
        let is = if is_capturing {
            CU_STREAM_CAPTURE_STATUS_ACTIVE
        } else {
            CU_STREAM_CAPTURE_STATUS_NONE
        };
        // SAFETY: the caller's.
        unsafe { store(status, is) }?;
    }

    fn cuGraphInstantiateWithFlags(
        executable: *mut CUgraphExec,
        graph: CUgraph,
        flags: c_ulonglong,
    ) {
        DRIVER.check_uncaptured()?;
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let graph = DRIVER.graphs.get(graph as usize)?;
        let made = DRIVER.executables.add(|_| graph.executable());
        // SAFETY: the caller's.
        unsafe { store(executable, made as CUgraphExec) }?;
    }

    fn cuGraphUpload(executable: CUgraphExec, stream: CUstream) {
        DRIVER.check_context()?;
        DRIVER.executables.get(executable as usize)?;
        DRIVER.streams.get(stream as usize)?;
    }

    fn cuGraphLaunch(executable: CUgraphExec, stream: CUstream) {
        DRIVER.check_context()?;
        DRIVER.counters().graph_launches += 1;
        DRIVER.launch(executable as usize, stream as usize)?;
    }

    fn cuGraphExecDestroy(executable: CUgraphExec) {
        DRIVER.check_initialized()?;
        DRIVER.executables.remove(executable as usize)?;
    }

    fn cuGraphDestroy(graph: CUgraph) {
        DRIVER.check_initialized()?;
        DRIVER.graphs.remove(graph as usize)?;
    }
}
