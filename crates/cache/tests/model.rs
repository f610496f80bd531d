// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cache against a model of the memory it accounts for.
//!
//! The model holds, for each place of each block, which text it is the KV of: a hash over namespace and all tokens up to
//! that position. Whatever the cache calls stored must be there, whatever happened before. Where nothing is ever evicted,
//! it must also find as much as a search through all texts that were stored.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use metrale_cache::{Admission, BLOCK, CacheOptions, HashFn, KvCache, mix};
use proptest::prelude::*;

/// Tests alphabets so small that texts collide all the time.
const LETTERS: u32 = 2;
const SLOTS: u32 = 4;

fn constant(_: u64, _: u32, _: &[u32; BLOCK]) -> u32 {
    7
}

fn identity(namespace: u64, tokens: &[u32]) -> u64 {
    tokens.iter().fold(namespace + 1, |h, t| {
        (h ^ u64::from(*t + 1))
            .wrapping_mul(0x100_0000_01b3)
            .rotate_left(17)
    })
}

#[derive(Clone, Debug)]
enum Op {
    Admit {
        slot: u32,
        namespace: u64,
        text: Vec<u32>,
        reuse: bool,
        spare: u32,
    },
    Advance {
        slot: u32,
        rows: usize,
        then: Vec<u32>,
    },
    Release {
        slot: u32,
        trusted: bool,
    },
    Populate {
        blocks: u32,
    },
}

fn op(namespaces: u64) -> impl Strategy<Value = Op> {
    let text = |most| {
        // Long common beginnings: a run of one letter, then anything.
        (
            0..most,
            0..LETTERS,
            prop::collection::vec(0..LETTERS, 1..24usize),
        )
            .prop_map(|(run, letter, rest)| {
                let mut text = vec![letter; run];
                text.extend(rest);
                text
            })
    };
    prop_oneof![
        4 => (0..SLOTS, 0..namespaces, text(70usize), prop::bool::weighted(0.9), 0..3u32)
            .prop_map(|(slot, namespace, text, reuse, spare)| Op::Admit { slot, namespace, text, reuse, spare }),
        6 => (0..SLOTS, 1..40usize, prop::collection::vec(0..LETTERS, 0..6usize))
            .prop_map(|(slot, rows, then)| Op::Advance { slot, rows, then }),
        3 => (0..SLOTS, prop::bool::weighted(0.9)).prop_map(|(slot, trusted)| Op::Release { slot, trusted }),
        1 => (0..24u32).prop_map(|blocks| Op::Populate { blocks }),
    ]
}

#[derive(Clone, Default)]
struct Open {
    namespace: u64,
    tokens: Vec<u32>,
    stored: usize,
}

struct Model {
    cache: KvCache,
    memory: Vec<[u64; BLOCK]>,
    open: Vec<Option<Open>>,
    /// Every text that was stored and released as trusted.
    texts: Vec<(u64, Vec<u32>)>,
    complete: bool,
}

impl Model {
    fn new(blocks: u32, hash: HashFn, complete: bool) -> Model {
        Model {
            cache: KvCache::new(CacheOptions {
                blocks,
                slots: SLOTS,
                hash,
                ..CacheOptions::default()
            }),
            memory: vec![[0; BLOCK]; blocks as usize],
            open: vec![None; SLOTS as usize],
            texts: Vec::new(),
            complete,
        }
    }

