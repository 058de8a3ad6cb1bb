//! Strategies by name, and their parameters.

use crate::failure::Failure;
use crate::units::parse_bytes;
use clap::ValueEnum;
use planner_core::planner::{Auto, Lms, Order, Strategy, Weights, Window};

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
    /// Of a chain of layers, move the weights that relieve memory most for their transfers
    /// (parameters: variant=published)
    Weights,
    /// The same as published, copying a weight to the host each time that it leaves
    WeightsUndiscounted,
    /// Of a chain of layers, bring each weight for an op and let it leave after it
    LayerToLayer,
    /// Move parts of tensors, paced by the clock, with the ops in the given or a better order;
    /// the best of many plans, those of all other strategies included (parameters:
    /// effort=PLANS, order=given)
    Auto,
}

/// A strategy with its parameters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chosen {
    /// Its name.
    pub(crate) name: &'static str,
    /// What the planner is asked for.
    pub(crate) strategy: Strategy,
}

/// What `--set` has set.
#[derive(Clone, Copy, Debug, Default)]
struct Parameters {
    window: Window,
    lms: Lms,
    weights: Weights,
    auto: Auto,
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
            let parts = setting.split_once('=');
            let (name, value) = parts.ok_or_else(|| {
                Failure::bad_input(format!("--set {setting}: it is not of the form name=value"))
            })?;
            if settings[..at].iter().any(|s| s.split_once('=').is_some_and(|(n, _)| n == name)) {
                return Err(Failure::bad_input(format!("--set {setting}: {name} is set twice")));
            }
            self.set(&mut parameters, name, value)
                .map_err(|reason| Failure::bad_input(format!("--set {setting}: {reason}")))?;
        }
        let strategy = match self {
            Self::InCore => Strategy::InCore,
            Self::OnDemand => Strategy::OnDemand,
            Self::Fit => Strategy::Fit,
            Self::Vdnn => Strategy::Vdnn,
            Self::Lms => Strategy::Lms(parameters.lms),
            Self::Window => Strategy::Window(parameters.window),
            Self::Weights => Strategy::Weights(parameters.weights),
            Self::WeightsUndiscounted => Strategy::WeightsUndiscounted,
            Self::LayerToLayer => Strategy::LayerToLayer,
            Self::Auto => Strategy::Auto(parameters.auto),
        };
        Ok(Chosen { name: self.as_str(), strategy })
    }

    fn set(self, parameters: &mut Parameters, name: &str, value: &str) -> Result<(), String> {
        let Parameters { window, lms, weights, auto } = parameters;
        match (self, name) {
            (Self::Window, "bytes") => {
                let size = parse_bytes(value).filter(|&bytes| bytes > 0);
                window.bytes = Some(size.ok_or("bytes must be a size such as 512MiB")?);
            }
            (Self::Window, "variant") if value == "published" => window.published = true,
            (Self::Weights, "variant") if value == "published" => weights.published = true,
            (Self::Window | Self::Weights, "variant") => {
                return Err("variant can only be published".to_owned());
            }
            (Self::Weights, _) => {
                return Err(format!("weights has no parameter {name:?}; it has variant"));
            }
            (Self::Window, _) => {
                return Err(format!("window has no parameter {name:?}; it has bytes, variant"));
            }
            (Self::Lms, "threshold") => lms.threshold = Some(ops(name, value)?),
            (Self::Lms, "ahead") => lms.ahead = Some(ops(name, value)?),
            (Self::Lms, _) => {
                return Err(format!("lms has no parameter {name:?}; it has threshold, ahead"));
            }
            (Self::Auto, "effort") => {
                let effort = value.parse().ok().filter(|&plans| plans <= 10_000);
                let reason = "effort must be a number of plans to try, up to 10000; 0 takes the first that fits";
                auto.effort = Some(effort.ok_or(reason)?);
            }
            (Self::Auto, "order") if value == "given" => auto.order = Order::Given,
            (Self::Auto, "order") => return Err("order can only be given".to_owned()),
            (Self::Auto, _) => {
                return Err(format!("auto has no parameter {name:?}; it has effort, order"));
            }
            _ => return Err(format!("{} has no parameters", self.as_str())),
        }
        Ok(())
    }
}

/// The strategy that a plan says made it, with default parameters; none where that is not
/// one of ours.
pub(crate) fn of_plan(name: &str) -> Option<Strategy> {
    let known = Name::value_variants().iter().find(|known| known.as_str() == name)?;
    Some(known.with(&[]).ok()?.strategy)
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
        assert_eq!(chosen.strategy, Strategy::Window(window));
    }

    #[test]
    fn lms_takes_its_parameters() {
        let settings = ["threshold=40".to_owned(), "ahead=3".to_owned()];
        let lms = Lms { threshold: Some(40), ahead: Some(3) };
        assert_eq!(Name::Lms.with(&settings).unwrap().strategy, Strategy::Lms(lms));
        assert!(refused(Name::Lms, &["bytes=1"]).ends_with("it has threshold, ahead"));
        assert!(refused(Name::Lms, &["ahead=0"]).contains("1 or more"));
    }

    #[test]
    fn weights_takes_its_parameter() {
        let chosen = Name::Weights.with(&["variant=published".to_owned()]).unwrap();
        assert_eq!(chosen.strategy, Strategy::Weights(Weights { published: true }));
        assert!(refused(Name::Weights, &["bytes=1"]).ends_with("it has variant"));
    }

    #[test]
    fn auto_takes_its_parameters() {
        let settings = ["effort=9".to_owned(), "order=given".to_owned()];
        let auto = Auto { effort: Some(9), order: Order::Given };
        assert_eq!(Name::Auto.with(&settings).unwrap().strategy, Strategy::Auto(auto));
        assert_eq!(Auto::default().order, Order::Free);
        assert!(refused(Name::Auto, &["order=random"]).contains("can only be given"));
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
