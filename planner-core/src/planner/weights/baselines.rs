//! Published ways to move the weights of a chain, each a strategy of its own.

use super::chain::{Chain, Item, check};
use super::{Way, write};
use crate::graph::{Kind, TensorId};
use crate::planner::builder::Builder;
use crate::planner::error::PlanningError;
use crate::planner::list::{Lengths, Stuck};
use crate::planner::request::Task;
use crate::planner::strategy::{Need, Rule};
use crate::planner::trials::Search;
use crate::scratch::Scratch;
use crate::sequence::Sequence;

/// A rule with a single way.
#[derive(Debug)]
pub(in crate::planner) struct OneWay(Way);

/// As published, with an offload each time that a weight leaves.
pub(in crate::planner) const UNDISCOUNTED: OneWay = OneWay(Way::published(false));

/// Each weight is prefetched for an op and evicted after it.
pub(in crate::planner) const LAYER_TO_LAYER: OneWay = OneWay(Way::LayerToLayer);

impl Rule for OneWay {
    fn need(&self, _: &Sequence<'_>) -> Need {
        Need::Layer
    }

    fn check(
        &self,
        sequence: &Sequence<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<(), PlanningError> {
        check(sequence, scratch)
    }

    fn write(
        &self,
        _: usize,
        builder: Builder<'_>,
        _: &mut Search<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Lengths, Stuck> {
        write(builder, Some(self.0), scratch)
    }
}

/// Prefetches each state for an op and evicts it after the op.
pub(super) fn layer_to_layer(mut builder: Builder<'_>) -> Result<Lengths, Stuck> {
    let sequence = builder.task.sequence;
    for (_, op) in sequence.iterations(2) {
        builder.reach(op);
        for &tensor in sequence.reads(op) {
            builder.prefetch(tensor)?;
        }
        builder.launch(op)?;
        let is_state = |id: &&TensorId| sequence.tensor(**id).kind == Kind::State;
        sequence.reads(op).iter().filter(is_state).for_each(|&state| builder.evict(state));
    }
    builder.finish()
}

/// The length of a cycle of [`LAYER_TO_LAYER`], in which nothing overlaps.
pub(super) fn cycle_ns(task: &Task<'_>, chain: &Chain<'_>) -> u64 {
    let up_ns = |layer, item| match chain.size(layer, item) {
        0 => 0,
        objects => chain.up_ns(layer, item, objects),
    };
    let transfers_ns = (0..chain.layers()).fold(0u64, |sum, layer| {
        let weight_ns = up_ns(layer, Item::Weight).saturating_mul(2);
        sum.saturating_add(weight_ns).saturating_add(up_ns(layer, Item::Optimizer))
    });
    task.sequence.launches_ns().saturating_add(transfers_ns)
}
