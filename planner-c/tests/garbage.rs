//! Bad input of any kind is a code and a message, and changes nothing else.

#![allow(clippy::unwrap_used)]
// SAFETY: throughout, arrays are passed with their lengths, texts end with a zero, and handles are
// from the library.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;

use common::{made, said};
use planner_core::MachineParameters;
use proptest::collection::vec;
use proptest::prelude::*;
use spillway_c::addresses::spillway_plan_slab_switch_to;
use spillway_c::addresses::{Run, SlabCopy, spillway_plan_addresses};
use spillway_c::device::Device;
use spillway_c::error::Code;
use spillway_c::fill::Fill;
use spillway_c::graph::*;
use spillway_c::kernels::{Kernels, LaunchDescription};
use spillway_c::machine::*;
use spillway_c::plan::*;
use spillway_c::session::*;
use spillway_c::steps::*;
use spillway_c::streaming::*;
use spillway_c_types::kinds::STATE;
use spillway_c_types::machine::MachineDescription;
use spillway_c_types::steps::{HOST_RUN, StepDescription};
use std::ffi::{CString, c_void};
use std::ptr;

/// Sizes and times, including unusual ones.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![50 => 1..10_000u64, 1 => Just(0), 1 => Just(u64::MAX), 1 => any::<u64>()]
}

/// The ids of an op, of which a few are wrong.
fn ids() -> impl Strategy<Value = Vec<u32>> {
    let right = prop::sample::subsequence(vec![2, 0, 1], 0..=3);
    prop_oneof![20 => right, 1 => vec(any::<u32>(), 0..4)]
}

#[derive(Clone, Debug)]
struct OddOp {
    /// Time on the device, workspace, and time on the host.
    times_and_bytes: [u64; 3],
    operands: [Vec<u32>; 2],
    repeatable: u8,
}

#[derive(Clone, Debug)]
struct Garbage {
    tensors: Vec<(u64, u32)>,
    ops: Vec<OddOp>,
    machine: [u64; 8],
    budget: Option<CString>,
    strategy: Option<CString>,
}

fn garbage() -> impl Strategy<Value = Garbage> {
    let tensor = (number(), prop_oneof![9 => Just(0), 9 => 0..4u32, 1 => any::<u32>()]);
    let workspace = prop_oneof![3 => Just(0), 1 => number()];
    let host = prop_oneof![2 => Just(0), 1 => number()];
    let op = (number(), workspace, ids(), ids(), any::<u8>(), host);
    let op = op.prop_map(|(time_ns, workspace_bytes, reads, writes, repeatable, host_ns)| OddOp {
        times_and_bytes: [time_ns, workspace_bytes, host_ns],
        operands: [reads, writes],
        repeatable,
    });
    let text = |texts: &'static [&'static str]| {
        let known = prop::sample::select(texts).prop_map(|text| CString::new(text).unwrap());
        let odd = vec(1..=255u8, 0..9).prop_map(|bytes| CString::new(bytes).unwrap());
        prop::option::of(prop_oneof![8 => known, 1 => odd])
    };
    let budget = text(&["min", "35%", "1MiB", "0", "100%", "1e9"]);
    let strategy =
        text(&["auto", "on-demand", "window", "swap", "optimizer-offload", "joint:seconds=1"]);
    let machine = prop::array::uniform8(number()).prop_map(|[device, host, chunk, rest @ ..]| {
        let [h2d, d2h, latency, map, unmap] = rest;
        [device.saturating_mul(64), host.saturating_mul(64), chunk, h2d, d2h, latency, map, unmap]
    });
    let parts = (vec(tensor, 2..6), vec(op, 0..6), machine, budget, strategy);
    parts.prop_map(|(tensors, ops, machine, budget, strategy)| Garbage {
        tensors,
        ops,
        machine,
        budget,
        strategy,
    })
}

