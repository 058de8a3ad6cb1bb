//! What is written, and where: standard output, standard error, whole files.

use crate::failure::Failure;
use serde::Serialize;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use workloads::format;

/// Whether a path stands for standard output.
pub(crate) fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

/// Writes to standard output. A reader that has seen enough (`| head`) is no failure.
pub(crate) fn print(text: impl AsRef<[u8]>) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_ref()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::cannot(format!("standard output: cannot be written: {error}")))
        }
        _ => Ok(()),
    }
}

/// Prints a JSON object on a line of its own.
pub(crate) fn print_json(object: &impl Serialize) -> Result<(), Failure> {
    print(format::render(object))
}

/// Tells the user something on standard error, where that still exists.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{}", text.trim_end());
}

/// Writes a file whole or not at all; `-` is standard output.
pub(crate) fn save(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    if is_stdout(path) {
        return print(bytes);
    }
    format::save(path, bytes).map_err(|error| Failure::cannot(error.to_string()))
}

/// Prints a summary where a person looks for it: beside a file that goes to standard
/// output, on standard error.
pub(crate) fn summarize(text: &str, stdout_is_taken: bool) -> Result<(), Failure> {
    if stdout_is_taken {
        note(text);
        return Ok(());
    }
    print(text)
}

/// Whether one of the files goes to standard output.
///
/// # Errors
/// Two do, or the JSON object goes there already.
pub(crate) fn takes_stdout(files: &[&Option<PathBuf>], json: bool) -> Result<bool, Failure> {
    let count = files.iter().filter_map(|file| file.as_deref()).filter(|f| is_stdout(f)).count();
    if count + usize::from(json) > 1 {
        return Err(Failure::bad_input("only one thing can be written to standard output"));
    }
    Ok(count > 0)
}
