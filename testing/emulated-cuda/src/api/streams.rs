//! Streams, events, and kernels.

use super::{driver_functions, load, store};
use crate::driver::Driver;
use crate::event::Event;
use crate::outcome::Outcome;
use crate::ptx::{Kernel, Launch};
use crate::task::{HostFunction, Task};
use cudarc::driver::sys::CUresult::*;
use cudarc::driver::sys::{CUdeviceptr, CUevent, CUfunction, CUmodule, CUstream};
use std::ffi::{CStr, c_char, c_uint, c_void};
use std::sync::Arc;

/// The flag of streams that do not synchronize with the default stream. There are no others.
const NON_BLOCKING: c_uint = 1;
/// The flags of events: waits that block, no time, shared with other processes.
const DISABLE_TIMING: c_uint = 2;
const ALL_EVENT_FLAGS: c_uint = 1 | DISABLE_TIMING | 4;
/// The condition of waits for a value: that it is equal (`CU_STREAM_WAIT_VALUE_EQ`).
const WAIT_EQUAL: c_uint = 1;
/// The most threads of a block, and the most blocks in the directions y and z.
const MAX_THREADS: u64 = 1024;
const MAX_THREADS_Z: u32 = 64;
const MAX_BLOCKS: u32 = 65_535;
/// The most shared memory of a block that has not opted in to more.
const MAX_SHARED_BYTES: u64 = 48 << 10;

