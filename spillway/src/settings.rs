//! Settings of strategies, by name.

#[cfg(feature = "baselines")]
use crate::strategy::Swap;
use crate::units::parse_bytes;
#[cfg(feature = "baselines")]
use planner_core::plan::Pool;
#[cfg(feature = "baselines")]
use planner_core::planner::swap::Threshold;
use planner_core::planner::{Parameter, Strategy as CoreStrategy, Takes};
use std::error::Error;
use std::fmt;
use workloads::Shown;

/// Settings given as texts. The known settings are the names that a strategy reads, whether they are set or
/// not.
#[derive(Debug, Default)]
pub struct Settings<'s> {
    given: Vec<(&'s str, &'s str)>,
    known: Vec<(&'static str, String)>,
}

/// The reason why a setting is refused: a sentence that begins with the setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingError(String);

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for SettingError {}

impl SettingError {
    fn new((name, value): (&str, &str), reason: impl fmt::Display) -> Self {
        Self(format!("{}={}: {reason}", Shown::name(name), Shown::name(value)))
    }

    pub(crate) const fn because(reason: String) -> Self {
        Self(reason)
    }

    /// The error for a text that is not `name=value`.
    pub(crate) fn malformed(text: &str) -> Self {
        Self(format!("{}: it does not have the form name=value", Shown::name(text)))
    }
}

impl<'s> Settings<'s> {
    /// Collects settings from names and values.
    ///
    /// # Errors
    /// A name is set twice.
    pub fn new(given: impl IntoIterator<Item = (&'s str, &'s str)>) -> Result<Self, SettingError> {
        let mut settings = Self::default();
        for setting @ (name, _) in given {
            if settings.given.iter().any(|&(other, _)| other == name) {
                let reason = format!("{} is set twice", Shown::name(name));
                return Err(SettingError::new(setting, reason));
            }
            settings.given.push(setting);
        }
        Ok(settings)
    }

    /// Reads the value of a setting. Returns `None` if it is not given.
    ///
    /// # Errors
    /// The value does not parse; `rule` names the valid values in the error.
    pub fn get<T>(
        &mut self,
        name: &'static str,
        rule: impl fmt::Display,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, SettingError> {
        self.known.push((name, rule.to_string()));
        let given = self.given.iter().find(|&&(other, _)| other == name);
        let Some(&(_, value)) = given else { return Ok(None) };
        let refused = || SettingError::new((name, value), format!("{name} must be {rule}"));
        parse(value).map(Some).ok_or_else(refused)
    }

    /// Returns the settings that were read, each with its valid values.
    #[must_use]
    pub fn into_known(self) -> Vec<(&'static str, String)> {
        self.known
    }

    /// Checks that a strategy has read all given settings.
    ///
    /// # Errors
    /// The strategy does not have a given setting.
    pub fn check_all_known(&self, strategy: &str) -> Result<(), SettingError> {
        let known: Vec<_> = self.known.iter().map(|(name, _)| *name).collect();
        let unknown = self.given.iter().find(|(name, _)| !known.contains(name));
        let Some(&setting) = unknown else { return Ok(()) };
        let (name, known) = (Shown::name(setting.0), known.join(", "));
        let reason = match known.as_str() {
            "" => format!("{strategy} has no parameters"),
            _ => format!("{strategy} has no parameter {name:?}; it has {known}"),
        };
        Err(SettingError::new(setting, reason))
    }
}

/// The parameters of each kind of strategy.
impl Settings<'_> {
    /// Reads the parameters of a strategy of the core.
    pub(crate) fn core(
        &mut self,
        mut strategy: CoreStrategy,
    ) -> Result<CoreStrategy, SettingError> {
        for Parameter { name, takes } in strategy.parameters() {
            if let Some(value) = self.get(name, takes, |text| number(*takes, text))? {
                strategy.set(name, value);
            }
        }
        Ok(strategy)
    }

    /// Reads the parameters of `swap`.
    #[cfg(feature = "baselines")]
    pub(crate) fn swap(&mut self) -> Result<Swap, SettingError> {
        let classes = self.get("classes", "sizes and counts such as 1MiBx40+64MiBx3", classes)?;
        let nanoseconds = |value: &str| value.parse().ok();
        let threshold = self.get("threshold", "a number of nanoseconds", nanoseconds)?;
        let threshold = threshold.map_or(Swap::default().threshold, Threshold::Ns);
        Ok(Swap { classes, threshold })
    }
}

