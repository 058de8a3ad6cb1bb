//! The best plan so far of the plans that a comparison makes.

use super::auto::{GAIN, Made, plan_below, plan_seen, plan_segments, plan_task};
use super::error::PlanningError;
use super::helper::{Helper, both};
use super::recipe::Entrant;
use super::request::{Output, Task, Written};
use super::strategy::Strategy;
use crate::bounds;
use crate::plan::{PlanError, Prediction};
use crate::scratch::Scratch;
use core::iter;

/// The bound for other strategies exceeds the longest useful period by this fraction. So the caller knows that
/// none of them is the best, even if fixed objects or objects of another size shorten their plans.
const WIDER: u64 = 8;

/// The bound under which other strategies are compared. Plans that take `below_ns` or longer are of no use.
pub(super) const fn bound_of_others_ns(below_ns: u64) -> u64 {
    below_ns.saturating_add(below_ns / WIDER)
}

/// The usual least period of all lists of a sequence with this sampled period.
pub(super) const fn least_ns(sampled_ns: u64) -> u64 {
    shorter(sampled_ns, GAIN)
}

/// A period, shorter by one of this many equal parts.
pub(super) const fn shorter(period_ns: u64, parts: u64) -> u64 {
    match period_ns.checked_div(parts) {
        Some(part_ns) => period_ns.saturating_sub(part_ns),
        None => period_ns,
    }
}

/// The best plan so far, and the figures of all plans that were tried.
pub(super) struct BestPlan<'o, 't> {
    output: Output<'o>,
    /// The best plan.
    pub(super) best: Option<Incumbent<'t>>,
    /// The plan that was written last, if it is the best one.
    written: Option<Written>,
    /// The [error to report](PlanningError::with_least_need) if there is no plan.
    shortage: Option<PlanningError>,
    /// The least period of the lists that only `auto` writes.
    pub(super) own_ns: Option<u64>,
    /// A lower bound of the periods of other strategies in the given order.
    pub(super) others_ns: u64,
}

/// The best plan of the other strategies in one order. It is to be written again.
struct Others<'t> {
    best: Option<Incumbent<'t>>,
    shortage: Option<PlanningError>,
    /// A lower bound of the periods of all of their plans.
    least_ns: u64,
}

