//! A device of host memory: each stream is a thread, and memory is chunks behind locks.

use spillway::planner_core::backend::{
    BackendError, Chunks, DeviceAddress, DeviceRange, ErrorKind, ErrorType, HostRange, Paging,
    Point, Streams, Transfers,
};
use spillway::planner_core::{PerStream, Stream};
use std::fmt;
use std::ops::Range;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

pub(crate) const CHUNK_BYTES: u64 = 4096;

/// Why the device refuses a call.
#[derive(Debug)]
pub(crate) enum Fault {
    Unmapped(u64),
    OutsideBlock(u64),
    Unsignalled(Point),
    OutOfMemory,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unmapped(address) => write!(f, "nothing is mapped at address {address:#x}"),
            Self::OutsideBlock(offset) => write!(f, "host offset {offset} is outside the block"),
            Self::Unsignalled(point) => write!(f, "{point:?} has not been signalled"),
            Self::OutOfMemory => write!(f, "the device has no memory left"),
        }
    }
}

impl std::error::Error for Fault {}

impl BackendError for Fault {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::OutOfMemory => ErrorKind::OutOfDeviceMemory,
            _ => ErrorKind::Other,
        }
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// A thread that does its jobs in order, and how often it was signalled.
struct Queue {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    signalled: u64,
}

/// The last signal that each stream has reached.
#[derive(Default)]
struct Reached {
    values: Mutex<[u64; 3]>,
    changed: Condvar,
}

impl Reached {
    fn reach(&self, Point { stream, value }: Point) {
        lock(&self.values)[stream as usize] = value;
        self.changed.notify_all();
    }

