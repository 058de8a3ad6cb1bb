//! The machine: memory sizes, link speeds, and the cost of map and unmap calls.

use core::fmt;
use core::ops::Deref;

/// The parameters of a device, its host, and the links between them.
// C reads this struct as it is, so a new field comes last, and 0 must mean that there is none.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MachineParameters {
    /// Device memory in bytes.
    pub device_bytes: u64,
    /// Host memory that may be pinned, in bytes.
    pub host_bytes: u64,
    /// Size of a chunk, the unit in which device memory is mapped.
    pub chunk_bytes: u64,
    /// Bandwidth from host to device.
    pub h2d_bytes_per_s: u64,
    /// Bandwidth from device to host.
    pub d2h_bytes_per_s: u64,
    /// Fixed cost of one transfer.
    pub transfer_latency_ns: u64,
    /// Host time to map one chunk, for executors that map while the plan runs.
    pub map_ns_per_chunk: u64,
    /// Host time to unmap one chunk, for executors that map while the plan runs.
    pub unmap_ns_per_chunk: u64,
}

setters!(MachineParameters {
    device_bytes: u64 => with_device_bytes,
    host_bytes: u64 => with_host_bytes,
    chunk_bytes: u64 => with_chunk_bytes,
    h2d_bytes_per_s: u64 => with_h2d_bytes_per_s,
    d2h_bytes_per_s: u64 => with_d2h_bytes_per_s,
    transfer_latency_ns: u64 => with_transfer_latency_ns,
    map_ns_per_chunk: u64 => with_map_ns_per_chunk,
    unmap_ns_per_chunk: u64 => with_unmap_ns_per_chunk,
});

impl MachineParameters {
    /// Parameters that are all 0. [`Machine::new`] needs a size of chunks and the speeds of both links.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            device_bytes: 0,
            host_bytes: 0,
            chunk_bytes: 0,
            h2d_bytes_per_s: 0,
            d2h_bytes_per_s: 0,
            transfer_latency_ns: 0,
            map_ns_per_chunk: 0,
            unmap_ns_per_chunk: 0,
        }
    }
}

/// Why a machine is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MachineError {
    /// A chunk has no bytes.
    NoChunk,
    /// The bandwidth of a link is zero.
    NoBandwidth,
}

impl fmt::Display for MachineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoChunk => "chunk_bytes is zero",
            Self::NoBandwidth => "the bandwidth of a link is zero",
        })
    }
}

impl core::error::Error for MachineError {}

/// A direction of transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Host to device.
    HostToDevice,
    /// Device to host.
    DeviceToHost,
}

/// A device, its host, and the links between them: checked and constant
/// [parameters](MachineParameters).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine(MachineParameters);

impl Deref for Machine {
    type Target = MachineParameters;

    fn deref(&self) -> &MachineParameters {
        &self.0
    }
}

impl Machine {
    /// Checks that the chunk size and the bandwidths, which are divisors, are not zero.
    ///
    /// # Errors
    /// The first parameter that is zero and must not be.
    pub const fn new(parameters: MachineParameters) -> Result<Self, MachineError> {
        if parameters.chunk_bytes == 0 {
            return Err(MachineError::NoChunk);
        }
        if parameters.h2d_bytes_per_s == 0 || parameters.d2h_bytes_per_s == 0 {
            return Err(MachineError::NoBandwidth);
        }
        Ok(Self(parameters))
    }

    /// The same machine with this much device memory.
    #[must_use]
    pub const fn with_device_bytes(self, device_bytes: u64) -> Self {
        Self(MachineParameters { device_bytes, ..self.0 })
    }

    /// The same machine with chunks of this size; a size of zero is taken as one byte.
    #[must_use]
    pub(crate) const fn with_chunk_bytes(self, chunk_bytes: u64) -> Self {
        let chunk_bytes = if chunk_bytes == 0 { 1 } else { chunk_bytes };
        Self(MachineParameters { chunk_bytes, ..self.0 })
    }

    /// The same machine with this much host memory that may be pinned.
    #[must_use]
    pub const fn with_host_bytes(self, host_bytes: u64) -> Self {
        Self(MachineParameters { host_bytes, ..self.0 })
    }

