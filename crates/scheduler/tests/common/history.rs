// SPDX-License-Identifier: MIT OR Apache-2.0
//! A history: limits, mishaps and what happens, as plain data that is made from a number, run, made smaller and kept as a
//! file.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use metrale_scheduler::{
    Effect, Event, FaultKind, FinishReason, FixedMask, Lookahead, PlannerLimits, Policy, Request,
    RequestId, Scope, TokenConstraint, TokenMask, Turn,
};

use super::constraint::{Alternating, Ending};
use super::rig::{End, Rig, prompt};
use super::script::{Mishap, Script};
use super::{STOP, VOCAB};

/// Steps and sequences of a history at least.
pub const STEPS: u64 = 50;
pub const SEQUENCES: u64 = 8;

/// Everything as small numbers: a line of the file is a word and its numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct History {
    /// seqs, prefill, more rows, more logits, length, share, policy (0 fifo, 1 priority, 2 slai) with two numbers, queue,
    /// drafts (0 in files from before there were any).
    pub limits: [u64; 11],
    /// blocks, spills, beside (0 nothing, 1 hybrid, 2 sink) with a number, lookahead.
    pub pool: [u64; 5],
    /// Step, kind, number.
    pub mishaps: Vec<[u64; 3]>,
    pub ops: Vec<Op>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// text, shared, own, max, min, history, bias, logprobs + 1, prompt logprobs + 1, namespace, deadline, stops, priority + 2.
    Submit([u64; 13]),
    Cancel(u64),
    Turns(u64),
    Tick(u64),
}

/// SplitMix64 (Steele, Lea, Flood 2014).
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % below
    }

    fn maybe(&mut self, one_in: u64, below: u64) -> u64 {
        if self.roll(one_in) == 0 {
            1 + self.roll(below)
        } else {
            0
        }
    }

    pub fn op(&mut self) -> Op {
        match self.roll(12) {
            0..4 => Op::Submit([
                self.roll(3),
                self.roll(70),
                1 + self.roll(40),
                self.roll(150),
                self.roll(8),
                u64::from(self.roll(3) == 0),
                self.roll(20),
                self.maybe(3, 4),
                self.maybe(6, 4),
                self.roll(2),
                self.maybe(10, 60),
                self.roll(4),
                self.roll(5),
            ]),
            4 => Op::Cancel(self.roll(100)),
            5 => Op::Tick(1 + self.roll(40)),
            _ => Op::Turns(1 + self.roll(12)),
        }
    }
}

impl History {
    /// Limits, pool and mishaps of a number; operations are rolled while it runs. Every second one has mishaps.
    pub fn new(seed: u64) -> (History, Dice) {
        let mut d = Dice(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let limits = [
            1 + d.roll(6),
            1 + d.roll(40),
            d.roll(40),
            d.roll(12),
            20 + d.roll(180),
            d.roll(2),
            d.roll(3),
            1 + d.roll(50),
            d.roll(3),
            2 + d.roll(8),
            // Not rolled: the rest of a number's history is what it was before there were drafts.
            [0, 3, 0, 1, 0, 8, 0, 20][seed as usize / 2 % 8],
        ];
        let pool = [2 + d.roll(16), d.roll(2), d.roll(3), d.roll(20), d.roll(3)];
        let mut mishaps = Vec::new();
        if seed % 2 == 1 {
            for _ in 0..1 + d.roll(6) {
                mishaps.push([1 + d.roll(70), d.roll(8), d.roll(8)]);
            }
        }
        let ops = Vec::new();
        let history = History {
            limits,
            pool,
            mishaps,
            ops,
        };
        (history, d)
    }

    pub fn rig(&self) -> Rig {
        let [
            seqs,
            prefill,
            more,
            logits,
            len,
            share,
            policy,
            a,
            b,
            queue,
            drafts,
        ] = self.limits;
        let limits = PlannerLimits {
            max_num_seqs: seqs as u32,
            max_prefill_tokens: prefill as u32,
            max_rows: (seqs + more) as u32,
            max_logits_rows: (seqs + logits) as u32,
            max_seq_len: len as u32,
            max_history: len as u32,
            max_bias: 24,
            queue_len: queue as usize,
            max_drafts: drafts as u32,
            share_prefill: share == 1,
            policy: match policy {
                0 => Policy::Fifo,
                1 => Policy::Priority {
                    ageing: Duration::from_millis(a),
                },
                _ => Policy::Slai {
                    between: Duration::from_millis(a),
                    per_token: Duration::from_millis(b),
                },
            },
        };
        let [blocks, spills, beside, number, ahead] = self.pool;
        let mishaps: BTreeMap<u64, Mishap> = self
            .mishaps
            .iter()
            .map(|[step, kind, n]| (*step, mishap(*kind, *n)))
            .collect();
        let set = |s: &mut Script| {
            s.mishaps = mishaps;
            s.spills = spills == 1;
            s.lookahead = [Lookahead::None, Lookahead::Late, Lookahead::Slot][ahead as usize];
        };
        let blocks = blocks as u32;
        match beside {
            0 => Rig::with(limits, blocks, set),
            1 => Rig::hybrid(limits, blocks, number as u32 % 8, set),
            _ => Rig::sinking(limits, blocks, number as usize + 1, set),
        }
    }

    /// The file.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |word: &str, numbers: &[u64]| {
            text.push_str(word);
            for n in numbers {
                let _ = write!(text, " {n}");
            }
            text.push('\n');
        };
        line("limits", &self.limits);
        line("pool", &self.pool);
        self.mishaps.iter().for_each(|m| line("mishap", m));
        for op in &self.ops {
            match op {
                Op::Submit(shape) => line("submit", shape),
                Op::Cancel(n) => line("cancel", &[*n]),
                Op::Turns(n) => line("turns", &[*n]),
                Op::Tick(n) => line("tick", &[*n]),
            }
        }
        text
    }

    /// From a file.
    pub fn parse(text: &str) -> History {
        let mut history = History {
            limits: [0; 11],
            pool: [0; 5],
            mishaps: Vec::new(),
            ops: Vec::new(),
        };
        for line in text.lines().filter(|l| !l.starts_with('#')) {
            let mut words = line.split_whitespace();
            let word = words.next().unwrap();
            let mut numbers: Vec<u64> = words.map(|w| w.parse().unwrap()).collect();
            match word {
                "limits" => {
                    numbers.resize(11, 0);
                    history.limits = numbers.try_into().unwrap();
                }
                "pool" => history.pool = numbers.try_into().unwrap(),
                "mishap" => history.mishaps.push(numbers.try_into().unwrap()),
                "submit" => history.ops.push(Op::Submit(numbers.try_into().unwrap())),
                "cancel" => history.ops.push(Op::Cancel(numbers[0])),
                "turns" => history.ops.push(Op::Turns(numbers[0])),
                "tick" => history.ops.push(Op::Tick(numbers[0])),
                other => panic!("no word {other}"),
            }
        }
        history
    }
}