    fn block_until(&self, Point { stream, value }: Point) {
        let mut values = lock(&self.values);
        while values[stream as usize] < value {
            values = self.changed.wait(values).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Physical memory.
type Memory = Arc<Vec<Mutex<Vec<u8>>>>;
/// The part of a chunk that holds a part of a tensor.
type Piece = (usize, Range<usize>);

/// Where a range of device addresses lay when it was looked up.
pub(crate) struct Located {
    memory: Memory,
    pieces: Vec<Piece>,
}

impl Located {
    pub(crate) fn load(&self) -> Vec<u8> {
        let load = |(chunk, bytes): &Piece| lock(&self.memory[*chunk])[bytes.clone()].to_vec();
        self.pieces.iter().flat_map(load).collect()
    }

    pub(crate) fn store(&self, mut from: &[u8]) {
        for (chunk, bytes) in &self.pieces {
            let (now, later) = from.split_at(bytes.len());
            lock(&self.memory[*chunk])[bytes.clone()].copy_from_slice(now);
            from = later;
        }
    }
}

pub(crate) struct Device {
    queues: PerStream<Queue>,
    reached: Arc<Reached>,
    memory: Memory,
    device_bytes: u64,
    /// The chunk at each chunk of addresses.
    mapped: Vec<Option<u64>>,
    host: Arc<Mutex<Vec<u8>>>,
}

impl Device {
    pub(crate) fn new(device_bytes: u64) -> Self {
        let queue = |_| {
            let (jobs, enqueued) = channel::<Job>();
            let thread = std::thread::spawn(move || enqueued.into_iter().for_each(|job| job()));
            Queue { jobs: Some(jobs), thread: Some(thread), signalled: 0 }
        };
        Self {
            queues: PerStream::from_fn(queue),
            reached: Arc::default(),
            memory: Arc::default(),
            device_bytes,
            // Address 0 stands for none.
            mapped: vec![None],
            host: Arc::default(),
        }
    }

    /// Enqueues work on a stream. Kernels enqueue theirs on the compute stream.
    pub(crate) fn enqueue(&self, stream: Stream, job: impl FnOnce() + Send + 'static) {
        if let Some(jobs) = &self.queues[stream].jobs {
            // It fails only if the thread has panicked, which ends the program anyway.
            let _ = jobs.send(Box::new(job));
        }
    }

    /// Looks up where a range of addresses lies now.
    pub(crate) fn locate(
        &self,
        DeviceRange { address: DeviceAddress(start), bytes }: DeviceRange,
    ) -> Result<Located, Fault> {
        let mut pieces: Vec<Piece> = Vec::new();
        let mut at = start;
        while at < start + bytes {
            let page = usize::try_from(at / CHUNK_BYTES).map_err(|_| Fault::Unmapped(at))?;
            let chunk = self.mapped.get(page).copied().flatten().ok_or(Fault::Unmapped(at))?;
            let first = at % CHUNK_BYTES;
            let count = (CHUNK_BYTES - first).min(start + bytes - at);
            pieces.push((chunk as usize, first as usize..(first + count) as usize));
            at += count;
        }
        Ok(Located { memory: Arc::clone(&self.memory), pieces })
    }
}

impl ErrorType for Device {
    type Error = Fault;
}

impl Streams for Device {
    fn wait(&mut self, stream: Stream, point: Point) -> Result<(), Fault> {
        self.check(point)?;
        let reached = Arc::clone(&self.reached);
        self.enqueue(stream, move || reached.block_until(point));
        Ok(())
    }

    fn signal(&mut self, stream: Stream) -> Result<Point, Fault> {
        self.queues[stream].signalled += 1;
        let point = Point { stream, value: self.queues[stream].signalled };
        let reached = Arc::clone(&self.reached);
        self.enqueue(stream, move || reached.reach(point));
        Ok(point)
    }

    fn reached(&mut self, point: Point) -> Result<bool, Fault> {
        self.check(point)?;
        Ok(lock(&self.reached.values)[point.stream as usize] >= point.value)
    }

    fn block_until(&mut self, point: Point) -> Result<(), Fault> {
        self.check(point)?;
        self.reached.block_until(point);
        Ok(())
    }
}

impl Device {
    fn check(&self, point: Point) -> Result<(), Fault> {
        let is_signalled = point.value <= self.queues[point.stream].signalled;
        if is_signalled { Ok(()) } else { Err(Fault::Unsignalled(point)) }
    }

    /// A range of the host block as indices.
    fn block_range(&self, offset_bytes: u64, bytes: u64) -> Result<Range<usize>, Fault> {
        let outside = Fault::OutsideBlock(offset_bytes);
        let end = offset_bytes.checked_add(bytes);
        let end = end.filter(|&end| end <= lock(&self.host).len() as u64);
        end.map(|end| offset_bytes as usize..end as usize).ok_or(outside)
    }
}

impl Transfers for Device {
    fn create_host(&mut self, bytes: u64) -> Result<(), Fault> {
        *lock(&self.host) = vec![0; bytes as usize];
        Ok(())
    }

    fn write_host(&mut self, offset_bytes: u64, from: &[u8]) -> Result<(), Fault> {
        let range = self.block_range(offset_bytes, from.len() as u64)?;
        lock(&self.host)[range].copy_from_slice(from);
        Ok(())
    }

    fn read_host(&mut self, offset_bytes: u64, into: &mut [u8]) -> Result<(), Fault> {
        let range = self.block_range(offset_bytes, into.len() as u64)?;
        into.copy_from_slice(&lock(&self.host)[range]);
        Ok(())
    }

    fn upload(&mut self, from: HostRange, to: DeviceAddress) -> Result<(), Fault> {
        let range = self.block_range(from.offset_bytes, from.bytes)?;
        let to = self.locate(DeviceRange { address: to, bytes: from.bytes })?;
        let host = Arc::clone(&self.host);
        self.enqueue(Stream::Upload, move || to.store(&lock(&host)[range]));
        Ok(())
    }

    fn download(&mut self, from: DeviceAddress, to: HostRange) -> Result<(), Fault> {
        let range = self.block_range(to.offset_bytes, to.bytes)?;
        let from = self.locate(DeviceRange { address: from, bytes: to.bytes })?;
        let host = Arc::clone(&self.host);
        self.enqueue(Stream::Download, move || lock(&host)[range].copy_from_slice(&from.load()));
        Ok(())
    }
}

impl Paging for Device {
    fn chunk_bytes(&self) -> u64 {
        CHUNK_BYTES
    }

    fn create(&mut self, count: u64) -> Result<(), Fault> {
        if count * CHUNK_BYTES > self.device_bytes {
            return Err(Fault::OutOfMemory);
        }
        let chunk = |_| Mutex::new(vec![0; CHUNK_BYTES as usize]);
        self.memory = Arc::new((0..count).map(chunk).collect());
        Ok(())
    }

    fn reserve(&mut self, chunks: u64) -> Result<DeviceAddress, Fault> {
        let first = self.mapped.len();
        self.mapped.resize(first + chunks as usize, None);
        Ok(DeviceAddress(first as u64 * CHUNK_BYTES))
    }

    fn map(&mut self, DeviceAddress(at): DeviceAddress, chunks: Chunks) -> Result<(), Fault> {
        let first = (at / CHUNK_BYTES) as usize;
        let pages = self.mapped.get_mut(first..first + chunks.count as usize);
        let pages = pages.ok_or(Fault::Unmapped(at))?;
        pages.iter_mut().zip(chunks.first..).for_each(|(page, chunk)| *page = Some(chunk));
        Ok(())
    }

    fn unmap(&mut self, DeviceAddress(at): DeviceAddress, chunks: u64) -> Result<(), Fault> {
        let first = (at / CHUNK_BYTES) as usize;
        let pages = self.mapped.get_mut(first..first + chunks as usize);
        pages.ok_or(Fault::Unmapped(at))?.fill(None);
        Ok(())
    }
}

/// Waits for all work, since threads use the memory.
impl Drop for Device {
    fn drop(&mut self) {
        for queue in &mut self.queues.0 {
            queue.jobs = None;
        }
        for queue in &mut self.queues.0 {
            if let Some(thread) = queue.thread.take() {
                let _ = thread.join();
            }
        }
    }
}

/// A job that panics poisons its locks; what they hold stays bytes.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
