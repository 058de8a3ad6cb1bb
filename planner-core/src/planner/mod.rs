//! Planners: each turns a graph into a plan and knows no backend.
//!
//! A strategy only chooses what moves when. All share the division of memory (`memory`) and
//! the `builder`, which keeps residency, host copies and occupancy, decides whether an evict
//! needs an offload, and closes the cycle.

mod builder;
mod cache;
mod fit;
mod gaps;
mod heap;
mod in_core;
mod lms;
mod memory;
mod on_demand;
mod paced;
mod pressure;
mod queue;
mod residents;
mod tree;
mod uses;
mod vdnn;
mod window;

use crate::graph::{Graph, OpId};
use crate::lower::{self, lower_pieces};
use crate::machine::Machine;
use crate::pieces::Pieces;
use crate::plan::{ArenaPlacement, Plan, PlanError, Pool, Prediction, Resident, Step};
use crate::schedule::Scheduled;
use crate::scratch::{Limits, OutOfScratch, Scratch};
use crate::timeline::{self, predict_pieces};
use builder::{Builder, Lengths, Stuck};
use core::fmt;
use gaps::{Gaps, Weight};
use memory::Memory;
use pressure::Pressures;
use uses::Uses;

/// How to plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Strategy {
    /// Everything stays on the device; only inputs move.
    InCore,
    /// Least recently used: evict what was not used for longest when memory is needed, and
    /// prefetch one op ahead.
    OnDemand,
    /// As many states on the device as fit, the rest streamed one op ahead: the rule of thumb
    /// of inference servers.
    Fit,
    /// Every temporary is swapped out in the longest gap between two of its uses, from
    /// forward to backward, and fetched one op ahead (vDNN; Rhu et al., 2016).
    Vdnn,
    /// What is next used far ahead is swapped out (Large Model Support; Le et al., 2019).
    Lms(Lms),
    /// The locally adaptive window of Hayakawa & Narihira, section 3.
    Window(Window),
    /// The best of the others by the timeline.
    Auto,
}

/// Parameters of [`Strategy::Window`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Bytes of the sequence of variables that the window covers; when not given, several
    /// sizes are tried in the timeline.
    pub bytes: Option<u64>,
    /// Exactly as published: also copy values that the host holds already.
    pub published: bool,
}

/// Parameters of [`Strategy::Lms`]; of each that is not given, several are tried in the
/// timeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lms {
    /// The most ops to a tensor's next use over which it stays; at least 1.
    pub threshold: Option<u32>,
    /// Ops ahead of that use at which it is swapped in; at most the threshold counts.
    pub ahead: Option<u32>,
}

/// What to plan for.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The work.
    pub graph: &'a Graph<'a>,
    /// Where it runs.
    pub machine: &'a Machine,
    /// Device memory for the plan.
    pub budget_bytes: u64,
}

/// Room for a plan, owned by the caller.
#[derive(Debug)]
pub struct Output<'o> {
    /// The list; [`max_steps`] are always enough, and a fraction of that mostly is.
    pub steps: &'o mut [Step],
    /// As many as steps; working memory only.
    pub schedule: &'o mut [Scheduled],
    /// Two for each tensor.
    pub resident: &'o mut [Resident],
    /// One for each tensor.
    pub arena: &'o mut [ArenaPlacement],
    /// One.
    pub pools: &'o mut [Pool],
}

/// Steps that are enough for every strategy here: of each operand, at most a prefetch, an
/// offload and two evicts; and as many a tensor to close the cycle.
#[must_use]
pub const fn max_steps(limits: &Limits) -> usize {
    limits.ops + 4 * limits.operands + 4 * limits.tensors
}

/// Words of scratch that [`plan`] asks for; of the limits, `steps` is the length of the
/// output's steps. Per op 1, per operand 0.5, per tensor 7.7 words, beside what lowering or
/// predicting takes, whichever is more.
#[must_use]
pub const fn scratch_words(limits: &Limits) -> usize {
    let lower = lower::scratch_words(limits);
    let predict = timeline::scratch_words(limits);
    let judge = larger(lower, predict);
    let strategies = larger(window::scratch_words(limits), vdnn::scratch_words(limits));
    let strategies = larger(strategies, fit::scratch_words(limits));
    let strategies = larger(strategies, cache::scratch_words(limits));
    let paced = Gaps::scratch_words(limits) + paced::scratch_words(limits);
    let write = Builder::scratch_words(limits) + larger(strategies, paced);
    memory::scratch_words(limits)
        + Uses::scratch_words(limits)
        + Pressures::scratch_words(limits)
        + larger(write, judge)
}

