//! Layers whose weights do not fit the device.

use crate::boundary::{Out, call, given, hand_out, sized_array, text};
use crate::error::{Code, Error, Failure};
use crate::machine::Machine;
use crate::plan::Plan;
use spillway::streaming;
use spillway_c_types::sized::Versioned;
use std::ffi::c_char;

/// A layer. No other layer reads its weights.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Layer {
    /// The size of this struct.
    pub struct_bytes: usize,
    /// Its name in messages. Null for its number.
    pub name: *const c_char,
    /// The size of its weights, which must not be zero. They lie at consecutive addresses.
    pub bytes: u64,
    /// The time that it computes on the device.
    pub time_ns: u64,
    /// The time that it computes on the host. 0 if it cannot run there.
    pub host_ns: u64,
    /// The size of the activation that the next layer reads. The first layer follows the last, in
    /// the next iteration. If all layers have 0, the plan moves no activations. If a layer may run
    /// on the host, no layer may have 0.
    pub activation_bytes: u64,
    /// The size of its cache, such as a KV cache, which each iteration reads and writes. 0 if it
    /// has none. The cache stays at one address of the device or, if the layer runs on the host, at
    /// one address of the host.
    pub cache_bytes: u64,
    /// The size of its output, such as the logits of the last layer, which each iteration leaves on
    /// the host. 0 if it has none.
    pub output_bytes: u64,
}

// SAFETY: it is `repr(C)`, begins with its size, and may be all zero.
unsafe impl Versioned for Layer {}

/// Plans which layers stay on the device, when and where other layers are uploaded, and which
/// layers run on the host. The result is an ordinary plan. A layer, its op and its tensor have the
/// same number. A layer's activation is the tensor whose number is larger by `layer_count`. The
/// caches have the next numbers, in the order of the layers that have one, and then the outputs.
/// The plan has addresses, and each tensor lies in one piece. `budget` is as in
/// `SpillwayPlanOptions`. It covers weights, caches, outputs and, if layers have activations, three
/// times the largest activation. A percentage counts all of these except the activations. `"min"`
/// is the size that `spillway_streaming_min_feasible` returns. Addresses are multiples of the
/// machine's `chunk_bytes`, which may be as small as the device's alignment.
///
/// # Safety
/// The pointers are as `spillway.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_streaming_plan(
    layers: *const Layer,
    layer_count: usize,
    machine: *const Machine,
    budget: *const c_char,
    plan: *mut *mut Plan,
    error: *mut Error,
) -> Code {
    let body = || {
        // SAFETY: the caller's promise.
        let (layers, Machine(machine), budget, out) = unsafe {
            (
                owned(layers, layer_count)?,
                given(machine, "machine")?,
                text(budget, "budget")?,
                Out::new(plan, "plan")?,
            )
        };
        let plan = match budget {
            Some(budget) => streaming::plan(&layers, machine, budget),
            None => streaming::plan(&layers, machine, machine.machine.device_bytes),
        };
        hand_out(out, Plan(plan?));
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, body) }
}

/// Returns the least budget with which layers can be streamed, and the first layer that needs it.
/// The budget is the size of the largest layer that cannot run on the host, of the caches and
/// outputs of all such layers, and of activations.
///
/// # Safety
/// The pointers are as `spillway.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_streaming_min_feasible(
    layers: *const Layer,
    layer_count: usize,
    machine: *const Machine,
    budget_bytes: *mut u64,
    layer: *mut usize,
    error: *mut Error,
) -> Code {
    let body = || {
        // SAFETY: the caller's promise.
        let (layers, Machine(machine), bytes, largest) = unsafe {
            (
                owned(layers, layer_count)?,
                given(machine, "machine")?,
                Out::new(budget_bytes, "budget_bytes")?,
                Out::new(layer, "layer")?,
            )
        };
        let least = streaming::min_feasible(&layers, machine);
        let first = least.layers.first().ok_or_else(|| Failure::argument("there is no layer"))?;
        bytes.put(least.bytes);
        largest.put(*first);
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, body) }
}

/// The layers with their names.
///
/// # Safety
/// The condition of [`crate::boundary`].
unsafe fn owned(layers: *const Layer, count: usize) -> Result<Vec<streaming::Layer>, Failure> {
    // SAFETY: the caller's promise.
    let layers = unsafe { sized_array(layers, count, "a layer") }?;
    let owned = layers.iter().map(|layer| {
        // SAFETY: as above.
        let name = unsafe { text(layer.name, "the name of a layer") }?.unwrap_or_default();
        let Layer { bytes, time_ns, host_ns, activation_bytes, cache_bytes, output_bytes, .. } =
            *layer;
        let mut owned = streaming::Layer::new(bytes, time_ns)
            .name(name)
            .activation_bytes(activation_bytes)
            .cache_bytes(cache_bytes)
            .output_bytes(output_bytes);
        owned.host_ns = Some(host_ns).filter(|&host_ns| host_ns > 0);
        Ok(owned)
    });
    owned.collect()
}
