//! Ops on the host and outputs in a session: missing callbacks, failures, and the outputs that can
//! be read.

#![allow(clippy::unwrap_used)]
// SAFETY: throughout, arrays are passed with their lengths, and handles and contexts are alive.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;

use common::{made, said};
use planner_core::MachineParameters;
use spillway_c::device::Device;
use spillway_c::error::Code;
use spillway_c::fill::{Fill, spillway_fill_bytes, spillway_fill_i32, spillway_fill_i64};
use spillway_c::graph::*;
use spillway_c::kernels::{HostLaunchDescription, HostRange, Kernels, LaunchDescription};
use spillway_c::machine::*;
use spillway_c::plan::*;
use spillway_c::session::*;
use spillway_c::steps::*;
use spillway_c_types::kinds::{INPUT, OUTPUT, STATE, TEMPORARY};
use spillway_c_types::machine::MachineDescription;
use spillway_c_types::steps::{DOWNLOAD, HOST_RUN, StepDescription};
use std::ffi::{CStr, CString, c_void};
use std::{env, fs, process, ptr};

const CHUNK_BYTES: u64 = 64;
const X: u32 = 0;
const TOTAL: u32 = 2;
const SUM: u32 = 3;

/// A device of numbers. A chunk holds one tensor, which is one number. A call that enqueues work
/// also does it.
#[derive(Default)]
struct Memory {
    chunks: Vec<u64>,
    /// The chunk at each chunk of addresses.
    mapped: Vec<u64>,
    host: Vec<u64>,
    signals: [u64; 4],
    fails_in_iteration: u64,
    submits: u64,
}

impl Memory {
    fn at(&mut self, address: u64) -> &mut u64 {
        let chunk = self.mapped[(address / CHUNK_BYTES) as usize];
        &mut self.chunks[chunk as usize]
    }

    fn host(&mut self, offset_bytes: u64) -> &mut u64 {
        &mut self.host[(offset_bytes / 8) as usize]
    }
}

fn memory<'m>(context: *mut c_void) -> &'m mut Memory {
    unsafe { &mut *context.cast() }
}

extern "C" fn create(context: *mut c_void, chunks: u64) -> i32 {
    memory(context).chunks = vec![0; chunks as usize];
    0
}
extern "C" fn reserve(context: *mut c_void, chunks: u64, address: *mut u64) -> i32 {
    let mapped = &mut memory(context).mapped;
    let first = mapped.len().max(1);
    mapped.resize(first + chunks as usize, 0);
    unsafe { address.write(first as u64 * CHUNK_BYTES) };
    0
}
extern "C" fn map(context: *mut c_void, address: u64, first: u64, chunks: u64) -> i32 {
    for at in 0..chunks {
        memory(context).mapped[(address / CHUNK_BYTES + at) as usize] = first + at;
    }
    0
}
extern "C" fn unmap(_: *mut c_void, _: u64, _: u64) -> i32 {
    0
}
extern "C" fn create_host(context: *mut c_void, bytes: u64) -> i32 {
    memory(context).host = vec![0; (bytes / 8) as usize];
    0
}
extern "C" fn write_host(context: *mut c_void, offset: u64, from: *const u8, bytes: usize) -> i32 {
    assert_eq!(bytes, 8, "whole numbers");
    *memory(context).host(offset) = unsafe { from.cast::<u64>().read_unaligned() };
    0
}
extern "C" fn read_host(context: *mut c_void, offset: u64, into: *mut u8, bytes: usize) -> i32 {
    let number = memory(context).host(offset).to_ne_bytes();
    unsafe { ptr::copy_nonoverlapping(number.as_ptr(), into, bytes) };
    0
}
extern "C" fn upload(context: *mut c_void, offset: u64, _: u64, address: u64) -> i32 {
    *memory(context).at(address) = *memory(context).host(offset);
    0
}
extern "C" fn download(context: *mut c_void, address: u64, offset: u64, _: u64) -> i32 {
    *memory(context).host(offset) = *memory(context).at(address);
    0
}
extern "C" fn wait(context: *mut c_void, _: u32, stream: u32, signal: u64) -> i32 {
    i32::from(memory(context).signals[stream as usize] < signal)
}
extern "C" fn signal(context: *mut c_void, stream: u32, signal: *mut u64) -> i32 {
    memory(context).signals[stream as usize] += 1;
    unsafe { signal.write(memory(context).signals[stream as usize]) };
    0
}
extern "C" fn reached(_: *mut c_void, _: u32, _: u64, is_reached: *mut u8) -> i32 {
    unsafe { is_reached.write(1) };
    0
}
extern "C" fn submit(context: *mut c_void) -> i32 {
    memory(context).submits += 1;
    0
}
extern "C" fn block_until(context: *mut c_void, stream: u32, signal: u64) -> i32 {
    wait(context, stream, stream, signal)
}

