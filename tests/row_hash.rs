// SPDX-License-Identifier: MIT OR Apache-2.0
//! The test that guards the design: an answer is a function of its request alone.
//!
//! One request (prompt, seed, sampling) runs through the real engine under every circumstance that must not matter: alone,
//! in a crowd, in chunks of any size, after a prefix hit on an earlier answer, after a forced recompute, on one thread or
//! two, on the portable path or the vector one, fused or not, in another process. The hashes of all its logits rows must be
//! equal each time.

mod support;

use std::process::Command;
use std::sync::{Arc, Mutex};

use metrale_core::{Elem, KV_BLOCK};
use metrale_gpu_runtime::Isa;
use metrale_model_engine::EngineOptions;
use metrale_model_engine::adapters::Guess;
use metrale_model_engine::engine::{EngineDriver, step_limits};
use metrale_sampling::{Sampling, SamplingFields};
use metrale_scheduler::{
    Delivery, Event, FinishReason, Handle, PlannerLimits, Request, RequestId, Stats, Turn,
};
use support::serving::{populated, turn};
use support::{Result, Setup, dummy, fixture, on_gpu, served};

/// Families, weight formats with arithmetic of their own, and heads of 64 and 128 columns, which GPU classes have kernels for.
const FIXTURES: &[&str] = &[
    "llama",
    "llama-hd64",
    "llama3-rope-gguf",
    "qwen3",
    "qwen3-tied",
    "qwen3-wide",
    "llama-gguf-q8_0",
    "qwen3-gguf-q4_0",
    "qwen2",
    "phi3",
    "mistral",
    "granite",
    "olmo2",
    "gemma2",
    "gemma3",
    "qwen3-moe",
    "mixtral",
    "gpt-oss-mxfp4",
    "deepseek-v3",
    "qwen3-next",
    "qwen3-5",
    "mamba2",
    "nemotron-h",
    "qwen3-fp8-block",
    "llama-fp8-channel",
    "qwen2-gguf",
    "phi3-gguf",
    "granite-gguf",
    "olmo2-gguf",
    "gemma2-gguf",
    "gemma3-gguf",
    "qwen3-moe-gguf",
    "mixtral-gguf",
    "gpt-oss-gguf",
    "deepseek-v3-gguf",
    "mamba2-gguf",
];
/// SmolLM2-135M's shape (hidden 576, 9 query and 3 key heads of 64, feed-forward 1536, vocabulary 49152, tied) with made
/// weights: all 30 layers on a GPU, two on a processor, whose time goes into the head then.
const DUMMY: &str = "smollm2-135m";
/// Those whose prefixes are resumed at snapshots alone.
const RECURRENT: &[&str] = &[
    "qwen3-next",
    "qwen3-5",
    "mamba2",
    "nemotron-h",
    "mamba2-gguf",
];
const PROMPT: u32 = 45;
const ANSWER: u32 = 24;
/// Tokens of the smallest vocabulary among them.
const VOCAB: u32 = 128;

/// The fixtures that the device serves, and the dummy: for rows, chunks, cache hits and restarts. (Its loads are long: elsewhere the
/// fixtures have to do.)
fn models() -> Vec<&'static str> {
    let mut names = served(FIXTURES);
    names.push(DUMMY);
    names
}

/// Tokens of an answer with the hash of the logits row behind each.
type Answer = Vec<(u32, u64)>;

/// What one run of the engine looks like.
#[derive(Clone)]
struct Case {
    setup: Setup,
    limits: PlannerLimits,
    /// Whether rows are hashed; without, steps may be taken ahead of the tokens of the one before.
    hashes: bool,
    /// Whether tokens are guessed.
    guess: Option<Guess>,
}

fn case() -> Case {
    sized(64, 256)
}

fn sized(chunk: u32, kv_blocks: u64) -> Case {
    let limits = PlannerLimits {
        max_num_seqs: 17,
        max_prefill_tokens: chunk,
        max_rows: chunk + 17,
        max_logits_rows: 17,
        max_seq_len: 256,
        max_history: 4096,
        max_bias: 64,
        ..PlannerLimits::default()
    };
    let step = step_limits(&limits);
    Case {
        setup: Setup::new(step, kv_blocks),
        limits,
        hashes: true,
        guess: None,
    }
}

fn prompt(salt: u32, len: u32) -> Vec<u32> {
    (0..len)
        .map(|i| (i * i * 7 + i * 31 + salt * 101 + 3) % VOCAB)
        .collect()
}

