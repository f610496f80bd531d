// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver loop: on a thread of its own, and where sinks, planner or device break.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use common::kv::Kv;
use common::model::answer;
use common::rig::{End, Rig, end, limits, prompt, request, tokens};
use common::script::{Mishap, Script};
use metrale_scheduler::{
    Admission, Attached, Delivery, Driver, Event, EventSink, FaultKind, FinishReason, Handle,
    Health, KvAccounts, PlannerLimits, Refusal, Scope, TableDelta, Turn,
};

fn spawn(limits: PlannerLimits) -> (Handle<u64>, JoinHandle<()>) {
    let script = Script::new(limits.clone(), 40);
    let kv = Kv::new(40, limits.max_num_seqs);
    let driver = Driver::new(limits, script, kv).unwrap();
    let handle = driver.handle();
    (handle, driver.spawn("engine").unwrap())
}

fn channel_sink() -> (Box<dyn EventSink>, Receiver<Event>) {
    let (sender, receiver) = channel();
    let sink = move |event| match sender.send(event) {
        Ok(()) => Delivery::Taken,
        Err(_) => Delivery::Gone,
    };
    (Box::new(sink), receiver)
}

#[test]
fn a_thread_serves_parks_and_drains() {
    let (handle, thread) = spawn(limits());
    for id in 1..=3 {
        // One after another: the thread parks in between.
        let (sink, events) = channel_sink();
        let r = request(id, prompt(1, 20 + id as u32), 30);
        handle.submit(r.clone(), sink).unwrap();
        let events: Vec<Event> = events.iter().collect();
        let want: Vec<u32> = answer(&r, 160).tokens.iter().map(|t| t.0).collect();
        assert_eq!(tokens(&events), want);
    }
    let (sink, events) = channel_sink();
    handle.submit(request(9, prompt(2, 30), 20), sink).unwrap();
    handle.drain();
    let (late, nothing) = channel_sink();
    assert_eq!(
        handle.submit(request(10, prompt(2, 30), 20), late),
        Err(Refusal::ShuttingDown)
    );
    assert!(nothing.iter().next().is_none());
    assert!(matches!(
        end(&events.iter().collect::<Vec<_>>()),
        Some(End::Finished(..))
    ));
    thread.join().unwrap();
    assert_eq!(handle.health(), Health::Stopped);
    assert_eq!(handle.stats().finished, 4);
}

#[test]
fn the_last_handle_dropped_drains() {
    let (handle, thread) = spawn(limits());
    let (sink, events) = channel_sink();
    handle.submit(request(1, prompt(2, 30), 20), sink).unwrap();
    drop(handle.clone());
    drop(handle);
    thread.join().unwrap();
    assert!(events.iter().last().unwrap().is_last());
}

#[test]
fn shutdown_fails_what_lives_with_its_own_kind() {
    let mut rig = Rig::new(
        PlannerLimits {
            max_num_seqs: 1,
            ..limits()
        },
        40,
    );
    for id in 1..=3 {
        rig.submit(request(id, prompt(id as u32, 9), 50)).unwrap();
    }
    rig.turn();
    rig.handle.shutdown();
    assert_eq!(rig.turn(), Turn::Stopped);
    rig.settle();
    for id in 1..=3 {
        assert!(matches!(rig.end(id), Some(End::Failed(f)) if f.kind == FaultKind::Shutdown));
    }
    assert_eq!(rig.handle.health(), Health::Stopped);
    assert_eq!(
        rig.submit(request(4, prompt(4, 9), 5)),
        Err(Refusal::ShuttingDown)
    );
}

#[test]
fn a_cancel_after_the_end_is_nothing() {
    let mut rig = Rig::new(limits(), 40);
    rig.submit(request(1, prompt(1, 9), 3)).unwrap();
    rig.run();
    rig.cancel(1);
    rig.cancel(77);
    assert_eq!(rig.turn(), Turn::Idle);
    rig.settle();
}

