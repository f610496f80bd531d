// SPDX-License-Identifier: MIT OR Apache-2.0
//! Masked requests through the real engine: an answer under a constraint is a function of its request alone too, and every
//! token of it is one that its mask allows. With `TEST_DEVICE=cuda`, on CUDA device 0.

mod support;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use metrale_core::KV_BLOCK;
use metrale_model_engine::EngineOptions;
use metrale_model_engine::adapters::Guess;
use metrale_model_engine::engine::step_limits;
use metrale_sampling::{Sampling, SamplingFields};
use metrale_scheduler::{
    ConstraintError, Delivery, Event, Fault, FaultKind, FixedMask, PlannerLimits, Request,
    RequestId, Stats, Text, TokenConstraint, TokenMask, Turn,
};
use support::serving::{populated, turn};
use support::{Result, Setup, fixture, served};

/// Vocabularies that are a multiple of 32 and ones that are not, attention with and without windows, recurrent layers, experts.
const FIXTURES: &[&str] = &[
    "qwen3-wide",
    "llama-hd64",
    "llama-gguf-q8_0",
    "gemma3",
    "mamba2",
    "gpt-oss-mxfp4",
];
const ANSWER: u32 = 24;
/// Tokens of the smallest vocabulary among them.
const VOCAB: u32 = 128;
/// Tokens that the masks know: more than some vocabularies hold, fewer than others.
const KNOWN: u32 = 600;

/// Never two tokens in a row of the same remainder by three.
#[derive(Debug)]
struct Alternating {
    last: u32,
    mask: TokenMask,
}

impl TokenConstraint for Alternating {
    fn mask(&mut self) -> std::result::Result<TokenMask, ConstraintError> {
        let last = self.last;
        let words = self.mask.words_mut();
        words.fill(0);
        for token in (0..KNOWN).filter(|t| t % 3 != last % 3) {
            words[(token / 32) as usize] |= 1 << (token % 32);
        }
        Ok(self.mask.clone())
    }

    fn accept(&mut self, token: u32) -> std::result::Result<Text, ConstraintError> {
        self.last = token;
        Ok(Text::Open)
    }

    fn fork(&self) -> Box<dyn TokenConstraint> {
        alternating(self.last)
    }
}

fn alternating(last: u32) -> Box<dyn TokenConstraint> {
    let mask = TokenMask::all(KNOWN);
    Box::new(Alternating { last, mask })
}

/// About three tokens of seven.
fn some() -> TokenMask {
    let tokens: Vec<u32> = (0..KNOWN).filter(|t| (t * t + t / 9) % 7 < 3).collect();
    TokenMask::only(KNOWN, &tokens)
}

#[derive(Clone)]
struct Case {
    setup: Setup,
    limits: PlannerLimits,
    hashes: bool,
    guess: Option<Guess>,
}

