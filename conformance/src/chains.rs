//! Chains of layers for property tests.

use proptest::collection::vec;
use proptest::prelude::*;
use workloads::OwnedChain;
use workloads::chain::Layer;

/// Random chains of up to `layers` layers. Some layers have no weight, activation or time, and some
/// chains have equal layers. A link is about as fast as the ops.
pub fn chains(layers: usize) -> impl Strategy<Value = OwnedChain> {
    let bytes = |most| prop_oneof![1 => Just(0), 5 => 1..=most];
    let time_ns = || prop_oneof![1 => Just(0), 5 => 1..=2000u64];
    let layer = (time_ns(), time_ns(), bytes(900u64), bytes(200u64)).prop_map(
        |(forward_ns, backward_ns, weight_bytes, activation_bytes)| Layer {
            forward_ns,
            backward_ns,
            weight_bytes,
            activation_bytes,
            optimizer_bytes: 0,
        },
    );
    let equal = (layer.clone(), 1..=layers).prop_map(|(layer, count)| vec![layer; count]);
    let layers = prop_oneof![1 => equal, 4 => vec(layer, 1..=layers)];
    (layers, bytes(200), 100_000_000..=5_000_000_000u64, 0..=4000u64).prop_map(
        |(layers, input_bytes, bandwidth_bytes_per_s, spare_bytes)| {
            let mut chain = OwnedChain {
                name: "chain".to_owned(),
                device_bytes: 0,
                bandwidth_bytes_per_s,
                input_bytes,
                layers,
            };
            chain.device_bytes = smallest_bytes(&chain) + spare_bytes;
            chain
        },
    )
}

/// Chains of three to five layers in little memory. All ops and transfers take a small whole number
/// of microseconds, or no time.
pub fn chains_in_microseconds() -> impl Strategy<Value = OwnedChain> {
    let thousands = |most: u64| (0..=most).prop_map(|count| 1000 * count);
    let layer = (thousands(3), thousands(3), thousands(3), 0..=500u64).prop_map(
        |(forward_ns, backward_ns, weight_bytes, activation_bytes)| Layer {
            forward_ns,
            backward_ns,
            weight_bytes,
            activation_bytes,
            optimizer_bytes: 0,
        },
    );
    let equal = (layer.clone(), 3..=5usize).prop_map(|(layer, count)| vec![layer; count]);
    let layers = prop_oneof![1 => equal, 2 => vec(layer, 3..=5)];
    (layers, 0..=4000u64).prop_map(|(layers, spare_bytes)| {
        let mut chain = OwnedChain {
            name: "chain".to_owned(),
            device_bytes: 0,
            bandwidth_bytes_per_s: 1_000_000_000,
            input_bytes: 0,
            layers,
        };
        chain.device_bytes = smallest_bytes(&chain) + spare_bytes;
        chain
    })
}

/// The least memory, in bytes, that holds the states, the gradient and all activations of every op.
#[must_use]
pub fn smallest_bytes(chain: &OwnedChain) -> u64 {
    let mut alive = chain.input_bytes;
    let need = chain.layers.iter().map(|layer| {
        alive += layer.activation_bytes;
        alive + 2 * layer.weight_bytes + layer.optimizer_bytes
    });
    need.max().unwrap_or(0)
}
