//! Error codes and messages.

use core::ffi::c_char;
use core::fmt::{self, Write};
use spillway_c_types::sized::SizeError;

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
    /// The budget is too small. The message names the least budget that is enough, and the op that
    /// needs it.
    Infeasible = 4,
    /// There is no plan for another reason.
    NoPlan = 5,
    /// The buffer is too short.
    BufferTooShort = 7,
}

/// The size of a message, including the zero at its end.
pub const SPILLWAY_CORE_MESSAGE_BYTES: usize = 256;

/// Why a call failed. A function that succeeds leaves it unchanged.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Error {
    /// The code that the function returned.
    pub code: Code,
    /// A sentence in ASCII that names tensors and ops by number. It ends with a zero, and is cut if
    /// it is too long.
    pub message: [c_char; SPILLWAY_CORE_MESSAGE_BYTES],
}

impl Error {
    /// A code and its message.
    pub(crate) fn new(code: Code, sentence: impl fmt::Display) -> Self {
        let mut error = Self { code, message: [0; SPILLWAY_CORE_MESSAGE_BYTES] };
        // This never fails, since a text that is too long is cut.
        let _ = write!(Message { message: &mut error.message, len: 0 }, "{sentence}");
        error
    }
}

impl From<SizeError<'_>> for Error {
    fn from(error: SizeError<'_>) -> Self {
        Self::new(Code::Argument, error)
    }
}

struct Message<'m> {
    message: &'m mut [c_char; SPILLWAY_CORE_MESSAGE_BYTES],
    len: usize,
}

impl Write for Message<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // The last byte stays zero.
        let free = &mut self.message[self.len..SPILLWAY_CORE_MESSAGE_BYTES - 1];
        for (to, from) in free.iter_mut().zip(text.bytes()) {
            *to = if from.is_ascii() && from != 0 { from as c_char } else { b'?' as c_char };
            self.len += 1;
        }
        Ok(())
    }
}
