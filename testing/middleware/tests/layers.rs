//! Layers on a small plan: their output, and that they change nothing else.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use backend_sim::{SimDevice, SimKernels, reference_digest};
use middleware::{Layer, Layered, LayeredKernels, SlowLink, Tracer};
use planner_core::backend::{
    Chunks, DeviceRanges, HostRange, Kernels, Launch, Paging, Streams, Transfers,
};
use planner_core::planner::{Request, Strategy};
use planner_core::{Kind, Machine, MachineParameters, Stream};
use serde_json::Value;
use spillway::planning;
use workloads::OwnedGraph;

const ITERATIONS: u64 = 5;

const MACHINE: Machine = {
    let Ok(machine) = Machine::new(
        MachineParameters::new()
            .with_device_bytes(1 << 20)
            .with_host_bytes(1 << 20)
            .with_chunk_bytes(256)
            .with_h2d_bytes_per_s(1_000_000_000)
            .with_d2h_bytes_per_s(1_000_000_000)
            .with_transfer_latency_ns(10)
            .with_map_ns_per_chunk(5)
            .with_unmap_ns_per_chunk(5),
    ) else {
        panic!("the machine is not sound")
    };
    machine
};

/// Two weights that do not fit at the same time.
fn work() -> OwnedGraph {
    let mut work = OwnedGraph::new("work");
    let input = work.push_tensor("input", 300, Kind::Input);
    for name in ["first", "second"] {
        let weight = work.push_tensor(name, 1000, Kind::State);
        work.push_op(name, 100, 0, &[weight, input], &[weight]);
    }
    work
}

/// Runs the plan with the least memory, and returns the device.
fn run<L: Layer<SimDevice>>(layer: L, then: impl FnOnce(&Layered<SimDevice, L>)) {
    let work = work();
    let graph = work.graph().unwrap();
    let request = Request { graph: &graph, machine: &MACHINE, budget_bytes: 0 };
    let (budget_bytes, _) = planning::min_feasible(&request, Strategy::OnDemand).unwrap();
    let plan = planning::plan(&Request { budget_bytes, ..request }, Strategy::OnDemand).unwrap();
    let plan = plan.plan();
    let schedule = planning::schedule(&graph, &MACHINE, &plan).unwrap();
    let schedule = schedule.schedule();
    let verified = planning::prove(&graph, &MACHINE, &plan, &schedule).unwrap();
    let mut device = Layered::new(SimDevice::new(MACHINE), layer);
    let mut kernels = LayeredKernels(SimKernels::new(graph));
    assert!(planning::execute(&verified, &mut device, &mut kernels, ITERATIONS).is_ok());
    assert_eq!(kernels.0.digest(&device.device), Ok(reference_digest(&graph, ITERATIONS)));
    then(&device);
}

fn slices<'t>(trace: &'t Value, name: &str) -> Vec<&'t Value> {
    let events = trace["traceEvents"].as_array().unwrap();
    let named =
        |event: &&Value| event["ph"] == "X" && event["name"].as_str().unwrap().starts_with(name);
    events.iter().filter(named).collect()
}

#[test]
fn a_trace_has_a_track_a_stream_and_says_what_is_resident() {
    let now_ns: fn(&SimDevice) -> u64 = |device| device.host_ns();
    run(Tracer::new(now_ns), |device| {
        let (trace, counters) = (device.layer.json(), device.device.counters());
        let events = trace["traceEvents"].as_array().unwrap();
        let tracks: Vec<&Value> = events
            .iter()
            .filter(|event| event["ph"] == "M")
            .map(|event| &event["args"]["name"])
            .collect();
        let names = ["host", "compute", "upload", "download", "ops on the host", "collectives"];
        assert_eq!(tracks, names);
        let bytes = |name: &str| -> u64 {
            slices(&trace, name).iter().map(|slice| slice["args"]["bytes"].as_u64().unwrap()).sum()
        };
        assert!(counters.h2d_bytes > 0 && counters.d2h_bytes > 0 && counters.mapping_ns > 0);
        assert_eq!(bytes("upload"), counters.h2d_bytes);
        assert_eq!(bytes("download"), counters.d2h_bytes);
        assert!(slices(&trace, "upload").iter().all(|slice| slice["tid"] == 2));
        assert!(slices(&trace, "download").iter().all(|slice| slice["tid"] == 3));
        assert_eq!(slices(&trace, "op").len() as u64, 2 * ITERATIONS);
        let filled = slices(&trace, "fill");
        let names: Vec<&str> = filled.iter().map(|slice| slice["name"].as_str().unwrap()).collect();
        assert_eq!(names[..2], ["fill states", "fill inputs"]);
        let iterations =
            filled[1..].iter().map(|slice| slice["args"]["iteration"].as_u64().unwrap());
        assert!(iterations.eq(1..=ITERATIONS + 1), "the next iteration's inputs come early");
        assert!(filled.iter().all(|slice| slice["tid"] == 0));
        assert_eq!(slices(&trace, "map").len() as u64, counters.map_calls);
        let mapping_us: f64 = ["map", "unmap"]
            .iter()
            .flat_map(|name| slices(&trace, name))
            .map(|slice| slice["dur"].as_f64().unwrap())
            .sum();
        assert!((mapping_us * 1000.0 - counters.mapping_ns as f64).abs() < 1.0);
        let resident = events.iter().filter(|event| event["ph"] == "C");
        let most = resident.map(|event| event["args"]["mapped"].as_u64().unwrap()).max();
        assert_eq!(most, Some(counters.peak_chunks * MACHINE.chunk_bytes));
    });
}

