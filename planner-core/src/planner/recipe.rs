//! The lists that each strategy considers.

use super::chance::Chance;
use super::choice::Weight;
use super::lms;
use super::paced::Pace;
use super::repeats::search::MOST_LISTS as MOST_REPEATED;
use super::request::Task;
use super::strategy::{Auto, Lms, Repeats, Strategy, Weights, Window};
use super::weights::Way;
use crate::graph::Graph;

/// One list of steps that a strategy considers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Recipe {
    InCore { early_inputs: bool },
    OnDemand,
    Fit,
    Vdnn,
    Lms { threshold: u32, ahead: u32 },
    Window { window: Window, bytes: u64 },
    Weights(Way),
    Offloaded { pace: Pace },
    Paced { spare_permille: u64, weight: Weight, pace: Pace },
}

/// The first paced lists: shares of the pool, per mille, that are kept free for transfers
/// under way, and how gaps are weighed; best guesses first.
const PACED: [(u64, Weight); 7] = [
    (0, Weight::Density),
    (50, Weight::Density),
    (100, Weight::Density),
    (20, Weight::Density),
    (200, Weight::Density),
    (50, Weight::Length),
    (0, Weight::Length),
];

/// The paces that are tried in turn while gaps are chosen anew.
pub(super) const PACES: [Pace; 4] = [
    Pace { segment_latencies: 100, tails_in_time: true },
    Pace { segment_latencies: 100, tails_in_time: false },
    Pace { segment_latencies: 300, tails_in_time: false },
    Pace { segment_latencies: 300, tails_in_time: true },
];

/// The lengths of segments, in latencies, that shaken lists are given now and then.
const SEGMENTS: [u64; 6] = [30, 50, 100, 200, 300, 1000];

/// How often in a hundred times a shaken list has another pace, or another share kept free.
const CHANGED_PERCENT: u64 = 30;

/// Lists that tell one order of the ops from another: what is best as a rule, and what
/// always fits.
pub(super) const SAMPLE: [Recipe; 4] = [
    Recipe::InCore { early_inputs: true },
    Recipe::Paced { spare_permille: PACED[0].0, weight: PACED[0].1, pace: PACES[0] },
    Recipe::OnDemand,
    Recipe::Paced { spare_permille: PACED[1].0, weight: PACED[1].1, pace: PACES[0] },
];

/// Of graphs with so many ops, the first list of the sample that fits is enough.
pub(super) const LARGE_OPS: usize = 10_000;

/// Window sizes that are tried when none is given, as fractions of four times the budget:
/// the largest is bounded by memory alone.
const WINDOW_FRACTIONS: [u64; 6] = [1, 4, 8, 16, 32, 64];

/// Ops that paced lists may have together, when no effort is given: about a second's worth.
const OPS_PER_PLAN: usize = 100_000;

/// Paced lists beyond which more gain next to nothing.
const MOST_LISTS: usize = 400;

/// Rounds in which the pressures come to rest.
const TURNS: usize = 25;

/// How many lists are chosen anew once all recipes are done.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rounds {
    /// First by the pressures that the list before shows,
    pub(super) turns: usize,
    /// then by those of the best one, shaken.
    pub(super) shakes: usize,
}

impl Recipe {
    /// A paced list to be made by shaken pressures, with much the same parameters.
    pub(super) fn nearby(spare_permille: u64, pace: Pace, chance: &mut Chance) -> Self {
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
        Self::Paced { spare_permille, weight: Weight::Density, pace }
    }
}

impl Auto {
    /// How many paced lists are tried.
    fn lists(self, ops: usize) -> usize {
        let by_default = (OPS_PER_PLAN / ops.max(1)).clamp(2, MOST_LISTS);
        self.effort.map_or(by_default, |effort| (effort as usize).max(1))
    }
}

