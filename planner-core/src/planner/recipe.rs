//! What `auto` tries, and the lists that other strategies consider.

use super::builder::Builder;
use super::chance::Chance;
use super::choice::{Choosing, Weight};
use super::fit::Fit;
use super::groups::Groups;
use super::hosting::Host;
use super::in_core::InCore;
use super::list::{Lengths, Stuck};
use super::lms::Lms;
use super::on_demand::OnDemand;
use super::paced::Pace;
use super::repeats::search::MOST_LISTS as MOST_REPEATED;
use super::request::Task;
use super::strategy::{Rule, Strategy};
use super::trials::Search;
use super::vdnn::Vdnn;
use super::weights::EveryWay;
use super::window::Window;
use crate::graph::{Graph, Kind};
use crate::scratch::Scratch;

/// Parameters of [`Strategy::Auto`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
}

/// Whether [repeatable](crate::Op::repeatable) ops are launched again, so that what they make
/// need not stay on the device or move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Repeats {
    /// Each op runs once.
    Never,
    /// Wherever that makes the plan shorter.
    #[default]
    Allowed,
}

/// Which orders of the ops are considered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// The one that is given.
    Given,
    /// Also up to two others that keep the dependencies: the one in which a sample of lists
    /// is best.
    #[default]
    Free,
}

impl From<Auto> for Strategy {
    fn from(auto: Auto) -> Self {
        Self::Auto(auto)
    }
}

/// One list of steps that is considered.
#[derive(Clone, Copy, Debug)]
pub(super) enum Recipe<'r> {
    /// A list of a rule, by its number.
    Of(&'r dyn Rule, usize),
    /// A list for `auto` alone.
    Paced(Paced),
}

/// A list in which chosen gaps are carried out in simulated time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Paced {
    pub(super) choosing: Choosing,
    pub(super) pace: Pace,
}

/// The rules that `auto` tries after its paced lists.
const OTHERS: &[&dyn Rule] = &[
    &OnDemand,
    &Fit,
    &Vdnn,
    &EveryWay,
    &Lms { threshold: None, ahead: None },
    &Window { bytes: None, published: false },
];

/// It tries these lists as well where no op writes a state, as in inference: weights are streamed.
const STREAMING: &Groups = &Groups { size: None, leaving: None, ahead: None };

/// Ops that streaming lists may have together: a fraction of a second's worth. Up to 2,000 ops, all
/// are tried.
const STREAMED_OPS: usize = 400_000;

/// The first paced lists, best guesses first.
const PACED: [Choosing; 7] = [
    Choosing { spare_permille: 0, weight: Weight::Density },
    Choosing { spare_permille: 50, weight: Weight::Density },
    Choosing { spare_permille: 100, weight: Weight::Density },
    Choosing { spare_permille: 20, weight: Weight::Density },
    Choosing { spare_permille: 200, weight: Weight::Density },
    Choosing { spare_permille: 50, weight: Weight::Length },
    Choosing { spare_permille: 0, weight: Weight::Length },
];

/// The paces that are tried in turn while gaps are chosen anew. Which is best differs by work.
pub(super) const PACES: [Pace; 4] = [
    Pace { segment_latencies: 100, tails_in_time: true },
    Pace { segment_latencies: 100, tails_in_time: false },
    Pace { segment_latencies: 300, tails_in_time: false },
    Pace { segment_latencies: 300, tails_in_time: true },
];

/// The lengths of segments, in latencies, that shaken lists are given now and then.
const SEGMENTS: [u64; 6] = [30, 50, 100, 200, 300, 1000];

/// How many times in a hundred a shaken list has another pace, or another share kept free.
const CHANGED_PERCENT: u64 = 30;

/// Lists that tell one order of the ops from another: what is best as a rule, and what
/// always fits.
pub(super) const SAMPLE: [Recipe<'static>; 4] = [
    Recipe::Of(&InCore, 0),
    FIRST_PACED,
    Recipe::Of(&OnDemand, 0),
    Recipe::Paced(Paced { choosing: PACED[1], pace: PACES[0] }),
];

/// The best guess of all.
pub(super) const FIRST_PACED: Recipe<'static> =
    Recipe::Paced(Paced { choosing: PACED[0], pace: PACES[0] });

/// From this many ops on, the first list of the sample that fits is enough. A balance: the others tell
/// orders apart more surely, and each takes as long as any list.
pub(super) const LARGE_OPS: usize = 10_000;

/// Ops that paced lists may have together, when no effort is given: about a second's worth.
const OPS_PER_PLAN: usize = 100_000;

/// Paced lists beyond which more gain next to nothing.
const MOST_LISTS: usize = 400;

/// Rounds in which the pressures come to rest, as a rule. A balance: further ones change little, and
/// leave fewer lists to be shaken.
const TURNS: usize = 25;

/// How many lists are chosen anew once all recipes are done.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rounds {
    /// First by the pressures that the list before shows,
    pub(super) turns: usize,
    /// then by those of the best one, shaken.
    pub(super) shakes: usize,
}

