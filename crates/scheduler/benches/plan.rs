// SPDX-License-Identifier: MIT OR Apache-2.0
//! Planning at 256 running sequences: one decode row each, over the real cache; and the same with the outcome applied.
//! Target (issue "serving core"): at most 20 us median to plan a step.
//!
//! `cargo bench -p metrale-scheduler`

#![allow(missing_docs, reason = "criterion's macros make public items")]
#![allow(clippy::unwrap_used, reason = "a panic is how a benchmark fails")]

#[path = "../tests/common/mod.rs"]
mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::kv::Kv;
use common::rig::{prompt, request};
use criterion::{Criterion, criterion_group, criterion_main};
use metrale_scheduler::{
    DraftRouter, Effect, Lookahead, NoSpill, Planner, PlannerLimits, Request, RequestId,
    RowOutcome, StepOutcome,
};

const RUNNING: u32 = 256;
const LEN: u32 = 4096;

struct State {
    planner: Planner<u64>,
    kv: Kv,
    effects: Vec<Effect>,
    outcome: StepOutcome,
}

impl State {
    /// All prompts done, every sequence decoding, and bringing so many drafts.
    fn new(max_drafts: u32) -> State {
        let limits = PlannerLimits {
            max_num_seqs: RUNNING,
            max_rows: (2 + max_drafts) * RUNNING,
            max_logits_rows: (1 + max_drafts) * RUNNING,
            max_drafts,
            max_seq_len: LEN,
            queue_len: RUNNING as usize,
            ..PlannerLimits::default()
        };
        let kv = Kv::new(RUNNING * LEN / common::BLOCK, RUNNING);
        let mut planner = Planner::new(limits, &kv).unwrap();
        for id in 0..u64::from(RUNNING) {
            let r = Request {
                stop_tokens: Arc::default(),
                ..request(id, prompt(id as u32, 16 + id as u32 % 16), LEN)
            };
            planner.submit(r, Duration::ZERO).unwrap();
        }
        let mut state = State {
            planner,
            kv,
            effects: Vec::new(),
            outcome: StepOutcome::default(),
        };
        while state.step().1 < RUNNING as usize {}
        state
    }

    /// Plans a step and leaves it in flight.
    fn submit(&mut self) {
        let now = Duration::from_secs(1);
        let plan = self
            .planner
            .plan(now, &mut self.kv, &mut NoSpill, &mut self.effects);
        self.outcome.clear();
        for row in &plan.unwrap().logits {
            let token = (row.position * 31 + row.slot) % 60;
            self.outcome.push(RowOutcome::new(token, -1.0), []);
        }
    }

    /// One step with the next planned meanwhile; the times that planning and resolving took.
    fn step_ahead(&mut self) -> (Duration, Duration) {
        self.effects.clear();
        let State {
            planner,
            kv,
            effects,
            outcome,
        } = self;
        let start = Instant::now();
        let plan = planner.plan_ahead(Lookahead::Late, kv, &mut NoSpill, effects);
        assert!(plan.is_some());
        let ahead = start.elapsed();
        planner.apply(outcome, kv, effects).unwrap();
        let start = Instant::now();
        let plan = planner.resolve(kv, &mut NoSpill, effects).unwrap();
        let resolved = start.elapsed();
        outcome.clear();
        for row in &plan.logits {
            let token = (row.position * 31 + row.slot) % 60;
            outcome.push(RowOutcome::new(token, -1.0), []);
        }
        (ahead, resolved)
    }

    /// One step; the time that planning took, and how many rows drew a token.
    fn step(&mut self) -> (Duration, usize) {
        self.effects.clear();
        self.outcome.clear();
        self.planner.draft(&mut Echo);
        let start = Instant::now();
        let now = Duration::from_secs(1);
        let plan = self
            .planner
            .plan(now, &mut self.kv, &mut NoSpill, &mut self.effects);
        let planned = start.elapsed();
        let logits = &plan.unwrap().logits;
        let drew = logits.len();
        for row in logits {
            let token = (row.position * 31 + row.slot) % 60;
            self.outcome.push(RowOutcome::new(token, -1.0), []);
        }
        self.planner
            .apply(&self.outcome, &mut self.kv, &mut self.effects)
            .unwrap();
        (planned, drew)
    }
}

/// Guesses what is answered here, of which every fourth is wrong.
struct Echo;

impl DraftRouter for Echo {
    fn draft(&mut self, request: RequestId, text: &[u32], most: u32, drafts: &mut Vec<u32>) {
        let next = text.len() as u32..text.len() as u32 + most;
        drafts.extend(next.map(|at| (at * 31 + request.0 as u32) % 60 + u32::from(at % 4 == 0)));
    }
}

fn plan(c: &mut Criterion) {
    percentiles();
    let mut group = c.benchmark_group("256 running");
    group.bench_function("plan a step", |b| {
        b.iter_custom(|iters| run(iters, |state| state.step().0));
    });
    group.bench_function("plan and apply a step", |b| {
        b.iter_custom(|iters| {
            run(iters, |state| {
                let start = Instant::now();
                state.step();
                start.elapsed()
            })
        });
    });
    group.finish();
}

/// Median and 99th percentile of planning, which criterion does not give: with the step before applied, and one step ahead
/// (planning while it runs; filling the plan when it is applied).
#[allow(clippy::print_stdout, reason = "a benchmark tells what it measured")]
fn percentiles() {
    let show = |what: &str, mut times: Vec<Duration>| {
        times.sort_unstable();
        let at = |share: f64| times[(times.len() as f64 * share) as usize].as_secs_f64() * 1e6;
        println!(
            "{what}: median {:.1} us, p99 {:.1} us, most {:.1} us over {} steps",
            at(0.5),
            at(0.99),
            at(0.9999),
            times.len()
        );
    };
    let mut state = State::new(0);
    show("plan a step", (0..3000).map(|_| state.step().0).collect());
    let mut state = State::new(3);
    let times = (0..800).map(|_| state.step().0).collect();
    show("plan a step with three drafts each", times);
    let mut state = State::new(0);
    state.submit();
    let (mut ahead, mut resolve) = (Vec::new(), Vec::new());
    for _ in 0..3000 {
        let (a, r) = state.step_ahead();
        ahead.push(a);
        resolve.push(r);
    }
    show("plan a step ahead", ahead);
    show("resolve it", resolve);
}

/// Steps in histories of 3,000 tokens a sequence; making them is not counted.
fn run(iters: u64, mut step: impl FnMut(&mut State) -> Duration) -> Duration {
    let mut total = Duration::ZERO;
    let mut state = State::new(0);
    for i in 0..iters {
        if i % 3000 == 2999 {
            state = State::new(0);
        }
        total += step(&mut state);
    }
    total
}

criterion_group!(benches, plan);
criterion_main!(benches);
