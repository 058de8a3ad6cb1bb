//! Memory of the system: a file of physical pages, and ranges of addresses.
#![allow(unsafe_code, reason = "memory is mapped by the system")]

use crate::HostError;
use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr;

const RESERVED: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// The error that the system has just reported.
fn last_error(call: &'static str) -> HostError {
    HostError::System { call, code: io::Error::last_os_error().raw_os_error().unwrap_or(0) }
}

/// The size of a page, the smallest unit that can be mapped.
pub(crate) fn page_bytes() -> u64 {
    // SAFETY: the call only returns a number.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).unwrap_or(4096)
}

/// Creates a file of `bytes` bytes in memory. The system allocates all its pages now.
pub(crate) fn create_pages(bytes: u64) -> Result<File, HostError> {
    // SAFETY: the name is a C string, and the result is checked.
    let file = unsafe { libc::memfd_create(c"spillway".as_ptr(), libc::MFD_CLOEXEC) };
    if file < 0 {
        return Err(last_error("memfd_create"));
    }
    // SAFETY: the file is open, and nothing else owns it.
    let file = unsafe { File::from_raw_fd(file) };
    let length = libc::off_t::try_from(bytes).map_err(|_| HostError::OutOfDeviceMemory)?;
    // Without this call, the process would end when it first uses a page that the system cannot
    // provide.
    // SAFETY: the file is open.
    if bytes > 0 && unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, length) } != 0 {
        return Err(HostError::OutOfDeviceMemory);
    }
    Ok(file)
}

/// Addresses of this process. A drop returns them to the system.
#[derive(Debug)]
pub(crate) struct AddressRange {
    pub(crate) start: u64,
    bytes: u64,
}

impl AddressRange {
    /// Reserves addresses and maps nothing there.
    pub(crate) fn reserve(bytes: u64) -> Result<Self, HostError> {
        Self::new(bytes, libc::PROT_NONE, RESERVED).map_err(|_| HostError::AddressSpace)
    }

    /// Allocates memory that is filled with zeros.
    pub(crate) fn allocate(bytes: u64) -> Result<Self, HostError> {
        // The system refuses a mapping of 0 bytes.
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let allocated = Self::new(bytes.max(1), libc::PROT_READ | libc::PROT_WRITE, flags);
        allocated.map_err(|_| HostError::OutOfHostMemory { bytes })
    }

    fn new(bytes: u64, access: c_int, flags: c_int) -> Result<Self, HostError> {
        let length = usize::try_from(bytes).map_err(|_| HostError::AddressSpace)?;
        // SAFETY: the mapping is new, and the system chooses its address.
        let start = unsafe { libc::mmap(ptr::null_mut(), length, access, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(last_error("mmap"));
        }
        Ok(Self { start: start as u64, bytes })
    }
}

impl Drop for AddressRange {
    fn drop(&mut self) {
        // SAFETY: this value owns the range, and all users of it have ended.
        unsafe { libc::munmap(self.start as *mut _, self.bytes as usize) };
    }
}

/// Maps bytes of a file.
///
/// # Safety
/// The addresses are whole pages of a reserved range, and nothing uses them.
pub(crate) unsafe fn map(file: &File, offset: u64, at: u64, bytes: u64) -> Result<(), HostError> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: as the caller promises.
    unsafe { place(at, bytes, access, libc::MAP_SHARED, file.as_raw_fd(), offset) }
}

/// Unmaps addresses and keeps them reserved.
///
/// # Safety
/// The addresses are whole pages of a reserved range, and nothing uses them.
pub(crate) unsafe fn unmap(at: u64, bytes: u64) -> Result<(), HostError> {
    // SAFETY: as the caller promises.
    unsafe { place(at, bytes, libc::PROT_NONE, RESERVED, -1, 0) }
}

/// # Safety
/// As for [`map`].
unsafe fn place(
    at: u64,
    bytes: u64,
    access: c_int,
    flags: c_int,
    file: c_int,
    offset: u64,
) -> Result<(), HostError> {
    let flags = flags | libc::MAP_FIXED;
    // SAFETY: as the caller promises.
    let mapped = unsafe {
        libc::mmap(at as *mut _, bytes as usize, access, flags, file, offset as libc::off_t)
    };
    if mapped != libc::MAP_FAILED {
        return Ok(());
    }
    // The addresses are reserved and the file has these pages, so the system can only lack
    // mappings.
    match last_error("mmap") {
        HostError::System { code: libc::ENOMEM, .. } => Err(HostError::Mappings),
        error => Err(error),
    }
}

/// Copies bytes between addresses.
///
/// # Safety
/// Both ranges can be accessed, nothing writes the source, and nothing else uses the destination.
pub(crate) unsafe fn copy(from: u64, to: u64, bytes: u64) {
    // SAFETY: as the caller promises. `copy` allows pages that are mapped twice.
    unsafe { ptr::copy(from as *const u8, to as *mut u8, bytes as usize) };
}
