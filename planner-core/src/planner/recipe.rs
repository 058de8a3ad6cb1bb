//! The lists that `auto` tries, and the lists that other strategies consider.

use super::builder::Builder;
use super::chance::Chance;
use super::choice::{Choosing, Weight};
use super::error::PlanningError;
use super::fit::Fit;
use super::groups::Groups;
use super::host_memory::{UNLIMITED, lower};
use super::hosting::Host;
use super::in_core::InCore;
use super::list::{Lengths, Stuck};
#[cfg(feature = "baselines")]
use super::lms::Lms;
use super::on_demand::OnDemand;
use super::paced::{MOST_COARSER, Pace};
use super::repeats::rounds::MOST_LISTS as MOST_REPEATED;
use super::request::Task;
use super::strategy::{Named, Need, Parameter, Rule, Strategy, Takes};
use super::trials::Search;
#[cfg(feature = "baselines")]
use super::vdnn::Vdnn;
use super::weights::{EveryWay, Weights};
use super::window::Window;
use crate::graph::{Graph, Kind};
use crate::scratch::Scratch;
use crate::sequence::Sequence;
use core::iter;

/// Parameters of [`Strategy::Auto`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Auto {
    /// How many paced lists are tried in the order that is chosen; when not given, as many as
    /// take about a second, and from 2 to 400. With 0, the first list that fits is the plan, in
    /// the given order and compared with no other.
    pub effort: Option<u32>,
    /// Whether ops may run in another order.
    pub order: Order,
    /// Whether ops may run again.
    pub repeats: Repeats,
    /// Which ops run on the host.
    pub host: Host,
    /// Whether only small tensors may lie in the arena. Otherwise, states that never leave the device and
    /// tensors of up to four chunks lie there, too, if the plan is no longer. A state that two plans have
    /// outside of the arena stays in place when they are switched.
    pub small_arena: bool,
}

impl Auto {
    /// The default parameters.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            effort: None,
            order: Order::Free,
            repeats: Repeats::Allowed,
            host: Host::Allowed,
            small_arena: false,
        }
    }
}

setters!(Auto {
    effort: u32 as Some => with_effort,
    order: Order => with_order,
    repeats: Repeats => with_repeats,
    host: Host => with_host,
    small_arena: bool => with_small_arena,
});

/// Whether [repeatable](crate::Op::repeatable) ops are launched again, so that their results need
/// not stay on the device or move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Repeats {
    /// Each op runs once.
    Never,
    /// Ops are launched again if this makes the plan shorter.
    #[default]
    Allowed,
}

/// Which orders of the ops are considered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// The given order.
    Given,
    /// Also up to two other orders that keep the dependencies: the order in which a sample of lists
    /// is best.
    #[default]
    Free,
}

/// One list of steps that is considered.
#[derive(Clone, Copy, Debug)]
pub(super) enum Recipe<'r> {
    /// A list of a rule, by its number.
    Of(Named<'r>, usize),
    /// A list for `auto` alone.
    Paced(Paced),
}

/// A list in which chosen gaps are carried out in simulated time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Paced {
    pub(super) choosing: Choosing,
    pub(super) pace: Pace,
}

/// The name of the maker of a paced list.
pub(super) const PACED_NAME: &str = "paced";

/// The rules that `auto` compares its own lists with. They need no more memory than the largest op.
const OTHERS: &[Named<'_>] = &[
    ("on-demand", &OnDemand),
    ("fit", &Fit),
    ("groups", &Groups::new()),
    #[cfg(feature = "baselines")]
    ("vdnn", &Vdnn),
    #[cfg(feature = "baselines")]
    ("lms", &Lms::new()),
    ("window", &Window::new()),
];

/// A rule with more lists is left out if ops run on the host. A balance: `groups` takes as long as all
/// others, and plans of random works were no longer without it.
const LISTS_BESIDE_HOST: usize = 50;

/// The rules that divide memory by a need of their own. Some of them plan only chains.
const OTHER_NEEDS: &[Strategy] = &[
    Strategy::InCore,
    Strategy::Weights(Weights::new()),
    #[cfg(feature = "baselines")]
    Strategy::WeightsUndiscounted,
    #[cfg(feature = "baselines")]
    Strategy::LayerToLayer,
];

