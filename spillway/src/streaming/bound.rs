//! A lower bound on the period, for layers on the device and on the host.

use super::Layer;
use planner_core::Machine;

const NS_PER_S: i128 = 1_000_000_000;

/// The effect of a move of one layer to the host.
struct Move {
    /// The additional time of the layer on the host.
    more_ns: u64,
    bytes: u64,
}

/// Returns a lower bound on the period of all plans.
///
/// Layers run one after the other, on the device or on the host, so a period is at least the sum of their
/// times. The weights and caches of layers on the device that exceed the budget cross the link in each
/// period, so a period is also at least the time of these copies. The bound is the larger of these two times,
/// minimized over the layers on the host, where the host may also take parts of layers. It takes the layers
/// with the most bytes for their time first. O(layers log layers).
pub(super) fn period_ns(layers: &[Layer], machine: &Machine, budget_bytes: u64) -> u64 {
    let (mut sum_ns, mut left_bytes) = (0, -i128::from(budget_bytes));
    let mut moves = Vec::new();
    for &Layer { bytes, time_ns, host_ns, cache_bytes, .. } in layers {
        // The sum of all bytes fits in 64 bits, since the graph is checked.
        let bytes = bytes + cache_bytes;
        match host_ns {
            Some(host_ns) if host_ns <= time_ns => sum_ns += i128::from(host_ns),
            host_ns => {
                sum_ns += i128::from(time_ns);
                left_bytes += i128::from(bytes);
                moves.extend(host_ns.map(|host_ns| Move { more_ns: host_ns - time_ns, bytes }));
            }
        }
    }
    let product = |one: u64, other: u64| u128::from(one) * u128::from(other);
    moves.sort_by(|one, other| {
        product(one.more_ns, other.bytes).cmp(&product(other.more_ns, one.bytes))
    });
    let link = i128::from(machine.h2d_bytes_per_s);
    for Move { more_ns, bytes } in moves {
        let (more_ns, bytes) = (i128::from(more_ns), i128::from(bytes));
        // The excess of the link's time over the layers' time, multiplied by the link's speed.
        let beyond = (left_bytes * NS_PER_S).saturating_sub(sum_ns.saturating_mul(link));
        if beyond <= 0 {
            break;
        }
        let change = more_ns.checked_mul(link).and_then(|ns| ns.checked_add(bytes * NS_PER_S));
        if change.is_some_and(|change| change <= beyond) {
            (sum_ns, left_bytes) = (sum_ns + more_ns, left_bytes - bytes);
            continue;
        }
        // A part of the layer balances both times. If its time exceeds 128 bits, the bound leaves out this
        // part and is smaller.
        let part_ns = change.and_then(|change| Some(more_ns.checked_mul(beyond)? / change));
        return u64::try_from(sum_ns + part_ns.unwrap_or(0)).unwrap_or(u64::MAX);
    }
    let link_ns = left_bytes.max(0) * NS_PER_S / link.max(1);
    u64::try_from(sum_ns.max(link_ns)).unwrap_or(u64::MAX)
}
