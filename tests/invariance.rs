// SPDX-License-Identifier: MIT OR Apache-2.0
//! Invariance of the serving core on the real engine: two hundred mixed requests together give the bits of each alone.
//!
//! Lengths from one token to four thousand, greedy and drawn, with penalties, biases, stops and cancels, many with a common
//! beginning; a pool so small that sequences are preempted and prefixes evicted all the time, some of them through host
//! memory; every policy, several chunk sizes, steps planned ahead or not.

mod support;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use metrale_core::KV_BLOCK;
use metrale_model_engine::EngineOptions;
use metrale_model_engine::adapters::{HostTier, TierStats};
use metrale_model_engine::engine::step_limits;
use metrale_sampling::{Sampling, SamplingFields};
use metrale_scheduler::{
    Delivery, Event, FinishReason, Lookahead, PlannerLimits, Policy, Request, RequestId, Stats,
    Turn,
};
use support::serving::populated;
use support::{Result, Setup, TempCopy, fixture};

const REQUESTS: u64 = 200;
const LONGEST: u32 = 4000;
const VOCAB: u32 = 320;
const CONTEXT: u32 = 4352;
const SLOTS: u32 = 24;

/// A small generator, so that the requests are the same on every machine.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

/// A request, and after how many tokens its client leaves.
struct Asked {
    request: Request<Sampling>,
    leaves: Option<usize>,
}

fn text(key: u64, len: u32) -> Vec<u32> {
    let mut dice = Dice(key * 77 + 5);
    (0..len).map(|_| dice.roll(VOCAB.into()) as u32).collect()
}

fn asked(id: u64) -> Result<Asked> {
    let mut dice = Dice(id);
    // Many short ones, a few of thousands of tokens.
    let exponent = (dice.roll(1000) as f64 / 1000.0).powf(1.6);
    let len = (f64::from(LONGEST).powf(exponent) as u32).clamp(1, LONGEST);
    let mut prompt = match dice.roll(3) {
        0 => Vec::new(),
        shared => text(shared, len * 3 / 4),
    };
    prompt.extend(text(1000 + id, len - prompt.len() as u32));
    let mut fields = SamplingFields::default();
    if dice.roll(2) == 0 {
        fields.temperature = 0.3 + dice.roll(20) as f64 / 10.0;
        fields.top_p = 0.5 + dice.roll(6) as f64 / 10.0;
        fields.top_k = dice.roll(60) as i64;
    } else {
        fields.temperature = 0.0;
    }
    if dice.roll(4) == 0 {
        fields.repetition_penalty = 1.2;
        fields.presence_penalty = 0.4;
    }
    let sampling = Sampling::new(&fields, dice.roll(1 << 30))?;
    // Long answers to short prompts: what has to be preempted.
    let tokens = 1 + dice.roll(if len < 400 { 500 } else { 40 }) as u32;
    let stops = if dice.roll(3) == 0 { dice.roll(20) } else { 0 };
    let request = Request {
        choice: dice.roll(3) as u32,
        history: sampling.needs_history(),
        bias: (0..dice.roll(4)).map(|i| (i as u32 * 9, 1.5)).collect(),
        min_tokens: dice.roll(3) as u32,
        stop_tokens: (0..stops).map(|i| i as u32 * 3).collect(),
        logprobs: (dice.roll(5) == 0).then_some(3),
        priority: dice.roll(5) as i32 - 2,
        ..Request::new(RequestId(id), prompt, sampling, tokens)
    };
    let leaves = (dice.roll(8) == 0).then(|| dice.roll(u64::from(tokens)) as usize + 1);
    Ok(Asked { request, leaves })
}

/// What came of a request: each token with its logprob's bits and its logits row's hash; and whether it ran to its end.
#[derive(Clone, Debug, Default, PartialEq)]
struct Answer {
    rows: Vec<(u32, u32, u64)>,
    reason: Option<FinishReason>,
}

#[derive(Clone, Copy)]
struct Case {
    policy: Policy,
    chunk: u32,
    blocks: u64,
    lookahead: Lookahead,
    host_bytes: u64,
    /// A bit of every page of a preempted sequence is flipped, time and again.
    spoil: bool,
}

type Outcome = (BTreeMap<u64, Answer>, Stats, Option<TierStats>);

