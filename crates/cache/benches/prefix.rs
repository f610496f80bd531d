// SPDX-License-Identifier: MIT OR Apache-2.0
//! The prefix tree at one million blocks. Targets (issue "serving core"): match of a 16k-token prompt at most 60 us; insert
//! and evict at most 0.3 us a block. Times are the thread's processor time: what runs beside counts for less.
//!
//! `cargo bench -p metrale-cache`

#![allow(missing_docs, reason = "criterion's macros make public items")]
#![allow(clippy::unwrap_used, reason = "a panic is how a benchmark fails")]

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use metrale_cache::{Admission, BLOCK, CacheOptions, KvCache};

const BLOCKS: u32 = 1 << 20;
const PROMPT: usize = 16_384;
const SHARED: usize = 1024;

/// A prompt of 16k tokens: the first 1k are shared by groups of eight.
fn prompt(key: u32) -> Vec<u32> {
    (0..PROMPT)
        .map(|i| {
            let key = if i < SHARED { key / 8 } else { key + 1000 };
            (i as u32).wrapping_mul(2_654_435_761).rotate_left(key % 31) ^ key
        })
        .collect()
}

fn ask(tokens: &[u32]) -> Admission<'_> {
    Admission {
        namespace: 0,
        tokens,
        reuse: true,
        spare: 0,
        restore: false,
    }
}

/// A pool full of cached prompts.
fn full() -> KvCache {
    let mut cache = KvCache::new(CacheOptions {
        blocks: BLOCKS,
        slots: 2,
        ..CacheOptions::default()
    });
    for key in 0..BLOCKS / (PROMPT / BLOCK) as u32 {
        let tokens = prompt(key);
        cache.admit(0, &ask(&tokens)).unwrap();
        cache.release(0, &tokens);
    }
    cache
}

/// Of this thread, so far.
fn processor_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the place is valid for the call.
    let done = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(done, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn prefix(c: &mut Criterion) {
    let mut cache = full();
    let mut group = c.benchmark_group("1M blocks");
    // So many that neither they nor their nodes stay in the processor's caches.
    let hits: Vec<Vec<u32>> = (0..512).map(prompt).collect();
    for tokens in &hits {
        assert_eq!(cache.cached(0, tokens), PROMPT as u32 - 1);
    }
    let mut next = hits.iter().cycle();
    group.bench_function("match 16k tokens", |b| {
        b.iter_custom(|iters| {
            let start = processor_time();
            for _ in 0..iters {
                black_box(cache.cached(0, next.next().unwrap()));
            }
            processor_time() - start
        });
    });
    // Each prompt is new: its blocks are taken from evicted ones, filled, published and left cached.
    group.throughput(Throughput::Elements((PROMPT / BLOCK) as u64));
    let mut key = 1 << 20;
    group.bench_function("evict and insert 16k tokens", |b| {
        b.iter_custom(|iters| {
            let mut total = Duration::ZERO;
            for _ in 0..iters {
                let tokens = prompt(key);
                key += 8;
                let start = processor_time();
                cache.admit(0, &ask(&tokens)).unwrap();
                cache.release(0, &tokens);
                total += processor_time() - start;
            }
            total
        });
    });
    group.finish();
}

criterion_group!(benches, prefix);
criterion_main!(benches);