/// Doubles the input.
extern "C" fn launch(context: *mut c_void, launch: *const LaunchDescription) -> i32 {
    let launch = unsafe { &*launch };
    assert_eq!(launch.struct_bytes, size_of::<LaunchDescription>());
    let (from, to) = unsafe { (**launch.reads, **launch.writes) };
    assert_eq!((from.bytes, to.bytes), (8, 8));
    *memory(context).at(to.address) = 2 * *memory(context).at(from.address);
    0
}
/// Adds the doubled number to a state, and writes it to an output too.
extern "C" fn launch_on_host(context: *mut c_void, launch: *const HostLaunchDescription) -> i32 {
    let launch = unsafe { &*launch };
    assert_eq!((launch.op, launch.read_count, launch.write_count), (1, 2, 2));
    if launch.iteration == memory(context).fails_in_iteration {
        return 77;
    }
    let range = |of: *const *const HostRange, at| unsafe { **of.add(at) };
    let (doubled, total) = (range(launch.reads, 0), range(launch.reads, 1));
    assert_eq!((range(launch.writes, 0), total.bytes), (total, 8), "it is updated in place");
    let sum =
        *memory(context).host(total.offset_bytes) + *memory(context).host(doubled.offset_bytes);
    *memory(context).host(total.offset_bytes) = sum;
    *memory(context).host(range(launch.writes, 1).offset_bytes) = sum;
    0
}
/// Fills states with values that do not fit, and keeps the codes and messages.
extern "C" fn fill_badly(context: *mut c_void, state: *mut Fill) -> i32 {
    let said = unsafe { &mut *context.cast::<Vec<(Code, String)>>() };
    let numbers = [0i32; 4];
    let misaligned = ptr::from_ref(&numbers).cast::<u8>().wrapping_add(1).cast::<i32>();
    unsafe {
        said.push(self::said(|error| spillway_fill_i32(state, numbers.as_ptr(), 3, error)));
        said.push(self::said(|error| spillway_fill_i32(state, misaligned, 2, error)));
        said.push(self::said(|error| spillway_fill_i32(state, ptr::null(), 2, error)));
        said.push(self::said(|error| {
            spillway_fill_bytes(state, numbers.as_ptr().cast(), 8, error)
        }));
    }
    0
}

extern "C" fn fill_input(_: *mut c_void, input: *mut Fill) -> i32 {
    unsafe {
        assert_eq!(((*input).tensor, (*input).bytes), (X, 8));
        let iteration = (*input).iteration as i64;
        spillway_fill_i64(input, &raw const iteration, 1, ptr::null_mut()) as i32
    }
}

/// A plan whose second op runs on the host.
fn plan() -> *mut Plan {
    plan_mapped(0)
}