fn graph_of(garbage: &Garbage) -> Result<*mut Graph, Code> {
    let name = ptr::null();
    let tensors: Vec<_> = garbage
        .tensors
        .iter()
        .map(|&(bytes, kind)| TensorDescription {
            struct_bytes: size_of::<TensorDescription>(),
            name,
            bytes,
            kind,
        })
        .collect();
    let op = |op: &OddOp| {
        let ([time_ns, workspace_bytes, host_ns], [reads, writes]) =
            (op.times_and_bytes, &op.operands);
        OpDescription {
            struct_bytes: size_of::<OpDescription>(),
            name,
            time_ns,
            workspace_bytes,
            reads: reads.as_ptr(),
            read_count: reads.len(),
            writes: writes.as_ptr(),
            write_count: writes.len(),
            repeatable: op.repeatable,
            host_ns,
            collective: u8::from(op.repeatable > 200),
        }
    };
    let ops: Vec<_> = garbage.ops.iter().map(op).collect();
    made(|graph, error| unsafe {
        spillway_graph_new(
            name,
            tensors.as_ptr(),
            tensors.len(),
            ops.as_ptr(),
            ops.len(),
            graph,
            error,
        )
    })
}

fn machine_of(numbers: [u64; 8]) -> Result<*mut Machine, Code> {
    let [
        device_bytes,
        host_bytes,
        chunk_bytes,
        h2d_bytes_per_s,
        d2h_bytes_per_s,
        transfer_latency_ns,
        map_ns_per_chunk,
        unmap_ns_per_chunk,
    ] = numbers;
    let description = MachineDescription {
        struct_bytes: size_of::<MachineDescription>(),
        parameters: MachineParameters::new()
            .with_device_bytes(device_bytes)
            .with_host_bytes(host_bytes)
            .with_chunk_bytes(chunk_bytes)
            .with_h2d_bytes_per_s(h2d_bytes_per_s)
            .with_d2h_bytes_per_s(d2h_bytes_per_s)
            .with_transfer_latency_ns(transfer_latency_ns)
            .with_map_ns_per_chunk(map_ns_per_chunk)
            .with_unmap_ns_per_chunk(unmap_ns_per_chunk),
    };
    made(|machine, error| unsafe {
        spillway_machine_new(ptr::null(), &raw const description, machine, error)
    })
}

/// Reads the contents of a plan, with buffers that are too short and buffers that are long enough.
fn read(plan: *const Plan) {
    let (mut needed, mut iterations) = (0, 0);
    let steps = |into, capacity, needed, iterations, error| unsafe {
        spillway_plan_steps(
            plan,
            into,
            size_of::<StepDescription>(),
            capacity,
            needed,
            iterations,
            error,
        )
    };
    let (code, _) =
        said(|error| steps(ptr::null_mut(), 0, &raw mut needed, ptr::null_mut(), error));
    assert_eq!(code, Code::BufferTooShort);
    let mut list = Vec::<StepDescription>::with_capacity(needed);
    let code =
        steps(list.as_mut_ptr(), needed, &raw mut needed, &raw mut iterations, ptr::null_mut());
    assert_eq!(code, Code::Ok);
    assert!(iterations > 0 && needed.is_multiple_of(iterations as usize));
    unsafe { list.set_len(needed) };
    assert!(list.iter().all(|step| step.kind <= HOST_RUN));
    let addresses = |into, capacity, needed, slab_bytes| unsafe {
        spillway_plan_addresses(
            plan,
            into,
            size_of::<Run>(),
            capacity,
            needed,
            slab_bytes,
            ptr::null_mut(),
        )
    };
    let mut slab_bytes = 0;
    match addresses(ptr::null_mut(), 0, &raw mut needed, ptr::null_mut()) {
        Code::BufferTooShort => {
            let mut runs = Vec::<Run>::with_capacity(needed);
            let code = addresses(runs.as_mut_ptr(), needed, &raw mut needed, &raw mut slab_bytes);
            assert_eq!(code, Code::Ok);
            unsafe { runs.set_len(needed) };
            assert!(runs.iter().all(|run| run.offset_bytes + run.bytes <= slab_bytes));
        }
        code => assert!(code == Code::NotPlaced || (code, needed) == (Code::Ok, 0), "{code:?}"),
    }
    let json = |into, capacity, needed| unsafe {
        spillway_plan_to_json(plan, into, capacity, needed, ptr::null_mut())
    };
    assert_eq!(json(ptr::null_mut(), 0, &raw mut needed), Code::BufferTooShort);
    let mut bytes = vec![0; needed];
    assert_eq!(json(bytes.as_mut_ptr(), bytes.len(), &raw mut needed), Code::Ok);
}

