//! An attempt to plan: the proved plan or the error, with the figures known in either case.

use crate::failure::Failure;
use crate::figures::Figures;
use crate::{searching, shortage};
use planner_core::planner::PlanningError;
use spillway::{Error, Plan, Prepared};

/// The result of planning.
#[derive(Debug)]
pub(crate) struct Attempt {
    /// The figures known with or without a plan.
    pub(crate) figures: Figures,
    /// The plan, or the error that prevented it.
    pub(crate) plan: Result<Plan, Error>,
}

impl Attempt {
    /// Makes and proves a plan.
    ///
    /// # Errors
    /// The planner made an invalid plan, which is never written or run.
    pub(crate) fn make(mut prepared: Prepared) -> Result<Self, Failure> {
        let plan = searching::plan(&mut prepared);
        let figures = Figures::new(prepared.context().clone());
        match plan {
            Err(error @ Error::Invalid { .. }) => {
                let strategy = &figures.context.strategy;
                let failure = Failure::cannot(format!(
                    "{strategy}: the planner made an invalid plan (a bug in spillway): {error}"
                ));
                Err(failure.with(&figures))
            }
            Ok(plan) => Ok(Self { figures: Figures::of(&plan), plan: Ok(plan) }),
            Err(error) => Ok(Self { figures, plan: Err(error) }),
        }
    }

    /// Returns the plan with its figures.
    ///
    /// # Errors
    /// There is no plan. The message says why and what would help.
    pub(crate) fn into_plan(self, prepared: &Prepared) -> Result<(Figures, Plan), Failure> {
        let Self { figures, plan } = self;
        let error = match plan {
            Ok(plan) => return Ok((figures, plan)),
            Err(error) => error,
        };
        let mut reason = reason(&error);
        if let (Error::Infeasible { .. }, Some(strategy)) = (&error, prepared.strategy().of_core())
        {
            let parts = shortage::list(prepared.graph(), prepared.machine(), strategy);
            reason = format!("{reason}:{}", parts.map_err(Failure::cannot)?);
        }
        let strategy = &figures.context.strategy;
        Err(Failure::cannot(format!("{strategy}: {reason}")).with(&figures))
    }
}

/// Says why there is no plan, and what the user can do.
pub(crate) fn reason(error: &Error) -> String {
    match error {
        Error::Planning { error: PlanningError::NoChain { .. }, message } => {
            format!("{message}; `spillway export chain` converts a training step to a chain")
        }
        _ => error.to_string(),
    }
}
