//! How much memory there is, asked before anything large is allocated.

use crate::error::RuntimeError;

/// Share of the available memory that is never promised to buffers: the allocator, code and the
/// rest of the system need some.
const RESERVE: u64 = 64 << 20;

/// Bytes that this process may still allocate without swapping, or `None` where the system
/// doesn't say: the smallest of what the kernel calls available and what control groups leave.
pub fn available() -> Option<u64> {
    let meminfo =
        std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| mem_available(&text));
    let group = cgroup_left("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current");
    let group_v1 = cgroup_left(
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
    );
    [meminfo, group, group_v1].into_iter().flatten().min()
}

fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn cgroup_left(limit: &str, used: &str) -> Option<u64> {
    let limit: u64 = std::fs::read_to_string(limit).ok()?.trim().parse().ok()?;
    let used: u64 = std::fs::read_to_string(used).ok()?.trim().parse().ok()?;
    Some(limit.saturating_sub(used))
}

/// Checks that `needed` bytes can be had before any of them is allocated.
///
/// # Errors
/// [`RuntimeError::OutOfMemory`] with both numbers. A system that doesn't say how much memory it
/// has lets everything below 2^62 bytes pass.
pub fn check(what: &str, needed: u64) -> Result<(), RuntimeError> {
    let available = available().map_or(1 << 62, |bytes| bytes.saturating_sub(RESERVE));
    if needed > available {
        return Err(RuntimeError::OutOfMemory { what: what.to_string(), needed, available });
    }
    Ok(())
}

/// A byte count for people: `512 B`, `1.50 KiB`, `12.00 GiB`.
pub fn human(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.2} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_available_line() {
        let text = "MemTotal:  100 kB\nMemFree: 7 kB\nMemAvailable:   24302684 kB\n";
        assert_eq!(mem_available(text), Some(24302684 * 1024));
        assert_eq!(mem_available("MemTotal: 100 kB\n"), None);
        assert_eq!(mem_available("MemAvailable: many kB\n"), None);
    }

    #[test]
    fn more_than_there_is_names_both_numbers() {
        let error = check("the test", 1 << 63).unwrap_err();
        let RuntimeError::OutOfMemory { needed, available, .. } = &error else {
            panic!("wrong error {error}");
        };
        assert_eq!(*needed, 1 << 63);
        assert!(error.to_string().contains(&available.to_string()));
        assert!(check("the test", 1).is_ok());
    }

    #[test]
    fn human_sizes() {
        assert_eq!(human(0), "0 B");
        assert_eq!(human(1023), "1023 B");
        assert_eq!(human(1536), "1.50 KiB");
        assert_eq!(human(12 << 30), "12.00 GiB");
        assert_eq!(human(u64::MAX), "16.00 EiB");
    }
}