/// The watched request: temperature, top-p and a penalty, so that history and draws are part of what must not change.
fn watched(id: u64) -> Result<Request<Sampling>> {
    let fields = SamplingFields {
        temperature: 0.8,
        top_p: 0.95,
        repetition_penalty: 1.1,
        ..SamplingFields::default()
    };
    let sampling = Sampling::new(&fields, 42)?;
    let mut request = Request::new(RequestId(id), prompt(0, PROMPT), sampling, ANSWER);
    request.history = sampling.needs_history();
    Ok(request)
}

fn other(id: u64, len: u32, tokens: u32) -> Request<Sampling> {
    Request::new(
        RequestId(id),
        prompt(id as u32, len),
        Sampling::greedy(),
        tokens,
    )
}

struct Running {
    driver: EngineDriver,
    // The driver drains when its last handle is dropped.
    handle: Handle<Sampling>,
    _populator: metrale_model_engine::engine::Populator,
    answers: Arc<Mutex<Vec<(u64, Answer, bool)>>>,
    cached: Arc<Mutex<u32>>,
}

impl Running {
    fn start(name: &str, case: &Case) -> Result<Running> {
        let path = fixture(name);
        let gguf = path.join("model.gguf");
        let model = match (name, gguf.exists()) {
            (DUMMY, _) => {
                let layers = if on_gpu() { 30 } else { 2 };
                let prepared = dummy(DUMMY, layers)?;
                case.setup.load_prepared(&prepared, case.setup.backend()?)?
            }
            (_, true) => case.setup.load(&gguf)?,
            (_, false) => case.setup.load(&path)?,
        };
        let options = EngineOptions {
            limits: case.limits.clone(),
            row_hashes: case.hashes,
            snapshot_every: KV_BLOCK,
            guess: case.guess,
            ..EngineOptions::default()
        };
        let (driver, populator) = populated(model, options)?;
        let handle = driver.handle();
        Ok(Running {
            driver,
            handle,
            _populator: populator,
            answers: Arc::default(),
            cached: Arc::default(),
        })
    }

    fn submit(&self, request: Request<Sampling>) -> Result<()> {
        let id = request.id.0;
        let (answers, cached) = (Arc::clone(&self.answers), Arc::clone(&self.cached));
        let mut answer = Answer::new();
        let sink = move |event| {
            match event {
                Event::Admitted { cached_tokens } => {
                    *cached.lock().unwrap_or_else(|e| e.into_inner()) = cached_tokens
                }
                Event::Token {
                    token, row_hash, ..
                } => answer.push((token, row_hash.unwrap_or(0))),
                Event::Finished { reason, .. } => {
                    let full = reason == FinishReason::Length;
                    let mut answers = answers.lock().unwrap_or_else(|e| e.into_inner());
                    answers.push((id, std::mem::take(&mut answer), full));
                }
                _ => {}
            }
            Delivery::Taken
        };
        Ok(self.handle.submit(request, Box::new(sink))?)
    }

    fn finish(&mut self) {
        // A request needs at most its rows in steps, and some for queueing.
        for _ in 0..20_000 {
            if turn(&mut self.driver) == Turn::Idle {
                return;
            }
        }
        panic!("the driver does not come to rest");
    }

    fn answer(&self, id: u64) -> Result<Answer> {
        let answers = self.answers.lock().map_err(|e| e.to_string())?;
        let found = answers.iter().find(|(i, ..)| *i == id);
        let (_, answer, full) = found.ok_or("the request has not finished")?;
        assert!(
            *full && answer.len() == ANSWER as usize,
            "{} tokens",
            answer.len()
        );
        Ok(answer.clone())
    }
}

fn alone(name: &str, case: &Case) -> Result<Answer> {
    let mut engine = Running::start(name, case)?;
    engine.submit(watched(1)?)?;
    engine.finish();
    engine.answer(1)
}

fn check(what: &str, name: &str, want: &Answer, got: &Answer) {
    let first = want.iter().zip(got).position(|(a, b)| a != b);
    assert_eq!(
        first, None,
        "{name}, {what}: rows differ from row {first:?} on"
    );
}

#[test]
fn chunk_sizes_leave_no_trace() {
    for name in models() {
        let want = alone(name, &case()).unwrap();
        for chunk in [1, 7, 16] {
            check(
                &format!("chunks of {chunk}"),
                name,
                &want,
                &alone(name, &sized(chunk, 256)).unwrap(),
            );
        }
    }
}

