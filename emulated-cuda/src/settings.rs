//! The settings of the process, from environment variables.

use crate::link::Link;

/// How the device and its faults are set up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) memory_bytes: u64,
    /// Host memory that can be pinned.
    pub(crate) pinned_bytes: u64,
    pub(crate) granularity_bytes: u64,
    pub(crate) h2d: Link,
    pub(crate) d2h: Link,
    /// Delays the streams of threads that set no seed of their own; 0 for no delays.
    pub(crate) seed: u64,
}

impl Settings {
    /// Reads the variables that the crate's documentation lists.
    pub(crate) fn from_environment() -> Self {
        let latency_ns = variable("EMULATED_CUDA_COPY_LATENCY_NS", 0);
        let link = |speed| Link { bytes_per_s: variable(speed, 0), latency_ns };
        Self {
            memory_bytes: variable("EMULATED_CUDA_MEMORY", 1 << 30),
            pinned_bytes: variable("EMULATED_CUDA_HOST_MEMORY", 4 << 30),
            granularity_bytes: variable("EMULATED_CUDA_GRANULARITY", 4 << 10),
            h2d: link("EMULATED_CUDA_H2D_BYTES_PER_S"),
            d2h: link("EMULATED_CUDA_D2H_BYTES_PER_S"),
            seed: variable("EMULATED_CUDA_SEED", 0),
        }
    }
}

/// The number that a variable holds. Falls back to the default if it holds none.
fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}
