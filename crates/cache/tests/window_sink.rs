// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sliding windows whose blocks a sink keeps too, against a model of the memory: whatever is evicted, comes back or fails to,
//! each row finds the keys that it reads.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use metrale_cache::{
    Admission, BLOCK, BlockName, BlockSink, CacheOptions, KvCache, NO_BLOCK, WindowOptions,
};
use proptest::prelude::*;

const SLOTS: u32 = 3;
const ROWS: u32 = 24;
/// Keys that the groups beside the first one see.
const WINDOWS: [u32; 2] = [1, 40];

type Block = [u64; BLOCK];

/// By group: what each place of each block is the KV of.
type Memory = Arc<Mutex<[Vec<Block>; 3]>>;

fn identity(tokens: &[u32]) -> u64 {
    tokens.iter().fold(1, |h, t| {
        (h ^ u64::from(*t + 1))
            .wrapping_mul(0x100_0000_01b3)
            .rotate_left(17)
    })
}

struct Kept {
    number: u64,
    block: Block,
    beside: Vec<Option<Block>>,
}

/// Keeps all, and fails now and then.
struct Sink {
    memory: Memory,
    kept: HashMap<BlockName, Kept>,
    calls: u64,
    /// Every so many restores, one fails.
    fails: u64,
    restored: Arc<Mutex<u32>>,
}

impl BlockSink for Sink {
    fn evict(&mut self, name: &BlockName, number: u64, block: u32, beside: &[u32]) {
        let memory = self.memory.lock().unwrap();
        let of =
            |(group, b): (usize, &u32)| (*b != NO_BLOCK).then(|| memory[group + 1][*b as usize]);
        let kept = self.kept.entry(*name).or_insert_with(|| Kept {
            number,
            block: memory[0][block as usize],
            beside: vec![None; beside.len()],
        });
        assert_eq!(kept.number, number, "one name, one number");
        assert_eq!(kept.block, memory[0][block as usize], "one name, one KV");
        for (kept, now) in kept
            .beside
            .iter_mut()
            .zip(beside.iter().enumerate().map(of))
        {
            assert!(
                kept.is_none() || now.is_none() || *kept == now,
                "one name, one KV"
            );
            *kept = kept.or(now);
        }
    }

    fn kept(&self, name: &BlockName) -> Option<u64> {
        self.kept.get(name).map(|k| k.number)
    }

    fn kept_beside(&self, name: &BlockName, group: usize) -> bool {
        self.kept
            .get(name)
            .is_some_and(|k| k.beside[group].is_some())
    }

    fn worth(&self, blocks: u32) -> bool {
        blocks % 5 != 4
    }

    fn restore(&mut self, name: &BlockName, block: u32, beside: &[u32]) -> bool {
        self.calls += 1;
        if self.calls.is_multiple_of(self.fails) {
            self.kept.remove(name);
            return false;
        }
        let Some(kept) = self.kept.get(name) else {
            return false;
        };
        let mut memory = self.memory.lock().unwrap();
        memory[0][block as usize] = kept.block;
        for (group, b) in beside.iter().enumerate().filter(|(_, b)| **b != NO_BLOCK) {
            // It is asked for what it said to have.
            memory[group + 1][*b as usize] = kept.beside[group].unwrap();
        }
        *self.restored.lock().unwrap() += 1;
        true
    }

    fn reset(&mut self) {
        self.kept.clear();
    }
}

struct Open {
    tokens: Vec<u32>,
    stored: usize,
}

struct Model {
    cache: KvCache,
    memory: Memory,
    open: [Option<Open>; SLOTS as usize],
    restored: Arc<Mutex<u32>>,
}

impl Model {
    fn new(blocks: u32, more: u32, fails: u64) -> Model {
        let window = |tokens| WindowOptions {
            tokens,
            blocks: WindowOptions::least(tokens, SLOTS, ROWS) + more,
        };
        let windows = WINDOWS.map(window);
        let pool = |blocks: u32| vec![[0; BLOCK]; blocks as usize];
        let memory: Memory = Arc::new(Mutex::new([
            pool(blocks),
            pool(windows[0].blocks),
            pool(windows[1].blocks),
        ]));
        let restored = Arc::default();
        let sink = Sink {
            memory: Arc::clone(&memory),
            kept: HashMap::new(),
            calls: 0,
            fails,
            restored: Arc::clone(&restored),
        };
        let cache = KvCache::new(CacheOptions {
            blocks,
            slots: SLOTS,
            windows: windows.to_vec(),
            ..CacheOptions::default()
        });
        Model {
            cache: cache.with_sink(Box::new(sink)),
            memory,
            open: Default::default(),
            restored,
        }
    }

    fn admit(&mut self, slot: u32, text: &[u32]) {
        if self.open[slot as usize].is_some() {
            return;
        }
        let ask = Admission {
            namespace: 0,
            tokens: text,
            reuse: true,
            spare: 0,
            restore: true,
        };
        let promised = self.cache.cached(0, text);
        if let Some(attached) = self.cache.admit(slot, &ask) {
            assert!(attached.cached >= promised && (attached.cached as usize) < text.len());
            assert_eq!((attached.copy, attached.cached % BLOCK as u32), (None, 0));
            self.open[slot as usize] = Some(Open {
                tokens: text.to_vec(),
                stored: attached.cached as usize,
            });
        }
        self.cache.audit().unwrap();
    }

