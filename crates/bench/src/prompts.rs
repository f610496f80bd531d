// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prompts of random ids. No two begin alike, so that the prefix cache holds none of them.

use std::sync::Arc;

/// Makes prompts; a seed gives the same ones everywhere.
#[derive(Clone, Debug)]
pub(crate) struct Prompts {
    state: u64,
    vocab: u32,
}

impl Prompts {
    /// Prompts of ids below `vocab`.
    #[must_use]
    pub(crate) fn new(seed: u64, vocab: u32) -> Prompts {
        Prompts {
            state: seed,
            vocab: vocab.max(1),
        }
    }

    /// The next `count` prompts of `tokens` ids.
    pub(crate) fn take(&mut self, count: u32, tokens: u32) -> Vec<Arc<[u32]>> {
        (0..count)
            .map(|_| (0..tokens).map(|_| self.id()).collect())
            .collect()
    }

    /// SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
    fn id(&mut self) -> u32 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) % u64::from(self.vocab)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_follow_from_the_seed_and_differ_among_each_other() {
        let mut a = Prompts::new(1, 1000);
        let (one, two) = (a.take(2, 32), a.take(2, 32));
        assert_eq!(Prompts::new(1, 1000).take(2, 32), one);
        let mut all: Vec<_> = one.iter().chain(&two).map(|p| p[..4].to_vec()).collect();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 4);
        assert!(one.iter().all(|p| p.iter().all(|id| *id < 1000)));
    }
}
