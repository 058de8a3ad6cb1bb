//! Work on the compute stream: kernels of `kernels.ptx` by cudarc, and products by them or by
//! cuBLAS.
#![allow(unsafe_code, reason = "the driver cannot check what a kernel does with its arguments")]

use crate::cublas::Blas;
use crate::cublas_library;
use crate::work::{Argument, Call, Location, Work};
use backend_cuda::cudarc::driver::{CudaFunction, CudaModule, LaunchConfig, PushKernelArg};
use backend_cuda::cudarc::driver::{CudaStream, DriverError};
use backend_cuda::cudarc::nvrtc::Ptx;
use backend_cuda::{Compute, CudaError};
use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// Which library multiplies matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Products {
    /// The kernel of `kernels.cu`.
    Own,
    Cublas,
    /// cuBLAS where its library is found.
    Either,
}

/// An argument with its address.
enum Value {
    Word(u32),
    Long(u64),
    Number(f32),
}

/// The kernels, loaded.
pub(crate) struct Launcher {
    module: Arc<CudaModule>,
    functions: HashMap<&'static str, CudaFunction>,
    blas: Option<Blas>,
    /// What multiplies matrices, in words.
    products: String,
}

impl fmt::Debug for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Launcher").field("blas", &self.blas).finish_non_exhaustive()
    }
}

/// Names the call that failed.
pub(crate) fn named<T>(call: &'static str, result: Result<T, DriverError>) -> Result<T, CudaError> {
    result.map_err(|DriverError(code)| CudaError::Driver { call, code: code as i32 })
}

impl Launcher {
    /// Loads the kernels that some ops launch, since a capture cannot.
    pub(crate) fn new<'w>(
        compute: Compute<'_>,
        products: Products,
        works: impl Iterator<Item = &'w Work>,
    ) -> Result<Self, Box<dyn Error>> {
        let own = "the kernel of this example";
        let open = || Blas::new(compute.stream, &cublas_library::folders());
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
        let module = compute.context.load_module(Ptx::from_src(include_str!("kernels.ptx")));
        let module = named("cuModuleLoadData", module)?;
        let mut launcher = Self { module, functions: HashMap::new(), blas, products };
        for work in works {
            match work {
                Work::Call(call) => launcher.load(call.kernel)?,
                Work::Matmul(matmul) => launcher.load(matmul.call().kernel)?,
            }
        }
        Ok(launcher)
    }

    fn load(&mut self, kernel: &'static str) -> Result<(), CudaError> {
        if !self.functions.contains_key(kernel) {
            let function = named("cuModuleGetFunction", self.module.load_function(kernel))?;
            self.functions.insert(kernel, function);
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
        stream: &Arc<CudaStream>,
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
        stream: &Arc<CudaStream>,
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
        let mut builder = stream.launch_builder(&self.functions[call.kernel]);
        for value in &values {
            match value {
                Value::Word(word) => builder.arg(word),
                Value::Long(long) => builder.arg(long),
                Value::Number(number) => builder.arg(number),
            };
        }
        let [across, down, deep] = call.blocks;
        let config = LaunchConfig {
            grid_dim: (across, down, deep),
            block_dim: (call.threads, 1, 1),
            shared_mem_bytes: 0,
        };
        // SAFETY: the arguments are those of the kernel in `kernels.cu`, which touches only the
        // op's tensors and its workspace: these are mapped until the step's signal, and the
        // plan is proved to let nothing else touch them meanwhile.
        let launched = unsafe { builder.launch(config) };
        named("cuLaunchKernel", launched).map(drop)
    }
}
