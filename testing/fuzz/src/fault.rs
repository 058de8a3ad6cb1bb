//! What goes wrong.

use std::any::Any;
use std::cell::{Cell, RefCell};
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
    static LAST_PANIC: RefCell<(String, String)> = const { RefCell::new((String::new(), String::new())) };
    /// Whether it is inside a call that is checked.
    static CALLING: Cell<bool> = const { Cell::new(false) };
}

/// Keeps panics of calls that are checked off the terminal: they are found again as faults.
pub fn silence_panics() {
    let shown = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !CALLING.get() {
            return shown(info);
        }
        let location = info.location().map(|at| format!("{}:{}", at.file(), at.line()));
        LAST_PANIC.set((location.unwrap_or_default(), message(info)));
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
    let outer = CALLING.replace(true);
    let called = panic::catch_unwind(AssertUnwindSafe(call));
    CALLING.set(outer);
    called.map_err(|_| {
        let (location, message) = LAST_PANIC.take();
        Fault::new(
            format!("panic at {location}"),
            format!("{name} panics at {location}: {message}"),
        )
    })
}