/// Parses the value of a parameter of the core.
fn number(takes: Takes, text: &str) -> Option<u64> {
    match takes {
        Takes::Bytes => parse_bytes(text).filter(|&bytes| bytes > 0),
        Takes::Count(_, least, most) => {
            text.parse().ok().filter(|count| (least..=most).contains(count))
        }
        Takes::Word(words) => words.iter().position(|&word| word == text).map(|at| at as u64),
        _ => None,
    }
}

/// Parses size classes such as `1MiBx40+64MiBx3`, by ascending size.
#[cfg(feature = "baselines")]
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::{Auto, Groups, Lms, Order, Repeats, Strategy, Weights, Window};

    fn read(strategy: &str, given: &[(&'static str, &'static str)]) -> Result<Strategy, String> {
        let read = Strategy::named(strategy).unwrap().with_settings(given.iter().copied());
        read.map_err(|error| error.to_string())
    }

    #[test]
    fn the_window_takes_its_parameters() {
        let window = Window::new().with_bytes(512 << 20).with_published(true);
        let given = [("bytes", "512MiB"), ("variant", "published")];
        assert_eq!(read("window", &given), Ok(window.into()));
        assert!(read("window", &[("bytes", "0")]).unwrap_err().contains("a size"));
    }

    #[test]
    fn groups_takes_its_parameters() {
        let groups = Groups::new().with_size(4).with_leaving(2).with_ahead(3);
        let given = [("size", "4"), ("leaving", "2"), ("ahead", "3")];
        assert_eq!(read("groups", &given), Ok(groups.into()));
    }

    #[test]
    fn lms_takes_its_parameters() {
        let lms = Lms::new().with_threshold(40).with_ahead(3);
        assert_eq!(read("lms", &[("threshold", "40"), ("ahead", "3")]), Ok(lms.into()));
        assert!(read("lms", &[("bytes", "1")]).unwrap_err().ends_with("it has threshold, ahead"));
        assert!(read("lms", &[("ahead", "0")]).unwrap_err().contains("1 or more"));
    }

    #[test]
    fn weights_takes_its_parameters() {
        let published = Weights::new().with_published(true);
        assert_eq!(read("weights", &[("variant", "published")]), Ok(published.into()));
        let best = Weights::new().with_activations(true);
        let given = [("variant", "best"), ("activations", "yes")];
        assert_eq!(read("weights", &given), Ok(best.into()));
    }

    #[test]
    fn auto_takes_its_parameters() {
        let auto = Auto::new().with_effort(9).with_order(Order::Given).with_repeats(Repeats::Never);
        let auto = auto.with_small_arena(true);
        let given = [("effort", "9"), ("order", "given"), ("repeats", "no"), ("arena", "small")];
        assert_eq!(read("auto", &given), Ok(auto.into()));
        let refused = read("auto", &[("order", "random")]).unwrap_err();
        assert_eq!(refused, "order=random: order must be given or free");
        assert!(read("auto", &[("effort", "10001")]).unwrap_err().contains("from 0 to 10000"));
    }

    #[test]
    fn swap_takes_its_classes() {
        let pools = [(1 << 20, 40), (64 << 20, 3)];
        let pools = pools.map(|(object_bytes, count)| Pool { object_bytes, count });
        let swap = Swap { classes: Some(pools.to_vec()), threshold: Threshold::Ns(5) };
        let given = [("classes", "64MiBx3+1MiBx40"), ("threshold", "5")];
        assert_eq!(read("swap", &given), Ok(swap.into()));
        let refused = read("swap", &[("classes", "1MiB")]).unwrap_err();
        assert!(refused.contains("sizes and counts"));
    }

    #[test]
    fn unknown_parameters_are_refused_with_the_known_ones() {
        let refused = |strategy, given| read(strategy, given).unwrap_err();
        assert!(refused("window", &[("size", "1")]).ends_with("it has bytes, variant"));
        assert!(
            refused("auto", &[("bytes", "1")])
                .ends_with("it has effort, order, repeats, host, arena")
        );
        assert!(refused("fit", &[("bytes", "1")]).ends_with("fit has no parameters"));
        assert!(refused("window", &[("bytes", "1"), ("bytes", "2")]).contains("twice"));
    }
}