/// Runs all requests together, or one after the other, each in a namespace of its own.
fn run(path: &std::path::Path, case: Case, alone: bool) -> Result<Outcome> {
    let limits = PlannerLimits {
        max_num_seqs: SLOTS,
        max_prefill_tokens: case.chunk,
        max_rows: case.chunk + SLOTS,
        max_logits_rows: SLOTS,
        max_seq_len: CONTEXT,
        max_history: 4 * CONTEXT,
        max_bias: 1024,
        policy: case.policy,
        ..PlannerLimits::default()
    };
    let step = step_limits(&limits);
    let model = Setup::new(step, case.blocks).load(path)?;
    let options = EngineOptions {
        limits,
        row_hashes: true,
        lookahead: case.lookahead,
        kv_host_bytes: case.host_bytes,
        ..EngineOptions::default()
    };
    let (mut driver, _populator) = populated(model, options)?;
    let handle = driver.handle();
    let answers: Arc<Mutex<BTreeMap<u64, Answer>>> = Arc::default();
    let mut dice = Dice(case.blocks);
    for id in 0..REQUESTS {
        let Asked {
            mut request,
            leaves,
        } = asked(id)?;
        if alone {
            request.namespace = id + 1;
        }
        let all = Arc::clone(&answers);
        let sink = move |event| {
            let mut all = all.lock().unwrap_or_else(|e| e.into_inner());
            let answer = all.entry(id).or_default();
            match event {
                Event::Token {
                    token,
                    logprob,
                    row_hash,
                    ..
                } => {
                    let hash = row_hash.unwrap_or(0);
                    answer.rows.push((token, logprob.to_bits(), hash));
                }
                Event::Finished { reason, .. } => answer.reason = Some(reason),
                Event::Failed(fault) => panic!("request {id} failed: {fault}"),
                Event::Admitted { .. } | Event::Prompt { .. } => {}
            }
            match leaves {
                Some(after) if !alone && answer.rows.len() >= after => Delivery::Gone,
                _ => Delivery::Taken,
            }
        };
        handle.submit(request, Box::new(sink))?;
        // Together: they come while others run.
        let turns = if alone { u64::MAX } else { dice.roll(3) };
        for _ in 0..turns {
            if driver.turn() == Turn::Idle {
                break;
            }
        }
    }
    let (mut spoilt, tier) = (0, driver.router().spill.0.clone());
    while driver.turn() != Turn::Idle {
        let preemptions = handle.stats().preemptions;
        if let Some(tier) = tier.as_ref().filter(|_| case.spoil && preemptions > spoilt) {
            tier.spoil();
            spoilt = preemptions;
        }
    }
    let stats = handle.stats();
    assert_eq!(stats.kv_used, 0, "blocks are held at the end");
    let answers = std::mem::take(&mut *answers.lock().unwrap_or_else(|e| e.into_inner()));
    Ok((answers, stats, tier.as_ref().map(HostTier::stats)))
}

/// The tiny llama, told that it may go on for four thousand tokens.
fn long_llama() -> Result<TempCopy> {
    let copy = TempCopy::of(&fixture("llama"))?;
    let file = copy.path().join("config.json");
    let config = std::fs::read_to_string(&file)?;
    let longer = config.replace(
        "\"max_position_embeddings\": 512",
        "\"max_position_embeddings\": 8192",
    );
    assert_ne!(config, longer);
    std::fs::write(&file, longer)?;
    Ok(copy)
}

#[test]
fn two_hundred_mixed_requests_answer_as_each_alone() {
    let copy = long_llama().unwrap();
    let alone = Case {
        policy: Policy::Fifo,
        chunk: 256,
        blocks: 2 * u64::from(CONTEXT / KV_BLOCK),
        lookahead: Lookahead::None,
        host_bytes: 0,
        spoil: false,
    };
    let (want, ..) = run(copy.path(), alone, true).unwrap();
    assert_eq!(want.len() as u64, REQUESTS);
    // The longest alone fills it.
    let small = u64::from((LONGEST + 48).div_ceil(KV_BLOCK));
    let case = |policy, chunk, lookahead, host_bytes| Case {
        policy,
        chunk,
        blocks: small,
        lookahead,
        host_bytes,
        spoil: false,
    };
    let cases = [
        case(Policy::Fifo, 256, Lookahead::Late, 0),
        case(Policy::Fifo, 64, Lookahead::None, 8 << 20),
        case(Policy::PRIORITY, 33, Lookahead::Late, 32 << 20),
        case(Policy::SLAI, 128, Lookahead::Late, 8 << 20),
        Case {
            spoil: true,
            ..case(Policy::SLAI, 128, Lookahead::None, 32 << 20)
        },
    ];
    let (mut preemptions, mut restored) = (0, 0);
    for (number, case) in cases.into_iter().enumerate() {
        let (got, stats, tier) = run(copy.path(), case, false).unwrap();
        println!(
            "{} chunk {} {:?} host {}: {} preemptions, {} cached tokens, {} rows, {} steps",
            case.policy.name(),
            case.chunk,
            case.lookahead,
            case.host_bytes,
            stats.preemptions,
            stats.cached_tokens,
            stats.rows,
            stats.steps
        );
        preemptions += stats.preemptions;
        if let Some(tier) = tier {
            println!("    {tier:?}");
            assert!(tier.spilled > 0);
            assert_eq!(tier.corrupt > 0, case.spoil, "checksums");
            restored += tier.restored;
        }
        for (id, want) in &want {
            let got = &got[id];
            let same = &want.rows[..got.rows.len().min(want.rows.len())];
            assert_eq!(got.rows, same, "case {number}, request {id}");
            // Who left got less; everybody else got all.
            let left = asked(*id).unwrap().leaves;
            let whole = left.is_none_or(|after| want.rows.len() < after);
            assert!(
                !whole || got == want,
                "case {number}, request {id} has another end"
            );
        }
    }
    assert!(preemptions > 20, "{preemptions} preemptions");
    assert!(restored > 0, "nothing came back from host memory");
}
