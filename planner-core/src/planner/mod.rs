//! Planners: each turns a graph into a plan and knows no backend.
//!
//! A strategy only chooses which tensors move, and when. All share the division of memory
//! (`memory`) and the `builder`, which keeps residency, host copies and occupancy, decides whether
//! an evict needs an offload, and closes the cycle.

mod auto;
mod best_plan;
mod builder;
mod cache;
mod chance;
mod checkpoint;
mod choice;
mod comparison;
mod densities;
mod error;
mod fit;
mod gaps;
mod groups;
pub(crate) mod heap;
mod helper;
mod host_memory;
mod hosting;
mod in_core;
mod list;
#[cfg(feature = "baselines")]
mod lms;
mod load;
mod memory;
mod memory_search;
mod moves;
mod objects;
mod on_demand;
mod order;
mod paced;
mod positions;
mod pressure;
mod queue;
mod recipe;
mod repeats;
mod request;
mod residents;
mod slabs;
mod strategy;
#[cfg(feature = "baselines")]
pub mod swap;
mod threshold;
mod tree;
mod trials;
mod uses;
#[cfg(feature = "baselines")]
mod vdnn;
mod weights;
mod window;

use crate::bounds;
use crate::graph::OpId;
use crate::host::HostLayout;
use crate::lower;
use crate::plan::ArenaPlacement;
use crate::schedule::Scheduled;
use crate::scratch::{Limits, Scratch, larger, total, words};
use crate::sequence::Sequence;
use crate::timeline;
use builder::Builder;
use gaps::Gaps;
use memory::Memory;
use request::Task;
use trials::Search;
use uses::Uses;
use weights::Way;

pub use auto::{Made, make, make_below, make_with_helper, plan};
pub use error::PlanningError;
pub use groups::Groups;
pub use helper::{Helper, RunBoth};
pub use hosting::Host;
#[cfg(feature = "baselines")]
pub use lms::Lms;
pub use objects::{with_fewer_objects, with_larger_objects};
pub use order::{Join, list_schedule, list_schedule_words};
pub use recipe::{Auto, Order, Repeats};
pub use request::{Held, LeastMemory, Output, Request};
pub use strategy::{Parameter, Strategy, Takes};
pub use weights::Weights;
pub use window::Window;

/// Words of scratch that [`plan`] and its kin ask for, by the [limits of the
/// graph](Limits::of_graph) with as many [steps](Limits::with_steps) as the output has. At most 600
/// per op, 65 per operand, 108 per tensor and 900,000 more; or the words for lowering or predicting a
/// list or for its host layout. A [`Helper`] needs as many again.
#[must_use]
pub const fn scratch_words(limits: &Limits) -> usize {
    let limits = &limits.with_repeats();
    let lower = lower::scratch_words(limits);
    let predict = timeline::scratch_words(limits);
    let judge = larger(lower, larger(predict, HostLayout::scratch_words(limits)));
    let judge = judge.saturating_add(words::<Scheduled>(limits.steps));
    let paced = larger(choice::scratch_words(limits), paced::scratch_words(limits));
    let write = larger(strategy::scratch_words(limits), paced);
    let write = Builder::scratch_words(limits).saturating_add(write);
    let write = larger(write, Gaps::working_words(limits));
    let write = larger(write, slabs::scratch_words(limits));
    let list = total([
        memory::scratch_words(limits),
        memory_search::scratch_words(limits),
        Uses::scratch_words(limits),
        Search::scratch_words(limits),
        larger(write, judge),
    ]);
    let sequences = Sequence::scratch_words(limits).saturating_add(order::kept_words(limits));
    let repeats = repeats::search::scratch_words(limits).saturating_add(larger(write, judge));
    let repeats = larger(repeats, checkpoint::scratch_words(limits).saturating_add(list));
    let found = repeats::search::kept_words(limits);
    let repeats = found.saturating_mul(4).saturating_add(repeats);
    let list = found.saturating_mul(8).saturating_add(larger(list, bounds::scratch_words(limits)));
    let work = larger(list_schedule_words(limits), larger(list, repeats));
    total([hosting::scratch_words(limits), sequences, Sequence::working_words(limits), work])
}

/// The smallest budget with which a strategy can plan at all, and the op that needs it. Each arena
/// that is tried needs its own bytes and the need of the largest op beside it (in-core: the need of
/// the peak). The arena that needs least is left in `arena`.
///
/// # Errors
/// Scratch that is too small.
pub fn least_memory(
    request: &Request<'_>,
    strategy: Strategy,
    arena: &mut [ArenaPlacement],
    scratch: &mut Scratch<'_>,
) -> Result<LeastMemory, PlanningError> {
    let mut scratch = scratch.reborrow();
    let given = Sequence::as_given(request.graph, None, &mut scratch)?;
    strategy.rule().check(&given, &mut scratch)?;
    if strategy.rule().has_segments() {
        let task = Task::new(request, &given);
        return auto::least_with_segments(&task, strategy, arena, &mut scratch);
    }
    hosting::least_memory(request, strategy, arena, &mut scratch)
}

/// The figures of [`least_memory`] that an error names.
///
/// # Errors
/// Scratch that is too small.
pub fn min_feasible(
    request: &Request<'_>,
    strategy: Strategy,
    arena: &mut [ArenaPlacement],
    scratch: &mut Scratch<'_>,
) -> Result<(u64, OpId), PlanningError> {
    let LeastMemory { bytes, op, .. } = least_memory(request, strategy, arena, scratch)?;
    Ok((bytes, op))
}

/// The length of a cycle as the published algorithm of a chain strategy schedules it, with a
/// barrier at its end. `None` for other strategies, and if activations move.
///
/// # Errors
/// The errors of [`plan`], except errors of buffers that are too short; `arena` has an entry for each
/// tensor.
pub fn cycle_ns(
    request: &Request<'_>,
    strategy: Strategy,
    arena: &mut [ArenaPlacement],
    scratch: &mut Scratch<'_>,
) -> Result<Option<u64>, PlanningError> {
    let Some(way) = Way::of_cycle(strategy) else { return Ok(None) };
    let mut scratch = scratch.reborrow();
    let given = Sequence::as_given(request.graph, None, &mut scratch)?;
    let task = Task::new(request, &given);
    strategy.rule().check(&given, &mut scratch)?;
    let memory = Memory::new(&task, strategy.rule().need(&given), arena, &mut scratch)?;
    Ok(weights::cycle_ns(&task, &memory, way, &mut scratch)?)
}
