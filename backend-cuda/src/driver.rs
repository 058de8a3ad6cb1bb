//! The driver: its functions, and its objects, which are freed when they are dropped.
//!
//! All unsafe code of this crate is here. Contexts live as long as the process. The rest of this
//! crate keeps the rules that the driver leaves to its callers: ranges lie inside mapped or pinned
//! memory, and nothing is dropped while enqueued work uses it.
#![allow(unsafe_code, reason = "the driver's functions are C")]

mod api;
mod context;
mod host;
mod host_op;
mod lent;
mod library;
mod memory;
mod module;
mod stream;

pub(crate) use context::{
    Context, attribute, context, device_count, device_name, error_name, memory_bytes, version,
};
pub(crate) use host::{Pinned, download, upload};
pub(crate) use host_op::{HandedTask, HostEnd, HostTask, HostThread, capture};
pub(crate) use library::load;
pub(crate) use memory::{
    Addresses, Physical, Working, fill, granularity_bytes, map, set_access, unmap,
};
pub(crate) use module::{Argument, Function, Module, launch};
pub(crate) use stream::{Event, Executable, Stream, begin_capture};
