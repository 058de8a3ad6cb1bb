//! Strategies by name, and their parameters.

use crate::failure::Failure;
use crate::method::Method;
use clap::ValueEnum;
use planner_core::plan::Pool;
use planner_core::planner::swap::Threshold;
use planner_core::planner::{Auto, Lms, Order, Strategy, Weights, Window};
use search::{genetic, joint};
use spillway::swapping::Swap;
use spillway::units::parse_bytes;
use workloads::Shown;

/// The strategies that can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Name {
    /// Everything stays on the device; only inputs move
    InCore,
    /// Evict what was used least recently when memory is needed, prefetch one op ahead
    OnDemand,
    /// As many states on the device as fit, the rest streamed one op ahead
    Fit,
    /// Swap each temporary out between forward and backward, prefetch one op ahead (vDNN)
    Vdnn,
    /// Swap out what is next used far ahead (Large Model Support; parameters: threshold=OPS,
    /// ahead=OPS)
    Lms,
    /// The locally adaptive window (parameters: bytes=SIZE, variant=published)
    Window,
    /// Of a chain of layers, move the weights and optimizer states that relieve memory most for
    /// their transfers (parameters: variant=published, activations=yes moves those as well)
    Weights,
    /// The same as published, copying a weight to the host each time that it leaves
    WeightsUndiscounted,
    /// Of a chain of layers, bring each weight for an op and let it leave after it
    LayerToLayer,
    /// Move parts of tensors, paced by the clock, with the ops in the given or a better order;
    /// the best of many plans, those of all other strategies included (parameters:
    /// effort=PLANS, order=given)
    Auto,
    /// Whole tensors in size classes: of a class, what is used next latest leaves
    /// (SwapAdvisor's planner; parameters: classes=SIZExCOUNT+…, threshold=NS)
    Swap,
    /// Search for the best order of the ops, with auto as the judge (parameters: seconds=N,
    /// rounds=N, seed=N; variant=published searches an order and size classes for swap
    /// with SwapAdvisor's genetic algorithm, which has population=N,
    /// mutation=PERCENT and selection=FACTOR)
    Joint,
}

/// A strategy with its parameters.
#[derive(Clone, Debug)]
pub(crate) struct Chosen {
    /// Its name.
    pub(crate) name: &'static str,
    /// What the planner is asked for.
    pub(crate) method: Method,
}

/// What `--set` has set.
#[derive(Clone, Debug, Default)]
struct Parameters {
    window: Window,
    lms: Lms,
    weights: Weights,
    auto: Auto,
    swap: Swap,
    joint: Joint,
}

/// How long `joint` searches where nothing is set.
const SECONDS: f64 = 20.0;

/// Parameters of both searches.
#[derive(Clone, Copy, Debug, Default)]
struct Joint {
    seconds: Option<f64>,
    rounds: Option<u64>,
    published: bool,
    genetic: genetic::Settings,
}

