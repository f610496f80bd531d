// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sliding windows and recurrent state beside the first pool, against a model of the memory that they account for.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use metrale_cache::{
    Admission, Attached, BLOCK, CacheOptions, KvCache, StateOptions, WindowOptions,
};
use proptest::prelude::*;

const SLOTS: u32 = 3;
const ROWS: u32 = 24;
const WINDOWS: [u32; 2] = [1, 40];
const EVERY: u32 = 32;

fn identity(namespace: u64, tokens: &[u32]) -> u64 {
    tokens.iter().fold(namespace + 1, |h, t| {
        (h ^ u64::from(*t + 1))
            .wrapping_mul(0x100_0000_01b3)
            .rotate_left(17)
    })
}

fn options(blocks: u32, more: u32, snapshots: u32) -> CacheOptions {
    let window = |tokens| WindowOptions {
        tokens,
        blocks: WindowOptions::least(tokens, SLOTS, ROWS) + more,
    };
    CacheOptions {
        blocks,
        slots: SLOTS,
        windows: WINDOWS.map(window).to_vec(),
        states: Some(StateOptions {
            snapshots,
            every: EVERY,
        }),
        ..CacheOptions::default()
    }
}

#[derive(Clone, Debug)]
enum Op {
    Admit(u32, Vec<u32>),
    /// Rows, whether they fail, and what is generated behind the text.
    Step(u32, u32, bool, u32),
    Release(u32, bool),
}

fn op() -> impl Strategy<Value = Op> {
    let text =
        (0..150usize, 0..2u32, prop::collection::vec(0..2u32, 1..20)).prop_map(|(run, l, rest)| {
            let mut text = vec![l; run];
            text.extend(rest);
            text
        });
    prop_oneof![
        2 => (0..SLOTS, text).prop_map(|(slot, text)| Op::Admit(slot, text)),
        8 => (0..SLOTS, 1..=ROWS, prop::bool::weighted(0.05), 0..2u32).prop_map(|(s, r, f, t)| Op::Step(s, r, f, t)),
        1 => (0..SLOTS, prop::bool::weighted(0.9)).prop_map(|(slot, trusted)| Op::Release(slot, trusted)),
    ]
}

struct Open {
    tokens: Vec<u32>,
    stored: usize,
    /// Tables as the device has them.
    tables: [Vec<u32>; 2],
}

struct Model {
    cache: KvCache,
    /// By group: what each place of each block is the KV of.
    memory: [Vec<[u64; BLOCK]>; 2],
    /// Live places, then snapshots.
    states: Vec<u64>,
    open: [Option<Open>; SLOTS as usize],
    resumed: u32,
}

impl Model {
    fn new(options: CacheOptions) -> Model {
        let block = |i: usize| vec![[0; BLOCK]; options.windows[i].blocks as usize];
        Model {
            memory: [block(0), block(1)],
            states: vec![0; (SLOTS + options.states.unwrap().snapshots) as usize],
            cache: KvCache::new(options),
            open: Default::default(),
            resumed: 0,
        }
    }

