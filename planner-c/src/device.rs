//! A device of the caller, as callbacks.

use crate::error::{Code, Failure};
use planner_core::Stream;
use planner_core::backend::{
    BackendError, Chunks, DeviceAddress, ErrorKind, ErrorType, HostRange, Paging, Point, Streams,
    Transfers,
};
use spillway_c_types::sized::Versioned;
use std::ffi::c_void;
use std::fmt;

/// A device has three streams of work, and may have one for ops on the host and one for collectives. It
/// has a block of host
/// memory, and device memory in chunks that are mapped at addresses. A session calls these
/// functions from the thread that calls the session. Each function gets `context` first.
///
/// Functions that return `int32_t` return 0, or a `SpillwayCode` that says why they failed:
/// `SPILLWAY_CODE_OUT_OF_DEVICE_MEMORY`, `SPILLWAY_CODE_OUT_OF_HOST_MEMORY` or
/// `SPILLWAY_CODE_DEVICE_LOST`. Any other number becomes `SPILLWAY_CODE_DEVICE`. A function that
/// fails changes nothing. Only `submit` and `signal_unawaited` may be null. No function may unwind.
///
/// `docs/backends.md` states the promises of each function.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Device {
    /// The size of this struct.
    pub struct_bytes: usize,
    /// The first argument of the functions. It must live as long as the session.
    pub context: *mut c_void,
    /// The size of a chunk. It must be the chunk size of the machine in the plan.
    pub chunk_bytes: u64,
    /// Creates this many chunks of device memory. Called once.
    pub create: Option<extern "C" fn(context: *mut c_void, chunks: u64) -> i32>,
    /// Reserves addresses for this many chunks. They must not begin at 0, which means no address to
    /// kernels.
    pub reserve: Option<extern "C" fn(context: *mut c_void, chunks: u64, address: *mut u64) -> i32>,
    /// Maps consecutive chunks, by number, at an address.
    pub map: Option<
        extern "C" fn(context: *mut c_void, address: u64, first_chunk: u64, chunks: u64) -> i32,
    >,
    /// Unmaps chunks from an address: one mapping, or several adjacent mappings. No work in flight
    /// uses them.
    pub unmap: Option<extern "C" fn(context: *mut c_void, address: u64, chunks: u64) -> i32>,
    /// Creates the host block. Called once.
    pub create_host: Option<extern "C" fn(context: *mut c_void, bytes: u64) -> i32>,
    /// Copies bytes into the host block, at once.
    pub write_host: Option<
        extern "C" fn(
            context: *mut c_void,
            offset_bytes: u64,
            from: *const u8,
            bytes: usize,
        ) -> i32,
    >,
    /// Copies bytes out of the host block, at once.
    pub read_host: Option<
        extern "C" fn(context: *mut c_void, offset_bytes: u64, into: *mut u8, bytes: usize) -> i32,
    >,
    /// Enqueues a copy from the host block to an address, on the stream for uploads.
    pub upload: Option<
        extern "C" fn(context: *mut c_void, offset_bytes: u64, bytes: u64, address: u64) -> i32,
    >,
    /// Enqueues a copy from an address to the host block, on the stream for downloads.
    pub download: Option<
        extern "C" fn(context: *mut c_void, address: u64, offset_bytes: u64, bytes: u64) -> i32,
    >,
    /// Makes all later work and later signals on a stream wait for a signal of a stream. A signal
    /// that has not been enqueued is an error.
    pub wait: Option<
        extern "C" fn(context: *mut c_void, stream: u32, signal_stream: u32, signal: u64) -> i32,
    >,
    /// Enqueues a signal on a stream, and returns its number. Each stream counts 1, 2, 3 and so on.
    pub signal: Option<extern "C" fn(context: *mut c_void, stream: u32, signal: *mut u64) -> i32>,
    /// Tells whether a signal has been reached: 1 or 0.
    pub reached: Option<
        extern "C" fn(context: *mut c_void, stream: u32, signal: u64, is_reached: *mut u8) -> i32,
    >,
    /// Blocks the calling thread until a signal is reached.
    pub block_until: Option<extern "C" fn(context: *mut c_void, stream: u32, signal: u64) -> i32>,
    /// Submits all work that is enqueued so far, if the device gathers work. Called at the end of
    /// each iteration. It may be null if the device submits work at once. Other functions may also
    /// submit work, and `block_until` must.
    pub submit: Option<extern "C" fn(context: *mut c_void) -> i32>,
    /// Whether the device also has a stream for ops that run on the host, `SPILLWAY_HOST`: 1 or 0.
    /// Without it, a session does not start if its plan runs ops on the host.
    pub has_host_stream: u8,
    /// Enqueues a signal like `signal`. No later call names this signal, but calls may name later
    /// signals of the stream. If it is null, the library calls `signal`.
    pub signal_unawaited:
        Option<extern "C" fn(context: *mut c_void, stream: u32, signal: *mut u64) -> i32>,
    /// The most chunks that one call of `reserve` can have; 0 for no limit.
    pub most_range_chunks: u64,
    /// Whether the device also has a stream for collectives, `SPILLWAY_NETWORK`: 1 or 0. Without it,
    /// a session does not start if its graph has collectives.
    pub has_network_stream: u8,
}

