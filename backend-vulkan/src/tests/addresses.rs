//! The limits of one virtual range and of all ranges together. The tests make the driver report less
//! than it supports.

use super::{CHUNK_BYTES, device, opened, run};
use crate::adapter::Opened;
use crate::{
    AddressSpace, Integrity, IntegrityKernels, Options, Unavailable, VulkanDevice, VulkanError,
};
use ash::vk;
use conformance::suite::{Verdict, checks, judge};
use integrity::{Backend, Found};
use planner_core::backend::{BackendError, Chunks, HostRange, Paging, Streams, Transfers};
use planner_core::{ExecuteError, Graph, Machine, Stream};
use std::sync::Arc;

/// A device whose driver reports these limits for all sparse buffers and for one buffer.
fn limited(reported_bytes: u64, max_buffer_bytes: u64) -> Opened {
    let mut opened = opened();
    let physical = &mut Arc::get_mut(&mut opened.device).unwrap().physical;
    physical.properties.limits.sparse_address_space_size = reported_bytes;
    physical.max_buffer_bytes = max_buffer_bytes;
    opened
}

fn with_addresses(opened: Opened, sparse_bytes: Option<u64>) -> Result<VulkanDevice, Unavailable> {
    let chunk_bytes = Some(CHUNK_BYTES);
    VulkanDevice::new(opened, &Options { device: None, chunk_bytes, sparse_bytes })
}

/// Lavapipe reports 2 GiB, and its real limit is far above.
#[test]
#[ignore = "it needs a Vulkan device"]
fn addresses_beyond_the_reported_limit_need_the_option() {
    let reported_bytes = 400 * CHUNK_BYTES;
    let opened = || limited(reported_bytes, u64::from(u32::MAX));
    let refused = |device: &mut VulkanDevice| match run(device, true).unwrap_err() {
        ExecuteError::Device { error, .. } => error.to_string(),
        error => panic!("{error:?}"),
    };
    let text = refused(&mut device(opened()));
    assert!(text.contains("no addresses are left for"), "{text}");
    assert!(text.contains("the driver reports 26214400 bytes of sparse addresses"), "{text}");
    assert!(
        text.ends_with(
            "set SPILLWAY_VULKAN_SPARSE_BYTES (in Rust, Options::sparse_bytes) to a larger limit"
        ),
        "{text}"
    );
    let mut device = with_addresses(opened(), Some(800 * CHUNK_BYTES)).unwrap();
    let text = refused(&mut device);
    assert!(text.contains("sets the limit to 52428800 bytes; set it to more"), "{text}");
    let mut device = with_addresses(opened(), Some(8 << 30)).unwrap();
    run(&mut device, true).unwrap();
    assert!(device.space.taken_bytes() > reported_bytes);
}

#[test]
#[ignore = "it needs a Vulkan device"]
fn wrong_limits_of_addresses_are_refused() {
    for (sparse_bytes, named) in [(0, "is 0,"), (CHUNK_BYTES + 1, "is 65537,")] {
        let text = with_addresses(opened(), Some(sparse_bytes)).unwrap_err().to_string();
        assert!(text.starts_with("SPILLWAY_VULKAN_SPARSE_BYTES"), "{text}");
        assert!(
            text.contains(named) && text.contains("a multiple of the device's pages"),
            "{text}"
        );
    }
}

/// The limit of a buffer is not a multiple of the chunk size.
#[test]
#[ignore = "it needs a Vulkan device"]
fn ranges_lie_in_several_buffers() {
    const COUNT: u64 = 6;
    let mut device = device(limited(1 << 30, 4 * CHUNK_BYTES + 1));
    let bytes = 2 * CHUNK_BYTES;
    device.create(2 * COUNT).unwrap();
    device.create_host(COUNT * bytes).unwrap();
    let mut buffers = Vec::new();
    for index in 0..COUNT {
        let at = device.reserve(2).unwrap();
        device.map(at, Chunks { first: 2 * index, count: 2 }).unwrap();
        let range = device.range(at, bytes).unwrap();
        buffers.push(range.buffer());
        device.compute().unwrap().fill(range, index as u32 + 1).unwrap();
        let point = device.signal(Stream::Compute).unwrap();
        device.wait(Stream::Download, point).unwrap();
        device.download(at, HostRange { offset_bytes: index * bytes, bytes }).unwrap();
        device.signal(Stream::Download).unwrap();
    }
    device.wait_idle().unwrap();
    buffers.dedup();
    assert_eq!(buffers.len() as u64, COUNT / 2);
    let mut found = vec![0; (COUNT * bytes) as usize];
    device.read_host(0, &mut found).unwrap();
    for (index, words) in (1..).zip(found.chunks(bytes as usize)) {
        assert!(words.chunks(4).all(|word| word == [index, 0, 0, 0]), "range {index}");
    }
    let error = device.reserve(5).unwrap_err();
    assert_eq!(error, VulkanError::Range { bytes: 5 * CHUNK_BYTES, most_bytes: 4 * CHUNK_BYTES });
    device.reserve(4).unwrap();
}

