//! Certificates of a bound with any prices, which prove no more than a valid plan takes.

use crate::fault::{Fault, returns};
use crate::{judge, plans};
use conformance::certificates::{includes, prices, with_prices};
use conformance::plans::Case;
use planner_core::Machine;
use planner_core::bounds::BoundOrder;
use proptest::bool::weighted;
use proptest::prelude::*;
use spillway::certificate;
use workloads::{OwnedCertificate, OwnedMachine};

/// The kind of a certificate, and its prices.
#[derive(Clone, Debug)]
pub struct Drawn {
    is_any_order: bool,
    repeats: bool,
    prices: Vec<[u64; 4]>,
}

/// Any kind and any prices.
pub fn drawn() -> impl Strategy<Value = Drawn> {
    (weighted(0.7), weighted(0.8), prices()).prop_map(|(is_any_order, repeats, prices)| Drawn {
        is_any_order,
        repeats,
        prices,
    })
}

fn named(machine: &Machine) -> OwnedMachine {
    plans::named("fuzzed", *machine)
}

/// A certificate for a case, which claims nothing.
#[must_use]
pub fn certificate(case: &Case, drawn: &Drawn) -> OwnedCertificate {
    let (graph, machine) = (case.graph.name.as_str(), named(&case.machine).name);
    let order = if drawn.is_any_order { BoundOrder::Any } else { BoundOrder::Given };
    let budget_bytes = case.plan.budget_bytes;
    let bare = OwnedCertificate::new(graph, machine, budget_bytes, order, drawn.repeats);
    with_prices(&bare, &case.machine, &case.graph.ops, &drawn.prices)
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
    if includes(certificate, &case.plan) && period_ns < bound_ns {
        return Err(Fault::new(
            "certificate",
            format!("a plan takes {period_ns} ns, and a certificate proves {bound_ns} ns"),
        ));
    }
    Ok(())
}
