// SPDX-License-Identifier: MIT OR Apache-2.0
//! A driver over the scripted device and the real cache, stepped by hand.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use metrale_scheduler::{
    Delivery, Driver, Effect, Event, Fault, FinishReason, Handle, PlannerLimits, Policy, Refusal,
    Request, RequestId, Turn, Usage,
};

use super::STOP;
use super::kv::Kv;
use super::model::answer;
use super::script::{Script, Seen, Sink};

pub struct Rig {
    pub driver: Driver<Script, Kv>,
    pub handle: Handle<u64>,
    pub seen: Arc<Mutex<Seen>>,
    pub clock: Arc<AtomicU64>,
    micros: Arc<AtomicU64>,
    pub logs: BTreeMap<u64, Log>,
    limits: PlannerLimits,
}

/// A request and what its sink was told.
pub struct Log {
    pub request: Request<u64>,
    pub events: Arc<Mutex<Vec<Event>>>,
}

pub fn limits() -> PlannerLimits {
    PlannerLimits {
        max_num_seqs: 4,
        max_prefill_tokens: 32,
        max_rows: 34,
        max_drafts: 0,
        max_logits_rows: 8,
        max_seq_len: 160,
        max_history: 400,
        max_bias: 64,
        queue_len: 64,
        share_prefill: true,
        policy: Policy::Fifo,
    }
}

/// A prompt of `len` tokens that no other `key` shares, without the stop token.
pub fn prompt(key: u32, len: u32) -> Vec<u32> {
    (0..len)
        .map(|i| 1 + (key * 7 + i * (key + 3)) % 61)
        .collect()
}

pub fn request(id: u64, prompt: Vec<u32>, max_tokens: u32) -> Request<u64> {
    Request {
        stop_tokens: Arc::from([STOP]),
        ..Request::new(RequestId(id), prompt, id * 31, max_tokens)
    }
}

impl Rig {
    pub fn new(limits: PlannerLimits, blocks: u32) -> Rig {
        Rig::with(limits, blocks, |_| {})
    }

    pub fn with(limits: PlannerLimits, blocks: u32, set: impl FnOnce(&mut Script)) -> Rig {
        let seqs = limits.max_num_seqs;
        Rig::over(limits, blocks, |_| Kv::new(blocks, seqs), set)
    }

    /// A driver whose layers are of every kind: all keys, a window, recurrent.
    pub fn hybrid(
        limits: PlannerLimits,
        blocks: u32,
        snapshots: u32,
        set: impl FnOnce(&mut Script),
    ) -> Rig {
        let (seqs, rows) = (limits.max_num_seqs, limits.max_rows);
        let kv = |_: &Script| Kv::hybrid(blocks, seqs, rows, snapshots);
        Rig::over(limits, blocks, kv, |script| {
            set(script);
            script.hybrid = true;
        })
    }

    /// A driver whose cache keeps `room` evicted blocks.
    pub fn sinking(
        limits: PlannerLimits,
        blocks: u32,
        room: usize,
        set: impl FnOnce(&mut Script),
    ) -> Rig {
        let seqs = limits.max_num_seqs;
        let kv = |script: &Script| {
            let sink = Box::new(Sink::new(script, room));
            Kv(Kv::new(blocks, seqs).0.with_sink(sink))
        };
        Rig::over(limits, blocks, kv, set)
    }

    fn over(
        limits: PlannerLimits,
        blocks: u32,
        kv: impl FnOnce(&Script) -> Kv,
        set: impl FnOnce(&mut Script),
    ) -> Rig {
        let mut script = Script::new(limits.clone(), blocks);
        set(&mut script);
        let (seen, clock) = (Arc::clone(&script.seen), Arc::clone(&script.clock));
        let micros = Arc::clone(&script.micros);
        let kv = kv(&script);
        let driver = Driver::new(limits.clone(), script, kv).unwrap();
        Rig {
            handle: driver.handle(),
            driver,
            seen,
            clock,
            micros,
            logs: BTreeMap::new(),
            limits,
        }
    }

    pub fn submit(&mut self, request: Request<u64>) -> Result<(), Refusal> {
        let events: Arc<Mutex<Vec<Event>>> = Arc::default();
        let sink = Arc::clone(&events);
        let id = request.id.0;
        let taken = self.handle.submit(
            request.clone(),
            Box::new(move |event| {
                sink.lock().unwrap().push(event);
                Delivery::Taken
            }),
        );
        if taken.is_ok() {
            self.logs.insert(id, Log { request, events });
        }
        taken
    }

    pub fn cancel(&self, id: u64) {
        self.handle.cancel(RequestId(id));
    }

    /// One turn, and the cache's invariants after it.
    pub fn turn(&mut self) -> Turn {
        let turn = self.driver.turn();
        self.driver.kv().0.audit().unwrap();
        assert_eq!(
            self.seen.lock().unwrap().violations,
            0,
            "the device was given a wrong step"
        );
        turn
    }

