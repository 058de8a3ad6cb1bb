//! The caller's kernels, as callbacks.

use crate::device::{Callbacks, Failed, check};
use crate::error::Failure;
use planner_core::backend::{HostKernels, HostLaunch, Kernels as CoreKernels, Launch};
use planner_core::{HostLayout, Kind, TensorId};
use std::ffi::c_void;

/// One launch of an op.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaunchDescription {
    /// The op.
    pub op: u32,
    /// Whether the op has been launched before in this iteration: 1, or 0. A repeat writes the same
    /// bytes into its temporaries; the states and inputs that the op writes have the address 0.
    pub is_repeat: u8,
    /// The iteration, counted from 1.
    pub iteration: u64,
    /// The ranges of the tensors that the op reads, in the op's order. Each is a whole tensor.
    pub reads: *const DeviceRange,
    /// How many it reads.
    pub read_count: usize,
    /// The ranges of the tensors that the op writes, in the op's order. Each is a whole tensor.
    pub writes: *const DeviceRange,
    /// How many it writes.
    pub write_count: usize,
    /// The workspace of the op. It has 0 bytes if the op needs none.
    pub workspace: DeviceRange,
}

/// Bytes at an address of the device.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRange {
    /// The address of the first of them.
    pub address: u64,
    /// How many there are.
    pub bytes: u64,
}

impl From<planner_core::backend::DeviceRange> for DeviceRange {
    fn from(range: planner_core::backend::DeviceRange) -> Self {
        Self { address: range.address.0, bytes: range.bytes }
    }
}

/// Bytes of the host block.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostRange {
    /// The first of them.
    pub offset_bytes: u64,
    /// How many there are.
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
    /// The op.
    pub op: u32,
    /// The iteration, counted from 1.
    pub iteration: u64,
    /// The ranges of the host block that the op reads, in the op's order. Each is a whole tensor.
    pub reads: *const HostRange,
    /// How many it reads.
    pub read_count: usize,
    /// The ranges of the host block that the op writes, in the op's order. Each is a whole tensor. A
    /// tensor that it updates in place has one range in both lists.
    pub writes: *const HostRange,
    /// How many it writes.
    pub write_count: usize,
}

/// Where the value of a tensor lies in the host block.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// The tensor.
    pub tensor: u32,
    /// Its first byte. Slots follow one another without gaps, so they are aligned as the sizes of
    /// tensors are.
    pub offset_bytes: u64,
    /// Its size.
    pub bytes: u64,
}

/// What ops compute, and the values of states and inputs. Each function gets `context` first, and
/// returns 0, or a number as the functions of a device do. None but `launch_on_host` may be null, and
/// none may unwind.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Kernels {
    /// What the functions get first. It must live as long as the session.
    pub context: *mut c_void,
    /// Enqueues an op on the stream for compute. It may touch exactly what the launch names.
    pub launch:
        Option<extern "C" fn(context: *mut c_void, launch: *const LaunchDescription) -> i32>,
    /// Writes the first value of every state into its slot of the host block. Called once.
    pub fill_states:
        Option<extern "C" fn(context: *mut c_void, slots: *const Slot, slot_count: usize) -> i32>,
    /// Writes the value of every input in an iteration into its slot of the host block.
    pub fill_inputs: Option<
        extern "C" fn(
            context: *mut c_void,
            iteration: u64,
            slots: *const Slot,
            slot_count: usize,
        ) -> i32,
    >,
    /// Enqueues an op on the stream for the host. It may touch exactly the bytes of the host block that
    /// the launch names, which is valid during this call alone. If it is null, no session starts whose plan
    /// runs ops on the host.
    pub launch_on_host:
        Option<extern "C" fn(context: *mut c_void, launch: *const HostLaunchDescription) -> i32>,
}

/// Kernels of which all callbacks are there.
pub(crate) struct Launcher {
    kernels: Kernels,
    /// States, and inputs, with their sizes.
    states: Vec<(TensorId, u64)>,
    inputs: Vec<(TensorId, u64)>,
    /// Buffers for callbacks, which are used again.
    slots: Vec<Slot>,
    operands: Vec<DeviceRange>,
    ranges: Vec<HostRange>,
}

// SAFETY: as for the callbacks of a device.
unsafe impl Send for Launcher {}

