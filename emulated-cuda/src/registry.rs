//! Handles: numbers that look like pointers, so that a wrong one is found and never followed.

use crate::outcome::Outcome;
use cudarc::driver::sys::CUresult;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The next handle of the process. None is used twice, by any registry.
static NEXT: AtomicUsize = AtomicUsize::new(0x1000);

/// Returns a handle that nothing else has.
pub(crate) fn new_handle() -> usize {
    NEXT.fetch_add(0x10, Ordering::Relaxed)
}

/// The living objects of a type, by their handles.
#[derive(Debug)]
pub(crate) struct Registry<T>(Mutex<HashMap<usize, Arc<T>>>);

impl<T> Default for Registry<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Registry<T> {
    fn live(&self) -> MutexGuard<'_, HashMap<usize, Arc<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what is made of its handle. Returns the handle.
    pub(crate) fn add(&self, make: impl FnOnce(usize) -> T) -> usize {
        let handle = new_handle();
        self.live().insert(handle, Arc::new(make(handle)));
        handle
    }

    pub(crate) fn get(&self, handle: usize) -> Outcome<Arc<T>> {
        self.live().get(&handle).cloned().ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }

    pub(crate) fn remove(&self, handle: usize) -> Outcome<Arc<T>> {
        self.live().remove(&handle).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }

    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.live().values().cloned().collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.live().len()
    }
}