driver_functions! {
    |driver, caller|

    fn cuStreamCreate(stream: *mut CUstream, flags: c_uint) {
        driver.check_context(caller)?;
        if flags != NON_BLOCKING {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller's.
        unsafe { store(stream, driver.create_stream(caller) as CUstream) }?;
    }

    fn cuStreamDestroy_v2(stream: CUstream) {
        driver.check_initialized()?;
        driver.end_stream(caller, stream as usize)?;
    }

    fn cuStreamSynchronize(stream: CUstream) {
        driver.check_context(caller)?;
        driver.synchronize(caller, stream as usize)?;
    }

    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint) {
        driver.check_context(caller)?;
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        driver.wait(caller, stream as usize, event as usize)?;
    }

    fn cuStreamWaitValue32_v2(stream: CUstream, at: CUdeviceptr, value: c_uint, flags: c_uint) {
        driver.check_context(caller)?;
        // Other conditions, and values in the memory of the device, are not emulated.
        let host = at as usize;
        if flags != WAIT_EQUAL || !host.is_multiple_of(4) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        driver.device.pinned.check(host, 4)?;
        driver.streams.get(stream as usize)?.check_uncaptured()?;
        driver.counters().enqueued += 1;
        caller.refuse(CUDA_ERROR_OUT_OF_MEMORY)?;
        driver.enqueue(caller, stream as usize, Task::WaitValue { host, value })?;
    }

    fn cuLaunchHostFunc(stream: CUstream, function: Option<HostFunction>, data: *mut c_void) {
        driver.check_context(caller)?;
        let function = function.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        driver.counters().enqueued += 1;
        caller.refuse(CUDA_ERROR_OUT_OF_MEMORY)?;
        driver.enqueue(caller, stream as usize, Task::Host { function, data: data as usize })?;
    }

    fn cuEventCreate(event: *mut CUevent, flags: c_uint) {
        driver.check_context(caller)?;
        if flags & !ALL_EVENT_FLAGS != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let is_timed = flags & DISABLE_TIMING == 0;
        driver.counters().events += 1;
        // SAFETY: the caller's.
        unsafe { store(event, driver.events.add(|_| Event::new(is_timed)) as CUevent) }?;
    }

    fn cuEventDestroy_v2(event: CUevent) {
        driver.check_initialized()?;
        driver.events.remove(event as usize)?;
    }

    fn cuEventRecord(event: CUevent, stream: CUstream) {
        driver.check_context(caller)?;
        driver.record(caller, event as usize, stream as usize)?;
    }

    fn cuEventQuery(event: CUevent) {
        driver.check_context(caller)?;
        if !driver.events.get(event as usize)?.is_reached(caller.clock.now())? {
            return Err(CUDA_ERROR_NOT_READY);
        }
    }

    fn cuEventSynchronize(event: CUevent) {
        driver.check_context(caller)?;
        driver.events.get(event as usize)?.wait(&caller.clock)?;
        driver.device.check()?;
    }

    fn cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent) {
        driver.check_context(caller)?;
        let elapsed = elapsed(driver, start, end)?;
        // SAFETY: the caller's.
        unsafe { store(milliseconds, elapsed) }?;
    }

    // What bindings of CUDA 13 call instead.
    fn cuEventElapsedTime_v2(milliseconds: *mut f32, start: CUevent, end: CUevent) {
        driver.check_context(caller)?;
        let elapsed = elapsed(driver, start, end)?;
        // SAFETY: the caller's.
        unsafe { store(milliseconds, elapsed) }?;
    }

    fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) {
        driver.check_uncaptured(caller)?;
        if image.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller's; a text of C, the only kind of image that is known here.
        let text = unsafe { CStr::from_ptr(image.cast()) };
        let text = text.to_str().map_err(|_| CUDA_ERROR_INVALID_IMAGE)?;
        // SAFETY: the caller's.
        unsafe { store(module, driver.load_module(caller, caller.loaded(text))? as CUmodule) }?;
    }

    fn cuModuleUnload(module: CUmodule) {
        driver.check_initialized()?;
        driver.unload_module(module as usize)?;
    }

    fn cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char) {
        driver.check_context(caller)?;
        if name.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller's; a text of C.
        let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| CUDA_ERROR_NOT_FOUND)?;
        let found = driver.function(module as usize, name)?;
        // SAFETY: the caller's.
        unsafe { store(function, found as CUfunction) }?;
    }

    fn cuFuncLoad(function: CUfunction) {
        driver.check_context(caller)?;
        let kernel = driver.functions.get(function as usize)?;
        driver.load_kernel(caller, &kernel)?;
    }

    fn cuLaunchKernel(
        function: CUfunction,
        blocks_x: c_uint,
        blocks_y: c_uint,
        blocks_z: c_uint,
        threads_x: c_uint,
        threads_y: c_uint,
        threads_z: c_uint,
        dynamic_bytes: c_uint,
        stream: CUstream,
        parameters: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) {
        driver.check_context(caller)?;
        let kernel = Arc::clone(&*driver.functions.get(function as usize)?);
        let blocks = [blocks_x, blocks_y, blocks_z];
        let threads = [threads_x, threads_y, threads_z];
        check_launch(&kernel, blocks, threads, dynamic_bytes)?;
        if !extra.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut arguments = vec![0; kernel.parameter_bytes as usize];
        for (number, &(at, bytes)) in kernel.parameters.iter().enumerate() {
            // SAFETY: the caller's; there is a pointer for each parameter.
            let parameter = unsafe { load(parameters.add(number)) }?;
            if parameter.is_null() {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            // SAFETY: the caller's; the parameter has this size.
            let bytes = unsafe { std::slice::from_raw_parts(parameter.cast(), bytes as usize) };
            arguments[at as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        driver.load_for(caller, &kernel, stream as usize)?;
        driver.counters().enqueued += 1;
        caller.refuse(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES)?;
        let launch = Launch { kernel, parameters: arguments, blocks, threads, dynamic_bytes };
        driver.enqueue(caller, stream as usize, Task::Launch(Arc::new(launch)))?;
    }
}

/// Milliseconds between two events.
fn elapsed(driver: &Driver, start: CUevent, end: CUevent) -> Outcome<f32> {
    let [start, end] = [start, end].map(|event| driver.events.get(event as usize)?.time());
    Ok(end?.saturating_duration_since(start?).as_secs_f32() * 1e3)
}

/// Fails unless the blocks and their number are within a device's limits.
fn check_launch(
    kernel: &Kernel,
    blocks: [u32; 3],
    threads: [u32; 3],
    dynamic_bytes: u32,
) -> Outcome {
    let all = threads.iter().fold(1u64, |all, &threads| all.saturating_mul(threads.into()));
    let max_threads = kernel.max_threads.unwrap_or(MAX_THREADS).min(MAX_THREADS);
    let fits = (1..=max_threads).contains(&all)
        && threads[2] <= MAX_THREADS_Z
        && (1..=i32::MAX.cast_unsigned()).contains(&blocks[0])
        && blocks[1..].iter().all(|blocks| (1..=MAX_BLOCKS).contains(blocks))
        && kernel.all_shared_bytes(dynamic_bytes) <= MAX_SHARED_BYTES;
    if fits { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}
