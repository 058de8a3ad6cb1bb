//! Machines.

use crate::boundary::{self, Out, array, call, given_sized, hand_out, text};
use crate::error::{Code, Error, Failure};
use spillway_c_types::machine::MachineDescription;
use std::ffi::c_char;
use workloads::{OwnedMachine, format, machines};

/// A device, its host, and the links between them.
pub struct Machine(pub(crate) OwnedMachine);

/// Makes a machine. `name` may be null.
///
/// # Safety
/// The pointers are as `spillway.h` requires.
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
            (
                text(name, "name")?,
                given_sized(description, "the description")?,
                Out::new(machine, "machine")?,
            )
        };
        let checked = of.machine();
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
/// The pointers are as `spillway.h` requires.
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
/// The pointers are as `spillway.h` requires.
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
/// The pointer is as `spillway.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_machine_free(machine: *mut Machine) {
    // SAFETY: the caller's promise.
    unsafe { boundary::free(machine) };
}
