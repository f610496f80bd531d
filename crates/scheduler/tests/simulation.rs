// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random histories on the scripted device: whatever comes in, in whatever order, and whatever breaks, blocks balance,
//! budgets hold (the device checks), every request ends exactly once and is answered as if it were alone.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use common::rig::{End, Rig, limits, prompt};
use common::script::{Mishap, Script};
use common::{STOP, VOCAB};
use metrale_scheduler::{
    Event, FaultKind, FinishReason, Health, Lookahead, PlannerLimits, Policy, Request, RequestId,
    Scope, Turn,
};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Submit(Shape),
    /// Of the requests submitted so far, modulo.
    Cancel(usize),
    Turns(u32),
    Tick(u64),
}

/// What a random request looks like.
#[derive(Clone, Debug)]
struct Shape {
    /// Which of a few long texts the prompt begins as, how many tokens of it, and how many of its own.
    text: u32,
    shared: u32,
    own: u32,
    max_tokens: u32,
    min_tokens: u32,
    history: bool,
    bias: u32,
    logprobs: Option<u32>,
    prompt_logprobs: Option<u32>,
    namespace: u64,
    deadline: Option<u64>,
    /// Every token below this stops: how likely a stop is.
    stops: u32,
}

fn shape() -> impl Strategy<Value = Shape> {
    let size = (0..3u32, 0..70u32, 1..40u32, 0..60u32, 0..8u32);
    let extras = (
        prop::bool::weighted(0.3),
        0..20u32,
        prop::option::of(0..4u32),
        prop::option::weighted(0.15, 0..4u32),
        0..2u64,
        prop::option::weighted(0.1, 1..60u64),
        0..4u32,
    );
    (size, extras).prop_map(|((text, shared, own, max_tokens, min_tokens), extras)| {
        let (history, bias, logprobs, prompt_logprobs, namespace, deadline, stops) = extras;
        Shape {
            text,
            shared,
            own,
            max_tokens,
            min_tokens,
            history,
            bias,
            logprobs,
            prompt_logprobs,
            namespace,
            deadline,
            stops,
        }
    })
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => shape().prop_map(Op::Submit),
        1 => (0..100usize).prop_map(Op::Cancel),
        6 => (1..12u32).prop_map(Op::Turns),
        1 => (1..40u64).prop_map(Op::Tick),
    ]
}

fn mishap() -> impl Strategy<Value = Mishap> {
    let scope = prop_oneof![Just(Scope::Step), Just(Scope::Device)];
    prop_oneof![
        scope.clone().prop_map(Mishap::Submit),
        scope.prop_map(Mishap::Wait),
        (0..8usize).prop_map(Mishap::Nan),
        (0..8usize).prop_map(Mishap::Empty),
        Just(Mishap::Panic),
        Just(Mishap::Extra),
    ]
}

/// What there is beside the pool.
#[derive(Clone, Copy, Debug)]
enum Beside {
    Nothing,
    /// A window group and recurrent state, with so many snapshots.
    Hybrid(u32),
    /// A sink with so much room.
    Sink(usize),
}

fn beside() -> impl Strategy<Value = Beside> {
    prop_oneof![
        Just(Beside::Nothing),
        (0..8u32).prop_map(Beside::Hybrid),
        (1..30usize).prop_map(Beside::Sink),
    ]
}

fn lookahead() -> impl Strategy<Value = Lookahead> {
    prop::sample::select(vec![Lookahead::None, Lookahead::Late, Lookahead::Slot])
}