impl Strategy {
    /// The same with its lists shared between two orders; none where there are too few.
    pub(super) fn shared(self, ops: usize) -> Option<Self> {
        let Self::Auto(auto) = self else { return None };
        let half = auto.lists(ops) / 2;
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
        let rounds = auto.lists(ops).saturating_sub(PACED.len());
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
                (auto.lists(graph.ops().len()) / 2).clamp(1, MOST_REPEATED)
            }
            _ => 0,
        }
    }

    /// The recipes of which the best is kept, best guesses first.
    pub(super) fn recipes(self, task: &Task<'_>) -> impl Iterator<Item = Recipe> {
        let (budget_bytes, ops) = (task.budget_bytes, task.sequence.len());
        let auto = if let Self::Auto(auto) = self { Some(auto) } else { None };
        // Lists with repeats have been chosen for these alone.
        let with_others = auto.filter(|_| !task.sequence.has_repeats());
        let is = move |strategy: Self| (self == strategy || with_others.is_some()).then_some(());
        let in_core = is(Self::InCore)
            .or(is(Self::Checkpoint))
            .or(is(Self::CheckpointOffload).filter(|()| !task.sequence.has_repeats()))
            .or(auto.map(|_| ()))
            .into_iter()
            .flat_map(|()| [true, false].map(|early_inputs| Recipe::InCore { early_inputs }));
        let paced = auto.into_iter().flat_map(move |auto| {
            let paced = PACED.into_iter().take(auto.lists(ops));
            paced.map(|(spare_permille, weight)| Recipe::Paced {
                spare_permille,
                weight,
                pace: PACES[0],
            })
        });
        let lms = match self {
            Self::Lms(lms) => Some(lms),
            _ => with_others.map(|_| Lms::default()),
        };
        let lms = lms.into_iter().flat_map(move |lms| lms::grid(lms, ops));
        let window = match self {
            Self::Window(window) => Some(window),
            _ => with_others.map(|_| Window::default()),
        };
        let given = window.and_then(|window| Some(Recipe::Window { window, bytes: window.bytes? }));
        let tried = window.filter(|window| window.bytes.is_none()).into_iter();
        let tried = tried.flat_map(move |window| {
            WINDOW_FRACTIONS.into_iter().map(move |fraction| {
                let bytes = budget_bytes.saturating_mul(4) / fraction;
                Recipe::Window { window, bytes }
            })
        });
        let ways = match self {
            Self::Weights(Weights { published: true, .. }) => Some(Way::published(true)),
            Self::WeightsUndiscounted => Some(Way::published(false)),
            Self::LayerToLayer => Some(Way::LayerToLayer),
            _ => None,
        };
        let whole = match self {
            Self::Weights(Weights { published: false, activations }) => Some(activations),
            _ => with_others.map(|_| true),
        };
        let ways = ways.into_iter().chain(whole.into_iter().flat_map(Way::whole));
        let in_parts = with_others.into_iter().flat_map(|_| Way::in_parts());
        in_core
            .chain(paced)
            .chain(is(Self::OnDemand).map(|()| Recipe::OnDemand))
            .chain(PACES.into_iter().flat_map(move |pace| {
                is(Self::CheckpointOffload)
                    .filter(|_| auto.is_none())
                    .map(|()| Recipe::Offloaded { pace })
            }))
            .chain(is(Self::Fit).map(|()| Recipe::Fit))
            .chain(is(Self::Vdnn).map(|()| Recipe::Vdnn))
            .chain(ways.chain(in_parts).map(Recipe::Weights))
            .chain(lms.map(|(threshold, ahead)| Recipe::Lms { threshold, ahead }))
            .chain(given)
            .chain(tried)
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
        let (spare, pace) = (50, PACES[0]);
        let lists: [Recipe; 200] =
            core::array::from_fn(|seed| Recipe::nearby(spare, pace, &mut Chance::new(seed as u64)));
        let count = |is: fn(u64, Pace) -> bool| {
            let counts = lists.iter().filter(|list| match **list {
                Recipe::Paced { spare_permille, pace, .. } => is(spare_permille, pace),
                _ => false,
            });
            counts.count()
        };
        assert!((30..90).contains(&count(|spare, _| spare != 50)));
        assert!((30..90).contains(&count(|_, pace| pace != PACES[0])));
        assert!(count(|spare, pace| spare == 50 && pace == PACES[0]) > 60);
    }
}