    /// Turns until nothing is left. Each turn makes progress, so there is a bound.
    pub fn run(&mut self) -> u32 {
        for turns in 0..20_000 {
            match self.turn() {
                Turn::Ran => {}
                Turn::Waiting => panic!("requests wait for ever"),
                Turn::Idle | Turn::Stopped => return turns,
            }
        }
        panic!("no end");
    }

    pub fn tick(&self, millis: u64) {
        self.clock.fetch_add(millis, Ordering::Relaxed);
    }

    pub fn now_micros(&self) -> u64 {
        self.clock.load(Ordering::Relaxed) * 1000 + self.micros.load(Ordering::Relaxed)
    }

    pub fn events(&self, id: u64) -> Vec<Event> {
        self.logs[&id].events.lock().unwrap().clone()
    }

    pub fn tokens(&self, id: u64) -> Vec<u32> {
        tokens(&self.events(id))
    }

    pub fn end(&self, id: u64) -> Option<End> {
        end(&self.events(id))
    }

    pub fn preemptions(&self) -> u64 {
        self.handle.stats().preemptions
    }

    /// All blocks are back, and every request ended exactly once, with the answer that it gets alone, or a part of it
    /// where it was cancelled or failed.
    pub fn settle(&self) {
        let stats = self.driver.kv().0.stats();
        assert_eq!(stats.used, 0, "blocks are held: {stats:?}");
        assert_eq!(stats.free + stats.cached, stats.populated);
        assert_eq!(self.driver.router().spilled(), 0);
        for id in self.logs.keys() {
            self.check(*id);
        }
    }

    pub fn check(&self, id: u64) {
        let events = self.events(id);
        let request = &self.logs[&id].request;
        let want = answer(request, self.handle.capacity());
        let last = events.iter().filter(|e| e.is_last()).count();
        assert_eq!(last, 1, "request {id} ended {last} times: {events:?}");
        assert!(
            events.last().unwrap().is_last(),
            "request {id} was told something after its end"
        );
        let mut prompt = Vec::new();
        let mut got = Vec::new();
        for (at, event) in events.iter().enumerate() {
            match event {
                Event::Admitted { .. } => assert_eq!(at, 0),
                Event::Prompt {
                    position,
                    token,
                    logprob,
                    top,
                } => {
                    assert_eq!(top.len() as u32, request.prompt_logprobs.unwrap());
                    prompt.push((*position, *token, *logprob));
                }
                Event::Token {
                    token,
                    logprob,
                    top,
                    row_hash,
                } => {
                    got.push((*token, *logprob, top.len(), row_hash.unwrap()));
                }
                Event::Finished { .. } | Event::Failed(_) => {}
            }
        }
        assert_eq!(
            prompt,
            want.prompt[..prompt.len()],
            "request {id}: prompt logprobs"
        );
        assert_eq!(got, want.tokens[..got.len()], "request {id}: tokens");
        match end(&events).unwrap() {
            End::Finished(FinishReason::Cancelled, None, _) | End::Failed(_) => {}
            End::Finished(reason, stop, usage) => {
                assert_eq!(
                    (Some(reason), stop),
                    (want.reason, want.stop_token),
                    "request {id}"
                );
                let cached_tokens = usage.cached_tokens;
                assert_eq!(
                    usage,
                    Usage {
                        cached_tokens,
                        ..want.usage
                    },
                    "request {id}"
                );
                assert_eq!(prompt.len(), want.prompt.len());
                assert_eq!(got.len(), want.tokens.len());
                assert!(
                    matches!(events[0], Event::Admitted { cached_tokens: c } if c == cached_tokens)
                );
            }
        }
    }

    /// Requests in the order of their admission.
    pub fn admitted(&self) -> Vec<u64> {
        let seen = self.seen.lock().unwrap();
        let admitted = seen.effects.iter().filter_map(|e| match e {
            Effect::Emit {
                request,
                event: Event::Admitted { .. },
            } => Some(request.0),
            _ => None,
        });
        admitted.collect()
    }

    pub fn limits(&self) -> &PlannerLimits {
        &self.limits
    }
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    Finished(FinishReason, Option<u32>, Usage),
    Failed(Fault),
}

pub fn end(events: &[Event]) -> Option<End> {
    events.iter().find_map(|e| match e {
        Event::Finished {
            reason,
            stop_token,
            usage,
        } => Some(End::Finished(*reason, *stop_token, *usage)),
        Event::Failed(fault) => Some(End::Failed(fault.clone())),
        _ => None,
    })
}

pub fn tokens(events: &[Event]) -> Vec<u32> {
    let tokens = events.iter().filter_map(|e| match e {
        Event::Token { token, .. } => Some(*token),
        _ => None,
    });
    tokens.collect()
}
