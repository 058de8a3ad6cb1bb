//! Closes the sessions that are still open when Python ends.
//!
//! If a thread called into Python while the interpreter ends, the thread would be ended or would
//! wait forever. All sessions are therefore closed before, and the close waits for ops that run on
//! the host.

use crate::session::Shared;
use pyo3::prelude::*;
use pyo3::types::PyCFunction;
use std::sync::{Mutex, PoisonError, Weak};

static OPEN: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// Closes a session when Python ends, if it still exists.
pub(crate) fn close_at_exit(session: Weak<Shared>) {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    open.retain(|other| other.strong_count() > 0);
    open.push(session);
}

/// Lets Python call this module when it ends.
pub(crate) fn register(py: Python<'_>) -> PyResult<()> {
    let close = PyCFunction::new_closure(py, None, None, |arguments, _| {
        let open = std::mem::take(&mut *OPEN.lock().unwrap_or_else(PoisonError::into_inner));
        for session in open.iter().filter_map(Weak::upgrade) {
            session.close(arguments.py());
        }
    })?;
    py.import("atexit")?.call_method1("register", (close,)).map(drop)
}
