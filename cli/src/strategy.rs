//! The strategies that can be asked for. One is added by an entry and a line of [`ALL`].

mod joint;

use crate::failure::Failure;
use crate::method::Method;
use clap::ValueEnum;
use clap::builder::PossibleValue;
use spillway::Strategy;
use spillway::settings::{SettingError, Settings};
use std::fmt::Display;
use workloads::Shown;

/// A strategy.
#[derive(Debug)]
pub(crate) struct Entry {
    /// What it is called in commands and plans.
    pub(crate) name: &'static str,
    /// What it does, and its parameters.
    pub(crate) help: &'static str,
    /// When it is among all strategies.
    pub(crate) compared: Compared,
}

/// When a strategy is among all that `compare` plans with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compared {
    Always,
    /// Where the work is a chain of layers; it plans nothing else.
    OnChains,
    /// Where some op may run on the host; it refuses all other work.
    WithHost,
    /// Only where it is named.
    Never,
}

impl Compared {
    /// Whether it is among them for some work.
    pub(crate) fn holds(self, is_chain: bool, has_host_ops: bool) -> bool {
        match self {
            Self::Always => true,
            Self::OnChains => is_chain,
            Self::WithHost => has_host_ops,
            Self::Never => false,
        }
    }
}

/// All strategies, in the order in which they are listed and compared.
pub(crate) static ALL: &[&Entry] = &[
    &IN_CORE,
    &ON_DEMAND,
    &FIT,
    &GROUPS,
    &VDNN,
    &LMS,
    &WINDOW,
    &WEIGHTS,
    &WEIGHTS_UNDISCOUNTED,
    &LAYER_TO_LAYER,
    &CHECKPOINT,
    &CHECKPOINT_OFFLOAD,
    &SPLIT,
    &OPTIMIZER_OFFLOAD,
    &AUTO,
    &SWAP,
    &JOINT,
];

const IN_CORE: Entry = Entry {
    name: "in-core",
    help: "Keep everything on the device; only inputs move",
    compared: Compared::Always,
};

const ON_DEMAND: Entry = Entry {
    name: "on-demand",
    help: "Evict the least recently used tensor when memory is needed, prefetch one op ahead",
    compared: Compared::Always,
};

const FIT: Entry = Entry {
    name: "fit",
    help: "Keep as many states on the device as fit, prefetch the rest one op ahead",
    compared: Compared::Always,
};

const GROUPS: Entry = Entry {
    name: "groups",
    help: "Stream the last layers of each group of layers, as inference servers do (parameters: size=LAYERS, \
           leaving=LAYERS, ahead=OPS)",
    compared: Compared::Always,
};

const VDNN: Entry = Entry {
    name: "vdnn",
    help: "Swap each temporary out between forward and backward, prefetch one op ahead (vDNN)",
    compared: Compared::Always,
};

const LMS: Entry = Entry {
    name: "lms",
    help: "Swap out tensors whose next use is far ahead (Large Model Support; parameters: threshold=OPS, \
           ahead=OPS)",
    compared: Compared::Always,
};

const WINDOW: Entry = Entry {
    name: "window",
    help: "The locally adaptive window (parameters: bytes=SIZE, variant=published)",
    compared: Compared::Always,
};

const WEIGHTS: Entry = Entry {
    name: "weights",
    help: "For a chain of layers, move the weights and optimizer states that free the most memory \
           for their transfers (parameters: variant=published, activations=yes moves those as \
           well)",
    compared: Compared::OnChains,
};

const WEIGHTS_UNDISCOUNTED: Entry = Entry {
    name: "weights-undiscounted",
    help: "The same as published, copying a weight to the host each time that it leaves",
    compared: Compared::OnChains,
};

const LAYER_TO_LAYER: Entry = Entry {
    name: "layer-to-layer",
    help: "For a chain of layers, prefetch each weight for an op and evict it after the op",
    compared: Compared::OnChains,
};

const CHECKPOINT: Entry = Entry {
    name: "checkpoint",
    help: "Activation checkpointing: keep what segments of the forward pass begin with, run the \
           segments again in the backward pass; nothing moves but inputs",
    compared: Compared::Always,
};

const CHECKPOINT_OFFLOAD: Entry = Entry {
    name: "checkpoint-offload",
    help: "The same, with what segments begin with on the host between the passes",
    compared: Compared::Always,
};

const SPLIT: Entry = Entry {
    name: "split",
    help: "Keep everything on the device but the first or the last layers, as few as will do, which \
           the host computes, as llama.cpp does",
    compared: Compared::WithHost,
};

const OPTIMIZER_OFFLOAD: Entry = Entry {
    name: "optimizer-offload",
    help: "Run all updates on the host that may run there, as ZeRO-Offload does with the optimizer, and \
           plan the rest by the best of the strategies above",
    compared: Compared::WithHost,
};

const AUTO: Entry = Entry {
    name: "auto",
    help: "Move parts of tensors, paced by the clock, and launch ops again where that takes less \
           time than a transfer, or on the host if they may run there, with the ops in the given or \
           a better order; the best of many plans (parameters: effort=PLANS, order=given, repeats=no, \
           host=no or host=all)",
    compared: Compared::Always,
};

const SWAP: Entry = Entry {
    name: "swap",
    help: "Whole tensors in size classes: of a class, what is next used latest leaves \
           (SwapAdvisor's planner; parameters: classes=SIZExCOUNT+…, threshold=NS)",
    compared: Compared::Always,
};

