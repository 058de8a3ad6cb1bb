//! Error codes and messages.

use spillway_c_types::sized::SizeError;
use std::ffi::c_char;
use std::{fmt, ptr};

/// The outcome of a call.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The call succeeded.
    Ok = 0,
    /// A pointer is null, a text is not UTF-8, or the function does not know a number.
    Argument = 1,
    /// The graph or the machine is malformed.
    Graph = 2,
    /// A file cannot be read or written, or its bytes are malformed.
    File = 3,
    /// The budget is too small. The message names the least budget that is enough.
    Infeasible = 4,
    /// There is no plan for another reason.
    NoPlan = 5,
    /// The plan is not safe, or belongs to another graph or machine.
    InvalidPlan = 6,
    /// The buffer is too short. The needed size has been written.
    BufferTooShort = 7,
    /// The process has too little memory.
    OutOfMemory = 8,
    /// A callback reports that the device has no memory left.
    OutOfDeviceMemory = 9,
    /// A callback reports that the host has no memory left that can be pinned.
    OutOfHostMemory = 10,
    /// A callback reports that the device is lost.
    DeviceLost = 11,
    /// A callback failed for another reason.
    Device = 12,
    /// A bug in this library.
    Internal = 13,
    /// A switch between the plans is not possible: their states differ, or the session has too
    /// little memory for the other plan.
    NoSwitch = 14,
    /// The plan does not fix its objects, so it has no addresses.
    NotPlaced = 15,
}

/// The size of a message, including the zero at its end.
pub const SPILLWAY_MESSAGE_BYTES: usize = 512;

/// Why a call failed. A function that succeeds leaves it unchanged.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Error {
    /// The code that the function returned.
    pub code: Code,
    /// A sentence in UTF-8 that names tensors and ops. It ends with a zero, and is cut if it is too
    /// long.
    pub message: [c_char; SPILLWAY_MESSAGE_BYTES],
}

/// A code and its message, inside this library.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: Code, message: impl fmt::Display) -> Self {
        Self { code, message: message.to_string() }
    }

    pub(crate) fn argument(message: impl fmt::Display) -> Self {
        Self::new(Code::Argument, message)
    }

    /// The same failure in the form for C.
    pub(crate) fn to_c(&self) -> Error {
        let mut end = self.message.len().min(SPILLWAY_MESSAGE_BYTES - 1);
        while !self.message.is_char_boundary(end) {
            end -= 1;
        }
        let mut message = [0; SPILLWAY_MESSAGE_BYTES];
        for (to, &from) in message.iter_mut().zip(&self.message.as_bytes()[..end]) {
            // Names may contain zeros.
            *to = if from == 0 { b' ' as c_char } else { from as c_char };
        }
        Error { code: self.code, message }
    }
}

impl From<SizeError<'_>> for Failure {
    fn from(error: SizeError<'_>) -> Self {
        Self::argument(error)
    }
}

impl From<spillway::Error> for Failure {
    fn from(error: spillway::Error) -> Self {
        use spillway::Error as Of;
        let code = match error {
            Of::Graph { .. } => Code::Graph,
            Of::Budget(_) => Code::Argument,
            Of::Infeasible { .. } => Code::Infeasible,
            Of::Invalid { .. } | Of::OtherGraph { .. } | Of::OtherMachine { .. } => {
                Code::InvalidPlan
            }
            Of::States(_) | Of::Switch(_) => Code::NoSwitch,
            Of::File(_) => Code::File,
            Of::OutOfMemory(_) => Code::OutOfMemory,
            Of::NotPlaced => Code::NotPlaced,
            _ => Code::NoPlan,
        };
        Self::new(code, error)
    }
}

/// The version of this library, such as `"0.1.0"`. The header of the same version describes it.
#[unsafe(no_mangle)]
pub extern "C" fn spillway_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    ptr::from_ref(VERSION).cast()
}
