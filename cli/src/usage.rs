//! The messages of the argument parser: the help, and errors in arguments.

use crate::failure::Failure;
use crate::output;
use clap::error::ContextValue;
use workloads::Shown;

/// Prints the requested help. If the arguments are wrong, prints the error and ends the program.
pub(crate) fn answer(error: clap::Error) -> Result<(), Failure> {
    if error.use_stderr() {
        escaped(error).exit();
    }
    output::printed(error.print())
}

/// Escapes arguments, because the parser repeats them unescaped in its errors and tips.
fn escaped(mut error: clap::Error) -> clap::Error {
    let shown = |text: &String| Shown::name(text).to_string();
    let context = error.context().filter_map(|(kind, value)| {
        let value = match value {
            ContextValue::String(text) => ContextValue::String(shown(text)),
            ContextValue::Strings(texts) => {
                ContextValue::Strings(texts.iter().map(shown).collect())
            }
            ContextValue::StyledStrs(tips) => {
                let shown = tips.iter().map(|tip| Shown::message(tip.to_string()).to_string());
                ContextValue::StyledStrs(shown.map(Into::into).collect())
            }
            _ => return None,
        };
        Some((kind, value))
    });
    for (kind, value) in context.collect::<Vec<_>>() {
        error.insert(kind, value);
    }
    error
}
