//! A stand-in for the CUDA driver on Linux, for tests on machines without a GPU.
//!
//! The shared library of this crate exports the functions of the driver that `backend-cuda`
//! calls. Device memory is a file in memory, an address range is reserved and mapped with
//! `mmap`, a stream is a thread with a queue, an event a marker in a queue, and a kernel is
//! interpreted from its PTX, whoever wrote it. So it shows whether the backend's calls are right
//! and what kernels compute. It does not show what a memory model weaker than the host's allows,
//! or any costs but the costs that variables set.
//!
//! It is stricter than a real driver: calls that one may tolerate are errors, a copy takes
//! pinned memory only, and an access to an address that is not mapped makes every later call
//! fail. It delays work at random by seed, so that a missing wait shows as wrong bytes, and lets
//! calls fail.
//!
//! It is never used by accident: its file is not named like a driver. A program opens it by its
//! path ([`Emulated::open`], or the option of `backend-cuda`) before the first call of a driver.
//!
//! `api` exports the functions and is the only part that knows the driver of the process. It
//! passes the driver and the calling thread down: `driver` finds objects by their handles,
//! `stream` has a `queue` and a thread with a `worker`, which runs a `task` on the `device`. Streams
//! share hardware queues (`connection`).
//!
//! | variable | what it sets for the whole process; its default |
//! |---|---|
//! | `EMULATED_CUDA_MEMORY` | bytes of device memory; 1 GiB |
//! | `EMULATED_CUDA_HOST_MEMORY` | bytes of host memory that can be pinned; 8 GiB |
//! | `EMULATED_CUDA_CONTEXT_MEMORY` | bytes of device memory that the context takes; 4 MiB. Real ones take some hundred |
//! | `EMULATED_CUDA_HOST_PAGE` | bytes of pinned memory for each entry, of 8 bytes, in the device's tables; 4 KiB |
//! | `CUDA_MODULE_LOADING` | `EAGER`: a module loads all its kernels; else a kernel is loaded at its first launch, which waits for the device and is refused in a capture |
//! | `EMULATED_CUDA_GRANULARITY` | bytes of the smallest mapping; 2 MiB, as devices have. Tests of small work set 4 KiB |
//! | `EMULATED_CUDA_H2D_BYTES_PER_S`, `EMULATED_CUDA_D2H_BYTES_PER_S` | speed of copies to and from the device; as fast as the host copies |
//! | `EMULATED_CUDA_H2D_BOTH_BYTES_PER_S`, `EMULATED_CUDA_D2H_BOTH_BYTES_PER_S` | their speed while both directions are in use; the same |
//! | `EMULATED_CUDA_COPY_LATENCY_NS` | what each copy takes besides; nothing |
//! | `EMULATED_CUDA_LAUNCH_NS`, `EMULATED_CUDA_WAIT_NS` | the device's time for each launch of a kernel, and for each wait of a stream for an event or a value, in graphs too; nothing |
//! | `EMULATED_CUDA_QUEUE_DEPTH` | work of a stream that has not ended, at most; then the caller blocks; 1024 |
//! | `CUDA_DEVICE_MAX_CONNECTIONS` | hardware queues, which streams share in turn; 8. With 1, work begins in the order in which it was enqueued |
//! | `EMULATED_CUDA_TIMER_TICK_NS` | nanoseconds between two ticks of a kernel's `%globaltimer`; 1. A device may tick once a microsecond |
//! | `EMULATED_CUDA_SEED` | delays of threads that set no seed of their own; none |
#![cfg(target_os = "linux")]

mod api;
mod caller;
mod capture;
mod clock;
mod connection;
mod counters;
mod device;
mod driver;
mod emulated;
mod event;
mod faults;
mod file;
mod graph;
mod link;
mod loading;
mod outcome;
mod physical;
mod pinned;
mod pool;
mod ptx;
mod queue;
mod registry;
mod settings;
mod space;
mod stream;
mod task;
mod usage;
mod variables;
mod worker;

pub use counters::Counters;
pub use emulated::Emulated;
pub use variables::Variable;
