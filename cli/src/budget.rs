//! How much device memory a plan may take.

use crate::units::{self, parse_bytes, thousandths};
use std::fmt;
use std::str::FromStr;

/// A budget as the user writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Budget {
    /// So many bytes.
    Bytes(u64),
    /// So many thousandths of a percent of what the work needs in-core.
    MilliPercent(u128),
    /// The smallest budget with which the strategy can plan.
    Min,
}

impl FromStr for Budget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let budget = match text.strip_suffix('%') {
            _ if text == "min" => Some(Self::Min),
            Some(number) => thousandths(number.trim_end()).map(Self::MilliPercent),
            None => parse_bytes(text).map(Self::Bytes),
        };
        budget.ok_or_else(|| {
            "a budget is a size (4GiB, 512MiB, 1000000), a percentage of what the work needs \
             in-core (35%), or min"
                .to_owned()
        })
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

impl Budget {
    /// The budget in bytes, rounded down.
    pub(crate) fn bytes(self, in_core_peak_bytes: u64, min_feasible_bytes: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Min => min_feasible_bytes,
            Self::MilliPercent(milli) => {
                let bytes = milli.saturating_mul(in_core_peak_bytes.into()) / 100_000;
                u64::try_from(bytes).unwrap_or(u64::MAX)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_round_down() {
        let bytes = |text: &str| text.parse::<Budget>().unwrap().bytes(1001, 7);
        assert_eq!(bytes("35%"), 350);
        assert_eq!(bytes("12.5 %"), 125);
        assert_eq!(bytes("100%"), 1001);
        assert_eq!(bytes("min"), 7);
        assert_eq!(bytes("1KiB"), 1024);
        assert_eq!("99999999%".parse::<Budget>().unwrap().bytes(u64::MAX, 0), u64::MAX);
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