/// With `unplaced`, the plan maps as it runs.
fn plan_mapped(unplaced: u8) -> *mut Plan {
    let kinds = [INPUT, TEMPORARY, STATE, OUTPUT];
    let tensors = kinds.map(|kind| TensorDescription {
        struct_bytes: size_of::<TensorDescription>(),
        name: ptr::null(),
        bytes: 8,
        kind,
    });
    let op = |name: &'static CStr, reads: &'static [u32], writes: &'static [u32], host_ns| {
        OpDescription {
            struct_bytes: size_of::<OpDescription>(),
            name: name.as_ptr(),
            time_ns: 1000,
            workspace_bytes: 0,
            reads: reads.as_ptr(),
            read_count: reads.len(),
            writes: writes.as_ptr(),
            write_count: writes.len(),
            repeatable: 0,
            host_ns,
            collective: 0,
        }
    };
    let ops = [op(c"double", &[X], &[1], 0), op(c"add", &[1, 2], &[2, SUM], 500)];
    let description = MachineDescription {
        struct_bytes: size_of::<MachineDescription>(),
        parameters: MachineParameters::new()
            .with_device_bytes(1 << 20)
            .with_host_bytes(1 << 20)
            .with_chunk_bytes(CHUNK_BYTES)
            .with_h2d_bytes_per_s(1 << 30)
            .with_d2h_bytes_per_s(1 << 30)
            .with_transfer_latency_ns(10)
            .with_map_ns_per_chunk(7),
    };
    let strategy = c"optimizer-offload".as_ptr();
    let options = PlanOptions {
        struct_bytes: size_of::<PlanOptions>(),
        budget: ptr::null(),
        strategy,
        unplaced,
    };
    unsafe {
        let (tensors, ops) = ((tensors.as_ptr(), tensors.len()), (ops.as_ptr(), ops.len()));
        let graph = made(|to, error| {
            spillway_graph_new(ptr::null(), tensors.0, tensors.1, ops.0, ops.1, to, error)
        })
        .unwrap();
        let machine =
            made(|to, error| spillway_machine_new(ptr::null(), &raw const description, to, error))
                .unwrap();
        let plan =
            made(|to, error| spillway_plan_new(graph, machine, &raw const options, to, error))
                .unwrap();
        spillway_graph_free(graph);
        spillway_machine_free(machine);
        plan
    }
}

fn tables(memory: &mut Memory) -> (Device, Kernels) {
    let context = ptr::from_mut(memory).cast();
    let device = Device {
        struct_bytes: size_of::<Device>(),
        context,
        chunk_bytes: CHUNK_BYTES,
        create: Some(create),
        reserve: Some(reserve),
        map: Some(map),
        unmap: Some(unmap),
        create_host: Some(create_host),
        write_host: Some(write_host),
        read_host: Some(read_host),
        upload: Some(upload),
        download: Some(download),
        wait: Some(wait),
        signal: Some(signal),
        reached: Some(reached),
        block_until: Some(block_until),
        submit: Some(submit),
        has_host_stream: 1,
        signal_unawaited: None,
        most_range_chunks: 1,
        has_network_stream: 0,
    };
    let kernels = Kernels {
        struct_bytes: size_of::<Kernels>(),
        context,
        launch: Some(launch),
        fill_state: None,
        fill_input: Some(fill_input),
        launch_on_host: Some(launch_on_host),
    };
    (device, kernels)
}

fn start(plan: *const Plan, (device, kernels): &(Device, Kernels)) -> *mut Session {
    made(|to, error| unsafe { spillway_session_new(plan, device, kernels, to, error) }).unwrap()
}

#[test]
fn steps_on_the_host_have_their_waits() {
    let plan = plan();
    let mut steps = [const { StepDescription::empty() }; 64];
    let (mut needed, into) = (0, steps.as_mut_ptr());
    let (code, _) = said(|error| unsafe {
        spillway_plan_steps(
            plan,
            into,
            size_of::<StepDescription>(),
            steps.len(),
            &raw mut needed,
            ptr::null_mut(),
            error,
        )
    });
    assert_eq!(code, Code::Ok);
    let on_host = steps[..needed].iter().filter(|step| step.kind == HOST_RUN);
    let on_host: Vec<_> = on_host.collect();
    assert!(!on_host.is_empty());
    for step in on_host {
        assert_eq!((step.id, step.index, step.is_repeat), (1, 0, 0));
        let wait = step.waits[DOWNLOAD as usize];
        assert_eq!((wait.index, wait.iterations_back), (0, 0), "what it reads is downloaded");
    }
    let figures = figures(plan);
    assert_eq!((figures.host_ns, figures.mapping_ns), (500, 0));
    unsafe { spillway_plan_free(plan) };
}