impl Joint {
    fn method(self) -> Method {
        let Self { rounds, mut genetic, .. } = self;
        let seconds = self.seconds.or(rounds.is_none().then_some(SECONDS));
        genetic.limit = search::Limit { seconds, rounds, bound_ns: 0 };
        match self.published {
            true => Method::Published(genetic),
            false => Method::Joint(joint::Settings { seed: genetic.seed, limit: genetic.limit }),
        }
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let unknown = Shown::name(name);
        let number = |most: u64| {
            let number = value.parse::<u64>().ok().filter(|number| (1..=most).contains(number));
            number.ok_or_else(|| format!("{name} must be an integer from 1 to {most}"))
        };
        match name {
            "seconds" => {
                let seconds = value.parse().ok().filter(|&s: &f64| s > 0.0 && s.is_finite());
                self.seconds = Some(seconds.ok_or("seconds must be a number above 0")?);
            }
            "rounds" => self.rounds = Some(number(1 << 32)?),
            "seed" => {
                let seed = value.parse().map_err(|_| "seed must be an integer".to_owned());
                self.genetic.seed = seed?;
            }
            "variant" if value == "published" => self.published = true,
            "variant" => return Err("variant can only be published".to_owned()),
            "population" => self.genetic.population = number(1 << 16)? as usize,
            "mutation" => self.genetic.mutation = number(100)? as f64 / 100.0,
            "selection" => self.genetic.selection = number(1000)? as f64,
            _ => {
                return Err(format!(
                    "joint has no parameter {unknown:?}; it has seconds, rounds, seed, variant, \
                     population, mutation, selection"
                ));
            }
        }
        Ok(())
    }
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

/// A number of ops.
fn ops(name: &str, value: &str) -> Result<u32, String> {
    let number = value.parse().ok().filter(|&ops| ops > 0);
    number.ok_or_else(|| format!("{name} must be a number of ops, 1 or more"))
}

impl Name {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::InCore => "in-core",
            Self::OnDemand => "on-demand",
            Self::Fit => "fit",
            Self::Vdnn => "vdnn",
            Self::Lms => "lms",
            Self::Window => "window",
            Self::Weights => "weights",
            Self::WeightsUndiscounted => "weights-undiscounted",
            Self::LayerToLayer => "layer-to-layer",
            Self::Auto => "auto",
            Self::Swap => "swap",
            Self::Joint => "joint",
        }
    }

    /// Whether it plans chains of layers only.
    pub(crate) const fn is_for_chains(self) -> bool {
        matches!(self, Self::Weights | Self::WeightsUndiscounted | Self::LayerToLayer)
    }

    /// The strategy with parameters set by `name=value`.
    pub(crate) fn with(self, settings: &[String]) -> Result<Chosen, Failure> {
        let mut parameters = Parameters::default();
        for (at, setting) in settings.iter().enumerate() {
            let refused = |reason: String| {
                Failure::bad_input(format!("--set {}: {reason}", Shown::name(setting)))
            };
            let parts = setting.split_once('=');
            let (name, value) =
                parts.ok_or_else(|| refused("it is not of the form name=value".to_owned()))?;
            if settings[..at].iter().any(|s| s.split_once('=').is_some_and(|(n, _)| n == name)) {
                return Err(refused(format!("{} is set twice", Shown::name(name))));
            }
            self.set(&mut parameters, name, value).map_err(refused)?;
        }
        let method = match self {
            Self::InCore => Method::Strategy(Strategy::InCore),
            Self::OnDemand => Method::Strategy(Strategy::OnDemand),
            Self::Fit => Method::Strategy(Strategy::Fit),
            Self::Vdnn => Method::Strategy(Strategy::Vdnn),
            Self::Lms => Method::Strategy(Strategy::Lms(parameters.lms)),
            Self::Window => Method::Strategy(Strategy::Window(parameters.window)),
            Self::Weights => Method::Strategy(Strategy::Weights(parameters.weights)),
            Self::WeightsUndiscounted => Method::Strategy(Strategy::WeightsUndiscounted),
            Self::LayerToLayer => Method::Strategy(Strategy::LayerToLayer),
            Self::Auto => Method::Strategy(Strategy::Auto(parameters.auto)),
            Self::Swap => Method::Swap(parameters.swap),
            Self::Joint => parameters.joint.method(),
        };
        Ok(Chosen { name: self.as_str(), method })
    }

    fn set(self, parameters: &mut Parameters, name: &str, value: &str) -> Result<(), String> {
        let Parameters { window, lms, weights, auto, swap, joint } = parameters;
        let unknown = Shown::name(name);
        match (self, name) {
            (Self::Window, "bytes") => {
                let size = parse_bytes(value).filter(|&bytes| bytes > 0);
                window.bytes = Some(size.ok_or("bytes must be a size such as 512MiB")?);
            }
            (Self::Window, "variant") if value == "published" => window.published = true,
            (Self::Weights, "variant") if value == "published" => weights.published = true,
            (Self::Weights, "activations") if value == "yes" => weights.activations = true,
            (Self::Weights, "activations") => {
                return Err("activations can only be yes".to_owned());
            }
            (Self::Window | Self::Weights, "variant") => {
                return Err("variant can only be published".to_owned());
            }
            (Self::Weights, _) => {
                return Err(format!(
                    "weights has no parameter {unknown:?}; it has variant, activations"
                ));
            }
            (Self::Window, _) => {
                return Err(format!("window has no parameter {unknown:?}; it has bytes, variant"));
            }
            (Self::Lms, "threshold") => lms.threshold = Some(ops(name, value)?),
            (Self::Lms, "ahead") => lms.ahead = Some(ops(name, value)?),
            (Self::Lms, _) => {
                return Err(format!("lms has no parameter {unknown:?}; it has threshold, ahead"));
            }
            (Self::Auto, "effort") => {
                let effort = value.parse().ok().filter(|&plans| plans <= 10_000);
                let reason = "effort must be a number of plans to try, up to 10000; 0 takes the first that fits";
                auto.effort = Some(effort.ok_or(reason)?);
            }
            (Self::Auto, "order") if value == "given" => auto.order = Order::Given,
            (Self::Auto, "order") => return Err("order can only be given".to_owned()),
            (Self::Auto, _) => {
                return Err(format!("auto has no parameter {unknown:?}; it has effort, order"));
            }
            (Self::Swap, "classes") => {
                let reason = "classes must be sizes and counts such as 1MiBx40+64MiBx3";
                swap.classes = Some(classes(value).ok_or(reason)?);
            }
            (Self::Swap, "threshold") => {
                let reason = "threshold must be a number of nanoseconds";
                swap.threshold = Threshold::Ns(value.parse().map_err(|_| reason)?);
            }
            (Self::Swap, _) => {
                return Err(format!(
                    "swap has no parameter {unknown:?}; it has classes, threshold"
                ));
            }
            (Self::Joint, _) => joint.set(name, value)?,
            _ => return Err(format!("{} has no parameters", self.as_str())),
        }
        Ok(())
    }
}

