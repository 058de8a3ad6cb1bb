//! Handles signals that ask the program to end, and ignores `SIGXFSZ`.

/// The exit status after an interrupt by the user (`SIGINT`).
pub(crate) const INTERRUPTED: i32 = 130;

/// Calls `end` for each signal that asks the program to end. The argument is the exit status: 128
/// plus the signal's number. A signal that is ignored at the start (`nohup`) stays ignored.
#[cfg(unix)]
pub(crate) fn catch(end: impl Fn(i32) + Send + 'static) {
    use nix::sys::signal::{SigSet, Signal};
    outlive_file_limits();
    let wanted = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM];
    let wanted: SigSet = wanted.into_iter().filter(|&signal| !is_ignored(signal)).collect();
    // Later threads inherit this mask, so only the thread below receives these signals.
    if wanted.thread_block().is_err() {
        return;
    }
    let wait = move || {
        while let Ok(signal) = wanted.wait() {
            end(128 + signal as i32);
        }
    };
    let started = std::thread::Builder::new().name("signals".to_owned()).spawn(wait);
    if started.is_err() {
        let _ = wanted.thread_unblock();
    }
}

/// Ignores `SIGXFSZ`. A write beyond the file size limit of the process (`ulimit -f`) then returns
/// an error, and the program can remove the partial file.
#[cfg(unix)]
#[allow(unsafe_code, reason = "only the C function sets a signal's action")]
fn outlive_file_limits() {
    use nix::sys::signal::{SigHandler, Signal, signal};
    // SAFETY: `SigIgn` installs no handler, so no code runs when the signal arrives.
    let _ = unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) };
}

#[cfg(unix)]
#[allow(unsafe_code, reason = "only the C function reads a signal's action without changing it")]
fn is_ignored(signal: nix::sys::signal::Signal) -> bool {
    use nix::libc;
    // SAFETY: all zeros are a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: `action` is writable, and the null pointer sets no new action.
    let asked = unsafe { libc::sigaction(signal as i32, std::ptr::null(), &raw mut action) };
    asked == 0 && action.sa_sigaction == libc::SIG_IGN
}

/// Calls `end` with the exit status of an interrupt when the user asks the program to end.
#[cfg(not(unix))]
pub(crate) fn catch(end: impl Fn(i32) + Send + 'static) {
    // Without the handler, an interrupt ends the program.
    let _ = ctrlc::try_set_handler(move || end(INTERRUPTED));
}
