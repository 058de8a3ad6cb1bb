//! Certificates of a bound with random prices, and whether they hold for a plan.

use planner_core::bounds::BoundOrder;
use planner_core::bounds::priced::{ONE, Price, intervals};
use planner_core::plan::Step;
use planner_core::{Machine, Op, OpId};
use proptest::collection::vec;
use proptest::prelude::*;
use workloads::{OwnedCertificate, OwnedPlan};

/// Random prices of some intervals. Each has the prices of device and host memory in quarters of the
/// price of an upload, and the shares of the two links.
pub fn prices() -> impl Strategy<Value = Vec<[u64; 4]>> {
    let share = || prop_oneof![Just(0), Just(ONE), 0..=ONE];
    let host = prop_oneof![2 => Just(0), 1 => 0..=8u64];
    let price = (0..=8u64, host, share(), share());
    vec(price.prop_map(|(memory, host, up, down)| [memory, host, up, down]), 1..12)
}

/// The same certificate with other prices, which the intervals take in turn, and a bound of 0 ns.
/// In the given order, its marks are ops on compute at even distances.
#[must_use]
pub fn with_prices(
    of: &OwnedCertificate,
    machine: &Machine,
    ops: &[Op],
    prices: &[[u64; 4]],
) -> OwnedCertificate {
    let mut certificate = of.clone();
    if certificate.order == BoundOrder::Given {
        let step = (ops.len() / prices.len()).max(1);
        let on_compute = ops.iter().zip((0..).map(OpId)).filter(|(op, _)| !op.collective);
        certificate.marks = on_compute.map(|(_, op)| op).step_by(step).collect();
    }
    let byte = ONE.saturating_mul(1_000_000_000) / machine.h2d_bytes_per_s;
    let price = |at: usize| {
        let [memory, host, upload, download] = prices[at % prices.len()];
        let [memory, host] = [memory, host].map(|quarters| quarters.saturating_mul(byte) / 4);
        Price { memory, host, upload, download: download.min(ONE - upload) }
    };
    certificate.intervals = (0..intervals(certificate.marks.len())).map(price).collect();
    certificate.bound_ns = 0;
    certificate
}

/// Whether a certificate holds for a plan.
#[must_use]
pub fn includes(certificate: &OwnedCertificate, plan: &OwnedPlan) -> bool {
    let launched = || plan.steps.iter().filter_map(Step::launched);
    let first = launched().filter(|launched| !launched.is_repeat);
    let in_order = first.map(|launched| launched.op.0).is_sorted();
    let once = !launched().any(|launched| launched.is_repeat);
    plan.budget_bytes <= certificate.budget_bytes
        && (in_order || certificate.order == BoundOrder::Any)
        && (once || certificate.repeats)
        && !plan.steps.iter().any(|step| matches!(step, Step::Host(_)))
}
