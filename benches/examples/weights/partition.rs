//! Chains made of numbers (theorem 1): which strategies find the schedule without idle time.

use super::{Done, PUBLISHED, WHOLE, cycle_ns, period_ns};
use planner_core::planner::{Auto, Order, Strategy};
use workloads::OwnedChain;

/// Numbers to divide into triples of equal sums.
pub(super) struct Instance {
    pub(super) numbers: &'static [u64],
    /// Whether a division exists, by a check of all triples with the first number by hand.
    pub(super) is_positive: bool,
}

/// Two and three triples with the sum 20, in which no number is above 10. First the triples are in
/// order, then the numbers are in another order, then no division exists.
pub(super) const INSTANCES: [Instance; 6] = [
    Instance { numbers: &[6, 6, 8, 6, 7, 7], is_positive: true },
    Instance { numbers: &[6, 6, 6, 7, 7, 8], is_positive: true },
    Instance { numbers: &[6, 6, 6, 6, 7, 9], is_positive: false },
    Instance { numbers: &[6, 6, 8, 6, 7, 7, 6, 6, 8], is_positive: true },
    Instance { numbers: &[6, 6, 6, 6, 6, 7, 7, 8, 8], is_positive: true },
    Instance { numbers: &[6, 6, 6, 6, 6, 6, 6, 9, 9], is_positive: false },
];

/// Idle time over compute of the published cycle, and of plans with whole weights and with parts.
pub(super) fn idle(instance: &Instance) -> Done<[f64; 3]> {
    let chain = OwnedChain::three_partition(instance.numbers).ok_or("numbers without a chain")?;
    let given = Strategy::Auto(Auto::new().with_order(Order::Given));
    let (compute_ns, whole_ns, _) = period_ns(&chain, WHOLE, 1)?;
    let parts_ns = period_ns(&chain, given, 1)?.1;
    let periods = [cycle_ns(&chain, PUBLISHED)?, whole_ns, parts_ns];
    Ok(periods.map(|ns| (ns - compute_ns) as f64 / compute_ns as f64))
}
