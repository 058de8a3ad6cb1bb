//! Progress bars. They appear only if standard error is a terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// A progress bar of a length, drawn by a template of `indicatif`.
pub(crate) fn bar(length: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::new(length);
    // Templates are constants. If one failed to parse, only the bar's look would change.
    ProgressStyle::with_template(template)
        .map_or_else(|_| bar.clone(), |style| bar.clone().with_style(style))
}

/// A progress bar that counts pieces of work.
pub(crate) fn of_pieces(verb: &str, pieces: usize) -> ProgressBar {
    bar(pieces as u64, &format!("{verb} {{bar:40}} {{pos}}/{{len}} {{elapsed}} {{msg}}"))
}
