//! What the suite does not ask, since only Vulkan has it: the layer that listens, the limits
//! of bindings, what is used again.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use backend_vulkan::ash::vk;
use backend_vulkan::{
    Compute, Integrity, IntegrityKernels, KernelError, Options, Vulkan, VulkanDevice, VulkanError,
    default_chunk_bytes,
};
use integrity::{Backend, Reading, value};
use planner_core::backend::{
    BackendError, Chunks, DeviceAddress, DeviceRanges, ErrorKind, HostRange, Kernels, Launch,
    Paging, Streams, Transfers,
};
use planner_core::{Kind, OpId, Stream, TensorId};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use workloads::OwnedGraph;

type Test = fn(&Vulkan, &Options<'_>);

const TESTS: [(&str, Test); 11] = [
    ("the_layer_hears_a_missing_barrier", the_layer_hears_a_missing_barrier),
    ("what_exceeds_a_binding_is_split", what_exceeds_a_binding_is_split),
    ("what_is_foreign_is_refused", what_is_foreign_is_refused),
    ("bindings_are_checked", bindings_are_checked),
    ("fills_are_checked", fills_are_checked),
    ("what_a_device_cannot_run_is_no_kernel", what_a_device_cannot_run_is_no_kernel),
    ("too_much_working_memory_is_refused", too_much_working_memory_is_refused),
    ("lists_of_commands_are_used_again", lists_of_commands_are_used_again),
    ("what_is_mapped_is_bound_together", what_is_mapped_is_bound_together),
    ("wrong_chunks_and_names_are_refused", wrong_chunks_and_names_are_refused),
    ("chunks_have_two_mebibytes_by_default", chunks_have_two_mebibytes_by_default),
];

/// The test that runs: devices with validation crash beside each other. See
/// [`Integrity::one_at_a_time`].
static ALONE: Mutex<()> = Mutex::new(());

fn main() -> ExitCode {
    let chosen = Integrity::from_environment(true).unwrap();
    let missing = chosen.find().err();
    let tests = TESTS.map(|(name, test)| {
        let chosen = chosen.clone();
        let listened = move || {
            let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
            let vulkan = Vulkan::load(true).unwrap();
            test(&vulkan, &chosen.options());
            assert_eq!(vulkan.messages(), [""; 0]);
        };
        (name, listened)
    });
    test_harness::with_device(missing, tests)
}

fn open(vulkan: &Vulkan, options: &Options<'_>) -> VulkanDevice {
    vulkan.open(options).unwrap()
}

/// A graph of two states and an op from one to the other.
fn work(bytes: u64) -> OwnedGraph {
    let mut graph = OwnedGraph::new("two states");
    graph.push_tensor("a", bytes, Kind::State);
    graph.push_tensor("b", bytes, Kind::State);
    graph.push_op("copy", 1, 0, &[TensorId(0)], &[TensorId(1)]);
    graph
}

fn launch(
    device: &mut VulkanDevice,
    kernels: &mut IntegrityKernels<'_>,
    [from, to]: [DeviceAddress; 2],
    bytes: u64,
) {
    let (reads, writes) = ([[from.0, bytes]], [[to.0, bytes]]);
    let launch = Launch::new(OpId(0), DeviceRanges::new(&reads), DeviceRanges::new(&writes));
    kernels.launch(device, &launch).unwrap();
}

fn finish(device: &mut VulkanDevice, stream: Stream) {
    let point = device.signal(stream).unwrap();
    device.block_until(point).unwrap();
}

fn the_layer_hears_a_missing_barrier(vulkan: &Vulkan, options: &Options<'_>) {
    for (barrier, heard) in [(true, 0), (false, 1)] {
        let mut device = open(vulkan, options);
        let memory = device.working_memory(1024).unwrap();
        let mut compute = device.compute().unwrap();
        compute.fill(memory, 1).unwrap();
        if barrier {
            compute.barrier();
        }
        compute.fill(memory, 2).unwrap();
        finish(&mut device, Stream::Compute);
        drop(device);
        let messages = vulkan.messages();
        assert_eq!(messages.len(), heard, "{messages:?}");
        assert!(messages.iter().all(|message| message.contains("SYNC-HAZARD-WRITE-AFTER-WRITE")));
    }
}

/// A tensor that takes two bindings and ends inside a word, read and written.
fn what_exceeds_a_binding_is_split(vulkan: &Vulkan, options: &Options<'_>) {
    let most_bytes = open(vulkan, options).most_binding_bytes();
    // Where one binding holds as much, the test would take all memory.
    let bytes = most_bytes.min(1 << 28) + 4097;
    let owned = work(bytes);
    let graph = owned.graph().unwrap();
    let device = &mut open(vulkan, options);
    let kernels = &mut IntegrityKernels::new(device, graph).unwrap();
    let chunk_bytes = device.chunk_bytes();
    let count = (bytes + 64).div_ceil(chunk_bytes);
    device.create(2 * count).unwrap();
    let [from, to] = [0, 1].map(|tensor| {
        let at = device.reserve(count).unwrap();
        device.map(at, Chunks { first: tensor * count, count }).unwrap();
        // Not where bindings are aligned.
        DeviceAddress(at.0 + 4)
    });
    let whole = device.range(DeviceAddress(from.0 - 4), count * chunk_bytes).unwrap();
    device.compute().unwrap().fill(whole, 7).unwrap();
    launch(device, kernels, [from, to], bytes);
    let mut expected = vec![0; bytes as usize];
    expected.iter_mut().step_by(4).for_each(|byte| *byte = 7);
    let result = value::op_results(OpId(0), 1, [Reading::of(&expected)].into_iter()).all;
    let between = Reading::exact(value::written(result, 0, bytes));
    let result = value::op_results(OpId(0), 1, [between].into_iter()).all;
    value::written(result, 0, bytes).fill(0, &mut expected);
    // Back, so that what was written is read.
    launch(device, kernels, [to, from], bytes);
    finish(device, Stream::Compute);
    assert_eq!(read_back(device, from, bytes), expected);
}

/// Bytes of device memory, by way of the host block.
fn read_back(device: &mut VulkanDevice, at: DeviceAddress, bytes: u64) -> Vec<u8> {
    device.create_host(bytes).unwrap();
    device.download(at, HostRange { offset_bytes: 0, bytes }).unwrap();
    finish(device, Stream::Download);
    let mut read = vec![0; bytes as usize];
    device.read_host(0, &mut read).unwrap();
    read
}

/// A kernel that writes to its binding.
const ONE: &str = "@group(0) @binding(0) var<storage, read_write> x: array<u32>;
    @compute @workgroup_size(1) fn one() { x[9] = 1u; }";

/// Also once the device that it belongs to is gone.
fn what_is_foreign_is_refused(vulkan: &Vulkan, options: &Options<'_>) {
    let mut device = open(vulkan, options);
    let mut other = open(vulkan, options);
    let (own, memory) = (device.kernel(ONE, "one").unwrap(), device.working_memory(64).unwrap());
    let (late, foreign) = (other.kernel(ONE, "one").unwrap(), other.working_memory(64).unwrap());
    other.create(1).unwrap();
    let at = other.reserve(1).unwrap();
    other.map(at, Chunks { first: 0, count: 1 }).unwrap();
    let mapped = other.range(at, 64).unwrap();
    let refused = |device: &mut VulkanDevice| {
        let mut compute = device.compute().unwrap();
        for (kernel, range) in [(late, memory), (own, foreign), (own, mapped)] {
            let dispatched = compute.dispatch(kernel, &[range], &[], [1, 1, 1]);
            assert_eq!(dispatched, Err(VulkanError::Foreign));
        }
        for range in [foreign, mapped] {
            assert_eq!(compute.fill(range, 1), Err(VulkanError::Foreign));
        }
    };
    refused(&mut device);
    drop(other);
    refused(&mut device);
    // A third one does not take the place of the second.
    let mut third = open(vulkan, options);
    third.kernel(ONE, "one").unwrap();
    let fill = third.compute().unwrap().fill(foreign, 1);
    assert_eq!(fill, Err(VulkanError::Foreign));
    let dispatched = third.compute().unwrap().dispatch(late, &[], &[], [1, 1, 1]);
    assert_eq!(dispatched, Err(VulkanError::Foreign));
    device.compute().unwrap().dispatch(own, &[memory], &[], [1, 1, 1]).unwrap();
    finish(&mut device, Stream::Compute);
}

fn bindings_are_checked(vulkan: &Vulkan, options: &Options<'_>) {
    let device = &mut open(vulkan, options);
    let source = "@group(0) @binding(0) var<storage, read_write> x: array<u32, 16>;
        @compute @workgroup_size(1) fn one() { x[9] = 1u; }";
    let kernel = device.kernel(source, "one").unwrap();
    let [memory, short] = [64, 60].map(|bytes| device.working_memory(bytes).unwrap());
    device.create(1).unwrap();
    let at = device.reserve(1).unwrap();
    device.map(at, Chunks { first: 0, count: 1 }).unwrap();
    let range = |offset, bytes| device.range(DeviceAddress(at.0 + offset), bytes).unwrap();
    let (whole, odd, ragged) = (range(0, 64), range(1, 64), range(0, 65));
    let compute = &mut device.compute().unwrap();
    let one = [1, 1, 1];
    let wrong = |compute: &mut Compute<'_>, bindings: &[_], immediates: &[u32], groups| {
        compute.dispatch(kernel, bindings, immediates, groups).unwrap_err()
    };
    assert_eq!(wrong(compute, &[], &[], one), VulkanError::Bindings);
    assert_eq!(wrong(compute, &[memory], &[1], one), VulkanError::Bindings);
    for range in [short, odd, ragged] {
        assert_eq!(wrong(compute, &[range], &[], one), VulkanError::Binding(0));
    }
    for groups in [[u32::MAX, 1, 1], [1, u32::MAX, 1], [1, 1, u32::MAX]] {
        assert_eq!(wrong(compute, &[memory], &[], groups), VulkanError::Groups(groups));
    }
    for range in [memory, whole] {
        compute.dispatch(kernel, &[range], &[], one).unwrap();
        compute.barrier();
    }
    finish(device, Stream::Compute);
}

