//! Graphs.

use crate::boundary::{self, Out, array, call, hand_out, sized_array, text};
use crate::error::{Code, Error, Failure};
use planner_core::TensorId;
use spillway_c_types::kinds;
use spillway_c_types::sized::Versioned;
use std::ffi::c_char;
use workloads::{OwnedGraph, format};

/// One iteration of a computation that repeats forever.
pub struct Graph(pub(crate) spillway::Graph);

/// A tensor of a graph. Its id is its position.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TensorDescription {
    /// The size of this struct.
    pub struct_bytes: usize,
    /// Its name in messages. Null for its number.
    pub name: *const c_char,
    /// Its size, which must not be zero.
    pub bytes: u64,
    /// `SPILLWAY_STATE`, `SPILLWAY_INPUT`, `SPILLWAY_TEMPORARY` or `SPILLWAY_OUTPUT`.
    pub kind: u32,
}

/// An op of a graph. Its id is its position, and the ops are in one legal order.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct OpDescription {
    /// The size of this struct.
    pub struct_bytes: usize,
    /// Its name in messages. Null for its number.
    pub name: *const c_char,
    /// The time that it runs.
    pub time_ns: u64,
    /// The device memory that it needs only while it runs.
    pub workspace_bytes: u64,
    /// The tensors that it reads.
    pub reads: *const u32,
    /// The number of tensors that it reads.
    pub read_count: usize,
    /// The tensors that it writes. A tensor that it also reads is updated in place.
    pub writes: *const u32,
    /// The number of tensors that it writes.
    pub write_count: usize,
    /// Whether plans may launch it again in the same iteration, on the values that it read the
    /// first time: 1 or 0. Such a repeat writes the same bytes into its temporaries. It neither
    /// reads nor writes the states, inputs and outputs that the op writes.
    pub repeatable: u8,
    /// The time that it runs on the host, if plans may run it there. 0 if it runs only on the
    /// device. An op that writes an input must have 0.
    pub host_ns: u64,
    /// Whether it exchanges data with other processes: 1 or 0. Such a collective runs on
    /// `SPILLWAY_NETWORK`, beside the other ops, and must have 0 in `host_ns`.
    pub collective: u8,
}

// SAFETY: the structs are `repr(C)`, begin with their size, and all their bytes may be zero.
unsafe impl Versioned for TensorDescription {}
// SAFETY: as above.
unsafe impl Versioned for OpDescription {}

/// Makes a graph of `tensor_count` tensors and `op_count` ops. `name` may be null.
///
/// # Safety
/// The pointers are as `spillway.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_graph_new(
    name: *const c_char,
    tensors: *const TensorDescription,
    tensor_count: usize,
    ops: *const OpDescription,
    op_count: usize,
    graph: *mut *mut Graph,
    error: *mut Error,
) -> Code {
    let body = || {
        // SAFETY: the caller's promise.
        let (name, tensors, ops, out) = unsafe {
            (
                text(name, "name")?,
                sized_array(tensors, tensor_count, "a tensor")?,
                sized_array(ops, op_count, "an op")?,
                Out::new(graph, "graph")?,
            )
        };
        let mut owned = OwnedGraph::new(name.unwrap_or("graph"));
        for (at, tensor) in tensors.iter().enumerate() {
            // SAFETY: as above.
            unsafe { push_tensor(&mut owned, at, tensor) }?;
        }
        for (at, op) in ops.iter().enumerate() {
            // SAFETY: as above.
            unsafe { push_op(&mut owned, at, op) }?;
        }
        hand_out(out, Graph(spillway::Graph::new(owned)?));
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, body) }
}

/// # Safety
/// The condition of [`boundary`].
unsafe fn push_tensor(
    owned: &mut OwnedGraph,
    at: usize,
    tensor: &TensorDescription,
) -> Result<(), Failure> {
    let number = tensor.kind;
    let no_kind = || Failure::argument(format!("tensor {at} has kind {number}: no such kind"));
    let kind = kinds::kind(number).ok_or_else(no_kind)?;
    // SAFETY: the caller's promise.
    let name = unsafe { text(tensor.name, "the name of a tensor") }?;
    owned.push_tensor(name.map_or_else(|| at.to_string(), str::to_owned), tensor.bytes, kind);
    Ok(())
}

/// # Safety
/// The condition of [`boundary`].
unsafe fn push_op(owned: &mut OwnedGraph, at: usize, op: &OpDescription) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    let (name, reads, writes) = unsafe {
        (
            text(op.name, "the name of an op")?,
            array(op.reads, op.read_count, "reads")?,
            array(op.writes, op.write_count, "writes")?,
        )
    };
    let ids = |ids: &[u32]| ids.iter().copied().map(TensorId).collect::<Vec<_>>();
    let name = name.map_or_else(|| at.to_string(), str::to_owned);
    let id = owned.push_op(name, op.time_ns, op.workspace_bytes, &ids(reads), &ids(writes));
    if op.repeatable != 0 {
        owned.set_repeatable(id);
    }
    if op.host_ns != 0 {
        owned.set_host_ns(id, op.host_ns);
    }
    if op.collective != 0 {
        owned.set_collective(id);
    }
    Ok(())
}

/// Reads a graph from the bytes of a graph file (`spillway.graph.v1`), plain or compressed by gzip.
///
/// # Safety
/// The pointers are as `spillway.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_graph_from_json(
    json: *const u8,
    json_bytes: usize,
    graph: *mut *mut Graph,
    error: *mut Error,
) -> Code {
    let body = || {
        // SAFETY: the caller's promise.
        let (json, out) = unsafe { (array(json, json_bytes, "json")?, Out::new(graph, "graph")?) };
        let owned = format::read_graph(json).map_err(spillway::Error::from)?;
        hand_out(out, Graph(spillway::Graph::new(owned)?));
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, body) }
}

/// Frees a graph. Null does nothing.
///
/// # Safety
/// The pointer is as `spillway.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_graph_free(graph: *mut Graph) {
    // SAFETY: the caller's promise.
    unsafe { boundary::free(graph) };
}
