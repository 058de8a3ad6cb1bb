//! The caller's kernels, as callbacks.

use crate::device::{Callbacks, Failed, check};
use crate::error::Failure;
use crate::fill::{Fill, To, Writer};
use planner_core::Kind;
use planner_core::backend::{
    FillError, HostKernels, HostLaunch, InputWriter, Kernels as CoreKernels, Launch, StateWriter,
};
use spillway_c_types::sized::Versioned;
use std::ffi::c_void;
use std::ptr;

/// One launch of an op.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaunchDescription {
    /// The size of this struct, which the library sets.
    pub struct_bytes: usize,
    /// The op.
    pub op: u32,
    /// Whether the op has been launched before in this iteration: 1 or 0. Such a repeat writes the
    /// same bytes into its temporaries.
    pub is_repeat: u8,
    /// The iteration, counted from 1.
    pub iteration: u64,
    /// The ranges of the tensors that the op reads, in the op's order. Each is a whole tensor. Null
    /// for a state, an input or an output that a repeat leaves alone.
    pub reads: *const *const DeviceRange,
    /// The number of tensors that it reads.
    pub read_count: usize,
    /// The ranges of the tensors that the op writes, in the op's order. Each is a whole tensor.
    /// Null for a state, an input or an output that a repeat leaves alone.
    pub writes: *const *const DeviceRange,
    /// The number of tensors that it writes.
    pub write_count: usize,
    /// The workspace of the op. Null if it needs none.
    pub workspace: *const DeviceRange,
    /// The stream that runs it: `SPILLWAY_NETWORK` for a collective, else `SPILLWAY_COMPUTE`.
    pub stream: u32,
}

/// A range of bytes at an address of the device.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRange {
    /// The address of the first byte.
    pub address: u64,
    /// The number of bytes.
    pub bytes: u64,
}

impl From<planner_core::backend::DeviceRange> for DeviceRange {
    fn from(range: planner_core::backend::DeviceRange) -> Self {
        Self { address: range.address.0, bytes: range.bytes }
    }
}

/// A range of bytes in the host block.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostRange {
    /// The offset of the first byte.
    pub offset_bytes: u64,
    /// The number of bytes.
    pub bytes: u64,
}

impl From<planner_core::backend::HostRange> for HostRange {
    fn from(range: planner_core::backend::HostRange) -> Self {
        Self { offset_bytes: range.offset_bytes, bytes: range.bytes }
    }
}

/// One run of an op on the host.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HostLaunchDescription {
    /// The size of this struct, which the library sets.
    pub struct_bytes: usize,
    /// The op.
    pub op: u32,
    /// The iteration, counted from 1.
    pub iteration: u64,
    /// The ranges of the host block that the op reads, in the op's order. Each is a whole tensor.
    pub reads: *const *const HostRange,
    /// The number of tensors that it reads.
    pub read_count: usize,
    /// The ranges of the host block that the op writes, in the op's order. Each is a whole tensor. A
    /// tensor that it updates in place has one range in both lists.
    pub writes: *const *const HostRange,
    /// The number of tensors that it writes.
    pub write_count: usize,
}

/// The work of ops, and the values of states and inputs. Each function gets `context` first. It
/// returns 0 or an error, as the functions of a device do. No function may unwind.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Kernels {
    /// The size of this struct.
    pub struct_bytes: usize,
    /// The first argument of the functions. It must live as long as the session.
    pub context: *mut c_void,
    /// Enqueues an op on the launch's stream. It may touch only the ranges that the launch names.
    pub launch:
        Option<extern "C" fn(context: *mut c_void, launch: *const LaunchDescription) -> i32>,
    /// Fills a state with its first value, by a function such as `spillway_fill_f32`. Called once
    /// for each state. If it is null, states are zeros.
    pub fill_state: Option<extern "C" fn(context: *mut c_void, state: *mut Fill) -> i32>,
    /// Fills an input with its value in an iteration, by the same functions. Called once for each
    /// input and iteration. May be null if the graph has no inputs.
    pub fill_input: Option<extern "C" fn(context: *mut c_void, input: *mut Fill) -> i32>,
    /// Enqueues an op on the host stream. It may touch only the ranges of the host block that the
    /// launch names. The launch is valid only during this call. If the function is null, a session
    /// does not start if its plan runs ops on the host.
    pub launch_on_host:
        Option<extern "C" fn(context: *mut c_void, launch: *const HostLaunchDescription) -> i32>,
}

// SAFETY: it is `repr(C)`, begins with its size, and may be all zero.
unsafe impl Versioned for Kernels {}

/// Zeros are written in pieces of this size.
const ZEROS: [u8; 4096] = [0; 4096];

/// Kernels with all their callbacks.
pub(crate) struct Launcher {
    kernels: Kernels,
    /// Buffers for the arguments of callbacks, which are reused.
    operands: Vec<DeviceRange>,
    at_operands: Vec<*const DeviceRange>,
    ranges: Vec<HostRange>,
    at_ranges: Vec<*const HostRange>,
}