/// On chains, `auto` also moves weights in parts.
const IN_PARTS: Named<'_> = ("weights in parts", &EveryWay);

/// A competitor in the comparison of plans.
#[derive(Clone, Copy, Debug)]
pub(super) enum Entrant {
    /// A strategy; of `auto`, its own lists.
    Of(Strategy),
    /// All of the [`OTHERS`].
    Others,
}

impl Entrant {
    /// The strategies that `auto` compares with.
    pub(super) fn others() -> impl Iterator<Item = Self> {
        iter::once(Self::Others).chain(OTHER_NEEDS.iter().copied().map(Self::Of))
    }

    pub(super) fn need(&self, sequence: &Sequence<'_>) -> Need {
        match self {
            Self::Of(strategy) => strategy.rule().need(sequence),
            Self::Others => Need::LargestOp,
        }
    }

    /// Refuses work that it does not plan.
    pub(super) fn check(
        &self,
        sequence: &Sequence<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<(), PlanningError> {
        match self {
            Self::Of(strategy) => strategy.rule().check(sequence, scratch),
            Self::Others => Ok(()),
        }
    }

    /// Whether lists are written from gaps and pressures.
    pub(super) fn moves_in_gaps(&self) -> bool {
        matches!(self, Self::Of(strategy) if strategy.rule().moves_in_gaps())
    }

    /// Whether only small tensors may lie in the arena.
    pub(super) const fn has_small_arena(&self) -> bool {
        matches!(self, Self::Of(Strategy::Auto(Auto { small_arena: true, .. })))
    }

    /// Whether this is `auto` with its own lists.
    pub(super) const fn is_auto(&self) -> bool {
        matches!(self, Self::Of(Strategy::Auto(_)))
    }

    /// Whether only `auto` plans with this.
    pub(super) const fn is_of_auto(&self) -> bool {
        self.is_auto() || matches!(self, Self::Others)
    }

    /// Whether the first list that fits will do.
    pub(super) const fn stops_at_first(&self) -> bool {
        matches!(self, Self::Of(strategy) if strategy.stops_at_first())
    }

    /// How many lists are chosen anew; and how many more once memory is divided anew.
    pub(super) fn rounds(&self, task: &Task<'_>) -> [Rounds; 2] {
        match self {
            Self::Of(strategy) => strategy.rounds(task.sequence.len(), first_choosing(task).len()),
            Self::Others => [Rounds::default(); 2],
        }
    }

    /// The recipes of which the best is kept, best guesses first.
    pub(super) fn recipes<'r>(&'r self, task: &Task<'_>) -> impl Iterator<Item = Recipe<'r>> {
        let lists =
            |named: Named<'r>| (0..named.1.lists(task)).map(move |list| Recipe::Of(named, list));
        let (first, paced) = match self {
            Self::Of(Strategy::Auto(auto)) => {
                (Some(Strategy::InCore.entry()), auto.paced_lists(task.sequence.len()))
            }
            Self::Of(strategy) => (Some(strategy.entry()), 0),
            Self::Others => (None, 0),
        };
        // Lists with repeats have been chosen for paced lists alone.
        let in_parts = self.is_auto() && !task.sequence.has_repeats();
        let is_on_device = task.sequence.host_steps().is_empty();
        let others = if let Self::Others = self { OTHERS } else { &[] };
        let others = others.iter().copied();
        let others =
            others.filter(move |(_, rule)| is_on_device || rule.lists(task) <= LISTS_BESIDE_HOST);
        let paced = first_choosing(task).into_iter().take(paced);
        first
            .into_iter()
            .flat_map(lists)
            .chain(paced.map(first_paced))
            .chain(in_parts.then_some(IN_PARTS).into_iter().flat_map(lists))
            .chain(others.flat_map(lists))
    }
}

const fn choosing(spare_permille: u64, weight: Weight) -> Choosing {
    Choosing { spare_permille, weight, host_bytes: UNLIMITED }
}

/// The first paced lists, best guesses first.
const PACED: [Choosing; 10] = [
    choosing(0, Weight::Density),
    choosing(50, Weight::Density),
    choosing(0, Weight::Spread),
    choosing(50, Weight::Spread),
    choosing(20, Weight::Density),
    choosing(400, Weight::Density),
    choosing(20, Weight::Spread),
    choosing(100, Weight::Spread),
    choosing(100, Weight::Density),
    choosing(200, Weight::Density),
];

/// The same if ops run on the host, after a list with [`host_spare_permille`]: links share the work
/// with the host all the time.
const PACED_BY_HOST: [Choosing; 4] = [
    choosing(20, Weight::Spread),
    choosing(50, Weight::Spread),
    choosing(0, Weight::Density),
    choosing(50, Weight::Density),
];

/// The share of memory to keep free if ops run on the host. It holds more than the largest tensor
/// that a link uploads, so that the link need not wait while the host computes. Residents make
/// better use of the rest.
fn host_spare_permille(task: &Task<'_>) -> u64 {
    const LEAST: u64 = 20;
    const MOST: u64 = 400;
    let tensors = task.sequence.operands().iter().map(|&tensor| task.sequence.tensor(tensor));
    let uploaded = tensors.filter(|tensor| matches!(tensor.kind, Kind::State | Kind::Input));
    let largest_bytes = uploaded.map(|tensor| tensor.bytes).max().unwrap_or(0);
    let spare = u128::from(largest_bytes).saturating_mul(1200);
    let permille = spare.checked_div(task.budget_bytes.into()).unwrap_or(0);
    u64::try_from(permille).unwrap_or(MOST).clamp(LEAST, MOST)
}

fn first_choosing(task: &Task<'_>) -> heapless::Vec<Choosing, { PACED.len() }> {
    if task.sequence.host_steps().is_empty() {
        return heapless::Vec::from_array(PACED);
    }
    let first = choosing(host_spare_permille(task), Weight::Spread);
    let others = PACED_BY_HOST.into_iter().filter(|&other| other != first);
    iter::once(first).chain(others).collect()
}

/// Lists that tell some works apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample<'r> {
    pub(super) recipes: &'r [Recipe<'static>],
    /// Once so many have been tried, one that fits is enough.
    pub(super) enough: usize,
}

