//! A device whose memory is one file of pages, mapped at the addresses that kernels get.

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

/// A device of host memory whose addresses are those of the process, so that kernels are plain
/// functions on memory. For Linux.
///
/// Its chunks are pages of one file in memory, set aside when they are created: what a plan
/// holds on the device takes that many bytes and no more. Kernels run on the calling thread;
/// uploads, downloads and ops on the host on a thread each, at the same time.
///
/// The system limits how many mappings a process has (`vm.max_map_count`); larger chunks
/// take fewer.
#[derive(Debug)]
pub struct MappedDevice {
    // Dropped first: their threads use all that follows.
    uploads: Worker,
    downloads: Worker,
    host: Worker,
    progress: Arc<Progress>,
    /// Signals of each stream.
    signals: PerStream<u64>,
    device_bytes: u64,
    created_bytes: u64,
    pages: Option<File>,
    addresses: AddressMap<AddressRange>,
    /// The host block, once it is created, and its size.
    block: Option<(AddressRange, u64)>,
}

impl MappedDevice {
    /// A device of this many bytes, which are set aside when its chunks are created.
    ///
    /// # Errors
    /// [`HostError::ChunkBytes`] unless a chunk is one or more whole pages, and
    /// [`HostError::System`] where no threads can be started.
    pub fn new(chunk_bytes: u64, device_bytes: u64) -> Result<Self, HostError> {
        let page_bytes = memory::page_bytes();
        if chunk_bytes == 0 || !chunk_bytes.is_multiple_of(page_bytes) {
            return Err(HostError::ChunkBytes { chunk_bytes, page_bytes });
        }
        let progress = Arc::new(Progress::new());
        let worker = |stream| {
            Worker::start(stream, Arc::clone(&progress)).map_err(|error| HostError::System {
                call: "starting a thread",
                code: error.raw_os_error().unwrap_or(0),
            })
        };
        Ok(Self {
            uploads: worker(Stream::Upload)?,
            downloads: worker(Stream::Download)?,
            host: worker(Stream::Host)?,
            progress,
            signals: PerStream::all(0),
            device_bytes,
            created_bytes: 0,
            pages: None,
            addresses: AddressMap::new(chunk_bytes),
            block: None,
        })
    }

    /// The bytes of all chunks that were created: what the device's memory takes.
    #[must_use]
    pub const fn created_bytes(&self) -> u64 {
        self.created_bytes
    }

    /// Reads values from device memory, for kernels.
    ///
    /// # Errors
    /// A range that is not all mapped, or has another size than the values.
    #[allow(unsafe_code, reason = "bytes are copied from an address")]
    pub fn read<T: Pod>(&self, from: DeviceRange, into: &mut [T]) -> Result<(), HostError> {
        check_size(from, into)?;
        self.addresses.check_mapped(from.address, from.bytes)?;
        // SAFETY: the range is mapped; the plan's waits keep copies of it apart from kernels.
        unsafe { memory::copy(from.address.0, into.as_mut_ptr() as u64, from.bytes) };
        Ok(())
    }

    /// Writes values to device memory, for kernels.
    ///
    /// # Errors
    /// A range that is not all mapped, or has another size than the values; then nothing is written.
    #[allow(unsafe_code, reason = "bytes are copied to an address")]
    pub fn write<T: NoUninit>(&mut self, to: DeviceRange, values: &[T]) -> Result<(), HostError> {
        check_size(to, values)?;
        self.addresses.check_mapped(to.address, to.bytes)?;
        // SAFETY: the range is mapped; the plan's waits keep copies of it apart from kernels.
        unsafe { memory::copy(values.as_ptr() as u64, to.address.0, to.bytes) };
        Ok(())
    }

    /// The thread of a stream; kernels of the device run on the calling one.
    const fn worker(&self, stream: Stream) -> Option<&Worker> {
        match stream {
            Stream::Compute => None,
            Stream::Upload => Some(&self.uploads),
            Stream::Download => Some(&self.downloads),
            Stream::Host => Some(&self.host),
        }
    }

    fn check_signalled(&self, point: Point) -> Result<(), Refused> {
        match point.value > self.signals[point.stream] {
            true => Err(Refused::Unsignalled(point)),
            false => Ok(()),
        }
    }
}

impl ErrorType for MappedDevice {
    type Error = HostError;
}

impl Streams for MappedDevice {
    fn has_host_stream(&self) -> bool {
        true
    }

    fn wait(&mut self, stream: Stream, point: Point) -> Result<(), HostError> {
        self.check_signalled(point)?;
        self.progress.check()?;
        match self.worker(stream) {
            Some(worker) => worker.wait(point),
            None => self.progress.block_until(point)?,
        }
        Ok(())
    }

    fn signal(&mut self, stream: Stream) -> Result<Point, HostError> {
        self.progress.check()?;
        self.signals[stream] += 1;
        let point = Point { stream, value: self.signals[stream] };
        match self.worker(stream) {
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
