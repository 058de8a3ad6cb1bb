//! What tests see of the driver, beyond its own functions: the library, opened by its path.
#![allow(unsafe_code, reason = "the functions of a library are called by their names")]

use crate::counters::Counters;
use crate::variables::Variable;
use libloading::Library;
use std::path::{Path, PathBuf};

type GetCounters = extern "C" fn(&mut Counters);
type SetFaults = extern "C" fn(bool, u64, u64, u64);
type DelayAll = extern "C" fn();
type SetVariable = extern "C" fn(u32, u64);
type Resize = extern "C" fn(u64, u64) -> bool;
type Inject = unsafe extern "C" fn(*const u8, usize, u32);
type LoadInstead = unsafe extern "C" fn(*const u8, usize);
type GetExplanation = unsafe extern "C" fn(*mut u8, usize) -> usize;

/// The library, opened in place of a driver for the rest of the process.
#[derive(Clone, Copy, Debug)]
pub struct Emulated {
    counters: GetCounters,
    set_faults: SetFaults,
    set_variable: SetVariable,
    delay_all: DelayAll,
    restart: DelayAll,
    resize: Resize,
    inject: Inject,
    load_instead: LoadInstead,
    explanation: GetExplanation,
}

impl Emulated {
    /// Returns the path at which cargo puts the library for tests and examples: beside the
    /// program that runs, in a folder named `deps`.
    ///
    /// # Panics
    /// Where the system does not tell the path of the program.
    #[must_use]
    pub fn built_path() -> PathBuf {
        let program = std::env::current_exe().expect("a program knows where it is");
        let folder = program.ancestors().skip(1);
        let name = "libemulated_cuda.so";
        let places =
            folder.take(2).flat_map(|folder| [folder.join(name), folder.join("deps").join(name)]);
        places.into_iter().find(|path| path.exists()).unwrap_or_else(|| PathBuf::from(name))
    }

    /// Opens the library. No driver may be open yet.
    ///
    /// # Errors
    /// Says why it cannot be opened.
    pub fn open(path: &Path) -> Result<Self, String> {
        // SAFETY: the library is this crate's, and has nothing that runs when it is opened.
        let library = unsafe { Library::new(path) }.map_err(|error| error.to_string())?;
        // It stays open.
        let library = Box::leak(Box::new(library));
        // SAFETY: the functions have these types, in `api/control`.
        let opened = unsafe {
            library.get::<GetCounters>(b"emulated_cuda_counters").and_then(|counters| {
                let set_faults = library.get::<SetFaults>(b"emulated_cuda_set_faults")?;
                let set_variable = library.get::<SetVariable>(b"emulated_cuda_set_variable")?;
                let delay_all = library.get::<DelayAll>(b"emulated_cuda_delay_all")?;
                let restart = library.get::<DelayAll>(b"emulated_cuda_restart")?;
                let resize = library.get::<Resize>(b"emulated_cuda_resize")?;
                let inject = library.get::<Inject>(b"emulated_cuda_inject")?;
                let load_instead = library.get::<LoadInstead>(b"emulated_cuda_load_instead")?;
                let explanation = library.get::<GetExplanation>(b"emulated_cuda_explanation")?;
                Ok(Self {
                    counters: *counters,
                    set_faults: *set_faults,
                    set_variable: *set_variable,
                    delay_all: *delay_all,
                    restart: *restart,
                    resize: *resize,
                    inject: *inject,
                    load_instead: *load_instead,
                    explanation: *explanation,
                })
            })
        };
        opened.map_err(|error| error.to_string())
    }

    /// Returns what has been done so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut counters = Counters::default();
        (self.counters)(&mut counters);
        counters
    }

    /// Returns why PTX was refused last, with the line, or why a kernel has ended the context, with
    /// the line, the block and the address. Empty if neither happened. It is printed to the
    /// standard error as well.
    #[must_use]
    pub fn explanation(&self) -> String {
        let mut text = vec![0; 4096];
        // SAFETY: this many bytes may be written.
        let bytes = unsafe { (self.explanation)(text.as_mut_ptr(), text.len()) };
        text.truncate(bytes);
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Lets the next call of a function of the driver by this thread do nothing and return a code,
    /// whichever: a newer driver may return codes that are not known today.
    pub fn inject(&self, function: &'static str, code: u32) {
        // SAFETY: the name lives as long as the process.
        unsafe { (self.inject)(function.as_ptr(), function.len(), code) };
    }

    /// Lets the next module that this thread loads be another text: kernels with a bug.
    pub fn load_instead(&self, ptx: &'static str) {
        // SAFETY: the text lives as long as the process.
        unsafe { (self.load_instead)(ptx.as_ptr(), ptx.len()) };
    }

    /// Sets a variable. It holds for contexts, streams, modules and pinned memory that are created later.
    pub fn set(&self, variable: Variable, value: u64) {
        (self.set_variable)(variable as u32, value);
    }

    /// Puts the driver into the state of a new process: forgets the error of failed work and all
    /// changes by [`set`](Self::set), and frees the memory of the device and of the host. No work may
    /// use this memory any more.
    pub fn restart(&self) {
        (self.restart)();
    }

    /// Gives the device other memory, with mappings of other sizes: small ones for small work.
    ///
    /// # Panics
    /// Where addresses are reserved or memory is allocated.
    pub fn resize(&self, memory_bytes: u64, granularity_bytes: u64) {
        assert!((self.resize)(memory_bytes, granularity_bytes), "the device's memory is in use");
    }

    /// Delays the work of all streams that are created from now on, at random, by the seed of the
    /// environment or else by 1, unless their thread sets its own.
    pub fn delay_all(&self) {
        (self.delay_all)();
    }

    /// Delays the work of streams that this thread creates from now on, at random by this seed,
    /// or not at all.
    pub fn set_seed(&self, seed: Option<u64>) {
        (self.set_faults)(seed.is_some(), seed.unwrap_or(0), 0, 0);
    }

    /// The same; and refuses one in `refused` of the calls of this thread, which then changes
    /// nothing, and lets one in `failed` of the tasks of its streams fail on the device, which
    /// ends the whole context. 0 for none.
    pub fn set_faults(&self, seed: u64, refused: u64, failed: u64) {
        (self.set_faults)(true, seed, refused, failed);
    }
}