const fn larger(one: usize, other: usize) -> usize {
    if one > other { one } else { other }
}

/// Why there is no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanningError {
    /// The budget is too small for this strategy.
    Infeasible {
        /// The smallest budget that is not.
        min_feasible_bytes: u64,
        /// The op that needs it.
        op: OpId,
    },
    /// The budget is more than the device has.
    BudgetAboveDevice {
        /// The budget asked for.
        budget_bytes: u64,
        /// The machine's memory.
        device_bytes: u64,
    },
    /// The output has room for too few steps (or other entries).
    OutputFull,
    /// The working memory is too small.
    Scratch(OutOfScratch),
    /// The plan needs more than the machine has, or its sizes or times exceed 64 bits.
    Plan(PlanError),
}

impl From<OutOfScratch> for PlanningError {
    fn from(error: OutOfScratch) -> Self {
        Self::Scratch(error)
    }
}

impl From<PlanError> for PlanningError {
    fn from(error: PlanError) -> Self {
        match error {
            PlanError::Scratch(error) => Self::Scratch(error),
            other => Self::Plan(other),
        }
    }
}

impl fmt::Display for PlanningError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Infeasible { min_feasible_bytes, op } => {
                write!(f, "the budget is too small: {op} needs at least {min_feasible_bytes} bytes")
            }
            Self::BudgetAboveDevice { budget_bytes, device_bytes } => write!(
                f,
                "the budget of {budget_bytes} bytes is more than the device's {device_bytes}"
            ),
            Self::OutputFull => write!(f, "the output has room for too few steps"),
            Self::Scratch(error) => error.fmt(f),
            Self::Plan(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for PlanningError {}

/// The least memory with which a strategy can plan, and what takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeastMemory {
    /// The smallest feasible budget.
    pub bytes: u64,
    /// The op that needs it.
    pub op: OpId,
    /// What of it is the arena, before rounding up to chunks.
    pub arena_bytes: u64,
    /// How many tensors lie in the arena.
    pub placed: usize,
}

/// The smallest budget with which a strategy can plan at all, and the op that needs it:
/// the least, over the arenas that are tried, of the arena and what the largest op needs
/// beside it (in-core: what the peak needs). That arena is left in `arena`.
///
/// # Errors
/// Scratch that is too small.
pub fn least_memory(
    request: &Request<'_>,
    strategy: Strategy,
    arena: &mut [ArenaPlacement],
    scratch: &mut Scratch<'_>,
) -> Result<LeastMemory, PlanningError> {
    let need = Need::of(strategy);
    memory::smallest(request, need, arena, &mut scratch.reborrow())
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

/// What must be on the device at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// What one op touches.
    LargestOp,
    /// Everything that is alive.
    Everything,
}

impl Need {
    const fn of(strategy: Strategy) -> Self {
        match strategy {
            Strategy::InCore => Self::Everything,
            _ => Self::LargestOp,
        }
    }
}

/// One list of steps that a strategy considers.
#[derive(Clone, Copy, Debug)]
enum Recipe {
    InCore { early_inputs: bool },
    OnDemand,
    Fit,
    Vdnn,
    Lms { threshold: u32, ahead: u32 },
    Window { window: Window, bytes: u64 },
    Paced { spare_permille: u64, weight: Weight },
}

/// Times that the gaps are chosen anew by the pressure that the best list shows.
const ROUNDS: usize = 12;

/// Shares of the pool, per mille, that are kept free for transfers under way.
const SPARE_PERMILLE: [u64; 5] = [0, 20, 50, 100, 200];

/// Window sizes that are tried when none is given, as fractions of four times the budget:
/// the largest is bounded by memory alone.
const WINDOW_FRACTIONS: [u64; 6] = [1, 4, 8, 16, 32, 64];