fn case(chunk: u32, kv_blocks: u64) -> Case {
    let limits = PlannerLimits {
        max_num_seqs: 9,
        max_prefill_tokens: chunk,
        max_rows: chunk + 9,
        max_logits_rows: 9,
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

fn request(id: u64, fields: SamplingFields) -> Result<Request<Sampling>> {
    let sampling = Sampling::new(&fields, 40 + id)?;
    let prompt: Vec<u32> = (0..20 + id as u32 * 5)
        .map(|i| (i * i * 7 + i * 31 + id as u32 * 101 + 3) % VOCAB)
        .collect();
    let mut request = Request::new(RequestId(id), prompt, sampling, ANSWER);
    request.history = sampling.needs_history();
    Ok(request)
}

const GREEDY: f64 = 0.0;

/// Fixed and moving masks with every kind of sampling; numbers from 1 to [`MASKED`].
fn masked(id: u64) -> Result<Request<Sampling>> {
    let temperature = [GREEDY, 0.8, 0.9, GREEDY, GREEDY, 1.2][id as usize % 6];
    let fields = SamplingFields {
        temperature,
        top_p: if id % 6 == 1 { 0.95 } else { 1.0 },
        top_k: if id % 6 == 2 { 40 } else { 0 },
        min_p: if id % 6 == 5 { 0.02 } else { 0.0 },
        repetition_penalty: if id % 2 == 1 { 1.1 } else { 1.0 },
        ..SamplingFields::default()
    };
    let mut request = request(id, fields)?;
    request.constraint = Some(match moves(id) {
        true => alternating(0),
        false => Box::new(FixedMask(some())),
    });
    if id == 4 {
        // What is not allowed is not drawn, whatever its bias.
        let banned = (0..VOCAB).find(|t| !some().allows(*t)).unwrap_or_default();
        request.bias = [(banned, 100.0)].into();
    }
    Ok(request)
}

const MASKED: u64 = 6;

fn moves(id: u64) -> bool {
    id % 3 == 2 || id == 3
}

fn plain(id: u64) -> Result<Request<Sampling>> {
    request(
        id,
        SamplingFields {
            temperature: GREEDY,
            ..SamplingFields::default()
        },
    )
}

/// Tokens with the hash of the logits row behind each; how it failed, if it did.
type Answer = (Vec<(u32, u64)>, Option<Fault>);

/// Runs the requests in order on one engine, each group when the one before has ended.
fn run(
    name: &str,
    case: &Case,
    groups: &[&[Request<Sampling>]],
) -> Result<(BTreeMap<u64, Answer>, Stats)> {
    let path = fixture(name);
    let gguf = path.join("model.gguf");
    let model = case.setup.load(if gguf.exists() { &gguf } else { &path })?;
    let options = EngineOptions {
        limits: case.limits.clone(),
        row_hashes: case.hashes,
        snapshot_every: KV_BLOCK,
        guess: case.guess,
        ..EngineOptions::default()
    };
    let (mut driver, _populator) = populated(model, options)?;
    let handle = driver.handle();
    let answers: Arc<Mutex<BTreeMap<u64, Answer>>> = Arc::default();
    for group in groups {
        for request in *group {
            let (id, answers) = (request.id.0, Arc::clone(&answers));
            let mut tokens = Vec::new();
            let sink = move |event| {
                let end = match event {
                    Event::Token {
                        token, row_hash, ..
                    } => {
                        tokens.push((token, row_hash.unwrap_or(0)));
                        return Delivery::Taken;
                    }
                    Event::Finished { .. } => None,
                    Event::Failed(fault) => Some(fault),
                    _ => return Delivery::Taken,
                };
                let mut answers = answers.lock().unwrap_or_else(|e| e.into_inner());
                answers.insert(id, (std::mem::take(&mut tokens), end));
                Delivery::Taken
            };
            handle.submit(request.clone(), Box::new(sink))?;
        }
        let rest = (0..20_000).any(|_| turn(&mut driver) == Turn::Idle);
        assert!(rest, "the driver does not come to rest");
    }
    let answers = answers.lock().map_err(|e| e.to_string())?.clone();
    Ok((answers, handle.stats()))
}

fn tokens(answer: &Answer) -> Vec<u32> {
    answer.0.iter().map(|(token, _)| *token).collect()
}

/// Each masked request alone, on an engine of its own.
fn alone(name: &str) -> Result<BTreeMap<u64, Answer>> {
    let mut all = BTreeMap::new();
    for id in 1..=MASKED {
        all.extend(run(name, &case(64, 256), &[&[masked(id)?]])?.0);
    }
    Ok(all)
}

fn everyone() -> Result<Vec<Request<Sampling>>> {
    let masked = (1..=MASKED).map(masked);
    masked.chain((7..=9).map(plain)).collect()
}

/// Guesses that are right in part: what prompt lookup finds, then tokens of no reason.
fn guess(text: &[u32], most: u32, drafts: &mut Vec<u32>) {
    metrale_speculative::ngram(text, most / 2, drafts);
    drafts.extend((0..most).map(|i| (i * 13 + text.len() as u32) % VOCAB));
}

#[test]
fn masks_leave_no_trace() {
    let mut drafted = 0;
    for name in served(FIXTURES) {
        let want = alone(name).unwrap();
        for (id, answer) in &want {
            assert_eq!((answer.0.len(), &answer.1), (ANSWER as usize, &None));
            let drawn = tokens(answer);
            match moves(*id) {
                false => assert!(drawn.iter().all(|t| some().allows(*t)), "{name} {id}"),
                true => assert!(
                    !drawn[0].is_multiple_of(3) && drawn.windows(2).all(|w| w[0] % 3 != w[1] % 3),
                    "{name} {id}: {drawn:?}"
                ),
            }
        }
        let same = |what: &str, got: &BTreeMap<u64, Answer>| {
            for (id, want) in &want {
                assert_eq!(got[id], *want, "{name}, {what}: request {id}");
            }
        };
        let crowd = everyone().unwrap();
        for chunk in [7, 64] {
            let (got, _) = run(name, &case(chunk, 256), &[&crowd]).unwrap();
            same("crowd", &got);
        }
        // The prompts again, which are cached then.
        let twice: [&[_]; 2] = [&crowd, &crowd];
        same("again", &run(name, &case(64, 256), &twice).unwrap().0);
        let (got, stats) = run(name, &case(64, 14), &[&crowd]).unwrap();
        assert!(stats.preemptions > 0, "{name}: nothing was preempted");
        same("preempted", &got);
        // Ahead of the tokens, where the device takes steps so.
        let mut ahead = case(64, 256);
        ahead.hashes = false;
        let (got, _) = run(name, &ahead, &[&crowd]).unwrap();
        for (id, want) in &want {
            assert_eq!(tokens(&got[id]), tokens(want), "{name}, ahead: {id}");
        }
        let mut speculating = case(64, 40);
        speculating.limits.max_drafts = 4;
        // Room for drafts beside a row of everyone.
        (
            speculating.limits.max_logits_rows,
            speculating.setup.limits.logits_rows,
        ) = (24, 24);
        speculating.guess = Some(guess);
        let (got, _) = run(name, &speculating, &[&crowd]).unwrap();
        same("drafts", &got);
        // Alone, so that all that is drafted is of a masked request.
        let (got, alone) = run(name, &speculating, &[&[masked(6).unwrap()]]).unwrap();
        assert_eq!(got[&6], want[&6], "{name}, drafts alone");
        drafted += alone.drafted;
    }
    assert!(
        drafted > 50,
        "{drafted} drafts of a request with a fixed mask"
    );
}

#[test]
fn a_mask_that_allows_all_changes_no_token_and_no_row() {
    for name in served(FIXTURES) {
        for id in [1, 2, 6] {
            let free = |mut request: Request<Sampling>| {
                request.constraint = None;
                request
            };
            let all = |mut request: Request<Sampling>| {
                request.constraint = Some(Box::new(FixedMask(TokenMask::all(1 << 20))));
                request
            };
            let answer = |request| run(name, &case(64, 256), &[&[request]]).unwrap().0;
            let want = answer(free(masked(id).unwrap()));
            assert_eq!(answer(all(masked(id).unwrap())), want, "{name} {id}");
        }
    }
}

/// A mask of tokens that the model does not have: the request fails, and says why; the others of the step do not notice.
#[test]
fn a_mask_that_allows_no_token_of_the_vocabulary_fails_its_request_alone() {
    for name in served(FIXTURES) {
        let want = run(name, &case(64, 256), &[&[plain(8).unwrap()]]).unwrap();
        for id in [1, 3, 4] {
            let mut request = masked(id).unwrap();
            let nothing = TokenMask::only(1 << 20, &[(1 << 20) - 1]);
            request.constraint = Some(Box::new(FixedMask(nothing)));
            let both = [request, plain(8).unwrap()];
            let (got, stats) = run(name, &case(64, 256), &[&both]).unwrap();
            let Some(fault) = &got[&id].1 else {
                panic!("{name} {id} does not fail: {:?}", got[&id]);
            };
            assert_eq!(fault.kind, FaultKind::NoToken);
            assert!(fault.what.contains("masked"), "{fault}");
            assert_eq!(got[&8], want.0[&8], "{name} {id}");
            assert_eq!(stats.restarts, 0);
        }
    }
}
