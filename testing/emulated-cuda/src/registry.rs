//! Handles: numbers that look like pointers, so that a wrong one is found and never followed.

use crate::outcome::Outcome;
use cudarc::driver::sys::CUresult;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The handles of a driver. None is used twice, by any registry.
#[derive(Debug, Default)]
pub(crate) struct Handles(AtomicUsize);

impl Handles {
    /// Returns a handle that nothing else has.
    pub(crate) fn next(&self) -> usize {
        self.0.fetch_add(0x10, Ordering::Relaxed) + 0x1000
    }
}

/// The living objects of a type, by their handles.
#[derive(Debug)]
pub(crate) struct Registry<T> {
    handles: Arc<Handles>,
    objects: Mutex<HashMap<usize, Arc<T>>>,
}

impl<T> Registry<T> {
    pub(crate) fn new(handles: &Arc<Handles>) -> Self {
        Self { handles: Arc::clone(handles), objects: Mutex::default() }
    }

    fn live(&self) -> MutexGuard<'_, HashMap<usize, Arc<T>>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what is made of its handle. Returns the handle.
    pub(crate) fn add(&self, make: impl FnOnce(usize) -> T) -> usize {
        let handle = self.handles.next();
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