#[test]
fn threads_instruction_sets_and_fusion_leave_no_trace() {
    for name in served(FIXTURES) {
        let want = alone(name, &case()).unwrap();
        for (what, change) in [
            ("one thread", (|s| s.threads = 1) as fn(&mut Setup)),
            ("portable", |s| s.isa = Some(Isa::PORTABLE)),
            ("portable, one thread, unfused", |s| {
                s.isa = Some(Isa::PORTABLE);
                s.threads = 1;
                s.fuse = false;
            }),
        ] {
            let mut case = case();
            change(&mut case.setup);
            // Fused kernels of a GPU may have bits, and a digest, of their own.
            if on_gpu() && !case.setup.fuse {
                continue;
            }
            check(what, name, &want, &alone(name, &case).unwrap());
        }
    }
}

#[test]
fn a_crowd_of_sixteen_leaves_no_trace() {
    for name in models() {
        let want = alone(name, &case()).unwrap();
        for chunk in [7, 64] {
            let mut engine = Running::start(name, &sized(chunk, 256)).unwrap();
            for id in 2..9 {
                engine
                    .submit(other(id, id as u32 * 9, 10 + id as u32))
                    .unwrap();
            }
            // Some are well into decode when the watched request arrives, some come after it.
            for _ in 0..5 {
                engine.driver.turn();
            }
            engine.submit(watched(1).unwrap()).unwrap();
            for id in 9..18 {
                engine.submit(other(id, id as u32 * 4, 40)).unwrap();
            }
            engine.finish();
            check(
                &format!("crowd, chunks of {chunk}"),
                name,
                &want,
                &engine.answer(1).unwrap(),
            );
        }
    }
}

#[test]
fn a_prefix_hit_on_an_earlier_answer_leaves_no_trace() {
    for name in models() {
        let want = alone(name, &case()).unwrap();
        let mut engine = Running::start(name, &case()).unwrap();
        engine.submit(watched(1).unwrap()).unwrap();
        engine.finish();
        check("first turn", name, &want, &engine.answer(1).unwrap());
        // The same prompt again: all of it but the last token is cached.
        engine.submit(watched(2).unwrap()).unwrap();
        engine.finish();
        // Of a recurrent model, up to the last snapshot before that.
        let reach = match RECURRENT.contains(&name) {
            true => (PROMPT - 1) / KV_BLOCK * KV_BLOCK,
            false => PROMPT - 1,
        };
        assert_eq!(*engine.cached.lock().unwrap(), reach, "{name}");
        check("same prompt again", name, &want, &engine.answer(2).unwrap());
        // The next turn of the conversation, against an engine that has seen nothing.
        let next = |id| {
            let mut request = watched(id).unwrap();
            let answer = want.iter().map(|(token, _)| *token);
            request.prompt = prompt(0, PROMPT)
                .into_iter()
                .chain(answer)
                .chain([5, 6, 7])
                .collect();
            request
        };
        engine.submit(next(3)).unwrap();
        engine.finish();
        let cached = *engine.cached.lock().unwrap();
        assert!(
            cached >= PROMPT + ANSWER - KV_BLOCK,
            "only {cached} tokens of the first turn were found"
        );
        let mut fresh = Running::start(name, &case()).unwrap();
        fresh.submit(next(3)).unwrap();
        fresh.finish();
        assert_eq!(*fresh.cached.lock().unwrap(), 0);
        check(
            "next turn",
            name,
            &fresh.answer(3).unwrap(),
            &engine.answer(3).unwrap(),
        );
    }
}

/// A device that keeps its tokens takes step n+1 while the host does not know those of n: the same tokens, alone, in a crowd
/// and after preemption. (Elsewhere the same runs again without hashes.)
#[test]
fn steps_ahead_of_their_tokens_leave_no_trace() {
    for name in served(FIXTURES) {
        let tokens = |answer: Answer| answer.into_iter().map(|(t, _)| t).collect::<Vec<_>>();
        let want = tokens(alone(name, &case()).unwrap());
        for (chunk, blocks) in [(64, 256), (7, 256), (64, 12)] {
            let mut case = sized(chunk, blocks);
            case.hashes = false;
            assert_eq!(tokens(alone(name, &case).unwrap()), want, "{name}, alone");
            let mut engine = Running::start(name, &case).unwrap();
            for id in 2..5 {
                engine.submit(other(id, 40, 20 + id as u32)).unwrap();
            }
            for _ in 0..5 {
                engine.driver.turn();
            }
            engine.submit(watched(1).unwrap()).unwrap();
            engine.finish();
            let got = tokens(engine.answer(1).unwrap());
            assert_eq!(
                got, want,
                "{name}, crowd, chunks of {chunk}, {blocks} blocks"
            );
        }
    }
}

/// Guesses that are right in part: what prompt lookup finds, then tokens of no reason.
fn guess(text: &[u32], most: u32, drafts: &mut Vec<u32>) {
    metrale_speculative::ngram(text, most / 2, drafts);
    drafts.extend((0..most).map(|i| (i * 13 + text.len() as u32) % VOCAB));
}

