// SPDX-License-Identifier: MIT OR Apache-2.0
//! The scheduler allocates nothing per step: counted over planning and applying at 256 running sequences.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use common::kv::Kv;
use common::rig::{prompt, request};
use metrale_scheduler::{NoSpill, Planner, PlannerLimits, Request, RowOutcome, StepOutcome};

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

#[test]
fn a_step_at_256_running_allocates_nothing() {
    let limits = PlannerLimits {
        max_num_seqs: 256,
        max_rows: 512,
        max_logits_rows: 256,
        max_prefill_tokens: 256,
        max_seq_len: 1024,
        max_history: 256 * 1024,
        ..PlannerLimits::default()
    };
    let mut kv = Kv::new(256 * 64, 256);
    let mut planner = Planner::new(limits, &kv).unwrap();
    for id in 0..256 {
        let r = Request {
            history: id % 4 == 0,
            stop_tokens: Arc::default(),
            ..request(id, prompt(id as u32, 30), 900)
        };
        planner.submit(r, Duration::ZERO).unwrap();
    }
    let mut effects = Vec::new();
    let mut outcome = StepOutcome::default();
    let mut step = |n: u64| {
        effects.clear();
        outcome.clear();
        let plan = planner.plan(
            Duration::from_millis(n),
            &mut kv,
            &mut NoSpill,
            &mut effects,
        );
        for row in &plan.unwrap().logits {
            outcome.push(RowOutcome::new((row.position + row.slot) % 60, 0.0), []);
        }
        planner.apply(&outcome, &mut kv, &mut effects).unwrap();
        effects.len()
    };
    // All prompts, and enough tokens that every history knows every token.
    for n in 0..400 {
        step(n);
    }
    let before = ALLOCATIONS.get();
    for n in 400..600 {
        assert_eq!(step(n), 256);
    }
    let after = ALLOCATIONS.get();
    assert_eq!(after - before, 0, "allocations in 200 steps");
}
