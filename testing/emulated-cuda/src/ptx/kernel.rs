//! A kernel, ready to run.

use super::registers::{LANES, Mask, Registers};
use super::symbols::{Constant, FALSE, TRUE};
use super::warp::Instruction;
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// What shared memory and registers hold at first, so that no test relies on zeros.
pub(super) const GARBAGE: u8 = 0xa5;

/// An instruction of a device.
const INSTRUCTION_BYTES: u64 = 16;

/// A kernel.
pub(crate) struct Kernel {
    pub(crate) name: String,
    /// The offset and the bytes of each parameter.
    pub(crate) parameters: Vec<(u64, u64)>,
    /// Bytes of the parameters together.
    pub(crate) parameter_bytes: u64,
    /// The most threads of a block, if the kernel limits them.
    pub(crate) max_threads: Option<u64>,
    /// Shared memory without the dynamic part of a launch.
    pub(super) shared_bytes: u64,
    /// Local memory of a thread.
    pub(super) local_bytes: u64,
    pub(super) instructions: Vec<Instruction>,
    /// How many registers a warp has: words, longs, predicates.
    pub(super) registers: [usize; 3],
    pub(super) constants: Vec<Constant>,
    /// What its code takes of the device's memory, once it is loaded.
    pub(crate) loaded_bytes: Mutex<Option<u64>>,
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Kernel {
    /// Returns the bytes of its code, if a device has an instruction for each of the text.
    pub(crate) fn code_bytes(&self) -> u64 {
        self.instructions.len() as u64 * INSTRUCTION_BYTES
    }

    pub(crate) fn is_loaded(&self) -> bool {
        self.loaded_bytes.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Returns the bytes of shared memory, with the dynamic part of a launch.
    pub(crate) fn all_shared_bytes(&self, dynamic_bytes: u32) -> u64 {
        self.shared_bytes + u64::from(dynamic_bytes)
    }

    /// Creates the registers of a warp, with the constants that all launches share.
    pub(super) fn registers(&self) -> Registers {
        let [words, longs, predicates] = self.registers;
        let word = u32::from_ne_bytes([GARBAGE; 4]);
        let mut registers = Registers {
            words: vec![[word; LANES]; words],
            longs: vec![[u64::from(word); LANES]; longs],
            predicates: vec![word; predicates],
        };
        registers.predicates[TRUE] = Mask::MAX;
        registers.predicates[FALSE] = 0;
        for &constant in &self.constants {
            match constant {
                Constant::Word(slot, value) => registers.words[slot] = [value; LANES],
                Constant::Long(slot, value) => registers.longs[slot] = [value; LANES],
                Constant::Special(..) => {}
            }
        }
        registers
    }
}
