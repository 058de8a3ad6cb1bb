//! The settings of the process, from environment variables.

use crate::link::Speed;

/// How the device and its faults are set up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) memory_bytes: u64,
    /// Host memory that can be pinned.
    pub(crate) pinned_bytes: u64,
    pub(crate) granularity_bytes: u64,
    pub(crate) h2d: Speed,
    pub(crate) d2h: Speed,
    /// Work of a stream that has not ended, at most; then the caller blocks.
    pub(crate) queue_depth: u64,
    /// Delays the streams of threads that set no seed of their own; 0 for no delays.
    pub(crate) seed: u64,
}

impl Settings {
    /// Reads the variables that the crate's documentation lists.
    pub(crate) fn from_environment() -> Self {
        let latency_ns = variable("EMULATED_CUDA_COPY_LATENCY_NS", 0);
        let speed = |alone, both| Speed {
            bytes_per_s: variable(alone, 0),
            both_bytes_per_s: variable(both, 0),
            latency_ns,
        };
        Self {
            memory_bytes: variable("EMULATED_CUDA_MEMORY", 1 << 30),
            pinned_bytes: variable("EMULATED_CUDA_HOST_MEMORY", 8 << 30),
            granularity_bytes: variable("EMULATED_CUDA_GRANULARITY", 2 << 20),
            h2d: speed("EMULATED_CUDA_H2D_BYTES_PER_S", "EMULATED_CUDA_H2D_BOTH_BYTES_PER_S"),
            d2h: speed("EMULATED_CUDA_D2H_BYTES_PER_S", "EMULATED_CUDA_D2H_BOTH_BYTES_PER_S"),
            queue_depth: variable("EMULATED_CUDA_QUEUE_DEPTH", 1024),
            seed: variable("EMULATED_CUDA_SEED", 0),
        }
    }
}

/// The number that a variable holds. Falls back to the default if it holds none.
pub(crate) fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_as_large_as_on_devices_unless_a_variable_is_set() {
        assert_eq!(variable("EMULATED_CUDA_NO_SUCH_VARIABLE", 3), 3);
        if std::env::var_os("EMULATED_CUDA_GRANULARITY").is_none() {
            assert_eq!(Settings::from_environment().granularity_bytes, 2 << 20);
        }
    }
}