#[test]
#[ignore = "it needs a Vulkan device"]
fn plans_run_in_several_buffers() {
    let max_buffer_bytes = 400 * CHUNK_BYTES;
    let mut several = device(limited(1 << 30, max_buffer_bytes));
    run(&mut several, true).unwrap();
    assert!(several.space.taken_bytes() >= 3 * max_buffer_bytes);
    // A pool that is larger than a buffer is not mapped as a whole.
    let limited_to = |chunks: u64| device(limited(1 << 30, chunks * CHUNK_BYTES));
    run(&mut limited_to(200), true).unwrap();
    run(&mut limited_to(200), false).unwrap();
    let text = run(&mut limited_to(4), true).unwrap_err().to_string();
    assert!(text.contains("at most 262144 bytes (maxBufferSize): no tensor"), "{text}");
}

unsafe extern "system" fn refuse_buffer(
    _: vk::Device,
    _: *const vk::BufferCreateInfo<'_>,
    _: *const vk::AllocationCallbacks<'_>,
    _: *mut vk::Buffer,
) -> vk::Result {
    vk::Result::ERROR_OUT_OF_DEVICE_MEMORY
}

unsafe extern "system" fn refuse_bind(
    _: vk::Queue,
    _: u32,
    _: *const vk::BindSparseInfo<'_>,
    _: vk::Fence,
) -> vk::Result {
    vk::Result::ERROR_OUT_OF_HOST_MEMORY
}

/// Errors keep their text if all buffers are within the reported limit.
#[test]
#[ignore = "it needs a Vulkan device"]
fn what_the_driver_refuses_beyond_its_limit_names_the_option() {
    type Change = fn(&mut ash::DeviceFnV1_0);
    let changes: [(Change, &str, vk::Result); 2] = [
        (
            |v1_0| v1_0.create_buffer = refuse_buffer,
            "vkCreateBuffer",
            vk::Result::ERROR_OUT_OF_DEVICE_MEMORY,
        ),
        (
            |v1_0| v1_0.queue_bind_sparse = refuse_bind,
            "vkQueueBindSparse",
            vk::Result::ERROR_OUT_OF_HOST_MEMORY,
        ),
    ];
    let [least, most] = [8, 16].map(|chunks| chunks * CHUNK_BYTES);
    for (change, call, code) in changes {
        for (sparse_bytes, beyond) in [(least, false), (most, true)] {
            let mut opened = limited(least, most);
            let owned = Arc::get_mut(&mut opened.device).unwrap();
            owned.change(|v1_0, _| change(v1_0));
            let mut device = with_addresses(opened, Some(sparse_bytes)).unwrap();
            let error = refused_range(&mut device).unwrap_err();
            let space = AddressSpace { bytes: sparse_bytes, reported_bytes: least };
            if beyond {
                let text = error.to_string();
                assert!(text.contains("the driver reports 524288 bytes"), "{text}");
                assert!(text.contains("sets the limit to 1048576 bytes; set it to less"), "{text}");
                assert_eq!(error, VulkanError::BeyondReported { call, code, sparse_bytes, space });
            } else {
                assert_eq!(error, VulkanError::Driver { call, code });
            }
            let kind = VulkanError::Driver { call, code }.kind();
            assert_eq!(error.kind(), kind);
        }
    }
}

/// Reserves a range, maps it, and binds its pages.
fn refused_range(device: &mut VulkanDevice) -> Result<(), VulkanError> {
    let at = device.reserve(1)?;
    device.create(1)?;
    device.map(at, Chunks { first: 0, count: 1 })?;
    device.flush_binds()
}

/// Opens devices whose driver reports small limits, for the suite.
struct Limited(Integrity);

impl Limited {
    const REPORTED_BYTES: u64 = 12 << 20;
    const SPARSE_BYTES: u64 = 1 << 30;
}

impl Backend for Limited {
    type Error = VulkanError;
    type Device = VulkanDevice;
    type Kernels<'g> = IntegrityKernels<'g>;

    fn name(&self) -> &'static str {
        "vulkan with small limits"
    }

    fn find(&self) -> Result<Found, String> {
        self.0.find()
    }

    fn open(&self, machine: Machine, _: u64) -> Result<VulkanDevice, String> {
        let opened = limited(Self::REPORTED_BYTES, Self::REPORTED_BYTES);
        let (chunk_bytes, sparse_bytes) = (Some(machine.chunk_bytes), Some(Self::SPARSE_BYTES));
        Ok(VulkanDevice::new(opened, &Options { device: None, chunk_bytes, sparse_bytes })?)
    }

    fn kernels<'g>(
        &self,
        device: &mut VulkanDevice,
        graph: Graph<'g>,
    ) -> Result<IntegrityKernels<'g>, VulkanError> {
        IntegrityKernels::new(device, graph)
    }
}

/// One of the checks reserves ten thousand ranges, which need ten buffers.
#[test]
#[ignore = "it needs a Vulkan device"]
fn the_suite_maps_beyond_the_reported_limit() {
    let limited = Limited(Integrity::from_environment(false).unwrap());
    let found = limited.find();
    let checks = checks::<Limited>();
    let of_memory = checks.iter().filter(|check| {
        check.name.starts_with("paging::") || check.name.starts_with("transfers::")
    });
    let mut passed = 0;
    for check in of_memory {
        match judge(check, &limited, &found) {
            Verdict::Passed => passed += 1,
            Verdict::Ignored(reason) => println!("{}: {reason}", check.name),
            Verdict::Failed(failure) => panic!("{}: {failure}", check.name),
        }
    }
    assert!(passed > 20, "{passed} checks");
}