/// SURVIVAL 5, the engine's part: a reader that has gone frees its blocks within a step.
#[test]
fn survival_5_a_sink_that_is_gone_cancels_its_request() {
    let mut rig = Rig::new(limits(), 40);
    let told = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&told);
    let sink = move |_| match count.fetch_add(1, Ordering::Relaxed) {
        0..3 => Delivery::Taken,
        _ => Delivery::Gone,
    };
    rig.handle
        .submit(request(50, prompt(1, 9), 100), Box::new(sink))
        .unwrap();
    rig.submit(request(1, prompt(2, 9), 20)).unwrap();
    for _ in 0..4 {
        rig.turn();
    }
    let plans = rig.seen.lock().unwrap().plans.clone();
    assert!(
        plans
            .last()
            .unwrap()
            .segments
            .iter()
            .all(|s| s.request.0 != 50)
    );
    assert_eq!(told.load(Ordering::Relaxed), 4);
    rig.run();
    rig.settle();
    assert_eq!(rig.handle.stats().cancelled, 1);
}

/// SURVIVAL 47: a panic in a sink.
#[test]
fn survival_47_a_sink_that_panics_ends_its_own_request() {
    let mut rig = Rig::new(limits(), 40);
    for id in 1..=2 {
        rig.submit(request(id, prompt(id as u32, 9), 20)).unwrap();
    }
    let sink = |event| match event {
        Event::Token { .. } => panic!("the detokenizer broke"),
        _ => Delivery::Taken,
    };
    rig.handle
        .submit(request(50, prompt(3, 9), 100), Box::new(sink))
        .unwrap();
    rig.run();
    rig.settle();
    for id in 1..=2 {
        assert!(matches!(rig.end(id), Some(End::Finished(..))));
    }
    assert_eq!(rig.handle.health(), Health::Serving);
}

/// SURVIVAL 47: a panic in the engine loop.
#[test]
fn survival_47_a_panic_in_the_loop_fails_what_runs_and_the_loop_goes_on() {
    let mut rig = Rig::with(
        PlannerLimits {
            max_num_seqs: 2,
            ..limits()
        },
        40,
        |s| {
            s.mishaps.insert(2, Mishap::Panic);
        },
    );
    for id in 1..=4 {
        rig.submit(request(id, prompt(id as u32, 9), 8)).unwrap();
    }
    rig.run();
    rig.settle();
    for id in 1..=2 {
        let Some(End::Failed(fault)) = rig.end(id) else {
            panic!("{:?}", rig.end(id))
        };
        assert_eq!(
            (fault.kind, fault.scope),
            (FaultKind::Internal, Scope::Device)
        );
        assert!(fault.what.contains("scripted panic"), "{}", fault.what);
    }
    for id in 3..=4 {
        assert!(matches!(rig.end(id), Some(End::Finished(..))));
    }
    assert_eq!(rig.handle.health(), Health::Serving);
}

#[test]
fn a_lost_device_is_said_in_health_and_refusals() {
    let mut rig = Rig::with(limits(), 40, |s| {
        s.mishaps.insert(2, Mishap::Lost);
    });
    for id in 1..=6 {
        rig.submit(request(id, prompt(id as u32, 9), 8)).unwrap();
    }
    rig.run();
    rig.settle();
    assert!((1..=6).all(|id| matches!(rig.end(id), Some(End::Failed(_)))));
    let Health::Failed(why) = rig.handle.health() else {
        panic!()
    };
    assert_eq!(
        rig.submit(request(7, prompt(7, 9), 8)),
        Err(Refusal::Failed(why))
    );
}

/// Whatever is accepted while the engine drains is answered to its end.
#[test]
fn nothing_accepted_is_lost_in_a_drain() {
    for round in 0..20 {
        let (handle, thread) = spawn(PlannerLimits {
            queue_len: 4000,
            ..limits()
        });
        let ends = Arc::new(Mutex::new(0));
        let accepted: usize = std::thread::scope(|scope| {
            let submitters: Vec<_> = (0..3u64)
                .map(|t| {
                    let (handle, ends) = (handle.clone(), Arc::clone(&ends));
                    scope.spawn(move || {
                        let mut accepted = 0;
                        for i in 0..30 {
                            let ends = Arc::clone(&ends);
                            let sink = move |event: Event| {
                                *ends.lock().unwrap() += usize::from(event.is_last());
                                Delivery::Taken
                            };
                            let r = request(handle.fresh_id().0, prompt((t + i) as u32, 5), 2);
                            accepted += usize::from(handle.submit(r, Box::new(sink)).is_ok());
                        }
                        accepted
                    })
                })
                .collect();
            if round % 2 == 0 {
                handle.drain();
            } else {
                handle.shutdown();
            }
            submitters.into_iter().map(|s| s.join().unwrap()).sum()
        });
        thread.join().unwrap();
        assert_eq!(*ends.lock().unwrap(), accepted);
    }
}