impl Strategy {
    /// The recipes of which the best is kept, best guesses first.
    fn recipes(self, request: &Request<'_>) -> impl Iterator<Item = Recipe> {
        let (budget_bytes, ops) = (request.budget_bytes, request.graph.ops().len());
        let in_core = matches!(self, Self::InCore | Self::Auto);
        let in_core = [true, false]
            .into_iter()
            .filter(move |_| in_core)
            .map(|early_inputs| Recipe::InCore { early_inputs });
        let on_demand = matches!(self, Self::OnDemand | Self::Auto);
        let on_demand = on_demand.then_some(Recipe::OnDemand);
        let fit = (self == Self::Fit).then_some(Recipe::Fit);
        let vdnn = (self == Self::Vdnn).then_some(Recipe::Vdnn);
        let lms = if let Self::Lms(lms) = self { Some(lms) } else { None };
        let lms = lms.into_iter().flat_map(move |lms| lms::grid(lms, ops));
        let lms = lms.map(|(threshold, ahead)| Recipe::Lms { threshold, ahead });
        let window = match self {
            Self::Window(window) => Some(window),
            Self::Auto => Some(Window::default()),
            _ => None,
        };
        let given = window.and_then(|window| Some(Recipe::Window { window, bytes: window.bytes? }));
        let tried = window.filter(|window| window.bytes.is_none()).into_iter();
        let tried = tried.flat_map(move |window| {
            WINDOW_FRACTIONS.into_iter().map(move |fraction| {
                let bytes = budget_bytes.saturating_mul(4) / fraction;
                Recipe::Window { window, bytes }
            })
        });
        let paced = matches!(self, Self::Auto).then_some(SPARE_PERMILLE).into_iter().flatten();
        let paced = paced.flat_map(|spare_permille| {
            [Weight::Density, Weight::Length].map(|weight| Recipe::Paced { spare_permille, weight })
        });
        in_core
            .chain(paced)
            .chain(on_demand)
            .chain(fit)
            .chain(vdnn)
            .chain(lms)
            .chain(given)
            .chain(tried)
    }
}

/// Plans. The same input gives the same plan.
///
/// # Errors
/// An infeasible budget, with the smallest feasible one; room that is too small.
pub fn plan<'o>(
    request: &Request<'_>,
    strategy: Strategy,
    output: Output<'o>,
    scratch: &mut Scratch<'_>,
) -> Result<Plan<'o>, PlanningError> {
    let (budget_bytes, device_bytes) = (request.budget_bytes, request.machine.device_bytes);
    if budget_bytes > device_bytes {
        return Err(PlanningError::BudgetAboveDevice { budget_bytes, device_bytes });
    }
    let mut scratch = scratch.reborrow();
    let Output { steps, schedule, resident, arena, pools } = output;
    let mut desk = Desk {
        request,
        steps,
        schedule,
        resident,
        pools,
        host_shortage_bytes: None,
        output_full: false,
    };
    let memory = Memory::new(request, Need::of(strategy), arena, &mut scratch)?;
    let uses = Uses::new(request.graph, &mut scratch)?;
    let ground = Ground { memory: &memory, uses: &uses, arena: &arena[..memory.placed] };
    let Some(best) = desk.best(strategy, &ground, &mut scratch)? else {
        if desk.output_full {
            return Err(PlanningError::OutputFull);
        }
        if let Some(needed_bytes) = desk.host_shortage_bytes {
            let host_bytes = request.machine.host_bytes;
            return Err(PlanError::HostMemory { needed_bytes, host_bytes }.into());
        }
        let (min_feasible_bytes, op) = min_feasible(request, strategy, arena, &mut scratch)?;
        return Err(PlanningError::Infeasible { min_feasible_bytes, op });
    };
    let Desk { steps, resident, pools, .. } = desk;
    let (lengths, predicted) = (best.lengths, best.predicted);
    let lists = (&steps[..lengths.steps], &resident[..lengths.resident]);
    let plan = memory.plan(request, &arena[..memory.placed], lists, pools)?;
    Ok(Plan { predicted, ..plan })
}

/// What all lists of one request stand on.
#[derive(Clone, Copy)]
struct Ground<'g> {
    memory: &'g Memory<'g>,
    uses: &'g Uses<'g>,
    arena: &'g [ArenaPlacement],
}

/// A list that has been written and judged.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    recipe: Recipe,
    lengths: Lengths,
    predicted: Prediction,
}

/// Where lists are written and judged, one at a time.
struct Desk<'d, 'r> {
    request: &'r Request<'r>,
    steps: &'d mut [Step],
    schedule: &'d mut [Scheduled],
    resident: &'d mut [Resident],
    pools: &'d mut [Pool],
    /// The least host memory of the lists that need more than there is.
    host_shortage_bytes: Option<u64>,
    /// Whether some list needs more steps than there is room for.
    output_full: bool,
}

