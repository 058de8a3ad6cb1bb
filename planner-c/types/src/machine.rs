//! Machines.

use crate::sized::Versioned;
use planner_core::machine::MachineError;
use planner_core::{Machine, MachineParameters};

/// The properties of a machine.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MachineDescription {
    /// The size of this struct.
    pub struct_bytes: usize,
    /// The device, its host, and the links between them.
    pub parameters: MachineParameters,
}

// SAFETY: it is `repr(C)`, begins with its size, and may be all zero.
unsafe impl Versioned for MachineDescription {}

impl MachineDescription {
    /// Checks the machine.
    ///
    /// # Errors
    /// A quantity is 0 that must not be 0.
    pub const fn machine(&self) -> Result<Machine, MachineError> {
        Machine::new(self.parameters)
    }
}
