//! The parameters of the strategy `joint`.

use crate::method::Method;
use search::{Limit, genetic, joint};
use spillway::settings::{SettingError, Settings};

/// Reads them.
pub(super) fn method(set: &mut Settings<'_>) -> Result<Method, SettingError> {
    let limit = limit(set)?;
    let mut genetic = genetic::Settings { limit, ..genetic::Settings::default() };
    let seed = set.get("seed", "an integer", |value| value.parse().ok())?;
    genetic.seed = seed.unwrap_or(genetic.seed);
    let is_published = set.is("variant", "published", "best")?;
    let repeats = set.repeats()?;
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
        false => Method::Joint(joint::JointSettings { seed: genetic.seed, limit, repeats }),
    })
}

/// How long `joint` searches where nothing is set.
const SECONDS: f64 = 20.0;

/// How long to search.
fn limit(set: &mut Settings<'_>) -> Result<Limit, SettingError> {
    let is_time = |seconds: &f64| *seconds > 0.0 && seconds.is_finite();
    let seconds =
        set.get("seconds", "a number above 0", |value| value.parse().ok().filter(is_time))?;
    let rounds = set.number("rounds", 1 << 32)?;
    let seconds = seconds.or(rounds.is_none().then_some(SECONDS));
    Ok(Limit { seconds, rounds, bound_ns: 0 })
}