fn figures(plan: *const Plan) -> Figures {
    let zeros = unsafe { std::mem::zeroed() };
    let mut figures = Figures { struct_bytes: size_of::<Figures>(), ..zeros };
    let (code, _) = said(|error| unsafe { spillway_plan_figures(plan, &raw mut figures, error) });
    assert_eq!(code, Code::Ok);
    figures
}

#[test]
fn a_plan_that_maps_as_it_runs_says_how_long_it_maps() {
    let plan = plan_mapped(1);
    let Figures { mapping_ns, .. } = figures(plan);
    assert!(mapping_ns > 0 && mapping_ns.is_multiple_of(7), "{mapping_ns} ns");
    unsafe { spillway_plan_free(plan) };
}

#[test]
fn outputs_of_the_last_two_iterations_are_read() {
    let (plan, mut memory) = (plan(), Memory::default());
    let session = start(plan, &tables(&mut memory));
    let read = |tensor, iteration| {
        let mut value = [0; 8];
        let (code, message) = said(|error| unsafe {
            spillway_session_read_output(session, tensor, iteration, value.as_mut_ptr(), 8, error)
        });
        (code, message, u64::from_ne_bytes(value))
    };
    let (code, message, _) = read(SUM, 0);
    assert_eq!(code, Code::Argument);
    assert!(message.ends_with("this plan has enqueued no iteration yet"), "{message}");
    let (code, _) = said(|error| unsafe { spillway_session_run(session, 10, error) });
    assert_eq!(code, Code::Ok);
    assert_eq!(memory.submits, 10, "once an iteration");
    // Twice the sum of the numbers up to 10.
    for (iteration, value) in [(0, 110), (10, 110), (9, 90)] {
        assert_eq!(read(SUM, iteration), (Code::Ok, String::new(), value));
    }
    for iteration in [8, 11, u64::MAX] {
        assert_eq!(read(SUM, iteration).0, Code::Argument, "{iteration}");
    }
    for tensor in [X, 1, 2, 4, u32::MAX] {
        let (code, message, _) = read(tensor, 0);
        assert_eq!(code, Code::Argument);
        assert!(message.contains("is not an output"), "{message}");
    }
    let (code, message) = said(|error| unsafe {
        spillway_session_read_output(session, SUM, 0, [0; 7].as_mut_ptr(), 7, error)
    });
    assert_eq!(code, Code::Argument);
    assert!(message.ends_with("has 8"), "{message}");
    let (code, _) = said(|error| unsafe {
        spillway_session_read_output(session, SUM, 0, ptr::null_mut(), 8, error)
    });
    assert_eq!(code, Code::Argument);
    unsafe {
        spillway_session_free(session);
        spillway_plan_free(plan);
    }
}