    /// Time of one transfer in nanoseconds: the latency plus the bytes over the bandwidth, rounded
    /// up. `None` if it exceeds 64 bits.
    #[must_use]
    pub fn transfer_ns(&self, direction: Direction, bytes: u64) -> Option<u64> {
        let bytes_per_s = match direction {
            Direction::HostToDevice => self.h2d_bytes_per_s,
            Direction::DeviceToHost => self.d2h_bytes_per_s,
        };
        let copy_ns = transmission_ns(bytes, bytes_per_s)?;
        copy_ns.checked_add(self.transfer_latency_ns)
    }

    /// The number of whole chunks in this many bytes.
    pub(crate) fn chunks_within(&self, bytes: u64) -> u64 {
        bytes.checked_div(self.chunk_bytes).unwrap_or(0)
    }

    /// Rounds bytes up to whole chunks. `None` if the result exceeds 64 bits.
    #[must_use]
    pub const fn round_up_to_chunks(&self, bytes: u64) -> Option<u64> {
        let chunk_bytes = self.0.chunk_bytes;
        bytes.div_ceil(chunk_bytes).checked_mul(chunk_bytes)
    }
}

/// `ceil(bytes * 10^9 / bytes_per_s)` nanoseconds. `None` if it exceeds 64 bits or the bandwidth is
/// 0.
#[must_use]
pub fn transmission_ns(bytes: u64, bytes_per_s: u64) -> Option<u64> {
    // Covers nearly every transfer; a 128-bit division is about ten times slower.
    if let Some(product) = bytes.checked_mul(1_000_000_000)
        && bytes_per_s > 0
    {
        return Some(product.div_ceil(bytes_per_s));
    }
    let product = u128::from(bytes) * 1_000_000_000;
    let ns = product.checked_add(u128::from(bytes_per_s.checked_sub(1)?))?;
    u64::try_from(ns.checked_div(u128::from(bytes_per_s))?).ok()
}

#[cfg(test)]
impl Machine {
    /// A large machine, for tests that depend only on the chunk size.
    pub(crate) const fn of_chunks(chunk_bytes: u64) -> Self {
        Self(MachineParameters {
            device_bytes: u64::MAX,
            host_bytes: u64::MAX,
            chunk_bytes,
            h2d_bytes_per_s: 1,
            d2h_bytes_per_s: 1,
            transfer_latency_ns: 0,
            map_ns_per_chunk: 0,
            unmap_ns_per_chunk: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: MachineParameters = MachineParameters {
        device_bytes: 0,
        host_bytes: 0,
        chunk_bytes: 1,
        h2d_bytes_per_s: 1,
        d2h_bytes_per_s: 1,
        transfer_latency_ns: 0,
        map_ns_per_chunk: 0,
        unmap_ns_per_chunk: 0,
    };

    #[test]
    fn divisors_are_not_zero() {
        assert_eq!(Machine::new(SOUND).map(|machine| *machine), Ok(SOUND));
        let refused = |parameters| Machine::new(parameters).unwrap_err();
        let no_chunk = MachineParameters { chunk_bytes: 0, ..SOUND };
        assert_eq!(refused(no_chunk), MachineError::NoChunk);
        let no_upload = MachineParameters { h2d_bytes_per_s: 0, ..SOUND };
        assert_eq!(refused(no_upload), MachineError::NoBandwidth);
        let no_download = MachineParameters { d2h_bytes_per_s: 0, ..SOUND };
        assert_eq!(refused(no_download), MachineError::NoBandwidth);
    }

    #[test]
    fn with_device_bytes_changes_nothing_else() {
        let machine = Machine::new(SOUND).unwrap().with_device_bytes(2).with_host_bytes(3);
        assert_eq!(*machine, MachineParameters { device_bytes: 2, host_bytes: 3, ..SOUND });
    }

    #[test]
    fn transfers_round_up_and_do_not_overflow() {
        assert_eq!(transmission_ns(0, 3), Some(0));
        assert_eq!(transmission_ns(1, 3), Some(333_333_334));
        assert_eq!(transmission_ns(12_000_000_000, 12_000_000_000), Some(1_000_000_000));
        assert_eq!(transmission_ns(u64::MAX, u64::MAX), Some(1_000_000_000));
        assert_eq!(transmission_ns(u64::MAX, 1), None);
        assert_eq!(transmission_ns(1, 0), None);
    }
}
