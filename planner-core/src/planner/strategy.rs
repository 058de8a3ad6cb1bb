//! How to plan: the table of the strategies, and the interface between planner and strategy.
//!
//! The file of a strategy has its parameters and its [`Rule`]. An entry of [`strategies`] adds it to
//! every place that lists strategies, in the core and in the crates above.

use super::builder::Builder;
use super::checkpoint::{Checkpoint, CheckpointOffload};
use super::error::PlanningError;
use super::fit::Fit;
use super::groups::Groups;
use super::in_core::InCore;
use super::list::{Lengths, Stuck};
#[cfg(feature = "baselines")]
use super::lms::Lms;
use super::memory::Memory;
use super::on_demand::OnDemand;
use super::recipe::Auto;
use super::request::Task;
use super::trials::Search;
#[cfg(feature = "baselines")]
use super::vdnn;
#[cfg(feature = "baselines")]
use super::vdnn::Vdnn;
use super::weights::Weights;
#[cfg(feature = "baselines")]
use super::weights::{LAYER_TO_LAYER, UNDISCOUNTED};
use super::window::Window;
use super::{cache, fit, groups, weights, window};
use crate::scratch::{Limits, OutOfScratch, Scratch, larger};
use crate::sequence::Sequence;
use core::fmt::{self, Debug};

