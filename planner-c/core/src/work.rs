//! What to plan: a graph, a machine and a budget.

use crate::error::{Code, Error};
use core::ffi::c_char;
use core::slice;
use planner_core::planner::{Auto, Strategy};
use planner_core::{Kind, Machine, MachineParameters, Op, Tensor, TensorId};

/// A tensor that keeps its value from one iteration to the next.
pub const SPILLWAY_CORE_STATE: u32 = 0;
/// A tensor that has a new value on the host in each iteration.
pub const SPILLWAY_CORE_INPUT: u32 = 1;
/// A tensor that an op writes before any op reads it.
pub const SPILLWAY_CORE_TEMPORARY: u32 = 2;
/// A tensor that an op writes before any op reads it, and whose last value each iteration leaves on
/// the host.
pub const SPILLWAY_CORE_OUTPUT: u32 = 3;

/// A tensor; its id is its position.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TensorDescription {
    /// Its size, not zero.
    pub bytes: u64,
    /// `SPILLWAY_CORE_STATE`, `SPILLWAY_CORE_INPUT`, `SPILLWAY_CORE_TEMPORARY` or
    /// `SPILLWAY_CORE_OUTPUT`.
    pub kind: u32,
}

/// An op; its id is its position, and ops stand in one legal order. Its operands follow those of the
/// op before it: first the tensors that it reads, then those that it writes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct OpDescription {
    /// How long it runs.
    pub time_ns: u64,
    /// Device memory that it needs only while it runs.
    pub workspace_bytes: u64,
    /// How many tensors it reads.
    pub reads: u32,
    /// How many it writes. One that it also reads is updated in place.
    pub writes: u32,
    /// Whether plans may launch it again in the same iteration: 1, or 0.
    pub is_repeatable: u8,
    /// How long it takes on the host, where plans may run it instead. 0: on the device alone, as an op
    /// that writes an input must.
    pub host_ns: u64,
}

/// A device, its host, and the links between them.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MachineDescription {
    /// Device memory.
    pub device_bytes: u64,
    /// Host memory that may be pinned.
    pub host_bytes: u64,
    /// The unit in which device memory is allocated, not zero.
    pub chunk_bytes: u64,
    /// Speed of the link to the device, not zero.
    pub h2d_bytes_per_s: u64,
    /// Speed of the link to the host, not zero.
    pub d2h_bytes_per_s: u64,
    /// Fixed cost of one transfer.
    pub transfer_latency_ns: u64,
    /// Host time to map one chunk.
    pub map_ns_per_chunk: u64,
    /// Host time to unmap one chunk.
    pub unmap_ns_per_chunk: u64,
}

/// What to plan.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// The tensors.
    pub tensors: *const TensorDescription,
    /// How many.
    pub tensor_count: usize,
    /// The ops.
    pub ops: *const OpDescription,
    /// How many.
    pub op_count: usize,
    /// The operands of all ops, one op after the other.
    pub operands: *const u32,
    /// How many.
    pub operand_count: usize,
    /// Where it runs.
    pub machine: MachineDescription,
    /// Device memory for the plan.
    pub budget_bytes: u64,
    /// The name of a strategy of the core. Null for `"auto"`.
    pub strategy: *const c_char,
}

/// The arrays of some work.
pub(crate) struct Arrays<'w> {
    pub(crate) tensors: &'w [TensorDescription],
    pub(crate) ops: &'w [OpDescription],
    pub(crate) operands: &'w [u32],
}

impl Work {
    /// # Safety
    /// The pointers are as `spillway_core.h` says.
    pub(crate) unsafe fn arrays<'w>(&self) -> Result<Arrays<'w>, Error> {
        // SAFETY: the caller's promise.
        unsafe {
            Ok(Arrays {
                tensors: array(self.tensors, self.tensor_count, "tensors")?,
                ops: array(self.ops, self.op_count, "ops")?,
                operands: array(self.operands, self.operand_count, "operands")?,
            })
        }
    }

