//! Chooses the ops that run on the host.
//!
//! The ops that may run on the host are sorted by the time at which they would be ready. A choice takes
//! a share of their total time: the first ops, the last ops, or some ops at even distances, so that the
//! host computes while a link uploads operands of the next launches. Such a share is of all these ops,
//! or only of ops whose results no op of the same iteration needs. If the host computes slowly, small
//! shares are searched more finely. Another choice takes the ops that the host ends sooner than a
//! device that waits for the link. The last form of a choice has a count for each kind of op. A sample
//! of lists compares choices, in the order of the ops that is usually best; in small works, a few lists
//! that learn from each other compare choices again. The best choice of each form is then tried in its
//! own best orders, with repeats, and the best of these is planned as any other work. In small works,
//! choices with nearly equal trials are planned too, and the shortest plan is kept.

mod baselines;
mod best_plan;
mod choice;
mod counting;
mod kinds;
mod search;
mod turns;
mod work;

use super::auto::Made;
use super::error::PlanningError;
use super::helper::Helper;
use super::recipe::{Auto, Repeats};
use super::request::{LeastMemory, Output, Request, Task};
use super::strategy::Strategy;
use super::{auto, memory};
use crate::graph::Graph;
use crate::hosted::Hosted;
use crate::plan::ArenaPlacement;
use crate::scratch::{Limits, Scratch, total};
use crate::sequence::Sequence;
use choice::{Choice, Middles};
use search::{Orders, Search};
use work::Work;

/// Which of the ops that [may](crate::Op::host_ns) run on the host do so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Host {
    /// No op.
    Never,
    /// The ops with which the plan is shortest.
    #[default]
    Allowed,
    /// All ops that may.
    All,
}

/// Words of scratch in addition to the words for a plan.
pub(super) const fn scratch_words(limits: &Limits) -> usize {
    total([
        Hosted::scratch_words(limits).saturating_mul(2),
        Sequence::scratch_words(limits),
        Orders::scratch_words(limits),
        Work::kept_words(limits).saturating_mul(3),
        Middles::working_words(limits),
    ])
}

/// Which ops a strategy may run on the host; no op if no op of the graph may run there.
fn host(graph: &Graph<'_>, strategy: Strategy) -> Result<Host, PlanningError> {
    let host = match strategy {
        Strategy::Auto(Auto { host, .. }) => host,
        _ if strategy.runs_on_host() => Host::All,
        _ => Host::Never,
    };
    let is_idle = graph.ops().iter().all(|op| op.host_ns.is_none());
    match strategy {
        Strategy::Auto(_) if is_idle => Ok(Host::Never),
        _ if is_idle && host == Host::All => Err(PlanningError::NothingOnHost),
        _ => Ok(host),
    }
}

/// Plans with the best choice.
pub(super) fn make<'o>(
    request: &Request<'_>,
    strategy: Strategy,
    mut output: Output<'o>,
    mut helper: Option<&mut Helper<'_>>,
    scratch: &mut Scratch<'_>,
) -> Result<Made<'o>, PlanningError> {
    let (budget_bytes, device_bytes) = (request.budget_bytes, request.machine.device_bytes);
    if budget_bytes > device_bytes {
        return Err(PlanningError::BudgetAboveDevice { budget_bytes, device_bytes });
    }
    output.check(request.graph)?;
    let host = host(request.graph, strategy)?;
    if host == Host::Never {
        return auto::make_with(request, (None, true), strategy, output, helper, scratch);
    }
    let mut scratch = scratch.reborrow();
    if let Strategy::Auto(_) = strategy {
        let LeastMemory { bytes: min_feasible_bytes, op, .. } =
            least_memory(request, strategy, output.arena, &mut scratch)?;
        if request.budget_bytes < min_feasible_bytes {
            return Err(PlanningError::Infeasible { min_feasible_bytes, op });
        }
    }
    if strategy.runs_on_host() {
        let work = Work::as_given(request, &mut scratch)?;
        let how = (strategy, Repeats::Allowed);
        let made = work.make_baseline(how, (u64::MAX, true), output, &mut scratch)?;
        return made.and_then(|(_, made)| made).ok_or(PlanningError::Stuck);
    }
    if host == Host::All || strategy.stops_at_first() {
        let work = Work::as_given(request, &mut scratch)?;
        return make_end(&work, host, strategy, output, &mut scratch);
    }
    let orders = Orders::new(request, &mut output, helper.as_deref_mut(), &mut scratch)?;
    let works = orders.works(request, &mut scratch)?;
    let search = Search::new(&works, orders.best(&works));
    match search.run(strategy, output.reborrow(), helper, &mut scratch) {
        // A choice may need more memory in the search's orders than in the given order, which determines
        // the least memory.
        Err(error) if error.is_of_one_list() => {
            let work = Work::as_given(request, &mut scratch)?;
            let made = make_end(&work, host, strategy, output, &mut scratch);
            made.map_err(|other| other.with_least_need(Some(error)))
        }
        made => Ok(made?.kept().made(output)),
    }
}

