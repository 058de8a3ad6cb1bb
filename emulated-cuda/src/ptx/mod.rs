//! PTX, run instruction by instruction.
//!
//! A text is read (`token`, `parse`, `syntax`), its names become registers and constants
//! (`frame`), and each instruction a function over the 32 lanes of a warp (`decode`). What is not
//! known is refused when the text is loaded.
//!
//! A warp runs up to a barrier or its end; lanes that have parted are joined again where they
//! meet (`warp`). The warps of a block take turns at barriers, and blocks run one after the
//! other (`grid`), so a block that waits for another one waits for ever. Memory is checked at
//! every access (`memory`).
//!
//! Results are those of the PTX manual (Parallel Thread Execution ISA, NVIDIA), bit by bit, but
//! for instructions named `approx` and `full`, which are computed by the host's functions: a
//! device's last bits may differ.

mod decode;
mod device;
mod frame;
mod grid;
mod kind;
mod memory;
mod parse;
mod registers;
mod special;
mod syntax;
mod token;
mod warp;

pub(crate) use grid::Launch;

use crate::driver::DRIVER;
use frame::Constant;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use syntax::Home;
use warp::Instruction;

/// Why a text is refused.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    line: usize,
    why: String,
}

impl Refusal {
    fn new(line: usize, why: impl Into<String>) -> Self {
        Self { line, why: why.into() }
    }

    /// It in a sentence, with the line of the text.
    pub(crate) fn sentence(&self, text: &str) -> String {
        let line = text.lines().nth(self.line.saturating_sub(1)).unwrap_or_default();
        format!("line {}: `{}`: {}", self.line, line.trim(), self.why)
    }
}

/// A kernel, ready to run.
pub(crate) struct Kernel {
    pub(crate) name: String,
    /// Where each parameter lies among them, and its bytes.
    pub(crate) parameters: Vec<(u64, u64)>,
    parameter_bytes: u64,
    pub(crate) most_threads: Option<u64>,
    /// Shared memory without what a launch adds.
    shared_bytes: u64,
    local_bytes: u64,
    instructions: Vec<Instruction>,
    /// How many registers a warp has: words, longs, predicates.
    registers: [usize; 3],
    constants: Vec<Constant>,
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// The kernels of a text, by their names, and the device memory that its variables take.
#[derive(Debug, Default)]
pub(crate) struct Module {
    pub(crate) kernels: HashMap<String, Arc<Kernel>>,
    variables: Option<u64>,
}

impl Module {
    /// Reads a text, readies its kernels, and gives its variables device memory.
    ///
    /// # Errors
    /// Why the text is refused.
    pub(crate) fn load(text: &str) -> Result<Self, Refusal> {
        let source = parse::parse(text)?;
        let variables = source.variables.iter().filter(|variable| variable.home == Home::Global);
        let mut bytes = 0u64;
        let offsets: Vec<_> = variables
            .map(|variable| {
                let at = bytes.next_multiple_of(variable.align_bytes);
                bytes = at + variable.bytes;
                (variable, at)
            })
            .collect();
        let mut module = Self::default();
        if bytes > 0 {
            let full = |_| Refusal::new(1, "no memory is left for its variables");
            module.variables = Some(DRIVER.changing_space().allocate(bytes).map_err(full)?);
        }
        let start = module.variables.unwrap_or(0);
        let mut places = HashMap::new();
        for (variable, offset) in offsets {
            let at = start + offset;
            memory::initialize(at, variable.bytes, &variable.initial);
            places.insert(variable.name, at);
        }
        let kernels: Result<_, _> = source
            .entries
            .iter()
            .map(|entry| {
                let kernel = decode::kernel(&source, entry, &places)?;
                Ok((kernel.name.clone(), Arc::new(kernel)))
            })
            .collect();
        match kernels {
            Ok(kernels) => module.kernels = kernels,
            Err(refusal) => {
                module.unload();
                return Err(refusal);
            }
        }
        Ok(module)
    }

    /// Gives its memory back.
    pub(crate) fn unload(&self) {
        if let Some(at) = self.variables {
            // Where a lost context has taken it back, it is gone already.
            let _ = DRIVER.changing_space().free(at);
        }
    }
}