// SAFETY: it is `repr(C)`, begins with its size, and may be all zero.
unsafe impl Versioned for Device {}

/// A callback that failed.
#[derive(Debug)]
pub(crate) struct Failed {
    /// The name of the callback.
    pub(crate) call: &'static str,
    /// The number that it returned.
    pub(crate) status: i32,
}

impl Failed {
    pub(crate) const fn code(&self) -> Code {
        match self.kind_of() {
            ErrorKind::OutOfDeviceMemory => Code::OutOfDeviceMemory,
            ErrorKind::OutOfHostMemory => Code::OutOfHostMemory,
            ErrorKind::Lost => Code::DeviceLost,
            _ => Code::Device,
        }
    }

    const fn kind_of(&self) -> ErrorKind {
        const OUT_OF_DEVICE_MEMORY: i32 = Code::OutOfDeviceMemory as i32;
        const OUT_OF_HOST_MEMORY: i32 = Code::OutOfHostMemory as i32;
        const DEVICE_LOST: i32 = Code::DeviceLost as i32;
        match self.status {
            OUT_OF_DEVICE_MEMORY => ErrorKind::OutOfDeviceMemory,
            OUT_OF_HOST_MEMORY => ErrorKind::OutOfHostMemory,
            DEVICE_LOST => ErrorKind::Lost,
            _ => ErrorKind::Other,
        }
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the callback {} returned {}", self.call, self.status)
    }
}

impl std::error::Error for Failed {}

impl BackendError for Failed {
    fn kind(&self) -> ErrorKind {
        self.kind_of()
    }
}

/// Turns the number that a callback returned into a result.
pub(crate) const fn check(call: &'static str, status: i32) -> Result<(), Failed> {
    if status == 0 { Ok(()) } else { Err(Failed { call, status }) }
}

/// A device with all its callbacks.
pub(crate) struct Callbacks(Device);

// SAFETY: only the thread that uses a session calls the callbacks, and the caller synchronises
// access to the context.
unsafe impl Send for Callbacks {}

impl Callbacks {
    pub(crate) fn new(device: &Device) -> Result<Self, Failure> {
        let all = [
            ("create", device.create.is_some()),
            ("reserve", device.reserve.is_some()),
            ("map", device.map.is_some()),
            ("unmap", device.unmap.is_some()),
            ("create_host", device.create_host.is_some()),
            ("write_host", device.write_host.is_some()),
            ("read_host", device.read_host.is_some()),
            ("upload", device.upload.is_some()),
            ("download", device.download.is_some()),
            ("wait", device.wait.is_some()),
            ("signal", device.signal.is_some()),
            ("reached", device.reached.is_some()),
            ("block_until", device.block_until.is_some()),
        ];
        match all.into_iter().find(|(_, is_there)| !is_there) {
            None => Ok(Self(*device)),
            Some((name, _)) => Err(Failure::argument(format!("the device's {name} is null"))),
        }
    }
}

/// Calls a callback of a device and checks its result. The callback has been checked not to be
/// null.
macro_rules! call {
    ($device:expr, $name:ident $(, $argument:expr)*) => {{
        let Device { context, $name: callback, .. } = $device.0;
        check(stringify!($name), callback.map_or(-1, |callback| callback(context $(, $argument)*)))
    }};
}

impl ErrorType for Callbacks {
    type Error = Failed;
}

impl Streams for Callbacks {
    fn has_host_stream(&self) -> bool {
        self.0.has_host_stream != 0
    }

    fn has_network_stream(&self) -> bool {
        self.0.has_network_stream != 0
    }

