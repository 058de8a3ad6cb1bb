//! Structs that begin with their size, so that a program and a library of different versions work
//! together. New fields are added at the end, and a field that is 0 counts as missing.

use core::fmt;
use core::mem::MaybeUninit;
use core::ptr;
use core::slice;

/// A struct of the C interface whose first field is `struct_bytes`, its size.
///
/// # Safety
/// It is `repr(C)`, begins with a `usize`, has no padding with a meaning, and all its bytes may be
/// 0.
pub unsafe trait Versioned: Copy {
    /// The size of the struct in its first version.
    const LEAST_BYTES: usize = size_of::<Self>();
}

/// No struct has so many bytes, so a larger size was not initialised.
const MOST_BYTES: usize = 4096;

/// Why a struct is not read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeError<'n> {
    /// `struct_bytes` is smaller than any version of the struct.
    TooSmall {
        /// The name of the struct.
        name: &'n str,
        /// `struct_bytes`.
        given_bytes: usize,
        /// The smallest size.
        least_bytes: usize,
    },
    /// `struct_bytes` is larger than the size of any struct.
    TooLarge {
        /// The name of the struct.
        name: &'n str,
        /// `struct_bytes`.
        given_bytes: usize,
    },
    /// The structs of an array differ in size, or the size does not keep the next struct aligned.
    Stride {
        /// The name of the array.
        name: &'n str,
        /// `struct_bytes`.
        given_bytes: usize,
    },
    /// The struct is larger than this library knows, and a byte beyond the known size is not 0.
    Unknown {
        /// The name of the struct.
        name: &'n str,
        /// `struct_bytes`.
        given_bytes: usize,
        /// The size that this library knows.
        known_bytes: usize,
    },
}

impl fmt::Display for SizeError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::TooSmall { name, given_bytes, least_bytes } => write!(
                f,
                "struct_bytes of {name} is {given_bytes}, but the struct has {least_bytes} bytes or more"
            ),
            Self::TooLarge { name, given_bytes } => {
                write!(
                    f,
                    "struct_bytes of {name} is {given_bytes}, which is too large for a struct"
                )
            }
            Self::Stride { name, given_bytes } => write!(
                f,
                "struct_bytes of {name} is {given_bytes}, which is not the size of each entry"
            ),
            Self::Unknown { name, given_bytes, known_bytes } => write!(
                f,
                "struct_bytes of {name} is {given_bytes}, of which this library knows {known_bytes}, and the rest \
                 is not 0: the header is newer than the library"
            ),
        }
    }
}

/// Checks the size of a struct that will be written later.
///
/// # Errors
/// The size is too small or too large.
///
/// # Safety
/// `at` points to a struct whose `struct_bytes` is initialised.
pub unsafe fn check<T: Versioned>(at: *const T, name: &str) -> Result<(), SizeError<'_>> {
    // SAFETY: the caller's promise.
    unsafe { struct_bytes(at, name) }.map(|_| ())
}

/// The `struct_bytes` of a struct. It must be at least the size of the first version.
///
/// # Safety
/// `at` points to a struct that begins with its size.
unsafe fn struct_bytes<T: Versioned>(at: *const T, name: &str) -> Result<usize, SizeError<'_>> {
    // SAFETY: the struct begins with its size.
    let given_bytes = unsafe { at.cast::<usize>().read() };
    let least_bytes = T::LEAST_BYTES;
    match given_bytes {
        _ if given_bytes < least_bytes => {
            Err(SizeError::TooSmall { name, given_bytes, least_bytes })
        }
        _ if given_bytes > MOST_BYTES => Err(SizeError::TooLarge { name, given_bytes }),
        _ => Ok(given_bytes),
    }
}

