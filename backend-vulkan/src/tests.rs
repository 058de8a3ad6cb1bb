//! Tests that need internals: queues that the driver of this machine lacks, and a driver that
//! fails. They need a device: `cargo test … -- --include-ignored` runs them.
#![allow(unsafe_code, reason = "the functions that stand in for the driver's are C")]

mod addresses;

use crate::adapter::Opened;
use crate::driver::{Also, Physical};
use crate::stream::Shared;
use crate::{Integrity, IntegrityKernels, Options, Unavailable, Vulkan, VulkanDevice, VulkanError};
use ash::vk;
use integrity::{reference_digest, states_digest};
use planner_core::backend::{Chunks, DeviceAddress, HostRange, Paging, Streams, Transfers};
use planner_core::planner::{Auto, Request, Strategy};
use planner_core::{ExecuteError, Machine, Step, Stream};
use spillway::{placing, planning};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use workloads::machines;
use zoo::models;

const CHUNK_BYTES: u64 = 64 << 10;

/// A device before anything is made from it.
fn opened() -> Opened {
    opened_by(Vulkan::load(false)).0
}

fn opened_by(vulkan: Result<Vulkan, Unavailable>) -> (Opened, Vulkan) {
    let open = || {
        let (vulkan, chosen) = (vulkan?, Integrity::from_environment(false)?);
        let physical = vulkan.choose(chosen.options().device)?;
        Ok::<_, Unavailable>((vulkan.open_raw(&physical, Also::default())?, vulkan))
    };
    open().unwrap_or_else(|reason| panic!("no device: {reason}"))
}

fn device(opened: Opened) -> VulkanDevice {
    let options = Options { chunk_bytes: Some(CHUNK_BYTES), ..Options::default() };
    VulkanDevice::new(opened, &options).unwrap()
}

/// Puts all streams on one queue. If `separate` is set, gives each stream another queue index, so that this
/// crate treats the queues as separate.
fn with_queues(separate: bool) -> Opened {
    let mut opened = opened();
    let [compute, ..] = opened.streams;
    opened.streams = [compute; 3];
    if separate {
        for (index, queue) in (0..).zip(&mut opened.streams) {
            queue.index = index;
        }
    }
    opened
}

/// Even if several threads open devices at once.
#[test]
#[ignore = "it needs a Vulkan device"]
fn all_devices_share_an_instance() {
    let instance = || Arc::clone(&device(opened()).device.instance);
    let instances = thread::scope(|scope| {
        let threads = [(); 4].map(|()| scope.spawn(instance));
        threads.map(|thread| thread.join().unwrap())
    });
    assert!(instances.iter().all(|other| Arc::ptr_eq(&instances[0], other)));
}

/// Each object keeps its device alive, and each device keeps its instance alive. The validation layer
/// does not report a device that nobody destroys.
#[test]
#[ignore = "it needs a Vulkan device"]
fn nothing_of_a_dropped_device_remains() {
    let (opened, vulkan) = opened_by(Vulkan::alone());
    let mut device = device(opened);
    run(&mut device, false).unwrap();
    assert!(!vulkan.is_alone());
    drop(device);
    assert!(vulkan.is_alone());
}

/// Runs a plan that swaps, with or without fixed placements, and checks its states. Returns the number of enqueued steps and of
/// submissions.
fn run(device: &mut VulkanDevice, placed: bool) -> Result<[u64; 3], ExecuteError<VulkanError>> {
    const ITERATIONS: u64 = 4;
    let work = "gpt:batch=1,layers=4,width=256,sequence=64,vocabulary=1000";
    let graph = models::generate(work).unwrap();
    let graph = graph.graph().unwrap();
    let machine = machines::builtin("v100-pcie3").unwrap().machine;
    let parameters = (*machine).with_chunk_bytes(CHUNK_BYTES);
    let machine = Machine::new(parameters).unwrap();
    let need_bytes = planning::in_core_peak_bytes(&graph, &machine).unwrap();
    let request = Request { graph: &graph, machine: &machine, budget_bytes: need_bytes * 35 / 100 };
    let strategy = Strategy::Auto(Auto::default());
    let plan = if placed {
        let (plan, unplaced) = placing::plan(&request, strategy).unwrap();
        assert_eq!(unplaced, None);
        plan
    } else {
        planning::plan(&request, strategy).unwrap()
    };
    let plan = plan.plan();
    let steps = plan.steps.iter().filter(|step| !matches!(step, Step::Evict(_))).count() as u64;
    let schedule = planning::schedule(&graph, &machine, &plan).unwrap();
    let schedule = schedule.schedule();
    let verified = planning::prove(&graph, &machine, &plan, &schedule).unwrap();
    let mut kernels = IntegrityKernels::new(device, graph).unwrap();
    planning::with_executor(&verified, device, &mut kernels, |mut executor, device, kernels| {
        let before = device.counters();
        executor.run(device, kernels, ITERATIONS)?;
        let submits = device.counters().submits - before.submits;
        let parts = device.counters().submitted_parts - before.submitted_parts;
        let is_submitted = device.shared.iter().all(Shared::is_submitted);
        assert!(is_submitted, "the end of an iteration waits for another call");
        executor.save_states(device)?;
        let digest = states_digest(&graph, device, executor.host_layout()).unwrap();
        assert_eq!(digest, reference_digest(&graph, ITERATIONS));
        Ok([ITERATIONS * steps, submits, parts])
    })
}

