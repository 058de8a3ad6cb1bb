//! Captures and graphs.

use super::{driver_functions, store};
use cudarc::driver::sys::CUresult::*;
use cudarc::driver::sys::CUstreamCaptureStatus_enum::{
    self as Status, CU_STREAM_CAPTURE_STATUS_ACTIVE, CU_STREAM_CAPTURE_STATUS_INVALIDATED,
    CU_STREAM_CAPTURE_STATUS_NONE,
};
use cudarc::driver::sys::{CUgraph, CUgraphExec, CUstream, CUstreamCaptureMode};
use std::ffi::c_ulonglong;

driver_functions! {
    |driver, caller|

    fn cuStreamBeginCapture_v2(stream: CUstream, _mode: CUstreamCaptureMode) {
        driver.check_context(caller)?;
        driver.streams.get(stream as usize)?.begin_capture()?;
    }

    fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph) {
        driver.check_context(caller)?;
        let ended = driver.end_capture(stream as usize);
        // SAFETY: the caller's.
        unsafe { store(graph, ended.unwrap_or(0) as CUgraph) }?;
        ended?;
    }

    fn cuStreamIsCapturing(stream: CUstream, status: *mut Status) {
        driver.check_context(caller)?;
        let is = match &*driver.streams.get(stream as usize)?.capture() {
            Some(point) if point.capture.check().is_ok() => CU_STREAM_CAPTURE_STATUS_ACTIVE,
            Some(_) => CU_STREAM_CAPTURE_STATUS_INVALIDATED,
            None => CU_STREAM_CAPTURE_STATUS_NONE,
        };
        // SAFETY: the caller's.
        unsafe { store(status, is) }?;
    }

    fn cuGraphInstantiateWithFlags(
        executable: *mut CUgraphExec,
        graph: CUgraph,
        flags: c_ulonglong,
    ) {
        driver.check_uncaptured(caller)?;
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let graph = driver.graphs.get(graph as usize)?;
        let made = driver.executables.add(|_| graph.executable());
        // SAFETY: the caller's.
        unsafe { store(executable, made as CUgraphExec) }?;
    }

    fn cuGraphUpload(executable: CUgraphExec, stream: CUstream) {
        driver.check_context(caller)?;
        driver.executables.get(executable as usize)?;
        driver.streams.get(stream as usize)?;
    }

    fn cuGraphLaunch(executable: CUgraphExec, stream: CUstream) {
        driver.check_context(caller)?;
        driver.counters().graph_launches += 1;
        driver.launch_graph(caller, executable as usize, stream as usize)?;
    }

    fn cuGraphExecDestroy(executable: CUgraphExec) {
        driver.check_initialized()?;
        driver.executables.remove(executable as usize)?;
    }

    fn cuGraphDestroy(graph: CUgraph) {
        driver.check_initialized()?;
        driver.graphs.remove(graph as usize)?;
    }
}