/// Reads a struct. Fields that it lacks are 0.
///
/// # Errors
/// The size is too small, or a byte beyond the known size is not 0.
///
/// # Safety
/// `at` points to a struct with as many initialised bytes as its `struct_bytes` says, or at least
/// to its `struct_bytes` if that is too small.
pub unsafe fn read<T: Versioned>(at: *const T, name: &str) -> Result<T, SizeError<'_>> {
    // SAFETY: the caller's promise.
    let given_bytes = unsafe { struct_bytes(at, name) }?;
    let known_bytes = size_of::<T>();
    // SAFETY: the struct has as many bytes.
    let bytes = unsafe { slice::from_raw_parts(at.cast::<u8>(), given_bytes) };
    if bytes.iter().skip(known_bytes).any(|&byte| byte != 0) {
        return Err(SizeError::Unknown { name, given_bytes, known_bytes });
    }
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: both have as many bytes.
    unsafe {
        ptr::copy_nonoverlapping(
            bytes.as_ptr(),
            value.as_mut_ptr().cast(),
            given_bytes.min(known_bytes),
        );
    }
    // SAFETY: all bytes are from a struct of the type, or 0, which they may be.
    Ok(unsafe { value.assume_init() })
}

/// An array of structs, which may have another version.
#[derive(Clone, Copy, Debug)]
pub struct Array<'n, T> {
    first: *const T,
    count: usize,
    stride: usize,
    name: &'n str,
}

impl<'n, T: Versioned> Array<'n, T> {
    /// The array of `count` structs from `first` on, which may be null if `count` is 0. All structs
    /// have the size of the first.
    ///
    /// # Errors
    /// The size is too small, does not keep entries aligned, or is so large that the array would
    /// not fit into memory.
    ///
    /// # Safety
    /// `first` points to `count` structs, each as [`read`] needs it, as long as the array is used.
    pub unsafe fn new(first: *const T, count: usize, name: &'n str) -> Result<Self, SizeError<'n>> {
        let stride = match count {
            0 => size_of::<T>(),
            // SAFETY: there is one.
            _ => unsafe { struct_bytes(first, name) }?,
        };
        let fits = stride.checked_mul(count).is_some_and(|bytes| isize::try_from(bytes).is_ok());
        if !fits || !stride.is_multiple_of(align_of::<T>()) {
            return Err(SizeError::Stride { name, given_bytes: stride });
        }
        Ok(Self { first, count, stride, name })
    }

    /// The number of entries.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Whether the array has no entries.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Reads all entries, one by one.
    ///
    /// # Errors
    /// The errors of [`read`], and an entry has another size than the first.
    pub fn iter(&self) -> impl Iterator<Item = Result<T, SizeError<'n>>> + use<'n, T> {
        let Self { first, count, stride, name } = *self;
        (0..count).map(move |position| {
            let at = first.wrapping_byte_add(position * stride);
            // SAFETY: `new` asks for as many structs at this distance.
            let given_bytes = unsafe { struct_bytes(at, name) }?;
            if given_bytes != stride {
                return Err(SizeError::Stride { name, given_bytes });
            }
            // SAFETY: as above.
            unsafe { read(at, name) }
        })
    }
}

/// Writes as much of a struct as the caller's struct has room for. Bytes that the library does not
/// know become 0.
///
/// # Errors
/// The size is too small.
///
/// # Safety
/// `at` points to a struct whose `struct_bytes` is initialised and is the size of the struct.
pub unsafe fn write<'n, T: Versioned>(
    at: *mut T,
    value: &T,
    name: &'n str,
) -> Result<(), SizeError<'n>> {
    // SAFETY: the caller's promise.
    unsafe {
        let given_bytes = struct_bytes(at, name)?;
        write_entry(at, value, given_bytes);
        at.cast::<usize>().write(given_bytes);
    }
    Ok(())
}

