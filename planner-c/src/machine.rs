//! Machines.

use crate::boundary::{self, Out, array, call, given, hand_out, text};
use crate::error::{Code, Error, Failure};
use planner_core::MachineParameters;
use std::ffi::c_char;
use workloads::{OwnedMachine, format, machines};

/// A device, its host, and the links between them.
pub struct Machine(pub(crate) OwnedMachine);

/// What is known of a machine.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MachineDescription {
    /// Device memory.
    pub device_bytes: u64,
    /// Host memory that may be pinned.
    pub host_bytes: u64,
    /// The unit of mapping device memory, not zero.
    pub chunk_bytes: u64,
    /// Speed of the link to the device while both are in use, not zero.
    pub h2d_bytes_per_s: u64,
    /// Speed of the link to the host while both are in use, not zero.
    pub d2h_bytes_per_s: u64,
    /// What a transfer takes besides its bytes.
    pub transfer_latency_ns: u64,
    /// What it takes to map a chunk.
    pub map_ns_per_chunk: u64,
    /// What it takes to unmap one.
    pub unmap_ns_per_chunk: u64,
}

/// Makes a machine. `name` may be null.
///
/// # Safety
/// The pointers are as `spillway.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_machine_new(
    name: *const c_char,
    description: *const MachineDescription,
    machine: *mut *mut Machine,
    error: *mut Error,
) -> Code {
    let body = || {
        // SAFETY: the caller's promise.
        let (name, of, out) = unsafe {
            (text(name, "name")?, given(description, "description")?, Out::new(machine, "machine")?)
        };
        let parameters = MachineParameters::new()
            .with_device_bytes(of.device_bytes)
            .with_host_bytes(of.host_bytes)
            .with_chunk_bytes(of.chunk_bytes)
            .with_h2d_bytes_per_s(of.h2d_bytes_per_s)
            .with_d2h_bytes_per_s(of.d2h_bytes_per_s)
            .with_transfer_latency_ns(of.transfer_latency_ns)
            .with_map_ns_per_chunk(of.map_ns_per_chunk)
            .with_unmap_ns_per_chunk(of.unmap_ns_per_chunk);
        let checked = planner_core::Machine::new(parameters);
        let machine = checked.map_err(|error| Failure::new(Code::Graph, error))?;
        let name = name.unwrap_or("machine").to_owned();
        hand_out(out, Machine(OwnedMachine::new(name, machine)));
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, body) }
}

/// Makes one of the machines that `spillway plan --machine list` prints.
///
/// # Safety
/// The pointers are as `spillway.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_machine_builtin(
    name: *const c_char,
    machine: *mut *mut Machine,
    error: *mut Error,
) -> Code {
    let body = || {
        // SAFETY: the caller's promise.
        let (name, out) = unsafe { (text(name, "name")?, Out::new(machine, "machine")?) };
        let name = name.ok_or_else(|| Failure::argument("name is null"))?;
        let builtin = machines::builtin(name).ok_or_else(|| {
            let names: Vec<_> = machines::all().map(|(machine, _)| machine.name).collect();
            let names = names.join(", ");
            Failure::argument(format!(
                "there is no machine {name:?}; the built-in ones are {names}"
            ))
        })?;
        hand_out(out, Machine(builtin));
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, body) }
}

/// Reads a machine from the bytes of a machine file (`spillway.machine.v1`).
///
/// # Safety
/// The pointers are as `spillway.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_machine_from_json(
    json: *const u8,
    json_bytes: usize,
    machine: *mut *mut Machine,
    error: *mut Error,
) -> Code {
    let body = || {
        // SAFETY: the caller's promise.
        let (json, out) =
            unsafe { (array(json, json_bytes, "json")?, Out::new(machine, "machine")?) };
        hand_out(out, Machine(format::read_machine(json).map_err(spillway::Error::from)?));
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, body) }
}

/// Frees a machine. Null does nothing.
///
/// # Safety
/// The pointer is as `spillway.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_machine_free(machine: *mut Machine) {
    // SAFETY: the caller's promise.
    unsafe { boundary::free(machine) };
}
