//! Settings of strategies, by name.

use crate::strategy::{Auto, Groups, Host, Lms, Order, Repeats, Strategy, Swap, Weights, Window};
use crate::units::parse_bytes;
use planner_core::plan::Pool;
use planner_core::planner::Strategy as CoreStrategy;
use planner_core::planner::swap::Threshold;
use std::error::Error;
use std::fmt;
use workloads::Shown;

/// Settings that are given as texts. What reads them has those that it reads, whatever they are
/// set to.
#[derive(Debug, Default)]
pub struct Settings<'s> {
    given: Vec<(&'s str, &'s str)>,
    known: Vec<&'static str>,
}

/// Why a setting is refused: a sentence that begins with it.
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
}

impl<'s> Settings<'s> {
    /// Settings from names and values.
    ///
    /// # Errors
    /// A name that is set twice.
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

    /// The value of a setting; none where it is not given.
    ///
    /// # Errors
    /// A value that does not parse; `rule` says what it must be.
    pub fn get<T>(
        &mut self,
        name: &'static str,
        rule: impl fmt::Display,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, SettingError> {
        self.known.push(name);
        let given = self.given.iter().find(|&&(other, _)| other == name);
        let Some(&(_, value)) = given else { return Ok(None) };
        let refused = || SettingError::new((name, value), format!("{name} must be {rule}"));
        parse(value).map(Some).ok_or_else(refused)
    }

    /// Whether a setting has the one value that it can have beside its default.
    ///
    /// # Errors
    /// A third value.
    pub fn is(
        &mut self,
        name: &'static str,
        word: &str,
        default: &str,
    ) -> Result<bool, SettingError> {
        let parse = |value: &str| [word, default].contains(&value).then_some(value == word);
        Ok(self.get(name, format!("{word} or {default}"), parse)?.unwrap_or(false))
    }

    /// A setting that is an integer from 1 to `most`.
    ///
    /// # Errors
    /// Another value.
    pub fn number(&mut self, name: &'static str, most: u64) -> Result<Option<u64>, SettingError> {
        self.get(name, format!("an integer from 1 to {most}"), |value| {
            value.parse().ok().filter(|number| (1..=most).contains(number))
        })
    }

    /// Whether ops may be launched again: the setting `repeats`.
    ///
    /// # Errors
    /// A value other than `no` and `yes`.
    pub fn repeats(&mut self) -> Result<Repeats, SettingError> {
        Ok(if self.is("repeats", "no", "yes")? { Repeats::Never } else { Repeats::Allowed })
    }

    /// Which ops run on the host: the setting `host`.
    ///
    /// # Errors
    /// A value other than `no`, `yes` and `all`.
    pub fn host(&mut self) -> Result<Host, SettingError> {
        let host = |value: &str| match value {
            "no" => Some(Host::Never),
            "yes" => Some(Host::Allowed),
            "all" => Some(Host::All),
            _ => None,
        };
        Ok(self.get("host", "no, yes or all", host)?.unwrap_or_default())
    }

    /// The names of the settings that have been read.
    #[must_use]
    pub fn known(&self) -> &[&'static str] {
        &self.known
    }

    /// Checks that a strategy has read all that is given.
    ///
    /// # Errors
    /// A setting that it does not have.
    pub fn check_all_known(&self, strategy: &str) -> Result<(), SettingError> {
        let unknown = self.given.iter().find(|&(name, _)| !self.known.contains(name));
        let Some(&setting) = unknown else { return Ok(()) };
        let (name, known) = (Shown::name(setting.0), self.known.join(", "));
        let reason = match known.as_str() {
            "" => format!("{strategy} has no parameters"),
            _ => format!("{strategy} has no parameter {name:?}; it has {known}"),
        };
        Err(SettingError::new(setting, reason))
    }
}

impl Strategy {
    /// The same strategy with the parameters that `set` gives. Others are read too, so that
    /// [`Settings::known`] has all.
    ///
    /// # Errors
    /// A value that a parameter does not take.
    pub fn with(self, set: &mut Settings<'_>) -> Result<Self, SettingError> {
        let strategy = match self {
            Self::Swap(_) => return Ok(swap(set)?.into()),
            Self::Core(strategy) => strategy,
        };
        let count = |value: &str| value.parse().ok().filter(|&count| count > 0);
        Ok(match strategy {
            CoreStrategy::Groups(_) => {
                let size = set.get("size", "a number of layers, 1 or more", count)?;
                let leaving = set.get("leaving", "a number of layers, 1 or more", count)?;
                let ahead = set.get("ahead", "a number of ops, 1 or more", count)?;
                Groups { size, leaving, ahead }.into()
            }
            CoreStrategy::Lms(_) => {
                let threshold = set.get("threshold", "a number of ops, 1 or more", count)?;
                let ahead = set.get("ahead", "a number of ops, 1 or more", count)?;
                Lms { threshold, ahead }.into()
            }
            CoreStrategy::Window(_) => {
                let size = |value: &str| parse_bytes(value).filter(|&bytes| bytes > 0);
                let bytes = set.get("bytes", "a size such as 512MiB", size)?;
                Window { bytes, published: set.is("variant", "published", "best")? }.into()
            }
            CoreStrategy::Weights(_) => {
                let published = set.is("variant", "published", "best")?;
                Weights { published, activations: set.is("activations", "yes", "no")? }.into()
            }
            CoreStrategy::Auto(_) => auto(set)?.into(),
            other => other.into(),
        })
    }
}

fn auto(set: &mut Settings<'_>) -> Result<Auto, SettingError> {
    let rule = "a number of plans to try, up to 10000; 0 takes the first that fits";
    let plans = |value: &str| value.parse().ok().filter(|&plans| plans <= 10_000);
    let effort = set.get("effort", rule, plans)?;
    let order = if set.is("order", "given", "free")? { Order::Given } else { Order::Free };
    Ok(Auto { effort, order, repeats: set.repeats()?, host: set.host()? })
}

fn swap(set: &mut Settings<'_>) -> Result<Swap, SettingError> {
    let classes = set.get("classes", "sizes and counts such as 1MiBx40+64MiBx3", classes)?;
    let threshold = set.get("threshold", "a number of nanoseconds", |value| value.parse().ok())?;
    let threshold = threshold.map_or(Swap::default().threshold, Threshold::Ns);
    Ok(Swap { classes, threshold })
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(strategy: &str, given: &[(&'static str, &'static str)]) -> Result<Strategy, String> {
        let mut set = Settings::new(given.iter().copied()).map_err(|error| error.to_string())?;
        let read = Strategy::named(strategy).unwrap().with(&mut set);
        read.and_then(|read| set.check_all_known(strategy).map(|()| read))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_window_takes_its_parameters() {
        let window = Window { bytes: Some(512 << 20), published: true };
        let given = [("bytes", "512MiB"), ("variant", "published")];
        assert_eq!(read("window", &given), Ok(window.into()));
        assert!(read("window", &[("bytes", "0")]).unwrap_err().contains("a size"));
    }

    #[test]
    fn groups_takes_its_parameters() {
        let groups = Groups { size: Some(4), leaving: Some(2), ahead: Some(3) };
        let given = [("size", "4"), ("leaving", "2"), ("ahead", "3")];
        assert_eq!(read("groups", &given), Ok(groups.into()));
    }

    #[test]
    fn lms_takes_its_parameters() {
        let lms = Lms { threshold: Some(40), ahead: Some(3) };
        assert_eq!(read("lms", &[("threshold", "40"), ("ahead", "3")]), Ok(lms.into()));
        assert!(read("lms", &[("bytes", "1")]).unwrap_err().ends_with("it has threshold, ahead"));
        assert!(read("lms", &[("ahead", "0")]).unwrap_err().contains("1 or more"));
    }

    #[test]
    fn weights_takes_its_parameters() {
        let published = Weights { published: true, activations: false };
        assert_eq!(read("weights", &[("variant", "published")]), Ok(published.into()));
        let best = Weights { published: false, activations: true };
        let given = [("variant", "best"), ("activations", "yes")];
        assert_eq!(read("weights", &given), Ok(best.into()));
    }

    #[test]
    fn auto_takes_its_parameters() {
        let auto = Auto {
            effort: Some(9),
            order: Order::Given,
            repeats: Repeats::Never,
            host: Host::Allowed,
        };
        let given = [("effort", "9"), ("order", "given"), ("repeats", "no")];
        assert_eq!(read("auto", &given), Ok(auto.into()));
        let refused = read("auto", &[("order", "random")]).unwrap_err();
        assert_eq!(refused, "order=random: order must be given or free");
        assert!(read("auto", &[("effort", "10001")]).unwrap_err().contains("up to 10000"));
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
            refused("auto", &[("bytes", "1")]).ends_with("it has effort, order, repeats, host")
        );
        assert!(refused("fit", &[("bytes", "1")]).ends_with("fit has no parameters"));
        assert!(refused("window", &[("bytes", "1"), ("bytes", "2")]).contains("twice"));
    }
}
