// SPDX-License-Identifier: MIT OR Apache-2.0
//! Policies: who is served first, who waits how long, and how long a step may be.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::rig::{Rig, limits, prompt, request};
use metrale_scheduler::{Effect, Event, Lookahead, PlannerLimits, Policy, Request};
use proptest::prelude::*;

fn with(policy: Policy, seqs: u32) -> PlannerLimits {
    PlannerLimits {
        max_num_seqs: seqs,
        policy,
        ..limits()
    }
}

fn endless(id: u64, len: u32, max_tokens: u32, priority: i32) -> Request<u64> {
    Request {
        stop_tokens: Arc::default(),
        priority,
        ..request(id, prompt(id as u32, len), max_tokens)
    }
}

fn ended(rig: &Rig) -> Vec<u64> {
    let seen = rig.seen.lock().unwrap();
    let last = seen.effects.iter().filter_map(|e| match e {
        Effect::Emit { request, event } if event.is_last() => Some(request.0),
        _ => None,
    });
    last.collect()
}

#[test]
fn the_lower_priority_goes_first_and_equals_in_order_of_arrival() {
    let mut rig = Rig::new(with(Policy::PRIORITY, 1), 20);
    for (id, priority) in [(1, 5), (2, 0), (3, -3), (4, 0), (5, 5)] {
        rig.submit(endless(id, 20, 3, priority)).unwrap();
    }
    rig.run();
    rig.settle();
    assert_eq!(rig.admitted(), [3, 2, 4, 1, 5]);
}

#[test]
fn names_are_read_and_written() {
    for name in Policy::NAMES {
        assert_eq!(Policy::named(name).unwrap().name(), name);
    }
    assert_eq!(Policy::named("lifo"), None);
}

#[test]
fn blocks_are_taken_from_the_lowest_priority_that_came_last() {
    let mut rig = Rig::new(with(Policy::PRIORITY, 3), 12);
    // Three blocks each; the fourth is wanted of all at once.
    for (id, priority) in [(1, 1), (2, 0), (3, 1)] {
        rig.submit(endless(id, 40, 30, priority)).unwrap();
    }
    rig.run();
    rig.settle();
    let preempted: Vec<u64> = rig
        .seen
        .lock()
        .unwrap()
        .effects
        .iter()
        .filter_map(|e| match e {
            Effect::Preempt { request, .. } => Some(request.0),
            _ => None,
        })
        .collect();
    assert_eq!(preempted[0], 3);
    assert!(!preempted.contains(&2), "{preempted:?}");
    assert_eq!(ended(&rig)[0], 2);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// A request of the worst priority, among an endless stream of better ones: it ends in bounded time. What can be served
    /// before it has come before it, or within `ageing` times the difference of priorities after it.
    #[test]
    fn waiting_is_bounded_under_priority(
        worst in 1..12i32, every in 1..4u64, seqs in 1..4u32, blocks in 9..16u32, ageing in 5..60u64,
    ) {
        let policy = Policy::Priority { ageing: Duration::from_millis(ageing) };
        let mut rig = Rig::new(with(policy, seqs), blocks);
        rig.submit(endless(1, 30, 20, 0)).unwrap();
        rig.submit(endless(2, 40, 20, worst)).unwrap();
        let start = rig.clock.load(Ordering::Relaxed);
        let (mut id, mut before) = (3, 1);
        while rig.end(2).is_none() {
            let now = rig.clock.load(Ordering::Relaxed) - start;
            prop_assert!(now < 100_000, "it waits for ever");
            if now.is_multiple_of(every) && rig.submit(endless(id, 30, 20, 0)).is_ok() {
                id += 1;
                before += u64::from(now <= ageing * worst as u64);
            }
            rig.turn();
        }
        let waited = rig.clock.load(Ordering::Relaxed) - start;
        // Each of those takes 21 steps alone, and a preempted one starts again at most once for each block of another.
        prop_assert!(waited <= (before + 1) * 21 * 4 + ageing * worst as u64, "waited {waited} ms behind {before}");
        rig.run();
        rig.settle();
    }
}

