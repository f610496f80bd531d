// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much of the memory for KV each group of layers gets.
//!
//! Layers of one window hold a window of each sequence, so their pool has an upper bound of what can ever be asked of it
//! ([`WindowOptions::least`]); it gets that, and as much again for the windows behind cached prefixes, but of memory that is
//! short only an eighth for those. The rest goes to the layers that hold everything. A window gets a pool only where that
//! is smaller than what its layers would hold otherwise.

use std::collections::BTreeMap;

use metrale_cache::WindowOptions;
use metrale_circuit::{Instance, KvFormats, WindowPool};
use metrale_core::{KV_BLOCK, StepLimits};

/// Blocks by group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvPools {
    /// Blocks of the first group.
    pub blocks: u64,
    /// Pools of windows; the layers of any other are in the first group.
    pub windows: Vec<WindowPool>,
    /// Bytes of a block of the first group. 0: every layer has a window with a pool, and blocks are accounts alone.
    pub block_bytes: u64,
}

impl KvPools {
    /// Divides `room` bytes (`None`: as many as can be of use) for steps of `limits`.
    #[must_use]
    pub fn divide(
        instance: &Instance,
        kv: &KvFormats,
        limits: &StepLimits,
        room: Option<u64>,
    ) -> KvPools {
        let shares = instance.kv_shares(kv);
        let context = limits.blocks_per_slot.saturating_mul(KV_BLOCK);
        let mut windows: Vec<Share> = shares
            .iter()
            .filter_map(|(window, bytes)| Some(((*window)?, *bytes)))
            .filter(|(tokens, _)| *tokens < context)
            .map(|(tokens, bytes)| Share {
                tokens,
                bytes,
                least: WindowOptions::least(tokens, limits.slots, limits.rows).into(),
            })
            .collect();
        windows.truncate(WindowOptions::MOST);
        loop {
            let pools = KvPools::with(&shares, &windows, limits, room.unwrap_or(u64::MAX));
            // The window that would gain least joins the layers that hold everything, as long as one gains nothing.
            let worst = windows.iter().max_by_key(|w| w.least).copied();
            match worst {
                Some(w) if w.least >= pools.blocks.min(every(limits)) => {
                    windows.retain(|other| *other != w);
                }
                _ => return pools,
            }
        }
    }

    fn with(
        shares: &BTreeMap<Option<u32>, u64>,
        windows: &[Share],
        limits: &StepLimits,
        room: u64,
    ) -> KvPools {
        let all: u64 = shares.values().sum();
        let block_bytes = all - windows.iter().map(|w| w.bytes).sum::<u64>();
        let fixed = windows.iter().fold(0u64, |sum, w| {
            sum.saturating_add(w.least.saturating_mul(w.bytes))
        });
        let rest = room.saturating_sub(fixed);
        let spare = fixed.min(rest / 8);
        let every = every(limits);
        let blocks = match (rest - spare).checked_div(block_bytes) {
            Some(held) if room >= fixed => held.min(every),
            // Twice what can run at once: prefixes have accounts too.
            None if room >= fixed => every.saturating_mul(2).min(MOST_BLOCKS),
            _ => 0,
        };
        let pool = |w: &Share| WindowPool {
            tokens: w.tokens,
            blocks: w.least + share(w.least, spare, fixed),
        };
        KvPools {
            blocks,
            windows: windows.iter().map(pool).collect(),
            block_bytes,
        }
    }
}

/// Accounts of blocks, where they cost no device memory.
const MOST_BLOCKS: u64 = 1 << 24;

#[derive(Clone, Copy, PartialEq, Eq)]
struct Share {
    tokens: u32,
    /// Of a block.
    bytes: u64,
    /// Blocks that are enough for all that runs.
    least: u64,
}

/// Blocks of every sequence at full length.
fn every(limits: &StepLimits) -> u64 {
    u64::from(limits.slots) * u64::from(limits.blocks_per_slot)
}

/// `least * spare / fixed`, where `spare <= fixed`.
fn share(least: u64, spare: u64, fixed: u64) -> u64 {
    let product = u128::from(least) * u128::from(spare);
    // Not above `least`.
    product.checked_div(u128::from(fixed)).unwrap_or(0) as u64
}