fn any_limits() -> impl Strategy<Value = PlannerLimits> {
    let rows = (1..6u32, 1..40u32, 0..40u32, 0..12u32);
    let policy = prop_oneof![
        3 => Just(Policy::Fifo),
        2 => (1..50u64).prop_map(|ms| Policy::Priority { ageing: Duration::from_millis(ms) }),
        2 => (1..20u64, 0..3u64).prop_map(|(between, per_token)| Policy::Slai {
            between: Duration::from_millis(between),
            per_token: Duration::from_millis(per_token),
        }),
    ];
    (rows, 20..200u32, prop::bool::ANY, policy, 0..8u32).prop_map(
        |((seqs, prefill, more, logits), len, share, policy, drafts)| PlannerLimits {
            max_drafts: drafts,
            max_num_seqs: seqs,
            max_prefill_tokens: prefill,
            max_rows: seqs + more,
            max_logits_rows: seqs + logits,
            max_seq_len: len,
            max_history: len,
            max_bias: 24,
            queue_len: 6,
            share_prefill: share,
            policy,
        },
    )
}

fn build(id: u64, shape: &Shape) -> Request<u64> {
    let mut tokens = prompt(shape.text, 80)[..shape.shared as usize].to_vec();
    tokens.extend(prompt(100 + id as u32 % 50, shape.own));
    Request {
        choice: id as u32 % 3,
        history: shape.history,
        bias: (0..shape.bias).map(|i| (i * 3 % VOCAB, i as f32)).collect(),
        min_tokens: shape.min_tokens,
        stop_tokens: (STOP..shape.stops).collect(),
        logprobs: shape.logprobs,
        prompt_logprobs: shape.prompt_logprobs,
        namespace: shape.namespace,
        priority: id as i32 % 3 - 1,
        deadline: shape.deadline.map(Duration::from_millis),
        ..Request::new(RequestId(id), tokens, id % 5, shape.max_tokens)
    }
}

struct History {
    rig: Rig,
    next: u64,
    cancelled: Vec<u64>,
}

impl History {
    fn step(&mut self, op: &Op) {
        match op {
            Op::Submit(shape) => {
                self.next += 1;
                // A refusal is right or wrong by the rules' own tests; here it leaves no trace.
                let _ = self.rig.submit(build(self.next, shape));
            }
            Op::Cancel(which) => {
                let ids: Vec<u64> = self.rig.logs.keys().copied().collect();
                if ids.is_empty() {
                    return;
                }
                let id = ids[which % ids.len()];
                let ended = self.rig.end(id).is_some();
                self.rig.cancel(id);
                self.rig.turn();
                assert!(
                    self.rig.end(id).is_some(),
                    "a cancelled request ends within a step"
                );
                if !ended {
                    self.cancelled.push(id);
                }
            }
            Op::Turns(turns) => {
                for _ in 0..*turns {
                    assert_ne!(self.rig.turn(), Turn::Waiting, "something can always run");
                }
            }
            Op::Tick(millis) => self.rig.tick(*millis),
        }
    }

    fn finish(mut self) {
        self.rig.run();
        self.rig.settle();
        let admitted = self.rig.admitted();
        assert!(
            admitted.is_sorted() || self.rig.limits().policy != Policy::Fifo,
            "first come, first admitted: {admitted:?}"
        );
        let spoilt = self.rig.seen.lock().unwrap().spoilt.clone();
        for (id, log) in &self.rig.logs {
            match self.rig.end(*id).unwrap() {
                End::Finished(FinishReason::Cancelled, ..) => assert!(self.cancelled.contains(id)),
                End::Finished(..) => {}
                End::Failed(fault) => match fault.kind {
                    FaultKind::NonFinite | FaultKind::NoToken => {
                        assert!(spoilt.contains(id), "{id} fails for another's row")
                    }
                    FaultKind::Deadline => assert!(log.request.deadline.is_some()),
                    FaultKind::Device | FaultKind::Internal => assert!(fault.scope >= Scope::Step),
                    FaultKind::Constraint => panic!("nothing is constrained"),
                    FaultKind::Shutdown => panic!("nobody shut down"),
                },
            }
        }
    }
}

