// SPDX-License-Identifier: MIT OR Apache-2.0
//! The scheduler allocates nothing per step: counted over planning and applying at 256 running sequences, with and without
//! the next step planned ahead.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use common::kv::Kv;
use common::rig::{prompt, request};
use metrale_scheduler::{
    ConstraintError, DraftRouter, Effect, FixedMask, Lookahead, NoSpill, Planner, PlannerLimits,
    Request, RequestId, RowOutcome, StepOutcome, StepPlan, Text, TokenConstraint, TokenMask,
};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes on to the system allocator with its own arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`; `at` is from `System`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

struct State {
    planner: Planner<u64>,
    kv: Kv,
    effects: Vec<Effect>,
    outcome: StepOutcome,
}

impl State {
    /// 256 sequences, a quarter of them with a penalty history; the others bring so many drafts. An eighth has a moving mask,
    /// another one a fixed mask that it shares.
    fn new(max_drafts: u32) -> State {
        let limits = PlannerLimits {
            max_num_seqs: 256,
            max_rows: 1024,
            max_logits_rows: 256 + 192 * max_drafts,
            max_drafts,
            max_prefill_tokens: 256,
            max_seq_len: 1536,
            max_history: 256 * 1536,
            ..PlannerLimits::default()
        };
        let kv = Kv::new(256 * 96, 256);
        let mut planner = Planner::new(limits, &kv).unwrap();
        let shared = FixedMask(TokenMask::all(60));
        for id in 0..256 {
            let constraint: Option<Box<dyn TokenConstraint>> = match id % 8 {
                4 => Some(Box::new(Moving(TokenMask::all(60)))),
                6 => Some(Box::new(shared.clone())),
                _ => None,
            };
            let r = Request {
                constraint,
                history: id % 4 == 0,
                stop_tokens: Arc::default(),
                ..request(id, prompt(id as u32, 30), 1400)
            };
            planner.submit(r, Duration::ZERO).unwrap();
        }
        State {
            planner,
            kv,
            effects: Vec::new(),
            outcome: StepOutcome::default(),
        }
    }

    fn plan(&mut self, n: u64) {
        self.planner.draft(&mut Echo);
        let now = Duration::from_millis(n);
        let (kv, effects) = (&mut self.kv, &mut self.effects);
        let plan = self.planner.plan(now, kv, &mut NoSpill, effects);
        draw(plan.unwrap(), &mut self.outcome);
    }

    /// One step; how many effects it had.
    fn step(&mut self, n: u64) -> usize {
        self.effects.clear();
        self.plan(n);
        self.planner
            .apply(&self.outcome, &mut self.kv, &mut self.effects)
            .unwrap();
        self.effects.len()
    }

    /// The same with the next step planned ahead; the first one is in flight already.
    fn step_ahead(&mut self, n: u64) -> usize {
        self.effects.clear();
        let State {
            planner,
            kv,
            effects,
            outcome,
        } = self;
        let ahead = planner.plan_ahead(Lookahead::Late, kv, &mut NoSpill, effects);
        assert!(ahead.is_some());
        planner.apply(outcome, kv, effects).unwrap();
        planner.draft(&mut Echo);
        planner.reap(Duration::from_millis(n), kv, &mut NoSpill, effects);
        draw(planner.resolve(kv, &mut NoSpill, effects).unwrap(), outcome);
        effects.len()
    }
}

/// Writes another mask for each token.
#[derive(Debug)]
struct Moving(TokenMask);

impl TokenConstraint for Moving {
    fn mask(&mut self) -> Result<TokenMask, ConstraintError> {
        Ok(self.0.clone())
    }

    fn accept(&mut self, token: u32) -> Result<Text, ConstraintError> {
        self.0.words_mut().fill(1 + token);
        Ok(Text::Open)
    }

    fn fork(&self) -> Box<dyn TokenConstraint> {
        Box::new(Moving(self.0.clone()))
    }
}

/// Guesses what [`draw`] answers, of which every seventh is wrong.
struct Echo;

impl DraftRouter for Echo {
    fn draft(&mut self, request: RequestId, text: &[u32], most: u32, drafts: &mut Vec<u32>) {
        let next = text.len() as u32..text.len() as u32 + most;
        drafts.extend(next.map(|at| (at + request.0 as u32) % 60 + u32::from(at % 7 == 0)));
    }
}

/// What a device would answer.
fn draw(plan: &StepPlan<u64>, outcome: &mut StepOutcome) {
    outcome.clear();
    for row in &plan.logits {
        outcome.push(RowOutcome::new((row.position + row.slot) % 60, 0.0), []);
    }
}

/// Runs all prompts, and enough tokens that every history knows every token; then counts.
fn count(state: &mut State, step: fn(&mut State, u64) -> usize) {
    for n in 0..400 {
        step(state, n);
    }
    let before = ALLOCATIONS.get();
    for n in 400..500 {
        assert!(step(state, n) >= 256);
    }
    let after = ALLOCATIONS.get();
    assert_eq!(after - before, 0, "allocations in 100 steps");
}

#[test]
fn a_step_at_256_running_allocates_nothing() {
    count(&mut State::new(0), State::step);
}

#[test]
fn a_step_that_is_planned_ahead_allocates_nothing() {
    let mut state = State::new(0);
    state.plan(0);
    count(&mut state, State::step_ahead);
}

#[test]
fn a_step_with_drafts_allocates_nothing() {
    let mut state = State::new(1);
    count(&mut state, State::step);
    let mut ahead = State::new(1);
    ahead.plan(0);
    count(&mut ahead, State::step_ahead);
    state.effects.append(&mut ahead.effects);
    let verified = |e: &Effect| matches!(e, Effect::Verified { accepted: 1, .. });
    assert!(state.effects.iter().filter(|e| verified(e)).count() > 100);
}
