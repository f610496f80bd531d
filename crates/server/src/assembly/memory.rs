// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much memory this process may take: the machine's, or its control group's; and whether a plan fits.

use std::fs;

use metrale_core::{ArenaKind, MemoryPlan};

use super::SizeError;

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

/// Refuses a plan that the machine cannot hold. Pages are given as they are touched, so a pool beyond the free memory would
/// be reserved without complaint, and the process killed while it serves.
///
/// `host` bytes are wanted beside it for spilled KV.
///
/// # Errors
/// [`SizeError::Plan`] or [`SizeError::Host`], with what would fit.
pub(super) fn fits(plan: &MemoryPlan, free: Option<u64>, host: u64) -> Result<(), SizeError> {
    let total = plan.total_bytes();
    match free {
        Some(free) if total <= free && host > free - total => Err(SizeError::Host {
            host,
            total,
            free,
            most: ((free - total) / 1_000_000) as f64 / 1e3,
        }),
        Some(free) if total > free => {
            let pool = plan.arena_bytes(ArenaKind::Kv);
            Err(SizeError::Plan {
                total,
                weights: plan.arena_bytes(ArenaKind::Weights),
                pool,
                free,
                remedy: remedy(free.checked_sub(total - pool)),
            })
        }
        _ => Ok(()),
    }
}

/// What to do if `room` is left for the KV pool; `None` if the rest alone is too much.
fn remedy(room: Option<u64>) -> String {
    match room {
        Some(room) => {
            format!("give --kv-cache-bytes {room} at most, or fewer sequences, or free memory")
        }
        None => "free memory, or take a smaller model or one of smaller weights".into(),
    }
}

/// Control groups, version 2.
fn group_room() -> Option<u64> {
    let read = |name: &str| fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok();
    room_of(
        &read("memory.max")?,
        &read("memory.current")?,
        &read("memory.stat").unwrap_or_default(),
    )
}

/// What a group leaves. Its count holds cached files too, which go when memory is wanted: a download of the very
/// checkpoint must not stand in its own way. A limit of `max` is none.
fn room_of(max: &str, current: &str, stat: &str) -> Option<u64> {
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let cached: u64 = stat
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(name, _)| matches!(*name, "inactive_file" | "active_file"))
        .filter_map(|(_, bytes)| number(bytes))
        .sum();
    Some(number(max)?.saturating_sub(number(current)?.saturating_sub(cached)))
}

fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find(|l| l.starts_with("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use metrale_core::{Elem, Extent, Span, Unit};

    use super::*;

    #[test]
    fn kibibytes_become_bytes() {
        let text = "MemTotal:       24000000 kB\nMemAvailable:   20000000 kB\n";
        assert_eq!(mem_available(text), Some(20_480_000_000));
        assert_eq!(mem_available("MemTotal: 1 kB\n"), None);
    }

    #[test]
    fn cached_files_of_a_control_group_are_free() {
        let stat = "anon 100\nfile 700\ninactive_file 400\nactive_file 200\n";
        assert_eq!(room_of("1000\n", "900\n", stat), Some(700));
        assert_eq!(room_of("1000", "900", ""), Some(100));
        assert_eq!(room_of("1000", "1100", ""), Some(0));
        assert_eq!(room_of("max\n", "900", stat), None);
    }

    /// 1000 bytes of weights, 300 of KV.
    fn plan() -> MemoryPlan {
        let span = |arena, bytes| Span {
            name: "span".into(),
            arena,
            offset: 0,
            bytes,
            elem: Elem::F32,
            extent: Extent {
                unit: Unit::One,
                elems: bytes / 4,
            },
            live: None,
        };
        let spans = vec![span(ArenaKind::Weights, 1000), span(ArenaKind::Kv, 300)];
        MemoryPlan { spans }
    }

    #[test]
    fn a_plan_beyond_the_free_memory_is_refused_with_what_would_fit() {
        let said = |free| {
            fits(&plan(), free, 0)
                .err()
                .map(|e| e.to_string())
                .unwrap_or_default()
        };
        let total = plan().total_bytes();
        assert_eq!(said(None), "");
        assert_eq!(said(Some(total)), "");
        let pool = said(Some(total - 1));
        assert!(pool.contains("--kv-cache-bytes 299 at most"), "{pool}");
        let weights = said(Some(total - 301));
        assert!(weights.contains("smaller model"), "{weights}");
    }

    #[test]
    fn host_memory_that_does_not_fit_beside_the_plan_is_what_is_named() {
        let total = plan().total_bytes();
        let said = |host| fits(&plan(), Some(total + 2_000_000_000), host);
        assert!(said(2_000_000_000).is_ok());
        let why = said(2_000_000_001)
            .expect_err("a byte too much")
            .to_string();
        assert!(why.contains("--kv-host-gb 2.000 at most"), "{why}");
        // Where the plan alone is too much, less host memory is no remedy.
        let why = fits(&plan(), Some(total - 1), 5)
            .expect_err("the plan")
            .to_string();
        assert!(why.contains("--kv-cache-bytes 299 at most"), "{why}");
    }
}
