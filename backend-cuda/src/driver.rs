//! The driver: its objects that cudarc has no safe types for, each freed when it is dropped.
//!
//! All unsafe code of this crate is here. Each object keeps its context alive. What the driver
//! leaves to its callers, the rest of this crate sees to: ranges lie inside what is mapped or
//! pinned, and nothing is dropped while enqueued work uses it.
#![allow(unsafe_code, reason = "the driver's functions are C")]

mod host;
mod library;
mod memory;
mod module;

pub(crate) use host::{Pinned, download, upload};
pub(crate) use library::{load, version};
pub(crate) use memory::{
    Addresses, Physical, Working, fill, granularity_bytes, map, set_access, unmap,
};
pub(crate) use module::{Argument, Function, Module, launch};
