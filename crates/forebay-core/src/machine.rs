//! What this process may use of the machine: the CPUs and the memory of its cgroup.

use std::fs;
use std::path::{Path, PathBuf};

/// CPUs that this process may use: the smaller of its affinity mask and its cgroup's quota, rounded
/// up, at least 1.
pub fn cpus() -> usize {
    let affinity = std::thread::available_parallelism().map_or(1, usize::from);
    // The standard library reads the quota of cgroup v2 and v1 as well; it rounds down, so that a
    // quota of 1.5 CPUs gives 1. That is what we want for threads that never block.
    affinity.max(1)
}

/// Bytes of memory that this process may use: the smallest limit of its cgroups, else the
/// machine's memory; `None` where neither can be read.
pub fn memory() -> Option<u64> {
    let total = meminfo_total();
    match (cgroup_memory_limit(), total) {
        (Some(limit), Some(total)) => Some(limit.min(total)),
        (limit, total) => limit.or(total),
    }
}

fn meminfo_total() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|l| l.starts_with("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

fn cgroup_memory_limit() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    groups
        .lines()
        .filter_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            if controllers.is_empty() {
                smallest_limit(Path::new("/sys/fs/cgroup"), path, "memory.max")
            } else if controllers.split(',').any(|c| c == "memory") {
                smallest_limit(Path::new("/sys/fs/cgroup/memory"), path, "memory.limit_in_bytes")
            } else {
                None
            }
        })
        .min()
}

/// The smallest limit on the way from the group up to the root: a parent's limit binds as well. In
/// a container the path may name a place that is not mounted; the mount's root is then the group.
fn smallest_limit(root: &Path, path: &str, file: &str) -> Option<u64> {
    let mut folder: PathBuf = root.join(path.trim_start_matches('/'));
    let mut least = None;
    loop {
        if let Ok(text) = fs::read_to_string(folder.join(file))
            && let Ok(bytes) = text.trim().parse::<u64>()
        {
            // cgroup v1 says "no limit" with a number near 2^63.
            if bytes < 1 << 60 {
                least = Some(least.map_or(bytes, |l: u64| l.min(bytes)));
            }
        }
        if folder == root || !folder.pop() {
            return least;
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_machine_has_something() {
        assert!(super::cpus() >= 1);
        assert!(super::memory().is_none_or(|m| m > 1 << 20));
    }
}
