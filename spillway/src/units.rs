//! Numbers and sizes in readable units.

/// Formats bytes in binary units, with three significant digits.
#[must_use]
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // From 999.5 on, rounding would give four digits.
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{} {}", three_digits(value), UNITS[unit])
}

/// Formats a time in the largest unit that gives a value of at least 1.
#[must_use]
pub fn time(ns: u64) -> String {
    const UNITS: [&str; 4] = ["ns", "µs", "ms", "s"];
    if ns < 1000 {
        return format!("{ns} ns");
    }
    let mut value = ns as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{} {}", three_digits(value), UNITS[unit])
}

fn three_digits(value: f64) -> String {
    match value {
        v if v >= 99.95 => format!("{v:.0}"),
        v if v >= 9.995 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// Formats a whole number with separated thousands.
#[must_use]
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a part of a whole in percent. The result is 0 for a whole of 0.
#[must_use]
pub fn percent(part: u64, whole: u64) -> String {
    let share = if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 };
    if share > 0.0 && share < 0.05 {
        return "< 0.1 %".to_owned();
    }
    format!("{share:.1} %")
}

/// Returns the ratio of `value` to `base`, or `None` if `base` is 0.
#[must_use]
pub fn ratio(value: u64, base: u64) -> Option<f64> {
    (base > 0).then(|| value as f64 / base as f64)
}

/// Parses a decimal number with at most three decimals, times 1000.
pub(crate) fn thousandths(text: &str) -> Option<u128> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let scale = [100, 10, 1].get(fraction.len().checked_sub(1)?)?;
    Some(u128::from(digits(whole)?) * 1000 + u128::from(digits(fraction)?) * scale)
}

/// Parses digits. Unlike `str::parse`, refuses a sign.
fn digits(text: &str) -> Option<u64> {
    let only_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    only_digits.then(|| text.parse().ok())?
}

/// Parses a size: digits, then a unit (`KiB`, `MB`, …). Without a unit, the size is in bytes.
#[must_use]
pub fn parse_bytes(text: &str) -> Option<u64> {
    const UNITS: [(&str, u64); 9] = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
        ("KB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
        ("B", 1),
    ];
    let unit = UNITS.iter().find_map(|&(name, unit)| {
        let (at, ending) = text.split_at_checked(text.len().checked_sub(name.len())?)?;
        ending.eq_ignore_ascii_case(name).then_some((at.trim_end(), unit))
    });
    match unit {
        Some((number, unit)) => {
            u64::try_from(thousandths(number)?.checked_mul(u128::from(unit))? / 1000).ok()
        }
        None => digits(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_read_three_digits() {
        for (value, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (1536 << 20, "1.50 GiB"),
            ((1 << 30) - 1, "1.00 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(bytes(value), text);
        }
        for (value, text) in [
            (999, "999 ns"),
            (84_559_781, "84.6 ms"),
            (999_600, "1.00 ms"),
            (3_600_000_000_000, "3600 s"),
        ] {
            assert_eq!(time(value), text);
        }
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!((count(999), count(1000)), ("999".to_owned(), "1,000".to_owned()));
        assert_eq!(percent(1, 3), "33.3 %");
        assert_eq!(percent(1, 1_000_000), "< 0.1 %");
        assert_eq!(percent(1, 0), "0.0 %");
    }

    #[test]
    fn sizes_are_exact() {
        for (text, size) in [
            ("1000000", Some(1_000_000)),
            ("4GiB", Some(4 << 30)),
            ("512 mib", Some(512 << 20)),
            ("1.5GB", Some(1_500_000_000)),
            ("0.001KiB", Some(1)),
            ("17B", Some(17)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("16777216TiB", None),
            ("1.2345GiB", None),
            ("1.5", None),
            ("-1", None),
            ("+1", None),
            ("GiB", None),
            ("", None),
            ("4 GiBs", None),
            ("µB", None),
        ] {
            assert_eq!(parse_bytes(text), size, "{text}");
        }
    }
}