fn fills_are_checked(vulkan: &Vulkan, options: &Options<'_>) {
    let device = &mut open(vulkan, options);
    device.create(1).unwrap();
    let at = device.reserve(1).unwrap();
    device.map(at, Chunks { first: 0, count: 1 }).unwrap();
    for (offset_bytes, bytes) in [(0, 0), (0, 3), (2, 4), (4, 6)] {
        let range = device.range(DeviceAddress(at.0 + offset_bytes), bytes).unwrap();
        let filled = device.compute().unwrap().fill(range, 1);
        assert_eq!(filled, Err(VulkanError::Fill { offset_bytes, bytes }));
    }
    let range = device.range(DeviceAddress(at.0 + 4), 8).unwrap();
    device.compute().unwrap().fill(range, 1).unwrap();
    finish(device, Stream::Compute);
}

/// The limits are the device's, one by one; the unit tests have the rest.
fn what_a_device_cannot_run_is_no_kernel(vulkan: &Vulkan, options: &Options<'_>) {
    let device = &mut open(vulkan, options);
    let shared = "var<workgroup> w: array<vec4u, 65536>;
        @group(0) @binding(0) var<storage, read_write> x: array<u32>;
        @compute @workgroup_size(1) fn main() { x[0] = w[1].x; }";
    let threads = "@compute @workgroup_size(16383) fn main() {}";
    for (source, needed) in [(shared, "bytes that a group shares"), (threads, "threads in x")] {
        let refused = device.kernel(source, "main").unwrap_err();
        assert!(matches!(refused, KernelError::Limits(_)), "{refused:?}");
        let text = refused.to_string();
        assert!(text.starts_with("main: it needs ") && text.contains(needed), "{text}");
    }
}