#[test]
#[ignore = "it needs a Vulkan device"]
fn a_plan_is_submitted_in_batches() {
    for (separate, most_percent) in [(false, 15), (true, 40)] {
        let opened = with_queues(separate);
        let [steps, submits, parts] = run(&mut device(opened), true).unwrap();
        println!(
            "{submits} submissions of {parts} parts with {steps} steps, queues of their own: \
             {separate}"
        );
        // Steps that nobody awaits share a part.
        assert!(parts < steps, "{parts} parts of {steps} steps");
        assert!(steps > 500, "{steps} steps");
        assert!(submits * 100 <= steps * most_percent, "{submits} submissions of {steps} steps");
    }
}

#[test]
#[ignore = "it needs a Vulkan device"]
fn work_is_submitted_when_it_is_waited_for() {
    let opened = with_queues(true);
    let device = &mut device(opened);
    let submits = |device: &VulkanDevice| device.counters().submits;
    let early = device.signal(Stream::Upload).unwrap();
    let late = device.signal(Stream::Upload).unwrap();
    assert_eq!(submits(device), 0);
    // Submitted because a stream on another queue waits, once.
    device.wait(Stream::Compute, early).unwrap();
    assert_eq!(submits(device), 1);
    device.wait(Stream::Compute, late).unwrap();
    assert_eq!(submits(device), 1);
    let point = device.signal(Stream::Compute).unwrap();
    // Submitted because the host asks.
    let _ = device.reached(point).unwrap();
    assert_eq!(submits(device), 2);
    let _ = device.reached(late).unwrap();
    assert_eq!(submits(device), 2);
    // Submitted because the host blocks, for all streams.
    let point = device.signal(Stream::Compute).unwrap();
    device.signal(Stream::Download).unwrap();
    device.block_until(point).unwrap();
    assert_eq!(submits(device), 4);
    device.signal(Stream::Download).unwrap();
    device.wait_idle().unwrap();
    assert_eq!(submits(device), 5);
    // Submitted at the end of an iteration.
    device.signal(Stream::Download).unwrap();
    device.submit().unwrap();
    assert_eq!(submits(device), 6);
    device.submit().unwrap();
    assert_eq!(submits(device), 6);
    // Submitted because there are many steps.
    for _ in 0..33 {
        device.signal(Stream::Compute).unwrap();
    }
    assert_eq!(submits(device), 8);
}

/// The host never asks for the points.
#[test]
#[ignore = "it needs a Vulkan device"]
fn what_is_submitted_runs_by_itself() {
    let device = &mut device(opened());
    device.create_host(CHUNK_BYTES).unwrap();
    device.write_host(0, &[0; 4]).unwrap();
    device.create(1).unwrap();
    let at = device.reserve(1).unwrap();
    device.map(at, Chunks { first: 0, count: 1 }).unwrap();
    let range = device.range(at, 4).unwrap();
    device.compute().unwrap().fill(range, 7).unwrap();
    let point = device.signal(Stream::Compute).unwrap();
    device.wait(Stream::Download, point).unwrap();
    device.download(at, HostRange { offset_bytes: 0, bytes: 4 }).unwrap();
    device.signal(Stream::Download).unwrap();
    device.submit().unwrap();
    let (start, mut found) = (Instant::now(), [0; 4]);
    while found != [7, 0, 0, 0] {
        assert!(start.elapsed() < Duration::from_secs(60), "{found:?}");
        device.read_host(0, &mut found).unwrap();
    }
    device.wait_idle().unwrap();
}

