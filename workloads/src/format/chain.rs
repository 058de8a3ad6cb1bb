//! `spillway.chain.v1`.

use super::error::FormatError;
use super::json::{Document, Object, parse};
use super::render::render;
use crate::chain::{Layer, OwnedChain};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

#[derive(Serialize, Deserialize)]
struct ChainRecord<'a> {
    format: Cow<'a, str>,
    name: Cow<'a, str>,
    device_bytes: u64,
    bandwidth_bytes_per_s: u64,
    input_bytes: u64,
    layers: Vec<Object<LayerRecord>>,
}

#[derive(Serialize, Deserialize)]
struct LayerRecord {
    forward_ns: u64,
    backward_ns: u64,
    weight_bytes: u64,
    activation_bytes: u64,
    /// An extension of the published chains, which have no such states.
    #[serde(default, skip_serializing_if = "is_zero")]
    optimizer_bytes: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
const fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

/// Reads a chain, gzip or plain, and checks it.
///
/// # Errors
/// The bytes are not a chain file, or the graph or the machine of the chain is not valid.
pub fn read_chain(bytes: &[u8]) -> Result<OwnedChain, FormatError> {
    let record: ChainRecord<'static> = parse(bytes, Document::Chain)?;
    let layers = record.layers.into_iter().map(|Object(layer)| Layer {
        forward_ns: layer.forward_ns,
        backward_ns: layer.backward_ns,
        weight_bytes: layer.weight_bytes,
        activation_bytes: layer.activation_bytes,
        optimizer_bytes: layer.optimizer_bytes,
    });
    let chain = OwnedChain {
        name: record.name.into_owned(),
        device_bytes: record.device_bytes,
        bandwidth_bytes_per_s: record.bandwidth_bytes_per_s,
        input_bytes: record.input_bytes,
        layers: layers.collect(),
    };
    if chain.layers.is_empty() {
        return Err(FormatError::malformed("layers: the chain has none"));
    }
    if chain.bandwidth_bytes_per_s == 0 {
        return Err(FormatError::malformed("bandwidth_bytes_per_s is zero"));
    }
    let checked = chain.graph().graph().map(|_| ());
    checked.map_err(|error| FormatError::malformed(error.to_string()))?;
    Ok(chain)
}

/// Writes a chain as JSON.
#[must_use]
pub fn write_chain(chain: &OwnedChain) -> Vec<u8> {
    let layers = chain.layers.iter().map(|layer| {
        Object(LayerRecord {
            forward_ns: layer.forward_ns,
            backward_ns: layer.backward_ns,
            weight_bytes: layer.weight_bytes,
            activation_bytes: layer.activation_bytes,
            optimizer_bytes: layer.optimizer_bytes,
        })
    });
    render(&ChainRecord {
        format: Document::Chain.format().into(),
        name: chain.name.as_str().into(),
        device_bytes: chain.device_bytes,
        bandwidth_bytes_per_s: chain.bandwidth_bytes_per_s,
        input_bytes: chain.input_bytes,
        layers: layers.collect(),
    })
}