impl Launcher {
    pub(crate) fn new(kernels: &Kernels, graph: &spillway::Graph) -> Result<Self, Failure> {
        let all = [
            ("launch", kernels.launch.is_some()),
            ("fill_states", kernels.fill_states.is_some()),
            ("fill_inputs", kernels.fill_inputs.is_some()),
        ];
        if let Some((name, _)) = all.into_iter().find(|(_, is_there)| !is_there) {
            return Err(Failure::argument(format!("{name} of the kernels is null")));
        }
        let tensors = || (0..).map(TensorId).zip(&graph.owned().tensors);
        let of = |kind| {
            let of_kind = tensors().filter(move |(_, tensor)| tensor.kind == kind);
            of_kind.map(|(id, tensor)| (id, tensor.bytes)).collect()
        };
        Ok(Self {
            kernels: *kernels,
            states: of(Kind::State),
            inputs: of(Kind::Input),
            slots: Vec::new(),
            operands: Vec::new(),
            ranges: Vec::new(),
        })
    }
}

impl Launcher {
    /// The caller's table.
    pub(crate) const fn callbacks(&self) -> Kernels {
        self.kernels
    }
}

/// Where tensors lie in the host block.
fn find_slots(
    slots: &mut Vec<Slot>,
    tensors: &[(TensorId, u64)],
    layout: &HostLayout<'_>,
    slot: u32,
) {
    slots.clear();
    slots.extend(tensors.iter().map(|&(tensor, bytes)| Slot {
        tensor: tensor.0,
        offset_bytes: layout.offset_bytes(tensor, slot, 0),
        bytes,
    }));
}

impl HostKernels<Callbacks> for Launcher {
    fn launch_on_host(&mut self, _: &mut Callbacks, launch: &HostLaunch<'_>) -> Result<(), Failed> {
        self.ranges.clear();
        self.ranges.extend(launch.reads.iter().chain(launch.writes.iter()).map(HostRange::from));
        let (reads, writes) = self.ranges.split_at(launch.reads.iter().len());
        let description = HostLaunchDescription {
            op: launch.op.0,
            iteration: launch.iteration,
            reads: reads.as_ptr(),
            read_count: reads.len(),
            writes: writes.as_ptr(),
            write_count: writes.len(),
        };
        let Kernels { context, launch_on_host, .. } = self.kernels;
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
        let operands = launch.reads.iter().chain(launch.writes.iter());
        self.operands.clear();
        self.operands.extend(operands.map(DeviceRange::from));
        let (reads, writes) = self.operands.split_at(launch.reads.len());
        let description = LaunchDescription {
            op: launch.op.0,
            is_repeat: u8::from(launch.is_repeat),
            iteration: launch.iteration,
            reads: reads.as_ptr(),
            read_count: reads.len(),
            writes: writes.as_ptr(),
            write_count: writes.len(),
            workspace: launch
                .workspace
                .map_or(DeviceRange { address: 0, bytes: 0 }, DeviceRange::from),
        };
        let Kernels { context, launch, .. } = self.kernels;
        check("launch", launch.map_or(-1, |launch| launch(context, &raw const description)))
    }

    fn fill_states(&mut self, _: &mut Callbacks, layout: &HostLayout<'_>) -> Result<(), Failed> {
        let Self { kernels: Kernels { context, fill_states, .. }, states, slots, .. } = self;
        find_slots(slots, states, layout, 0);
        let fill = |fill: extern "C" fn(*mut c_void, *const Slot, usize) -> i32| {
            fill(*context, slots.as_ptr(), slots.len())
        };
        check("fill_states", fill_states.map_or(-1, fill))
    }

    fn fill_inputs(
        &mut self,
        _: &mut Callbacks,
        iteration: u64,
        layout: &HostLayout<'_>,
    ) -> Result<(), Failed> {
        let Self { kernels: Kernels { context, fill_inputs, .. }, inputs, slots, .. } = self;
        find_slots(slots, inputs, layout, HostLayout::slot(iteration));
        let fill = |fill: extern "C" fn(*mut c_void, u64, *const Slot, usize) -> i32| {
            fill(*context, iteration, slots.as_ptr(), slots.len())
        };
        check("fill_inputs", fill_inputs.map_or(-1, fill))
    }
}
