//! The input of planning: a graph, a machine and a budget.

use crate::error::{Code, Error};
use core::ffi::c_char;
use core::slice;
use planner_core::planner::{Auto, Strategy};
use planner_core::{Machine, Op, Tensor, TensorId};
use spillway_c_types::kinds;
use spillway_c_types::machine::MachineDescription;
use spillway_c_types::sized::{self, Array, Versioned};

/// A tensor. Its id is its position.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TensorDescription {
    /// The size of this struct.
    pub struct_bytes: usize,
    /// Its size, which must not be zero.
    pub bytes: u64,
    /// `SPILLWAY_CORE_STATE`, `SPILLWAY_CORE_INPUT`, `SPILLWAY_CORE_TEMPORARY` or
    /// `SPILLWAY_CORE_OUTPUT`.
    pub kind: u32,
}

/// An op. Its id is its position, and the ops are in one legal order. Its operands follow the
/// operands of the op before it: first the tensors that it reads, then the tensors that it writes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct OpDescription {
    /// The size of this struct.
    pub struct_bytes: usize,
    /// The time that it runs.
    pub time_ns: u64,
    /// The device memory that it needs only while it runs.
    pub workspace_bytes: u64,
    /// The number of tensors that it reads.
    pub reads: u32,
    /// The number of tensors that it writes. A tensor that it also reads is updated in place.
    pub writes: u32,
    /// Whether plans may launch it again in the same iteration: 1 or 0.
    pub repeatable: u8,
    /// The time that it runs on the host, if plans may run it there. 0 if it runs only on the
    /// device. An op that writes an input must have 0.
    pub host_ns: u64,
    /// Whether it exchanges data with other processes: 1 or 0. Such a collective runs on
    /// `SPILLWAY_CORE_NETWORK`, beside the other ops, and must have 0 in `host_ns`.
    pub collective: u8,
}

/// The input of planning.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// The size of this struct.
    pub struct_bytes: usize,
    /// The tensors.
    pub tensors: *const TensorDescription,
    /// The number of tensors.
    pub tensor_count: usize,
    /// The ops.
    pub ops: *const OpDescription,
    /// The number of ops.
    pub op_count: usize,
    /// The operands of all ops, one op after the other.
    pub operands: *const u32,
    /// The number of operands.
    pub operand_count: usize,
    /// The machine that runs the plan.
    pub machine: *const MachineDescription,
    /// The device memory for the plan.
    pub budget_bytes: u64,
    /// The name of one of the core's strategies. Null for `"auto"`.
    pub strategy: *const c_char,
    /// The size of `SpillwayCoreStep`.
    pub step_bytes: usize,
}

// SAFETY: the structs are `repr(C)`, begin with their size, and all their bytes may be zero.
unsafe impl Versioned for TensorDescription {}
// SAFETY: as above.
unsafe impl Versioned for OpDescription {}
// SAFETY: as above.
unsafe impl Versioned for Work {}

/// The arrays of the input.
pub(crate) struct Arrays<'w> {
    pub(crate) tensors: Array<'static, TensorDescription>,
    pub(crate) ops: Array<'static, OpDescription>,
    pub(crate) operands: &'w [u32],
}

impl Work {
    /// # Safety
    /// The pointers are as `spillway_core.h` requires.
    pub(crate) unsafe fn arrays<'w>(&self) -> Result<Arrays<'w>, Error> {
        // SAFETY: the caller's promise.
        unsafe {
            Ok(Arrays {
                tensors: sized_array(self.tensors, self.tensor_count, "a tensor")?,
                ops: sized_array(self.ops, self.op_count, "an op")?,
                operands: array(self.operands, self.operand_count, "operands")?,
            })
        }
    }

    /// # Safety
    /// The pointers are as `spillway_core.h` requires.
    pub(crate) unsafe fn strategy(&self) -> Result<Strategy, Error> {
        if self.strategy.is_null() {
            return Ok(Strategy::Auto(Auto::default()));
        }
        let is = |strategy: &Strategy| {
            let name = strategy.name().bytes().chain([0]);
            // The texts are compared byte by byte, since functions that compare texts need a C
            // library.
            name.enumerate().all(|(at, byte)| {
                // SAFETY: the pointer is not null, so it points to a text that ends with a zero,
                // and no byte after the first difference is read.
                unsafe { self.strategy.add(at).read() as u8 == byte }
            })
        };
        let unknown = || Error::new(Code::Argument, "no strategy of the core has this name");
        Strategy::all().into_iter().find(is).ok_or_else(unknown)
    }

    /// # Safety
    /// The pointers are as `spillway_core.h` requires.
    pub(crate) unsafe fn machine(&self) -> Result<Machine, Error> {
        // SAFETY: the caller's promise.
        let of = unsafe { given_sized(self.machine, "the machine") }?;
        of.machine().map_err(|error| Error::new(Code::Graph, error))
    }
}

impl Arrays<'_> {
    /// Writes the tensors, ops and operands in the form of the core.
    pub(crate) fn write(
        &self,
        tensors: &mut [Tensor],
        ops: &mut [Op],
        operands: &mut [TensorId],
    ) -> Result<(), Error> {
        for (at, (to, from)) in tensors.iter_mut().zip(self.tensors.iter()).enumerate() {
            let from = from?;
            let number = from.kind;
            let kind = kinds::kind(number).ok_or_else(|| {
                let sentence = format_args!("tensor {at} has kind {number}: no such kind");
                Error::new(Code::Argument, sentence)
            })?;
            *to = Tensor::new(from.bytes, kind);
        }
        let mut first_operand = 0u32;
        for (at, (to, from)) in ops.iter_mut().zip(self.ops.iter()).enumerate() {
            let from = from?;
            *to = Op::new(from.time_ns)
                .with_workspace_bytes(from.workspace_bytes)
                .with_first_operand(first_operand)
                .with_reads(from.reads)
                .with_writes(from.writes)
                .with_repeatable(from.repeatable != 0)
                .with_host_ns((from.host_ns != 0).then_some(from.host_ns))
                .with_collective(from.collective != 0);
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
/// Null, or `count` values that nobody changes during the call.
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

/// An array of structs that begin with their size. It may be null if it is empty.
///
/// # Safety
/// Null, or `count` structs that nobody changes during the call.
unsafe fn sized_array<T: Versioned>(
    values: *const T,
    count: usize,
    name: &'static str,
) -> Result<Array<'static, T>, Error> {
    let most = isize::MAX as usize / size_of::<T>();
    if count > most {
        return Err(Error::new(
            Code::Argument,
            format_args!("{name} is one of more than memory can hold"),
        ));
    }
    if count > 0 && values.is_null() {
        return Err(Error::new(Code::Argument, format_args!("{name} is null, but there are some")));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { Array::new(values, count, name) }?)
}

/// A struct that the caller must pass and that begins with its size.
///
/// # Safety
/// Null, or one struct that nobody changes during the call.
pub(crate) unsafe fn given_sized<T: Versioned>(at: *const T, name: &str) -> Result<T, Error> {
    if at.is_null() {
        return Err(Error::new(Code::Argument, format_args!("{name} is null")));
    }
    // SAFETY: not null, so it points to one struct.
    Ok(unsafe { sized::read(at, name) }?)
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