const JOINT: Entry = Entry {
    name: "joint",
    help: "Search for the best order of the ops, with auto as the judge (parameters: seconds=N, \
           rounds=N, seed=N, repeats=no; variant=published searches an order and size classes for \
           swap with SwapAdvisor's genetic algorithm, which has population=N, mutation=PERCENT \
           and selection=FACTOR)",
    compared: Compared::Never,
};

/// A strategy with its parameters.
#[derive(Clone, Debug)]
pub(crate) struct Chosen {
    /// Its name.
    pub(crate) name: &'static str,
    /// What the planner is asked for.
    pub(crate) method: Method,
}

impl Entry {
    /// The strategy with parameters set by `name=value`.
    ///
    /// # Errors
    /// A parameter that it does not have, or a value that the parameter does not take.
    pub(crate) fn with(&self, settings: &[String]) -> Result<Chosen, Failure> {
        let given: Vec<_> = settings.iter().map(|text| split(text)).collect::<Result<_, _>>()?;
        let read = || {
            let mut settings = Settings::new(given)?;
            let method = self.method(&mut settings)?;
            settings.check_all_known(self.name)?;
            Ok(method)
        };
        let method = read().map_err(|error: SettingError| refused(&error))?;
        Ok(Chosen { name: self.name, method })
    }

    /// Reads its parameters.
    fn method(&self, settings: &mut Settings<'_>) -> Result<Method, SettingError> {
        match Strategy::named(self.name) {
            Some(strategy) => strategy.with(settings).map(Method::from),
            None => joint::method(settings),
        }
    }
}

/// The name and the value of a setting.
fn split(text: &str) -> Result<(&str, &str), Failure> {
    let malformed =
        || refused(&format!("{}: it does not have the form name=value", Shown::name(text)));
    text.split_once('=').ok_or_else(malformed)
}

fn refused(reason: &dyn Display) -> Failure {
    Failure::bad_input(format!("--set {reason}"))
}

impl ValueEnum for &'static Entry {
    fn value_variants<'a>() -> &'a [Self] {
        ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name).help(self.help))
    }
}

/// The strategy of that name.
pub(crate) fn find(name: &str) -> Option<&'static Entry> {
    ALL.iter().copied().find(|strategy| strategy.name == name)
}

/// The strategy that a plan says made it, with default parameters; none where that is not
/// one of ours.
pub(crate) fn of_plan(name: &str) -> Option<Method> {
    Some(find(name)?.with(&[]).ok()?.method)
}

#[cfg(test)]
mod tests {
    use super::*;
    use planner_core::planner::Repeats;

    fn refusal(strategy: &Entry, settings: &[&str]) -> String {
        let settings: Vec<_> = settings.iter().map(|&s| s.to_owned()).collect();
        strategy.with(&settings).unwrap_err().message
    }

    #[test]
    fn joint_takes_the_parameters_of_both_searches() {
        let settings = ["variant=published", "population=8", "rounds=3", "mutation=20"];
        let settings = settings.map(ToOwned::to_owned);
        let method = JOINT.with(&settings).unwrap().method;
        let Method::Published(genetic) = method else { panic!() };
        assert_eq!((genetic.population, genetic.limit.rounds), (8, Some(3)));
        assert_eq!(genetic.limit.seconds, None);
        let repeats = |settings: &[&str]| {
            let settings: Vec<_> = settings.iter().map(|&s| s.to_owned()).collect();
            let Method::Joint(joint) = JOINT.with(&settings).unwrap().method else { panic!() };
            joint.repeats
        };
        assert_eq!(repeats(&[]), Repeats::Allowed);
        assert_eq!(repeats(&["repeats=no"]), Repeats::Never);
        assert!(refusal(&JOINT, &["seconds=0"]).contains("above 0"));
        assert!(refusal(&JOINT, &["mutation=0"]).contains("from 1 to 100"));
    }

    #[test]
    fn unknown_parameters_are_refused_with_the_known_ones() {
        assert!(refusal(&WINDOW, &["size=1"]).ends_with("it has bytes, variant"));
        assert!(refusal(&AUTO, &["bytes=1"]).ends_with("it has effort, order, repeats, host"));
        assert!(refusal(&WINDOW, &["bytes"]).contains("name=value"));
        assert!(refusal(&WINDOW, &["bytes=0"]).contains("--set bytes=0: bytes must be a size"));
        assert!(refusal(&WINDOW, &["bytes=1", "bytes=2"]).contains("twice"));
    }

    #[test]
    fn the_help_names_the_parameters() {
        for strategy in ALL {
            let mut settings = Settings::default();
            strategy.method(&mut settings).unwrap();
            for parameter in settings.known() {
                let assigned = format!("{parameter}=");
                assert!(strategy.help.contains(&assigned), "{}: {parameter}", strategy.name);
            }
        }
    }

    #[test]
    fn the_page_lists_them_in_their_order() {
        let page = include_str!("../../docs/strategies.md");
        let rows = page.lines().skip_while(|line| !line.starts_with("| `"));
        let rows = rows.take_while(|line| line.starts_with('|'));
        let listed: Vec<_> = rows.filter_map(|row| row.split('`').nth(1)).collect();
        let names: Vec<_> = ALL.iter().map(|strategy| strategy.name).collect();
        assert_eq!(listed, names);
    }
}
