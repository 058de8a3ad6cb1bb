//! Ops on the host run on their own thread, in order, and a failure of one ends the run.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use backend_host::{HostError, MappedDevice};
use planner_core::backend::{
    Chunks, DeviceAddress, HostLaunch, HostRange, HostRanges, Paging, Streams, Transfers,
};
use planner_core::{OpId, Stream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

const BYTES: u64 = 64;

/// A device with one chunk, and a host block of four ranges.
fn device() -> (MappedDevice, DeviceAddress) {
    let mut device = MappedDevice::new(4096, 4096).unwrap();
    device.create_host(4 * BYTES).unwrap();
    device.create(1).unwrap();
    let at = device.reserve(1).unwrap();
    device.map(at, Chunks { first: 0, count: 1 }).unwrap();
    device.write_host(0, &[1; 4 * BYTES as usize]).unwrap();
    (device, at)
}

fn range(number: u64) -> HostRange {
    HostRange { offset_bytes: number * BYTES, bytes: BYTES }
}

fn launch(
    device: &mut MappedDevice,
    iteration: u64,
    work: impl FnMut(backend_host::HostRun<'_>) -> Result<(), &'static str> + Send + 'static,
) -> Result<(), HostError> {
    let ranges = [[0, BYTES]];
    let (reads, writes) = (HostRanges::new(&ranges), HostRanges::new(&ranges));
    let mut launch = HostLaunch::new(OpId(2), reads, writes);
    launch.iteration = iteration;
    device.launch_on_host(&launch, work)
}

fn found(device: &mut MappedDevice, range: HostRange) -> u8 {
    let mut found = [0; BYTES as usize];
    device.read_host(range.offset_bytes, &mut found).unwrap();
    assert!(found.iter().all(|&byte| byte == found[0]));
    found[0]
}

#[test]
fn ops_run_in_order_while_the_caller_goes_on() {
    let (mut device, _) = device();
    let (go, gone) = mpsc::channel();
    let caller = thread::current().id();
    launch(&mut device, 1, move |mut run| {
        assert_ne!(thread::current().id(), caller);
        gone.recv().unwrap();
        run.writes[0].fill(5);
        Ok(())
    })
    .unwrap();
    launch(&mut device, 1, |mut run| {
        run.writes[0].iter_mut().for_each(|byte| *byte *= 2);
        Ok(())
    })
    .unwrap();
    let point = device.signal(Stream::Host).unwrap();
    assert!(!device.reached(point).unwrap());
    go.send(()).unwrap();
    device.block_until(point).unwrap();
    assert_eq!(found(&mut device, range(0)), 10);
}

#[test]
fn a_failure_ends_all_that_follows() {
    let (mut device, at) = device();
    let (go, gone) = mpsc::channel();
    launch(&mut device, 6, move |_| {
        gone.recv().unwrap();
        Err("the disk is full")
    })
    .unwrap();
    let (ran, has_run) = mpsc::channel();
    launch(&mut device, 6, move |_| ran.send(()).map_err(|_| "nobody listens")).unwrap();
    let failed = device.signal(Stream::Host).unwrap();
    // After the failure, the bytes must not be copied, and the wait must not block forever.
    device.wait(Stream::Download, failed).unwrap();
    device.download(at, range(1)).unwrap();
    go.send(()).unwrap();
    let error = device.block_until(failed).unwrap_err();
    assert_eq!(error.to_string(), "op 2 failed on the host in iteration 6: the disk is full");
    for stream in Stream::ALL {
        assert_eq!(device.signal(stream).unwrap_err(), error);
        assert_eq!(device.wait(stream, failed).unwrap_err(), error);
    }
    assert_eq!(device.reached(failed).unwrap_err(), error);
    assert_eq!(launch(&mut device, 7, |_| Ok(())).unwrap_err(), error);
    assert_eq!(device.upload(range(0), at).unwrap_err(), error);
    // Work that wrongly runs after the failure would have run by now.
    thread::sleep(Duration::from_millis(50));
    assert_eq!(has_run.try_iter().count(), 0);
    assert_eq!(found(&mut device, range(1)), 1);
}

#[test]
fn a_panic_is_a_failure() {
    let (mut device, _) = device();
    launch(&mut device, 3, |_| panic!("a bug")).unwrap();
    let outcome = device.signal(Stream::Host).and_then(|point| device.block_until(point));
    let said = outcome.unwrap_err().to_string();
    assert_eq!(said, "op 2 failed on the host in iteration 3: it panicked: a bug");
}

#[test]
fn ranges_outside_the_block_are_refused() {
    let (mut device, _) = device();
    let ranges = [[3 * BYTES, 2 * BYTES]];
    let (reads, writes) = (HostRanges::new(&[]), HostRanges::new(&ranges));
    let launched = HostLaunch::new(OpId(2), reads, writes);
    let refused = device.launch_on_host(&launched, |_| Ok::<_, &str>(()));
    assert!(matches!(refused, Err(HostError::Refused(_))));
    launch(&mut device, 1, |_| Ok(())).unwrap();
}

#[test]
fn a_dropped_device_leaves_out_what_has_not_begun() {
    let (mut device, _) = device();
    let (started, has_started) = mpsc::channel();
    let (ended, has_ended) = mpsc::channel();
    let ended_too = ended.clone();
    launch(&mut device, 1, move |_| {
        started.send(()).unwrap();
        thread::sleep(Duration::from_millis(20));
        ended.send("the first").unwrap();
        Ok(())
    })
    .unwrap();
    has_started.recv().unwrap();
    let too_late = ended_too.clone();
    launch(&mut device, 1, move |_| too_late.send("the second").map_err(|_| "nobody listens"))
        .unwrap();
    drop(device);
    assert_eq!(has_ended.try_iter().collect::<Vec<_>>(), ["the first"]);
}
