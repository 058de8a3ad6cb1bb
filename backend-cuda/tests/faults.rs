//! What fails is an error, the host block stays readable, and the next device works.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use backend_cuda::cudarc::driver::DriverError;
use backend_cuda::cudarc::driver::sys::CUresult::{
    CUDA_ERROR_NOT_FOUND, CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN,
};
use backend_cuda::{CudaDevice, CudaError};
use integrity::{Backend, reference_digest, states_digest};
use planner_core::backend::{
    BackendError, Chunks, DeviceAddress, ErrorKind, HostRange, Paging, Streams, Transfers,
};
use planner_core::executor::Moment;
use planner_core::planner::Strategy;
use planner_core::{ExecuteError, Kind, Stream};
use spillway::planning;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

const ITERATIONS: u64 = 8;

/// One test at a time: a lost context is that of the process.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn faults_by_seed_are_errors_and_no_more() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (emulated, backend, machine) = common::emulated();
    let work = common::training_step(machine.chunk_bytes, Kind::Input);
    let graph = work.graph().unwrap();
    let placed = common::placed(&graph, &machine, Strategy::OnDemand, 0);
    let mut kinds = HashSet::new();
    let mut live = emulated.counters().live;
    for seed in 0..60 {
        // With placements, and without.
        let mut plan = placed.plan();
        if seed % 2 == 1 {
            plan.placements = None;
        }
        let schedule = planning::schedule(&graph, &machine, &plan).unwrap();
        let verified = planning::prove(&graph, &machine, &plan, &schedule.schedule()).unwrap();
        let Ok(mut device) = backend.open(machine, 0) else { panic!("seed {seed}") };
        let mut kernels = backend.kernels(&mut device, graph).unwrap();
        let (refused, lost) = if seed % 3 == 0 { (0, 800) } else { (400, 0) };
        emulated.set_faults(seed, refused, lost);
        // Streams take their faults when they are created.
        if lost > 0 {
            drop(device);
            device = backend.open(machine, 0).unwrap();
            kernels = backend.kernels(&mut device, graph).unwrap();
        }
        let ran = planning::with_executor(
            &verified,
            &mut device,
            &mut kernels,
            |mut executor, device, kernels| {
                executor.run(device, kernels, ITERATIONS)?;
                executor.save_states(device)?;
                Ok(states_digest(&graph, device, executor.host_layout()).unwrap())
            },
        );
        emulated.set_seed(None);
        let mut is_lost = false;
        match ran {
            Ok(digest) => {
                assert_eq!(digest, reference_digest(&graph, ITERATIONS), "seed {seed}");
            }
            Err(ExecuteError::Device { at, error }) => {
                kinds.insert(error.kind());
                // Then nothing can be given back one by one.
                is_lost = error.kind() == ErrorKind::Lost;
                // The block is made last of all that is set up.
                let read = device.read_host(0, &mut [0; 64]);
                assert!(read.is_ok() || at == Moment::SetUp, "{error}");
            }
            Err(other) => panic!("seed {seed}: {other}"),
        }
        drop(device);
        let after = emulated.counters();
        assert!(is_lost || after.live == live, "seed {seed}: {after:?}");
        assert_eq!(after.freed_in_use, 0, "seed {seed}: {after:?}");
        if is_lost {
            // Nothing works in this process any more; the next seed stands for another.
            assert!(backend.open(machine, 0).is_err(), "seed {seed}: the error has gone");
            emulated.restart();
            live = emulated.counters().live;
        }
    }
    for kind in [ErrorKind::Lost, ErrorKind::OutOfDeviceMemory, ErrorKind::Other] {
        assert!(kinds.contains(&kind), "no {kind:?} among {kinds:?}");
    }
}

/// Enqueues copies to the host that are under way for some time.
fn download_much(device: &mut CudaDevice) {
    let chunks = (64 << 20) / device.chunk_bytes();
    device.create(chunks).unwrap();
    let at: DeviceAddress = device.reserve(chunks).unwrap();
    device.map(at, Chunks { first: 0, count: chunks }).unwrap();
    device.create_host(64 << 20).unwrap();
    for _ in 0..4 {
        device.download(at, HostRange { offset_bytes: 0, bytes: 64 << 20 }).unwrap();
    }
}

#[test]
fn all_streams_are_waited_for() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (emulated, backend, machine) = common::emulated();
    let mut device = backend.open(machine, 0).unwrap();
    // An error that an object left behind is not one of this wait.
    device
        .lend(Stream::Compute)
        .unwrap()
        .context
        .record_err::<()>(Err(DriverError(CUDA_ERROR_UNKNOWN)));
    device.occupy(Stream::Download, 50_000_000).unwrap();
    let point = device.signal(Stream::Download).unwrap();
    assert_eq!(device.wait_idle(), Ok(()));
    assert_eq!(device.reached(point), Ok(true));
    device.occupy(Stream::Download, 50_000_000).unwrap();
    let point = device.signal(Stream::Download).unwrap();
    // The first stream that is waited for is another.
    emulated.inject("cuStreamSynchronize", 909);
    assert!(device.wait_idle().is_err());
    assert_eq!(device.reached(point), Ok(true), "another stream has failed");
}

