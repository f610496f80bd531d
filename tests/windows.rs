// SPDX-License-Identifier: MIT OR Apache-2.0
//! Layers that see a window of keys, in pools of their own: the bits are those of a plan without, and what has left the
//! window is free. And KV formats of every kind, mixed by layer: a row has one hash under all circumstances.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use metrale_cache::WindowOptions;
use metrale_circuit::WindowPool;
use metrale_core::{ArenaKind, Elem, KV_BLOCK, StepLimits};
use metrale_model_engine::engine::{EngineDriver, Populator, step_limits};
use metrale_model_engine::{EngineOptions, KvPools, Model, PlanOptions, Prepared};
use metrale_model_weights::Checkpoint;
use metrale_sampling::Sampling;
use metrale_scheduler::{
    Delivery, Event, Handle, Lookahead, PlannerLimits, Request, RequestId, Turn,
};
use support::serving::{populated, turn};
use support::{Result, Setup, TempCopy, fixture, kv_asked, library, served};

/// Families with windows: all layers have one, every second, every second.
const FAMILIES: &[&str] = &["mistral", "gemma2", "gemma3", "gpt-oss-mxfp4"];
/// Windows of less than a block, and of more than two.
const WINDOWS: [u32; 2] = [8, 40];
/// A family, its window (0: it has none), and the KV formats of its layers.
type Kind = (&'static str, u32, Kv);
/// A format for all layers, and one for a single layer.
type Kv = (Elem, Option<(u32, Elem)>);
/// Formats with scales, everywhere and beside others.
const FORMATS: &[Kind] = &[
    ("llama", 0, (Elem::I8, None)),
    ("llama", 0, (Elem::F8E4M3, None)),
    ("llama", 0, (Elem::BF16, Some((1, Elem::F32)))),
    ("mistral", 40, (Elem::I8, None)),
    ("gemma3", 40, (Elem::I8, Some((1, Elem::F16)))),
    ("gpt-oss-mxfp4", 8, (Elem::F8E4M3, Some((0, Elem::BF16)))),
];
const PROMPT: u32 = 210;
const ANSWER: u32 = 40;
const CONTEXT: u32 = 400;
const VOCAB: u32 = 320;

type Rows = Vec<(u32, u64)>;

/// A family's fixture with a window of `tokens`.
fn windowed(name: &str, tokens: u32) -> Result<TempCopy> {
    let copy = TempCopy::of(&fixture(name))?;
    let file = copy.path().join("config.json");
    let config = std::fs::read_to_string(&file)?;
    let other = config.replace(
        "\"sliding_window\": 8",
        &format!("\"sliding_window\": {tokens}"),
    );
    assert_eq!(config != other, ![0, 8].contains(&tokens));
    std::fs::write(&file, other)?;
    Ok(copy)
}

/// What one engine is made of.
#[derive(Clone, Copy)]
struct Case {
    slots: u32,
    chunk: u32,
    blocks: u64,
    /// The window that has a pool, with the blocks that it has beyond the least.
    pool: Option<(u32, u32)>,
    lookahead: Lookahead,
    host_bytes: u64,
    kv: Kv,
    /// Whether tokens are guessed, most of them wrongly.
    drafts: bool,
}

fn guess(text: &[u32], most: u32, drafts: &mut Vec<u32>) {
    metrale_speculative::ngram(text, most / 2, drafts);
    drafts.extend((0..most).map(|i| (i * 13 + text.len() as u32) % VOCAB));
    drafts.truncate(most as usize);
}

impl Case {
    fn new(window: u32, kv: Kv) -> Case {
        Case {
            slots: 6,
            chunk: 64,
            blocks: 256,
            pool: (window > 0).then_some((window, 0)),
            lookahead: Lookahead::Late,
            host_bytes: 0,
            kv,
            drafts: false,
        }
    }
}

struct Running {
    driver: EngineDriver,
    handle: Handle<Sampling>,
    digest: String,
    _populator: Populator,
    answers: Arc<Mutex<BTreeMap<u64, (u32, Rows)>>>,
}

impl Running {
    fn start(path: &Path, case: &Case) -> Result<Running> {
        let limits = PlannerLimits {
            max_num_seqs: case.slots,
            max_prefill_tokens: case.chunk,
            max_rows: case.chunk + case.slots,
            max_logits_rows: case.slots,
            max_seq_len: CONTEXT,
            max_history: 4 * CONTEXT,
            max_bias: 64,
            max_drafts: if case.drafts { 6 } else { 0 },
            ..PlannerLimits::default()
        };
        let step = step_limits(&limits);
        let mut setup = Setup::new(step, case.blocks);
        let pool = |(tokens, more)| WindowPool {
            tokens,
            blocks: u64::from(WindowOptions::least(tokens, step.slots, step.rows) + more),
        };
        setup.windows = case.pool.map(pool).into_iter().collect();
        setup.kv.all = case.kv.0;
        setup.kv.layers.extend(case.kv.1);
        let model = setup.load(path)?;
        let digest = model.digest().to_owned();
        let options = EngineOptions {
            limits,
            row_hashes: true,
            lookahead: case.lookahead,
            kv_host_bytes: case.host_bytes,
            guess: case.drafts.then_some(guess),
            ..EngineOptions::default()
        };
        let (driver, populator) = populated(model, options)?;
        Ok(Running {
            handle: driver.handle(),
            driver,
            digest,
            _populator: populator,
            answers: Arc::default(),
        })
    }

    fn submit(&self, id: u64, prompt: Vec<u32>, tokens: u32) -> Result<()> {
        let answers = Arc::clone(&self.answers);
        let sink = move |event| {
            let mut all = answers.lock().unwrap_or_else(|e| e.into_inner());
            let (cached, rows) = all.entry(id).or_default();
            match event {
                Event::Admitted { cached_tokens } => *cached = cached_tokens,
                Event::Token {
                    token, row_hash, ..
                } => rows.push((token, row_hash.unwrap_or(0))),
                Event::Failed(fault) => panic!("request {id}: {fault}"),
                _ => {}
            }
            Delivery::Taken
        };
        let request = Request::new(RequestId(id), prompt, Sampling::greedy(), tokens);
        Ok(self.handle.submit(request, Box::new(sink))?)
    }

    fn finish(&mut self) {
        for _ in 0..50_000 {
            if turn(&mut self.driver) == Turn::Idle {
                self.driver.kv().cache().audit().unwrap();
                assert_eq!(self.handle.stats().kv_used, 0, "blocks are held at the end");
                return;
            }
        }
        panic!("the driver does not come to rest");
    }

    /// Tokens found cached, and the answer.
    fn answer(&self, id: u64) -> (u32, Rows) {
        let answers = self.answers.lock().unwrap();
        let found = answers[&id].clone();
        assert_eq!(found.1.len(), ANSWER as usize, "request {id}");
        found
    }
}

fn text(salt: u32, len: u32) -> Vec<u32> {
    let at = |i: u32| (i * i * 7 + i * 31 + salt * 101 + 3) % VOCAB;
    (0..len).map(at).collect()
}

/// The watched request alone.
fn alone(path: &Path, case: &Case) -> (String, Rows) {
    let mut engine = Running::start(path, case).unwrap();
    engine.submit(1, text(0, PROMPT), ANSWER).unwrap();
    engine.finish();
    (engine.digest.clone(), engine.answer(1).1)
}

/// Every family with every window, in the KV format that is asked for.
fn windows() -> Vec<Kind> {
    let kinds = served(FAMILIES)
        .into_iter()
        .flat_map(|name| WINDOWS.map(|w| (name, w)));
    kinds
        .map(|(name, window)| (name, window, (kv_asked(), None)))
        .collect()
}

/// Runs `body` for each kind, with the rows of a plan without pools of windows.
fn each(kinds: &[Kind], mut body: impl FnMut(&str, &Path, &Case, &Rows)) {
    let can = |(name, ..): &&Kind| !served(&[*name]).is_empty();
    for (name, window, kv) in kinds.iter().filter(can) {
        let copy = windowed(name, *window).unwrap();
        let case = Case::new(*window, *kv);
        let whole = Case { pool: None, ..case };
        let (digest, want) = alone(copy.path(), &whole);
        let (own, got) = alone(copy.path(), &case);
        let what = format!("{name}, window {window}, {kv:?}");
        assert_eq!(got, want, "{what}: a pool of its own changes rows");
        assert_eq!(own, digest, "{what}: paging is no part of the digest");
        body(&what, copy.path(), &case, &want);
    }
}

#[test]
fn chunks_and_a_crowd_leave_no_trace() {
    crowded(&windows());
}

#[test]
fn prefixes_are_resumed_where_their_windows_are() {
    resumed(&windows());
}

#[test]
fn recompute_after_preemption_leaves_no_trace() {
    preempted(&windows(), 0, Lookahead::None, false);
    preempted(&windows(), 0, Lookahead::Late, false);
}

#[test]
fn windows_come_back_from_host_memory() {
    assert!(preempted(&windows(), 1 << 20, Lookahead::None, false) > 0);
    assert!(preempted(&windows(), 64 << 10, Lookahead::Late, false) > 0);
    // Pages whose checksums do not hold: the windows went on already when that is found.
    preempted(&windows(), 1 << 20, Lookahead::None, true);
}

#[test]
fn kv_formats_hold_the_rule() {
    crowded(FORMATS);
    resumed(FORMATS);
    preempted(FORMATS, 0, Lookahead::Late, false);
    assert!(preempted(FORMATS, 1 << 20, Lookahead::None, false) > 0);
}

#[test]
fn every_layer_has_the_format_that_it_is_given() {
    let path = fixture("llama");
    let kinds = [
        (Elem::F32, None),
        (Elem::I8, None),
        (Elem::F8E4M3, None),
        (Elem::F32, Some((0, Elem::I8))),
        (Elem::F32, Some((1, Elem::I8))),
        (Elem::I8, Some((0, Elem::F16))),
    ];
    let seen = kinds.map(|kv| alone(&path, &Case::new(0, kv)));
    for (i, a) in seen.iter().enumerate() {
        for b in &seen[..i] {
            assert_ne!(a.0, b.0, "another format is another digest");
            assert_ne!(a.1, b.1, "{:?} has no effect", kinds[i]);
        }
    }
}

fn crowded(kinds: &[Kind]) {
    each(kinds, |what, path, case, want| {
        for chunk in [1, 16, 50] {
            let case = Case { chunk, ..*case };
            assert_eq!(&alone(path, &case).1, want, "{what}, chunks of {chunk}");
        }
        let drafts = Case {
            drafts: true,
            ..*case
        };
        let mut engine = Running::start(path, &drafts).unwrap();
        engine.submit(1, text(0, PROMPT), ANSWER).unwrap();
        engine.finish();
        assert_eq!(&engine.answer(1).1, want, "{what}, with drafts");
        assert!(
            engine.handle.stats().drafted > 0,
            "{what}: nothing was guessed"
        );
        let mut engine = Running::start(path, case).unwrap();
        for id in 2..12u64 {
            let len = 20 + id as u32 * 17;
            engine.submit(id, text(id as u32, len), ANSWER).unwrap();
            engine.driver.turn();
            if id == 5 {
                engine.submit(1, text(0, PROMPT), ANSWER).unwrap();
            }
        }
        engine.finish();
        assert_eq!(&engine.answer(1).1, want, "{what}, in a crowd");
    });
}

fn resumed(kinds: &[Kind]) {
    each(kinds, |what, path, case, want| {
        let mut engine = Running::start(path, case).unwrap();
        engine.submit(1, text(0, PROMPT), ANSWER).unwrap();
        engine.finish();
        engine.submit(2, text(0, PROMPT), ANSWER).unwrap();
        engine.finish();
        let (cached, rows) = engine.answer(2);
        // With windows, hits end at blocks.
        let reach = match case.pool {
            Some(_) => (PROMPT - 1) / KV_BLOCK * KV_BLOCK,
            None => PROMPT - 1,
        };
        assert_eq!(cached, reach, "{what}");
        assert_eq!(&rows, want, "{what}, the same prompt again");
        // Behind the answer, against an engine that has seen nothing.
        let mut next = text(0, PROMPT);
        next.extend(want.iter().map(|(token, _)| *token));
        next.extend([5, 6, 7]);
        engine.submit(3, next.clone(), ANSWER).unwrap();
        engine.finish();
        let mut fresh = Running::start(path, case).unwrap();
        fresh.submit(3, next, ANSWER).unwrap();
        fresh.finish();
        let (cached, rows) = engine.answer(3);
        assert!(cached >= PROMPT + ANSWER - KV_BLOCK, "{what}: {cached}");
        assert_eq!(rows, fresh.answer(3).1, "{what}, the next turn");
    });
}

/// Pools so small that sequences are preempted and windows of prefixes pushed out.
fn preempted(kinds: &[Kind], host_bytes: u64, lookahead: Lookahead, spoil: bool) -> u64 {
    let mut restored = 0;
    each(kinds, |what, path, case, want| {
        // Less than two of them hold at their full length.
        let blocks = u64::from((PROMPT + ANSWER).div_ceil(KV_BLOCK)) + 12;
        let case = Case {
            blocks,
            host_bytes,
            lookahead,
            ..*case
        };
        let mut engine = Running::start(path, &case).unwrap();
        for round in 0..3u64 {
            for id in 0..5 {
                let salt = (id + round) as u32 % 5;
                let (id, len) = (100 * round + id + 2, 190 - salt * 30);
                engine.submit(id, text(salt, len), ANSWER).unwrap();
            }
            engine
                .submit(1 + 100 * round, text(0, PROMPT), ANSWER)
                .unwrap();
            let tier = engine.driver.router().spill.0.clone();
            let mut spoilt = 0;
            while spoil && engine.driver.turn() != Turn::Idle {
                let preemptions = engine.handle.stats().preemptions;
                if let Some(tier) = tier.as_ref().filter(|_| preemptions > spoilt) {
                    tier.spoil();
                    spoilt = preemptions;
                }
            }
            engine.finish();
            let rows = engine.answer(1 + 100 * round).1;
            assert_eq!(&rows, want, "{what}, round {round}");
        }
        let preemptions = engine.handle.stats().preemptions;
        assert!(preemptions > 0, "{what}: nothing was preempted");
        let tier = engine.driver.router().spill.0.as_ref();
        restored += tier.map_or(0, |t| t.stats().restored);
    });
    restored
}

#[test]
fn a_long_sequence_holds_a_window_of_blocks() {
    each(&windows(), |what, path, case, _| {
        let (window, _) = case.pool.unwrap();
        let case = Case { slots: 1, ..*case };
        let mut engine = Running::start(path, &case).unwrap();
        engine.submit(1, text(0, PROMPT), 180).unwrap();
        let (mut most, mut longest) = (0, 0);
        while engine.driver.turn() != Turn::Idle {
            let cache = engine.driver.kv().cache();
            let (first, held) = cache.window_table(1, 0);
            if engine.answers.lock().unwrap().contains_key(&1) && cache.table(0).len() > 15 {
                most = most.max(held.len() as u32);
                longest = longest.max(first + held.len() as u32);
            }
        }
        // Its window, the block that is being filled, and one that a step planned ahead may have taken.
        let bound = window.div_ceil(KV_BLOCK) + 2;
        assert!(
            most > 0 && most <= bound,
            "{what}: {most} blocks held, {bound} expected"
        );
        assert!(
            longest >= 24,
            "{what}: the sequence ended at block {longest}"
        );
    });
}

/// A published configuration without weights.
fn published(name: &str) -> Prepared {
    let file = format!(
        "{}/../../tests/configs/{name}.json",
        env!("CARGO_MANIFEST_DIR")
    );
    let copy = TempCopy::of(&fixture("llama")).unwrap();
    let folder = copy.path();
    for entry in std::fs::read_dir(folder).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    std::fs::copy(file, folder.join("config.json")).unwrap();
    Prepared::new(&library().unwrap(), Checkpoint::open(folder).unwrap(), &[]).unwrap()
}

/// Eight sequences of 32,768 tokens in steps of 520 rows.
const SERVED: StepLimits = StepLimits {
    rows: 520,
    logits_rows: 8,
    slots: 8,
    blocks_per_slot: 2048,
    tables: 1,
    history: 65_536,
    bias: 64,
    mask_words: 0,
};

#[test]
fn the_plan_of_gemma_3_says_what_its_windows_save() {
    let prepared = published("gemma-3-1b");
    let kv = Elem::BF16.into();
    let pools = KvPools::divide(&prepared.instance, &kv, &SERVED, None);
    // 26 layers, every sixth sees all: 4. One key head of 256; a block of a layer is 2 * 256 * 16 * 2 bytes.
    let layer = 2 * 256 * 16 * 2;
    // Windows of 512 tokens are 32 blocks and two at their ends for each sequence, and the rows of a step: 33 blocks.
    let least = 8 * (32 + 2) + 33;
    let window = WindowPool {
        tokens: 512,
        blocks: 2 * least,
    };
    assert_eq!(pools.blocks, 8 * 2048);
    assert_eq!(pools.windows, [window]);
    assert_eq!(pools.block_bytes, 4 * layer);
    let options = PlanOptions {
        class: "cpu".into(),
        device: None,
        kv,
        limits: SERVED,
        kv_blocks: pools.blocks,
        windows: pools.windows,
        snapshots: 0,
        fuse: true,
    };
    let plan = prepared.plan(&library().unwrap(), &options).unwrap();
    let bytes = plan.memory.arena_bytes(ArenaKind::Kv);
    assert_eq!(bytes, 8 * 2048 * 4 * layer + 2 * least * 22 * layer);
    assert_eq!(bytes + plan.kv_saved_bytes(), 8 * 2048 * 26 * layer);
    let text = plan.memory_text();
    for said in [
        "window of 512: 22 layers, 610 blocks of 360.45 kB",
        "5.69 GB less than without windows",
        "16 block tables of 2048 entries",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
}

/// Mistral's configurations: the key left out is Transformers' 4096, null is none. Mixtral's: both are none.
#[test]
fn a_window_left_out_is_not_one_that_is_null() {
    let window_of = |name: &str, change: &dyn Fn(&str) -> String| {
        let copy = windowed(name, 8).unwrap();
        let file = copy.path().join("config.json");
        let config = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, change(&config)).unwrap();
        let checkpoint = Checkpoint::open(copy.path()).unwrap();
        let prepared = Prepared::new(&library().unwrap(), checkpoint, &[]).unwrap();
        prepared.instance.window(0)
    };
    let window = |change: &dyn Fn(&str) -> String| window_of("mistral", change);
    let none = "\"sliding_window\": null,";
    assert_eq!(window_of("mixtral", &|c| c.replace(none, "")), None);
    let given = "\"sliding_window\": 8,";
    assert_eq!(window(&|c| c.to_owned()), Some(8));
    assert_eq!(
        window(&|c| c.replace(given, "\"sliding_window\": null,")),
        None
    );
    assert_eq!(window(&|c| c.replace(given, "")), Some(4096));
}

#[test]
fn memory_goes_to_a_window_only_where_that_saves_some() {
    let (gemma, mistral) = (published("gemma-3-1b"), published("mistral-7b-v0.1"));
    let kv = Elem::BF16.into();
    let divide = |prepared: &Prepared, limits, room| {
        KvPools::divide(&prepared.instance, &kv, &limits, Some(room))
    };
    let layer = 2 * 256 * 16 * 2;
    // Short of memory: an eighth of what the windows leave is for those of prefixes.
    let room = (305 * 22 + 40_000) * layer;
    let pools = divide(&gemma, SERVED, room);
    assert_eq!(pools.blocks, (40_000 - 5_000) / 4);
    assert_eq!(pools.windows[0].blocks, 305 + 305 * 5_000 / (305 * 22));
    // Fewer blocks than the windows of all slots take: all layers share them.
    let pools = divide(&gemma, SERVED, 300 * 26 * layer);
    assert_eq!((pools.blocks, pools.windows), (300, Vec::new()));
    // A context no longer than the window.
    let short = StepLimits {
        blocks_per_slot: 32,
        ..SERVED
    };
    assert_eq!(divide(&gemma, short, 1 << 40).windows, []);
    // Every layer has a window of 4096: what is cached is accounted for, and costs the windows alone.
    let pools = divide(&mistral, SERVED, 1 << 40);
    assert_eq!((pools.block_bytes, pools.blocks), (0, 2 * 8 * 2048));
    assert_eq!(pools.windows[0].blocks, 2 * (8 * (256 + 2) + 33));
}
