//! How to plan: the table of the strategies, and what the planner asks of each.
//!
//! The file of a strategy has its parameters and its [`Rule`]. It is added to the table here: a
//! variant, a line of [`Strategy::all`] and of [`Strategy::entry`], and one of [`scratch_words`] if
//! it takes working memory that no other strategy takes.

use super::builder::Builder;
use super::checkpoint::{Checkpoint, CheckpointOffload};
use super::error::PlanningError;
use super::fit::Fit;
use super::groups::Groups;
use super::in_core::InCore;
use super::list::{Lengths, Stuck};
use super::lms::Lms;
use super::memory::Memory;
use super::on_demand::OnDemand;
use super::recipe::Auto;
use super::request::Task;
use super::trials::Search;
use super::vdnn::Vdnn;
use super::weights::{LAYER_TO_LAYER, UNDISCOUNTED, Weights};
use super::window::Window;
use super::{cache, fit, groups, vdnn, weights, window};
use crate::scratch::{Limits, OutOfScratch, Scratch, larger};
use crate::sequence::Sequence;
use core::fmt::Debug;

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
    /// Of each group of layers, the last ones are streamed: the knobs of inference servers.
    Groups(Groups),
    /// Every temporary is swapped out in the longest gap between two of its uses, from
    /// forward to backward, and fetched one op ahead (vDNN; Rhu et al., 2016).
    Vdnn,
    /// What is next used far ahead is swapped out (Large Model Support; Le et al., 2019).
    Lms(Lms),
    /// The locally adaptive window of Hayakawa & Narihira, section 3.
    Window(Window),
    /// Of a chain of layers, those weights leave that relieve memory most for their transfers
    /// (Beaumont et al., algorithms 1 and 2).
    Weights(Weights),
    /// The same as published, with a copy to the host each time that a weight leaves.
    WeightsUndiscounted,
    /// Of a chain of layers, each weight comes for an op and leaves after it.
    LayerToLayer,
    /// Segments of the forward pass run again in the backward pass; what they begin with stays
    /// (Chen et al., 2016).
    Checkpoint,
    /// The same, with what segments begin with on the host between the passes.
    CheckpointOffload,
    /// Everything on the device, and as few ops as will do on the host: the first or the last of
    /// them, as inference programs split layers between the two processors.
    Split,
    /// All ops that may run on the host do whose results wait for the next iteration, or all ops if there
    /// are none, and the best of the other baselines plans the rest: the optimizer on the host
    /// (ZeRO-Offload; Ren et al., 2021).
    OptimizerOffload,
    /// Gaps chosen by density and paced by the clock, in several variants and rounds, and all
    /// other strategies: the best of them by the timeline. Ops may run in another order.
    Auto(Auto),
}

impl Strategy {
    /// Every strategy, with default parameters.
    #[must_use]
    pub fn all() -> [Self; 15] {
        [
            Self::InCore,
            Self::OnDemand,
            Self::Fit,
            Self::Groups(Groups::default()),
            Self::Vdnn,
            Self::Lms(Lms::default()),
            Self::Window(Window::default()),
            Self::Weights(Weights::default()),
            Self::WeightsUndiscounted,
            Self::LayerToLayer,
            Self::Checkpoint,
            Self::CheckpointOffload,
            Self::Split,
            Self::OptimizerOffload,
            Self::Auto(Auto::default()),
        ]
    }

    /// The name of each strategy, and its rule.
    pub(super) const fn entry(&self) -> Named<'_> {
        match self {
            Self::InCore => ("in-core", &InCore),
            Self::OnDemand => ("on-demand", &OnDemand),
            Self::Fit => ("fit", &Fit),
            Self::Groups(groups) => ("groups", groups),
            Self::Vdnn => ("vdnn", &Vdnn),
            Self::Lms(lms) => ("lms", lms),
            Self::Window(window) => ("window", window),
            Self::Weights(weights) => ("weights", weights),
            Self::WeightsUndiscounted => ("weights-undiscounted", &UNDISCOUNTED),
            Self::LayerToLayer => ("layer-to-layer", &LAYER_TO_LAYER),
            Self::Checkpoint => ("checkpoint", &Checkpoint),
            Self::CheckpointOffload => ("checkpoint-offload", &CheckpointOffload),
            Self::Split => ("split", &InCore),
            Self::OptimizerOffload => ("optimizer-offload", &OnDemand),
            Self::Auto(auto) => ("auto", auto),
        }
    }

    /// Whether it is a strategy that runs ops on the host wherever they may.
    #[must_use]
    pub const fn runs_on_host(self) -> bool {
        matches!(self, Self::Split | Self::OptimizerOffload)
    }

    /// The name, without parameters.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.entry().0
    }

    /// The rule.
    pub(super) const fn rule(&self) -> &dyn Rule {
        self.entry().1
    }
}

/// Words of scratch that any rule asks for to write a list, beside those for [`Auto`].
pub(super) const fn scratch_words(limits: &Limits) -> usize {
    let words = larger(cache::scratch_words(limits), fit::scratch_words(limits));
    let words = larger(words, groups::scratch_words(limits));
    let words = larger(words, vdnn::scratch_words(limits));
    let words = larger(words, window::scratch_words(limits));
    larger(words, weights::scratch_words(limits))
}

/// A rule, and what plans that it makes are said to be made by.
pub(super) type Named<'r> = (&'static str, &'r dyn Rule);

/// A strategy as the planner sees it: numbered lists of steps, of which the best is the plan.
pub(super) trait Rule: Debug {
    /// What must be on the device at once.
    fn need(&self, _sequence: &Sequence<'_>) -> Need {
        Need::LargestOp
    }

    /// Refuses work that the rule does not plan.
    fn check(
        &self,
        _sequence: &Sequence<'_>,
        _scratch: &mut Scratch<'_>,
    ) -> Result<(), PlanningError> {
        Ok(())
    }

    /// Whether the rule plans each [sequence with segments](super::checkpoint::each) as well.
    fn has_segments(&self) -> bool {
        false
    }

    /// Whether lists are written from gaps and pressures; else the search has none.
    fn moves_in_gaps(&self) -> bool {
        false
    }

    /// How many lists there are.
    fn lists(&self, _task: &Task<'_>) -> usize {
        1
    }

    /// A time that no plan of a list beats, as far as that is known before it is written.
    fn least_ns(
        &self,
        _list: usize,
        _context: (&Task<'_>, &Memory<'_>),
        _scratch: &mut Scratch<'_>,
    ) -> Result<u64, OutOfScratch> {
        Ok(0)
    }

    /// Writes a list, given by its number; best guesses come first.
    fn write(
        &self,
        list: usize,
        builder: Builder<'_>,
        search: &mut Search<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Lengths, Stuck>;
}

/// What must be on the device at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// What one op touches.
    LargestOp,
    /// Everything that is alive but for states, and the states of one op.
    Layer,
    /// Everything that is alive.
    Everything,
}
