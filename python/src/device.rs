//! The devices that sessions run on, as one backend.

use backend_cuda::{CudaDevice, CudaError};
use backend_host::{HostError, HostFailure, HostRun, MappedDevice};
use spillway::planner_core::Stream;
use spillway::planner_core::backend::{
    BackendError, Chunks, DeviceAddress, ErrorIds, ErrorKind, ErrorType, HostLaunch, HostRange,
    Paging, Point, Streams, Transfers,
};
use std::fmt;

/// An open device of either kind.
pub(crate) enum Device {
    Mapped(Box<MappedDevice>),
    Cuda(Box<CudaDevice>),
}

/// The error of a device.
#[derive(Debug)]
pub(crate) enum DeviceError {
    Mapped(HostError),
    Cuda(CudaError),
    /// The Python kernels raised an exception, which is kept elsewhere.
    Raised,
}

impl DeviceError {
    /// The op that failed on the host. `None` for other errors.
    pub(crate) const fn of_host(&self) -> Option<&HostFailure> {
        match self {
            Self::Mapped(HostError::HostOp(failure)) | Self::Cuda(CudaError::HostOp(failure)) => {
                Some(failure)
            }
            _ => None,
        }
    }
}

impl From<HostError> for DeviceError {
    fn from(error: HostError) -> Self {
        Self::Mapped(error)
    }
}

impl From<CudaError> for DeviceError {
    fn from(error: CudaError) -> Self {
        Self::Cuda(error)
    }
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mapped(error) => error.fmt(f),
            Self::Cuda(error) => error.fmt(f),
            Self::Raised => f.write_str("the kernels failed"),
        }
    }
}

impl std::error::Error for DeviceError {}

impl BackendError for DeviceError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Mapped(error) => error.kind(),
            Self::Cuda(error) => error.kind(),
            Self::Raised => ErrorKind::Other,
        }
    }

    fn ids(&self) -> ErrorIds {
        match self {
            Self::Mapped(error) => error.ids(),
            Self::Cuda(error) => error.ids(),
            Self::Raised => ErrorIds::default(),
        }
    }
}

/// Calls a method of either device.
macro_rules! either {
    ($self:ident.$method:ident($($argument:expr),*)) => {
        match $self {
            Device::Mapped(device) => Ok(device.$method($($argument),*)?),
            Device::Cuda(device) => Ok(device.$method($($argument),*)?),
        }
    };
}

impl Device {
    /// A stream on which kernels enqueue ops. `None` if kernels run ops at once. Work that is
    /// enqueued there from now on may use all memory that is mapped now.
    pub(crate) fn raw_stream(&mut self, stream: Stream) -> Result<Option<u64>, DeviceError> {
        match self {
            Self::Mapped(_) => Ok(None),
            Self::Cuda(device) => Ok(Some(device.raw_stream(stream)? as u64)),
        }
    }

    /// The address of a range of the host block.
    pub(crate) fn host_address(&self, range: HostRange) -> Result<u64, DeviceError> {
        either!(self.host_address(range))
    }

    /// Enqueues an op on the host.
    pub(crate) fn launch_on_host(
        &mut self,
        launch: &HostLaunch<'_>,
        work: impl FnMut(HostRun<'_>) -> Result<(), String> + Send + 'static,
    ) -> Result<(), DeviceError> {
        either!(self.launch_on_host(launch, work))
    }
}

impl ErrorType for Device {
    type Error = DeviceError;
}

impl Streams for Device {
    fn has_host_stream(&self) -> bool {
        match self {
            Self::Mapped(device) => device.has_host_stream(),
            Self::Cuda(device) => device.has_host_stream(),
        }
    }

    fn has_network_stream(&self) -> bool {
        match self {
            Self::Mapped(device) => device.has_network_stream(),
            Self::Cuda(device) => device.has_network_stream(),
        }
    }

    fn wait(&mut self, stream: Stream, point: Point) -> Result<(), DeviceError> {
        either!(self.wait(stream, point))
    }

    fn signal(&mut self, stream: Stream) -> Result<Point, DeviceError> {
        either!(self.signal(stream))
    }

    fn signal_unawaited(&mut self, stream: Stream) -> Result<Point, DeviceError> {
        either!(self.signal_unawaited(stream))
    }

    fn reached(&mut self, point: Point) -> Result<bool, DeviceError> {
        either!(self.reached(point))
    }

    fn block_until(&mut self, point: Point) -> Result<(), DeviceError> {
        either!(self.block_until(point))
    }

    fn submit(&mut self) -> Result<(), DeviceError> {
        either!(self.submit())
    }
}

impl Transfers for Device {
    fn create_host(&mut self, bytes: u64) -> Result<(), DeviceError> {
        either!(self.create_host(bytes))
    }

    fn write_host(&mut self, offset_bytes: u64, from: &[u8]) -> Result<(), DeviceError> {
        either!(self.write_host(offset_bytes, from))
    }

    fn read_host(&mut self, offset_bytes: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        either!(self.read_host(offset_bytes, into))
    }

    fn upload(&mut self, from: HostRange, to: DeviceAddress) -> Result<(), DeviceError> {
        either!(self.upload(from, to))
    }

    fn download(&mut self, from: DeviceAddress, to: HostRange) -> Result<(), DeviceError> {
        either!(self.download(from, to))
    }
}

impl Paging for Device {
    fn chunk_bytes(&self) -> u64 {
        match self {
            Self::Mapped(device) => device.chunk_bytes(),
            Self::Cuda(device) => device.chunk_bytes(),
        }
    }

    fn most_range_chunks(&self) -> u64 {
        match self {
            Self::Mapped(device) => device.most_range_chunks(),
            Self::Cuda(device) => device.most_range_chunks(),
        }
    }

    fn create(&mut self, count: u64) -> Result<(), DeviceError> {
        either!(self.create(count))
    }

    fn reserve(&mut self, chunks: u64) -> Result<DeviceAddress, DeviceError> {
        either!(self.reserve(chunks))
    }

    fn map(&mut self, at: DeviceAddress, chunks: Chunks) -> Result<(), DeviceError> {
        either!(self.map(at, chunks))
    }

    fn unmap(&mut self, at: DeviceAddress, chunks: u64) -> Result<(), DeviceError> {
        either!(self.unmap(at, chunks))
    }
}