/// The strategy that a plan says made it, with default parameters; none where that is not
/// one of ours.
pub(crate) fn of_plan(name: &str) -> Option<Method> {
    let known = Name::value_variants().iter().find(|known| known.as_str() == name)?;
    Some(known.with(&[]).ok()?.method)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(name: Name, settings: &[&str]) -> String {
        let settings: Vec<_> = settings.iter().map(|&s| s.to_owned()).collect();
        name.with(&settings).unwrap_err().message
    }

    #[test]
    fn the_window_takes_its_parameters() {
        let settings = ["bytes=512MiB".to_owned(), "variant=published".to_owned()];
        let chosen = Name::Window.with(&settings).unwrap();
        let window = Window { bytes: Some(512 << 20), published: true };
        assert_eq!(chosen.method.of_core(), Some(Strategy::Window(window)));
    }

    #[test]
    fn lms_takes_its_parameters() {
        let settings = ["threshold=40".to_owned(), "ahead=3".to_owned()];
        let lms = Lms { threshold: Some(40), ahead: Some(3) };
        assert_eq!(Name::Lms.with(&settings).unwrap().method.of_core(), Some(Strategy::Lms(lms)));
        assert!(refused(Name::Lms, &["bytes=1"]).ends_with("it has threshold, ahead"));
        assert!(refused(Name::Lms, &["ahead=0"]).contains("1 or more"));
    }

    #[test]
    fn weights_takes_its_parameter() {
        let chosen = Name::Weights.with(&["variant=published".to_owned()]).unwrap();
        let published = Strategy::Weights(Weights { published: true, activations: false });
        assert_eq!(chosen.method.of_core(), Some(published));
        assert!(refused(Name::Weights, &["bytes=1"]).ends_with("it has variant, activations"));
    }

    #[test]
    fn auto_takes_its_parameters() {
        let settings = ["effort=9".to_owned(), "order=given".to_owned()];
        let auto = Auto { effort: Some(9), order: Order::Given };
        assert_eq!(
            Name::Auto.with(&settings).unwrap().method.of_core(),
            Some(Strategy::Auto(auto))
        );
        assert_eq!(Auto::default().order, Order::Free);
        assert!(refused(Name::Auto, &["order=random"]).contains("can only be given"));
    }

    #[test]
    fn swap_takes_its_classes() {
        let settings = ["classes=64MiBx3+1MiBx40".to_owned(), "threshold=5".to_owned()];
        let Method::Swap(swap) = Name::Swap.with(&settings).unwrap().method else { panic!() };
        let pools = [(1 << 20, 40), (64 << 20, 3)];
        let pools = pools.map(|(object_bytes, count)| Pool { object_bytes, count });
        assert_eq!(swap, Swap { classes: Some(pools.to_vec()), threshold: Threshold::Ns(5) });
        assert!(refused(Name::Swap, &["classes=1MiB"]).contains("sizes and counts"));
    }

    #[test]
    fn joint_takes_the_parameters_of_both_searches() {
        let settings = ["variant=published", "population=8", "rounds=3", "mutation=20"];
        let settings = settings.map(ToOwned::to_owned);
        let method = Name::Joint.with(&settings).unwrap().method;
        let Method::Published(genetic) = method else { panic!() };
        assert_eq!((genetic.population, genetic.limit.rounds), (8, Some(3)));
        assert_eq!(genetic.limit.seconds, None);
        assert!(matches!(Name::Joint.with(&[]).unwrap().method, Method::Joint(_)));
        assert!(refused(Name::Joint, &["seconds=0"]).contains("above 0"));
        assert!(refused(Name::Joint, &["mutation=0"]).contains("from 1 to 100"));
    }

    #[test]
    fn unknown_parameters_are_refused_with_the_known_ones() {
        assert!(refused(Name::Window, &["size=1"]).ends_with("it has bytes, variant"));
        assert!(refused(Name::Auto, &["bytes=1"]).ends_with("it has effort, order"));
        assert!(refused(Name::Auto, &["effort=10001"]).contains("up to 10000"));
        assert!(refused(Name::Fit, &["bytes=1"]).ends_with("fit has no parameters"));
        assert!(refused(Name::Window, &["bytes"]).contains("name=value"));
        assert!(refused(Name::Window, &["bytes=0"]).contains("a size"));
        assert!(refused(Name::Window, &["variant=x"]).contains("published"));
        assert!(refused(Name::Window, &["bytes=1", "bytes=2"]).contains("twice"));
    }

    #[test]
    fn names_match_those_that_are_typed() {
        for name in Name::value_variants() {
            let typed = name.to_possible_value().unwrap();
            assert_eq!(typed.get_name(), name.as_str());
        }
    }
}
