//! A backend to start from. Its device is one thread for each stream, over host memory: replace it,
//! method by method, by calls of your driver. Each comment says what a driver does there.

mod kernels;
mod memory;
mod stream;

pub use kernels::{MyBackend, MyKernels};

use backend_checks::{AddressMap, Refused};
use memory::Memory;
use planner_core::backend::{BackendError, ErrorIds, ErrorKind, ErrorType};
use planner_core::{PerStream, Stream};
use std::sync::Arc;
use std::{fmt, io};
use stream::{Progress, Worker};

/// An open device. A driver's holds a context, queues, and memory.
#[derive(Debug)]
pub struct MyDevice {
    workers: PerStream<Worker>,
    progress: Arc<Progress>,
    /// Signals that are enqueued on each stream.
    signals: PerStream<u64>,
    device_bytes: u64,
    /// What is reserved, and which chunks are mapped there.
    table: AddressMap<()>,
    /// The first address that is not reserved.
    next_address: u64,
    /// All chunks, one after the other.
    chunks: Memory,
    /// The host block, once it is created.
    block: Option<Memory>,
}

impl MyDevice {
    /// Opens a device. Its memory is allocated when its chunks are created.
    ///
    /// # Errors
    /// Those of the system, which starts the threads.
    pub fn open(chunk_bytes: u64, device_bytes: u64) -> io::Result<Self> {
        let progress = Arc::new(Progress::new());
        let start = |stream| Worker::start(stream, Arc::clone(&progress));
        let [compute, upload, download, host, network] = Stream::ALL.map(start);
        Ok(Self {
            workers: PerStream([compute?, upload?, download?, host?, network?]),
            progress,
            signals: PerStream::all(0),
            device_bytes,
            table: AddressMap::new(chunk_bytes),
            // Address 0 stands for an operand that a repeat leaves alone.
            next_address: chunk_bytes,
            chunks: Memory::default(),
            block: None,
        })
    }
}

/// What went wrong. A driver adds its own code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MyError {
    kind: ErrorKind,
    reason: String,
    ids: ErrorIds,
}

impl MyError {
    fn new(kind: ErrorKind, reason: impl fmt::Display) -> Self {
        Self { kind, reason: reason.to_string(), ids: ErrorIds::default() }
    }
}

impl fmt::Display for MyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for MyError {}

impl BackendError for MyError {
    fn kind(&self) -> ErrorKind {
        self.kind
    }

    fn ids(&self) -> ErrorIds {
        self.ids
    }
}

impl From<Refused> for MyError {
    fn from(refused: Refused) -> Self {
        Self { ids: refused.ids(), ..Self::new(ErrorKind::Other, refused) }
    }
}

impl ErrorType for MyDevice {
    type Error = MyError;
}
