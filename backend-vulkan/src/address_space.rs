//! The limit of all virtual ranges together.

use crate::error::Unavailable;
use std::fmt;

/// The name of [`Options::sparse_bytes`](crate::Options::sparse_bytes) in the environment, for
/// [`Integrity::from_environment`](crate::Integrity::from_environment).
pub(crate) const SPARSE_BYTES: &str = "SPILLWAY_VULKAN_SPARSE_BYTES";

/// How messages name the option.
pub(crate) const OPTION: &str = "SPILLWAY_VULKAN_SPARSE_BYTES (in Rust, Options::sparse_bytes)";

/// The most bytes of all virtual ranges together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressSpace {
    /// The limit in use: [`Options::sparse_bytes`](crate::Options::sparse_bytes), or else the
    /// driver's.
    pub bytes: u64,
    /// The driver's limit, `sparseAddressSpaceSize`.
    pub reported_bytes: u64,
}

impl AddressSpace {
    /// The limit that the driver reports, unless an option replaces it.
    ///
    /// # Errors
    /// The option is 0 or not a multiple of the device's pages.
    pub(crate) fn new(
        reported_bytes: u64,
        option_bytes: Option<u64>,
        page_bytes: u64,
    ) -> Result<Self, Unavailable> {
        match option_bytes {
            Some(bytes) if bytes == 0 || !bytes.is_multiple_of(page_bytes) => {
                Err(Unavailable(format!(
                    "{OPTION} is {bytes}, but must be a multiple of the device's pages of \
                     {page_bytes} bytes, and not 0"
                )))
            }
            _ => Ok(Self { bytes: option_bytes.unwrap_or(reported_bytes), reported_bytes }),
        }
    }
}

impl fmt::Display for AddressSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, reported_bytes } = self;
        write!(f, "the driver reports {reported_bytes} bytes of sparse addresses in all")?;
        if bytes == reported_bytes {
            return Ok(());
        }
        write!(f, ", and {OPTION} sets the limit to {bytes} bytes")
    }
}