fn run(
    limits: PlannerLimits,
    blocks: u32,
    spills: bool,
    beside: Beside,
    lookahead: Lookahead,
    mishaps: BTreeMap<u64, Mishap>,
    ops: &[Op],
) {
    let set = |s: &mut Script| {
        s.mishaps = mishaps;
        s.spills = spills;
        s.lookahead = lookahead;
    };
    let rig = match beside {
        Beside::Nothing => Rig::with(limits, blocks, set),
        Beside::Hybrid(snapshots) => Rig::hybrid(limits, blocks, snapshots, set),
        Beside::Sink(room) => Rig::sinking(limits, blocks, room, set),
    };
    let mut history = History {
        rig,
        next: 0,
        cancelled: Vec::new(),
    };
    for op in ops {
        history.step(op);
    }
    history.finish();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn histories_without_faults(
        limits in any_limits(), blocks in 2..30u32, spills in any::<bool>(),
        beside in beside(), ahead in lookahead(), ops in prop::collection::vec(op(), 5..60),
    ) {
        run(limits, blocks, spills, beside, ahead, BTreeMap::new(), &ops);
    }

    #[test]
    fn histories_with_faults(
        limits in any_limits(),
        blocks in 2..30u32,
        spills in any::<bool>(),
        beside in beside(),
        ahead in lookahead(),
        mishaps in prop::collection::btree_map(1..80u64, mishap(), 1..8),
        ops in prop::collection::vec(op(), 5..60),
    ) {
        run(limits, blocks, spills, beside, ahead, mishaps, &ops);
    }

    #[test]
    fn a_lost_device_fails_everything_and_takes_no_more(
        at in 1..30u64, ops in prop::collection::vec(op(), 5..40),
    ) {
        let rig = Rig::with(limits(), 12, |s| { s.mishaps.insert(at, Mishap::Lost); });
        let mut history = History { rig, next: 0, cancelled: Vec::new() };
        for op in &ops {
            history.step(op);
        }
        history.rig.run();
        history.rig.settle();
        let failed = matches!(history.rig.handle.health(), Health::Failed(_));
        prop_assert_eq!(failed, history.rig.driver.router().step == at);
    }
}

/// SURVIVAL 41: the pool at 100 %, every request at full length, preemption all the time.
#[test]
fn survival_41_a_preemption_storm_changes_no_answer() {
    for spills in [false, true] {
        let mut rig = Rig::with(limits(), 10, |s| s.spills = spills);
        for id in 1..=12 {
            let mut r = common::rig::request(id, prompt(id as u32, 30), 1000);
            r.stop_tokens = Arc::default();
            rig.submit(r).unwrap();
        }
        rig.run();
        rig.settle();
        assert!(rig.preemptions() > 12, "{} preemptions", rig.preemptions());
        for id in 1..=12 {
            // The pool holds 160 tokens, and so does the context.
            assert_eq!(rig.tokens(id).len(), 130);
        }
        assert_eq!(rig.seen.lock().unwrap().restored > 0, spills);
    }
}

/// A cancel before any turn of a busy history, for each request.
#[test]
fn a_cancel_at_every_point_frees_everything_within_a_step() {
    let start = || {
        let mut rig = Rig::new(limits(), 9);
        for id in 1..=5 {
            let mut r = common::rig::request(id, prompt(id as u32 % 2, 20 + 9 * id as u32), 24);
            r.stop_tokens = Arc::default();
            rig.submit(r).unwrap();
        }
        rig
    };
    let turns = start().run();
    for at in 0..turns {
        for id in 1..=5 {
            let mut rig = start();
            for _ in 0..at {
                rig.turn();
            }
            let before = rig.events(id).len();
            rig.cancel(id);
            rig.turn();
            let told = rig.events(id).len() - before;
            assert!(rig.end(id).is_some() && told <= 1, "cancel of {id} at {at}");
            let plan = rig.seen.lock().unwrap().plans.last().cloned();
            if told == 1 && rig.driver.router().step as u32 > at {
                assert!(plan.unwrap().segments.iter().all(|s| s.request.0 != id));
            }
            rig.run();
            rig.settle();
            for other in (1..=5).filter(|o| *o != id) {
                assert!(matches!(
                    rig.events(other).last(),
                    Some(Event::Finished {
                        reason: FinishReason::Length,
                        ..
                    })
                ));
            }
        }
    }
}