#[test]
fn stats_add_up() {
    let mut rig = Rig::new(limits(), 40);
    rig.submit(request(1, prompt(1, 40), 10)).unwrap();
    rig.run();
    rig.submit(request(2, prompt(1, 40), 10)).unwrap();
    rig.run();
    let stats = rig.handle.stats();
    let usage = [1, 2].map(|id| match rig.end(id) {
        Some(End::Finished(FinishReason::Stop | FinishReason::Length, _, usage)) => usage,
        other => panic!("{other:?}"),
    });
    let generated = usage
        .iter()
        .map(|u| u64::from(u.completion_tokens))
        .sum::<u64>();
    assert_eq!(stats.generated_tokens, generated);
    assert_eq!((stats.prompt_tokens, stats.cached_tokens), (80, 39));
    assert_eq!(stats.rows, 80 - 39 + generated - 2);
    assert_eq!((stats.kv_blocks, stats.running, stats.waiting), (40, 0, 0));
    assert_eq!(stats.kv_available, 40);
}

/// KV accounts that panic in the n-th call that takes or gives blocks.
struct Flaky {
    kv: Kv,
    calls: u32,
    at: u32,
}

impl Flaky {
    fn call(&mut self) -> &mut Kv {
        self.calls += 1;
        assert_ne!(self.calls, self.at, "scripted panic in the accounts");
        &mut self.kv
    }
}

impl KvAccounts for Flaky {
    fn block_tokens(&self) -> u32 {
        self.kv.block_tokens()
    }
    fn total_blocks(&self) -> u32 {
        self.kv.total_blocks()
    }
    fn available_blocks(&self) -> u32 {
        self.kv.available_blocks()
    }

    fn used_blocks(&self) -> u32 {
        self.kv.used_blocks()
    }
    fn admit(&mut self, slot: u32, admission: &Admission<'_>) -> Option<Attached> {
        self.call().admit(slot, admission)
    }
    fn cached(&self, namespace: u64, tokens: &[u32]) -> u32 {
        self.kv.cached(namespace, tokens)
    }
    fn grow(&mut self, slot: u32) -> Option<u32> {
        self.call().grow(slot)
    }
    fn shrink(&mut self, slot: u32, blocks: u32) {
        self.call().shrink(slot, blocks);
    }

    fn table(&self, slot: u32) -> &[u32] {
        self.kv.table(slot)
    }
    fn publish(&mut self, slot: u32, tokens: &[u32], changed: &mut Vec<TableDelta>) {
        self.call().publish(slot, tokens, changed);
    }
    fn release(&mut self, slot: u32, tokens: &[u32]) {
        self.call().release(slot, tokens);
    }
    fn reset(&mut self) {
        self.kv.reset();
    }
}

/// SURVIVAL 47: a panic in the accounts at any call, preemption and its half-moved sequences included.
#[test]
fn survival_47_a_panic_in_the_accounts_at_every_call_loses_no_request() {
    let play = |at| {
        let kv = Flaky {
            kv: Kv::new(8, 4),
            calls: 0,
            at,
        };
        let mut driver = Driver::new(limits(), Script::new(limits(), 8), kv).unwrap();
        let handle = driver.handle();
        let logs: Vec<_> = (1..=6)
            .map(|id| {
                let (sink, events) = channel_sink();
                let r = request(id, prompt(id as u32, 20), 60);
                handle.submit(r, sink).unwrap();
                events
            })
            .collect();
        while !matches!(driver.turn(), Turn::Idle) {}
        for events in logs {
            let events: Vec<Event> = events.iter().collect();
            assert_eq!(
                events.iter().filter(|e| e.is_last()).count(),
                1,
                "{at}: {events:?}"
            );
        }
        driver.kv().kv.0.audit().unwrap();
        assert_eq!(driver.kv().kv.0.stats().used, 0);
        assert_eq!(handle.health(), Health::Serving);
        driver.kv().calls
    };
    let calls = play(0);
    assert!(calls > 40);
    for at in 1..=calls {
        play(at);
    }
}