fn mishap(kind: u64, n: u64) -> Mishap {
    let scope = [Scope::Step, Scope::Device][n as usize % 2];
    match kind {
        0 | 1 => Mishap::Submit(scope),
        2 | 3 => Mishap::Wait(scope),
        4 => Mishap::Nan(n as usize),
        5 => Mishap::Empty(n as usize),
        6 => Mishap::Panic,
        _ => Mishap::Extra,
    }
}

/// By the number, not rolled: none for most, then fixed ones and moving ones, some of which end or fail.
fn constraint(id: u64) -> Option<Box<dyn TokenConstraint>> {
    let n = 1 + (id / 12 % 7) as u32;
    let ending = match id % 12 {
        5 | 6 => {
            let odd: Vec<u32> = (0..VOCAB).filter(|t| (t + n) % 4 != 1).collect();
            return Some(Box::new(FixedMask(TokenMask::only(VOCAB, &odd))));
        }
        7 | 8 => Ending::Never,
        9 => Ending::Complete(n),
        10 => [Ending::Fails(n), Ending::Panics(n)][n as usize % 2],
        11 => [Ending::Empty(n - 1), Ending::Maskless(n - 1)][n as usize % 2],
        _ => return None,
    };
    Some(Box::new(Alternating::new(ending)))
}

fn build(id: u64, shape: &[u64; 13]) -> Request<u64> {
    let [
        text,
        shared,
        own,
        max,
        min,
        history,
        bias,
        logprobs,
        reported,
        space,
        deadline,
        stops,
        priority,
    ] = *shape;
    let mut tokens = prompt(text as u32, 80)[..shared as usize].to_vec();
    tokens.extend(prompt(100 + id as u32 % 50, own as u32));
    Request {
        choice: id as u32 % 3,
        history: history == 1,
        bias: (0..bias as u32)
            .map(|i| (i * 3 % VOCAB, i as f32))
            .collect(),
        min_tokens: min as u32,
        stop_tokens: (STOP..stops as u32).collect::<Arc<[u32]>>(),
        logprobs: logprobs.checked_sub(1).map(|n| n as u32),
        prompt_logprobs: reported.checked_sub(1).map(|n| n as u32),
        namespace: space,
        priority: priority as i32 - 2,
        constraint: constraint(id),
        deadline: (deadline > 0).then(|| Duration::from_millis(deadline)),
        ..Request::new(RequestId(id), tokens, id % 5, max as u32)
    }
}

/// A history that runs.
pub struct Play {
    pub rig: Rig,
    next: u64,
    cancelled: Vec<u64>,
}

/// How often each thing happened.
pub type Coverage = BTreeMap<String, u64>;

impl Play {
    pub fn new(history: &History) -> Play {
        Play {
            rig: history.rig(),
            next: 0,
            cancelled: Vec::new(),
        }
    }

