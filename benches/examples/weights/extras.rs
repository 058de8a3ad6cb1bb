//! What the optimizer's states add, and what it gains to move activations as well.

use super::{Done, WHOLE, period_ns};
use planner_core::planner::{Auto, PlanningError, Strategy, Weights};
use workloads::OwnedChain;
use workloads::chain::Layer;

const WITH_ACTIVATIONS: Strategy =
    Strategy::Weights(Weights { published: false, activations: true });

/// Optimizers, and how often the size of a weight they keep.
const OPTIMIZERS: [(&str, u64); 3] = [("none", 0), ("momentum", 1), ("Adam", 2)];
/// GB (of 1000 MiB) a second.
const BANDWIDTHS: [u64; 2] = [12, 4];
/// From what one op needs with Adam on.
const MEMORY_BYTES: [u64; 4] = [2_700_000_000, 4_600_000_000, 8_000_000_000, 16_000_000_000];

/// A chain with an optimizer, on a link and in some memory.
pub(super) struct Extra {
    pub(super) optimizer: &'static str,
    pub(super) gigabytes_per_s: u64,
    pub(super) device_bytes: u64,
    /// Periods over compute: of whole weights and states, with activations, and of parts; none
    /// where the memory is too small.
    pub(super) over: [Option<f64>; 3],
}

/// All combinations.
pub(super) fn extras(chain: &OwnedChain) -> Done<Vec<Extra>> {
    let mut extras = Vec::new();
    for (optimizer, times) in OPTIMIZERS {
        for gigabytes_per_s in BANDWIDTHS {
            for device_bytes in MEMORY_BYTES {
                let with_optimizer =
                    |layer: &Layer| Layer { optimizer_bytes: times * layer.weight_bytes, ..*layer };
                let chain = OwnedChain {
                    device_bytes,
                    bandwidth_bytes_per_s: (gigabytes_per_s * 1000) << 20,
                    layers: chain.layers.iter().map(with_optimizer).collect(),
                    ..chain.clone()
                };
                let strategies = [WHOLE, WITH_ACTIVATIONS, Strategy::Auto(Auto::default())];
                let [whole, activations, parts] = strategies.map(|s| over(&chain, s));
                let over = [whole?, activations?, parts?];
                extras.push(Extra { optimizer, gigabytes_per_s, device_bytes, over });
            }
        }
    }
    Ok(extras)
}

fn over(chain: &OwnedChain, strategy: Strategy) -> Done<Option<f64>> {
    match period_ns(chain, strategy) {
        Ok((sum_ns, period_ns, _)) => Ok(Some(period_ns as f64 / sum_ns as f64)),
        Err(error) => match error.downcast_ref() {
            Some(PlanningError::Infeasible { .. }) => Ok(None),
            _ => Err(error),
        },
    }
}
