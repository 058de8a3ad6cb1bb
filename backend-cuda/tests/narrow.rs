//! All streams of a device share one hardware queue, launches and waits take time, and the timer
//! ticks once a microsecond. On this device a program stops if work waits for later work.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

#[allow(dead_code, reason = "the tests use only a part")]
mod common;
#[allow(dead_code, reason = "nothing is wrong here")]
mod watched;

use conformance::suite::{Bench, checks, graph_checks};
use emulated_cuda::{Emulated, Variable};
use integrity::Backend;
use planner_core::backend::{HostLaunch, HostRanges, Streams, Transfers};
use planner_core::{OpId, Stream};
use std::sync::mpsc;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use watched::{Bug, Watched};

/// One test runs at a time, because a setting of the driver holds for the whole process.
static ALONE: Mutex<()> = Mutex::new(());

const MODULES: [&str; 5] = ["streams", "host", "paging", "transfers", "graphs"];

#[test]
fn checks_pass_on_it() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (emulated, integrity, _) = common::emulated();
    emulated.delay_all();
    emulated.set(Variable::Connections, 1);
    emulated.set(Variable::LaunchNs, 3000);
    emulated.set(Variable::WaitNs, 5000);
    emulated.set(Variable::TimerTickNs, 1024);
    let machine = integrity.find().unwrap().machine;
    let backend = Watched { integrity, emulated, bug: Bug::None };
    let bench = Bench { backend: &backend, machine, order: 0 };
    let mut failed = Vec::new();
    for check in checks().into_iter().chain(graph_checks()) {
        let (module, _) = check.name.split_once("::").unwrap();
        if MODULES.contains(&module) {
            println!("{}", check.name);
            failed.extend(check.run_in_order(&bench).err().map(|failure| (check.name, failure)));
        }
    }
    emulated.restart();
    assert!(failed.is_empty(), "{failed:#?}");
}

/// Whether the device runs a kernel while an op on the host, which was enqueued earlier, waits for
/// the kernel.
fn works_beside_an_op(
    emulated: Emulated,
    backend: &impl Backend<Device = backend_cuda::CudaDevice>,
    connections: u64,
) -> bool {
    emulated.set(Variable::Connections, connections);
    let machine = backend.find().unwrap().machine;
    let mut device = backend.open(machine, 0).unwrap();
    device.create_host(64).unwrap();
    // The first launch loads the kernel. Later it would wait for the op.
    device.occupy(Stream::Compute, 1).unwrap();
    let (release, released) = mpsc::channel::<()>();
    let ranges = [[0, 64]];
    let launch = HostLaunch::new(OpId(0), HostRanges::new(&ranges), HostRanges::new(&[]));
    device.launch_on_host(&launch, move |_| released.recv()).unwrap();
    device.occupy(Stream::Compute, 1).unwrap();
    let point = device.signal(Stream::Compute).unwrap();
    let start = Instant::now();
    let mut is_reached = false;
    while !is_reached && start.elapsed() < Duration::from_millis(100) {
        thread::sleep(Duration::from_millis(1));
        is_reached = device.reached(point).unwrap();
    }
    release.send(()).unwrap();
    device.block_until(point).unwrap();
    device.wait_idle().unwrap();
    is_reached
}

#[test]
fn an_op_that_waits_for_later_work_would_wait_forever() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (emulated, backend, _) = common::emulated();
    assert!(works_beside_an_op(emulated, &backend, 4), "each stream has its own");
    assert!(!works_beside_an_op(emulated, &backend, 1));
    emulated.restart();
}
