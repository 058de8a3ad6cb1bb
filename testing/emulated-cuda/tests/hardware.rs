//! The emulated device has limits and costs as a real one, which tests set.
#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "the driver's functions are C")]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{Device, device, one_thread};
use cudarc::driver::sys::CUresult::{
    self, CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
};
use cudarc::driver::sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
use cudarc::driver::sys::{self, CUevent_flags::CU_EVENT_DEFAULT};
use cudarc::driver::{CudaEvent, CudaFunction, CudaStream, PushKernelArg};
use emulated_cuda::Variable;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;

/// A word of pinned memory.
struct Word(u64);

impl Word {
    fn new() -> Self {
        let mut at = ptr::null_mut();
        // SAFETY: the address may be written.
        unsafe { sys::cuMemHostAlloc(&raw mut at, PAGE, 0) }.result().unwrap();
        Self(at as u64)
    }

    fn set(&self) {
        // SAFETY: the word is pinned, and only atomic operations use it.
        unsafe { AtomicU32::from_ptr(self.0 as *mut u32) }.store(1, Ordering::Release);
    }

    /// Lets a stream wait until the word is set.
    fn hold(&self, stream: &CudaStream) {
        // SAFETY: the memory stays until the driver starts anew.
        let held = unsafe { sys::cuStreamWaitValue32_v2(stream.cu_stream(), self.0, 1, 1) };
        held.result().unwrap();
    }
}

