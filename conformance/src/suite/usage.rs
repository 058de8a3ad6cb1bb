//! What a process uses, and whether its use keeps growing.

use super::failure::{Outcome, ensure};

/// The memory and the handles that this process uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usage {
    resident_bytes: u64,
    handles: usize,
}

impl Usage {
    /// As Linux reports it. `None` on other systems.
    pub(super) fn now() -> Option<Self> {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
        let handles = std::fs::read_dir("/proc/self/fd").ok()?.count();
        Some(Self { resident_bytes: kib * 1024, handles })
    }
}

/// The most bytes by which a process may grow in every window. A device may keep a few bytes per
/// signal.
const MOST_GROWTH_BYTES: u64 = 512 << 10;

/// Fails if the number of handles grew in any window of a run, or memory grew in every window. A
/// driver that falls behind enlarges its queues in some windows, but a leak grows in all.
pub(super) fn check_growth(windows: &[(Usage, Usage)]) -> Outcome {
    for (before, now) in windows {
        ensure!(
            now.handles <= before.handles,
            "the number of handles grew from {} to {}",
            before.handles,
            now.handles
        );
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
