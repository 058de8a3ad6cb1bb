//! The device memory that a plan may take.

use crate::figures::Needs;
use crate::units::{self, parse_bytes, thousandths};
use std::fmt;
use std::str::FromStr;

/// A memory budget. Its text is a size (`4GiB`, `512MiB`, `1000000`), a percentage (`35%`) or `min`. A number
/// without a unit is in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Budget {
    /// A number of bytes.
    Bytes(u64),
    /// A share of the memory that the work needs in-core, in thousandths of a percent. From 100 % on, the
    /// budget is at least the memory of an in-core plan in whole chunks.
    MilliPercent(u128),
    /// The smallest budget with which the strategy can plan.
    Min,
}

impl FromStr for Budget {
    type Err = BadBudget;

    fn from_str(text: &str) -> Result<Self, BadBudget> {
        let budget = match text.strip_suffix('%') {
            _ if text == "min" => Some(Self::Min),
            Some(number) => thousandths(number.trim_end()).map(Self::MilliPercent),
            None => parse_bytes(text).map(Self::Bytes),
        };
        budget.ok_or(BadBudget)
    }
}

/// The error for a text that is not a budget. It displays the forms of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BadBudget;

impl fmt::Display for BadBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a budget is a size (4GiB, 512MiB, 1000000), a percentage of the memory that the \
             work needs in-core (35%), or min",
        )
    }
}

impl std::error::Error for BadBudget {}

impl From<u64> for Budget {
    fn from(bytes: u64) -> Self {
        Self::Bytes(bytes)
    }
}

impl TryFrom<&str> for Budget {
    type Error = BadBudget;

    fn try_from(text: &str) -> Result<Self, BadBudget> {
        text.parse()
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Bytes(bytes) => f.write_str(&units::bytes(bytes)),
            Self::MilliPercent(milli) => write!(f, "{} %", milli as f64 / 1000.0),
            Self::Min => f.write_str("min"),
        }
    }
}

/// The whole, in thousandths of a percent.
const ALL: u128 = 100_000;

impl Budget {
    /// Returns the budget in bytes, rounded down, for work and a strategy with these needs. If the least
    /// memory of the strategy is not known, [`Budget::Min`] is 0.
    #[must_use]
    pub fn bytes(self, needs: &Needs) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Min => needs.min_feasible_bytes.unwrap_or(0),
            Self::MilliPercent(milli) => {
                let bytes = milli.saturating_mul(needs.in_core_peak_bytes.into()) / ALL;
                let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
                if milli < ALL { bytes } else { bytes.max(needs.in_core_least_bytes) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_round_down() {
        let needs = Needs {
            in_core_peak_bytes: 1001,
            in_core_least_bytes: 1024,
            min_feasible_bytes: Some(7),
        };
        let bytes = |text: &str| text.parse::<Budget>().unwrap().bytes(&needs);
        assert_eq!(bytes("35%"), 350);
        assert_eq!(bytes("12.5 %"), 125);
        assert_eq!(bytes("99.999%"), 1000);
        // A plan that keeps everything takes whole chunks.
        assert_eq!(bytes("100%"), 1024);
        assert_eq!(bytes("150%"), 1501);
        assert_eq!(bytes("min"), 7);
        assert_eq!(bytes("1KiB"), 1024);
        let all = Needs { in_core_peak_bytes: u64::MAX, ..needs };
        assert_eq!("99999999%".parse::<Budget>().unwrap().bytes(&all), u64::MAX);
    }

    #[test]
    fn budgets_are_shown_as_people_write_them() {
        for (text, shown) in
            [("35%", "35 %"), ("12.5 %", "12.5 %"), ("4GiB", "4.00 GiB"), ("min", "min")]
        {
            assert_eq!(text.parse::<Budget>().unwrap().to_string(), shown);
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in ["", "%", "-5%", "max", "4 gigs", "35 percent"] {
            assert!(text.parse::<Budget>().is_err(), "{text}");
        }
    }
}