fn too_much_working_memory_is_refused(vulkan: &Vulkan, options: &Options<'_>) {
    let device = &mut open(vulkan, options);
    let device_bytes = vulkan.device(options).unwrap().memory_bytes;
    let code = vk::Result::ERROR_OUT_OF_DEVICE_MEMORY;
    for bytes in [u64::MAX, 1 << 62] {
        let call = "vkCreateBuffer";
        assert_eq!(device.working_memory(bytes), Err(VulkanError::Driver { call, code }));
    }
    let refused = device.working_memory(device_bytes + 1).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::OutOfDeviceMemory);
    device.working_memory(0).unwrap();
}

/// However far the host runs ahead.
fn lists_of_commands_are_used_again(vulkan: &Vulkan, options: &Options<'_>) {
    let device = &mut open(vulkan, options);
    let memory = device.working_memory(1 << 16).unwrap();
    for word in 0..2000 {
        device.compute().unwrap().fill(memory, word).unwrap();
        device.signal(Stream::Compute).unwrap();
    }
    finish(device, Stream::Compute);
    // In flight, and gathered for the next submission.
    assert!(device.counters().command_lists <= 64 + 16, "{:?}", device.counters());
    assert!(device.counters().submits <= 2000 / 10, "{:?}", device.counters());
}

