//! The emulated driver, opened for cudarc.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]
#![allow(unsafe_code, reason = "what a kernel does, only its text says")]
#![allow(dead_code, reason = "every test file has its own use of it")]

use cudarc::driver::{
    CudaContext, CudaFunction, CudaSlice, CudaStream, DeviceRepr, DriverError, LaunchConfig,
    PushKernelArg, ValidAsZeroBits,
};
use cudarc::nvrtc::Ptx;
use emulated_cuda::Emulated;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Held by a test while it runs: all share the one context of the driver.
static LOCK: Mutex<()> = Mutex::new(());

pub(crate) struct Device {
    pub(crate) context: Arc<CudaContext>,
    pub(crate) stream: Arc<CudaStream>,
    pub(crate) emulated: Emulated,
    /// A kernel of one thread that takes a time.
    pub(crate) occupy: CudaFunction,
    pub(crate) lock: MutexGuard<'static, ()>,
}

pub(crate) fn device() -> Device {
    let lock = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let emulated = Emulated::open(&Emulated::built_path()).unwrap();
    // A test that has failed may have left an error.
    emulated.restart();
    let context = CudaContext::new(0).unwrap();
    emulated.resize(1 << 30, 4096);
    assert!(context.name().unwrap().contains("no GPU"), "a test of the emulated driver");
    let stream = context.new_stream().unwrap();
    let module = context.load_module(Ptx::from_src(format!("{HEADER}{OCCUPY}"))).unwrap();
    assert!(module.load_function("absent").is_err(), "a kernel that the text lacks");
    let occupy = module.load_function("occupy").unwrap();
    let device = Device { context, stream, emulated, occupy, lock };
    // Its kernel is loaded, which would wait for the device in a test.
    device.occupy(&device.stream, 0);
    device.stream.synchronize().unwrap();
    device
}

const OCCUPY: &str = ".visible .entry occupy(.param .u64 duration) {
    .reg .pred %p;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd0, [duration];
    mov.u64 %rd1, %globaltimer;
again:
    mov.u64 %rd2, %globaltimer;
    sub.s64 %rd3, %rd2, %rd1;
    setp.lt.u64 %p, %rd3, %rd0;
    @%p bra again;
    ret;
}";

pub(crate) fn one_thread() -> LaunchConfig {
    LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 }
}

/// The start of every module.
pub(crate) const HEADER: &str = ".version 8.0\n.target sm_60\n.address_size 64\n";

impl Device {
    /// Keeps a stream busy.
    pub(crate) fn occupy(&self, stream: &CudaStream, duration_ns: u64) {
        // SAFETY: the kernel has this argument.
        unsafe { stream.launch_builder(&self.occupy).arg(&duration_ns).launch(one_thread()) }
            .unwrap();
    }

    /// Loads a text without its header.
    pub(crate) fn try_load(&self, text: &str) -> Result<Kernels, DriverError> {
        let module = self.context.load_module(Ptx::from_src(format!("{HEADER}{text}")))?;
        Ok(Kernels(module))
    }

    pub(crate) fn load(&self, text: &str) -> Kernels {
        self.try_load(text).unwrap_or_else(|_| panic!("{}", self.emulated.explanation()))
    }

    /// Returns device memory that holds these values.
    pub(crate) fn upload<T: DeviceRepr + ValidAsZeroBits + Copy>(
        &self,
        values: &[T],
    ) -> CudaSlice<T> {
        let mut into = self.stream.alloc_zeros(values.len()).unwrap();
        // SAFETY: all of it is written before it is read.
        let mut pinned = unsafe { self.context.alloc_pinned(values.len()) }.unwrap();
        pinned.as_mut_slice().unwrap().copy_from_slice(values);
        self.stream.memcpy_htod(&pinned, &mut into).unwrap();
        self.stream.synchronize().unwrap();
        into
    }

    pub(crate) fn download<T: DeviceRepr + ValidAsZeroBits + Copy>(
        &self,
        from: &CudaSlice<T>,
    ) -> Vec<T> {
        // SAFETY: all of it is written before it is read.
        let mut pinned = unsafe { self.context.alloc_pinned(from.len()) }.unwrap();
        self.stream.memcpy_dtoh(from, &mut pinned).unwrap();
        self.stream.synchronize().unwrap();
        pinned.as_slice().unwrap().to_vec()
    }
}

/// The kernels of a module.
pub(crate) struct Kernels(Arc<cudarc::driver::CudaModule>);

impl Kernels {
    pub(crate) fn get(&self, name: &str) -> CudaFunction {
        self.0.load_function(name).unwrap()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.load_function(name).is_ok()
    }
}