#[test]
fn states_are_written_saved_and_loaded() {
    let (plan, mut memory) = (plan(), Memory::default());
    let session = start(plan, &tables(&mut memory));
    let run = |count| {
        let (code, message) = said(|error| unsafe { spillway_session_run(session, count, error) });
        assert_eq!((code, message), (Code::Ok, String::new()));
    };
    let read = || {
        let mut value = [0; 8];
        let (code, message) = said(|error| unsafe {
            spillway_session_read_state(session, TOTAL, 0, value.as_mut_ptr(), 8, error)
        });
        assert_eq!((code, message), (Code::Ok, String::new()));
        u64::from_ne_bytes(value)
    };
    let write = |first_byte, value: &[u8]| {
        let (value, bytes) = (value.as_ptr(), value.len());
        said(|error| unsafe {
            spillway_session_write_state(session, TOTAL, first_byte, value, bytes, error)
        })
    };
    run(2);
    let (code, _) = said(|error| unsafe { spillway_session_wait(session, error) });
    assert_eq!(code, Code::Ok);
    assert_eq!(read(), 2 + 4);
    assert_eq!(write(0, &1000u64.to_ne_bytes()).0, Code::Ok);
    assert_eq!(read(), 1000);
    let (code, message) = write(1, &[0; 8]);
    assert_eq!(code, Code::Argument);
    assert!(message.starts_with("8 bytes from byte 1 on are not all in tensor 2"), "{message}");

    let path = env::temp_dir().join(format!("spillway-c-{}.safetensors", process::id()));
    let name = CString::new(path.to_str().unwrap()).unwrap();
    let save =
        || said(|error| unsafe { spillway_session_save_states(session, name.as_ptr(), error) });
    assert_eq!(save(), (Code::Ok, String::new()));
    run(1);
    assert_eq!(read(), 1000 + 6);
    let mut iterations = 0;
    let mut load = || {
        said(|error| unsafe {
            spillway_session_load_states(session, name.as_ptr(), 1, &raw mut iterations, error)
        })
    };
    assert_eq!(load(), (Code::Ok, String::new()));
    fs::remove_file(path).unwrap();
    let (code, message) = load();
    assert_eq!((code, iterations), (Code::File, 2), "{message}");
    assert_eq!(read(), 1000);
    run(1);
    assert_eq!(read(), 1000 + 8);
    unsafe {
        spillway_session_free(session);
        spillway_plan_free(plan);
    }
}

#[test]
fn a_kernel_that_fails_on_the_host_is_named_with_its_iteration() {
    let plan = plan();
    let mut memory = Memory { fails_in_iteration: 3, ..Memory::default() };
    let session = start(plan, &tables(&mut memory));
    let (code, message) = said(|error| unsafe { spillway_session_run(session, 5, error) });
    assert_eq!(code, Code::Device);
    for part in ["of iteration 3", "the host run of op 1 (\"add\")", "launch_on_host returned 77"] {
        assert!(message.contains(part), "{message}");
    }
    unsafe {
        spillway_session_free(session);
        spillway_plan_free(plan);
    }
}

#[test]
fn no_session_starts_where_ops_cannot_run_on_the_host() {
    let (plan, mut memory) = (plan(), Memory::default());
    let (device, kernels) = tables(&mut memory);
    let without_stream = Device { has_host_stream: 0, ..device };
    let without_kernels = Kernels { launch_on_host: None, ..kernels };
    for (tables, reason) in [
        ((without_stream, kernels), "stream"),
        ((device, without_kernels), "add kernels for the host"),
    ] {
        let mut session = ptr::null_mut();
        let (code, message) = said(|error| unsafe {
            spillway_session_new(
                plan,
                &raw const tables.0,
                &raw const tables.1,
                &raw mut session,
                error,
            )
        });
        assert_eq!((code, session.is_null()), (Code::Argument, true), "{message}");
        assert!(message.contains(reason), "{message}");
    }
    unsafe { spillway_plan_free(plan) };
}

#[test]
fn values_that_do_not_fit_are_refused_with_the_tensor() {
    let (plan, mut memory) = (plan(), Memory::default());
    let (device, kernels) = tables(&mut memory);
    let mut heard = Vec::<(Code, String)>::new();
    let context = ptr::from_mut(&mut heard).cast();
    let kernels = Kernels { context, fill_state: Some(fill_badly), ..kernels };
    let mut session = ptr::null_mut();
    let (code, message) = said(|error| unsafe {
        spillway_session_new(plan, &raw const device, &raw const kernels, &raw mut session, error)
    });
    assert_eq!(
        (code, session.is_null()),
        (Code::Argument, true),
        "what was refused is not forgotten"
    );
    let expected = "filling the states: the value for tensor 2 (\"2\") has 12 bytes, not 8";
    assert_eq!(message, expected);
    let refused = [
        "the value for tensor 2 has 12 bytes, not 8",
        "values does not begin at a multiple of 4 bytes",
        "values is null, but has 2 entries",
    ];
    for ((code, message), expected) in heard.iter().zip(refused) {
        assert_eq!((*code, message.as_str()), (Code::Argument, expected));
    }
    assert_eq!(heard[3], (Code::Ok, String::new()));
    unsafe { spillway_plan_free(plan) };
}
