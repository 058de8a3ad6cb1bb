//! Reads from Linux how much host memory can be pinned: the available memory, limited by all control
//! groups of the process.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// The divisor of the part that is left to the rest of the system.
const LEFT: u64 = 16;

/// The report of the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostMemory {
    /// Bytes that are free for a process under these limits. `None` if the system reports nothing.
    pub(crate) free_bytes: Option<u64>,
    /// The limit of locked memory (`RLIMIT_MEMLOCK`) in bytes. Drivers may or may not apply it.
    pub(crate) lock_bytes: Option<u64>,
}

impl HostMemory {
    /// Reads the files under a root, which is `/` outside of tests.
    pub(crate) fn read(root: &Path) -> Self {
        let groups = groups(root);
        let limits = groups.iter().filter_map(Group::free_bytes);
        let free_bytes = available_bytes(root).into_iter().chain(limits).min();
        Self {
            free_bytes: free_bytes.map(|bytes| bytes - bytes / LEFT),
            lock_bytes: lock_bytes(root),
        }
    }
}

/// `MemAvailable` of the system. `MemTotal` if it is less, or the only one.
fn available_bytes(root: &Path) -> Option<u64> {
    let text = read_to_string(root.join("proc/meminfo")).ok()?;
    let field = |name| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
    };
    field("MemAvailable:").into_iter().chain(field("MemTotal:")).min()
}

/// The soft limit of locked memory, in bytes.
fn lock_bytes(root: &Path) -> Option<u64> {
    let text = read_to_string(root.join("proc/self/limits")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// A control group, with the names of its files.
struct Group {
    folder: PathBuf,
    limits: &'static [&'static str],
    used: &'static str,
    /// The field of `memory.stat` for file pages, which the system drops when memory is short.
    cached: &'static str,
}

impl Group {
    const fn of_version_1(folder: PathBuf) -> Self {
        let (limits, used) = (&["memory.limit_in_bytes"], "memory.usage_in_bytes");
        Self { folder, limits, used, cached: "total_inactive_file " }
    }

    const fn of_version_2(folder: PathBuf) -> Self {
        let (limits, used) = (&["memory.max", "memory.high"], "memory.current");
        Self { folder, limits, used, cached: "inactive_file " }
    }

    fn number(&self, file: &str) -> Option<u64> {
        read_to_string(self.folder.join(file)).ok()?.trim().parse().ok()
    }

    /// The bytes that its limit leaves. `None` if it has no limit.
    fn free_bytes(&self) -> Option<u64> {
        let limit = self.limits.iter().filter_map(|file| self.number(file)).min()?;
        let stat = read_to_string(self.folder.join("memory.stat")).unwrap_or_default();
        let cached = stat.lines().find_map(|line| line.strip_prefix(self.cached)?.parse().ok());
        let used = self.number(self.used).unwrap_or(0).saturating_sub(cached.unwrap_or(0));
        Some(limit.saturating_sub(used))
    }
}

/// The control groups of the process and their parents. In a container the path may be the host's,
/// while the files of the container's own group are at the root.
fn groups(root: &Path) -> Vec<Group> {
    let text = read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mounted = root.join("sys/fs/cgroup");
    let mut groups = Vec::new();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let path = Path::new(path.trim_start_matches('/'));
        if controllers.is_empty() {
            for folder in [mounted.clone(), mounted.join("unified")] {
                groups.extend(upwards(&folder, path).map(Group::of_version_2));
            }
        } else if controllers.split(',').any(|name| name == "memory") {
            groups.extend(upwards(&mounted.join("memory"), path).map(Group::of_version_1));
        }
    }
    groups
}

