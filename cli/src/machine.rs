//! Machines, built in or from a file.

use crate::failure::Failure;
use crate::output;
use crate::work::is_file;
use spillway::units;
use std::ffi::OsString;
use std::path::Path;
use workloads::{OwnedMachine, Shown, format, machines};

/// The name of the default machine.
pub(crate) const DEFAULT: &str = "v100-pcie3";

/// The given machine, else the machine in the chain file, else the default.
pub(crate) fn choose(
    given: Option<&str>,
    own: Option<OwnedMachine>,
) -> Result<OwnedMachine, Failure> {
    match (given, own) {
        (None, Some(own)) => Ok(own),
        (given, _) => find(given.unwrap_or(DEFAULT)),
    }
}

/// A machine's file, unless the machine is built in.
pub(crate) fn file(machine: &str) -> Option<&Path> {
    let is_builtin = machines::builtin(machine).is_some();
    (!is_builtin && is_file(machine)).then_some(Path::new(machine))
}

/// The built-in machine of this name, or the machine in this file.
pub(crate) fn find(machine: &str) -> Result<OwnedMachine, Failure> {
    if let Some(builtin) = machines::builtin(machine) {
        return Ok(builtin);
    }
    if !is_file(machine) {
        let names: Vec<_> = machines::all().map(|(machine, _)| machine.name).collect();
        return Err(Failure::bad_input(format!(
            "no machine or file is named {:?}; the built-in machines are {}",
            Shown::name(machine),
            names.join(", ")
        )));
    }
    let bytes = format::load(machine).map_err(|error| Failure::reading(&error))?;
    format::read_machine(&bytes).map_err(|error| Failure::reading(&error.in_file(machine)))
}

/// Whether the command line asks for the list of machines. The other arguments are then ignored, so
/// the user need not name any work.
pub(crate) fn list_is_asked_for(mut arguments: impl Iterator<Item = OsString>) -> bool {
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            Some("--") => return false,
            Some("--machine=list") => return true,
            Some("--machine" | "-m") => return arguments.next().is_some_and(|name| name == "list"),
            _ => {}
        }
    }
    false
}

/// Prints the built-in machines.
pub(crate) fn print_list() -> Result<(), Failure> {
    let mut text = String::new();
    for (OwnedMachine { name, machine, .. }, about) in machines::all() {
        let (device, host) = (units::bytes(machine.device_bytes), units::bytes(machine.host_bytes));
        let default = if name == DEFAULT { " (default)" } else { "" };
        text += &format!(
            "{name}{default}\n    {about}\n    device {device}, host {host}, chunks of {}, \
             upload {} GB/s, download {} GB/s\n",
            units::bytes(machine.chunk_bytes),
            machine.h2d_bytes_per_s as f64 / 1e9,
            machine.d2h_bytes_per_s as f64 / 1e9,
        );
    }
    output::print(text)
}