/// None if the figures of the switch exceed 64 bits, as they may where no plan moves anything.
fn switch(from: *const Plan, to: *const Plan) -> Option<SwitchFigures> {
    let mut figures = SwitchFigures {
        struct_bytes: size_of::<SwitchFigures>(),
        d2h_bytes: 1,
        ..SwitchFigures::default()
    };
    let (code, message) =
        said(|error| unsafe { spillway_plan_switch_to(from, to, &raw mut figures, error) });
    if code == Code::NoSwitch && message.contains("exceed 64 bits") {
        return None;
    }
    assert_eq!(code, Code::Ok, "{message}");
    Some(figures)
}

/// Lays a plan out after another for the same graph, and switches to it.
fn switch_between(from: *const Plan, to: *const Plan) {
    // All bytes of states that a plan holds stay.
    assert_eq!(switch(to, to).unwrap().d2h_bytes, 0);
    let plain = switch(from, to);
    let arranged =
        made(|plan, error| unsafe { spillway_plan_arranged_after(to, from, plan, error) }).unwrap();
    read(arranged);
    let arranged_figures = switch(from, arranged);
    if let (Some(arranged), Some(plain)) = (arranged_figures, plain) {
        assert!(arranged.h2d_bytes <= plain.h2d_bytes, "{arranged:?} {plain:?}");
    }
    unsafe { spillway_plan_free(arranged) };
}

/// Plans the work if there is a plan, and switches between this plan and a plan with all of the
/// memory.
fn plan_and_switch(garbage: &Garbage) {
    let (graph, machine) = (graph_of(garbage), machine_of(garbage.machine));
    if let (Ok(graph), Ok(machine)) = (graph, machine) {
        let text = |text: &Option<CString>| text.as_ref().map_or(ptr::null(), |text| text.as_ptr());
        let options = PlanOptions {
            struct_bytes: size_of::<PlanOptions>(),
            budget: text(&garbage.budget),
            strategy: text(&garbage.strategy),
            unplaced: 0,
        };
        let plan = made(|plan, error| unsafe {
            spillway_plan_new(graph, machine, &raw const options, plan, error)
        });
        if let Ok(plan) = plan {
            read(plan);
            // A plan with all of the memory, if that is another plan.
            let all = PlanOptions {
                struct_bytes: size_of::<PlanOptions>(),
                budget: ptr::null(),
                ..options
            };
            let other = made(|plan, error| unsafe {
                spillway_plan_new(graph, machine, &raw const all, plan, error)
            });
            for other in other.iter().copied() {
                switch_between(plan, other);
                switch_between(other, plan);
                unsafe { spillway_plan_free(other) };
            }
            unsafe { spillway_plan_free(plan) };
        }
    }
    unsafe {
        spillway_graph_free(graph.unwrap_or(ptr::null_mut()));
        spillway_machine_free(machine.unwrap_or(ptr::null_mut()));
    }
}

/// One op that writes these tensors.
fn writing(tensors: Vec<(u64, u32)>, writes: Vec<u32>) -> Garbage {
    let op = OddOp { times_and_bytes: [1, 0, 0], operands: [vec![], writes], repeatable: 0 };
    let machine = [16896, 1 << 20, 528, 1, 1, 1, 1, 1];
    Garbage { tensors, ops: vec![op], machine, budget: None, strategy: None }
}

#[test]
fn a_switch_that_takes_too_long_is_refused() {
    let mut garbage = writing(vec![(6401, STATE), (2049, STATE), (3585, STATE)], vec![0, 1]);
    let [_, host_bytes, .., latency_ns, _, _] = &mut garbage.machine;
    (*host_bytes, *latency_ns) = (64, u64::MAX);
    garbage.budget = Some(c"min".to_owned());
    plan_and_switch(&garbage);
}

