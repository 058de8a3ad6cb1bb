//! Strategies and their settings, by the names that the program has for them.

use crate::error::PlanningError;
use pyo3::prelude::*;
use spillway::Strategy;
use spillway::strategy::{Auto, Groups, Lms, Order, Repeats, Weights, Window};
use spillway::units::parse_bytes;
use std::collections::BTreeMap;

/// The value of a setting.
#[derive(FromPyObject)]
pub(crate) enum Setting {
    Switch(bool),
    Number(u64),
    Text(String),
}

impl Setting {
    fn into_text(self) -> String {
        match self {
            Self::Switch(true) => "yes".to_owned(),
            Self::Switch(false) => "no".to_owned(),
            Self::Number(number) => number.to_string(),
            Self::Text(text) => text,
        }
    }
}

/// Settings that are still to be read.
struct Settings<'s> {
    strategy: &'s str,
    rest: BTreeMap<String, Setting>,
}

impl Settings<'_> {
    /// Reads a setting, if it is given.
    fn get<T>(
        &mut self,
        name: &str,
        parse: impl FnOnce(&str) -> Option<T>,
        rule: &str,
    ) -> PyResult<Option<T>> {
        let Some(value) = self.rest.remove(name).map(Setting::into_text) else { return Ok(None) };
        let refused = || PlanningError::new_err(format!("{name} is {value:?}, but must be {rule}"));
        parse(&value).map(Some).ok_or_else(refused)
    }

    /// Whether a setting has the one value that it can have beside its default.
    fn is(&mut self, name: &str, word: &str, default: &str) -> PyResult<bool> {
        let parse = |value: &str| [word, default].contains(&value).then_some(value == word);
        let is = self.get(name, parse, &format!("{word:?} or {default:?}"))?;
        Ok(is.unwrap_or(false))
    }

    fn end(self) -> PyResult<()> {
        let Self { strategy, rest } = self;
        match rest.into_keys().next() {
            None => Ok(()),
            Some(name) => {
                let message = format!("the strategy {strategy} has no setting {name:?}");
                Err(PlanningError::new_err(message))
            }
        }
    }
}

/// A strategy with settings.
pub(crate) fn named(name: &str, settings: BTreeMap<String, Setting>) -> PyResult<Strategy> {
    let mut set = Settings { strategy: name, rest: settings };
    let ops = |value: &str| value.parse().ok().filter(|&ops| ops > 0);
    let strategy = match name {
        "auto" => {
            let plans = |value: &str| value.parse().ok().filter(|&plans| plans <= 10_000);
            let effort = set.get("effort", plans, "a number of plans, up to 10000")?;
            let order = if set.is("order", "given", "free")? { Order::Given } else { Order::Free };
            let never = set.is("repeats", "no", "yes")?;
            let repeats = if never { Repeats::Never } else { Repeats::Allowed };
            Auto { effort, order, repeats }.into()
        }
        "groups" => {
            let size = set.get("size", ops, "a number of layers, 1 or more")?;
            let leaving = set.get("leaving", ops, "a number of layers, 1 or more")?;
            let ahead = set.get("ahead", ops, "a number of ops, 1 or more")?;
            Groups { size, leaving, ahead }.into()
        }
        "lms" => {
            let threshold = set.get("threshold", ops, "a number of ops, 1 or more")?;
            let ahead = set.get("ahead", ops, "a number of ops, 1 or more")?;
            Lms { threshold, ahead }.into()
        }
        "window" => {
            let size = |value: &str| parse_bytes(value).filter(|&bytes| bytes > 0);
            let bytes = set.get("bytes", size, "a size such as 512MiB")?;
            Window { bytes, published: set.is("variant", "published", "best")? }.into()
        }
        "weights" => {
            let published = set.is("variant", "published", "best")?;
            Weights { published, activations: set.is("activations", "yes", "no")? }.into()
        }
        other => Strategy::named(other)
            .ok_or_else(|| PlanningError::new_err(format!("there is no strategy {other:?}")))?,
    };
    set.end()?;
    Ok(strategy)
}
