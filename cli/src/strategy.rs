//! The strategies as arguments.

use crate::failure::Failure;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use spillway::Strategy;
use spillway::settings::SettingError;
use spillway::strategy::{self, Planner};

/// Parses the name of a strategy.
pub(crate) fn parser() -> impl TypedValueParser<Value = Strategy> {
    let value = |strategy: Strategy| PossibleValue::new(strategy.name()).help(help(&strategy));
    PossibleValuesParser::new(Strategy::all().map(value)).try_map(|name| name.parse::<Strategy>())
}

/// A strategy's description, with its parameters.
fn help(strategy: &Strategy) -> String {
    let parameters = strategy.parameters();
    if parameters.is_empty() {
        return strategy.about().to_owned();
    }
    let parameters: Vec<_> =
        parameters.iter().map(|(name, takes)| format!("{name}: {takes}")).collect();
    format!("{} [{}]", strategy.about(), parameters.join("; "))
}

/// Sets a strategy's parameters from `name=value`.
///
/// # Errors
/// The strategy does not have a parameter, or the parameter does not take the value.
pub(crate) fn with(strategy: &Strategy, settings: &[String]) -> Result<Strategy, Failure> {
    let read = || {
        let settings = settings.iter().map(|text| strategy::split(text));
        strategy.clone().with_settings(settings.collect::<Result<Vec<_>, _>>()?)
    };
    read().map_err(|error: SettingError| Failure::bad_input(format!("--set {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(strategy: &str, settings: &[&str]) -> String {
        let settings: Vec<_> = settings.iter().map(|&s| s.to_owned()).collect();
        with(&strategy.parse().unwrap(), &settings).unwrap_err().message
    }

    #[test]
    fn unknown_parameters_are_refused_with_the_known_ones() {
        assert!(refusal("window", &["size=1"]).ends_with("it has bytes, variant"));
        assert!(refusal("window", &["bytes"]).contains("--set bytes: it does not have the form"));
        assert!(refusal("window", &["bytes=0"]).contains("--set bytes=0: bytes must be a size"));
        assert!(refusal("window", &["bytes=1", "bytes=2"]).contains("twice"));
    }

    #[test]
    fn the_help_names_the_parameters() {
        let help = help(&"auto".parse().unwrap());
        assert!(
            help.ends_with("repeats: no or yes; host: no, yes or all; arena: large or small]"),
            "{help}"
        );
    }

    #[test]
    fn the_page_lists_them_in_their_order() {
        let page = include_str!("../../docs/strategies.md");
        let rows = page.lines().skip_while(|line| !line.starts_with("| `"));
        let rows = rows.take_while(|line| line.starts_with('|'));
        let listed: Vec<_> = rows.filter_map(|row| row.split('`').nth(1)).collect();
        let names: Vec<_> = Strategy::all().map(|strategy| strategy.name()).collect();
        assert_eq!(listed, names);
    }
}
