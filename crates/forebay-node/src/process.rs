//! What the kernel says of this process.

use std::fs;
use std::path::Path;

/// Ticks of the kernel's times in a second: what every architecture that Forebay is built for shows to
/// programs, whatever the kernel counts in.
const TICKS: f64 = 100.0;

/// See the module's text. Zero where `/proc` does not say.
#[derive(Clone, Copy, Debug, Default)]
pub struct Process {
    /// CPU time of all threads, in seconds.
    pub cpu_seconds: f64,
    /// Resident memory in bytes.
    pub resident_bytes: f64,
    /// Open file descriptors.
    pub open_fds: f64,
    /// Threads.
    pub threads: f64,
    /// When it was started, in seconds since 1970.
    pub start_time: f64,
}

impl Process {
    /// As it is now.
    pub fn now() -> Self {
        Self::read(Path::new("/proc")).unwrap_or_default()
    }

    fn read(proc: &Path) -> Option<Self> {
        let stat = fs::read_to_string(proc.join("self/stat")).ok()?;
        // The name of the program comes first, in brackets, and may hold anything.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let field = |n: usize| fields.get(n - 3).and_then(|text| text.parse::<f64>().ok());
        let status = fs::read_to_string(proc.join("self/status")).ok()?;
        let line = |name: &str| {
            let value = status.lines().find_map(|l| l.strip_prefix(name))?;
            value.split_whitespace().next()?.parse::<f64>().ok()
        };
        let boot = fs::read_to_string(proc.join("stat")).ok()?;
        let boot: f64 = boot.lines().find_map(|l| l.strip_prefix("btime "))?.trim().parse().ok()?;
        // The listing has a descriptor of its own open.
        let open = fs::read_dir(proc.join("self/fd")).ok()?.count().saturating_sub(1);
        Some(Self {
            cpu_seconds: (field(14)? + field(15)?) / TICKS,
            resident_bytes: line("VmRSS:")? * 1024.0,
            open_fds: open as f64,
            threads: field(20)?,
            start_time: boot + field(22)? / TICKS,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn the_kernel_says_what_the_process_is() {
        let before = Process::now();
        let file = fs::File::open("/proc/self/stat").unwrap();
        let memory = vec![1u8; 64 << 20];
        let after = Process::now();
        assert_eq!(after.open_fds, before.open_fds + 1.0);
        assert!(after.resident_bytes >= memory.len() as f64, "{after:?}");
        assert!(after.threads >= 1.0 && after.cpu_seconds >= before.cpu_seconds);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let age = now.as_secs_f64() - after.start_time;
        // The kernel's own time of boot is in whole seconds.
        assert!((-1.0..3600.0).contains(&age), "{age}");
        drop(file);
    }
}
