// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much memory this process may take: the machine's, or its control group's.

use std::fs;

/// Bytes that can be taken without swapping: `MemAvailable`, at most what the control group leaves. `None` where the
/// system does not say (then the caller names a size).
#[must_use]
pub fn available_memory() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| mem_available(&text));
    let group = group_room();
    match (machine, group) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Control groups, version 2; a file that says `max` sets no limit.
fn group_room() -> Option<u64> {
    let read = |name: &str| {
        fs::read_to_string(format!("/sys/fs/cgroup/{name}"))
            .ok()?
            .trim()
            .parse::<u64>()
            .ok()
    };
    Some(read("memory.max")?.saturating_sub(read("memory.current")?))
}

fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find(|l| l.starts_with("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kibibytes_become_bytes() {
        let text = "MemTotal:       24000000 kB\nMemAvailable:   20000000 kB\n";
        assert_eq!(mem_available(text), Some(20_480_000_000));
        assert_eq!(mem_available("MemTotal: 1 kB\n"), None);
    }
}