    /// # Safety
    /// The pointers are as `spillway_core.h` says.
    pub(crate) unsafe fn strategy(&self) -> Result<Strategy, Error> {
        if self.strategy.is_null() {
            return Ok(Strategy::Auto(Auto::default()));
        }
        let is = |strategy: &Strategy| {
            let name = strategy.name().bytes().chain([0]);
            // Byte by byte, since the functions that compare texts need a C library.
            name.enumerate().all(|(at, byte)| {
                // SAFETY: not null, so it is a text that ends with a zero, and no byte after the first
                // that differs is read.
                unsafe { self.strategy.add(at).read() as u8 == byte }
            })
        };
        let unknown = || Error::new(Code::Argument, "there is no strategy of that name");
        Strategy::all().into_iter().find(is).ok_or_else(unknown)
    }

    pub(crate) fn machine(&self) -> Result<Machine, Error> {
        let of = self.machine;
        let parameters = MachineParameters::new()
            .with_device_bytes(of.device_bytes)
            .with_host_bytes(of.host_bytes)
            .with_chunk_bytes(of.chunk_bytes)
            .with_h2d_bytes_per_s(of.h2d_bytes_per_s)
            .with_d2h_bytes_per_s(of.d2h_bytes_per_s)
            .with_transfer_latency_ns(of.transfer_latency_ns)
            .with_map_ns_per_chunk(of.map_ns_per_chunk)
            .with_unmap_ns_per_chunk(of.unmap_ns_per_chunk);
        Machine::new(parameters).map_err(|error| Error::new(Code::Graph, error))
    }
}

impl Arrays<'_> {
    /// Writes the tensors, ops and operands as the core takes them.
    pub(crate) fn write(
        &self,
        tensors: &mut [Tensor],
        ops: &mut [Op],
        operands: &mut [TensorId],
    ) -> Result<(), Error> {
        for (at, (to, from)) in tensors.iter_mut().zip(self.tensors).enumerate() {
            let kind = match from.kind {
                SPILLWAY_CORE_STATE => Kind::State,
                SPILLWAY_CORE_INPUT => Kind::Input,
                SPILLWAY_CORE_TEMPORARY => Kind::Temporary,
                SPILLWAY_CORE_OUTPUT => Kind::Output,
                kind => {
                    let sentence = format_args!("tensor {at} has kind {kind}: no such kind");
                    return Err(Error::new(Code::Argument, sentence));
                }
            };
            *to = Tensor { bytes: from.bytes, kind };
        }
        let mut first_operand = 0u32;
        for (at, (to, from)) in ops.iter_mut().zip(self.ops).enumerate() {
            *to = Op {
                time_ns: from.time_ns,
                workspace_bytes: from.workspace_bytes,
                first_operand,
                reads: from.reads,
                writes: from.writes,
                repeatable: from.is_repeatable != 0,
                host_ns: (from.host_ns != 0).then_some(from.host_ns),
            };
            let next = first_operand.checked_add(from.reads);
            first_operand =
                next.and_then(|next| next.checked_add(from.writes)).ok_or_else(|| {
                    Error::new(Code::Argument, format_args!("op {at} has too many operands"))
                })?;
        }
        operands.iter_mut().zip(self.operands).for_each(|(to, &from)| *to = TensorId(from));
        Ok(())
    }
}

/// An array, which may be null if it is empty.
///
/// # Safety
/// Null, or as many values as `count` says, which nobody changes during the call.
unsafe fn array<'a, T>(values: *const T, count: usize, name: &str) -> Result<&'a [T], Error> {
    let bytes = count.checked_mul(size_of::<T>());
    match (count, values.is_null()) {
        (0, _) => Ok(&[]),
        _ if bytes.is_none_or(|bytes| isize::try_from(bytes).is_err()) => {
            Err(Error::new(Code::Argument, format_args!("{name} has more entries than memory can")))
        }
        (_, true) => {
            Err(Error::new(Code::Argument, format_args!("{name} is null, but has entries")))
        }
        // SAFETY: it points to `count` values, which fit into the address space.
        _ => Ok(unsafe { slice::from_raw_parts(values, count) }),
    }
}

/// A value that the caller must pass.
///
/// # Safety
/// Null, or one value that nobody changes during the call.
pub(crate) unsafe fn given<'a, T>(value: *const T, name: &str) -> Result<&'a T, Error> {
    // SAFETY: null, or one value.
    unsafe { value.as_ref() }
        .ok_or_else(|| Error::new(Code::Argument, format_args!("{name} is null")))
}
