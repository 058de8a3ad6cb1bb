//! Output: standard output, standard error and files.

use crate::failure::Failure;
use serde::Serialize;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use workloads::Shown;
use workloads::format::{self, Target};

/// Whether standard output was closed when the program started.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// Runs before Rust's runtime, which replaces a closed standard output with `/dev/null`.
#[cfg(target_os = "linux")]
#[used]
#[unsafe(link_section = ".init_array")]
#[allow(unsafe_code, reason = "the section holds functions of this type")]
static LOOK: extern "C" fn() = {
    extern "C" fn look() {
        let exists = |path| std::fs::symlink_metadata(path).is_ok();
        CLOSED.store(exists("/proc/self/fd") && !exists("/proc/self/fd/1"), Ordering::Relaxed);
    }
    look
};

/// Checks that standard output is open, because every command writes to it. Only Linux can tell.
///
/// # Errors
/// Standard output is closed.
pub(crate) fn check_stdout() -> Result<(), Failure> {
    if CLOSED.load(Ordering::Relaxed) {
        return Err(Failure::cannot("standard output: cannot be written: it is closed"));
    }
    Ok(())
}

/// Whether a path means standard output.
pub(crate) fn is_stdout(path: &Path) -> bool {
    ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"].map(Path::new).contains(&path)
}

/// Writes to standard output.
pub(crate) fn print(text: impl AsRef<[u8]>) -> Result<(), Failure> {
    printed(io::stdout().lock().write_all(text.as_ref()))
}

/// Turns the result of a write to standard output into the command's result. A reader that closes
/// the pipe early (`| head`) is not a failure.
pub(crate) fn printed(written: io::Result<()>) -> Result<(), Failure> {
    match written.and_then(|()| io::stdout().flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::cannot(format!("standard output: cannot be written: {error}")))
        }
        _ => Ok(()),
    }
}

/// Prints a command's JSON object on one line. `docs/json.md` describes its fields.
pub(crate) fn print_json(command: &str, object: &impl Serialize) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Named<'o, T> {
        format: String,
        #[serde(flatten)]
        object: &'o T,
    }
    print(format::render(&Named { format: format!("spillway.cli.{command}.v1"), object }))
}

/// Prints a message on standard error. Ignores a failed write.
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

/// Prints a summary on standard output, or on standard error if a file goes to standard output.
pub(crate) fn summarize(text: &str, stdout_is_taken: bool) -> Result<(), Failure> {
    if stdout_is_taken {
        note(text);
        return Ok(());
    }
    print(text)
}

/// Checks, before any work, that every output can be written and that each output differs from
/// all inputs and all other outputs. Returns whether an output goes to standard output.
///
/// # Errors
/// An output cannot be written, or it is the same file as an input or another output.
pub(crate) fn check(
    inputs: &[Option<&Path>],
    outputs: &[&Option<PathBuf>],
    json: bool,
) -> Result<bool, Failure> {
    let outputs = outputs.iter().filter_map(|output| output.as_deref());
    let (to_stdout, files): (Vec<_>, Vec<_>) = outputs.partition(|output| is_stdout(output));
    if to_stdout.len() + usize::from(json) > 1 {
        return Err(Failure::bad_input("only one output can be written to standard output"));
    }
    for (at, output) in files.iter().enumerate() {
        let target = Target::find(output).map_err(|error| Failure::cannot(error.to_string()))?;
        let shown = Shown::path(output);
        if let Some(input) = inputs.iter().flatten().find(|input| target.is(input)) {
            let input = Shown::path(*input);
            let message = format!("{shown}: this output is the input {input}; name another file");
            return Err(Failure::bad_input(message));
        }
        if let Some(other) = files[..at].iter().find(|other| target.is(other)) {
            let message =
                format!("{} and {shown}: both outputs are the same file", Shown::path(*other));
            return Err(Failure::bad_input(message));
        }
    }
    Ok(!to_stdout.is_empty())
}