#[test]
#[ignore = "it needs a Vulkan device"]
fn streams_of_one_queue_wait_without_a_submission() {
    let opened = with_queues(false);
    let device = &mut device(opened);
    let point = device.signal(Stream::Upload).unwrap();
    device.wait(Stream::Compute, point).unwrap();
    let point = device.signal(Stream::Compute).unwrap();
    assert_eq!(device.counters().submits, 0);
    device.block_until(point).unwrap();
    assert_eq!(device.counters().submits, 1);
}

/// It also waits for steps of the same stream, which wgpu does not know.
#[cfg(feature = "wgpu")]
#[test]
#[ignore = "it needs a Vulkan device"]
fn what_wgpu_submits_waits_for_all_before_it() {
    let opened = with_queues(true);
    let device = &mut device(opened);
    assert_eq!(device.compute_waits().count(), 0);
    let point = device.signal(Stream::Upload).unwrap();
    device.wait(Stream::Compute, point).unwrap();
    device.submit_compute().unwrap();
    assert_eq!(device.compute_waits().count(), 1);
    device.compute_has_waited();
    assert_eq!(device.compute_waits().count(), 0);
    device.signal(Stream::Compute).unwrap();
    device.submit_compute().unwrap();
    assert_eq!(device.compute_waits().count(), 1);
}

/// The objects of wgpu are gone too.
#[cfg(feature = "wgpu")]
#[test]
#[ignore = "it needs a Vulkan device"]
fn nothing_of_a_dropped_device_remains_in_wgpu() {
    let vulkan = Vulkan::alone().unwrap();
    let chosen = Integrity::from_environment(false).unwrap();
    // SAFETY: everything is used on this thread.
    let mut device = unsafe { vulkan.open_with_wgpu(&chosen.options()) }.unwrap();
    device.create(1).unwrap();
    let at = device.reserve(1).unwrap();
    device.map(at, Chunks { first: 0, count: 1 }).unwrap();
    let (buffer, offset_bytes) = device.lend(at, 64).unwrap();
    let wgpu = device.wgpu().unwrap();
    let mut encoder = wgpu.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    encoder.clear_buffer(&buffer, offset_bytes, Some(64));
    let commands = encoder.finish();
    drop(buffer);
    device.submit_wgpu([commands]).unwrap();
    assert!(!vulkan.is_alone());
    drop(device);
    assert!(vulkan.is_alone());
}

/// Each queue waits once for new mappings.
#[test]
#[ignore = "it needs a Vulkan device"]
fn binds_are_waited_for_once() {
    let opened = with_queues(true);
    let device = &mut device(opened);
    device.create(2).unwrap();
    let at = device.reserve(2).unwrap();
    let waits = |device: &mut VulkanDevice, stream| {
        for _ in 0..2 {
            device.signal(stream).unwrap();
        }
        device.flush_binds().unwrap();
        let gathered = device.gathered(stream as usize);
        let waits = gathered.iter().map(|work| work.waits.len()).collect::<Vec<_>>();
        device.wait_idle().unwrap();
        waits
    };
    assert_eq!(waits(device, Stream::Upload), [0, 0]);
    for chunk in 0..2 {
        let at = DeviceAddress(at.0 + chunk * CHUNK_BYTES);
        device.map(at, Chunks { first: chunk, count: 1 }).unwrap();
        for stream in [Stream::Upload, Stream::Compute] {
            assert_eq!(waits(device, stream), [1, 0]);
            assert_eq!(waits(device, stream), [0, 0]);
        }
    }
}

/// The check does not ask the driver, which need not refuse.
#[test]
#[ignore = "it needs a Vulkan device"]
fn memory_beyond_the_limits_is_refused() {
    type Limit = fn(&mut Physical);
    let limits: [(Limit, &str); 2] = [
        (|physical| physical.max_buffer_bytes = 1024, "vkCreateBuffer"),
        (|physical| physical.max_allocation_bytes = 1024, "vkAllocateMemory"),
    ];
    for (limit, call) in limits {
        let mut opened = opened();
        limit(&mut Arc::get_mut(&mut opened.device).unwrap().physical);
        let mut device = device(opened);
        device.working_memory(1024).unwrap();
        let code = vk::Result::ERROR_OUT_OF_DEVICE_MEMORY;
        assert_eq!(device.working_memory(1028), Err(VulkanError::Driver { call, code }));
    }
}

