//! What the driver keeps for each thread of the host.

use crate::clock::CallerClock;
use crate::faults::{Faults, Random};
use crate::outcome::Outcome;
use cudarc::driver::sys::CUresult;
use std::cell::Cell;

/// A thread of the host that calls the driver.
#[derive(Debug)]
pub(crate) struct Caller {
    /// The handle of its current context, or zero.
    pub(crate) context: Cell<usize>,
    pub(crate) clock: CallerClock,
    faults: Cell<Option<Faults>>,
    refusals: Cell<Random>,
    /// The next call of this name does nothing and returns this code.
    next: Cell<Option<(&'static str, u32)>>,
    /// The next module that is loaded is this text.
    next_module: Cell<Option<&'static str>>,
}

impl Caller {
    pub(crate) const fn new() -> Self {
        Self {
            context: Cell::new(0),
            clock: CallerClock::new(),
            faults: Cell::new(None),
            refusals: Cell::new(Random::new(0)),
            next: Cell::new(None),
            next_module: Cell::new(None),
        }
    }

    /// The faults that this thread has asked for.
    pub(crate) fn faults(&self) -> Option<Faults> {
        self.faults.get()
    }

    /// Sets the faults of this thread's calls from now on, and of the streams it creates.
    pub(crate) fn set_faults(&self, faults: Faults) {
        self.faults.set(Some(faults));
        self.refusals.set(Random::new(faults.seed.unwrap_or(0)));
    }

    /// Lets the next call of a function do nothing and return a code.
    pub(crate) fn inject(&self, function: &'static str, code: u32) {
        self.next.set(Some((function, code)));
    }

    /// Returns the code that a call of a function returns instead of doing anything, once.
    pub(crate) fn injected(&self, function: &str) -> Option<u32> {
        let (_, code) = self.next.get().filter(|(name, _)| *name == function)?;
        self.next.set(None);
        Some(code)
    }

    /// Lets the next module be another text than the one that is loaded.
    pub(crate) fn load_instead(&self, text: &'static str) {
        self.next_module.set(Some(text));
    }

    /// Returns the text to load instead of one, once; or that one.
    pub(crate) fn loaded<'t>(&self, text: &'t str) -> &'t str {
        self.next_module.take().unwrap_or(text)
    }

    /// Fails with the error, if faults say that this call is refused.
    pub(crate) fn refuse(&self, error: CUresult) -> Outcome {
        let mut refusals = self.refusals.get();
        let is_refused = refusals.one_in(self.faults().map_or(0, |faults| faults.refused_one_in));
        self.refusals.set(refusals);
        if is_refused { Err(error) } else { Ok(()) }
    }
}
