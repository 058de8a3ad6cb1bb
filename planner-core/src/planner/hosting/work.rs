//! A request with its ops in one order, some of which run on the host.

use super::choice::{Choice, Middles};
use crate::graph::OpId;
use crate::planner::auto::{self, Made};
use crate::planner::error::PlanningError;
use crate::planner::helper::Helper;
use crate::planner::recipe::Auto;
use crate::planner::request::{Output, Request, Task};
use crate::planner::strategy::Strategy;
use crate::scratch::{Limits, Scratch, words};
use crate::sequence::Sequence;

/// A request, and an order of its ops.
pub(super) struct Work<'w> {
    pub(super) request: &'w Request<'w>,
    order: &'w [OpId],
    pub(super) middles: Middles<'w>,
}

impl<'w> Work<'w> {
    pub(super) const fn kept_words(limits: &Limits) -> usize {
        words::<OpId>(limits.ops).saturating_add(Middles::kept_words(limits))
    }

    /// The request with its ops in an order that keeps the dependencies.
    pub(super) fn new(
        request: &'w Request<'w>,
        order: &'w [OpId],
        scratch: &mut Scratch<'w>,
    ) -> Result<Self, PlanningError> {
        let middles = Middles::new(request, order, scratch)?;
        Ok(Self { request, order, middles })
    }

    /// The request with its ops in the order of the graph.
    pub(super) fn as_given(
        request: &'w Request<'w>,
        scratch: &mut Scratch<'w>,
    ) -> Result<Self, PlanningError> {
        let order = as_given(request, scratch)?;
        Self::new(request, order, scratch)
    }

    /// Calls a function with the launches that a choice leaves to the device.
    pub(super) fn with<T>(
        &self,
        choice: Choice,
        scratch: &mut Scratch<'_>,
        visit: impl FnOnce(&Task<'_>, &mut Scratch<'_>) -> Result<T, PlanningError>,
    ) -> Result<T, PlanningError> {
        let mut scratch = scratch.reborrow();
        let hosted = self.middles.take(self.request, (choice, self.order), &mut scratch)?;
        let order = self.order.iter().copied();
        let sequence = Sequence::new(self.request.graph, hosted.as_ref(), order, &mut scratch)?;
        visit(&Task::new(self.request, &sequence), &mut scratch)
    }

    /// The period of the best of a few lists with a choice of ops on the host and the other ops in
    /// their best orders.
    pub(super) fn trial_ns(
        &self,
        choice: Choice,
        auto: Auto,
        output: &mut Output<'_>,
        helper: Option<&mut Helper<'_>>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Option<u64>, PlanningError> {
        let mut scratch = scratch.reborrow();
        let hosted = self.middles.take(self.request, (choice, self.order), &mut scratch)?;
        auto::trial_in_order_ns(self.request, hosted.as_ref(), auto, output, helper, &mut scratch)
    }

    /// Plans with a choice of ops on the host. The other ops may run in another order. May also compare other
    /// strategies' plans.
    pub(super) fn make<'o>(
        &self,
        (choice, compares): (Choice, bool),
        strategy: Strategy,
        output: Output<'o>,
        helper: Option<&mut Helper<'_>>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Made<'o>, PlanningError> {
        let mut scratch = scratch.reborrow();
        let hosted = self.middles.take(self.request, (choice, self.order), &mut scratch)?;
        let how = (hosted.as_ref(), compares);
        auto::make_with(self.request, how, strategy, output, helper, &mut scratch)
    }
}

/// The ops in the order of the graph.
pub(super) fn as_given<'s>(
    request: &Request<'_>,
    scratch: &mut Scratch<'s>,
) -> Result<&'s mut [OpId], PlanningError> {
    let order = scratch.take(request.graph.ops().len(), OpId(0))?;
    order.iter_mut().zip(request.graph.op_ids()).for_each(|(slot, op)| *slot = op);
    Ok(order)
}
