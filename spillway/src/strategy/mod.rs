//! Strategies: the strategies of the core, swaps in size classes, and searches.

mod core_planners;
mod watch;

use crate::placing::{self, Unplaced};
#[cfg(feature = "search")]
use crate::search::{genetic, joint};
use crate::settings::{SettingError, Settings};
use planner_core::OpId;
use planner_core::planner::{PlanningError, Request, Strategy as CoreStrategy};
use std::fmt::Debug;
use std::str::FromStr;
use workloads::{OwnedPlan, Shown};

#[cfg(feature = "baselines")]
pub use crate::swapping::Swap;
#[cfg(feature = "baselines")]
pub use planner_core::planner::Lms;
pub use planner_core::planner::{Auto, Groups, Host, Order, Repeats, Weights, Window};
pub use watch::{Limit, Progress, Watch};

/// A plan, and the reason why it does not fix its objects although fixed objects were requested.
pub type Planned = (OwnedPlan, Option<Unplaced>);

/// A planner.
pub trait Planner: Debug {
    /// The name in plan files.
    fn name(&self) -> &'static str;

    /// Returns the smallest budget with which there is a plan, and the op that needs it.
    ///
    /// # Errors
    /// The planner cannot plan this work with any budget, or the process has too little memory.
    fn min_feasible(&self, request: &Request<'_>) -> Result<(u64, OpId), PlanningError>;

    /// Plans without fixed objects.
    ///
    /// # Errors
    /// There is no plan.
    fn plan(
        &self,
        request: &Request<'_>,
        watch: &mut Watch<'_>,
    ) -> Result<OwnedPlan, PlanningError>;

    /// Plans with fixed objects, if this lengthens the period by at most a hundredth. May plan in smaller
    /// budgets.
    ///
    /// # Errors
    /// The errors of [`Planner::plan`].
    fn plan_placed(
        &self,
        request: &Request<'_>,
        watch: &mut Watch<'_>,
    ) -> Result<Planned, PlanningError> {
        placing::plan_by(request, |request| self.plan(request, watch))
    }

    /// Returns the length of one cycle by the published schedule of a strategy, if it has one.
    fn cycle_ns(&self, _request: &Request<'_>) -> Option<u64> {
        None
    }

    /// Returns the limit of the planner, if it searches.
    fn limit(&self) -> Option<Limit> {
        None
    }
}

/// A strategy. It can be made from the core's [`Strategy`](CoreStrategy), from the parameters of a core
/// strategy such as [`Auto`], from [`Swap`], from the settings of a search, or from a text such as
/// `window:bytes=512MiB`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Strategy {
    /// A strategy of the core.
    Core(CoreStrategy),
    /// Whole tensors in size classes.
    #[cfg(feature = "baselines")]
    Swap(Swap),
    /// A search for an order of the ops.
    #[cfg(feature = "search")]
    Joint(joint::JointSettings),
    /// The published search for an order and a division of memory.
    #[cfg(feature = "search")]
    Published(genetic::Settings),
}

impl Default for Strategy {
    fn default() -> Self {
        Auto::default().into()
    }
}

impl<S: Into<CoreStrategy>> From<S> for Strategy {
    fn from(strategy: S) -> Self {
        Self::Core(strategy.into())
    }
}

#[cfg(feature = "baselines")]
impl From<Swap> for Strategy {
    fn from(swap: Swap) -> Self {
        Self::Swap(swap)
    }
}

#[cfg(feature = "search")]
impl From<joint::JointSettings> for Strategy {
    fn from(settings: joint::JointSettings) -> Self {
        Self::Joint(settings)
    }
}

#[cfg(feature = "search")]
impl From<genetic::Settings> for Strategy {
    fn from(settings: genetic::Settings) -> Self {
        Self::Published(settings)
    }
}

impl Strategy {
    /// Returns every strategy, with default parameters.
    pub fn all() -> impl Iterator<Item = Self> {
        let of_core = CoreStrategy::all().into_iter().map(Self::from);
        let all = of_core;
        #[cfg(feature = "baselines")]
        let all = all.chain([Swap::default().into()]);
        #[cfg(feature = "search")]
        let all = all.chain([joint::JointSettings::default().into()]);
        all
    }