/// Writes a value into a place of `bytes` bytes. A longer place is filled with 0, and a value that
/// is too long is cut.
///
/// # Safety
/// `at` points to `bytes` bytes.
pub unsafe fn write_entry<T: Copy>(at: *mut T, value: &T, bytes: usize) {
    let known_bytes = size_of::<T>().min(bytes);
    // SAFETY: the caller's promise; the value is the library's own.
    unsafe {
        ptr::copy_nonoverlapping(ptr::from_ref(value).cast::<u8>(), at.cast::<u8>(), known_bytes);
        at.cast::<u8>().add(known_bytes).write_bytes(0, bytes - known_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A struct as it is now, with one more field than in its first version.
    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Now {
        struct_bytes: usize,
        one: u64,
        added: u64,
    }

    // SAFETY: it is as the trait asks.
    unsafe impl Versioned for Now {
        const LEAST_BYTES: usize = 16;
    }

    /// Reads a struct of a program. `words` are the words of the struct.
    fn given(words: [u64; 5]) -> Result<Now, SizeError<'static>> {
        // SAFETY: there are enough bytes for all sizes that are tried.
        unsafe { read(words.as_ptr().cast(), "it") }
    }

    #[test]
    fn older_and_newer_structs_are_read() {
        let now = |struct_bytes, added| Now { struct_bytes, one: 7, added };
        assert_eq!(
            given([16, 7, 99, 99, 99]),
            Ok(now(16, 0)),
            "the program does not know the field"
        );
        assert_eq!(given([24, 7, 8, 99, 99]), Ok(now(24, 8)));
        assert_eq!(
            given([32, 7, 8, 0, 99]),
            Ok(now(32, 8)),
            "a field that the library does not know is 0"
        );
        let unknown = SizeError::Unknown { name: "it", given_bytes: 32, known_bytes: 24 };
        assert_eq!(given([32, 7, 8, 9, 99]), Err(unknown));
        for given_bytes in [0, 8, 15] {
            let small = SizeError::TooSmall { name: "it", given_bytes, least_bytes: 16 };
            assert_eq!(given([given_bytes as u64, 7, 8, 0, 0]), Err(small));
        }
    }

    #[test]
    fn arrays_have_the_distance_of_their_first_entry() {
        let read = |words: &[u64], count| {
            // SAFETY: there are as many entries.
            let array = unsafe { Array::<Now>::new(words.as_ptr().cast(), count, "them") }?;
            let mut sum = 0;
            for entry in array.iter() {
                let Now { one, added, .. } = entry?;
                sum += one + 10 * added;
            }
            Ok(sum)
        };
        assert_eq!(read(&[], 0), Ok(0));
        assert_eq!(read(&[16, 1, 16, 2], 2), Ok(3));
        assert_eq!(read(&[24, 1, 1, 24, 2, 2], 2), Ok(33));
        assert_eq!(read(&[32, 1, 1, 0, 32, 2, 2, 0], 2), Ok(33));
        let stride = |given_bytes| Err(SizeError::Stride { name: "them", given_bytes });
        assert_eq!(read(&[24, 1, 1, 32, 2, 2, 0], 2), stride(32));
        assert_eq!(read(&[25, 1, 1, 0], 1), stride(25));
        let large = SizeError::TooLarge { name: "them", given_bytes: 1 << 62 };
        assert_eq!(read(&[1 << 62, 1, 1, 0], 4), Err(large));
    }

    #[test]
    fn structs_of_a_program_are_written_as_far_as_they_go() {
        let written = |struct_bytes: u64| {
            let mut words = [struct_bytes, 99, 99, 99, 99];
            let value = Now { struct_bytes: 24, one: 7, added: 8 };
            // SAFETY: there are enough bytes for all sizes that are tried.
            unsafe { write(words.as_mut_ptr().cast(), &value, "it") }.map(|()| words)
        };
        assert_eq!(written(16), Ok([16, 7, 99, 99, 99]));
        assert_eq!(written(24), Ok([24, 7, 8, 99, 99]));
        assert_eq!(written(32), Ok([32, 7, 8, 0, 99]));
        let small = SizeError::TooSmall { name: "it", given_bytes: 8, least_bytes: 16 };
        assert_eq!(written(8), Err(small));
    }
}