#[test]
fn a_search_may_have_all_bytes_there_are() {
    let mut garbage = writing(vec![(1, STATE), (1, STATE)], vec![]);
    (garbage.machine[0], garbage.machine[2]) = (u64::MAX, 1);
    garbage.strategy = Some(c"joint".to_owned());
    plan_and_switch(&garbage);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn garbage_is_an_error(garbage in garbage()) {
        plan_and_switch(&garbage);
    }

    #[test]
    fn garbage_layers_are_an_error(
        garbage in garbage(),
        times_ns in vec(number(), 6),
        hosts in prop_oneof![Just(vec![(0, 0); 6]), vec((number(), number()), 6)],
        kept in prop_oneof![Just(vec![(0, 0); 6]), vec((number(), number()), 6)],
    ) {
        let tensors = garbage.tensors.iter().zip(times_ns).zip(hosts.into_iter().zip(kept));
        let name = ptr::null();
        let layers: Vec<_> = tensors
            .map(|((&(bytes, _), time_ns), (of_host, (cache_bytes, output_bytes)))| {
                let (host_ns, activation_bytes) = of_host;
                Layer { struct_bytes: size_of::<Layer>(), name, bytes, time_ns, host_ns, activation_bytes, cache_bytes, output_bytes }
            })
            .collect();
        if let Ok(machine) = machine_of(garbage.machine) {
            let budget = garbage.budget.as_ref().map_or(ptr::null(), |text| text.as_ptr());
            let plan = made(|plan, error| unsafe {
                spillway_streaming_plan(layers.as_ptr(), layers.len(), machine, budget, plan, error)
            });
            let (mut least, mut layer) = (0, 0);
            let code = unsafe {
                let (least, layer) = (&raw mut least, &raw mut layer);
                let layers = (layers.as_ptr(), layers.len());
                spillway_streaming_min_feasible(layers.0, layers.1, machine, least, layer, ptr::null_mut())
            };
            prop_assert_eq!(code, Code::Ok);
            prop_assert!(layers[layer].bytes <= least || layers[layer].host_ns > 0);
            if let Ok(plan) = plan {
                read(plan);
                let all = made(|plan, error| unsafe {
                    let layers = (layers.as_ptr(), layers.len());
                    spillway_streaming_plan(layers.0, layers.1, machine, ptr::null(), plan, error)
                });
                for all in all.iter().copied() {
                    switch_between(plan, all);
                    switch_between(all, plan);
                    unsafe { spillway_plan_free(all) };
                }
                unsafe { spillway_plan_free(plan) };
            }
            unsafe { spillway_machine_free(machine) };
        }
    }

    #[test]
    fn bytes_that_are_no_file_are_an_error(json in vec(any::<u8>(), 0..99)) {
        let (at, len) = (json.as_ptr(), json.len());
        let graph = made(|to, error| unsafe { spillway_graph_from_json(at, len, to, error) });
        prop_assert_eq!(graph, Err(Code::File));
        let machine = made(|to, error| unsafe { spillway_machine_from_json(at, len, to, error) });
        prop_assert_eq!(machine, Err(Code::File));
    }
}

