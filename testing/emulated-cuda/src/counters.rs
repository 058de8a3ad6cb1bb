//! Counters of driver calls.

/// What the driver has been asked for, by the whole process.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Calls that reserve or free addresses, create or release memory, map, unmap, or set
    /// access.
    pub vmm_calls: u64,
    /// Calls of `cuMemMap` among them.
    pub maps: u64,
    /// Calls of `cuMemSetAccess` among them.
    pub set_accesses: u64,
    /// Calls of `cuMemUnmap` among them.
    pub unmaps: u64,
    /// Events created.
    pub events: u64,
    /// Launches of graphs.
    pub graph_launches: u64,
    /// Kernels, copies and fills that were enqueued or captured.
    pub enqueued: u64,
    /// Objects that are alive now.
    pub live: u64,
    /// Ranges that were unmapped, or host memory that was freed, while work used them.
    pub freed_in_use: u64,
}
