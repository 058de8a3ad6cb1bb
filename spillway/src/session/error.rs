//! Errors of a session.

use crate::error::Error;
use crate::plan::Plan;
use planner_core::backend::BackendError;
use planner_core::switch::SwitchError;
use planner_core::{ExecuteError, Kind, TensorId};
use std::fmt;
use std::ops::Range;

/// The reason why a session does not start or continue. It displays with the names of tensors and ops.
#[derive(Debug)]
#[non_exhaustive]
pub enum SessionError<E> {
    /// The process has too little memory, or the session cannot switch to the plan.
    Plan(Error),
    /// The device or the kernels failed, or the plan is for a device with another chunk size.
    Execute {
        /// The reason, with ids.
        error: ExecuteError<E>,
        /// The error as text with names.
        message: String,
    },
    /// The graph does not have the tensor, or the tensor has the wrong kind for the call.
    Tensor {
        /// The tensor.
        tensor: TensorId,
        /// The error as text with the name of the tensor.
        message: String,
    },
    /// Some bytes of a call are outside of the tensor, or a buffer for a whole tensor has another size.
    Bytes {
        /// The tensor.
        tensor: TensorId,
        /// The error as text with the name of the tensor.
        message: String,
    },
    /// A file of states cannot be written or read, or is for another graph.
    File {
        /// The error as text with the name of the file.
        message: String,
    },
}

impl<E: fmt::Display> fmt::Display for SessionError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plan(error) => error.fmt(f),
            Self::Execute { message, .. }
            | Self::Tensor { message, .. }
            | Self::Bytes { message, .. }
            | Self::File { message } => f.write_str(message),
        }
    }
}

impl<E: BackendError> std::error::Error for SessionError<E> {}

impl<E> From<Error> for SessionError<E> {
    fn from(error: Error) -> Self {
        Self::Plan(error)
    }
}

impl<E: BackendError> SessionError<E> {
    /// An error of a plan's executor, with the plan's names.
    pub(super) fn of(plan: &Plan, error: ExecuteError<E>) -> Self {
        Failure::Execute(error).named(plan)
    }
}

/// The reason why there is no executor, before the caller adds the names of a plan.
#[derive(Debug)]
pub(super) enum Failure<E> {
    Plan(Error),
    Execute(ExecuteError<E>),
}

impl<E: BackendError> Failure<E> {
    pub(super) fn named(self, plan: &Plan) -> SessionError<E> {
        match self {
            Self::Plan(error) => error.into(),
            Self::Execute(ExecuteError::Switch(error)) => SessionError::Plan(error.into()),
            Self::Execute(error) => {
                SessionError::Execute { message: plan.names().execute_error(&error), error }
            }
        }
    }
}

impl<E> From<Error> for Failure<E> {
    fn from(error: Error) -> Self {
        Self::Plan(error)
    }
}

impl<E> From<SwitchError> for Failure<E> {
    fn from(error: SwitchError) -> Self {
        Self::Plan(error.into())
    }
}

impl<E> From<ExecuteError<E>> for Failure<E> {
    fn from(error: ExecuteError<E>) -> Self {
        Self::Execute(error)
    }
}

/// The bytes of a tensor in a call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wanted {
    /// The whole tensor, which must have this size.
    All(u64),
    /// The first byte, and the number of bytes.
    From(u64, u64),
}

/// Checks that a tensor has a kind and contains some bytes. Returns the range of these bytes.
pub(super) fn check<E>(
    plan: &Plan,
    tensor: TensorId,
    kind: Kind,
    wanted: Wanted,
) -> Result<Range<u64>, SessionError<E>> {
    let name = || plan.names().tensor(tensor);
    let found = plan.graph().owned().tensors.get(tensor.index());
    let Some(found) = found.filter(|found| found.kind == kind) else {
        let kind = if kind == Kind::Output { "an output" } else { "a state" };
        let message = format!("{} is not {kind} of the graph", name());
        return Err(SessionError::Tensor { tensor, message });
    };
    let message = match wanted {
        Wanted::All(bytes) if bytes == found.bytes => return Ok(0..bytes),
        Wanted::All(bytes) => {
            format!("the buffer has {bytes} bytes, but {} has {}", name(), found.bytes)
        }
        Wanted::From(first, bytes) => match first.checked_add(bytes) {
            Some(end) if end <= found.bytes => return Ok(first..end),
            _ => format!(
                "{bytes} bytes from byte {first} on are not all in {}, which has {} bytes",
                name(),
                found.bytes
            ),
        },
    };
    Err(SessionError::Bytes { tensor, message })
}