#[test]
fn what_is_refused_is_traced_as_refused_and_not_resident() {
    let device = SimDevice::new(MACHINE);
    let mut device = Layered::new(device, Tracer::by_wall_clock::<SimDevice>());
    device.create(4).unwrap();
    let at = device.reserve(2).unwrap();
    assert!(device.map(at, Chunks { first: 4, count: 1 }).is_err());
    device.map(at, Chunks { first: 0, count: 2 }).unwrap();
    let alias = device.reserve(2).unwrap();
    device.map(alias, Chunks { first: 1, count: 2 }).unwrap();
    device.unmap(at, 2).unwrap();
    let trace = device.layer.json();
    let refused: Vec<bool> =
        slices(&trace, "map").iter().map(|slice| slice["args"]["refused"] == true).collect();
    assert_eq!(refused, [true, false, false]);
    let events = trace["traceEvents"].as_array().unwrap();
    let starts = events.iter().filter_map(|event| event["ts"].as_f64());
    assert!(starts.is_sorted() && trace.to_string().contains("\"dur\""));
    let resident = events.iter().filter(|event| event["ph"] == "C");
    let resident: Vec<u64> =
        resident.map(|event| event["args"]["mapped"].as_u64().unwrap() / 256).collect();
    assert_eq!(resident, [0, 2, 3, 2]);
}

#[test]
fn repeats_are_traced_as_repeats() {
    let mut work = OwnedGraph::new("work");
    let made = work.push_tensor("made", 100, Kind::Temporary);
    let op = work.push_op("make", 100, 0, &[], &[made]);
    work.set_repeatable(op);
    let mut kernels = LayeredKernels(SimKernels::new(work.graph().unwrap()));
    let device = SimDevice::new(MACHINE);
    let mut device = Layered::new(device, Tracer::by_wall_clock::<SimDevice>());
    device.create(1).unwrap();
    let at = device.reserve(1).unwrap();
    device.map(at, Chunks { first: 0, count: 1 }).unwrap();
    for is_repeat in [false, true] {
        let writes = [[at.0, 100]];
        let mut launch = Launch::new(op, DeviceRanges::new(&[]), DeviceRanges::new(&writes));
        launch.is_repeat = is_repeat;
        kernels.launch(&mut device, &launch).unwrap();
    }
    let trace = device.layer.json();
    let [first, repeat] = slices(&trace, "op")[..] else { panic!() };
    assert_eq!(
        (first["name"].as_str(), repeat["name"].as_str()),
        (Some("op 0"), Some("op 0 again"))
    );
    assert!(first["args"]["repeat"].is_null() && repeat["args"]["repeat"] == true);
}

#[test]
fn reads_and_writes_of_the_host_block_are_traced() {
    let device = SimDevice::new(MACHINE).with_bytes();
    let mut device = Layered::new(device, Tracer::by_wall_clock::<SimDevice>());
    device.create_host(8).unwrap();
    device.write_host(5, &[1, 2, 3]).unwrap();
    let mut read = [0; 2];
    device.read_host(6, &mut read).unwrap();
    assert_eq!(read, [2, 3]);
    assert!(device.read_host(7, &mut read).is_err());
    let trace = device.layer.json();
    let [read, refused] = slices(&trace, "read the host block")[..] else { panic!() };
    assert_eq!((&read["args"]["host_offset"], &read["args"]["bytes"]), (&6.into(), &2.into()));
    assert!(read["args"]["refused"].is_null() && refused["args"]["refused"] == true);
    let [write] = slices(&trace, "write the host block")[..] else { panic!() };
    assert_eq!((&write["args"]["host_offset"], &write["args"]["bytes"]), (&5.into(), &3.into()));
}

#[test]
fn a_layer_lies_over_a_borrowed_device_too() {
    let mut device = SimDevice::new(MACHINE).with_bytes();
    let mut slow = Layered::new(&mut device, SlowLink { times: 3 });
    slow.create(2).unwrap();
    slow.create_host(8).unwrap();
    slow.write_host(0, &[7; 8]).unwrap();
    let at = slow.reserve(2).unwrap();
    slow.map(at, Chunks { first: 0, count: 2 }).unwrap();
    slow.upload(HostRange { offset_bytes: 0, bytes: 8 }, at).unwrap();
    let point = slow.signal(Stream::Upload).unwrap();
    slow.block_until(point).unwrap();
    assert_eq!(slow.reached(point), Ok(true));
    slow.unmap(at, 2).unwrap();
    let mut read = [0; 8];
    device.read_host(0, &mut read).unwrap();
    assert_eq!((read, device.counters().h2d_bytes), ([7; 8], 3 * 8));
}

#[test]
fn a_slow_link_takes_as_long_as_it_says() {
    let mut times = Vec::new();
    for factor in [1, 3] {
        run(SlowLink { times: factor }, |device| {
            let counters = device.device.counters();
            times.push((counters.h2d_bytes, counters.d2h_bytes, device.device.host_ns()));
        });
    }
    let [(h2d, d2h, ns), (slow_h2d, slow_d2h, slow_ns)] = times[..] else { panic!() };
    assert_eq!((slow_h2d, slow_d2h), (3 * h2d, 3 * d2h));
    assert!(slow_ns > 2 * ns, "{slow_ns} after {ns}");
}