const fn pace(segment_latencies: u64, tails_in_time: bool) -> Pace {
    Pace { segment_latencies, tails_in_time, coarser: 0 }
}

/// The paces that are tried in turn while gaps are chosen anew. Which is best differs by work.
pub(super) const PACES: [Pace; 4] =
    [pace(100, true), pace(100, false), pace(300, false), pace(300, true)];

/// The lengths of segments, in latencies, that shaken lists are given now and then.
const SEGMENTS: [u64; 6] = [30, 50, 100, 200, 300, 1000];

/// How many times in a hundred a shaken list has another pace, or another share kept free.
const CHANGED_PERCENT: u64 = 30;

/// Lists that tell one order of the ops from another: the list that is usually best, and a list
/// that always fits.
pub(super) const SAMPLE: Sample<'static> = Sample {
    recipes: &[
        Recipe::Of(("in-core", &InCore), 0),
        BY_DENSITY[0],
        Recipe::Of(("on-demand", &OnDemand), 0),
        BY_DENSITY[1],
    ],
    enough: 4,
};

/// Lists that tell choices of ops for the host apart; all but the last are enough.
pub(super) fn host_sample(task: &Task<'_>) -> heapless::Vec<Recipe<'static>, 4> {
    let first = choosing(host_spare_permille(task), Weight::Spread);
    let second = Some(PACED_BY_HOST[0]).filter(|&second| second != first);
    iter::once(Recipe::Of(("in-core", &InCore), 0))
        .chain(iter::once(first).chain(second).map(first_paced))
        .chain(iter::once(Recipe::Of(("on-demand", &OnDemand), 0)))
        .collect()
}

/// The best guess, then lists that keep more and more of the memory free. In some works they are shorter
/// by several hundredths.
pub(super) const BY_DENSITY: [Recipe<'static>; 5] = sparing(Weight::Density);

/// The same with [spread](Weight::Spread) transfers.
pub(super) const BY_SPREAD: [Recipe<'static>; 5] = sparing(Weight::Spread);

const fn sparing(weight: Weight) -> [Recipe<'static>; 5] {
    [
        first_paced(choosing(0, weight)),
        first_paced(choosing(50, weight)),
        first_paced(choosing(100, weight)),
        first_paced(choosing(200, weight)),
        first_paced(choosing(400, weight)),
    ]
}

/// A paced list in the first of the [`PACES`].
const fn first_paced<'r>(choosing: Choosing) -> Recipe<'r> {
    Recipe::Paced(Paced { choosing, pace: PACES[0] })
}

/// From this many ops on, the first list of the sample that fits is enough. A balance: the others tell
/// orders apart more surely, and each takes as long as any list.
pub(super) const LARGE_OPS: usize = 10_000;

/// Ops that paced lists may have together, when no effort is given: about a second's worth.
const OPS_PER_PLAN: usize = 100_000;

/// Paced lists beyond which more gain next to nothing.
const MOST_LISTS: usize = 400;

/// A sequence that a search has found gets four lists for each list of `auto`, but no more than this
/// number. A balance: the search takes many times as long, and further lists gain less than a thousandth
/// of the period on average.
const LISTS_OF_FOUND: usize = 100;

/// Rounds in which the pressures come to rest, as a rule. A balance: further rounds change little,
/// and leave fewer lists to be shaken.
const TURNS: usize = 25;

/// The numbers of lists that are chosen anew once all recipes are done.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rounds {
    /// By the pressures that the list before shows.
    pub(super) turns: usize,
    /// Then by the pressures of the best list, shaken.
    pub(super) shakes: usize,
}

/// The further lists of a sequence whose first list is nearly as short as the best. A balance: more lists
/// judge it more surely, and each takes as long as any list.
pub(super) const SAMPLED_ROUNDS: Rounds = Rounds { turns: 2, shakes: 0 };

impl Rounds {
    /// Fewer rounds, for each of several memories. A balance: most of the gain comes first.
    pub(super) const fn fewer(self) -> Self {
        Self { turns: self.turns / 2, shakes: self.shakes / 4 }
    }
}

impl Recipe<'_> {
    /// A recipe with larger segments. A list that had `needed` steps then fits into a buffer of
    /// `room` steps. `None` if segments cannot be larger, or if the list has no segments.
    pub(super) fn coarser(self, needed: usize, room: usize) -> Option<Self> {
        let Self::Paced(Paced { choosing, pace }) = self else { return None };
        let more = needed.checked_div(room).unwrap_or(needed).max(2).ilog2();
        let coarser = pace.coarser.saturating_add(more).min(MOST_COARSER);
        let is_coarser = coarser > pace.coarser;
        is_coarser.then_some(Self::Paced(Paced { choosing, pace: Pace { coarser, ..pace } }))
    }

    /// The same with less of the host's memory, if a list took `needed_bytes` of `host_bytes`.
    /// `None` if less memory is of no use, or if the list does not know how much it takes.
    pub(super) fn on_less_host(self, needed_bytes: u64, host_bytes: u64) -> Option<Self> {
        let Self::Paced(Paced { choosing, pace }) = self else { return None };
        let host_bytes = lower(choosing.host_bytes, needed_bytes, host_bytes)?;
        Some(Self::Paced(Paced { choosing: Choosing { host_bytes, ..choosing }, pace }))
    }
}

impl Paced {
    /// A list to be made by shaken pressures, with much the same parameters.
    pub(super) fn perturbed(self, chance: &mut Chance) -> Self {
        let Self { choosing: choosing @ Choosing { spare_permille, .. }, pace } = self;
        let spare_permille = if chance.percent(CHANGED_PERCENT) {
            let less = spare_permille.saturating_sub(5);
            let [more, most] = [5, 20].map(|more| spare_permille.saturating_add(more));
            chance.one_of(&[spare_permille / 2, less, more, most])
        } else {
            spare_permille
        };
        let pace = if chance.percent(CHANGED_PERCENT) {
            let segment_latencies = chance.one_of(&SEGMENTS);
            Pace { segment_latencies, tails_in_time: chance.percent(50), ..pace }
        } else {
            pace
        };
        Self { choosing: Choosing { spare_permille, ..choosing }, pace }
    }
}

impl Auto {
    /// How many paced lists are tried.
    pub(super) fn paced_lists(self, ops: usize) -> usize {
        let lists = OPS_PER_PLAN.checked_div(ops).unwrap_or(OPS_PER_PLAN);
        let by_default = lists.clamp(2, MOST_LISTS);
        self.effort.map_or(by_default, |effort| (effort as usize).max(1))
    }
}

impl Strategy {
    /// The same with its lists shared between two orders. `None` if there are too few lists.
    pub(super) fn shared(self, ops: usize) -> Option<Self> {
        let Self::Auto(auto) = self else { return None };
        let half = auto.paced_lists(ops) / 2;
        let effort = (half > PACED.len()).then_some(u32::try_from(half).ok()?)?;
        Some(Self::Auto(Auto { effort: Some(effort), ..auto }))
    }

    /// The same with the lists of a sequence that a search has found: at least half of its own lists.
    pub(super) fn of_found(self, ops: usize) -> Self {
        match self {
            Self::Auto(auto) if !self.stops_at_first() => {
                let lists = auto.paced_lists(ops);
                let found = lists.saturating_mul(4).min(LISTS_OF_FOUND).max(lists / 2);
                Self::Auto(Auto { effort: u32::try_from(found).ok(), ..auto })
            }
            _ => self,
        }
    }

    /// Whether the first list that fits will do.
    pub(super) const fn stops_at_first(self) -> bool {
        matches!(self, Self::Auto(Auto { effort: Some(0), .. }))
    }

    /// Whether the ops may run in another order than the given one.
    pub(super) const fn orders_freely(self) -> bool {
        matches!(self, Self::Auto(Auto { order: Order::Free, .. })) && !self.stops_at_first()
    }

    /// The same in the given order of the ops.
    pub(super) const fn in_given_order(self) -> Self {
        match self {
            Self::Auto(auto) => Self::Auto(auto.with_order(Order::Given)),
            _ => self,
        }
    }

    /// Whether ops may run again in the strategies that this strategy is compared with.
    pub(super) const fn repeats(self) -> Repeats {
        match self {
            Self::Auto(Auto { repeats, .. }) => repeats,
            _ => Repeats::Allowed,
        }
    }

    /// How many lists are chosen anew; and how many more once memory is divided anew.
    fn rounds(self, ops: usize, firsts: usize) -> [Rounds; 2] {
        let Self::Auto(auto) = self else { return [Rounds::default(); 2] };
        let rounds = auto.paced_lists(ops).saturating_sub(firsts);
        let turns = rounds.min(TURNS);
        let shakes = rounds.saturating_sub(turns);
        let later = Rounds { turns: turns / 4, shakes: shakes / 4 };
        // Shakes take the place of turns that are left for later.
        let first = Rounds {
            turns: turns.saturating_sub(later.turns),
            shakes: shakes.saturating_sub(later.shakes).saturating_add(later.turns),
        };
        [first, later]
    }

    /// The number of lists with repeats that are tried; 0 if there can be no repeats.
    pub(super) fn lists_with_repeats(self, graph: &Graph<'_>) -> usize {
        match self {
            Self::Auto(auto)
                if auto.repeats == Repeats::Allowed
                    && graph.ops().iter().any(|op| op.repeatable) =>
            {
                (auto.paced_lists(graph.ops().len()).saturating_mul(3) / 2).clamp(1, MOST_REPEATED)
            }
            _ => 0,
        }
    }
}

/// Before the paced lists, `auto` keeps everything on the device.
impl Rule for Auto {
    fn parameters(&self) -> &'static [Parameter] {
        &[
            Parameter { name: "effort", takes: Takes::Count("plans to try", 0, 10_000) },
            Parameter { name: "order", takes: Takes::Word(&["given", "free"]) },
            Parameter { name: "repeats", takes: Takes::Word(&["no", "yes"]) },
            Parameter { name: "host", takes: Takes::Word(&["no", "yes", "all"]) },
            Parameter { name: "arena", takes: Takes::Word(&["large", "small"]) },
        ]
    }

    fn set(&mut self, parameter: &str, value: u64) {
        match (parameter, value) {
            ("effort", value) => self.effort = u32::try_from(value).ok(),
            ("order", 0) => self.order = Order::Given,
            ("order", _) => self.order = Order::Free,
            ("repeats", 0) => self.repeats = Repeats::Never,
            ("repeats", _) => self.repeats = Repeats::Allowed,
            ("host", 0) => self.host = Host::Never,
            ("host", 1) => self.host = Host::Allowed,
            ("host", _) => self.host = Host::All,
            ("arena", value) => self.small_arena = value != 0,
            _ => {}
        }
    }

    fn moves_in_gaps(&self) -> bool {
        true
    }

    fn lists(&self, task: &Task<'_>) -> usize {
        InCore.lists(task)
    }

    fn write(
        &self,
        list: usize,
        builder: Builder<'_>,
        search: &mut Search<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Lengths, Stuck> {
        InCore.write(list, builder, search, scratch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Op, Tensor, TensorId};
    use crate::machine::Machine;

    #[test]
    fn turns_come_before_shakes() {
        let rounds = |effort| {
            let auto = Strategy::Auto(Auto { effort: Some(effort), ..Auto::default() });
            let rounds = auto.rounds(1, PACED.len());
            rounds.map(|Rounds { turns, shakes }| (turns, shakes))
        };
        assert_eq!(rounds(8), [(0, 0), (0, 0)]);
        assert_eq!(rounds(18), [(6, 2), (2, 0)]);
        assert_eq!(rounds(35), [(19, 6), (6, 0)]);
        assert_eq!(rounds(135), [(19, 81), (6, 25)]);
    }

    /// The largest tensor is a temporary, which is no upload.
    #[test]
    fn host_lists_keep_room_for_the_largest_upload() {
        let tensor = |bytes, kind| Tensor { bytes, kind };
        let tensors =
            [tensor(50, Kind::State), tensor(100, Kind::State), tensor(300, Kind::Temporary)];
        let operands = [0, 1, 2].map(TensorId);
        let ops = [Op { time_ns: 1, reads: 2, writes: 1, ..Op::default() }];
        let mut words = [0; 256];
        let mut scratch = Scratch::new(&mut words);
        let graph = Graph::new(&tensors, &ops, &operands, &mut scratch.reborrow()).unwrap();
        let machine = Machine::of_chunks(1);
        let sequence = Sequence::as_given(&graph, None, &mut scratch).unwrap();
        for (budget_bytes, permille) in [(10_000, 20), (1000, 120), (500, 240), (200, 400)] {
            let task = Task { sequence: &sequence, machine: &machine, budget_bytes };
            assert_eq!(host_spare_permille(&task), permille, "of {budget_bytes} B");
        }
    }

    #[test]
    fn sequences_of_large_works_get_lists_with_perturbed_pressures() {
        let lists = |effort, ops| {
            let strategy = Strategy::Auto(Auto { effort, ..Auto::default() });
            let Strategy::Auto(found) = strategy.of_found(ops) else { unreachable!() };
            found.effort
        };
        assert_eq!(
            [250, 2000, 10_000, 100_000].map(|ops| lists(None, ops)),
            [200, 100, 40, 8].map(Some)
        );
        assert_eq!(
            [0, 1, 32, 400].map(|effort| lists(Some(effort), 250)),
            [0, 4, 100, 200].map(Some)
        );
    }

    #[test]
    fn a_perturbed_list_differs_now_and_then() {
        let first = Paced { choosing: PACED[1], pace: PACES[0] };
        let lists: [Paced; 200] =
            core::array::from_fn(|seed| first.perturbed(&mut Chance::new(seed as u64)));
        let count = |is: fn(u64, Pace) -> bool| {
            lists.iter().filter(|list| is(list.choosing.spare_permille, list.pace)).count()
        };
        assert!((30..90).contains(&count(|spare, _| spare != 50)));
        assert!((30..90).contains(&count(|_, pace| pace != PACES[0])));
        assert!(count(|spare, pace| spare == 50 && pace == PACES[0]) > 60);
    }
}