// SAFETY: as for the callbacks of a device. The pointers point to the buffers, and are made for
// each call.
unsafe impl Send for Launcher {}

impl Launcher {
    pub(crate) fn new(kernels: &Kernels, graph: &spillway::Graph) -> Result<Self, Failure> {
        let has_inputs = graph.owned().tensors.iter().any(|tensor| tensor.kind == Kind::Input);
        let all = [
            ("launch", kernels.launch.is_some()),
            ("fill_input", kernels.fill_input.is_some() || !has_inputs),
        ];
        if let Some((name, _)) = all.into_iter().find(|(_, is_there)| !is_there) {
            return Err(Failure::argument(format!("the kernels' {name} is null")));
        }
        Ok(Self {
            kernels: *kernels,
            operands: Vec::new(),
            at_operands: Vec::new(),
            ranges: Vec::new(),
            at_ranges: Vec::new(),
        })
    }

    /// The caller's table.
    pub(crate) const fn callbacks(&self) -> Kernels {
        self.kernels
    }
}

impl HostKernels<Callbacks> for Launcher {
    fn launch_on_host(&mut self, _: &mut Callbacks, launch: &HostLaunch<'_>) -> Result<(), Failed> {
        let Self { ranges, at_ranges, kernels, .. } = self;
        ranges.clear();
        ranges.extend(launch.reads.iter().chain(launch.writes.iter()).map(HostRange::from));
        at_ranges.clear();
        at_ranges.extend(ranges.iter().map(ptr::from_ref));
        let (reads, writes) = at_ranges.split_at(launch.reads.len());
        let description = HostLaunchDescription {
            struct_bytes: size_of::<HostLaunchDescription>(),
            op: launch.op.0,
            iteration: launch.iteration,
            reads: reads.as_ptr(),
            read_count: reads.len(),
            writes: writes.as_ptr(),
            write_count: writes.len(),
        };
        let Kernels { context, launch_on_host, .. } = *kernels;
        let launch = |launch: extern "C" fn(*mut c_void, *const HostLaunchDescription) -> i32| {
            launch(context, &raw const description)
        };
        check("launch_on_host", launch_on_host.map_or(-1, launch))
    }
}

impl CoreKernels<Callbacks> for Launcher {
    fn on_host(&mut self) -> Option<&mut dyn HostKernels<Callbacks>> {
        match self.kernels.launch_on_host {
            Some(_) => Some(self),
            None => None,
        }
    }

    fn launch(&mut self, _: &mut Callbacks, launch: &Launch<'_>) -> Result<(), Failed> {
        let Self { operands, at_operands, kernels, .. } = self;
        let of_launch = || launch.reads.iter().chain(launch.writes.iter());
        operands.clear();
        operands.extend(of_launch().flatten().chain(launch.workspace).map(DeviceRange::from));
        let mut there = operands.iter().map(ptr::from_ref);
        at_operands.clear();
        let mut at = |range: Option<_>| range.and_then(|_| there.next()).unwrap_or(ptr::null());
        at_operands.extend(of_launch().map(&mut at));
        let workspace = at(launch.workspace);
        let (reads, writes) = at_operands.split_at(launch.reads.len());
        let description = LaunchDescription {
            struct_bytes: size_of::<LaunchDescription>(),
            op: launch.op.0,
            is_repeat: u8::from(launch.is_repeat),
            iteration: launch.iteration,
            reads: reads.as_ptr(),
            read_count: reads.len(),
            writes: writes.as_ptr(),
            write_count: writes.len(),
            workspace,
            stream: launch.stream as u32,
        };
        let Kernels { context, launch, .. } = *kernels;
        check("launch", launch.map_or(-1, |launch| launch(context, &raw const description)))
    }

    fn fill_states(
        &mut self,
        states: &mut StateWriter<'_, Callbacks>,
    ) -> Result<(), FillError<Failed>> {
        let Kernels { context, fill_state, .. } = self.kernels;
        for state in states.tensors().collect::<Vec<_>>() {
            let Some(callback) = fill_state else {
                let state_bytes = states.range(state)?.bytes;
                for first in (0..state_bytes).step_by(ZEROS.len()) {
                    let bytes = (state_bytes - first).min(ZEROS.len() as u64) as usize;
                    states.write_at(state, first, &ZEROS[..bytes])?;
                }
                continue;
            };
            let mut writer = Writer::new(To::State(states), state);
            let mut fill = writer.fill()?;
            let status = callback(context, &raw mut fill);
            writer.end("fill_state", status)?;
        }
        Ok(())
    }

    fn fill_inputs(
        &mut self,
        inputs: &mut InputWriter<'_, Callbacks>,
    ) -> Result<(), FillError<Failed>> {
        let Kernels { context, fill_input, .. } = self.kernels;
        let Some(callback) = fill_input else { return Ok(()) };
        for input in inputs.tensors().collect::<Vec<_>>() {
            let mut writer = Writer::new(To::Input(inputs), input);
            let mut fill = writer.fill()?;
            let status = callback(context, &raw mut fill);
            writer.end("fill_input", status)?;
        }
        Ok(())
    }
}