    /// The block of `index` in a group's table.
    fn block(&self, group: usize, slot: u32, index: usize) -> usize {
        let block = match group {
            0 => self.cache.table(slot)[index],
            _ => {
                let (first, held) = self.cache.window_table(group as u32, slot);
                held[index - first as usize]
            }
        };
        assert_ne!(block, NO_BLOCK);
        block as usize
    }

    /// Runs rows as a device would: each writes, and reads the keys that it sees.
    fn rows(&mut self, slot: u32, rows: u32, token: u32) {
        let Some(mut open) = self.open[slot as usize].take() else {
            return;
        };
        let first = open.stored as u32;
        let end = (first + rows).min(open.tokens.len() as u32);
        assert!(self.cache.prepare(slot, first, end - first, |_, _| {}));
        for at in first as usize..end as usize {
            let here = identity(&open.tokens[..=at]);
            for (group, window) in [at + 1, WINDOWS[0] as usize, WINDOWS[1] as usize]
                .into_iter()
                .enumerate()
            {
                let block = self.block(group, slot, at / BLOCK);
                self.memory.lock().unwrap()[group][block][at % BLOCK] = here;
                for key in (at + 1).saturating_sub(window)..=at {
                    let block = self.block(group, slot, key / BLOCK);
                    let found = self.memory.lock().unwrap()[group][block][key % BLOCK];
                    let want = identity(&open.tokens[..=key]);
                    assert_eq!(
                        found, want,
                        "group {group}, slot {slot}, row {at}, key {key}"
                    );
                }
            }
        }
        open.stored = end as usize;
        self.cache
            .publish(slot, &open.tokens[..open.stored], |_| {});
        if open.stored == open.tokens.len() {
            let full = open.stored.is_multiple_of(BLOCK);
            if !full || self.cache.grow(slot).is_some() {
                open.tokens.push(token);
            }
        }
        self.open[slot as usize] = Some(open);
        self.cache.audit().unwrap();
    }

    fn release(&mut self, slot: u32, trusted: bool) {
        if let Some(open) = self.open[slot as usize].take() {
            let stored = if trusted { open.stored } else { 0 };
            self.cache.release(slot, &open.tokens[..stored]);
        }
        self.cache.audit().unwrap();
    }
}

#[derive(Clone, Debug)]
enum Op {
    Admit(u32, Vec<u32>),
    Step(u32, u32, u32),
    Release(u32, bool),
}

fn op() -> impl Strategy<Value = Op> {
    let text = (0..150usize, 0..2u32, prop::collection::vec(0..2u32, 1..20));
    let text = text.prop_map(|(run, token, rest)| {
        let mut text = vec![token; run];
        text.extend(rest);
        text
    });
    prop_oneof![
        2 => (0..SLOTS, text).prop_map(|(slot, text)| Op::Admit(slot, text)),
        8 => (0..SLOTS, 1..=ROWS, 0..2u32).prop_map(|(slot, rows, token)| Op::Step(slot, rows, token)),
        2 => (0..SLOTS, prop::bool::weighted(0.9)).prop_map(|(slot, trusted)| Op::Release(slot, trusted)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn what_a_row_reads_is_there(
        ops in prop::collection::vec(op(), 1..150), blocks in 10u32..24, more in 0u32..12, fails in 2u64..9,
    ) {
        let mut model = Model::new(blocks, more, fails);
        for op in &ops {
            match op {
                Op::Admit(slot, text) => model.admit(*slot, text),
                Op::Step(slot, rows, token) => model.rows(*slot, *rows, *token),
                Op::Release(slot, trusted) => model.release(*slot, *trusted),
            }
        }
        for slot in 0..SLOTS {
            model.release(slot, true);
        }
        prop_assert_eq!(model.cache.stats().used, 0);
    }
}

/// Runs `text` alone to its end.
fn store(model: &mut Model, text: &[u32]) {
    model.admit(0, text);
    while model.open[0].as_ref().unwrap().stored < text.len() {
        model.rows(0, ROWS, 0);
    }
    model.release(0, true);
}

#[test]
fn a_prefix_comes_back_as_far_as_its_last_window() {
    let mut model = Model::new(12, 12, u64::MAX);
    let (a, b): (Vec<u32>, Vec<u32>) = ((0..100).collect(), (500..680).collect());
    store(&mut model, &a);
    store(&mut model, &b);
    assert_eq!(model.cache.cached(0, &a), 0, "it was pushed out");
    assert_eq!(model.cache.restorable(0, &a), 6);
    model.admit(1, &a);
    assert_eq!(model.open[1].as_ref().unwrap().stored, 96);
    assert_eq!(*model.restored.lock().unwrap(), 6);
    model.rows(1, ROWS, 0);
}