fn what_is_mapped_is_bound_together(vulkan: &Vulkan, options: &Options<'_>) {
    let device = &mut open(vulkan, options);
    device.create(8).unwrap();
    let at = device.reserve(8).unwrap();
    let address = |chunk| DeviceAddress(at.0 + chunk * device.chunk_bytes());
    let addresses: Vec<_> = (0..8).map(address).collect();
    for (chunk, &at) in (0..).zip(&addresses) {
        device.map(at, Chunks { first: chunk, count: 1 }).unwrap();
    }
    assert_eq!(device.counters().bind_calls, 0);
    finish(device, Stream::Compute);
    finish(device, Stream::Compute);
    assert_eq!(device.counters().bind_calls, 1);
    // The same address twice takes two calls, in this order.
    device.unmap(addresses[3], 1).unwrap();
    device.map(addresses[3], Chunks { first: 5, count: 1 }).unwrap();
    finish(device, Stream::Compute);
    assert_eq!(device.counters().bind_calls, 3);
}

fn wrong_chunks_and_names_are_refused(vulkan: &Vulkan, options: &Options<'_>) {
    let refused = |options: &Options<'_>| vulkan.open(options).unwrap_err().to_string();
    let page_bytes = vulkan.device(options).unwrap().page_bytes;
    let odd = Options { chunk_bytes: Some(page_bytes + 1), ..*options };
    assert!(refused(&odd).contains(&format!("pages of {page_bytes} bytes")));
    let nobody = Options { device: Some("no such device"), ..*options };
    assert!(refused(&nobody).contains("no such device"));
}

fn chunks_have_two_mebibytes_by_default(vulkan: &Vulkan, options: &Options<'_>) {
    const MIB: u64 = 1 << 20;
    for (page_bytes, chunk_bytes) in [(4096, 2 * MIB), (2 * MIB, 2 * MIB), (3 * MIB, 3 * MIB)] {
        assert_eq!(default_chunk_bytes(page_bytes), chunk_bytes);
    }
    let page_bytes = vulkan.device(options).unwrap().page_bytes;
    assert_eq!(open(vulkan, options).chunk_bytes(), default_chunk_bytes(page_bytes));
}