impl Desk<'_, '_> {
    /// The best list of a strategy, written; none where no recipe fits the budget.
    fn best(
        &mut self,
        strategy: Strategy,
        ground: &Ground<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Option<Candidate>, PlanningError> {
        let cost = |candidate: &Candidate| {
            let Prediction { period_ns, h2d_bytes, d2h_bytes, .. } = candidate.predicted;
            (period_ns, h2d_bytes.saturating_add(d2h_bytes))
        };
        let mut scratch = scratch.reborrow();
        let ops = self.request.graph.ops().len();
        let mut pressures = Pressures::new(ops, &mut scratch)?;
        let mut best: Option<Candidate> = None;
        let mut written_last = false;
        let done = |best: &Option<Candidate>| {
            best.is_some_and(|best| best.predicted.period_ns == best.predicted.compute_ns)
        };
        let mut recipes = strategy.recipes(self.request);
        let mut rounds = 0..ROUNDS;
        while !done(&best) {
            let recipe = match (recipes.next(), best) {
                (Some(recipe), _) => recipe,
                // The best list so far shows where transfers hurt.
                (None, Some(Candidate { recipe: Recipe::Paced { spare_permille, .. }, .. }))
                    if rounds.next().is_some() =>
                {
                    pressures.turn();
                    Recipe::Paced { spare_permille, weight: Weight::Density }
                }
                _ => break,
            };
            let candidate = self.try_out(recipe, ground, &mut pressures, &mut scratch)?;
            let is_better = |candidate: &Candidate| {
                best.as_ref().is_none_or(|best| cost(candidate) < cost(best))
            };
            let better = candidate.filter(is_better);
            written_last = better.is_some();
            if written_last {
                best = better;
                pressures.keep();
            }
        }
        match best {
            Some(best) if !written_last => {
                pressures.recall();
                self.try_out(best.recipe, ground, &mut pressures, &mut scratch)
            }
            best => Ok(best),
        }
    }

    /// Writes a list and judges it; none where it does not fit the budget, the
    /// host, or the output.
    fn try_out(
        &mut self,
        recipe: Recipe,
        ground: &Ground<'_>,
        pressures: &mut Pressures<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Option<Candidate>, PlanningError> {
        let lengths = match self.write(recipe, ground, pressures, &mut scratch.reborrow())? {
            Ok(lengths) => lengths,
            Err(Stuck::NoRoom) => return Ok(None),
            Err(Stuck::OutputFull) => {
                self.output_full = true;
                return Ok(None);
            }
        };
        let Request { graph, machine, .. } = *self.request;
        let lists = (&self.steps[..lengths.steps], &self.resident[..lengths.resident]);
        let plan = ground.memory.plan(self.request, ground.arena, lists, self.pools)?;
        let mut scratch = scratch.reborrow();
        let pieces = Pieces::new(graph, machine, &plan, &mut scratch)?;
        let schedule = lower_pieces(graph, &plan, &pieces, self.schedule, &mut scratch)?;
        let (predicted, _) =
            predict_pieces(graph, machine, &plan, &pieces, &schedule, &mut scratch)?;
        let (needed_bytes, host_bytes) = (predicted.host_bytes, machine.host_bytes);
        if needed_bytes > host_bytes {
            let least = self.host_shortage_bytes.get_or_insert(needed_bytes);
            *least = needed_bytes.min(*least);
            return Ok(None);
        }
        Ok(Some(Candidate { recipe, lengths, predicted }))
    }

    fn write(
        &mut self,
        recipe: Recipe,
        ground: &Ground<'_>,
        pressures: &mut Pressures<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Result<Lengths, Stuck>, OutOfScratch> {
        let output = (&mut *self.steps, &mut *self.resident);
        let mut scratch = scratch.reborrow();
        let Ground { memory, uses, .. } = *ground;
        let builder = Builder::new(self.request, memory, uses, output, &mut scratch)?;
        match recipe {
            Recipe::InCore { early_inputs } => Ok(in_core::write(builder, early_inputs)),
            Recipe::OnDemand => on_demand::write(builder, &mut scratch),
            Recipe::Fit => fit::write(builder, &mut scratch),
            Recipe::Vdnn => vdnn::write(builder, &mut scratch),
            Recipe::Lms { threshold, ahead } => lms::write(builder, threshold, ahead, &mut scratch),
            Recipe::Window { window, bytes } => window::write(builder, window, bytes, &mut scratch),
            Recipe::Paced { spare_permille, weight } => {
                let (whole, part) = (memory.pool_objects / 1000, memory.pool_objects % 1000);
                let spare = whole * spare_permille + part * spare_permille / 1000;
                let mut gaps = Gaps::new(self.request.graph, &mut scratch)?;
                let used = &pressures.used;
                match gaps.choose(self.request, memory, spare, weight, used, &mut scratch)? {
                    Ok(()) => paced::write(builder, &gaps, &mut pressures.seen, &mut scratch),
                    Err(stuck) => Ok(Err(stuck)),
                }
            }
        }
    }
}
