//! The emulated driver refuses what a real one may tolerate.
#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "the driver's functions are C")]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{Device, device, one_thread};
use cudarc::driver::sys::CUresult::{self, *};
use cudarc::driver::sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as RELAXED;
use cudarc::driver::sys::CUstreamCaptureStatus_enum as Status;
use cudarc::driver::sys::{self, CUdeviceptr};
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError, PushKernelArg};
use emulated_cuda::Emulated;
use std::ffi::c_void;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;

fn location() -> sys::CUmemLocation {
    let type_ = sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE;
    let __bindgen_anon_1 = sys::CUmemLocation_st__bindgen_ty_1 { id: 0 };
    sys::CUmemLocation { type_, __bindgen_anon_1 }
}

fn create(bytes: usize) -> Result<u64, CUresult> {
    // SAFETY: all zeros are a description, which is filled in.
    let mut properties: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = sys::CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = location();
    let mut handle = 0;
    // SAFETY: both may be used.
    let made = unsafe { sys::cuMemCreate(&raw mut handle, bytes, &raw const properties, 0) };
    made.result().map(|()| handle).map_err(|error| error.0)
}

fn reserve(bytes: usize) -> CUdeviceptr {
    let mut at = 0;
    // SAFETY: the address may be written.
    unsafe { sys::cuMemAddressReserve(&raw mut at, bytes, 0, 0, 0) }.result().unwrap();
    at
}

fn map(at: CUdeviceptr, bytes: usize, offset: usize, handle: u64) -> CUresult {
    // SAFETY: what is wrong with it is refused.
    unsafe { sys::cuMemMap(at, bytes, offset, handle, 0) }
}

fn unmap(at: CUdeviceptr, bytes: usize) -> CUresult {
    // SAFETY: nothing uses it.
    unsafe { sys::cuMemUnmap(at, bytes) }
}

fn open(at: CUdeviceptr, bytes: usize) -> CUresult {
    let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    let access = sys::CUmemAccessDesc { location: location(), flags };
    // SAFETY: the description may be read.
    unsafe { sys::cuMemSetAccess(at, bytes, &raw const access, 1) }
}

fn fill(device: &Device, at: CUdeviceptr, bytes: usize) -> CUresult {
    // SAFETY: what is wrong with it is refused.
    unsafe { sys::cuMemsetD8Async(at, 7, bytes, device.stream.cu_stream()) }
}

