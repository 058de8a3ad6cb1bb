//! Files in memory.
#![allow(unsafe_code, reason = "files are the system's")]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::FileExt;

/// A file in memory. What nobody has written holds zeros and takes no memory.
#[derive(Debug)]
pub(crate) struct MemoryFile(File);

impl MemoryFile {
    /// Creates a file of zeros.
    ///
    /// # Panics
    /// Where the system has no such files.
    pub(crate) fn new(bytes: u64) -> Self {
        // SAFETY: the name is a string of C; the result is checked.
        let file = unsafe { libc::memfd_create(c"emulated-cuda".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(file >= 0, "the system has no memfd");
        // SAFETY: it is open, and nobody else's.
        let file = unsafe { File::from_raw_fd(file) };
        file.set_len(bytes).expect("a file in memory takes any length");
        Self(file)
    }

    /// The file, to map it.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    /// Gives the memory of a range back to the system.
    pub(crate) fn forget(&self, offset: u64, bytes: u64) {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let (start, length) = (offset as libc::off_t, bytes as libc::off_t);
        // SAFETY: the file is open. What is mapped stays mapped, and holds zeros.
        unsafe { libc::fallocate(self.descriptor(), mode, start, length) };
    }

    /// Whether nobody has written a range.
    pub(crate) fn is_unwritten(&self, offset: u64, bytes: u64) -> bool {
        // SAFETY: the file is open. Nobody uses its position.
        let next =
            unsafe { libc::lseek(self.descriptor(), offset as libc::off_t, libc::SEEK_DATA) };
        // It fails where nothing more was written.
        u64::try_from(next).map_or_else(
            |_| io::Error::last_os_error().raw_os_error() == Some(libc::ENXIO),
            |next| next >= offset + bytes,
        )
    }
}