/// Greedy, whose answers repeat themselves, and drawn; with and without a crowd in which sequences are preempted.
#[test]
fn drafts_leave_no_trace() {
    let drawn = |id| -> Result<Request<Sampling>> {
        let fields = SamplingFields {
            temperature: 0.7,
            top_k: 3,
            ..SamplingFields::default()
        };
        let sampling = Sampling::new(&fields, 7)?;
        Ok(Request::new(
            RequestId(id),
            prompt(0, PROMPT),
            sampling,
            ANSWER,
        ))
    };
    let mut accepted = 0;
    for name in served(FIXTURES) {
        for greedy in [true, false] {
            let asked = |id| match greedy {
                true => Ok(other(id, PROMPT, ANSWER)),
                false => drawn(id),
            };
            let answer = |case: &Case, crowd: u64| -> Result<(Answer, Stats)> {
                let mut engine = Running::start(name, case)?;
                for id in 2..2 + crowd {
                    engine.submit(other(id, 30 + id as u32, 60))?;
                }
                let mut asked = asked(1)?;
                asked.prompt = prompt(1, PROMPT).into();
                engine.submit(asked)?;
                engine.finish();
                Ok((engine.answer(1)?, engine.handle.stats()))
            };
            let (want, _) = answer(&case(), 0).unwrap();
            for (case, crowd) in [(case(), 0), (case(), 5), (sized(64, 20), 5)] {
                let limits = PlannerLimits {
                    max_drafts: 6,
                    max_logits_rows: 17,
                    ..case.limits.clone()
                };
                let case = Case {
                    limits,
                    guess: Some(guess),
                    ..case
                };
                let (got, stats) = answer(&case, crowd).unwrap();
                check("drafts", name, &want, &got);
                let recurrent = RECURRENT.contains(&name);
                assert_eq!(stats.drafted == 0, recurrent, "{name}: {stats:?}");
                accepted += stats.accepted;
            }
        }
    }
    assert!(accepted > 100, "{accepted} drafts were right");
}

#[test]
fn recompute_after_preemption_leaves_no_trace() {
    for name in served(FIXTURES) {
        let want = alone(name, &case()).unwrap();
        // 12 blocks hold two such sequences at their full length (5 blocks each), not three.
        let mut engine = Running::start(name, &sized(64, 12)).unwrap();
        for id in 2..5 {
            engine.submit(other(id, 40, 29)).unwrap();
        }
        engine.submit(watched(1).unwrap()).unwrap();
        engine.finish();
        let preemptions = engine.handle.stats().preemptions;
        assert!(
            preemptions > 0,
            "{name}: nothing was preempted, the case does not test what it says"
        );
        check("preempted", name, &want, &engine.answer(1).unwrap());
    }
}

/// In the environment of the other process.
const OTHER: &str = "TEST_ROW_HASH_OTHER";

/// A second engine of this process, and the same test in a process of its own.
#[test]
fn restarts_leave_no_trace() {
    let told = models().into_iter().map(|name| {
        let answer = alone(name, &case()).unwrap();
        (name, answer)
    });
    let line = |name: &str, answer: &Answer| format!("answer of {name}: {answer:?}");
    if std::env::var_os(OTHER).is_some() {
        told.for_each(|(name, answer)| println!("\n{}", line(name, &answer)));
        return;
    }
    let told: Vec<(&str, Answer)> = told.collect();
    let other = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "restarts_leave_no_trace", "--nocapture"])
        .env(OTHER, "1")
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&other.stdout);
    assert!(other.status.success(), "{out}");
    for (name, answer) in told {
        let again = alone(name, &case()).unwrap();
        check("a second engine", name, &answer, &again);
        let line = line(name, &answer);
        assert!(out.lines().any(|l| l == line), "{name}: {out}");
    }
}

#[test]
fn kv_formats_differ_from_each_other_and_hold_the_rule_within() {
    let mut seen: Vec<Answer> = Vec::new();
    for kv in [Elem::F32, Elem::BF16, Elem::F16] {
        let mut whole = case();
        whole.setup.kv = kv.into();
        let mut pieces = sized(7, 256);
        pieces.setup.kv = kv.into();
        pieces.setup.isa = Some(Isa::PORTABLE);
        let want = alone("llama", &whole).unwrap();
        check(kv.name(), "llama", &want, &alone("llama", &pieces).unwrap());
        assert!(
            !seen.contains(&want),
            "{kv}: the format of the pool has no effect"
        );
        seen.push(want);
    }
}
