//! What tests see of the driver, beyond its own functions.
#![allow(unsafe_code, reason = "the functions of a library are called by their names")]

use crate::chance::{self, Settings};
use crate::driver::DRIVER;
use libloading::Library;
use std::path::{Path, PathBuf};

/// What the driver has been asked for, by the whole process.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Calls that reserve or free addresses, create or release memory, map, unmap, or set
    /// access.
    pub vmm_calls: u64,
    /// Calls of `cuMemMap` among them.
    pub maps: u64,
    /// Calls of `cuMemSetAccess` among them.
    pub set_accesses: u64,
    /// Calls of `cuMemUnmap` among them.
    pub unmaps: u64,
    /// Launches of graphs.
    pub graph_launches: u64,
    /// Launches of kernels and copies that were enqueued or captured.
    pub enqueued: u64,
    /// Objects that nobody had given back when the context was last destroyed.
    pub left_behind: u64,
}

#[unsafe(no_mangle)]
extern "C" fn emulated_cuda_counters(into: &mut Counters) {
    *into = *DRIVER.counters();
}

#[unsafe(no_mangle)]
extern "C" fn emulated_cuda_settings(has_seed: bool, seed: u64, refused: u64, lost: u64) {
    Settings { seed: has_seed.then_some(seed), refused, lost }.set();
}

#[unsafe(no_mangle)]
extern "C" fn emulated_cuda_delay_all() {
    chance::delay_all();
}

/// Writes as much of the explanation as there is room for; its length.
///
/// # Safety
/// So many bytes may be written.
#[unsafe(no_mangle)]
unsafe extern "C" fn emulated_cuda_explanation(into: *mut u8, bytes: usize) -> usize {
    let explanation = DRIVER.explanation();
    let bytes = bytes.min(explanation.len());
    // SAFETY: by the promise above.
    unsafe { into.copy_from_nonoverlapping(explanation.as_ptr(), bytes) };
    bytes
}

type CountersOf = extern "C" fn(&mut Counters);
type SettingsOf = extern "C" fn(bool, u64, u64, u64);
type DelayAll = extern "C" fn();
type ExplanationOf = unsafe extern "C" fn(*mut u8, usize) -> usize;

/// The library, opened in place of a driver for the rest of the process.
#[derive(Clone, Copy, Debug)]
pub struct Emulated {
    counters: CountersOf,
    settings: SettingsOf,
    delay_all: DelayAll,
    explanation: ExplanationOf,
}

impl Emulated {
    /// Where cargo puts the library for tests and examples: beside the program that runs, in
    /// a folder named `deps`.
    ///
    /// # Panics
    /// Where the program cannot tell its own place.
    #[must_use]
    pub fn built_path() -> PathBuf {
        let program = std::env::current_exe().expect("a program knows where it is");
        let folder = program.ancestors().skip(1);
        let name = "libemulated_cuda.so";
        let places =
            folder.take(2).flat_map(|folder| [folder.join(name), folder.join("deps").join(name)]);
        places.into_iter().find(|path| path.exists()).unwrap_or_else(|| PathBuf::from(name))
    }

    /// Opens the library, before any driver is.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub fn open(path: &Path) -> Result<Self, String> {
        // SAFETY: the library is this crate's, and has nothing that runs when it is opened.
        let library = unsafe { Library::new(path) }.map_err(|error| error.to_string())?;
        // It stays open.
        let library = Box::leak(Box::new(library));
        // SAFETY: the functions are those above.
        let opened = unsafe {
            library.get::<CountersOf>(b"emulated_cuda_counters").and_then(|counters| {
                let settings = library.get::<SettingsOf>(b"emulated_cuda_settings")?;
                let delay_all = library.get::<DelayAll>(b"emulated_cuda_delay_all")?;
                let explanation = library.get::<ExplanationOf>(b"emulated_cuda_explanation")?;
                Ok(Self {
                    counters: *counters,
                    settings: *settings,
                    delay_all: *delay_all,
                    explanation: *explanation,
                })
            })
        };
        opened.map_err(|error| error.to_string())
    }

    /// What has been done so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut counters = Counters::default();
        (self.counters)(&mut counters);
        counters
    }

    /// Why PTX was refused last, with the line, or why a kernel has ended the context, with the
    /// line, the block and the address; empty if neither happened. It is printed to the standard
    /// error as well.
    #[must_use]
    pub fn explanation(&self) -> String {
        let mut text = vec![0; 4096];
        // SAFETY: so many bytes may be written.
        let bytes = unsafe { (self.explanation)(text.as_mut_ptr(), text.len()) };
        text.truncate(bytes);
        String::from_utf8_lossy(&text).into_owned()
    }

    /// From now on, all streams that are created delay their work at random, by the seed of the
    /// environment or else by 1, unless their thread sets its own.
    pub fn delay_all(&self) {
        (self.delay_all)();
    }

    /// From now on, streams that this thread creates delay their work at random by this seed,
    /// or not at all.
    pub fn set_seed(&self, seed: Option<u64>) {
        (self.settings)(seed.is_some(), seed.unwrap_or(0), 0, 0);
    }

    /// The same; and of the calls of this thread one in `refused` is refused and changes
    /// nothing, and of the work of its streams one task in `lost` fails on the device, which
    /// ends the whole context. 0 for none.
    pub fn set_faults(&self, seed: u64, refused: u64, lost: u64) {
        (self.settings)(true, seed, refused, lost);
    }
}