#[test]
fn what_may_be_in_use_is_leaked() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (emulated, backend, machine) = common::emulated();
    let before = emulated.counters();
    let mut device = backend.open(machine, 0).unwrap();
    download_much(&mut device);
    emulated.inject("cuStreamSynchronize", 909);
    drop(device);
    let after = emulated.counters();
    assert_eq!(after.freed_in_use, before.freed_in_use, "freed while copies use it");
    let chunks = (64 << 20) / machine.chunk_bytes;
    assert!(after.live > before.live + chunks, "chunks, mappings and the host block: {after:?}");
    // A device that can be waited for leaves nothing.
    let mut device = backend.open(machine, 0).unwrap();
    download_much(&mut device);
    drop(device);
    let last = emulated.counters();
    assert_eq!((last.live, last.freed_in_use), (after.live, after.freed_in_use));
}

#[test]
fn codes_of_newer_drivers_are_errors() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (emulated, backend, machine) = common::emulated();
    let mut device = backend.open(machine, 0).unwrap();
    let point = device.signal(Stream::Compute).unwrap();
    emulated.inject("cuEventSynchronize", 4242);
    let error = device.block_until(point).unwrap_err();
    assert_eq!(error, CudaError::Driver { call: "cuEventSynchronize", code: 4242 });
    assert_eq!(error.kind(), ErrorKind::Other);
    let text = error.to_string();
    assert_eq!(text, "cuEventSynchronize: error 4242 of the driver, which has no name");
    emulated.inject("cuStreamCreate", 4242);
    let error = backend.open(machine, 0).unwrap_err();
    assert_eq!(error, "cuStreamCreate: error 4242 of the driver, which has no name");
    let start = device.timestamp(Stream::Compute).unwrap();
    emulated.inject("cuEventElapsedTime", 4242);
    let error = start.ns_until(&start).unwrap_err();
    assert_eq!(error, CudaError::Driver { call: "cuEventElapsedTime", code: 4242 });
    emulated.inject("cuMemCreate", 2);
    let error = device.create(1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfDeviceMemory);
    assert_eq!(error.to_string(), "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2)");
    for code in [4, 46, 214, 220, 226, 304, 402, 700, 702, 709, 710, 714, 719, 721, 911, 999] {
        assert_eq!(CudaError::Driver { call: "", code }.kind(), ErrorKind::Lost, "{code}");
    }
}

/// cudarc takes codes as an enumeration, so this crate does not call it unless an embedder does.
#[test]
fn only_what_is_lent_goes_through_cudarc() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (emulated, backend, machine) = common::emulated();
    let mut first = backend.open(machine, 0).unwrap();
    let lent = Arc::clone(first.lend(Stream::Compute).unwrap().stream);
    drop(first);
    lent.synchronize().unwrap();
    // Each call of cudarc begins with this one.
    emulated.inject("cuCtxGetCurrent", 999);
    let work = common::training_step(machine.chunk_bytes, Kind::State);
    let graph = work.graph().unwrap();
    let placed = common::placed(&graph, &machine, Strategy::OnDemand, 0);
    let plan = placed.plan();
    let schedule = planning::schedule(&graph, &machine, &plan).unwrap();
    let verified = planning::prove(&graph, &machine, &plan, &schedule.schedule()).unwrap();
    let mut device = backend.open(machine, 0).unwrap();
    let mut kernels = backend.kernels(&mut device, graph).unwrap();
    let start = device.timestamp(Stream::Compute).unwrap();
    planning::execute(&verified, &mut device, &mut kernels, ITERATIONS).unwrap();
    device.occupy(Stream::Compute, 50_000_000).unwrap();
    let end = device.timestamp(Stream::Compute).unwrap();
    assert_eq!(end.is_reached(), Ok(false));
    assert!(start.ns_until(&end).unwrap() > 40e6, "it waits for both");
    drop(device);
    assert_eq!(lent.synchronize(), Err(DriverError(CUDA_ERROR_UNKNOWN)), "nobody else called it");
}

/// Drivers before CUDA 12.4 lack `cuFuncLoad`.
#[test]
fn an_older_driver_loads_kernels_itself() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (emulated, backend, machine) = common::emulated();
    let mut device = backend.open(machine, 0).unwrap();
    emulated.inject("cuFuncLoad", CUDA_ERROR_NOT_FOUND as u32);
    assert_eq!(device.occupy(Stream::Compute, 1), Ok(()));
    let mut device = backend.open(machine, 0).unwrap();
    emulated.inject("cuFuncLoad", CUDA_ERROR_OUT_OF_MEMORY as u32);
    let error = device.occupy(Stream::Compute, 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfDeviceMemory);
}
