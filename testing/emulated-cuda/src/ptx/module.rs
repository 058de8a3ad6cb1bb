//! A module: the kernels of a text, and the device memory of its variables.

use super::error::LoadError;
use super::kernel::Kernel;
use super::syntax::{Source, Storage, Variable};
use super::{decode, parse};
use crate::outcome::Outcome;
use crate::space::SharedSpace;
use std::collections::HashMap;
use std::sync::Arc;

/// A module that is loaded.
#[derive(Debug)]
pub(crate) struct Module {
    /// By their names.
    pub(crate) kernels: HashMap<String, Arc<Kernel>>,
    /// The address of its variables, if it has any.
    variables: Option<u64>,
}

impl Module {
    /// Reads a text, decodes its kernels, and allocates its variables in device memory.
    ///
    /// # Errors
    /// Says why the text is refused.
    pub(crate) fn load(text: &str, space: &SharedSpace) -> Result<Self, LoadError> {
        let source = parse::parse(text)?;
        let (offsets, bytes) = lay_out(&source);
        let mut variables = None;
        if bytes > 0 {
            let no_memory = |_| LoadError::new(1, "no memory is left for its variables");
            variables = Some(initialize(&offsets, bytes, space).map_err(no_memory)?);
        }
        let start = variables.unwrap_or(0);
        let addresses = offsets.iter().map(|(variable, offset)| (variable.name, start + offset));
        let addresses = addresses.collect();
        let kernels = source.entries.iter().map(|entry| {
            let kernel = decode::kernel(&source, entry, &addresses)?;
            Ok((kernel.name.clone(), Arc::new(kernel)))
        });
        match kernels.collect() {
            Ok(kernels) => Ok(Self { kernels, variables }),
            Err(error) => {
                Self { kernels: HashMap::new(), variables }.unload(space);
                Err(error)
            }
        }
    }

    /// Frees its memory.
    pub(crate) fn unload(&self, space: &SharedSpace) {
        if let Some(at) = self.variables {
            // It is free already if the context has failed and ended since.
            let _ = space.write().free(at);
        }
    }
}

/// Returns the variables in device memory with their offsets, and the bytes of all together.
fn lay_out<'s, 't>(source: &'s Source<'t>) -> (Vec<(&'s Variable<'t>, u64)>, u64) {
    let (mut offsets, mut bytes) = (Vec::new(), 0u64);
    for variable in &source.variables {
        if variable.storage == Storage::Global {
            let offset = bytes.next_multiple_of(variable.align_bytes);
            bytes = offset + variable.bytes;
            offsets.push((variable, offset));
        }
    }
    (offsets, bytes)
}

/// Allocates device memory for variables and sets their initial values. Returns its address.
fn initialize(offsets: &[(&Variable<'_>, u64)], bytes: u64, space: &SharedSpace) -> Outcome<u64> {
    let mut space = space.write();
    let start = space.allocate(bytes)?;
    for &(variable, offset) in offsets {
        space.initialize(start + offset, variable.bytes, &variable.initial)?;
    }
    Ok(start)
}