/// Whether an event is reached soon.
fn is_reached(event: &CudaEvent) -> bool {
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(50) {
        if event.try_is_complete().unwrap() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

/// Whether a stream works while another, which was created before it, waits for the host.
fn works_beside_a_wait(connections: u64) -> bool {
    let device = device();
    device.emulated.set(Variable::Connections, connections);
    let [first, second] = [(); 2].map(|()| device.context.new_stream().unwrap());
    let word = Word::new();
    word.hold(&first);
    device.occupy(&second, 1);
    let end = second.record_event(None).unwrap();
    let is_soon = is_reached(&end);
    word.set();
    end.synchronize().unwrap();
    first.synchronize().unwrap();
    is_soon
}

#[test]
fn streams_of_one_hardware_queue_wait_for_each_other() {
    assert!(works_beside_a_wait(2));
    assert!(!works_beside_a_wait(1), "a program that sets the word after the second stream");
}

#[test]
fn kernels_of_one_hardware_queue_begin_in_order_and_overlap() {
    let device = device();
    device.emulated.set(Variable::Connections, 1);
    let streams = [(); 3].map(|()| device.context.new_stream().unwrap());
    let mark = |stream: &CudaStream| stream.record_event(Some(CU_EVENT_DEFAULT)).unwrap();
    let [one, two, three] = &streams;
    let start = mark(one);
    device.occupy(one, 20_000_000);
    device.occupy(two, 20_000_000);
    let end = mark(two);
    // The third stream has nothing to wait for, but the end before it has.
    device.occupy(three, 1_000_000);
    let last = mark(three);
    streams.iter().for_each(|stream| stream.synchronize().unwrap());
    let [both_ms, all_ms] = [&end, &last].map(|event| start.elapsed_ms(event).unwrap());
    assert!((20.0..30.0).contains(&both_ms), "they overlap: {both_ms} ms");
    assert!(all_ms >= both_ms + 1.0, "{all_ms} ms");
}

/// The nanoseconds that a kernel of one thread measures for a division, by the timer.
fn timed_ns(device: &Device) -> u64 {
    let kernels = device.load(
        ".visible .entry times(.param .u64 into) {
            .reg .b64 %rd<5>;
            ld.param.u64 %rd0, [into];
            mov.u64 %rd1, %globaltimer;
            div.u64 %rd3, %rd0, 7;
            mov.u64 %rd2, %globaltimer;
            sub.s64 %rd3, %rd2, %rd1;
            st.global.u64 [%rd0], %rd3;
            ret;
        }",
    );
    let (times, stream) = (kernels.get("times"), device.context.new_stream().unwrap());
    let mut into = stream.alloc_zeros::<u64>(1).unwrap();
    // SAFETY: the kernel has this argument.
    unsafe { stream.launch_builder(&times).arg(&mut into).launch(one_thread()) }.unwrap();
    stream.synchronize().unwrap();
    device.download(&into)[0]
}

#[test]
fn a_coarse_timer_shows_nothing_of_short_work() {
    let device = device();
    assert!((1..10_000).contains(&timed_ns(&device)));
    device.emulated.set(Variable::TimerTickNs, 1 << 20);
    let coarse_ns = timed_ns(&device);
    assert!([0, 1 << 20].contains(&coarse_ns), "{coarse_ns} ns: a speed from this is wrong");
}

/// The milliseconds from the first event to the last that `work` records on a new stream.
fn elapsed_ms(device: &Device, work: impl FnOnce(&CudaStream)) -> f64 {
    let stream = device.context.new_stream().unwrap();
    // What is enqueued ahead takes only the device's time.
    device.occupy(&stream, 30_000_000);
    let start = stream.record_event(Some(CU_EVENT_DEFAULT)).unwrap();
    work(&stream);
    let end = stream.record_event(Some(CU_EVENT_DEFAULT)).unwrap();
    stream.synchronize().unwrap();
    start.elapsed_ms(&end).unwrap().into()
}

#[test]
fn launches_and_waits_cost_device_time() {
    const TIMES: u32 = 10;
    let device = device();
    let other = device.context.new_stream().unwrap();
    let occupied = |stream: &CudaStream| (0..TIMES).for_each(|_| device.occupy(stream, 10_000));
    let waits = |stream: &CudaStream| {
        let reached = other.record_event(None).unwrap();
        (0..TIMES).for_each(|_| stream.wait(&reached).unwrap());
    };
    assert!((0.1..0.12).contains(&elapsed_ms(&device, occupied)), "as long as they say");
    assert!(elapsed_ms(&device, waits) < 0.01);
    device.emulated.set(Variable::LaunchNs, 500_000);
    device.emulated.set(Variable::WaitNs, 300_000);
    let [launched_ms, waited_ms] = [elapsed_ms(&device, occupied), elapsed_ms(&device, waits)];
    assert!((5.1..5.12).contains(&launched_ms), "{launched_ms} ms");
    assert!((3.0..3.01).contains(&waited_ms), "{waited_ms} ms");
}

#[test]
fn graphs_pay_for_launches_and_for_waits_between_streams() {
    let device = device();
    device.emulated.set(Variable::LaunchNs, 500_000);
    device.emulated.set(Variable::WaitNs, 300_000);
    let [stream, other] = [(); 2].map(|()| device.context.new_stream().unwrap());
    stream.begin_capture(CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
    // A kernel, one of the other stream after it, and one after both.
    device.occupy(&stream, 0);
    other.join(&stream).unwrap();
    device.occupy(&other, 0);
    stream.join(&other).unwrap();
    device.occupy(&stream, 0);
    let graph = stream.end_capture(sys::CUgraphInstantiate_flags(0)).unwrap().unwrap();
    device.occupy(&stream, 30_000_000);
    let start = stream.record_event(Some(CU_EVENT_DEFAULT)).unwrap();
    graph.launch().unwrap();
    let end = stream.record_event(Some(CU_EVENT_DEFAULT)).unwrap();
    stream.synchronize().unwrap();
    let ms = start.elapsed_ms(&end).unwrap();
    assert!((2.1..2.12).contains(&ms), "three launches and two waits: {ms} ms");
}

#[test]
fn the_driver_takes_memory_for_the_context_and_for_pinned_memory() {
    const PINNED: usize = 1 << 30;
    let device = device();
    let free_bytes = || device.context.mem_get_info().unwrap().0;
    let total_bytes = device.context.total_mem().unwrap();
    let before = free_bytes();
    assert_eq!(before, total_bytes - (4 << 20) - PAGE, "the context, and the code of a kernel");
    let (mut pinned, mut at) = (ptr::null_mut(), 0);
    // SAFETY: the addresses may be written, and nothing uses the memory.
    unsafe {
        sys::cuMemHostAlloc(&raw mut pinned, PINNED, 0).result().unwrap();
        assert_eq!(free_bytes(), before - PINNED / 4096 * 8);
        let all = sys::cuMemAlloc_v2(&raw mut at, before);
        assert_eq!(all, CUDA_ERROR_OUT_OF_MEMORY, "what was free before");
        sys::cuMemAlloc_v2(&raw mut at, free_bytes()).result().unwrap();
        assert_eq!(free_bytes(), 0);
        let more = sys::cuMemHostAlloc(&raw mut pinned, 1, 0);
        assert_eq!(more, CUDA_ERROR_OUT_OF_MEMORY, "no room for its table");
        sys::cuMemFreeHost(pinned).result().unwrap();
        assert_eq!(free_bytes(), PINNED / 4096 * 8);
        sys::cuMemFree_v2(at).result().unwrap();
    }
    assert_eq!(free_bytes(), before);
}

const EMPTY: &str = ".visible .entry empty() { ret; }";

/// Launches a kernel. Returns the error.
fn launch(stream: &CudaStream, kernel: &CudaFunction) -> Result<(), CUresult> {
    // SAFETY: the kernel has no arguments.
    let launched = unsafe { stream.launch_builder(kernel).launch(one_thread()) };
    launched.map(drop).map_err(|error| error.0)
}

#[test]
fn a_kernel_is_loaded_at_its_first_launch() {
    let device = device();
    let other = device.context.new_stream().unwrap();
    let free_bytes = || device.context.mem_get_info().unwrap().0;
    let before = free_bytes();
    let kernels = device.load(EMPTY);
    let empty = kernels.get("empty");
    assert_eq!(free_bytes(), before);
    device.occupy(&other, 30_000_000);
    let busy = other.record_event(None).unwrap();
    launch(&device.stream, &empty).unwrap();
    assert!(busy.is_complete(), "it waits for the device");
    assert_eq!(free_bytes(), before - PAGE, "its code");
    device.occupy(&other, 30_000_000);
    let busy = other.record_event(None).unwrap();
    launch(&device.stream, &empty).unwrap();
    assert!(!busy.is_complete(), "it is loaded");
    device.context.synchronize().unwrap();
    drop((empty, kernels));
    assert_eq!(free_bytes(), before);
    device.emulated.set(Variable::EagerLoading, 1);
    let _kernels = device.load(EMPTY);
    assert_eq!(free_bytes(), before - PAGE);
}

#[test]
fn no_kernel_is_loaded_without_memory() {
    let device = device();
    let kernels = device.load(EMPTY);
    let (empty, mut at) = (kernels.get("empty"), 0);
    let (free, _) = device.context.mem_get_info().unwrap();
    // SAFETY: the address may be written, and nothing uses the memory.
    unsafe { sys::cuMemAlloc_v2(&raw mut at, free) }.result().unwrap();
    assert_eq!(launch(&device.stream, &empty), Err(CUDA_ERROR_OUT_OF_MEMORY));
    // SAFETY: nothing uses it.
    unsafe { sys::cuMemFree_v2(at) }.result().unwrap();
    assert_eq!(launch(&device.stream, &empty), Ok(()));
    device.stream.synchronize().unwrap();
}

/// Captures a launch of a kernel. Returns the error.
fn captured(device: &Device, kernel: &CudaFunction) -> Result<(), CUresult> {
    device.stream.begin_capture(CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
    let launched = launch(&device.stream, kernel);
    let ended = device.stream.end_capture(sys::CUgraphInstantiate_flags(0));
    assert_eq!(ended.is_ok(), launched.is_ok());
    launched
}

#[test]
fn no_kernel_is_loaded_in_a_capture() {
    let device = device();
    let load = || {
        let kernels = device.load(EMPTY);
        (kernels.get("empty"), kernels)
    };
    let (empty, _kernels) = load();
    assert_eq!(captured(&device, &empty), Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
    assert!(device.emulated.explanation().contains("empty is launched in a capture"));
    launch(&device.stream, &empty).unwrap();
    assert_eq!(captured(&device, &empty), Ok(()));
    device.emulated.set(Variable::EagerLoading, 1);
    let (empty, _kernels) = load();
    assert_eq!(captured(&device, &empty), Ok(()));
}
