//! The strategies that can be asked for. One is added by a file that holds its `ENTRY`, or by an
//! entry here, and a line of [`ALL`].

mod settings;

use crate::failure::Failure;
use crate::method::Method;
use clap::ValueEnum;
use clap::builder::PossibleValue;
use planner_core::plan::Pool;
use planner_core::planner::swap::Threshold;
use planner_core::planner::{Auto, Groups, Lms, Order, Repeats, Strategy, Weights, Window};
use search::{Limit, genetic, joint};
use settings::Settings;
use spillway::swapping::Swap;
use spillway::units::parse_bytes;

/// A strategy.
#[derive(Debug)]
pub(crate) struct Entry {
    /// What it is called in commands and plans.
    pub(crate) name: &'static str,
    /// What it does, and its parameters.
    pub(crate) help: &'static str,
    /// When it is among all strategies.
    pub(crate) compared: Compared,
    /// Reads its parameters.
    pub(crate) method: fn(&mut Settings<'_>) -> Result<Method, String>,
}

/// When a strategy is among all that `compare` plans with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compared {
    Always,
    /// Where the work is a chain of layers; it plans nothing else.
    OnChains,
    /// Only where it is named.
    Never,
}

impl Compared {
    /// Whether it is among them for some work.
    pub(crate) fn holds(self, is_chain: bool) -> bool {
        self == Self::Always || self == Self::OnChains && is_chain
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
    &AUTO,
    &SWAP,
    &JOINT,
];

const IN_CORE: Entry = Entry {
    name: "in-core",
    help: "Keep everything on the device; only inputs move",
    compared: Compared::Always,
    method: |_| Ok(Method::Strategy(Strategy::InCore)),
};

const ON_DEMAND: Entry = Entry {
    name: "on-demand",
    help: "Evict the least recently used tensor when memory is needed, prefetch one op ahead",
    compared: Compared::Always,
    method: |_| Ok(Method::Strategy(Strategy::OnDemand)),
};

const FIT: Entry = Entry {
    name: "fit",
    help: "Keep as many states on the device as fit, prefetch the rest one op ahead",
    compared: Compared::Always,
    method: |_| Ok(Method::Strategy(Strategy::Fit)),
};

const GROUPS: Entry = Entry {
    name: "groups",
    help: "Stream the last layers of each group of layers, as inference servers do (parameters: size=LAYERS, \
           leaving=LAYERS, ahead=OPS)",
    compared: Compared::Always,
    method: |set| {
        let count = |value: &str| value.parse().ok().filter(|&count| count > 0);
        let size = set.get("size", "must be a number of layers, 1 or more", count)?;
        let leaving = set.get("leaving", "must be a number of layers, 1 or more", count)?;
        let ahead = set.get("ahead", "must be a number of ops, 1 or more", count)?;
        Ok(Method::Strategy(Strategy::Groups(Groups { size, leaving, ahead })))
    },
};

const VDNN: Entry = Entry {
    name: "vdnn",
    help: "Swap each temporary out between forward and backward, prefetch one op ahead (vDNN)",
    compared: Compared::Always,
    method: |_| Ok(Method::Strategy(Strategy::Vdnn)),
};

const LMS: Entry = Entry {
    name: "lms",
    help: "Swap out tensors whose next use is far ahead (Large Model Support; parameters: threshold=OPS, \
           ahead=OPS)",
    compared: Compared::Always,
    method: |set| {
        let rule = "must be a number of ops, 1 or more";
        let ops = |value: &str| value.parse().ok().filter(|&ops| ops > 0);
        let threshold = set.get("threshold", rule, ops)?;
        let ahead = set.get("ahead", rule, ops)?;
        Ok(Method::Strategy(Strategy::Lms(Lms { threshold, ahead })))
    },
};

const WINDOW: Entry = Entry {
    name: "window",
    help: "The locally adaptive window (parameters: bytes=SIZE, variant=published)",
    compared: Compared::Always,
    method: |set| {
        let size = |value: &str| parse_bytes(value).filter(|&bytes| bytes > 0);
        let bytes = set.get("bytes", "must be a size such as 512MiB", size)?;
        let published = set.is("variant", "published")?;
        Ok(Method::Strategy(Strategy::Window(Window { bytes, published })))
    },
};

const WEIGHTS: Entry = Entry {
    name: "weights",
    help: "For a chain of layers, move the weights and optimizer states that free the most memory \
           for their transfers (parameters: variant=published, activations=yes moves those as \
           well)",
    compared: Compared::OnChains,
    method: |set| {
        let published = set.is("variant", "published")?;
        let activations = set.is("activations", "yes")?;
        Ok(Method::Strategy(Strategy::Weights(Weights { published, activations })))
    },
};

const WEIGHTS_UNDISCOUNTED: Entry = Entry {
    name: "weights-undiscounted",
    help: "The same as published, copying a weight to the host each time that it leaves",
    compared: Compared::OnChains,
    method: |_| Ok(Method::Strategy(Strategy::WeightsUndiscounted)),
};

const LAYER_TO_LAYER: Entry = Entry {
    name: "layer-to-layer",
    help: "For a chain of layers, prefetch each weight for an op and evict it after the op",
    compared: Compared::OnChains,
    method: |_| Ok(Method::Strategy(Strategy::LayerToLayer)),
};

const CHECKPOINT: Entry = Entry {
    name: "checkpoint",
    help: "Activation checkpointing: keep what segments of the forward pass begin with, run the \
           segments again in the backward pass; nothing moves but inputs",
    compared: Compared::Always,
    method: |_| Ok(Method::Strategy(Strategy::Checkpoint)),
};

const CHECKPOINT_OFFLOAD: Entry = Entry {
    name: "checkpoint-offload",
    help: "The same, with what segments begin with on the host between the passes",
    compared: Compared::Always,
    method: |_| Ok(Method::Strategy(Strategy::CheckpointOffload)),
};

const AUTO: Entry = Entry {
    name: "auto",
    help: "Move parts of tensors, paced by the clock, and launch ops again where that takes less \
           time than a transfer, with the ops in the given or a better order; the best of many \
           plans (parameters: effort=PLANS, order=given, repeats=no)",
    compared: Compared::Always,
    method: |set| {
        let rule = "must be a number of plans to try, up to 10000; 0 takes the first that fits";
        let plans = |value: &str| value.parse().ok().filter(|&plans| plans <= 10_000);
        let effort = set.get("effort", rule, plans)?;
        let order = if set.is("order", "given")? { Order::Given } else { Order::Free };
        let repeats = repeats(set)?;
        Ok(Method::Strategy(Strategy::Auto(Auto { effort, order, repeats })))
    },
};

const SWAP: Entry = Entry {
    name: "swap",
    help: "Whole tensors in size classes: of a class, what is next used latest leaves \
           (SwapAdvisor's planner; parameters: classes=SIZExCOUNT+…, threshold=NS)",
    compared: Compared::Always,
    method: |set| {
        let rule = "must be sizes and counts such as 1MiBx40+64MiBx3";
        let classes = set.get("classes", rule, classes)?;
        let rule = "must be a number of nanoseconds";
        let threshold = set.get("threshold", rule, |value| value.parse().ok())?;
        let threshold = threshold.map_or(Swap::default().threshold, Threshold::Ns);
        Ok(Method::Swap(Swap { classes, threshold }))
    },
};

const JOINT: Entry = Entry {
    name: "joint",
    help: "Search for the best order of the ops, with auto as the judge (parameters: seconds=N, \
           rounds=N, seed=N, repeats=no; variant=published searches an order and size classes for \
           swap with SwapAdvisor's genetic algorithm, which has population=N, mutation=PERCENT \
           and selection=FACTOR)",
    compared: Compared::Never,
    method: |set| {
        let limit = limit(set)?;
        let mut genetic = genetic::Settings { limit, ..genetic::Settings::default() };
        let seed = set.get("seed", "must be an integer", |value| value.parse().ok())?;
        genetic.seed = seed.unwrap_or(genetic.seed);
        let is_published = set.is("variant", "published")?;
        let repeats = repeats(set)?;
        if let Some(population) = set.number("population", 1 << 16)? {
            genetic.population = population as usize;
        }
        if let Some(percent) = set.number("mutation", 100)? {
            genetic.mutation = percent as f64 / 100.0;
        }
        if let Some(factor) = set.number("selection", 1000)? {
            genetic.selection = factor as f64;
        }
        Ok(match is_published {
            true => Method::Published(genetic),
            false => Method::Joint(joint::Settings { seed: genetic.seed, limit, repeats }),
        })
    },
};

/// Whether ops are launched again.
fn repeats(set: &mut Settings<'_>) -> Result<Repeats, String> {
    Ok(if set.is("repeats", "no")? { Repeats::Never } else { Repeats::Allowed })
}

/// How long `joint` searches where nothing is set.
const SECONDS: f64 = 20.0;

/// How long to search.
fn limit(set: &mut Settings<'_>) -> Result<Limit, String> {
    let is_time = |seconds: &f64| *seconds > 0.0 && seconds.is_finite();
    let seconds =
        set.get("seconds", "must be a number above 0", |value| value.parse().ok().filter(is_time))?;
    let rounds = set.number("rounds", 1 << 32)?;
    let seconds = seconds.or(rounds.is_none().then_some(SECONDS));
    Ok(Limit { seconds, rounds, bound_ns: 0 })
}

/// Size classes such as `1MiBx40+64MiBx3`, by ascending size.
fn classes(value: &str) -> Option<Vec<Pool>> {
    let class = |class: &str| {
        let (size, count) = class.split_once('x')?;
        let object_bytes = parse_bytes(size).filter(|&bytes| bytes > 0)?;
        Some(Pool { object_bytes, count: count.parse().ok()? })
    };
    let mut classes: Vec<_> = value.split('+').map(class).collect::<Option<_>>()?;
    classes.sort_by_key(|pool| pool.object_bytes);
    Some(classes)
}

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
        let read = |texts| {
            let mut settings = Settings::parse(texts)?;
            let method = (self.method)(&mut settings)?;
            settings.check_all_known(self.name)?;
            Ok(method)
        };
        let method = read(settings).map_err(|reason: String| Failure::bad_input(reason))?;
        Ok(Chosen { name: self.name, method })
    }
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

    fn refused(strategy: &Entry, settings: &[&str]) -> String {
        let settings: Vec<_> = settings.iter().map(|&s| s.to_owned()).collect();
        strategy.with(&settings).unwrap_err().message
    }

    #[test]
    fn the_window_takes_its_parameters() {
        let settings = ["bytes=512MiB".to_owned(), "variant=published".to_owned()];
        let chosen = WINDOW.with(&settings).unwrap();
        let window = Window { bytes: Some(512 << 20), published: true };
        assert_eq!(chosen.method.of_core(), Some(Strategy::Window(window)));
    }

    #[test]
    fn lms_takes_its_parameters() {
        let settings = ["threshold=40".to_owned(), "ahead=3".to_owned()];
        let lms = Lms { threshold: Some(40), ahead: Some(3) };
        assert_eq!(LMS.with(&settings).unwrap().method.of_core(), Some(Strategy::Lms(lms)));
        assert!(refused(&LMS, &["bytes=1"]).ends_with("it has threshold, ahead"));
        assert!(refused(&LMS, &["ahead=0"]).contains("1 or more"));
    }

    #[test]
    fn weights_takes_its_parameter() {
        let chosen = WEIGHTS.with(&["variant=published".to_owned()]).unwrap();
        let published = Strategy::Weights(Weights { published: true, activations: false });
        assert_eq!(chosen.method.of_core(), Some(published));
        assert!(refused(&WEIGHTS, &["bytes=1"]).ends_with("it has variant, activations"));
    }

    #[test]
    fn auto_takes_its_parameters() {
        let settings = ["effort=9".to_owned(), "order=given".to_owned()];
        let auto = Auto { effort: Some(9), order: Order::Given, ..Auto::default() };
        assert_eq!(AUTO.with(&settings).unwrap().method.of_core(), Some(Strategy::Auto(auto)));
        assert_eq!(Auto::default().order, Order::Free);
        assert!(refused(&AUTO, &["order=random"]).contains("can only be given"));
    }

    #[test]
    fn swap_takes_its_classes() {
        let settings = ["classes=64MiBx3+1MiBx40".to_owned(), "threshold=5".to_owned()];
        let Method::Swap(swap) = SWAP.with(&settings).unwrap().method else { panic!() };
        let pools = [(1 << 20, 40), (64 << 20, 3)];
        let pools = pools.map(|(object_bytes, count)| Pool { object_bytes, count });
        assert_eq!(swap, Swap { classes: Some(pools.to_vec()), threshold: Threshold::Ns(5) });
        assert!(refused(&SWAP, &["classes=1MiB"]).contains("sizes and counts"));
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
        assert!(refused(&JOINT, &["seconds=0"]).contains("above 0"));
        assert!(refused(&JOINT, &["mutation=0"]).contains("from 1 to 100"));
    }

    #[test]
    fn unknown_parameters_are_refused_with_the_known_ones() {
        assert!(refused(&WINDOW, &["size=1"]).ends_with("it has bytes, variant"));
        assert!(refused(&AUTO, &["bytes=1"]).ends_with("it has effort, order, repeats"));
        assert!(refused(&AUTO, &["effort=10001"]).contains("up to 10000"));
        assert!(refused(&FIT, &["bytes=1"]).ends_with("fit has no parameters"));
        assert!(refused(&WINDOW, &["bytes"]).contains("name=value"));
        assert!(refused(&WINDOW, &["bytes=0"]).contains("a size"));
        assert!(refused(&WINDOW, &["variant=x"]).contains("published"));
        assert!(refused(&WINDOW, &["bytes=1", "bytes=2"]).contains("twice"));
    }

    #[test]
    fn the_help_names_the_parameters() {
        for strategy in ALL {
            let mut settings = Settings::default();
            (strategy.method)(&mut settings).unwrap();
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
