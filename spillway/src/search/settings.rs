//! The parameters of `joint`.

use super::joint::SECONDS;
use super::{Limit, genetic, joint};
use crate::settings::{SettingError, Settings};
use crate::strategy::{Repeats, Strategy};

impl Settings<'_> {
    /// Reads the parameters of both searches.
    pub(crate) fn joint(&mut self) -> Result<Strategy, SettingError> {
        let limit = self.limit()?;
        let mut genetic = genetic::Settings { limit, ..genetic::Settings::default() };
        let seed = self.get("seed", "an integer", |value| value.parse().ok())?;
        genetic.seed = seed.unwrap_or(genetic.seed);
        let is_published = self.is("variant", "published", "best")?;
        let repeats =
            if self.is("repeats", "no", "yes")? { Repeats::Never } else { Repeats::Allowed };
        if let Some(population) = self.number("population", 1 << 16)? {
            genetic.population = population as usize;
        }
        if let Some(percent) = self.number("mutation", 100)? {
            genetic.mutation = percent as f64 / 100.0;
        }
        if let Some(factor) = self.number("selection", 1000)? {
            genetic.selection = factor as f64;
        }
        Ok(match is_published {
            true => genetic.into(),
            false => joint::JointSettings { seed: genetic.seed, limit, repeats }.into(),
        })
    }

    /// Reads the limit of the search.
    fn limit(&mut self) -> Result<Limit, SettingError> {
        let is_time = |seconds: &f64| *seconds > 0.0 && seconds.is_finite();
        let seconds =
            self.get("seconds", "a number above 0", |value| value.parse().ok().filter(is_time))?;
        let rounds = self.number("rounds", 1 << 32)?;
        let seconds = seconds.or(rounds.is_none().then_some(SECONDS));
        Ok(Limit { seconds, rounds, bound_ns: 0 })
    }

    /// Returns whether a setting has its one value other than the default.
    fn is(&mut self, name: &'static str, word: &str, default: &str) -> Result<bool, SettingError> {
        let parse = |value: &str| [word, default].contains(&value).then_some(value == word);
        Ok(self.get(name, format!("{word} or {default}"), parse)?.unwrap_or(false))
    }

    /// Reads an integer from 1 to `most`.
    fn number(&mut self, name: &'static str, most: u64) -> Result<Option<u64>, SettingError> {
        self.get(name, format!("an integer from 1 to {most}"), |value| {
            value.parse().ok().filter(|number| (1..=most).contains(number))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(settings: &[(&'static str, &'static str)]) -> Result<Strategy, String> {
        let joint = Strategy::named("joint").unwrap();
        joint.with_settings(settings.iter().copied()).map_err(|error| error.to_string())
    }

    #[test]
    fn joint_takes_the_parameters_of_both_searches() {
        let settings =
            [("variant", "published"), ("population", "8"), ("rounds", "3"), ("mutation", "20")];
        let Ok(Strategy::Published(genetic)) = read(&settings) else { panic!() };
        assert_eq!((genetic.population, genetic.limit.rounds), (8, Some(3)));
        assert_eq!(genetic.limit.seconds, None);
        let repeats = |settings: &[(&'static str, &'static str)]| {
            let Ok(Strategy::Joint(joint)) = read(settings) else { panic!() };
            joint.repeats
        };
        assert_eq!(repeats(&[]), Repeats::Allowed);
        assert_eq!(repeats(&[("repeats", "no")]), Repeats::Never);
        assert!(read(&[("seconds", "0")]).unwrap_err().contains("above 0"));
        assert!(read(&[("mutation", "0")]).unwrap_err().contains("from 1 to 100"));
    }
}