    /// Returns the strategy with this name, with default parameters.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|strategy| strategy.name() == name)
    }

    /// A description in one or two sentences.
    #[must_use]
    pub const fn about(&self) -> &'static str {
        match self {
            Self::Core(strategy) => strategy.about(),
            #[cfg(feature = "baselines")]
            Self::Swap(_) => {
                "Move whole tensors in size classes: the tensor of a class with the latest next use \
                 leaves (SwapAdvisor's planner)"
            }
            #[cfg(feature = "search")]
            Self::Joint(_) | Self::Published(_) => {
                "Search for the best order of the ops, with auto as the judge; variant=published \
                 searches an order and size classes for swap with SwapAdvisor's genetic algorithm, \
                 which has population, mutation and selection"
            }
        }
    }

    /// Returns the strategy with the parameters in `set`. It reads all parameters, so that `set` knows them.
    ///
    /// # Errors
    /// A parameter does not take its value.
    pub fn with(self, set: &mut Settings<'_>) -> Result<Self, SettingError> {
        match self {
            Self::Core(strategy) => Ok(set.core(strategy)?.into()),
            #[cfg(feature = "baselines")]
            Self::Swap(_) => Ok(set.swap()?.into()),
            #[cfg(feature = "search")]
            Self::Joint(_) | Self::Published(_) => set.joint(),
        }
    }

    /// Returns the strategy with parameters set by name.
    ///
    /// # Errors
    /// The strategy does not have a parameter, or a parameter does not take its value.
    pub fn with_settings<'s>(
        self,
        given: impl IntoIterator<Item = (&'s str, &'s str)>,
    ) -> Result<Self, SettingError> {
        let name = self.name();
        let mut settings = Settings::new(given)?;
        let strategy = self.with(&mut settings)?;
        settings.check_all_known(name)?;
        Ok(strategy)
    }

    /// Returns the name and the valid values of each parameter. Values are a text such as "a size such as
    /// 512MiB".
    #[must_use]
    pub fn parameters(&self) -> Vec<(&'static str, String)> {
        let mut settings = Settings::default();
        // Without values, this cannot fail.
        let _ = self.clone().with(&mut settings);
        settings.into_known()
    }

    /// Returns the strategy of the core that determines the least memory of this strategy.
    #[must_use]
    pub fn of_core(&self) -> Option<CoreStrategy> {
        match self {
            Self::Core(strategy) => Some(*strategy),
            #[cfg(feature = "baselines")]
            Self::Swap(_) => None,
            #[cfg(feature = "search")]
            Self::Joint(_) => Some(joint::judge()),
            #[cfg(feature = "search")]
            Self::Published(_) => None,
        }
    }

    fn planner(&self) -> &dyn Planner {
        match self {
            Self::Core(strategy) => strategy,
            #[cfg(feature = "baselines")]
            Self::Swap(swap) => swap,
            #[cfg(feature = "search")]
            Self::Joint(settings) => settings,
            #[cfg(feature = "search")]
            Self::Published(settings) => settings,
        }
    }
}

impl Planner for Strategy {
    fn name(&self) -> &'static str {
        self.planner().name()
    }

    fn min_feasible(&self, request: &Request<'_>) -> Result<(u64, OpId), PlanningError> {
        self.planner().min_feasible(request)
    }

    fn plan(
        &self,
        request: &Request<'_>,
        watch: &mut Watch<'_>,
    ) -> Result<OwnedPlan, PlanningError> {
        self.planner().plan(request, watch)
    }

    fn plan_placed(
        &self,
        request: &Request<'_>,
        watch: &mut Watch<'_>,
    ) -> Result<Planned, PlanningError> {
        self.planner().plan_placed(request, watch)
    }

    fn cycle_ns(&self, request: &Request<'_>) -> Option<u64> {
        self.planner().cycle_ns(request)
    }

    fn limit(&self) -> Option<Limit> {
        self.planner().limit()
    }
}

/// Reads a strategy from its name, with its parameters after a colon: `auto`,
/// `window:bytes=512MiB,variant=published`.
impl FromStr for Strategy {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let (name, settings) = text.split_once(':').unwrap_or((text, ""));
        let strategy = Self::named(name).ok_or_else(|| SettingError::no_strategy(name))?;
        let settings = settings.split(',').filter(|setting| !setting.is_empty());
        let settings: Vec<_> = settings.map(split).collect::<Result<_, _>>()?;
        strategy.with_settings(settings)
    }
}

/// Splits a setting such as `bytes=512MiB` into its name and its value.
///
/// # Errors
/// The text has no `=`.
pub fn split(setting: &str) -> Result<(&str, &str), SettingError> {
    setting.split_once('=').ok_or_else(|| SettingError::malformed(setting))
}

impl SettingError {
    fn no_strategy(name: &str) -> Self {
        let names: Vec<_> = Strategy::all().map(|strategy| strategy.name()).collect();
        let name = Shown::name(name);
        Self::because(format!("there is no strategy {name:?}; there are {}", names.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_strategy_is_found_by_its_name() {
        for strategy in CoreStrategy::all() {
            assert_eq!(Strategy::named(strategy.name()), Some(strategy.into()));
        }
        assert_eq!(Strategy::named("swap").is_some(), cfg!(feature = "baselines"));
        assert_eq!(Strategy::named("joint").is_some(), cfg!(feature = "search"));
        assert_eq!(Strategy::named("none"), None);
    }

    #[test]
    fn a_text_names_a_strategy_and_its_parameters() {
        let window = Window::new().with_bytes(512 << 20).with_published(true);
        let read = |text: &str| text.parse::<Strategy>().map_err(|error| error.to_string());
        assert_eq!(read("window:bytes=512MiB,variant=published"), Ok(window.into()));
        assert_eq!(read("auto"), Ok(Strategy::default()));
        assert!(read("windows").unwrap_err().contains("there are in-core, on-demand"));
        assert!(read("window:bytes").unwrap_err().contains("name=value"));
        assert!(read("fit:bytes=1").unwrap_err().ends_with("fit has no parameters"));
    }

    #[test]
    fn every_parameter_has_a_name_and_values() {
        let auto = Strategy::default().parameters();
        let names: Vec<_> = auto.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["effort", "order", "repeats", "host", "arena"]);
        assert_eq!(auto[3].1, "no, yes or all");
        assert_eq!(Strategy::named("fit").unwrap().parameters(), []);
    }
}
