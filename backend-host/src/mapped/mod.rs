//! A device whose memory is one file of pages. The pages are mapped at the addresses that kernels
//! get.

mod costs;
mod limit;
mod memory;
mod paging;
mod progress;
mod transfer;
mod worker;

pub use costs::SetUpCosts;
pub use limit::MappingLimit;

use crate::{HostError, check_size};
use backend_checks::{AddressMap, Refused};
use bytemuck::{NoUninit, Pod};
use memory::AddressRange;
use planner_core::backend::{DeviceRange, ErrorType, Point, Streams};
use planner_core::{PerStream, Stream};
use progress::Progress;
use std::fs::File;
use std::sync::Arc;
use worker::Worker;

/// A device of host memory whose addresses are addresses of the process, so that kernels are plain
/// functions on memory. Only for Linux.
///
/// The chunks are pages of one file in memory. The system allocates the pages when the chunks are
/// created, so the device takes exactly as much memory as the plan holds on the device. Kernels run
/// on the calling thread. Uploads, downloads, ops on the host and collectives have a thread each and
/// run at the same time. The thread for collectives starts with the first use of its stream.
///
/// The system limits the mappings of a process (`vm.max_map_count`). With larger chunks, a plan
/// needs fewer mappings.
#[derive(Debug)]
pub struct MappedDevice {
    // These are dropped first, since their threads use all later fields.
    uploads: Worker,
    downloads: Worker,
    host: Worker,
    network: Option<Worker>,
    progress: Arc<Progress>,
    /// Signals of each stream.
    signals: PerStream<u64>,
    device_bytes: u64,
    created_bytes: u64,
    pages: Option<File>,
    addresses: AddressMap<AddressRange>,
    /// The host block and its size, once the block is created.
    block: Option<(AddressRange, u64)>,
}

impl MappedDevice {
    /// Makes a device of `device_bytes` bytes. They are allocated when the chunks are created.
    ///
    /// # Errors
    /// [`HostError::ChunkBytes`] unless a chunk is one or more whole pages. [`HostError::System`]
    /// if a thread cannot be started.
    pub fn new(chunk_bytes: u64, device_bytes: u64) -> Result<Self, HostError> {
        let page_bytes = memory::page_bytes();
        if chunk_bytes == 0 || !chunk_bytes.is_multiple_of(page_bytes) {
            return Err(HostError::ChunkBytes { chunk_bytes, page_bytes });
        }
        let progress = Arc::new(Progress::new());
        let worker = |stream| start(stream, &progress);
        Ok(Self {
            uploads: worker(Stream::Upload)?,
            downloads: worker(Stream::Download)?,
            host: worker(Stream::Host)?,
            network: None,
            progress,
            signals: PerStream::all(0),
            device_bytes,
            created_bytes: 0,
            pages: None,
            addresses: AddressMap::new(chunk_bytes),
            block: None,
        })
    }

    /// The bytes of all chunks that were created, which is the memory that the device takes.
    #[must_use]
    pub const fn created_bytes(&self) -> u64 {
        self.created_bytes
    }

    /// Reads values from device memory, for kernels.
    ///
    /// # Errors
    /// The range is not completely mapped, or differs in size from the values.
    #[allow(unsafe_code, reason = "bytes are copied from an address")]
    pub fn read<T: Pod>(&self, from: DeviceRange, into: &mut [T]) -> Result<(), HostError> {
        check_size(from, into)?;
        self.addresses.check_mapped(from.address, from.bytes)?;
        // SAFETY: the range is mapped. The plan's waits keep copies of it apart from kernels.
        unsafe { memory::copy(from.address.0, into.as_mut_ptr() as u64, from.bytes) };
        Ok(())
    }