/// The longest time between two tokens of request 1 while long prompts come, and the time until all are done.
fn longest_gap(policy: Policy, lookahead: Lookahead) -> (u64, u64) {
    let limits = PlannerLimits {
        max_prefill_tokens: 128,
        max_rows: 132,
        max_seq_len: 1200,
        max_history: 1200,
        ..with(policy, 4)
    };
    // A millisecond a step, and a quarter for each row.
    let mut rig = Rig::with(limits, 400, |s| {
        s.row_micros = 250;
        s.lookahead = lookahead;
    });
    rig.submit(endless(1, 20, 300, 0)).unwrap();
    for _ in 0..20 {
        rig.turn();
    }
    for id in 2..5 {
        rig.submit(endless(id, 1000, 2, 0)).unwrap();
    }
    let (mut last, mut gap, mut seen) = (rig.now_micros(), 0, rig.tokens(1).len());
    let start = last;
    let mut all = 0;
    while rig.end(1).is_none() {
        rig.turn();
        let now = rig.now_micros();
        if rig.tokens(1).len() > seen {
            // The first steps are what it learns from.
            if now - start > 100_000 {
                gap = gap.max(now - last);
            }
            (seen, last) = (rig.tokens(1).len(), now);
        }
        if all == 0 && (2..5).all(|id| rig.end(id).is_some()) {
            all = now - start;
        }
    }
    rig.run();
    rig.settle();
    (gap, all)
}

#[test]
fn slai_keeps_the_time_between_tokens() {
    let target = Policy::Slai {
        between: Duration::from_millis(12),
        per_token: Duration::from_millis(1),
    };
    for lookahead in [Lookahead::None, Lookahead::Late, Lookahead::Slot] {
        let (fifo, _) = longest_gap(Policy::Fifo, lookahead);
        let (slai, all) = longest_gap(target, lookahead);
        assert!(fifo > 30_000, "{lookahead:?}, fifo: {fifo} us");
        assert!(slai <= 12_500, "{lookahead:?}, slai: {slai} us");
        assert!(all > 0, "the prompts are done while the chat goes on");
    }
}

#[test]
fn slai_takes_the_shortest_prompt_first_and_the_longest_in_bounded_time() {
    let mut rig = Rig::new(with(Policy::SLAI, 1), 20);
    rig.submit(endless(1, 20, 3, 0)).unwrap();
    rig.turn();
    for (id, len) in [(2, 120), (3, 20), (4, 60)] {
        rig.submit(endless(id, len, 3, 0)).unwrap();
    }
    rig.turn();
    // 100 ms later the long prompt has waited its length off: what comes now comes behind it.
    rig.tick(101);
    rig.submit(endless(5, 20, 3, 0)).unwrap();
    rig.run();
    rig.settle();
    assert_eq!(rig.admitted(), [1, 3, 4, 2, 5]);
}

/// SURVIVAL 48: the clock jumps by a day. Who has a deadline fails with it, everybody else is served as if nothing were.
#[test]
fn survival_48_a_clock_that_jumps_a_day_ends_only_deadlines() {
    for policy in [Policy::Fifo, Policy::PRIORITY, Policy::SLAI] {
        let mut rig = Rig::new(with(policy, 2), 20);
        for id in 1..=6 {
            let deadline = (id % 3 == 0).then(|| Duration::from_secs(3600));
            let request = Request {
                deadline,
                ..endless(id, 40, 20, id as i32)
            };
            rig.submit(request).unwrap();
        }
        for _ in 0..8 {
            rig.turn();
        }
        rig.tick(86_400_000);
        rig.run();
        rig.settle();
        for id in 1..=6 {
            let failed = matches!(rig.events(id).last(), Some(Event::Failed(_)));
            assert_eq!(failed, id % 3 == 0, "{policy:?}: request {id}");
        }
    }
}

#[test]
fn fifo_does_not_look_at_priority() {
    let mut rig = Rig::new(with(Policy::Fifo, 2), 20);
    for id in 1..=6 {
        rig.submit(endless(id, 20, 5, -(id as i32))).unwrap();
    }
    rig.run();
    rig.settle();
    assert_eq!(rig.admitted(), [1, 2, 3, 4, 5, 6]);
    let finished = |e: &Event| matches!(e, Event::Finished { .. });
    assert!((1..=6).all(|id| rig.events(id).iter().any(finished)));
}
