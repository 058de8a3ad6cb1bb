//! Progress bars. They appear only if standard error is a terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// A progress bar that counts pieces of work.
pub(crate) fn of_pieces(verb: &str, pieces: usize) -> ProgressBar {
    let bar = ProgressBar::new(pieces as u64);
    let style = format!("{verb} {{bar:40}} {{pos}}/{{len}} {{elapsed}} {{msg}}");
    // The template is a constant. If it failed to parse, only the bar's look would change.
    ProgressStyle::with_template(&style).map_or_else(|_| bar.clone(), |s| bar.clone().with_style(s))
}
