//! Measures the cost of optimizer states, and the gain from moving or recomputing activations.

use super::{Done, PARTS, WHOLE, WITH_REPEATS, period_ns};
use planner_core::planner::{PlanningError, Request, Strategy, Weights};
use spillway::planning;
use workloads::OwnedChain;
use workloads::chain::Layer;

const WITH_ACTIVATIONS: Strategy = Strategy::Weights(Weights::new().with_activations(true));

/// Optimizers, with their states per weight in multiples of its size.
const OPTIMIZERS: [(&str, u64); 3] = [("none", 0), ("momentum", 1), ("Adam", 2)];
/// GB (of 1000 MiB) per second.
const BANDWIDTHS: [u64; 2] = [12, 4];
/// Memory sizes. The smallest is the need of one op with Adam.
const MEMORY_BYTES: [u64; 4] = [2_700_000_000, 4_600_000_000, 8_000_000_000, 16_000_000_000];

/// A chain with an optimizer, on a link and in some memory.
pub(super) struct Extra {
    pub(super) optimizer: &'static str,
    pub(super) gigabytes_per_s: u64,
    pub(super) device_bytes: u64,
    /// The periods over compute with whole weights and states, with activations, with parts, and
    /// with repeats. `None` if the memory is too small.
    pub(super) over: [Option<f64>; 4],
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
                let over = all_over(&chain, [WHOLE, WITH_ACTIVATIONS, PARTS, WITH_REPEATS])?;
                extras.push(Extra { optimizer, gigabytes_per_s, device_bytes, over });
            }
        }
    }
    Ok(extras)
}

/// A chain in a fraction of its in-core memory.
pub(super) struct Repeated {
    pub(super) name: String,
    pub(super) gigabytes_per_s: u64,
    pub(super) device_bytes: u64,
    /// The periods over compute of the strategies of [`REPEATED`]. `None` if memory is too small.
    pub(super) over: [Option<f64>; REPEATED.len()],
}

const REPEATED: [Strategy; 5] =
    [WITH_ACTIVATIONS, Strategy::Checkpoint, Strategy::CheckpointOffload, PARTS, WITH_REPEATS];
/// The share of the in-core memory.
const PERCENT: u64 = 15;

/// All chains on all links.
pub(super) fn repeated(chains: &[OwnedChain]) -> Done<Vec<Repeated>> {
    let mut repeated = Vec::new();
    for gigabytes_per_s in BANDWIDTHS {
        for chain in chains {
            let device_bytes = in_core_bytes(chain)? / 100 * PERCENT;
            let bandwidth_bytes_per_s = (gigabytes_per_s * 1000) << 20;
            let chain = OwnedChain { device_bytes, bandwidth_bytes_per_s, ..chain.clone() };
            let (over, name) = (all_over(&chain, REPEATED)?, chain.name);
            repeated.push(Repeated { name, gigabytes_per_s, device_bytes, over });
        }
    }
    Ok(repeated)
}

fn in_core_bytes(chain: &OwnedChain) -> Done<u64> {
    let whole = OwnedChain { device_bytes: u64::MAX, ..chain.clone() };
    let (owned, machine) = (whole.graph(), whole.machine()?.machine);
    let graph = owned.graph()?;
    let request = Request { graph: &graph, machine: &machine, budget_bytes: u64::MAX };
    Ok(planning::min_feasible(&request, Strategy::InCore)?.0)
}

fn all_over<const N: usize>(
    chain: &OwnedChain,
    strategies: [Strategy; N],
) -> Done<[Option<f64>; N]> {
    let mut periods = [None; N];
    for (period, strategy) in periods.iter_mut().zip(strategies) {
        *period = over(chain, strategy)?;
    }
    Ok(periods)
}

fn over(chain: &OwnedChain, strategy: Strategy) -> Done<Option<f64>> {
    match period_ns(chain, strategy, 1) {
        Ok((sum_ns, period_ns, _)) => Ok(Some(period_ns as f64 / sum_ns as f64)),
        Err(error) => match error.downcast_ref() {
            Some(PlanningError::Infeasible { .. }) => Ok(None),
            _ => Err(error),
        },
    }
}
