//! CUDA devices.

use crate::error::DeviceError;
use crate::machine::Machine;
use backend_cuda::{CudaDevice, Measurement, Options, Unavailable};
use pyo3::prelude::*;
use std::path::PathBuf;

/// A CUDA device, by its number, for sessions. `driver` is the path of a library that serves as the
/// driver for the whole process. The library is opened and called, so name only a file that you
/// trust. Raises `DeviceError` if there is no driver or no such device.
#[pyclass(frozen, module = "spillway")]
pub(crate) struct Cuda {
    cuda: backend_cuda::Cuda,
    ordinal: usize,
    name: String,
}

fn unavailable(error: Unavailable) -> PyErr {
    DeviceError::new_err(error.to_string())
}

impl Cuda {
    /// Opens the device, with chunks of a size.
    pub(crate) fn open(&self, py: Python<'_>, chunk_bytes: u64) -> PyResult<CudaDevice> {
        let options = Options { ordinal: self.ordinal, chunk_bytes: Some(chunk_bytes) };
        // The driver may wait for work of another session, and that session's ops on the host need
        // the interpreter's lock.
        py.detach(|| self.cuda.open(&options)).map_err(unavailable)
    }
}

#[pymethods]
impl Cuda {
    #[new]
    #[pyo3(signature = (ordinal=0, driver=None))]
    fn new(py: Python<'_>, ordinal: usize, driver: Option<PathBuf>) -> PyResult<Self> {
        let found = py.detach(|| {
            let cuda = backend_cuda::Cuda::load(driver.as_deref())?;
            let name = cuda.device(ordinal)?.name;
            Ok(Self { cuda, ordinal, name })
        });
        found.map_err(unavailable)
    }

    /// The device's own name.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Measures the device for plans, which takes some seconds. The device should have no other
    /// work. By default, chunks have 2 MiB, or the size of the device's pages if that is larger. By
    /// default, the machine's host memory is the memory that can be pinned. Raises `DeviceError` if
    /// `host_bytes` cannot be pinned.
    #[pyo3(signature = (chunk_bytes=None, host_bytes=None))]
    fn measure(
        &self,
        py: Python<'_>,
        chunk_bytes: Option<u64>,
        host_bytes: Option<u64>,
    ) -> PyResult<Machine> {
        let options = Options { ordinal: self.ordinal, chunk_bytes };
        let measurement = Measurement { options, host_bytes };
        let measured = py.detach(|| self.cuda.measure(&measurement, |_, _| ()));
        let measured = measured.map_err(unavailable)?;
        Ok(Machine::from(measured.named(None)))
    }

    fn __repr__(&self) -> String {
        format!("Cuda({}, {:?})", self.ordinal, self.name)
    }
}