fn upwards(mounted: &Path, path: &Path) -> impl Iterator<Item = PathBuf> {
    path.ancestors().map(|path| mounted.join(path)).collect::<Vec<_>>().into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::sync::atomic::{AtomicU32, Ordering};

    const MEMINFO: &str = "MemTotal: 1600 kB\nMemFree: 10 kB\nMemAvailable: 1280 kB\n";
    const LIMITS: &str = "Limit                     Soft Limit           Hard Limit           Units\n\
                          Max locked memory         8388608              unlimited            bytes\n";

    /// The report of a system with these files.
    fn read(files: &[(&str, &str)]) -> HostMemory {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("spillway-host-memory-{}-{number}", std::process::id());
        let root = std::env::temp_dir().join(name);
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let memory = HostMemory::read(&root);
        fs::remove_dir_all(&root).unwrap();
        memory
    }

    /// Free memory in kB for the system above with more files.
    fn free_kb(files: &[(&str, &str)]) -> u64 {
        let files = [&[("proc/meminfo", MEMINFO)], files].concat();
        read(&files).free_bytes.unwrap() * 16 / 15 / 1024
    }

    #[test]
    fn available_memory_counts_and_not_all_there_is() {
        assert_eq!(free_kb(&[]), 1280);
        let old = read(&[("proc/meminfo", "MemTotal: 16 kB\n")]);
        assert_eq!(old.free_bytes, Some(15 * 1024));
        // Memory that grows on demand: more is available than exists now.
        let growing = read(&[("proc/meminfo", "MemTotal: 16 kB\nMemAvailable: 99 kB\n")]);
        assert_eq!(growing.free_bytes, Some(15 * 1024));
        let nothing = HostMemory { free_bytes: None, lock_bytes: None };
        assert_eq!(read(&[("proc/version", "none")]), nothing);
    }

    #[test]
    fn limits_of_groups_count_all_the_way_up() {
        let v2 = ("proc/self/cgroup", "0::/a/b\n");
        let of_parent = ("sys/fs/cgroup/a/memory.max", "819200");
        assert_eq!(free_kb(&[v2, of_parent]), 800);
        let unlimited = ("sys/fs/cgroup/a/b/memory.max", "max\n");
        assert_eq!(free_kb(&[v2, of_parent, unlimited]), 800);
        let throttled = ("sys/fs/cgroup/a/b/memory.high", "409600\n");
        assert_eq!(free_kb(&[v2, of_parent, unlimited, throttled]), 400);
        // Used memory counts, except file pages.
        let used = ("sys/fs/cgroup/a/memory.current", "409600\n");
        let stat = ("sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 204800\n");
        assert_eq!(free_kb(&[v2, of_parent, used]), 400);
        assert_eq!(free_kb(&[v2, of_parent, used, stat]), 600);
        // In a container: the container's own group is at the root, whatever the path says.
        assert_eq!(free_kb(&[v2, ("sys/fs/cgroup/memory.max", "102400")]), 100);
    }

    #[test]
    fn groups_of_the_first_version_count_as_well() {
        let v1 = ("proc/self/cgroup", "5:cpu,cpuacct:/x\n3:memory:/docker/1\n0::/y\n");
        let folder = "sys/fs/cgroup/memory/docker";
        let files = [
            v1,
            (&format!("{folder}/1/memory.limit_in_bytes"), "9223372036854771712\n"),
            (&format!("{folder}/memory.limit_in_bytes"), "819200\n"),
            (&format!("{folder}/memory.usage_in_bytes"), "614400\n"),
            (&format!("{folder}/memory.stat"), "inactive_file 1\ntotal_inactive_file 204800\n"),
        ];
        assert_eq!(free_kb(&files), 400);
        let other = ("sys/fs/cgroup/cpu/x/memory.limit_in_bytes", "1");
        assert_eq!(free_kb(&[v1, other]), 1280, "another controller");
        let hybrid = ("sys/fs/cgroup/unified/y/memory.max", "102400");
        assert_eq!(free_kb(&[v1, hybrid]), 100);
    }

    #[test]
    fn the_limit_of_locked_memory_is_told_apart() {
        let limited = read(&[("proc/meminfo", MEMINFO), ("proc/self/limits", LIMITS)]);
        assert_eq!(limited.lock_bytes, Some(8 << 20));
        let text = LIMITS.replace("8388608", "unlimited");
        assert_eq!(read(&[("proc/self/limits", &text)]).lock_bytes, None);
    }
}
