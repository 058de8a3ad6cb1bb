//! How to plan: a strategy of the core, or swaps in size classes.

use crate::placing::{self, Unplaced};
use crate::planning;
use crate::swapping;
use planner_core::OpId;
use planner_core::planner::{PlanningError, Request, Strategy as CoreStrategy};
use workloads::OwnedPlan;

pub use crate::swapping::Swap;
pub use planner_core::planner::{Auto, Groups, Host, Lms, Order, Repeats, Weights, Window};

/// How to plan. Made from the core's [`Strategy`](CoreStrategy), from the parameters of one of
/// these such as [`Auto`], or from [`Swap`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// A strategy of the core.
    Core(CoreStrategy),
    /// Whole tensors in size classes.
    Swap(Swap),
}

impl Default for Strategy {
    fn default() -> Self {
        Auto::default().into()
    }
}

impl<S: Into<CoreStrategy>> From<S> for Strategy {
    fn from(strategy: S) -> Self {
        Self::Core(strategy.into())
    }
}

impl From<Swap> for Strategy {
    fn from(swap: Swap) -> Self {
        Self::Swap(swap)
    }
}

impl Strategy {
    /// The strategy of that name, with default parameters.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let of_core = CoreStrategy::all().map(Self::from);
        let all = of_core.into_iter().chain([Swap::default().into()]);
        all.into_iter().find(|strategy| strategy.name() == name)
    }

    /// The name, as plan files have it.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Core(strategy) => strategy.name(),
            Self::Swap(_) => "swap",
        }
    }

    /// The smallest budget with which there is a plan, and the op that needs it.
    ///
    /// # Errors
    /// The strategy cannot plan this work at all, or there is too little memory.
    pub fn min_feasible(&self, request: &Request<'_>) -> Result<(u64, OpId), PlanningError> {
        match self {
            Self::Core(strategy) => planning::min_feasible(request, *strategy),
            Self::Swap(swap) => Ok(swapping::min_feasible(request, swap)?),
        }
    }

    /// Plans, with fixed physical objects if they are wanted and possible.
    pub(crate) fn plan(
        &self,
        request: &Request<'_>,
        placed: bool,
    ) -> Result<(OwnedPlan, Option<Unplaced>), PlanningError> {
        match (self, placed) {
            (Self::Core(strategy), true) => placing::plan(request, *strategy),
            (Self::Core(strategy), false) => Ok((planning::plan(request, *strategy)?, None)),
            (Self::Swap(swap), true) => {
                placing::plan_by(request, |request| swapping::plan(request, swap))
            }
            (Self::Swap(swap), false) => Ok((swapping::plan(request, swap)?, None)),
        }
    }

    /// The length of a chain strategy's own schedule of one cycle, if it is one.
    pub(crate) fn cycle_ns(&self, request: &Request<'_>) -> Option<u64> {
        match self {
            Self::Core(strategy) => planning::cycle_ns(request, *strategy).ok().flatten(),
            Self::Swap(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_strategy_is_found_by_its_name() {
        for strategy in CoreStrategy::all() {
            assert_eq!(Strategy::named(strategy.name()), Some(strategy.into()));
        }
        assert_eq!(Strategy::named("swap"), Some(Swap::default().into()));
        assert_eq!(Strategy::named("joint"), None);
    }
}