    /// Every stored token of an open sequence is found through its table.
    fn check(&self, slot: u32) {
        let Some(open) = &self.open[slot as usize] else {
            return;
        };
        let table = self.cache.table(slot);
        for at in 0..open.stored {
            let there = self.memory[table[at / BLOCK] as usize][at % BLOCK];
            assert_eq!(
                there,
                identity(open.namespace, &open.tokens[..=at]),
                "slot {slot}, position {at}"
            );
        }
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::Admit {
                slot,
                namespace,
                text,
                reuse,
                spare,
            } => {
                if self.open[slot as usize].is_some() {
                    return;
                }
                let before = self.cache.available_blocks();
                let predicted = self.cache.cached(namespace, &text);
                let ask = Admission {
                    namespace,
                    tokens: &text,
                    reuse,
                    spare,
                    restore: true,
                };
                let Some(attached) = self.cache.admit(slot, &ask) else {
                    assert_eq!(self.cache.available_blocks(), before);
                    let need = text.len().div_ceil(BLOCK) as u32 + spare;
                    assert!(need > before, "refused {need} of {before}");
                    return;
                };
                assert!(self.cache.available_blocks() >= spare);
                assert_eq!(attached.cached, if reuse { predicted } else { 0 });
                if reuse && self.complete {
                    let most = text.len() - 1;
                    let best = self.texts.iter().filter(|t| t.0 == namespace).map(|t| {
                        t.1.iter()
                            .zip(&text[..most])
                            .take_while(|(a, b)| a == b)
                            .count()
                    });
                    assert!(attached.cached as usize >= best.max().unwrap_or(0));
                }
                if let Some(copy) = attached.copy {
                    self.memory[copy.dst as usize] = self.memory[copy.src as usize];
                }
                let stored = attached.cached as usize;
                assert!(stored < text.len());
                self.open[slot as usize] = Some(Open {
                    namespace,
                    tokens: text,
                    stored,
                });
                self.check(slot);
            }
            Op::Advance { slot, rows, then } => {
                let Some(open) = &mut self.open[slot as usize] else {
                    return;
                };
                let end = (open.stored + rows).min(open.tokens.len());
                for at in open.stored..end {
                    let block = self.cache.table(slot)[at / BLOCK];
                    self.memory[block as usize][at % BLOCK] =
                        identity(open.namespace, &open.tokens[..=at]);
                }
                open.stored = end;
                self.cache.publish(slot, &open.tokens[..end], |_| {});
                if end == open.tokens.len() {
                    for token in then {
                        let needs = open.tokens.len() / BLOCK >= self.cache.table(slot).len();
                        if needs && self.cache.grow(slot).is_none() {
                            break;
                        }
                        open.tokens.push(token);
                    }
                }
                self.check(slot);
            }
            Op::Release { slot, trusted } => {
                let Some(open) = self.open[slot as usize].take() else {
                    return;
                };
                let stored = if trusted {
                    &open.tokens[..open.stored]
                } else {
                    &[]
                };
                self.cache.release(slot, stored);
                self.texts.push((open.namespace, stored.to_vec()));
            }
            Op::Populate { blocks } => self.cache.set_populated(blocks),
        }
        self.cache.audit().unwrap();
        for slot in 0..SLOTS {
            self.check(slot);
        }
    }

    fn run(mut self, ops: Vec<Op>) {
        for op in ops {
            self.step(op);
        }
        for slot in 0..SLOTS {
            self.step(Op::Release {
                slot,
                trusted: true,
            });
        }
        let stats = self.cache.stats();
        assert_eq!(
            (stats.used, stats.free + stats.cached),
            (0, stats.populated)
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn what_is_called_stored_is_there(ops in prop::collection::vec(op(2), 1..120), blocks in 6u32..24) {
        Model::new(blocks, mix, false).run(ops);
    }

    /// SURVIVAL 45: every hash collides; tokens decide.
    #[test]
    fn survival_45_forced_collisions_do_not_cross(ops in prop::collection::vec(op(3), 1..120), blocks in 6u32..24) {
        Model::new(blocks, constant, false).run(ops);
    }

    #[test]
    fn without_eviction_all_that_was_stored_is_found(ops in prop::collection::vec(op(2), 1..80)) {
        let ops = ops.into_iter().filter(|o| !matches!(o, Op::Populate { .. } | Op::Release { trusted: false, .. }));
        Model::new(1000, mix, true).run(ops.collect());
    }
}