    fn wait(&mut self, stream: Stream, point: Point) -> Result<(), Failed> {
        call!(self, wait, stream as u32, point.stream as u32, point.value)
    }

    fn signal(&mut self, stream: Stream) -> Result<Point, Failed> {
        let mut value = 0;
        call!(self, signal, stream as u32, &raw mut value)?;
        Ok(Point { stream, value })
    }

    fn signal_unawaited(&mut self, stream: Stream) -> Result<Point, Failed> {
        if self.0.signal_unawaited.is_none() {
            return self.signal(stream);
        }
        let mut value = 0;
        call!(self, signal_unawaited, stream as u32, &raw mut value)?;
        Ok(Point { stream, value })
    }

    fn reached(&mut self, point: Point) -> Result<bool, Failed> {
        let mut is_reached = 0;
        call!(self, reached, point.stream as u32, point.value, &raw mut is_reached)?;
        Ok(is_reached != 0)
    }

    fn submit(&mut self) -> Result<(), Failed> {
        if self.0.submit.is_some() { call!(self, submit) } else { Ok(()) }
    }

    fn block_until(&mut self, point: Point) -> Result<(), Failed> {
        call!(self, block_until, point.stream as u32, point.value)
    }
}

impl Transfers for Callbacks {
    fn create_host(&mut self, bytes: u64) -> Result<(), Failed> {
        call!(self, create_host, bytes)
    }

    fn write_host(&mut self, offset_bytes: u64, from: &[u8]) -> Result<(), Failed> {
        call!(self, write_host, offset_bytes, from.as_ptr(), from.len())
    }

    fn read_host(&mut self, offset_bytes: u64, into: &mut [u8]) -> Result<(), Failed> {
        call!(self, read_host, offset_bytes, into.as_mut_ptr(), into.len())
    }

    fn upload(&mut self, from: HostRange, to: DeviceAddress) -> Result<(), Failed> {
        call!(self, upload, from.offset_bytes, from.bytes, to.0)
    }

    fn download(&mut self, from: DeviceAddress, to: HostRange) -> Result<(), Failed> {
        call!(self, download, from.0, to.offset_bytes, to.bytes)
    }
}

impl Paging for Callbacks {
    fn chunk_bytes(&self) -> u64 {
        self.0.chunk_bytes
    }

    fn most_range_chunks(&self) -> u64 {
        if self.0.most_range_chunks == 0 { u64::MAX } else { self.0.most_range_chunks }
    }

    fn create(&mut self, count: u64) -> Result<(), Failed> {
        call!(self, create, count)
    }

    fn reserve(&mut self, chunks: u64) -> Result<DeviceAddress, Failed> {
        let mut address = 0;
        call!(self, reserve, chunks, &raw mut address)?;
        Ok(DeviceAddress(address))
    }

    fn map(&mut self, at: DeviceAddress, chunks: Chunks) -> Result<(), Failed> {
        call!(self, map, at.0, chunks.first, chunks.count)
    }

    fn unmap(&mut self, at: DeviceAddress, chunks: u64) -> Result<(), Failed> {
        call!(self, unmap, at.0, chunks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn signal(_: *mut c_void, _: u32, signal: *mut u64) -> i32 {
        // SAFETY: the caller passes the address of a number.
        unsafe { signal.write(1) };
        0
    }

    extern "C" fn signal_unawaited(_: *mut c_void, _: u32, signal: *mut u64) -> i32 {
        // SAFETY: the caller passes the address of a number.
        unsafe { signal.write(2) };
        0
    }

    #[test]
    fn what_is_left_null_has_a_default() {
        // SAFETY: a device may be all zero.
        let zeros: Device = unsafe { std::mem::zeroed() };
        let device = Device { signal: Some(signal), ..zeros };
        let mut callbacks = Callbacks(device);
        assert_eq!(
            callbacks.signal_unawaited(Stream::Compute).map(|point| point.value).ok(),
            Some(1)
        );
        assert_eq!(callbacks.most_range_chunks(), u64::MAX);
        let signal_unawaited = Some(signal_unawaited as _);
        let mut callbacks = Callbacks(Device { signal_unawaited, most_range_chunks: 3, ..device });
        assert_eq!(
            callbacks.signal_unawaited(Stream::Compute).map(|point| point.value).ok(),
            Some(2)
        );
        assert_eq!(callbacks.most_range_chunks(), 3);
    }
}