#[test]
fn null_is_an_error() {
    let graph = |count, to, error| unsafe {
        spillway_graph_new(ptr::null(), ptr::null(), count, ptr::null(), 0, to, error)
    };
    assert_eq!(made(|to, error| graph(1, to, error)), Err(Code::Argument));
    assert_eq!(made(|to, error| graph(usize::MAX, to, error)), Err(Code::Argument));
    assert_eq!(made(|to, error| graph(0, to, error)), Err(Code::Graph), "a graph has ops");
    assert_eq!(graph(0, ptr::null_mut(), ptr::null_mut()), Code::Argument);
    let machine = |to, error| unsafe { spillway_machine_builtin(ptr::null(), to, error) };
    assert_eq!(made(machine), Err(Code::Argument));
    let plan =
        |to, error| unsafe { spillway_plan_new(ptr::null(), ptr::null(), ptr::null(), to, error) };
    assert_eq!(made(plan), Err(Code::Argument));
    let layers = |count, to, error| unsafe {
        spillway_streaming_plan(ptr::null(), count, ptr::null(), ptr::null(), to, error)
    };
    assert_eq!(made(|to, error| layers(1, to, error)), Err(Code::Argument));
    assert_eq!(made(|to, error| layers(0, to, error)), Err(Code::Argument), "no machine");
    unsafe {
        assert_eq!(
            spillway_plan_figures(ptr::null(), ptr::null_mut(), ptr::null_mut()),
            Code::Argument
        );
        assert_eq!(spillway_session_run(ptr::null_mut(), 1, ptr::null_mut()), Code::Argument);
        let (mut byte, error) = (0, ptr::null_mut());
        let code = spillway_session_read_state(ptr::null_mut(), 0, 0, &raw mut byte, 1, error);
        assert_eq!(code, Code::Argument);
        let code = spillway_session_write_state(ptr::null_mut(), 0, 0, &raw const byte, 1, error);
        assert_eq!(code, Code::Argument);
        let code = spillway_session_save_states(ptr::null_mut(), ptr::null(), error);
        assert_eq!(code, Code::Argument);
        let code =
            spillway_session_load_states(ptr::null_mut(), ptr::null(), 1, ptr::null_mut(), error);
        assert_eq!(code, Code::Argument);
        let code = spillway_session_read_output(ptr::null_mut(), 0, 0, &raw mut byte, 1, error);
        assert_eq!(code, Code::Argument);
        let (needed, bytes, figures) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let into = ptr::null_mut();
        assert_eq!(
            spillway_plan_slab_switch_to(
                ptr::null(),
                0,
                ptr::null(),
                into,
                size_of::<SlabCopy>(),
                0,
                needed,
                bytes,
                figures,
                error
            ),
            Code::Argument
        );
        let (none, figures, error) = (ptr::null(), ptr::null_mut(), ptr::null_mut());
        let code = spillway_session_switch(ptr::null_mut(), none, ptr::null(), figures, error);
        assert_eq!(code, Code::Argument);
        assert_eq!(spillway_plan_switch_to(none, none, figures, error), Code::Argument);
        let arranged = |to, error| spillway_plan_arranged_after(none, none, to, error);
        assert_eq!(made(arranged), Err(Code::Argument));
        spillway_graph_free(ptr::null_mut());
        spillway_machine_free(ptr::null_mut());
        spillway_plan_free(ptr::null_mut());
        spillway_session_free(ptr::null_mut());
    }
}

extern "C" fn refuse_count(context: *mut c_void, _: u64) -> i32 {
    context as usize as i32
}
extern "C" fn refuse_reserve(_: *mut c_void, _: u64, _: *mut u64) -> i32 {
    1
}
extern "C" fn refuse_map(_: *mut c_void, _: u64, _: u64, _: u64) -> i32 {
    1
}
extern "C" fn refuse_two(_: *mut c_void, _: u64, _: u64) -> i32 {
    1
}
extern "C" fn refuse_write(_: *mut c_void, _: u64, _: *const u8, _: usize) -> i32 {
    1
}
extern "C" fn refuse_read(_: *mut c_void, _: u64, _: *mut u8, _: usize) -> i32 {
    1
}
extern "C" fn refuse_wait(_: *mut c_void, _: u32, _: u32, _: u64) -> i32 {
    1
}
extern "C" fn refuse_signal(_: *mut c_void, _: u32, _: *mut u64) -> i32 {
    1
}
extern "C" fn refuse_reached(_: *mut c_void, _: u32, _: u64, _: *mut u8) -> i32 {
    1
}
extern "C" fn refuse_block(_: *mut c_void, _: u32, _: u64) -> i32 {
    1
}
extern "C" fn refuse_launch(_: *mut c_void, _: *const LaunchDescription) -> i32 {
    1
}
extern "C" fn refuse_fill(_: *mut c_void, _: *mut Fill) -> i32 {
    1
}

extern "C" fn accept_reserve(_: *mut c_void, _: u64, address: *mut u64) -> i32 {
    unsafe { address.write(4096) };
    0
}
extern "C" fn accept_map(_: *mut c_void, _: u64, _: u64, _: u64) -> i32 {
    0
}
extern "C" fn accept_fill(_: *mut c_void, _: *mut Fill) -> i32 {
    0
}