/// The limit holds however much memory the device has.
#[test]
#[ignore = "it needs a Vulkan device"]
fn allocations_beyond_the_limit_are_refused() {
    const MOST: u32 = 3;
    let mut opened = opened();
    let physical = &mut Arc::get_mut(&mut opened.device).unwrap().physical;
    physical.max_allocation_bytes = 2 * CHUNK_BYTES;
    physical.properties.limits.max_memory_allocation_count = MOST;
    let device = &mut device(opened);
    let error = device.create(2 * u64::from(MOST) + 1).unwrap_err();
    assert_eq!(error, VulkanError::Allocations { most: MOST });
    let text = error.to_string();
    assert!(text.contains("3 allocations") && text.contains("use larger chunks"), "{text}");
    // The memory that was allocated before the error is free again.
    device.create(2 * u64::from(MOST) - 2).unwrap();
    device.working_memory(4).unwrap();
    assert_eq!(device.working_memory(4), Err(VulkanError::Allocations { most: MOST }));
    assert_eq!(device.create_host(4), Err(VulkanError::Allocations { most: MOST }));
}

static SUBMITS: AtomicUsize = AtomicUsize::new(0);

unsafe extern "system" fn refuse_submit(
    _: vk::Queue,
    _: u32,
    _: *const vk::SubmitInfo2<'_>,
    _: vk::Fence,
) -> vk::Result {
    SUBMITS.fetch_add(1, Ordering::Relaxed);
    vk::Result::ERROR_OUT_OF_HOST_MEMORY
}

/// Nobody waits forever for work that the driver has refused.
#[test]
#[ignore = "it needs a Vulkan device"]
fn refused_submissions_are_errors() {
    let mut opened = with_queues(true);
    let owned = Arc::get_mut(&mut opened.device).unwrap();
    owned.change(|_, v1_3| v1_3.queue_submit2 = refuse_submit);
    let device = &mut device(opened);
    let point = device.signal(Stream::Upload).unwrap();
    device.signal(Stream::Download).unwrap();
    for refused in 1..3 {
        // Both queues.
        assert!(device.block_until(point).is_err());
        assert_eq!(SUBMITS.load(Ordering::Relaxed), 2 * refused);
    }
    assert!(device.reached(point).is_err());
    assert!(device.wait(Stream::Compute, point).is_err());
    assert!(device.wait_idle().is_err());
}

static WAITS: AtomicUsize = AtomicUsize::new(0);
static FREED: AtomicUsize = AtomicUsize::new(0);

unsafe extern "system" fn refuse_wait(_: vk::Queue) -> vk::Result {
    WAITS.fetch_add(1, Ordering::Relaxed);
    vk::Result::ERROR_OUT_OF_HOST_MEMORY
}

unsafe extern "system" fn lose_device(_: vk::Queue) -> vk::Result {
    WAITS.fetch_add(1, Ordering::Relaxed);
    vk::Result::ERROR_DEVICE_LOST
}

unsafe extern "system" fn count_free(
    _: vk::Device,
    _: vk::DeviceMemory,
    _: *const vk::AllocationCallbacks<'_>,
) {
    FREED.fetch_add(1, Ordering::Relaxed);
}

/// A lost device no longer uses its memory, so the memory is freed.
#[test]
#[ignore = "it needs a Vulkan device"]
fn all_queues_are_waited_for_and_what_may_be_in_use_is_leaked() {
    let waits: [(vk::PFN_vkQueueWaitIdle, usize); 2] = [(refuse_wait, 0), (lose_device, 3)];
    for (wait, freed) in waits {
        let (mut opened, vulkan) = opened_by(Vulkan::alone());
        let others = opened.streams;
        let owned = Arc::get_mut(&mut opened.device).unwrap();
        owned.add_queues(&others);
        owned.change(|v1_0, _| (v1_0.queue_wait_idle, v1_0.free_memory) = (wait, count_free));
        let mut device = device(opened);
        device.create(1).unwrap();
        device.create_host(4096).unwrap();
        device.working_memory(4).unwrap();
        let before = WAITS.load(Ordering::Relaxed);
        assert!(device.wait_idle().is_err());
        assert!(WAITS.load(Ordering::Relaxed) - before > others.len());
        drop(device);
        assert_eq!(FREED.load(Ordering::Relaxed), freed);
        // A leaked device keeps its instance.
        assert_eq!(vulkan.is_alone(), freed > 0);
    }
}
