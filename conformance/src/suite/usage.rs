//! What a process uses, and whether it keeps growing.

use super::failure::{Outcome, ensure};

/// What this process uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usage {
    resident_bytes: u64,
    handles: usize,
}

impl Usage {
    /// As Linux reports it; none on other systems.
    pub(super) fn now() -> Option<Self> {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
        let handles = std::fs::read_dir("/proc/self/fd").ok()?.count();
        Some(Self { resident_bytes: kib * 1024, handles })
    }
}

/// What a process may grow by in every window: a device may keep a few bytes a signal.
const MOST_GROWTH_BYTES: u64 = 512 << 10;

/// Fails if handles were added in a window of a run, or memory in each of them. A driver that falls
/// behind enlarges its queues in some windows; a leak is in all.
pub(super) fn check_growth(windows: &[(Usage, Usage)]) -> Outcome {
    for (before, now) in windows {
        ensure!(now.handles <= before.handles, "{} handles became {}", before.handles, now.handles);
    }
    let grown = windows
        .iter()
        .map(|(before, now)| now.resident_bytes.saturating_sub(before.resident_bytes));
    let least_bytes = grown.min().unwrap_or(0);
    ensure!(
        least_bytes <= MOST_GROWTH_BYTES,
        "the process grew by {least_bytes} bytes or more in each of {} windows",
        windows.len()
    );
    Ok(())
}
