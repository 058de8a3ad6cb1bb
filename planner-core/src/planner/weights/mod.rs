//! Weight offloading for chains of layers (Beaumont, Eyraud-Dubois, Shilova & Zhao, Weight
//! Offloading Strategies for Training Large DNN Models).
//!
//! Weights leave between their forward op and their backward op, or between their backward op and
//! the next forward op, or both; in the last case one offload serves two prefetches. Beyond the
//! paper, the optimizer's states may leave between backward ops, and activations between the
//! forward and the backward op of the layer that reads them. [`selection`] chooses the tensors that
//! leave (algorithm 1), [`course`] schedules the transfers (algorithm 2), and [`list`] writes the
//! steps.
//!
//! The paper is ambiguous on some points. Here an op's excess counts its own weight once. Ties go
//! to the last layer. Weights of the first prefetches of a cycle are resident at its start if they
//! fit beside the first op. Weights that leave only after their forward op are offloaded before it,
//! the smallest first, just before the offloads of the backward phase.

#[cfg(feature = "baselines")]
mod baselines;
mod chain;
mod course;
mod list;
mod profile;
mod selection;
mod transfers;

use super::builder::Builder;
use super::error::PlanningError;
use super::list::{Lengths, Stuck};
use super::memory::Memory;
use super::request::Task;
use super::strategy::{Need, Parameter, Rule, Strategy, Takes};
use super::trials::Search;
use crate::scratch::{Limits, OutOfScratch, Scratch, larger, total};
use crate::sequence::Sequence;
use chain::Chain;
use course::{Course, Timing};
use selection::{Criteria, Profit, Reserve, Selection, TieBreak};

#[cfg(feature = "baselines")]
pub(super) use baselines::{LAYER_TO_LAYER, UNDISCOUNTED};
pub(super) use chain::check;

/// Parameters of [`Strategy::Weights`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Weights {
    /// Exactly as published. Otherwise the best of several selections is kept, with and without the
    /// barrier between iterations.
    pub published: bool,
    /// Whether activations may leave too; never as published.
    pub activations: bool,
}

impl Weights {
    /// The default parameters.
    #[must_use]
    pub const fn new() -> Self {
        Self { published: false, activations: false }
    }
}

setters!(Weights {
    published: bool => with_published,
    activations: bool => with_activations,
});

impl Weights {
    /// Whether activations may leave.
    #[must_use]
    pub const fn moves_activations(self) -> bool {
        self.activations && !self.published
    }

    fn ways(self) -> impl Iterator<Item = Way> {
        let published = self.published.then_some(Way::published(true));
        let whole = (!self.published).then(|| Way::whole(self.activations));
        published.into_iter().chain(whole.into_iter().flatten())
    }
}