#[test]
fn mappings_are_whole_and_apart() {
    let device = device();
    let (at, handle) = (reserve(4 * PAGE), create(2 * PAGE).unwrap());
    assert_eq!(map(at, PAGE, PAGE, handle), CUDA_ERROR_INVALID_VALUE, "an offset");
    assert_eq!(map(at, PAGE, 0, handle), CUDA_ERROR_INVALID_VALUE, "a part of a handle");
    assert_eq!(map(at + 1, 2 * PAGE, 0, handle), CUDA_ERROR_INVALID_VALUE, "a byte after");
    assert_eq!(map(at + 3 * PAGE as u64, 2 * PAGE, 0, handle), CUDA_ERROR_INVALID_VALUE, "the end");
    let before = device.emulated.counters();
    assert_eq!(map(at, 2 * PAGE, 0, handle), CUDA_SUCCESS);
    assert_eq!(device.emulated.counters().maps, before.maps + 1);
    assert_eq!(map(at + PAGE as u64, 2 * PAGE, 0, handle), CUDA_ERROR_INVALID_VALUE, "twice");
    assert_eq!(fill(&device, at, PAGE), CUDA_ERROR_INVALID_VALUE, "without access");
    assert_eq!(open(at, 3 * PAGE), CUDA_ERROR_INVALID_VALUE, "access to what is not mapped");
    assert_eq!(open(at, 2 * PAGE), CUDA_SUCCESS);
    assert_eq!(fill(&device, at, 2 * PAGE), CUDA_SUCCESS);
    assert_eq!(fill(&device, at, 2 * PAGE + 1), CUDA_ERROR_INVALID_VALUE);
    device.stream.synchronize().unwrap();
    assert_eq!(unmap(at, PAGE), CUDA_ERROR_INVALID_VALUE, "a part of a mapping");
    assert_eq!(unmap(at, 3 * PAGE), CUDA_ERROR_INVALID_VALUE, "more than a mapping");
    // SAFETY: it is refused.
    let freed = unsafe { sys::cuMemAddressFree(at, 4 * PAGE) };
    assert_eq!(freed, CUDA_ERROR_INVALID_VALUE, "with something mapped");
    assert_eq!(unmap(at, 2 * PAGE), CUDA_SUCCESS);
    assert_eq!(unmap(at, 2 * PAGE), CUDA_ERROR_INVALID_VALUE, "what is not mapped");
    // SAFETY: nothing uses them.
    unsafe {
        sys::cuMemRelease(handle).result().unwrap();
        assert_eq!(sys::cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
        sys::cuMemAddressFree(at, 4 * PAGE).result().unwrap();
    }
}

#[test]
fn memory_ends() {
    let device = device();
    let total = device.context.total_mem().unwrap();
    assert_eq!(create(total + PAGE), Err(CUDA_ERROR_OUT_OF_MEMORY));
    assert_eq!(create(PAGE + 1), Err(CUDA_ERROR_INVALID_VALUE));
    let free = device.context.mem_get_info().unwrap().0;
    let used = create(PAGE).unwrap();
    assert_eq!(device.context.mem_get_info().unwrap(), (free - PAGE, total));
    assert_eq!(create(free), Err(CUDA_ERROR_OUT_OF_MEMORY));
    // SAFETY: nothing uses it.
    unsafe { sys::cuMemRelease(used) }.result().unwrap();
    assert_eq!(device.context.mem_get_info().unwrap(), (free, total));
}

#[test]
fn what_is_not_mapped_any_more_ends_the_context() {
    let device = device();
    let (at, handle) = (reserve(PAGE), create(PAGE).unwrap());
    assert_eq!(map(at, PAGE, 0, handle), CUDA_SUCCESS);
    assert_eq!(open(at, PAGE), CUDA_SUCCESS);
    // Work waits for an event of a stream that is late, so it runs after the unmapping.
    let late = device.context.new_stream().unwrap();
    device.occupy(&late, 50_000_000);
    device.stream.join(&late).unwrap();
    assert_eq!(fill(&device, at, PAGE), CUDA_SUCCESS);
    assert_eq!(unmap(at, PAGE), CUDA_SUCCESS);
    assert_eq!(device.stream.synchronize().unwrap_err().0, CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_eq!(create(PAGE), Err(CUDA_ERROR_ILLEGAL_ADDRESS), "the error stays");
    let Device { context, stream, emulated, occupy, lock: _lock } = device;
    drop((late, occupy, stream, context));
    let again = CudaContext::new(0).unwrap();
    assert_eq!(again.mem_get_info().unwrap_err().0, CUDA_ERROR_ILLEGAL_ADDRESS, "in this process");
    let before = emulated.counters();
    emulated.restart();
    assert!(emulated.counters().live < before.live, "the address and the handle");
    assert!(again.mem_get_info().is_ok(), "a new process works");
}

#[test]
fn what_is_unmapped_in_use_ends_the_context() {
    let device = device();
    let (at, handle) = (reserve(PAGE), create(PAGE).unwrap());
    assert_eq!(map(at, PAGE, 0, handle), CUDA_SUCCESS);
    assert_eq!(open(at, PAGE), CUDA_SUCCESS);
    // It reads its word for half a second, or until that is no longer there.
    let kernels = device.load(
        ".visible .entry reads(.param .u64 word) {
            .reg .pred %p;
            .reg .b64 %rd<5>;
            ld.param.u64 %rd0, [word];
            mov.u64 %rd1, %globaltimer;
        again:
            ld.global.u64 %rd2, [%rd0];
            mov.u64 %rd3, %globaltimer;
            sub.s64 %rd4, %rd3, %rd1;
            setp.lt.u64 %p, %rd4, 500000000;
            @%p bra again;
            ret;
        }",
    );
    let reads = kernels.get("reads");
    // SAFETY: the kernel has this argument.
    unsafe { device.stream.launch_builder(&reads).arg(&at).launch(one_thread()) }.unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let (before, start) = (device.emulated.counters().freed_in_use, Instant::now());
    assert_eq!(unmap(at, PAGE), CUDA_SUCCESS, "it does not ask who uses it");
    assert!(start.elapsed() < Duration::from_millis(300), "it does not wait for the kernel");
    assert_eq!(device.emulated.counters().freed_in_use, before + 1);
    assert_eq!(device.stream.synchronize().unwrap_err().0, CUDA_ERROR_ILLEGAL_ADDRESS);
    device.emulated.restart();
}

/// Frees pinned memory that copies are to write, with a stream that is late before them or not.
/// Returns what they end with.
fn free_before_copies(is_late: bool) -> Result<(), DriverError> {
    let device = device();
    let stream = device.stream.cu_stream();
    let (mut at, mut pinned) = (0, ptr::null_mut());
    const BYTES: usize = 64 << 20;
    let late = device.context.new_stream().unwrap();
    if is_late {
        device.occupy(&late, 300_000_000);
        device.stream.join(&late).unwrap();
    }
    // SAFETY: the addresses may be written; what is freed too early, the driver keeps or does not
    // write.
    unsafe {
        sys::cuMemAlloc_v2(&raw mut at, BYTES).result().unwrap();
        sys::cuMemHostAlloc(&raw mut pinned, BYTES, 0).result().unwrap();
        for _ in 0..64 {
            sys::cuMemcpyDtoHAsync_v2(pinned, at, BYTES, stream).result().unwrap();
        }
        std::thread::sleep(Duration::from_millis(2));
        sys::cuMemFreeHost(pinned).result().unwrap();
    }
    let ended = device.stream.synchronize();
    if ended.is_ok() {
        // SAFETY: nothing uses it any more.
        unsafe { sys::cuMemFree_v2(at) }.result().unwrap();
    }
    device.emulated.restart();
    ended
}

#[test]
fn host_memory_that_is_freed_in_use_or_before_ends_the_context() {
    for is_late in [true, false] {
        // On a busy machine, copies that are not late may end before this thread runs again.
        let tries = if is_late { 1 } else { 50 };
        let ended = (0..tries).find_map(|_| free_before_copies(is_late).err());
        let code = ended.map(|error| error.0);
        assert_eq!(code, Some(CUDA_ERROR_ILLEGAL_ADDRESS), "late: {is_late}");
    }
}

#[test]
fn events_have_the_flags_that_they_were_created_with() {
    use sys::CUevent_flags::CU_EVENT_DEFAULT;
    let device = device();
    let record = |flags| device.stream.record_event(flags).unwrap();
    let [untimed, timed, later] =
        [None, Some(CU_EVENT_DEFAULT), Some(CU_EVENT_DEFAULT)].map(record);
    assert!(timed.elapsed_ms(&later).is_ok());
    for (start, end) in [(&untimed, &later), (&timed, &untimed)] {
        assert_eq!(start.elapsed_ms(end).unwrap_err().0, CUDA_ERROR_INVALID_HANDLE);
    }
    let mut event = ptr::null_mut();
    // SAFETY: the event may be written.
    let created = unsafe { sys::cuEventCreate(&raw mut event, 8) };
    assert_eq!(created, CUDA_ERROR_INVALID_VALUE, "a flag that no event has");
}

#[test]
fn a_context_that_captures_is_not_synchronized() {
    let device = device();
    assert!(device.context.synchronize().is_ok());
    device.stream.begin_capture(RELAXED).unwrap();
    let context = &device.context;
    let synchronized = std::thread::scope(|scope| {
        scope.spawn(|| context.synchronize()).join().unwrap().map_err(|error| error.0)
    });
    assert_eq!(synchronized, Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED), "by another thread");
    let ended = device.stream.end_capture(sys::CUgraphInstantiate_flags(0)).err().unwrap();
    assert_eq!(ended.0, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    assert!(device.context.synchronize().is_ok());
}

#[test]
fn a_test_may_ask_for_a_code() {
    let device = device();
    device.emulated.inject("cuStreamSynchronize", CUDA_ERROR_TIMEOUT as u32);
    assert!(device.stream.record_event(None).is_ok(), "another call");
    assert_eq!(device.stream.synchronize().unwrap_err().0, CUDA_ERROR_TIMEOUT);
    assert!(device.stream.synchronize().is_ok(), "once");
}

#[test]
fn a_stream_holds_a_thousand_launches_and_then_blocks() {
    let device = device();
    // SAFETY: the memory is freed after the work.
    let at = unsafe { cudarc::driver::result::malloc_sync(PAGE) }.unwrap();
    let row = |launches| {
        device.occupy(&device.stream, 200_000_000);
        let gate = device.stream.record_event(None).unwrap();
        (0..launches).for_each(|_| assert_eq!(fill(&device, at, 1), CUDA_SUCCESS));
        let is_ahead = !gate.try_is_complete().unwrap();
        device.stream.synchronize().unwrap();
        is_ahead
    };
    assert!(row(1000), "as many are enqueued ahead");
    assert!(!row(1100), "the caller waits for the gate");
    // SAFETY: it is not in use any more.
    unsafe { sys::cuMemFree_v2(at) }.result().unwrap();
}

#[test]
fn to_destroy_a_stream_does_not_wait_for_its_work() {
    let device = device();
    let late = device.context.new_stream().unwrap();
    device.occupy(&late, 300_000_000);
    let (ended, start) = (late.record_event(None).unwrap(), Instant::now());
    drop(late);
    assert!(start.elapsed() < Duration::from_millis(200), "{:?}", start.elapsed());
    ended.synchronize().unwrap();
    assert!(start.elapsed() > Duration::from_millis(250), "its work goes on");
}

#[test]
fn copies_take_pinned_memory_only() {
    let device = device();
    let (bytes, stream) = ([1u8; 16], device.stream.cu_stream());
    let mut at = 0;
    // SAFETY: what is wrong is refused, and nothing uses the memory when it goes.
    unsafe {
        sys::cuMemAlloc_v2(&raw mut at, PAGE).result().unwrap();
        let copied = sys::cuMemcpyHtoDAsync_v2(at, bytes.as_ptr().cast(), 16, stream);
        assert_eq!(copied, CUDA_ERROR_INVALID_VALUE);
        let mut pinned = ptr::null_mut();
        sys::cuMemHostAlloc(&raw mut pinned, 16, 0).result().unwrap();
        assert_eq!(sys::cuMemcpyHtoDAsync_v2(at, pinned, 17, stream), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(sys::cuMemcpyHtoDAsync_v2(at, pinned, 16, stream), CUDA_SUCCESS);
        device.stream.synchronize().unwrap();
        sys::cuMemFreeHost(pinned).result().unwrap();
        sys::cuMemFree_v2(at).result().unwrap();
    }
}

/// Memory of this process, files in memory included.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn what_is_not_written_takes_no_memory() {
    const BYTES: usize = (4 << 30) + (4 << 20);
    const MARK: usize = (4 << 30) + 5;
    let device = device();
    device.emulated.resize(8 << 30, 2 << 20);
    let (mut at, mut pinned) = (0, ptr::null_mut());
    let stream = device.stream.cu_stream();
    let before = resident_bytes();
    // SAFETY: both ranges are as long as is copied, and freed after that.
    unsafe {
        sys::cuMemAlloc_v2(&raw mut at, BYTES).result().unwrap();
        sys::cuMemHostAlloc(&raw mut pinned, BYTES, 0).result().unwrap();
        let mark = pinned.cast::<u8>().add(MARK);
        let first = pinned.cast::<u8>();
        mark.write(7);
        sys::cuMemcpyHtoDAsync_v2(at, pinned, BYTES, stream).result().unwrap();
        device.stream.synchronize().unwrap();
        // What the device has as zeros becomes zeros on the host.
        mark.write(1);
        first.write(1);
        sys::cuMemcpyDtoHAsync_v2(pinned, at, BYTES, stream).result().unwrap();
        device.stream.synchronize().unwrap();
        assert_eq!((first.read(), mark.read()), (0, 7));
    }
    let growth = resident_bytes().saturating_sub(before);
    assert!(growth < 64 << 20, "{growth} bytes");
    // SAFETY: nothing uses them.
    unsafe {
        sys::cuMemFree_v2(at).result().unwrap();
        sys::cuMemFreeHost(pinned).result().unwrap();
    }
}

fn status(stream: &CudaStream) -> Status {
    let mut status = Status::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: the status may be written.
    unsafe { sys::cuStreamIsCapturing(stream.cu_stream(), &raw mut status) }.result().unwrap();
    status
}

/// Captures two streams, with a call that is not allowed: of the second, with an event from before.
/// Returns its error.
fn ruined(call: impl FnOnce(&CudaStream, &CudaEvent) -> CUresult) -> CUresult {
    let device = device();
    let mut at = 0;
    // SAFETY: the address may be written.
    unsafe { sys::cuMemAlloc_v2(&raw mut at, PAGE) }.result().unwrap();
    let other = device.context.new_stream().unwrap();
    let before = other.record_event(None).unwrap();
    device.stream.begin_capture(RELAXED).unwrap();
    let captured = device.stream.record_event(None).unwrap();
    other.wait(&captured).unwrap();
    assert_eq!(status(&other), Status::CU_STREAM_CAPTURE_STATUS_ACTIVE);
    let refusal = call(&other, &before);
    // Whatever uses the capture from now on fails, until it ends.
    for stream in [&device.stream, &other] {
        assert_eq!(status(stream), Status::CU_STREAM_CAPTURE_STATUS_INVALIDATED);
        // SAFETY: the range is allocated.
        let filled = unsafe { sys::cuMemsetD8Async(at, 0, 1, stream.cu_stream()) };
        assert_eq!(filled, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        let recorded = stream.record_event(None).unwrap_err();
        assert_eq!(recorded.0, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        let waited = stream.wait(&captured).unwrap_err();
        assert_eq!(waited.0, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    }
    let mut graph = ptr::without_provenance_mut(1);
    // SAFETY: the graph may be written.
    let ended = unsafe { sys::cuStreamEndCapture(device.stream.cu_stream(), &raw mut graph) };
    assert_eq!((ended, graph), (CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, ptr::null_mut()));
    for stream in [&device.stream, &other] {
        assert_eq!(status(stream), Status::CU_STREAM_CAPTURE_STATUS_NONE);
        stream.synchronize().unwrap();
    }
    // SAFETY: nothing uses it.
    unsafe { sys::cuMemFree_v2(at) }.result().unwrap();
    refusal
}

#[test]
fn a_call_that_is_not_allowed_ruins_the_capture() {
    let error = |result: Result<(), DriverError>| result.unwrap_err().0;
    assert_eq!(ruined(|_, _| create(PAGE).unwrap_err()), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    let synchronized = ruined(|stream, _| error(stream.synchronize()));
    assert_eq!(synchronized, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    let asked = ruined(|stream, _| error(stream.record_event(None).unwrap().synchronize()));
    assert_eq!(asked, CUDA_ERROR_CAPTURED_EVENT);
    let stranger = ruined(|stream, before| error(stream.wait(before)));
    assert_eq!(stranger, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    let mut at = 0;
    let allocated = ruined(|stream, _| {
        // SAFETY: the address may be written.
        unsafe { sys::cuMemAllocAsync(&raw mut at, PAGE, stream.cu_stream()) }
    });
    assert_eq!(allocated, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

#[test]
fn a_capture_is_joined_and_ended_once() {
    let device = device();
    let other = device.context.new_stream().unwrap();
    let flags = sys::CUgraphInstantiate_flags(0);
    let mut at = 0;
    // SAFETY: the address may be written.
    unsafe { sys::cuMemAlloc_v2(&raw mut at, PAGE) }.result().unwrap();
    device.stream.begin_capture(RELAXED).unwrap();
    other.wait(&device.stream.record_event(None).unwrap()).unwrap();
    assert_eq!(fill(&device, PAGE as u64, 1), CUDA_ERROR_INVALID_VALUE, "nothing is mapped");
    // SAFETY: the range is allocated, and the graph is never made.
    unsafe { sys::cuMemsetD8Async(at, 0, 1, other.cu_stream()) }.result().unwrap();
    let ended = device.stream.end_capture(flags).err().unwrap();
    assert_eq!(ended.0, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    let empty = device.stream.end_capture(flags).err().unwrap();
    assert_eq!(empty.0, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    // SAFETY: nothing uses it.
    unsafe { sys::cuMemFree_v2(at) }.result().unwrap();
}

#[test]
fn memory_of_a_pool_is_freed_in_the_order_of_the_stream() {
    let device = device();
    let (mut pool, mut at, mut threshold) = (ptr::null_mut(), 0, 12u64);
    let kept = sys::CUmemPool_attribute_enum::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    let free_bytes = || device.context.mem_get_info().unwrap().0;
    let (stream, before) = (device.stream.cu_stream(), free_bytes());
    assert!(device.context.has_async_alloc());
    // SAFETY: what is asked for may be written.
    unsafe {
        sys::cuDeviceGetDefaultMemPool(&raw mut pool, 0).result().unwrap();
        let value = (&raw mut threshold).cast();
        sys::cuMemPoolSetAttribute(pool, kept, value).result().unwrap();
        threshold = 0;
        sys::cuMemPoolGetAttribute(pool, kept, (&raw mut threshold).cast()).result().unwrap();
        sys::cuMemAllocFromPoolAsync(&raw mut at, PAGE, pool, stream).result().unwrap();
    }
    assert_eq!((threshold, free_bytes()), (12, before - PAGE));
    device.occupy(&device.stream, 100_000_000);
    assert_eq!(fill(&device, at, PAGE), CUDA_SUCCESS);
    // SAFETY: the stream uses it before, and nothing after.
    unsafe { sys::cuMemFreeAsync(at, stream) }.result().unwrap();
    assert_eq!(free_bytes(), before - PAGE, "the work before has not ended");
    device.stream.synchronize().unwrap();
    assert_eq!(free_bytes(), before);
    // SAFETY: it is refused.
    assert_eq!(unsafe { sys::cuMemFreeAsync(at, stream) }, CUDA_ERROR_INVALID_VALUE, "twice");
}

#[test]
fn memory_of_a_pool_that_another_stream_uses_ends_the_context() {
    let device = device();
    let (other, mut at) = (device.context.new_stream().unwrap(), 0);
    // SAFETY: the address may be written; what comes too late is what is tested.
    unsafe {
        sys::cuMemAllocAsync(&raw mut at, PAGE, device.stream.cu_stream()).result().unwrap();
        device.occupy(&other, 50_000_000);
        sys::cuMemsetD8Async(at, 0, PAGE, other.cu_stream()).result().unwrap();
        sys::cuMemFreeAsync(at, device.stream.cu_stream()).result().unwrap();
    }
    device.stream.synchronize().unwrap();
    assert_eq!(other.synchronize().unwrap_err().0, CUDA_ERROR_ILLEGAL_ADDRESS);
    device.emulated.restart();
}

/// What a function of the host notes: the code of a call of the driver in it.
static IN_FUNCTION: Mutex<Vec<u32>> = Mutex::new(Vec::new());

unsafe extern "C" fn synchronize(stream: *mut c_void) {
    // SAFETY: the stream lives; the call is refused.
    let code = unsafe { sys::cuStreamSynchronize(stream.cast()) };
    IN_FUNCTION.lock().unwrap().push(code as u32);
}

fn call_on_host(device: &Device) {
    let stream = device.stream.cu_stream();
    // SAFETY: the function takes a stream.
    unsafe { sys::cuLaunchHostFunc(stream, Some(synchronize), stream.cast()) }.result().unwrap();
}

#[test]
fn functions_of_the_host_run_in_order_and_call_no_driver() {
    let device = device();
    device.occupy(&device.stream, 20_000_000);
    call_on_host(&device);
    assert!(IN_FUNCTION.lock().unwrap().is_empty(), "the stream is busy");
    device.stream.synchronize().unwrap();
    let refused = CUDA_ERROR_NOT_PERMITTED as u32;
    assert_eq!(*IN_FUNCTION.lock().unwrap(), [refused]);
    // In a graph it is a node, which is called in every launch.
    device.stream.begin_capture(RELAXED).unwrap();
    call_on_host(&device);
    let flags = sys::CUgraphInstantiate_flags(0);
    let graph = device.stream.end_capture(flags).unwrap().unwrap();
    assert_eq!(IN_FUNCTION.lock().unwrap().len(), 1);
    graph.launch().unwrap();
    graph.launch().unwrap();
    device.stream.synchronize().unwrap();
    assert_eq!(*IN_FUNCTION.lock().unwrap(), [refused; 3]);
    // A context in error calls none.
    device.emulated.set_faults(1, 0, 1);
    let failing = device.context.new_stream().unwrap();
    device.emulated.set_seed(None);
    device.occupy(&failing, 1);
    assert!(failing.synchronize().is_err());
    // SAFETY: it is refused.
    let call = unsafe {
        sys::cuLaunchHostFunc(device.stream.cu_stream(), Some(synchronize), ptr::null_mut())
    };
    assert_ne!(call, CUDA_SUCCESS);
    assert_eq!(IN_FUNCTION.lock().unwrap().len(), 3);
    device.emulated.restart();
}

#[test]
fn a_stream_waits_for_a_value_in_pinned_memory() {
    const EQUAL: u32 = 1;
    let device = device();
    let stream = device.stream.cu_stream();
    let mut pinned = ptr::null_mut();
    // SAFETY: the memory is used while it is there.
    let word = unsafe {
        sys::cuMemHostAlloc(&raw mut pinned, PAGE, 0).result().unwrap();
        AtomicU32::from_ptr(pinned.cast())
    };
    let wait = |offset, flags| {
        // SAFETY: the memory is there until the stream has ended.
        unsafe { sys::cuStreamWaitValue32_v2(stream, pinned as u64 + offset, 1, flags) }
    };
    assert_eq!(wait(2, EQUAL), CUDA_ERROR_INVALID_VALUE, "no word begins there");
    assert_eq!(wait(PAGE as u64, EQUAL), CUDA_ERROR_INVALID_VALUE, "not pinned");
    assert_eq!(wait(0, 0), CUDA_ERROR_INVALID_VALUE, "a condition that is not emulated");
    assert_eq!(wait(0, EQUAL), CUDA_SUCCESS);
    let end = device.stream.record_event(None).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert!(!end.is_complete());
    word.store(1, Ordering::Release);
    end.synchronize().unwrap();
    device.stream.begin_capture(RELAXED).unwrap();
    assert_eq!(wait(0, EQUAL), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert!(device.stream.end_capture(sys::CUgraphInstantiate_flags(0)).is_err());
    // SAFETY: nothing uses it any more.
    unsafe { sys::cuMemFreeHost(pinned) }.result().unwrap();
}

unsafe extern "C" fn wait_until_set(word: *mut c_void) {
    // SAFETY: a word that lives.
    let word = unsafe { AtomicU32::from_ptr(word.cast()) };
    while word.swap(2, Ordering::SeqCst) != 1 {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(50));
    word.store(3, Ordering::SeqCst);
}

#[test]
fn calls_wait_while_a_function_of_the_host_runs() {
    let device = device();
    let word = AtomicU32::new(0);
    let stream = device.stream.cu_stream();
    // SAFETY: the function takes a word, which outlives it.
    let call = unsafe { sys::cuLaunchHostFunc(stream, Some(wait_until_set), word.as_ptr().cast()) };
    call.result().unwrap();
    while word.load(Ordering::SeqCst) != 2 {
        std::thread::yield_now();
    }
    word.store(1, Ordering::SeqCst);
    device.context.bind_to_thread().unwrap();
    assert_eq!(word.load(Ordering::SeqCst), 3);
}

#[test]
fn calls_fail_by_seed() {
    let device = device();
    let refusals = |seed| {
        device.emulated.set_faults(seed, 4, 0);
        let made: Vec<_> = (0..64).map(|_| create(PAGE)).collect();
        device.emulated.set_seed(None);
        for &handle in made.iter().flatten() {
            // SAFETY: nothing uses it.
            unsafe { sys::cuMemRelease(handle) }.result().unwrap();
        }
        made.iter().map(Result::is_err).collect::<Vec<_>>()
    };
    let first = refusals(1);
    let refused = first.iter().filter(|&&refused| refused).count();
    assert!((4..40).contains(&refused), "{refused}");
    assert_eq!(refusals(1), first);
    assert_ne!(refusals(2), first);
}

#[test]
fn nobody_takes_it_for_a_driver() {
    let name = Emulated::built_path();
    let name = name.file_name().unwrap().to_str().unwrap().to_owned();
    assert!(!name.starts_with("libcuda") && !name.starts_with("libnvcuda"), "{name}");
}
