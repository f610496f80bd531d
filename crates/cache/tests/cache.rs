// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cache's rules, one by one.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use metrale_cache::{Admission, Attached, BLOCK, CacheOptions, KvCache, TableChange};

fn cache(blocks: u32) -> KvCache {
    KvCache::new(CacheOptions {
        blocks,
        ..CacheOptions::default()
    })
}

fn text(from: u32, len: u32) -> Vec<u32> {
    (from..from + len).collect()
}

fn admit(cache: &mut KvCache, slot: u32, tokens: &[u32]) -> Option<Attached> {
    let ask = Admission {
        namespace: 0,
        tokens,
        reuse: true,
        spare: 0,
        restore: false,
    };
    cache.admit(slot, &ask)
}

/// Stores a text and leaves it cached.
fn store(cache: &mut KvCache, tokens: &[u32]) {
    admit(cache, 31, tokens).unwrap();
    cache.release(31, tokens);
    cache.audit().unwrap();
}

#[test]
fn the_last_token_is_never_cached() {
    let mut c = cache(16);
    let prompt = text(0, 32);
    store(&mut c, &prompt);
    let again = admit(&mut c, 0, &prompt).unwrap();
    assert_eq!(again.cached, 31);
    let copy = again.copy.unwrap();
    assert_eq!((copy.src, copy.dst), (1, c.table(0)[1]));
    assert_eq!(c.table(0)[0], 0);
    assert_ne!(copy.dst, 1);
}

#[test]
fn a_single_token_finds_nothing() {
    let mut c = cache(4);
    store(&mut c, &[5]);
    assert_eq!(admit(&mut c, 0, &[5]).unwrap().cached, 0);
}

#[test]
fn the_next_turn_of_a_chat_hits_the_answer_before() {
    let mut c = cache(16);
    let first = text(0, 39); // Prompt and answer, ending in the middle of a block.
    store(&mut c, &first);
    let mut second = first.clone();
    second.extend(text(500, 20));
    let attached = admit(&mut c, 0, &second).unwrap();
    assert_eq!(attached.cached, 39);
    assert!(attached.copy.is_some());
}

#[test]
fn namespaces_do_not_see_each_other() {
    let mut c = cache(16);
    store(&mut c, &text(0, 40));
    let ask = Admission {
        namespace: 1,
        tokens: &text(0, 40),
        reuse: true,
        spare: 0,
        restore: false,
    };
    assert_eq!(c.cached(1, &text(0, 40)), 0);
    assert_eq!(c.admit(0, &ask).unwrap().cached, 0);
    assert_eq!(c.stats().namespaces, 1);
    c.release(0, &text(0, 40));
    assert_eq!(c.stats().namespaces, 2);
}

#[test]
fn two_that_compute_the_same_end_with_one_copy() {
    let mut c = cache(16);
    let prompt = text(0, 40);
    admit(&mut c, 0, &prompt).unwrap();
    admit(&mut c, 1, &prompt).unwrap();
    assert_eq!(c.stats().used, 6);
    let mut changes = Vec::new();
    c.publish(0, &prompt[..32], |t| changes.push(t));
    assert!(changes.is_empty());
    c.publish(1, &prompt[..32], |t| changes.push(t));
    let moved = |index| TableChange {
        index,
        block: c.table(0)[index as usize],
    };
    assert_eq!(changes, [moved(0), moved(1)]);
    assert_eq!(c.table(0)[..2], c.table(1)[..2]);
    assert_eq!(c.stats().used, 4);
    c.audit().unwrap();
}

#[test]
fn a_prompt_that_does_not_fit_changes_nothing() {
    let mut c = cache(4);
    store(&mut c, &text(0, 48));
    let before = c.stats();
    assert_eq!(admit(&mut c, 0, &text(0, 65)), None);
    let spare = Admission {
        namespace: 0,
        tokens: &text(100, 32),
        reuse: true,
        spare: 3,
        restore: false,
    };
    assert_eq!(c.admit(0, &spare), None);
    assert_eq!(c.stats(), before);
    assert!(c.table(0).is_empty());
    // A hit on idle blocks does not count them twice.
    assert!(admit(&mut c, 0, &text(0, 64)).is_some());
    assert_eq!(c.available_blocks(), 0);
}

#[test]
fn the_least_recently_used_leaf_goes_first() {
    let mut c = cache(6);
    let (a, b) = (text(0, 32), text(1000, 32));
    store(&mut c, &a);
    store(&mut c, &b);
    assert_eq!(admit(&mut c, 0, &a).unwrap().cached, 31); // Used again.
    c.release(0, &a[..31]);
    store(&mut c, &text(2000, 48)); // Needs three, two are free: b's leaf goes.
    assert_eq!((c.cached(0, &b), c.cached(0, &a)), (16, 31));
    store(&mut c, &text(3000, 1)); // Then what is left of b.
    assert_eq!((c.cached(0, &b), c.cached(0, &a)), (0, 31));
    assert_eq!(c.stats().evicted, 2);
}

#[test]
fn blocks_in_use_are_never_evicted() {
    let mut c = cache(4);
    admit(&mut c, 0, &text(0, 64)).unwrap();
    c.publish(0, &text(0, 64), |_| {});
    assert_eq!((c.grow(0), c.available_blocks()), (None, 0));
    assert_eq!(admit(&mut c, 1, &[1]), None);
    c.release(0, &text(0, 64));
    assert_eq!(c.available_blocks(), 4);
}

#[test]
fn only_populated_blocks_are_handed_out() {
    let mut c = cache(8);
    c.set_populated(2);
    assert_eq!(c.available_blocks(), 2);
    assert_eq!(admit(&mut c, 0, &text(0, 33)), None);
    c.set_populated(3);
    assert!(admit(&mut c, 0, &text(0, 33)).is_some());
    assert_eq!(c.table(0), [0, 1, 2]);
    c.set_populated(0); // What is in use stays.
    assert_eq!(c.stats().populated, 3);
    c.set_populated(100);
    assert_eq!((c.stats().populated, c.available_blocks()), (8, 5));
}

#[test]
fn what_cannot_be_trusted_leaves_with_its_sequence() {
    let mut c = cache(16);
    store(&mut c, &text(0, 16));
    let mut long = text(0, 16);
    long.extend(text(700, 40));
    admit(&mut c, 0, &long).unwrap();
    c.publish(0, &long[..48], |_| {});
    assert_eq!(c.cached(0, &long), 48);
    c.release(0, &[]);
    c.audit().unwrap();
    assert_eq!(c.cached(0, &long), 16, "the prefix of others stays");
}

#[test]
fn a_reset_forgets_all_and_keeps_what_is_populated() {
    let mut c = cache(8);
    c.set_populated(5);
    store(&mut c, &text(0, 40));
    admit(&mut c, 0, &text(0, 40)).unwrap();
    c.reset();
    c.audit().unwrap();
    assert_eq!((c.available_blocks(), c.cached(0, &text(0, 40))), (5, 0));
    assert!(c.table(0).is_empty());
}

#[test]
fn without_partial_reuse_hits_end_at_blocks() {
    let mut c = KvCache::new(CacheOptions {
        partial: false,
        ..CacheOptions::default()
    });
    store(&mut c, &text(0, 40));
    assert_eq!(
        admit(&mut c, 0, &text(0, 32)).unwrap(),
        Attached {
            cached: BLOCK as u32,
            copy: None,
            state: None
        }
    );
}
