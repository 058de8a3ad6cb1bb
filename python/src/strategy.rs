//! Strategies and their settings, under the names that the program uses.

use crate::error::PlanningError;
use pyo3::prelude::*;
use spillway::Strategy;
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

/// A strategy with settings.
pub(crate) fn named(name: &str, settings: BTreeMap<String, Setting>) -> PyResult<Strategy> {
    let default = Strategy::named(name)
        .ok_or_else(|| PlanningError::new_err(format!("there is no strategy {name:?}")))?;
    let texts: Vec<_> = settings.into_iter().map(|(n, value)| (n, value.into_text())).collect();
    let given = texts.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    default.with_settings(given).map_err(|error| PlanningError::new_err(error.to_string()))
}
