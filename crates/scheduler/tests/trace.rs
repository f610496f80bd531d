// SPDX-License-Identifier: MIT OR Apache-2.0
//! Effect traces: recorded, compared, replayed.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod common;

use std::time::Duration;

use common::kv::Kv;
use common::rig::{prompt, request};
use common::script::{Mishap, Script};
use metrale_scheduler::{
    Delivery, Driver, Entry, Handle, PlannerLimits, Replay, Request, Router, Scope, Trace, Traced,
    Turn,
};

const BLOCKS: u32 = 12;

fn limits() -> PlannerLimits {
    PlannerLimits {
        max_drafts: 3,
        ..common::rig::limits()
    }
}

/// Submissions and cancels at fixed turns.
fn play<R: Router<Sampling = u64>>(driver: &mut Driver<R, Kv>, handle: &Handle<u64>) {
    for turn in 0..400u64 {
        if turn % 3 == 0 && turn < 60 {
            let r = Request {
                deadline: (turn % 9 == 0).then(|| Duration::from_millis(40)),
                ..request(turn, prompt(turn as u32 % 2, 20 + turn as u32), 30)
            };
            let _ = handle.submit(r, Box::new(|_| Delivery::Taken));
        }
        if turn == 31 {
            handle.cancel(metrale_scheduler::RequestId(27));
        }
        if driver.turn() == Turn::Idle && turn > 60 {
            return;
        }
    }
    panic!("no end");
}

fn record(limits: PlannerLimits) -> Trace<u64> {
    let mut script = Script::new(limits.clone(), BLOCKS);
    script.spills = true;
    script.mishaps = [
        (9, Mishap::Nan(2)),
        (20, Mishap::Wait(Scope::Step)),
        (33, Mishap::Submit(Scope::Device)),
    ]
    .into();
    let (traced, trace) = Traced::new(script);
    let mut driver = Driver::new(limits, traced, Kv::new(BLOCKS, 4)).unwrap();
    let handle = driver.handle();
    play(&mut driver, &handle);
    trace.take()
}

#[test]
fn equal_histories_leave_equal_traces() {
    let trace = record(limits());
    assert_eq!(trace.difference(&record(limits())), None);
    let has = |f: &dyn Fn(&Entry<u64>) -> bool| trace.entries.iter().any(f);
    assert!(has(&|e| matches!(e, Entry::Spill(_, _, true))));
    assert!(has(&|e| matches!(e, Entry::Restore(..))));
    assert!(has(&|e| matches!(e, Entry::Recover(..))));
    assert!(has(
        &|e| matches!(e, Entry::Draft(_, tokens) if tokens.len() == 3)
    ));
    assert!(has(&|e| matches!(e, Entry::Outcome(Err(_)))));
}

#[test]
fn two_schedulers_are_compared_effect_by_effect() {
    let trace = record(limits());
    let other = record(PlannerLimits {
        max_prefill_tokens: 31,
        ..limits()
    });
    let difference = trace.difference(&other).unwrap();
    // The first prompt has 20 tokens: both do the same until the first chunk that is cut.
    assert!(difference.at > 3);
    assert!(matches!(
        (difference.left, difference.right),
        (Some(Entry::Submit(a, _)), Some(Entry::Submit(b, _))) if a.rows() == b.rows() + 1
    ));
}

#[test]
fn a_trace_replays_without_its_device() {
    let trace = record(limits());
    let replay = Replay::new(trace);
    let mut driver = Driver::new(limits(), replay, Kv::new(BLOCKS, 4)).unwrap();
    let handle = driver.handle();
    play(&mut driver, &handle);
    assert_eq!(driver.router().difference(), None);
    assert_eq!(driver.router().left(), 0);
}

#[test]
fn a_replay_notes_where_the_scheduler_does_otherwise() {
    let trace = record(limits());
    let other = PlannerLimits {
        max_prefill_tokens: 31,
        ..limits()
    };
    let mut driver = Driver::new(other, Replay::new(trace), Kv::new(BLOCKS, 4)).unwrap();
    let handle = driver.handle();
    let r = request(0, prompt(0, 40), 3);
    handle.submit(r, Box::new(|_| Delivery::Taken)).unwrap();
    while !matches!(driver.turn(), Turn::Idle | Turn::Stopped) {}
    assert!(driver.router().difference().is_some());
}
