//! Ops on the host are called by the driver, and by nobody once it has failed.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

#[allow(dead_code, reason = "the tests use only a part")]
mod common;

use backend_cuda::{CudaDevice, CudaError};
use integrity::Backend;
use planner_core::backend::{
    Chunks, HostLaunch, HostRange, HostRanges, Paging, Streams, Transfers,
};
use planner_core::{OpId, Stream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const BYTES: u64 = 64;

/// One test at a time: a lost context is that of the process.
static ALONE: Mutex<()> = Mutex::new(());

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

type Seen = Arc<Mutex<Vec<u64>>>;

/// Enqueues an op that notes its iteration, and then fails or not.
fn launch(
    device: &mut CudaDevice,
    iteration: u64,
    seen: &Seen,
    outcome: Result<(), &'static str>,
) -> Result<(), CudaError> {
    let ranges = [[0, BYTES]];
    let (reads, writes) = (HostRanges::new(&ranges), HostRanges::new(&ranges));
    let seen = Arc::clone(seen);
    let mut launch = HostLaunch::new(OpId(2), reads, writes);
    launch.iteration = iteration;
    device.launch_on_host(&launch, move |run| {
        assert_eq!(run.read(0).len(), BYTES as usize);
        locked(&seen).push(run.iteration);
        outcome
    })
}

fn opened() -> (emulated_cuda::Emulated, CudaDevice) {
    let (emulated, backend, machine) = common::emulated();
    let mut device = backend.open(machine, 0).unwrap();
    device.create_host(2 * BYTES).unwrap();
    (emulated, device)
}

#[test]
fn a_failure_ends_all_that_follows() {
    let _alone = locked(&ALONE);
    let (_, mut device) = opened();
    let seen = Seen::default();
    // All are enqueued before the first notes its iteration.
    let gate = locked(&seen);
    launch(&mut device, 4, &seen, Ok(())).unwrap();
    device.signal(Stream::Host).unwrap();
    launch(&mut device, 5, &seen, Err("the disk is full")).unwrap();
    launch(&mut device, 6, &seen, Ok(())).unwrap();
    let point = device.signal(Stream::Host).unwrap();
    drop(gate);
    let error = device.block_until(point).unwrap_err();
    assert_eq!(error.to_string(), "op 2 failed on the host in iteration 5: the disk is full");
    assert_eq!(device.signal(Stream::Compute).unwrap_err(), error);
    assert_eq!(launch(&mut device, 7, &seen, Ok(())).unwrap_err(), error);
    assert_eq!(device.wait_idle().unwrap_err(), error);
    assert_eq!(*locked(&seen), [4, 5]);
    device.read_host(0, &mut [0; BYTES as usize]).unwrap();
}

#[test]
fn what_has_run_is_freed_and_what_a_graph_holds_is_kept() {
    let _alone = locked(&ALONE);
    let (_, mut device) = opened();
    let (seen, captured) = (Seen::default(), Seen::default());
    launch(&mut device, 1, &seen, Ok(())).unwrap();
    let point = device.signal(Stream::Host).unwrap();
    device.block_until(point).unwrap();
    device.begin_capture().unwrap();
    launch(&mut device, 2, &captured, Ok(())).unwrap();
    let graph = device.end_capture().unwrap();
    assert_eq!(Arc::strong_count(&seen), 1, "it has run");
    assert!(locked(&captured).is_empty(), "it was captured");
    device.launch_graph(&graph, 0).unwrap();
    device.launch_graph(&graph, 9).unwrap();
    // A launch that is under way outlives its graph.
    drop(graph);
    device.wait_idle().unwrap();
    assert_eq!(*locked(&captured), [2, 11]);
    drop(device);
    assert_eq!(Arc::strong_count(&captured), 1);
}

/// If a context is in error, the driver calls no op, and the ops are not freed: it might still call
/// them.
#[test]
fn nothing_is_called_once_the_context_is_in_error() {
    let _alone = locked(&ALONE);
    let (emulated, mut device) = opened();
    let (first, second) = (Seen::default(), Seen::default());
    // The first op is under way and the second is enqueued when other work fails.
    let gate = locked(&first);
    launch(&mut device, 1, &first, Ok(())).unwrap();
    launch(&mut device, 1, &second, Ok(())).unwrap();
    emulated.set_faults(1, 0, 1);
    let mut failing = opened().1;
    emulated.set_seed(None);
    failing.create(1).unwrap();
    let at = failing.reserve(1).unwrap();
    failing.map(at, Chunks { first: 0, count: 1 }).unwrap();
    failing.upload(HostRange { offset_bytes: 0, bytes: BYTES }, at).unwrap();
    assert!(failing.wait_idle().is_err());
    assert!(launch(&mut device, 2, &second, Ok(())).is_err());
    drop(gate);
    drop((device, failing));
    // It waits for the work of streams that are gone.
    emulated.restart();
    assert!(locked(&second).is_empty());
    assert_eq!(Arc::strong_count(&second), 2, "it is kept");
}
