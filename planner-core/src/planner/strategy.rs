//! How to plan: the strategies and their parameters.

use crate::sequence::Sequence;

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
    /// Gaps chosen by density and paced by the clock, in several variants and rounds, and all
    /// other strategies: the best of them by the timeline. Ops may run in another order.
    Auto(Auto),
}

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

/// Parameters of [`Strategy::Window`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Bytes of the sequence of variables that the window covers; when not given, several
    /// sizes are tried in the timeline.
    pub bytes: Option<u64>,
    /// Exactly as published: also copy values that the host holds already.
    pub published: bool,
}

/// Parameters of [`Strategy::Weights`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weights {
    /// Exactly as published; else the best of several selections is kept, with and without
    /// the barrier between iterations.
    pub published: bool,
    /// Whether activations may leave as well; never as published.
    pub activations: bool,
}

impl Weights {
    /// Whether activations may leave.
    #[must_use]
    pub const fn moves_activations(self) -> bool {
        self.activations && !self.published
    }
}

impl Strategy {
    /// Every strategy, with default parameters.
    #[must_use]
    pub fn all() -> [Self; 12] {
        [
            Self::InCore,
            Self::OnDemand,
            Self::Fit,
            Self::Vdnn,
            Self::Lms(Lms::default()),
            Self::Window(Window::default()),
            Self::Weights(Weights::default()),
            Self::WeightsUndiscounted,
            Self::LayerToLayer,
            Self::Checkpoint,
            Self::CheckpointOffload,
            Self::Auto(Auto::default()),
        ]
    }

    /// The name, without parameters.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::InCore => "in-core",
            Self::OnDemand => "on-demand",
            Self::Fit => "fit",
            Self::Vdnn => "vdnn",
            Self::Lms(_) => "lms",
            Self::Window(_) => "window",
            Self::Weights(_) => "weights",
            Self::WeightsUndiscounted => "weights-undiscounted",
            Self::LayerToLayer => "layer-to-layer",
            Self::Checkpoint => "checkpoint",
            Self::CheckpointOffload => "checkpoint-offload",
            Self::Auto(_) => "auto",
        }
    }

    /// Whether the strategy is one of checkpointing.
    pub(super) const fn has_segments(self) -> bool {
        matches!(self, Self::Checkpoint | Self::CheckpointOffload)
    }

    pub(super) const fn is_for_chains(self) -> bool {
        matches!(self, Self::Weights(_) | Self::WeightsUndiscounted | Self::LayerToLayer)
    }
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

impl From<Auto> for Strategy {
    fn from(auto: Auto) -> Self {
        Self::Auto(auto)
    }
}

impl From<Window> for Strategy {
    fn from(window: Window) -> Self {
        Self::Window(window)
    }
}

impl From<Weights> for Strategy {
    fn from(weights: Weights) -> Self {
        Self::Weights(weights)
    }
}

impl From<Lms> for Strategy {
    fn from(lms: Lms) -> Self {
        Self::Lms(lms)
    }
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

impl Need {
    pub(super) const fn of(strategy: Strategy, sequence: &Sequence<'_>) -> Self {
        match strategy {
            // Without segments there is nothing that could move.
            Strategy::CheckpointOffload if !sequence.has_repeats() => Self::Everything,
            Strategy::InCore | Strategy::Checkpoint => Self::Everything,
            Strategy::Weights(weights) if weights.moves_activations() => Self::LargestOp,
            Strategy::Weights(_) | Strategy::WeightsUndiscounted | Strategy::LayerToLayer => {
                Self::Layer
            }
            _ => Self::LargestOp,
        }
    }
}
