//! Events.

use crate::capture::CapturePoint;
use crate::clock::CallerClock;
use crate::outcome::Outcome;
use crate::queue::Marker;
use cudarc::driver::sys::CUresult::{
    CUDA_ERROR_CAPTURED_EVENT, CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_NOT_READY,
};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Where an event was recorded last.
#[derive(Clone, Debug, Default)]
pub(crate) enum Recorded {
    /// Nowhere yet; it counts as reached.
    #[default]
    Never,
    InQueue(Marker),
    InCapture(CapturePoint),
}

/// An event of the driver.
#[derive(Debug)]
pub(crate) struct Event {
    is_timed: bool,
    recorded: Mutex<Recorded>,
}

impl Event {
    pub(crate) fn new(is_timed: bool) -> Self {
        Self { is_timed, recorded: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Recorded> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn recorded(&self) -> Recorded {
        self.lock().clone()
    }

    pub(crate) fn record(&self, recorded: Recorded) {
        *self.lock() = recorded;
    }

    /// Whether it is reached, at a caller's time.
    pub(crate) fn is_reached(&self, now: Instant) -> Outcome<bool> {
        match &*self.lock() {
            Recorded::Never => Ok(true),
            Recorded::InQueue(marker) => {
                Ok(marker.is_reached() && marker.time().is_none_or(|time| time <= now))
            }
            Recorded::InCapture(point) => Err(point.capture.refuse(CUDA_ERROR_CAPTURED_EVENT)),
        }
    }

    /// Blocks the caller until it is reached.
    pub(crate) fn wait(&self, caller: &CallerClock) -> Outcome {
        match self.recorded() {
            Recorded::Never => {}
            Recorded::InQueue(marker) => caller.wait(|| marker.wait()),
            Recorded::InCapture(point) => {
                return Err(point.capture.refuse(CUDA_ERROR_CAPTURED_EVENT));
            }
        }
        Ok(())
    }

    /// Returns when it was reached. Fails for events without a time (CUDA Driver API,
    /// `cuEventElapsedTime`).
    pub(crate) fn time(&self) -> Outcome<Instant> {
        match &*self.lock() {
            Recorded::InQueue(marker) if self.is_timed => marker.time().ok_or(CUDA_ERROR_NOT_READY),
            _ => Err(CUDA_ERROR_INVALID_HANDLE),
        }
    }
}