impl<'t> Others<'t> {
    /// Tries all other strategies that may take less than `below_ns`, in the order of a task.
    fn of(
        task: &Task<'t>,
        below_ns: u64,
        output: Output<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Self, PlanningError> {
        let Task { sequence, machine, budget_bytes } = *task;
        let graph = sequence.graph();
        // Other strategies launch each op once.
        let bound_ns =
            bounds::period_ns(graph, machine, budget_bytes, bounds::BoundOrder::Any, scratch)?;
        let bound_ns = bound_ns.max(sequence.launches_ns());
        let (mut plans, mut seen_ns) = (BestPlan::new(output), u64::MAX);
        for entrant in Entrant::others() {
            let below_ns = plans.best.map_or(below_ns, |best| best.period_ns.min(below_ns));
            if bound_ns >= below_ns {
                seen_ns = seen_ns.min(bound_ns);
                break;
            }
            match entrant.check(task.sequence, scratch) {
                Err(PlanningError::NoChain { .. }) => continue,
                checked => checked?,
            }
            let output = plans.output.reborrow();
            let plan = plan_seen(task, entrant, (below_ns, &mut seen_ns), output, scratch);
            match plan.map(|made| made.map(|made| made.written())) {
                Ok(Some(written)) => plans.keep_if_better(written, task, (entrant, below_ns)),
                Err(error) if error.is_of_one_list() => {
                    plans.shortage = Some(error.with_least_need(plans.shortage));
                }
                Err(error) => return Err(error),
                Ok(None) => {}
            }
        }
        Ok(Self { best: plans.best, shortage: plans.shortage, least_ns: seen_ns })
    }
}

/// The plan that an attempt has written, or the reason why there is none.
type Attempt = Result<(Written, &'static str), PlanningError>;

/// Plans by one strategy.
fn attempt(
    (task, strategy): (Task<'_>, Strategy),
    output: &mut Output<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<Attempt, PlanningError> {
    match plan_task(&task, Entrant::Of(strategy), output.reborrow(), scratch) {
        Err(error) if error.is_of_one_list() => Ok(Err(error)),
        made => Ok(Ok(made?.written())),
    }
}

/// The best plan so far: its period, its maker, and its task.
#[derive(Clone, Copy)]
pub(super) struct Incumbent<'t> {
    pub(super) period_ns: u64,
    by: &'static str,
    task: Task<'t>,
    entrant: Entrant,
    /// Only plans that take less than this were of use. Without it, another list may lead the search
    /// for a better division of memory, to a longer plan.
    below_ns: u64,
}

impl<'o, 't> BestPlan<'o, 't> {
    pub(super) const fn new(output: Output<'o>) -> Self {
        Self { output, best: None, written: None, shortage: None, own_ns: None, others_ns: 0 }
    }

    /// Tries all other strategies that may take less than the best plan or than `below_ns`, or [not much
    /// longer](bound_of_others_ns), in the given order and in a rival one. A helper tries the strategies
    /// in the given order.
    pub(super) fn try_others(
        &mut self,
        (given, rival): (&Task<'t>, Option<&Task<'t>>),
        below_ns: u64,
        helper: Option<&mut Helper<'_>>,
        scratch: &mut Scratch<'_>,
    ) -> Result<(), PlanningError> {
        let below_ns = self.best.map_or(below_ns, |best| best.period_ns.min(below_ns));
        let below_ns = bound_of_others_ns(below_ns);
        let helper = helper.filter(|_| rival.is_some());
        let try_in = |task: &Task<'t>, output: &mut Output<'_>, scratch: &mut Scratch<'_>| {
            Others::of(task, below_ns, output.reborrow(), scratch)
        };
        let (in_rival, in_given) = both(
            helper,
            &mut self.output,
            scratch,
            |output, scratch| rival.map(|rival| try_in(rival, output, scratch)).transpose(),
            |output, scratch| try_in(given, output, scratch),
        )?;
        self.written = None;
        self.others_ns = in_given.least_ns;
        for Others { best, shortage, .. } in iter::once(in_given).chain(in_rival) {
            if let Some(error) = shortage {
                self.shortage = Some(error.with_least_need(self.shortage));
            }
            self.best = best.filter(|best| self.is_beaten_by(best.period_ns, 0)).or(self.best);
        }
        Ok(())
    }

    /// Plans in up to two ways, and keeps the better plan if it is better than the best one so far,
    /// or as good and without repeats. The plan of the second way need not be written again.
    pub(super) fn try_each(
        &mut self,
        [one, other]: [Option<(Task<'t>, Strategy)>; 2],
        helper: Option<&mut Helper<'_>>,
        scratch: &mut Scratch<'_>,
    ) -> Result<(), PlanningError> {
        let (Some(one), Some(other), Some(helper)) = (one, other, helper) else {
            for way in [one, other].into_iter().flatten() {
                let attempt = attempt(way, &mut self.output, scratch)?;
                self.record(attempt, way);
            }
            return Ok(());
        };
        let (own, helpers) = both(
            Some(helper),
            &mut self.output,
            scratch,
            |output, scratch| attempt(other, output, scratch),
            |output, scratch| attempt(one, output, scratch),
        )?;
        self.record(helpers, one);
        let helpers = self.written;
        self.record(own, other);
        if let (Some(written), None) = (helpers, self.written) {
            self.output.copy(&helper.output, &written);
            self.written = Some(written);
        }
        Ok(())
    }

    /// Keeps an attempt's plan if it is better.
    fn record(&mut self, attempt: Attempt, (task, strategy): (Task<'t>, Strategy)) {
        let entrant = Entrant::Of(strategy);
        self.written = None;
        match attempt {
            Ok(made @ (written, _)) => {
                if entrant.is_auto() {
                    let period_ns = written.predicted().period_ns;
                    self.own_ns =
                        Some(self.own_ns.map_or(period_ns, |own_ns| own_ns.min(period_ns)));
                }
                self.keep_if_better(made, &task, (entrant, u64::MAX));
            }
            Err(error) => self.shortage = Some(error.with_least_need(self.shortage)),
        }
    }

    /// Whether a plan is better than the best one so far, or as good and without repeats.
    fn is_beaten_by(&self, period_ns: u64, repeat_ns: u64) -> bool {
        self.best.is_none_or(|best| {
            period_ns < best.period_ns || (period_ns == best.period_ns && repeat_ns == 0)
        })
    }

    /// Keeps a plan that was written last, if it is better.
    fn keep_if_better(
        &mut self,
        (written, by): (Written, &'static str),
        task: &Task<'t>,
        (entrant, below_ns): (Entrant, u64),
    ) {
        let Prediction { period_ns, repeat_ns, .. } = written.predicted();
        if self.is_beaten_by(period_ns, repeat_ns) {
            self.best = Some(Incumbent { period_ns, by, task: *task, entrant, below_ns });
            self.written = Some(written);
        }
    }

    /// Whether a plan with a known sample could be better than the best one: more lists may gain a
    /// little.
    pub(super) fn may_be_beaten_by(&self, sampled_ns: u64) -> bool {
        self.best.is_none_or(|best| least_ns(sampled_ns) < best.period_ns)
    }

    /// The period and the strategy of the better plan by checkpointing, if there is one. Few works need
    /// such a plan at all, since no plan takes less time than its launches. If there is no plan yet, a
    /// better plan must take less than `below_ns`.
    pub(super) fn best_of_segments(
        &mut self,
        task: &Task<'_>,
        launches_ns: u64,
        below_ns: u64,
        mut helper: Option<&mut Helper<'_>>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Option<(u64, Strategy)>, PlanningError> {
        let mut least_ns = self.best.map_or(below_ns, |best| best.period_ns);
        let mut better = None;
        for strategy in [Strategy::Checkpoint, Strategy::CheckpointOffload] {
            if launches_ns >= least_ns {
                break;
            }
            let output = match &mut helper {
                // The best plan stays where it is.
                Some(helper) => helper.output.reborrow(),
                None => {
                    self.written = None;
                    self.output.reborrow()
                }
            };
            match plan_segments(task, (strategy, least_ns), output, scratch) {
                Ok(made) if made.plan.predicted.period_ns < least_ns => {
                    least_ns = made.plan.predicted.period_ns;
                    better = Some((least_ns, strategy));
                }
                Err(PlanningError::Stuck) => {}
                Err(error) if !error.is_of_one_list() => return Err(error),
                _ => {}
            }
        }
        Ok(better)
    }

    /// The plan of the better strategy of checkpointing, if there is one; otherwise the best plan
    /// so far, written again if another plan was written after it.
    pub(super) fn finish(
        self,
        (given, better): (&Task<'_>, Option<(u64, Strategy)>),
        scratch: &mut Scratch<'_>,
    ) -> Result<Made<'o>, PlanningError> {
        if let Some((_, segments)) = better {
            return plan_segments(given, (segments, u64::MAX), self.output, scratch);
        }
        match (self.written, self.best, self.shortage) {
            (Some(written), Some(Incumbent { by, .. }), _) => {
                Ok(Made::of(self.output.written(written), by))
            }
            (_, Some(Incumbent { task, entrant, below_ns, .. }), _) => {
                let again = plan_below(&task, entrant, below_ns, self.output, scratch)?;
                again.ok_or(PlanningError::Stuck)
            }
            (_, None, Some(error)) => Err(error),
            (_, None, None) => Err(PlanError::TooManySteps.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::helper::RunBoth;
    use super::super::request::Request;
    use super::*;
    use crate::graph::{Graph, Kind, Op, OpId, Tensor, TensorId};
    use crate::machine::{Machine, MachineParameters};
    use crate::plan::{ArenaPlacement, Part, Pool, Resident, Step};
    use crate::scratch::{Limits, words};
    use crate::sequence::Sequence;

    const LAYERS: usize = 8;
    const STEPS: usize = 1000;
    const NOTHING: Resident = Resident { part: Part::whole(TensorId(0)), host_copy: false };
    const NOWHERE: ArenaPlacement = ArenaPlacement { tensor: TensorId(0), offset_bytes: 0 };

    struct Buffers {
        steps: [Step; STEPS],
        resident: [Resident; 2 * LAYERS],
        arena: [ArenaPlacement; LAYERS],
        pools: [Pool; 2],
        tensor_pool: [u32; LAYERS],
        memory: [u64; 60_000],
    }

    impl Buffers {
        const fn new() -> Self {
            Self {
                steps: [Step::launch(OpId(0)); STEPS],
                resident: [NOTHING; 2 * LAYERS],
                arena: [NOWHERE; LAYERS],
                pools: [Pool { object_bytes: 1, count: 0 }; 2],
                tensor_pool: [0; LAYERS],
                memory: [0; 60_000],
            }
        }

        fn parts(&mut self) -> (Output<'_>, Scratch<'_>) {
            let Self { steps, resident, arena, pools, tensor_pool, memory } = self;
            (Output { steps, resident, arena, pools, tensor_pool }, Scratch::new(memory))
        }
    }

    /// The better plan is kept whichever thread has made it.
    #[test]
    fn the_better_of_two_plans_is_kept() {
        let tensors = [Tensor::new(10_000, Kind::State); LAYERS];
        let ops: [Op; LAYERS] = core::array::from_fn(|layer| {
            Op::new(9_000).with_first_operand(layer as u32).with_reads(1)
        });
        let operands: [TensorId; LAYERS] = core::array::from_fn(|layer| TensorId(layer as u32));
        let parameters = MachineParameters::new()
            .with_device_bytes(60_000)
            .with_host_bytes(1 << 20)
            .with_chunk_bytes(100)
            .with_h2d_bytes_per_s(1_000_000_000)
            .with_d2h_bytes_per_s(1_000_000_000);
        let machine = Machine::new(parameters).unwrap();
        let mut memory = [0; words::<u32>(10 * LAYERS)];
        let graph = Graph::new(&tensors, &ops, &operands, &mut Scratch::new(&mut memory)).unwrap();
        assert!(Limits::of_graph(&graph).max_steps() <= STEPS);
        let mut memory = [0; 1000];
        let given = Sequence::as_given(&graph, None, &mut Scratch::new(&mut memory)).unwrap();
        let request = Request { graph: &graph, machine: &machine, budget_bytes: 60_000 };
        let task = Task::new(&request, &given);
        let run_both: &RunBoth<'_> = &|one, other| {
            one();
            other();
        };
        let (longer, shorter) = (Strategy::OnDemand, Strategy::Fit);
        for ways in [[shorter, longer], [longer, shorter]] {
            let (mut own, mut others) = (Buffers::new(), Buffers::new());
            let (output, scratch) = others.parts();
            let mut helper = Helper { output, scratch, run_both };
            let (output, mut scratch) = own.parts();
            let mut plans = BestPlan::new(output);
            let ways = ways.map(|way| Some((task, way)));
            plans.try_each(ways, Some(&mut helper), &mut scratch).unwrap();
            assert!(plans.written.is_some(), "it need not be written again");
            let kept = plans.finish((&task, None), &mut scratch).unwrap();
            assert_eq!(kept.by, "fit");
            let mut again = Buffers::new();
            let (output, mut scratch) = again.parts();
            let made = plan_task(&task, Entrant::Of(shorter), output, &mut scratch).unwrap();
            assert_eq!(kept.plan.steps, made.plan.steps);
            assert_eq!(kept.plan.resident_at_start, made.plan.resident_at_start);
            assert_eq!(kept.plan.predicted, made.plan.predicted);
        }
    }
}