/// A device whose `create` and `create_host` return `status`.
fn refusing(status: i32) -> (Device, Kernels) {
    let context = ptr::without_provenance_mut(status as usize);
    let device = Device {
        struct_bytes: size_of::<Device>(),
        context,
        chunk_bytes: 4096,
        create: Some(refuse_count),
        reserve: Some(refuse_reserve),
        map: Some(refuse_map),
        unmap: Some(refuse_two),
        create_host: Some(refuse_count),
        write_host: Some(refuse_write),
        read_host: Some(refuse_read),
        upload: Some(refuse_map),
        download: Some(refuse_map),
        wait: Some(refuse_wait),
        signal: Some(refuse_signal),
        reached: Some(refuse_reached),
        block_until: Some(refuse_block),
        submit: None,
        has_host_stream: 0,
        signal_unawaited: None,
        most_range_chunks: 0,
        has_network_stream: 0,
    };
    let kernels = Kernels {
        struct_bytes: size_of::<Kernels>(),
        context,
        launch: Some(refuse_launch),
        fill_state: Some(refuse_fill),
        fill_input: Some(refuse_fill),
        launch_on_host: None,
    };
    (device, kernels)
}

#[test]
fn what_a_device_says_is_the_code() {
    let garbage = Garbage {
        tensors: vec![(4096, STATE)],
        ops: vec![OddOp {
            times_and_bytes: [1000, 0, 0],
            operands: [vec![0], vec![0]],
            repeatable: 0,
        }],
        machine: [1 << 30, 1 << 30, 4096, 1 << 30, 1 << 30, 0, 0, 0],
        budget: None,
        strategy: None,
    };
    let (graph, machine) = (graph_of(&garbage).unwrap(), machine_of(garbage.machine).unwrap());
    let plan =
        made(|to, error| unsafe { spillway_plan_new(graph, machine, ptr::null(), to, error) });
    let plan = plan.unwrap();
    let start = |(device, kernels): (Device, Kernels)| {
        made(|to, error| unsafe {
            spillway_session_new(plan, &raw const device, &raw const kernels, to, error)
        })
    };
    for code in [Code::OutOfDeviceMemory, Code::OutOfHostMemory, Code::DeviceLost, Code::Device] {
        assert_eq!(start(refusing(code as i32)), Err(code));
    }
    assert_eq!(start(refusing(0)), Err(Code::Device), "the next callback refuses");
    let (device, kernels) = refusing(0);
    let of_chunks = |chunk_bytes| (Device { chunk_bytes, ..device }, kernels);
    assert_eq!(start(of_chunks(8192)), Err(Code::Argument));
    assert_eq!(start((Device { map: None, ..device }, kernels)), Err(Code::Argument));
    assert_eq!(start((device, Kernels { launch: None, ..kernels })), Err(Code::Argument));
    let (reserve, map) = (Some(accept_reserve as _), Some(accept_map as _));
    let fill = Some(accept_fill as _);
    let device = Device { reserve, map, ..device };
    let kernels = Kernels { fill_state: fill, fill_input: fill, ..kernels };
    let mut session = ptr::null_mut();
    let (code, message) = said(|error| unsafe {
        spillway_session_new(plan, &raw const device, &raw const kernels, &raw mut session, error)
    });
    assert_eq!(code, Code::Device);
    assert!(message.contains("tensor 0 (\"0\")"), "{message}");
    // Another graph has other states.
    let other = Garbage { tensors: vec![(8192, STATE)], ..garbage };
    let other_graph = graph_of(&other).unwrap();
    let other_plan = made(|to, error| unsafe {
        spillway_plan_new(other_graph, machine, ptr::null(), to, error)
    });
    let other_plan = other_plan.unwrap();
    let figures = ptr::null_mut();
    let code = unsafe { spillway_plan_switch_to(plan, other_plan, figures, ptr::null_mut()) };
    assert_eq!(code, Code::Argument, "figures are null");
    let mut figures =
        SwitchFigures { struct_bytes: size_of::<SwitchFigures>(), ..SwitchFigures::default() };
    let code =
        unsafe { spillway_plan_switch_to(plan, other_plan, &raw mut figures, ptr::null_mut()) };
    assert_eq!(code, Code::NoSwitch);
    unsafe {
        spillway_plan_free(other_plan);
        spillway_graph_free(other_graph);
        spillway_plan_free(plan);
        spillway_machine_free(machine);
        spillway_graph_free(graph);
    }
}