/// Plans by a strategy that chooses ops for the host by its own rule. Returns `None` if no plan
/// takes less than `below_ns`.
pub(super) fn make_below<'o>(
    request: &Request<'_>,
    strategy: Strategy,
    below_ns: u64,
    output: Output<'o>,
    scratch: &mut Scratch<'_>,
) -> Result<Option<Made<'o>>, PlanningError> {
    if host(request.graph, strategy)? == Host::Never {
        return Ok(None);
    }
    let mut scratch = scratch.reborrow();
    let work = Work::as_given(request, &mut scratch)?;
    let how = (strategy, Repeats::Allowed);
    let made = work.make_baseline(how, (below_ns, true), output, &mut scratch)?;
    Ok(made.and_then(|(_, made)| made))
}

/// Plans with all ops on the host; or with no op on the host, if this is allowed and there is a
/// plan.
fn make_end<'o>(
    work: &Work<'_>,
    host: Host,
    strategy: Strategy,
    mut output: Output<'o>,
    scratch: &mut Scratch<'_>,
) -> Result<Made<'o>, PlanningError> {
    let shortage = match host {
        Host::All => None,
        _ => match work.make((Choice::NONE, true), strategy, output.reborrow(), None, scratch) {
            Err(error) if error.is_of_one_list() => Some(error),
            Err(error) => return Err(error),
            Ok(made) => return Ok(made.kept().made(output)),
        },
    };
    let made = work.make((Choice::ALL, true), strategy, output, None, scratch);
    made.map_err(|error| error.with_least_need(shortage))
}

/// The smallest budget over all choices. Leaves its tensors in `arena`.
pub(super) fn least_memory(
    request: &Request<'_>,
    strategy: Strategy,
    arena: &mut [ArenaPlacement],
    scratch: &mut Scratch<'_>,
) -> Result<LeastMemory, PlanningError> {
    let mut scratch = scratch.reborrow();
    let host = host(request.graph, strategy)?;
    let all = match host {
        Host::Never => None,
        _ => Hosted::new(request.graph, |_| true, &mut scratch)?,
    };
    let mut least = |hosted: Option<&Hosted<'_>>| {
        let mut scratch = scratch.reborrow();
        let sequence = Sequence::as_given(request.graph, hosted, &mut scratch)?;
        let task = Task::new(request, &sequence);
        memory::smallest(&task, strategy.rule().need(&sequence), arena, &mut scratch)
    };
    let none = if host == Host::All { None } else { Some(least(None)?) };
    let all = all.as_ref().map(|all| least(Some(all))).transpose()?;
    match (none, all) {
        (Some(none), Some(all)) if none.bytes <= all.bytes => least(None),
        (_, Some(all)) => Ok(all),
        (Some(none), None) => Ok(none),
        (None, None) => least(None),
    }
}
