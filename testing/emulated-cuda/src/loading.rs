//! How kernels are loaded. A module that is loaded lazily has only its text; `cuFuncLoad` or the first
//! launch loads a kernel (CUDA C++ Programming Guide, "Lazy Loading"; CUDA Driver API,
//! `cuModuleEnumerateFunctions`). To load takes memory of the device and may wait for all its work,
//! so a program that has no memory left, captures, or lets work wait for the host fails there.

use crate::caller::Caller;
use crate::driver::{Driver, locked};
use crate::outcome::Outcome;
use crate::ptx::{Kernel, Module};
use crate::variables::Variable;

impl Driver {
    /// Loads a kernel that is about to be launched on a stream, unless it is loaded.
    pub(crate) fn load_for(&self, caller: &Caller, kernel: &Kernel, stream: usize) -> Outcome {
        let is_captured = self.streams.get(stream)?.capture().is_some();
        if is_captured && !kernel.is_loaded() {
            let name = &kernel.name;
            self.device.explain(format!("{name} is launched in a capture, but not loaded yet"));
            return self.streams.get(stream)?.check_uncaptured();
        }
        self.load_kernel(caller, kernel)
    }

    /// Loads a kernel, unless it is loaded. Blocks the caller until the device has no work.
    pub(crate) fn load_kernel(&self, caller: &Caller, kernel: &Kernel) -> Outcome {
        let mut code_bytes = locked(&kernel.loaded_bytes);
        if code_bytes.is_none() {
            self.check_uncaptured(caller)?;
            self.streams.all().iter().for_each(|stream| stream.drain(&caller.clock));
            *code_bytes = Some(self.device.take(kernel.code_bytes())?);
        }
        Ok(())
    }

    /// Loads all kernels of a module, if modules are not loaded lazily.
    pub(crate) fn load_eagerly(&self, caller: &Caller, module: &Module) -> Outcome {
        if self.device.variables.get(Variable::EagerLoading) == 0 {
            return Ok(());
        }
        let loaded =
            module.kernels.values().try_for_each(|kernel| self.load_kernel(caller, kernel));
        loaded.inspect_err(|_| self.unload(module))
    }

    /// Frees what a module has in the memory of the device.
    pub(crate) fn unload(&self, module: &Module) {
        module.unload(&self.device.space);
        let loaded =
            module.kernels.values().filter_map(|kernel| locked(&kernel.loaded_bytes).take());
        loaded.for_each(|bytes| self.device.give_back(bytes));
    }
}
