//! Certificates of a bound with any prices, which prove no more than a valid plan takes.

use crate::fault::{Fault, returns};
use crate::{judge, plans};
use conformance::plans::Case;
use planner_core::bounds::Order;
use planner_core::bounds::priced::{ONE, Price};
use planner_core::plan::Step;
use planner_core::{Machine, OpId};
use proptest::bool::weighted;
use proptest::collection::vec;
use proptest::prelude::*;
use spillway::certificate;
use workloads::{OwnedCertificate, OwnedMachine};

/// What a certificate is drawn from.
#[derive(Clone, Debug)]
pub struct Drawn {
    is_any_order: bool,
    repeats: bool,
    /// Of each interval, memory in quarters of the price of an upload, and the shares of the links.
    prices: Vec<[u64; 3]>,
}

/// Prices of a few intervals.
pub fn drawn() -> impl Strategy<Value = Drawn> {
    let share = || prop_oneof![Just(0), Just(ONE), 0..=ONE];
    let prices = vec((0..=8u64, share(), share()), 1..8);
    (weighted(0.7), weighted(0.8), prices).prop_map(|(is_any_order, repeats, prices)| Drawn {
        is_any_order,
        repeats,
        prices: prices.into_iter().map(|(memory, up, down)| [memory, up, down]).collect(),
    })
}

fn named(machine: &Machine) -> OwnedMachine {
    plans::named("fuzzed", *machine)
}

/// A certificate for a case, which claims nothing. In the given order, ops at even distances are marks.
#[must_use]
pub fn certificate(case: &Case, drawn: &Drawn) -> OwnedCertificate {
    let Drawn { is_any_order, repeats, ref prices } = *drawn;
    let (order, ops) = match is_any_order {
        true => (Order::Any, 0),
        false => (Order::Given, u32::try_from(case.graph.ops.len()).unwrap_or(u32::MAX)),
    };
    let step = (ops as usize / prices.len()).max(1);
    let marks: Vec<_> = (0..ops).step_by(step).map(OpId).collect();
    let byte = ONE.saturating_mul(1_000_000_000) / case.machine.h2d_bytes_per_s;
    let price = |at: usize| {
        let [memory, upload, download] = prices[at % prices.len()];
        let memory = memory.saturating_mul(byte / 4);
        Price { memory, upload, download: download.min(ONE - upload) }
    };
    OwnedCertificate {
        graph: case.graph.name.clone(),
        machine: named(&case.machine).name,
        budget_bytes: case.plan.budget_bytes,
        order,
        repeats,
        bound_ns: 0,
        intervals: (0..=marks.len()).map(price).collect(),
        marks,
    }
}

/// Adds a certificate up.
///
/// # Errors
/// A panic; a valid plan of the case that is shorter than the certificate allows.
pub fn check(case: &Case, certificate: &OwnedCertificate) -> Result<(), Fault> {
    let machine = named(&case.machine);
    let proved = returns("certificate::prove", || {
        certificate::prove(&case.graph, &machine, certificate).ok()
    })?;
    let Some(bound_ns) = proved else { return Ok(()) };
    let Some(plan) = judge::proved(case, &machine) else { return Ok(()) };
    let period_ns = plan.figures().period_ns;
    if is_for(certificate, case) && period_ns < bound_ns {
        return Err(Fault::new(
            "certificate",
            format!("a plan takes {period_ns} ns, and a certificate proves {bound_ns} ns"),
        ));
    }
    Ok(())
}

/// Whether a certificate says something about the plan of a case.
fn is_for(certificate: &OwnedCertificate, case: &Case) -> bool {
    let steps = &case.plan.steps;
    let launched = || steps.iter().filter_map(Step::launched);
    let first = launched().filter(|launched| !launched.is_repeat);
    let in_order = first.map(|launched| launched.op.0).is_sorted();
    let repeats = launched().any(|launched| launched.is_repeat);
    case.plan.budget_bytes <= certificate.budget_bytes
        && (in_order || certificate.order == Order::Any)
        && (!repeats || certificate.repeats)
        && !steps.iter().any(|step| matches!(step, Step::Host(_)))
}
