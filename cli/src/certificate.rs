//! Certificates: their bounds, and the plans for which these bounds hold.

use crate::failure::Failure;
use crate::figures::Figures;
use planner_core::bounds::BoundOrder;
use serde::Serialize;
use spillway::certificate;
use spillway::figures::Bound;
use spillway::units::{percent, time};
use spillway::{Graph, Plan};
use std::path::Path;
use workloads::{OwnedCertificate, OwnedMachine, Shown, format};

/// Finds a certificate for a plan. It also improves the bound that the plan's figures show.
pub(crate) fn find(plan: &mut Plan) -> Result<OwnedCertificate, Failure> {
    plan.certify().map_err(|error| Failure::cannot(error.to_string()))
}

/// Reads a certificate and checks its form only.
pub(crate) fn load(path: &Path) -> Result<OwnedCertificate, Failure> {
    let bytes = format::load(path).map_err(|error| Failure::reading(&error))?;
    format::read_certificate(&bytes).map_err(|error| Failure::reading(&error.in_file(path)))
}

/// The bound that a certificate proves, as `--json` prints it.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Proof {
    bound_ns: u64,
    budget_bytes: u64,
    order: &'static str,
    repeats: bool,
    #[serde(skip)]
    bound: Bound,
}

impl Proof {
    /// Adds up the prices of a certificate to a bound.
    ///
    /// # Errors
    /// The certificate is for other work or another machine, or it claims more than it proves.
    pub(crate) fn of(
        graph: &Graph,
        machine: &OwnedMachine,
        certificate: &OwnedCertificate,
        path: &Path,
    ) -> Result<Self, Failure> {
        let proved = certificate::prove(graph.owned(), machine, certificate);
        let bound_ns = proved.map_err(|error| {
            let failure = Failure::cannot(format!("{}: {error}", Shown::path(path)));
            failure.with(&serde_json::json!({ "valid": false }))
        })?;
        let OwnedCertificate { budget_bytes, order, repeats, .. } = *certificate;
        let bound = Bound::new(bound_ns, order, repeats);
        let order = match order {
            BoundOrder::Given => "given",
            BoundOrder::Any => "any",
        };
        Ok(Self { bound_ns, budget_bytes, order, repeats, bound })
    }

    /// Why the bound does not hold for a plan. `None` if it holds.
    pub(crate) fn objection(&self, figures: &Figures) -> Option<&'static str> {
        let planned = figures.planned?;
        if figures.context.budget_bytes > self.budget_bytes {
            return Some("its budget is smaller than the plan's budget");
        }
        if planned.on_host > 0 {
            return Some("it holds for plans on the device alone; this plan runs ops on the host");
        }
        if self.bound.holds_for(&planned) {
            return None;
        }
        Some(match self.bound.order {
            BoundOrder::Given if planned.reordered => {
                "it holds for plans in the given order; this plan runs the ops in another order"
            }
            _ => "it holds for plans that run each op once; this plan repeats ops",
        })
    }

    /// The bound in one line.
    pub(crate) fn sentence(&self) -> String {
        let Bound { order, repeats, .. } = self.bound;
        let that = if repeats { "" } else { " that runs each op once" };
        let order = match order {
            BoundOrder::Given => "the given order",
            BoundOrder::Any => "any order",
        };
        let (exact, rounded) = (self.bound_ns, time(self.bound_ns));
        let budget = spillway::units::bytes(self.budget_bytes);
        format!(
            "no plan{that} on the device alone can beat {rounded} ({exact} ns) in {order} within \
             {budget}"
        )
    }

    /// The distance of a plan's period from the bound.
    pub(crate) fn gap(&self, period_ns: u64) -> String {
        match period_ns.checked_sub(self.bound_ns) {
            Some(above_ns) if above_ns > 0 => {
                format!("; this plan is {} above it", percent(above_ns, self.bound_ns))
            }
            _ => "; this plan takes no longer".to_owned(),
        }
    }
}
