//! Signals that ask the program to end, and one that would end it.

/// The exit status that an interrupt by the user (`SIGINT`) asks for.
pub(crate) const INTERRUPTED: i32 = 130;

/// From now on, calls `end` with an exit status for each signal that asks the program to end: 128 and
/// the signal's number. A signal that is ignored when the program starts (`nohup`) stays so.
#[cfg(unix)]
pub(crate) fn catch(end: impl Fn(i32) + Send + 'static) {
    use nix::sys::signal::{SigSet, Signal};
    outlive_file_limits();
    let wanted = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM];
    let wanted: SigSet = wanted.into_iter().filter(|&signal| !is_ignored(signal)).collect();
    // Threads that are started later block them as well, so that one thread waits for them.
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

/// A file that exceeds the limit of the process (`ulimit -f`) is an error of the write, which cleans
/// up, and not the end of the program.
#[cfg(unix)]
#[allow(unsafe_code, reason = "only C's function sets what a signal does")]
fn outlive_file_limits() {
    use nix::sys::signal::{SigHandler, Signal, signal};
    // SAFETY: no handler is set, so no code runs that could be interrupted.
    let _ = unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) };
}

#[cfg(unix)]
#[allow(unsafe_code, reason = "only C's function asks what a signal does without changing it")]
fn is_ignored(signal: nix::sys::signal::Signal) -> bool {
    use nix::libc;
    // SAFETY: all zeros are an action.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the action may be written, and nothing is set.
    let asked = unsafe { libc::sigaction(signal as i32, std::ptr::null(), &raw mut action) };
    asked == 0 && action.sa_sigaction == libc::SIG_IGN
}

/// From now on, calls `end` with the exit status of an interrupt when the user asks the program to
/// end.
#[cfg(not(unix))]
pub(crate) fn catch(end: impl Fn(i32) + Send + 'static) {
    // Where it cannot be caught, it ends the program.
    let _ = ctrlc::try_set_handler(move || end(INTERRUPTED));
}