impl Rule for Weights {
    fn parameters(&self) -> &'static [Parameter] {
        &[
            Parameter { name: "variant", takes: Takes::Word(&["best", "published"]) },
            Parameter { name: "activations", takes: Takes::Word(&["no", "yes"]) },
        ]
    }

    fn set(&mut self, parameter: &str, value: u64) {
        match parameter {
            "variant" => self.published = value == 1,
            "activations" => self.activations = value == 1,
            _ => {}
        }
    }

    fn need(&self, _: &Sequence<'_>) -> Need {
        if self.moves_activations() { Need::LargestOp } else { Need::Layer }
    }

    fn check(
        &self,
        sequence: &Sequence<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<(), PlanningError> {
        check(sequence, scratch)
    }

    fn lists(&self, _: &Task<'_>) -> usize {
        self.ways().count()
    }

    fn write(
        &self,
        list: usize,
        builder: Builder<'_>,
        _: &mut Search<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Lengths, Stuck> {
        write(builder, self.ways().nth(list), scratch)
    }
}

/// The ways that `auto` tries: all ways, including activations, and ways in parts.
#[derive(Debug)]
pub(super) struct EveryWay;

impl EveryWay {
    fn ways() -> impl Iterator<Item = Way> {
        Way::whole(true).chain(Way::in_parts())
    }
}

impl Rule for EveryWay {
    fn lists(&self, _: &Task<'_>) -> usize {
        Self::ways().count()
    }

    fn write(
        &self,
        list: usize,
        builder: Builder<'_>,
        _: &mut Search<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Lengths, Stuck> {
        write(builder, Self::ways().nth(list), scratch)
    }
}

/// One way to move the weights of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Some of them, chosen and scheduled by the two algorithms.
    Greedy(Criteria, Timing),
    /// All of them, around every op (L2L; Pudipeddi et al., 2020).
    #[cfg(feature = "baselines")]
    LayerToLayer,
}

impl Way {
    /// The way whose published schedule has a [cycle](cycle_ns).
    pub(super) const fn of_cycle(strategy: Strategy) -> Option<Self> {
        match strategy {
            Strategy::Weights(weights) if !weights.moves_activations() => {
                Some(Self::published(true))
            }
            #[cfg(feature = "baselines")]
            Strategy::WeightsUndiscounted => Some(Self::published(false)),
            #[cfg(feature = "baselines")]
            Strategy::LayerToLayer => Some(Self::LayerToLayer),
            _ => None,
        }
    }

    /// As published.
    const fn published(discount: bool) -> Self {
        Self::Greedy(Criteria::PUBLISHED, Timing::Barrier { discount })
    }

    /// The published way, and ways without a barrier for several reserves, ties and profits; also
    /// with activations, if they may move.
    fn whole(activations: bool) -> impl Iterator<Item = Self> {
        const RESERVES: [Reserve; 10] = [
            Reserve::Sixteenths(0),
            Reserve::OwnWeight,
            Reserve::Sixteenths(8),
            Reserve::Sixteenths(16),
            Reserve::Sixteenths(24),
            Reserve::Sixteenths(32),
            Reserve::Sixteenths(48),
            Reserve::Turn(8),
            Reserve::Turn(16),
            Reserve::Turn(32),
        ];
        let all = activations.then(|| Self::cyclic(&RESERVES, true, 1)).into_iter().flatten();
        Self::cyclic(&RESERVES, false, 1).chain([Self::published(true)]).chain(all)
    }

    /// Ways without a barrier and in parts; for some reserves also with activations.
    fn in_parts() -> impl Iterator<Item = Self> {
        const RESERVES: [Reserve; 10] = [
            Reserve::Turn(2),
            Reserve::Turn(5),
            Reserve::Sixteenths(2),
            Reserve::Sixteenths(0),
            Reserve::Sixteenths(1),
            Reserve::Sixteenths(4),
            Reserve::Sixteenths(8),
            Reserve::Sixteenths(12),
            Reserve::Sixteenths(16),
            Reserve::OwnWeight,
        ];
        let some = RESERVES.get(..4).unwrap_or_default();
        Self::cyclic(&RESERVES, false, 32).chain(Self::cyclic(some, true, 32))
    }

    fn cyclic(reserves: &[Reserve], activations: bool, parts: u64) -> impl Iterator<Item = Self> {
        reserves.iter().flat_map(move |&reserve| {
            [Profit::Ops, Profit::Time].into_iter().flat_map(move |profit| {
                [TieBreak::Last, TieBreak::First].into_iter().flat_map(move |tie| {
                    let criteria = Criteria { reserve, tie, profit, activations, parts };
                    [false, true].map(|ahead| Self::Greedy(criteria, Timing::Cyclic { ahead }))
                })
            })
        })
    }
}

pub(super) const fn scratch_words(limits: &Limits) -> usize {
    total([
        Chain::scratch_words(limits),
        Selection::scratch_words(limits),
        larger(Selection::working_words(limits), Course::scratch_words(limits)),
    ])
}

/// Moves the weights of a chain. Fails with too little memory for other graphs.
fn write(
    builder: Builder<'_>,
    way: Option<Way>,
    scratch: &mut Scratch<'_>,
) -> Result<Lengths, Stuck> {
    let mut scratch = scratch.reborrow();
    let (criteria, timing) = match way.ok_or(Stuck::NoMemory)? {
        #[cfg(feature = "baselines")]
        Way::LayerToLayer => return baselines::layer_to_layer(builder),
        Way::Greedy(criteria, timing) => (criteria, timing),
    };
    let chain = Chain::new(builder.task, builder.memory, &mut scratch)?.ok_or(Stuck::NoMemory)?;
    let selection = Selection::new(&chain, criteria, &mut scratch)?;
    let mut course = Course::new(&chain, &selection, timing, &mut scratch)?;
    let written = match timing {
        Timing::Cyclic { .. } => course.write_iterations(),
        Timing::Barrier { .. } => course.best_cut().and_then(|(_, cut)| course.write_cycle(cut)),
    };
    written.ok_or(Stuck::NoMemory)?;
    let copy_again = timing == Timing::Barrier { discount: false };
    course.notes.write(&chain, &selection, builder, copy_again)
}

/// The length of a cycle with a barrier at its end; `None` if memory does not suffice.
pub(super) fn cycle_ns(
    task: &Task<'_>,
    memory: &Memory<'_>,
    way: Way,
    scratch: &mut Scratch<'_>,
) -> Result<Option<u64>, OutOfScratch> {
    let mut scratch = scratch.reborrow();
    let Some(chain) = Chain::new(task, memory, &mut scratch)? else { return Ok(None) };
    match way {
        #[cfg(feature = "baselines")]
        Way::LayerToLayer => Ok(Some(baselines::cycle_ns(task, &chain))),
        Way::Greedy(criteria, timing) => {
            let selection = Selection::new(&chain, criteria, &mut scratch)?;
            let mut course = Course::new(&chain, &selection, timing, &mut scratch)?;
            Ok(course.best_cut().map(|(cycle_ns, _)| cycle_ns))
        }
    }
}
