//! A stand-in for the CUDA driver on Linux, for tests on machines without a GPU.
//!
//! The shared library of this crate exports the functions of the driver that `backend-cuda`
//! calls. Device memory is a file in memory, an address range is reserved and mapped with
//! `mmap`, a stream is a thread with a queue, an event a marker in a queue, and a kernel is
//! interpreted from its PTX, whoever wrote it. So it shows whether the backend's calls are right
//! and what kernels compute. It does not show what a memory model weaker than the host's allows,
//! or any costs but the costs that variables set.
//!
//! It is stricter than a real driver: calls that one may tolerate are errors. A copy takes memory of
//! `alloc_pinned` only, and a stream is from `new_stream`. The first launch of a kernel, or
//! `cuFuncLoad`, loads it: that waits until the device has no work, takes memory, and is refused in
//! a capture. The context ends at invalid accesses, also if memory is unmapped or freed under work,
//! or if a barrier or a shuffle lacks a participant. Memory starts with garbage. Work is delayed at
//! random by seed, so that a missing wait shows as wrong bytes, and calls can be made to fail.
//!
//! It interprets all PTX that is loaded with `cuModuleLoadData`, and refuses function calls, half
//! precision, matrix instructions, textures and asynchronous copies with `CUDA_ERROR_INVALID_PTX`,
//! and prints the reason. It does not show
//!
//! - whether a real driver accepts the calls, and a device's own compiler the PTX;
//! - the last bits of approximate instructions (`ex2.approx`, `div.full` …), which it computes more
//!   exactly;
//! - races and missing fences: warps and blocks run one after the other. A block that waits for
//!   another waits forever;
//! - how copies and kernels overlap.
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