    fn step(&mut self, op: &Op) {
        match op {
            Op::Admit(slot, text) => self.admit(*slot, text),
            Op::Step(slot, rows, fails, token) => self.rows(*slot, *rows, *fails, *token),
            Op::Release(slot, trusted) => {
                if let Some(open) = self.open[*slot as usize].take() {
                    let stored = if *trusted { open.stored } else { 0 };
                    self.cache.release(*slot, &open.tokens[..stored]);
                }
            }
        }
        self.cache.audit().unwrap();
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
            restore: false,
        };
        let predicted = self.cache.cached(0, text);
        let Some(Attached {
            cached,
            copy,
            state,
        }) = self.cache.admit(slot, &ask)
        else {
            return;
        };
        assert_eq!((cached, copy), (predicted, None));
        assert_eq!(cached % EVERY, 0, "a hit ends at a snapshot");
        assert_eq!(state.is_some(), cached > 0);
        self.states[slot as usize] = state.map_or(1, |place| self.states[place as usize]);
        self.resumed += u32::from(cached > 0);
        let tables = [1, 2].map(|group| {
            let (first, held) = self.cache.window_table(group, slot);
            let mut table = vec![u32::MAX; first as usize];
            table.extend(held);
            table
        });
        self.open[slot as usize] = Some(Open {
            tokens: text.to_vec(),
            stored: cached as usize,
            tables,
        });
    }

    /// Runs rows as a device would: each reads its window and the state before it, then writes.
    fn rows(&mut self, slot: u32, rows: u32, fails: bool, token: u32) {
        let Some(mut open) = self.open[slot as usize].take() else {
            return;
        };
        let first = open.stored as u32;
        let border = (first / EVERY + 1) * EVERY;
        let end = (first + rows).min(border).min(open.tokens.len() as u32);
        let place = (end == border)
            .then(|| self.cache.reserve_snapshot())
            .flatten();
        assert!(self.cache.prepare(slot, first, end - first, |group, c| {
            let table = &mut open.tables[group as usize - 1];
            table.resize(table.len().max(c.index as usize + 1), u32::MAX);
            table[c.index as usize] = c.block;
        }));
        for at in first as usize..end as usize {
            let here = identity(0, &open.tokens[..=at]);
            for (group, window) in WINDOWS.iter().enumerate() {
                let table = &open.tables[group];
                self.memory[group][table[at / BLOCK] as usize][at % BLOCK] = here;
                for key in (at + 1).saturating_sub(*window as usize)..=at {
                    let found = self.memory[group][table[key / BLOCK] as usize][key % BLOCK];
                    let want = identity(0, &open.tokens[..=key]);
                    assert_eq!(found, want, "slot {slot}, row {at} reads key {key}");
                }
            }
            assert_eq!(
                self.states[slot as usize],
                identity(0, &open.tokens[..at]),
                "slot {slot}, state before row {at}"
            );
            self.states[slot as usize] = here;
        }
        if let Some(place) = place {
            self.states[place as usize] = if fails { 0 } else { self.states[slot as usize] };
        }
        if fails {
            place.into_iter().for_each(|p| self.cache.drop_snapshot(p));
            self.cache
                .release(slot, &open.tokens[..open.stored / BLOCK * BLOCK]);
            return;
        }
        open.stored = end as usize;
        self.cache
            .publish(slot, &open.tokens[..open.stored], |_| {});
        if let Some(place) = place {
            self.cache.keep_snapshot(slot, end, place);
        }
        if open.stored == open.tokens.len() {
            let full = open.stored.is_multiple_of(BLOCK);
            if !full || self.cache.grow(slot).is_some() {
                open.tokens.push(token);
            }
        }
        self.open[slot as usize] = Some(open);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn what_a_row_reads_is_there(
        ops in prop::collection::vec(op(), 1..150), blocks in 12u32..40, more in 0u32..12, snapshots in 0u32..6,
    ) {
        let mut model = Model::new(options(blocks, more, snapshots));
        for op in &ops {
            model.step(op);
        }
        for slot in 0..SLOTS {
            model.step(&Op::Release(slot, true));
        }
        prop_assert_eq!(model.cache.stats().used, 0);
    }
}

/// Runs `text` alone to its end and releases it.
fn store(model: &mut Model, text: &[u32]) {
    model.admit(0, text);
    while model.open[0].as_ref().unwrap().stored < text.len() {
        model.rows(0, ROWS, false, 0);
    }
    model.open[0] = None;
    model.cache.release(0, text);
}

#[test]
fn a_shared_prompt_resumes_at_its_last_snapshot() {
    let mut model = Model::new(options(64, 32, 8));
    let text: Vec<u32> = (0..100).collect();
    store(&mut model, &text);
    assert_eq!(model.cache.cached(0, &text), 96);
    let mut other = text[..80].to_vec();
    other.extend(500..600);
    assert_eq!(model.cache.cached(0, &other), 64);
    model.step(&Op::Admit(1, other));
    for _ in 0..20 {
        model.step(&Op::Step(1, ROWS, false, 1));
    }
    assert_eq!(model.resumed, 1);
}

#[test]
fn a_window_holds_what_it_sees_and_no_more() {
    let mut model = Model::new(options(64, 0, 0));
    let text: Vec<u32> = (0..800).collect();
    model.step(&Op::Admit(0, text));
    for _ in 0..49 {
        model.step(&Op::Step(0, ROWS, false, 1));
        for (group, window) in [(1, WINDOWS[0]), (2, WINDOWS[1])] {
            let (_, held) = model.cache.window_table(group, 0);
            let most = window.div_ceil(BLOCK as u32) + ROWS.div_ceil(BLOCK as u32) + 1;
            assert!(held.len() as u32 <= most, "{} blocks", held.len());
        }
    }
    assert_eq!(model.cache.table(0).len(), 50, "the first group holds all");
}

#[test]
fn the_snapshot_used_longest_ago_goes_first() {
    let mut model = Model::new(options(64, 32, 2));
    let (a, b): (Vec<u32>, Vec<u32>) = ((0..40).collect(), (100..140).collect());
    store(&mut model, &a);
    store(&mut model, &b);
    store(&mut model, &a);
    let c: Vec<u32> = (200..240).collect();
    store(&mut model, &c);
    let cached = |t: &[u32]| model.cache.cached(0, t);
    assert_eq!((cached(&a), cached(&b), cached(&c)), (32, 0, 32));
}