    /// Whether it is as long as a history has to be.
    pub fn is_long(&self) -> bool {
        self.rig.driver.router().step >= STEPS && self.next >= SEQUENCES
    }

    pub fn step(&mut self, op: &Op) {
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
                let id = ids[*which as usize % ids.len()];
                let ended = self.rig.end(id).is_some();
                self.rig.cancel(id);
                self.rig.turn();
                let end = self.rig.end(id);
                assert!(end.is_some(), "a cancelled request ends within a step");
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

    /// Runs what is left, and checks every invariant.
    pub fn finish(&mut self, coverage: &mut Coverage) {
        self.rig.run();
        self.rig.settle();
        let admitted = self.rig.admitted();
        let fifo = self.rig.limits().policy == Policy::Fifo;
        assert!(
            !fifo || admitted.is_sorted(),
            "first come, first admitted: {admitted:?}"
        );
        let spoilt = self.rig.seen.lock().unwrap().spoilt.clone();
        for (id, log) in &self.rig.logs {
            match self.rig.end(*id).unwrap() {
                End::Finished(FinishReason::Cancelled, ..) => assert!(self.cancelled.contains(id)),
                End::Finished(..) => {}
                End::Failed(fault) => match fault.kind {
                    FaultKind::NonFinite => {
                        assert!(spoilt.contains(id), "{id} fails for another's row");
                    }
                    FaultKind::NoToken => {
                        let constraint = format!("{:?}", log.request.constraint);
                        let own = constraint.contains("Empty");
                        assert!(own || spoilt.contains(id), "{id} fails for another's row");
                    }
                    FaultKind::Constraint => {
                        assert_eq!(fault.scope, Scope::Request);
                        let constraint = format!("{:?}", log.request.constraint);
                        let told = ["Fails", "Panics", "Maskless"];
                        assert!(told.iter().any(|t| constraint.contains(t)), "{constraint}");
                    }
                    FaultKind::Deadline => assert!(log.request.deadline.is_some()),
                    FaultKind::Device | FaultKind::Internal => assert!(fault.scope >= Scope::Step),
                    FaultKind::Shutdown => panic!("nobody shut down"),
                },
            }
        }
        self.cover(coverage);
    }

    fn cover(&self, coverage: &mut Coverage) {
        let mut add = |what: &str, count: u64| {
            if count > 0 {
                *coverage.entry(what.to_owned()).or_default() += count;
            }
        };
        let seen = self.rig.seen.lock().unwrap();
        for effect in &seen.effects {
            match effect {
                Effect::Preempt { spilled, .. } => {
                    add(
                        if *spilled {
                            "preempt, spilled"
                        } else {
                            "preempt, recomputed"
                        },
                        1,
                    );
                }
                Effect::Verified {
                    drafted, accepted, ..
                } => {
                    add("drafts accepted", u64::from(*accepted));
                    add("drafts rejected", u64::from(drafted - accepted));
                    add("verified, all accepted", u64::from(drafted == accepted));
                    add("verified, none accepted", u64::from(*accepted == 0));
                }
                Effect::Emit { event, .. } => match event {
                    Event::Admitted { cached_tokens: 0 } => add("admitted", 1),
                    Event::Admitted { .. } => add("admitted with a prefix", 1),
                    Event::Prompt { .. } => add("prompt token", 1),
                    Event::Token { .. } => add("token", 1),
                    Event::Finished { reason, .. } => add(&format!("finished {reason:?}"), 1),
                    Event::Failed(f) => add(&format!("failed {:?} {:?}", f.scope, f.kind), 1),
                },
            }
        }
        for plan in &seen.plans {
            add("steps", 1);
            add("late ids", plan.late.len() as u64);
            let masked = plan.logits.iter().filter(|l| l.mask.is_some());
            add("masked rows", masked.count() as u64);
            add("block copies", plan.copies.len() as u64);
            let segments = &plan.segments;
            add(
                "state saved",
                segments.iter().filter(|s| s.save.is_some()).count() as u64,
            );
            add("state restored", plan.restores.len() as u64);
            let verifies = segments.iter().any(|s| s.drafts > 0);
            let decodes = segments.iter().any(|s| s.rows.len() == 1);
            let prefills = segments.iter().any(|s| s.known().len() > 1);
            add(
                "steps that mix decode, verify and prefill",
                u64::from(verifies && decodes && prefills),
            );
            add(
                "steps that mix decode and prefill",
                u64::from(decodes && prefills),
            );
        }
        add("sequences brought back", seen.restored as u64);
        add(
            "prefix blocks brought back",
            self.rig.driver.kv().0.stats().restored,
        );
        add("blocks evicted", self.rig.driver.kv().0.stats().evicted);
        add(&format!("policy {}", self.rig.limits().policy.name()), 1);
        add(
            &format!("lookahead {:?}", self.rig.driver.router().lookahead),
            1,
        );
    }
}
