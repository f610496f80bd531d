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
    Effect, Lookahead, NoSpill, Planner, PlannerLimits, Request, RowOutcome, StepOutcome, StepPlan,
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
    /// 256 sequences, a quarter of them with a penalty history.
    fn new() -> State {
        let limits = PlannerLimits {
            max_num_seqs: 256,
            max_rows: 512,
            max_logits_rows: 256,
            max_prefill_tokens: 256,
            max_seq_len: 1024,
            max_history: 256 * 1024,
            ..PlannerLimits::default()
        };
        let kv = Kv::new(256 * 64, 256);
        let mut planner = Planner::new(limits, &kv).unwrap();
        for id in 0..256 {
            let r = Request {
                history: id % 4 == 0,
                stop_tokens: Arc::default(),
                ..request(id, prompt(id as u32, 30), 900)
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
        planner.reap(Duration::from_millis(n), kv, &mut NoSpill, effects);
        draw(planner.resolve(kv, &mut NoSpill, effects).unwrap(), outcome);
        effects.len()
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
    for n in 400..600 {
        assert_eq!(step(state, n), 256);
    }
    let after = ALLOCATIONS.get();
    assert_eq!(after - before, 0, "allocations in 200 steps");
}

#[test]
fn a_step_at_256_running_allocates_nothing() {
    count(&mut State::new(), State::step);
}

#[test]
fn a_step_that_is_planned_ahead_allocates_nothing() {
    let mut state = State::new();
    state.plan(0);
    count(&mut state, State::step_ahead);
}
