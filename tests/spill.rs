// SPDX-License-Identifier: MIT OR Apache-2.0
//! KV that goes to host memory and comes back: the same logits rows as without, on whichever device. On a GPU pages are locked
//! and copied beside what is computed.

mod support;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use metrale_model_engine::EngineOptions;
use metrale_model_engine::adapters::{HostTier, TierStats};
use metrale_model_engine::engine::step_limits;
use metrale_sampling::Sampling;
use metrale_scheduler::{Delivery, Event, PlannerLimits, Request, RequestId, Turn};
use support::serving::populated;
use support::{Result, Setup, fixture};

const REQUESTS: u64 = 40;
const CONTEXT: u32 = 256;
const SLOTS: u32 = 8;
/// Hashes of logits rows, by request.
type Rows = BTreeMap<u64, Vec<u64>>;

/// Every third begins as its neighbours do, so that evicted prefixes are asked for again; half of them generate so much that
/// the pool cannot hold all.
fn asked(id: u64) -> Request<Sampling> {
    let shared = (0..48).map(|i| (i * 7 + (id / 3 % 4) as u32 * 31) % 320);
    let own = (0..(id * 13 % 60) as u32 + 5).map(|i| (i * 11 + id as u32 * 17) % 320);
    let prompt: Vec<u32> = shared.chain(own).collect();
    let tokens = if id.is_multiple_of(2) { 100 } else { 12 };
    Request::new(RequestId(id), prompt, Sampling::greedy(), tokens)
}

/// All requests together on a pool of `blocks`, with `host_bytes` of host memory; `spoil` flips a bit of every page of a
/// preempted sequence.
fn run(blocks: u64, host_bytes: u64, spoil: bool) -> Result<(Rows, Option<TierStats>, u64)> {
    let limits = PlannerLimits {
        max_num_seqs: SLOTS,
        max_prefill_tokens: 64,
        max_rows: 64 + SLOTS,
        max_logits_rows: SLOTS,
        max_seq_len: CONTEXT,
        ..PlannerLimits::default()
    };
    let step = step_limits(&limits);
    let model = Setup::new(step, blocks).load(&fixture("llama"))?;
    let options = EngineOptions {
        limits,
        row_hashes: true,
        kv_host_bytes: host_bytes,
        ..EngineOptions::default()
    };
    let (mut driver, _populator) = populated(model, options)?;
    let tier = driver.router().spill.0.clone();
    if let Some(tier) = &tier {
        tier.restore_always();
    }
    let handle = driver.handle();
    let rows: Arc<Mutex<Rows>> = Arc::default();
    for id in 0..REQUESTS {
        let rows = Arc::clone(&rows);
        let sink = move |event| {
            if let Event::Token { row_hash, .. } = event {
                let mut rows = rows.lock().unwrap_or_else(|e| e.into_inner());
                rows.entry(id).or_default().push(row_hash.unwrap_or(0));
            }
            Delivery::Taken
        };
        handle.submit(asked(id), Box::new(sink))?;
        driver.turn();
    }
    let mut spoilt = 0;
    while driver.turn() != Turn::Idle {
        let preemptions = handle.stats().preemptions;
        if let Some(tier) = tier.as_ref().filter(|_| spoil && preemptions > spoilt) {
            tier.spoil();
            spoilt = preemptions;
        }
    }
    let stats = handle.stats();
    assert_eq!(stats.kv_used, 0, "blocks are held at the end");
    let rows = std::mem::take(&mut *rows.lock().unwrap_or_else(|e| e.into_inner()));
    Ok((rows, tier.as_ref().map(HostTier::stats), stats.preemptions))
}

#[test]
fn what_comes_back_from_host_memory_gives_the_same_rows() {
    let (want, none, _) = run(1024, 0, false).unwrap();
    assert_eq!((want.len() as u64, none), (REQUESTS, None));
    for (host_bytes, spoil) in [
        (0, false),
        (256 << 10, false),
        (32 << 20, false),
        (32 << 20, true),
    ] {
        let (got, tier, preemptions) = run(32, host_bytes, spoil).unwrap();
        println!("host {host_bytes}, spoilt {spoil}: {preemptions} preemptions, {tier:?}");
        assert_eq!(got, want, "host {host_bytes}, spoilt {spoil}");
        assert!(preemptions > 0);
        let Some(tier) = tier else { continue };
        assert!(tier.spilled > 0);
        assert_eq!(tier.corrupt > 0, spoil, "checksums");
        assert!(spoil || tier.restored > 0, "nothing came back");
    }
}
