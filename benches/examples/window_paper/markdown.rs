//! Tables in Markdown.

/// A table whose first column holds words and whose other columns hold numbers.
pub(crate) fn table(head: &[String], rows: &[Vec<String>]) -> String {
    let row = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let rule = format!("|---{}|\n", "|--:".repeat(head.len().saturating_sub(1)));
    row(head) + &rule + &rows.iter().map(|cells| row(cells)).collect::<String>()
}

/// A row from its name and cells.
pub(crate) fn row(name: &str, cells: impl IntoIterator<Item = String>) -> Vec<String> {
    std::iter::once(name.to_owned()).chain(cells).collect()
}

/// A cell, or a dash if there is no value.
pub(crate) fn cell<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "–".to_owned(), show)
}

/// The difference of one value from another, in percent with a sign.
pub(crate) fn percent(one: f64, other: f64) -> String {
    format!("{:+.1} %", 100.0 * (one / other - 1.0))
}

pub(crate) fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}

/// Images per second.
pub(crate) fn speed(batch: u64, period_ns: u64) -> f64 {
    batch as f64 * 1e9 / period_ns as f64
}
