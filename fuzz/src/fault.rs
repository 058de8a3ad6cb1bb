//! What goes wrong.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};

/// Something that must not happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What is the same whenever the same thing goes wrong: where it panics, or which rule is
    /// judged in two ways.
    pub kind: String,
    /// All that is known of it.
    pub detail: String,
}

impl Fault {
    /// A fault of a kind.
    pub fn new(kind: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { kind: kind.into(), detail: detail.into() }
    }
}

thread_local! {
    /// Where the last panic of this thread was, and what it said.
    static LAST_PANIC: RefCell<Option<(String, String)>> = const { RefCell::new(None) };
}

/// Keeps panics off the terminal: they are found again as faults.
pub fn silence_panics() {
    panic::set_hook(Box::new(|info| {
        let place =
            info.location().map_or_else(String::new, |at| format!("{}:{}", at.file(), at.line()));
        LAST_PANIC.with_borrow_mut(|last| *last = Some((place, message(info))));
    }));
}

fn message(info: &PanicHookInfo<'_>) -> String {
    let payload: &dyn Any = info.payload();
    let text = payload.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default()
}

/// The result of a call, or its panic as a fault.
///
/// # Errors
/// A panic.
pub fn returns<T>(name: &str, call: impl FnOnce() -> T) -> Result<T, Fault> {
    panic::catch_unwind(AssertUnwindSafe(call)).map_err(|_| {
        let last = LAST_PANIC.with_borrow_mut(Option::take);
        let (place, message) = last.unwrap_or_default();
        Fault::new(format!("panic at {place}"), format!("{name} panics at {place}: {message}"))
    })
}