impl Paced {
    /// A list to be made by shaken pressures, with much the same parameters.
    pub(super) fn nearby(self, chance: &mut Chance) -> Self {
        let Self { choosing: Choosing { spare_permille, .. }, pace } = self;
        let spare_permille = if chance.percent(CHANGED_PERCENT) {
            let less = spare_permille.saturating_sub(5);
            chance.one_of(&[spare_permille / 2, less, spare_permille + 5, spare_permille + 20])
        } else {
            spare_permille
        };
        let pace = if chance.percent(CHANGED_PERCENT) {
            let segment_latencies = chance.one_of(&SEGMENTS);
            Pace { segment_latencies, tails_in_time: chance.percent(50) }
        } else {
            pace
        };
        Self { choosing: Choosing { spare_permille, weight: Weight::Density }, pace }
    }
}

impl Auto {
    /// How many paced lists are tried.
    fn paced_lists(self, ops: usize) -> usize {
        let by_default = (OPS_PER_PLAN / ops.max(1)).clamp(2, MOST_LISTS);
        self.effort.map_or(by_default, |effort| (effort as usize).max(1))
    }
}

impl Strategy {
    /// The same with its lists shared between two orders; none where there are too few.
    pub(super) fn shared(self, ops: usize) -> Option<Self> {
        let Self::Auto(auto) = self else { return None };
        let half = auto.paced_lists(ops) / 2;
        let effort = (half > PACED.len()).then_some(u32::try_from(half).ok()?)?;
        Some(Self::Auto(Auto { effort: Some(effort), ..auto }))
    }

    /// Whether the first list that fits will do.
    pub(super) const fn takes_first(self) -> bool {
        matches!(self, Self::Auto(Auto { effort: Some(0), .. }))
    }

    /// How many lists are chosen anew; and how many more once memory is divided anew.
    pub(super) fn rounds(self, ops: usize) -> [Rounds; 2] {
        let Self::Auto(auto) = self else { return [Rounds::default(); 2] };
        let rounds = auto.paced_lists(ops).saturating_sub(PACED.len());
        let turns = rounds.min(TURNS);
        let shakes = rounds - turns;
        [
            Rounds { turns: turns - turns / 4, shakes: shakes - shakes / 4 },
            Rounds { turns: turns / 4, shakes: shakes / 4 },
        ]
    }

    /// How many lists with repeats are tried; none where there can be none.
    pub(super) fn lists_with_repeats(self, graph: &Graph<'_>) -> usize {
        match self {
            Self::Auto(auto)
                if auto.repeats == Repeats::Allowed
                    && graph.ops().iter().any(|op| op.repeatable) =>
            {
                (auto.paced_lists(graph.ops().len()) / 2).clamp(1, MOST_REPEATED)
            }
            _ => 0,
        }
    }

    /// The recipes of which the best is kept, best guesses first.
    pub(super) fn recipes<'r>(&'r self, task: &Task<'_>) -> impl Iterator<Item = Recipe<'r>> {
        let lists =
            |rule: &'r dyn Rule| (0..rule.lists(task)).map(move |list| Recipe::Of(rule, list));
        let auto = if let Self::Auto(auto) = self { Some(auto) } else { None };
        let paced = auto.map_or(0, |auto| auto.paced_lists(task.sequence.len()));
        let paced = PACED.into_iter().take(paced);
        // Lists with repeats have been chosen for paced lists alone.
        let is_auto = auto.is_some() && !task.sequence.has_repeats();
        let others: &[&dyn Rule] = if is_auto { OTHERS } else { &[] };
        let streams = is_auto && writes_no_state(task);
        let streamed = if streams { STREAMED_OPS / task.sequence.len().max(1) } else { 0 };
        lists(self.rule())
            .chain(paced.map(|choosing| Recipe::Paced(Paced { choosing, pace: PACES[0] })))
            .chain(others.iter().flat_map(move |&rule| lists(rule)))
            .chain(lists(STREAMING).take(streamed))
    }
}

fn writes_no_state(task: &Task<'_>) -> bool {
    let sequence = task.sequence;
    let mut writes = sequence.launches().flat_map(|op| sequence.writes(op));
    writes.all(|&tensor| sequence.tensor(tensor).kind != Kind::State)
}

/// Before the paced lists, `auto` keeps everything on the device.
impl Rule for Auto {
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

    #[test]
    fn rounds_are_turns_before_they_are_shakes() {
        let rounds = |effort| {
            let auto = Strategy::Auto(Auto { effort: Some(effort), ..Auto::default() });
            auto.rounds(1).map(|Rounds { turns, shakes }| (turns, shakes))
        };
        assert_eq!(rounds(7), [(0, 0), (0, 0)]);
        assert_eq!(rounds(15), [(6, 0), (2, 0)]);
        assert_eq!(rounds(32), [(19, 0), (6, 0)]);
        assert_eq!(rounds(132), [(19, 75), (6, 25)]);
    }

    #[test]
    fn a_nearby_list_differs_now_and_then() {
        let first = Paced { choosing: PACED[1], pace: PACES[0] };
        let lists: [Paced; 200] =
            core::array::from_fn(|seed| first.nearby(&mut Chance::new(seed as u64)));
        let count = |is: fn(u64, Pace) -> bool| {
            lists.iter().filter(|list| is(list.choosing.spare_permille, list.pace)).count()
        };
        assert!((30..90).contains(&count(|spare, _| spare != 50)));
        assert!((30..90).contains(&count(|_, pace| pace != PACES[0])));
        assert!(count(|spare, pace| spare == 50 && pace == PACES[0]) > 60);
    }
}
