//! Work on the compute stream: kernels of `kernels.ptx`, and products by them or by cuBLAS.
#![allow(unsafe_code, reason = "the driver cannot check what a kernel does with its arguments")]

use crate::cublas::Blas;
use crate::cublas_library;
use crate::driver::{self, Module, Value};
use crate::work::{Argument, Call, Location, Work};
use backend_cuda::CudaError;
use backend_cuda::cudarc::driver::sys::{CUfunction, CUstream};
use std::collections::HashMap;
use std::error::Error;
use std::ffi::CString;
use std::fmt;

/// Which library multiplies matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Products {
    /// The kernel of `kernels.cu`.
    Own,
    Cublas,
    /// cuBLAS where its library is found.
    Either,
}

/// The kernels, loaded.
pub(crate) struct Launcher {
    module: Module,
    kernels: HashMap<&'static str, CUfunction>,
    blas: Option<Blas>,
    /// What multiplies matrices, in words.
    products: String,
}

impl fmt::Debug for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Launcher").field("blas", &self.blas).finish_non_exhaustive()
    }
}

impl Launcher {
    /// Loads the kernels that some ops launch, since a capture cannot. The stream's context is
    /// current on this thread.
    pub(crate) fn new<'w>(
        stream: CUstream,
        products: Products,
        works: impl Iterator<Item = &'w Work>,
    ) -> Result<Self, Box<dyn Error>> {
        let own = "the kernel of this example";
        let open = || Blas::new(stream, &cublas_library::folders());
        let (blas, products) = match products {
            Products::Own => (None, own.to_owned()),
            Products::Cublas => {
                let blas = open().map_err(|reason| format!("there is no cuBLAS: {reason}"))?;
                (Some(blas), String::new())
            }
            Products::Either => match open() {
                Ok(blas) => (Some(blas), String::new()),
                Err(reason) => (None, format!("{own}, since there is no cuBLAS: {reason}")),
            },
        };
        let products = blas.as_ref().map_or(products, |blas| blas.name().to_owned());
        let module = Module::new(&CString::new(include_str!("kernels.ptx"))?)?;
        let mut launcher = Self { module, kernels: HashMap::new(), blas, products };
        for work in works {
            match work {
                Work::Call(call) => launcher.load(call.kernel)?,
                Work::Matmul(matmul) => launcher.load(matmul.call().kernel)?,
            }
        }
        Ok(launcher)
    }

    fn load(&mut self, kernel: &'static str) -> Result<(), Box<dyn Error>> {
        if !self.kernels.contains_key(kernel) {
            self.kernels.insert(kernel, self.module.kernel(&CString::new(kernel)?)?);
        }
        Ok(())
    }

    /// What multiplies matrices.
    pub(crate) fn products(&self) -> &str {
        &self.products
    }

    /// Enqueues work whose locations have these addresses.
    pub(crate) fn launch(
        &self,
        stream: CUstream,
        work: &Work,
        address: impl Fn(Location) -> u64,
    ) -> Result<(), CudaError> {
        match (work, &self.blas) {
            (Work::Call(call), _) => self.call(stream, call, address),
            (Work::Matmul(matmul), None) => self.call(stream, &matmul.call(), address),
            (Work::Matmul(matmul), Some(blas)) => blas.multiply(matmul, address),
        }
    }

    fn call(
        &self,
        stream: CUstream,
        call: &Call,
        address: impl Fn(Location) -> u64,
    ) -> Result<(), CudaError> {
        let value = |argument: &Argument| match *argument {
            Argument::At(location) => Value::Long(location.map_or(0, &address)),
            Argument::Word(word) => Value::Word(word),
            Argument::Long(long) => Value::Long(long),
            Argument::Number(number) => Value::Number(number),
        };
        let values: Vec<_> = call.arguments.iter().map(value).collect();
        let kernel = self.kernels[call.kernel];
        // SAFETY: the arguments are those of the kernel in `kernels.cu`, which touches only the
        // op's tensors and its workspace: these are mapped until the step's signal, and the
        // plan is proved to let nothing else touch them meanwhile.
        unsafe { driver::launch(kernel, call.blocks, call.threads, stream, &values) }
    }
}
