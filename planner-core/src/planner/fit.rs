//! The rule of thumb of inference servers: as many layers on the device as fit, and the rest
//! streamed. (Hugging Face Accelerate's `infer_auto_device_map` with CPU offload fills the device
//! with layers in their order, keeps memory for the largest other layer, and uploads each other
//! layer for its turn.)
//!
//! * The states that are used first stay on the device permanently, as many as fit beside the needs
//!   of the ops: see [`Residents`].
//! * Every other state is prefetched one op ahead and evicted after the op, unless one of the next
//!   two ops needs it again. If the host has its value, it is evicted without a copy.
//! * Temporaries and inputs stay while they are needed; if they do not fit, the least recently used
//!   one is evicted.

use super::builder::Builder;
use super::cache::{self, Retention, distance};
use super::list::{Lengths, Stuck};
use super::residents::{Residents, Spans};
use super::strategy::Rule;
use super::trials::Search;
use crate::graph::{Kind, TensorId};
use crate::scratch::{Limits, Scratch, larger};
use crate::sequence::LaunchId;

pub(super) const fn scratch_words(limits: &Limits) -> usize {
    let choosing = Spans::scratch_words(limits);
    let caching = cache::scratch_words(limits);
    Residents::scratch_words(limits).saturating_add(larger(choosing, caching))
}

/// The rule.
#[derive(Debug)]
pub(super) struct Fit;

impl Rule for Fit {
    fn write(
        &self,
        _: usize,
        builder: Builder<'_>,
        _: &mut Search<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Lengths, Stuck> {
        let mut scratch = scratch.reborrow();
        let mut residents = Residents::new(&builder, &mut scratch)?;
        {
            let mut scratch = scratch.reborrow();
            let mut spans = Spans::new(&builder, &mut scratch)?;
            for tensor in builder.task.sequence.tensor_ids() {
                spans.add_lifetime(&builder, tensor);
            }
            residents.choose(&builder, &mut spans);
        }
        cache::write(builder, 1, &mut scratch, |builder, op, tensor| {
            retention_of_state(builder, &residents, op, tensor).unwrap_or(Retention::Cached)
        })
    }
}

/// The retention of a state; `None` for other tensors.
pub(super) fn retention_of_state(
    builder: &Builder<'_>,
    residents: &Residents<'_>,
    op: LaunchId,
    tensor: TensorId,
) -> Option<Retention> {
    (builder.task.sequence.tensor(tensor).kind == Kind::State).then(|| {
        match distance(builder, op, tensor) > 2 {
            _ if residents.stays(tensor) => Retention::Pinned,
            true => Retention::Leaves,
            false => Retention::Cached,
        }
    })
}