/// Makes [`Strategy`] from its table. An entry has the description of the strategy for users, its
/// variant, its parameters if it has any, its name and its rule. If the rule needs scratch to write
/// a list, the entry also has the function that counts the words.
macro_rules! strategies {
    ($(
        $(#[doc = $about:literal])+
        $(#[cfg($($built:tt)+)])?
        $variant:ident $(($bound:ident: $parameters:ident))? = $name:literal => $rule:expr
            $(, $words:path)?;
    )+) => {
        /// How to plan.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Strategy {
            $($(#[doc = $about])+ $(#[cfg($($built)+)])? $variant $(($parameters))?,)+
        }

        /// How many strategies there are.
        const COUNT: usize = [$($(#[cfg($($built)+)])? $name),+].len();

        impl Strategy {
            /// Every strategy, with default parameters.
            #[must_use]
            pub fn all() -> [Self; COUNT] {
                [$($(#[cfg($($built)+)])? Self::$variant $((<$parameters>::default()))?),+]
            }

            /// The name of each strategy, and its rule.
            pub(super) const fn entry(&self) -> Named<'_> {
                match self {
                    $($(#[cfg($($built)+)])? Self::$variant $(($bound))? => ($name, $rule),)+
                }
            }

            /// Its description, in a sentence or two.
            #[must_use]
            pub const fn about(self) -> &'static str {
                let about = match self {
                    $($(#[cfg($($built)+)])? Self::$variant $(($bound))? => {
                        $(let _ = $bound;)?
                        concat!($($about),+)
                    })+
                };
                about.trim_ascii()
            }

            /// Sets a parameter of [`Strategy::parameters`]. Ignores a name that the strategy does not
            /// have.
            pub fn set(&mut self, parameter: &str, value: u64) {
                match self {
                    $($(#[cfg($($built)+)])? Self::$variant $(($bound))? => {
                        $($bound.set(parameter, value);)?
                    })+
                }
            }
        }

        $($(#[cfg($($built)+)])? const _: () = {
            $(impl From<$parameters> for Strategy {
                fn from($bound: $parameters) -> Self {
                    Self::$variant($bound)
                }
            })?
        };)+

        /// Words of scratch that any rule asks for to write a list, beside the words for [`Auto`].
        pub(super) const fn scratch_words(limits: &Limits) -> usize {
            let each = [
                cache::scratch_words(limits),
                $($(#[cfg($($built)+)])? { 0 $(+ $words(limits))? },)+
            ];
            most(&each)
        }
    };
}

strategies! {
    /// Keep everything on the device; only inputs move
    InCore = "in-core" => &InCore;
    /// Evict the least recently used tensor when memory is needed, prefetch one op ahead
    OnDemand = "on-demand" => &OnDemand;
    /// Keep as many states on the device as fit, prefetch the rest one op ahead
    Fit = "fit" => &Fit, fit::scratch_words;
    /// Stream the last layers of each group of layers, as inference servers do
    Groups(groups: Groups) = "groups" => groups, groups::scratch_words;
    /// Swap each temporary out between forward and backward, prefetch one op ahead (vDNN; Rhu et al.,
    /// 2016)
    #[cfg(feature = "baselines")]
    Vdnn = "vdnn" => &Vdnn, vdnn::scratch_words;
    /// Swap out tensors whose next use is far ahead (Large Model Support; Le et al., 2019)
    #[cfg(feature = "baselines")]
    Lms(lms: Lms) = "lms" => lms;
    /// The locally adaptive window (Hayakawa & Narihira, section 3)
    Window(window: Window) = "window" => window, window::scratch_words;
    /// For a chain of layers, move the weights and optimizer states that free the most memory for
    /// their transfers (Beaumont et al., algorithms 1 and 2)
    Weights(weights: Weights) = "weights" => weights, weights::scratch_words;
    /// Weight offload as published, with a copy to the host each time that a weight leaves
    #[cfg(feature = "baselines")]
    WeightsUndiscounted = "weights-undiscounted" => &UNDISCOUNTED;
    /// For a chain of layers, prefetch each weight for an op and evict it after the op
    #[cfg(feature = "baselines")]
    LayerToLayer = "layer-to-layer" => &LAYER_TO_LAYER;
    /// Activation checkpointing: keep the inputs of segments of the forward pass, run the segments
    /// again in the backward pass; only inputs move (Chen et al., 2016)
    Checkpoint = "checkpoint" => &Checkpoint;
    /// Activation checkpointing with the inputs of segments on the host between the passes
    CheckpointOffload = "checkpoint-offload" => &CheckpointOffload;
    /// Run the first or the last layers on the host, as few as possible, and keep everything else
    /// on the device, as llama.cpp does
    Split = "split" => &InCore;
    /// Run all updates on the host that may run there, as ZeRO-Offload does with the optimizer, and
    /// plan the rest by the best of the strategies above (Ren et al., 2021)
    OptimizerOffload = "optimizer-offload" => &OnDemand;
    /// Make many plans and keep the best: move parts of tensors, launch ops again if a repeat takes
    /// less time than a transfer, run ops on the host if they may run there, and change the order
    /// of the ops
    Auto(auto: Auto) = "auto" => auto;
}

/// The largest of some numbers.
const fn most(words: &[usize]) -> usize {
    match words {
        [first, rest @ ..] => larger(*first, most(rest)),
        [] => 0,
    }
}

impl Strategy {
    /// Whether the strategy runs all ops on the host that may run there.
    #[must_use]
    pub const fn runs_on_host(self) -> bool {
        matches!(self, Self::Split | Self::OptimizerOffload)
    }

    /// The name, without parameters.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.entry().0
    }

    /// Its parameters, which [`Strategy::set`] sets.
    #[must_use]
    pub fn parameters(&self) -> &'static [Parameter] {
        self.rule().parameters()
    }

    /// The rule.
    pub(super) const fn rule(&self) -> &dyn Rule {
        self.entry().1
    }
}

/// A parameter of a strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// The values that it takes.
    pub takes: Takes,
}

/// The values that a parameter takes. [`Strategy::set`] takes each as a number. Displays as "a size
/// such as 512MiB".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Takes {
    /// A size in bytes, 1 or more.
    Bytes,
    /// A number of things, at least and at most so many.
    Count(&'static str, u64, u64),
    /// One of these words; its number is its position.
    Word(&'static [&'static str]),
}

impl fmt::Display for Takes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Bytes => f.write_str("a size such as 512MiB"),
            Self::Count(things, 1, most) if most >= u64::from(u32::MAX) => {
                write!(f, "a number of {things}, 1 or more")
            }
            Self::Count(things, least, most) => {
                write!(f, "a number of {things} from {least} to {most}")
            }
            Self::Word(words) => words.iter().enumerate().try_for_each(|(at, word)| {
                let joint = match words.len().saturating_sub(at) {
                    1 => "",
                    2 => " or ",
                    _ => ", ",
                };
                write!(f, "{word}{joint}")
            }),
        }
    }
}

impl Parameter {
    /// A number of layers or ops, 1 or more.
    pub(super) const fn count(name: &'static str, things: &'static str) -> Self {
        // Strategies keep such numbers in 32 bits.
        Self { name, takes: Takes::Count(things, 1, u32::MAX as u64) }
    }
}

/// A rule, and the name of the maker in its plans.
pub(super) type Named<'r> = (&'static str, &'r dyn Rule);

/// A strategy as the planner sees it: numbered lists of steps, of which the best is the plan.
pub(super) trait Rule: Debug {
    /// Its parameters.
    fn parameters(&self) -> &'static [Parameter] {
        &[]
    }

    /// Sets one of its parameters.
    fn set(&mut self, _parameter: &str, _value: u64) {}

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

    /// Whether lists are written from gaps and pressures. Otherwise the search has no gaps and
    /// pressures.
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
    /// All values that are alive except states, and the states of one op.
    Layer,
    /// Everything that is alive.
    Everything,
}