    /// Writes values to device memory, for kernels.
    ///
    /// # Errors
    /// The range is not completely mapped, or differs in size from the values. Then nothing is
    /// written.
    #[allow(unsafe_code, reason = "bytes are copied to an address")]
    pub fn write<T: NoUninit>(&mut self, to: DeviceRange, values: &[T]) -> Result<(), HostError> {
        check_size(to, values)?;
        self.addresses.check_mapped(to.address, to.bytes)?;
        // SAFETY: the range is mapped. The plan's waits keep copies of it apart from kernels.
        unsafe { memory::copy(values.as_ptr() as u64, to.address.0, to.bytes) };
        Ok(())
    }

    /// The thread of a stream. The compute stream has none: kernels run on the calling thread.
    fn worker(&mut self, stream: Stream) -> Result<Option<&Worker>, HostError> {
        Ok(match stream {
            Stream::Compute => None,
            Stream::Upload => Some(&self.uploads),
            Stream::Download => Some(&self.downloads),
            Stream::Host => Some(&self.host),
            Stream::Network => Some(self.network()?),
        })
    }

    /// The thread for collectives.
    fn network(&mut self) -> Result<&Worker, HostError> {
        let network = match self.network.take() {
            Some(network) => network,
            None => start(Stream::Network, &self.progress)?,
        };
        Ok(self.network.insert(network))
    }

    fn check_signalled(&self, point: Point) -> Result<(), Refused> {
        match point.value > self.signals[point.stream] {
            true => Err(Refused::Unsignalled(point)),
            false => Ok(()),
        }
    }
}

/// Reads bytes of device memory, for the work of a collective of
/// [`IntegrityKernels`](crate::IntegrityKernels).
#[allow(unsafe_code, reason = "bytes are copied from an address")]
pub(crate) fn read_bytes(from: DeviceRange, into: &mut [u8]) -> Result<(), HostError> {
    check_size(from, into)?;
    // SAFETY: the launch named the range, which stays mapped until the stream's next signal is
    // reached. The plan's waits keep other work apart from it.
    unsafe { memory::copy(from.address.0, into.as_mut_ptr() as u64, from.bytes) };
    Ok(())
}

/// Writes bytes of device memory, for the same work.
#[allow(unsafe_code, reason = "bytes are copied to an address")]
pub(crate) fn write_bytes(to: DeviceRange, bytes: &[u8]) -> Result<(), HostError> {
    check_size(to, bytes)?;
    // SAFETY: as for `read_bytes`.
    unsafe { memory::copy(bytes.as_ptr() as u64, to.address.0, to.bytes) };
    Ok(())
}

fn start(stream: Stream, progress: &Arc<Progress>) -> Result<Worker, HostError> {
    Worker::start(stream, Arc::clone(progress)).map_err(|error| HostError::System {
        call: "starting a thread",
        code: error.raw_os_error().unwrap_or(0),
    })
}

impl ErrorType for MappedDevice {
    type Error = HostError;
}

impl Streams for MappedDevice {
    fn has_host_stream(&self) -> bool {
        true
    }

    fn has_network_stream(&self) -> bool {
        true
    }

    fn wait(&mut self, stream: Stream, point: Point) -> Result<(), HostError> {
        self.check_signalled(point)?;
        self.progress.check()?;
        match self.worker(stream)? {
            Some(worker) => worker.wait(point),
            None => self.progress.block_until(point)?,
        }
        Ok(())
    }

    fn signal(&mut self, stream: Stream) -> Result<Point, HostError> {
        self.progress.check()?;
        self.signals[stream] += 1;
        let point = Point { stream, value: self.signals[stream] };
        match self.worker(stream)? {
            Some(worker) => worker.signal(point),
            None => self.progress.reach(point),
        }
        Ok(point)
    }

    fn reached(&mut self, point: Point) -> Result<bool, HostError> {
        self.check_signalled(point)?;
        Ok(self.progress.has_reached(point)?)
    }

    fn block_until(&mut self, point: Point) -> Result<(), HostError> {
        self.check_signalled(point)?;
        Ok(self.progress.block_until(point)?)
    }
}

impl Drop for MappedDevice {
    fn drop(&mut self) {
        self.progress.drop_work();
    }
}
