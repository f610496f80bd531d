// SPDX-License-Identifier: MIT OR Apache-2.0
//! An engine that follows a script.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use metrale_scheduler::{Event, Fault, FaultKind, FinishReason, Refusal, Scope, Usage};
use metrale_server::engine_face::{Engine, EngineState, EngineStats, EventStream, Request};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

/// What the engine does with a request.
#[derive(Clone, Debug)]
pub(crate) enum Script {
    /// Draws these tokens, then an end token; cut by `max_tokens`.
    Say(Vec<u32>),
    /// Draws these tokens and then nothing, until the test goes on.
    Hold(Vec<u32>),
    /// Draws these tokens and fails.
    Fail(Vec<u32>, FaultKind),
    /// Draws these tokens and goes away without a last event.
    Vanish(Vec<u32>),
    /// Refuses.
    Busy,
    /// Panics.
    Panic,
}

impl Script {
    /// Says a text, byte by byte.
    pub(crate) fn say(text: &str) -> Script {
        Script::Say(text.bytes().map(u32::from).collect())
    }

    /// Says the beginning of a text and holds.
    pub(crate) fn hold(text: &str) -> Script {
        Script::Hold(text.bytes().map(u32::from).collect())
    }
}

#[derive(Default)]
struct Log {
    requests: Vec<Request>,
    open: Vec<UnboundedSender<Event>>,
    cancelled: usize,
    /// Requests that are taken before the rest is refused.
    most: Option<usize>,
}

/// The engine; it remembers what it was asked.
pub(crate) struct ScriptedEngine {
    script: Mutex<Script>,
    log: Arc<(Mutex<Log>, Condvar)>,
    pub(crate) state: Mutex<EngineState>,
}

impl ScriptedEngine {
    pub(crate) fn new(script: Script) -> ScriptedEngine {
        ScriptedEngine {
            script: Mutex::new(script),
            log: Arc::default(),
            state: Mutex::new(EngineState::Ready),
        }
    }

    /// From now on it does this.
    pub(crate) fn follow(&self, script: Script) {
        *self.script.lock().expect("lock") = script;
    }

    /// What it was asked so far.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.log.0.lock().expect("lock").requests.clone()
    }

    /// The only request.
    pub(crate) fn request(&self) -> Request {
        let mut requests = self.requests();
        assert_eq!(requests.len(), 1);
        requests.remove(0)
    }

    /// Waits until so many requests were taken.
    pub(crate) fn wait_requests(&self, count: usize) {
        self.wait(|log| log.requests.len() >= count);
    }

    /// Waits until so many requests were cancelled.
    pub(crate) fn wait_cancelled(&self, count: usize) {
        self.wait(|log| log.cancelled >= count);
    }

    /// How many requests were cancelled.
    pub(crate) fn cancelled(&self) -> usize {
        self.log.0.lock().expect("lock").cancelled
    }

    /// Lets every held request say `text` and end.
    pub(crate) fn release(&self, text: &str) {
        let open = std::mem::take(&mut self.log.0.lock().expect("lock").open);
        for sender in open {
            for byte in text.bytes() {
                // A cancelled one has no receiver.
                let _ = sender.send(token(u32::from(byte), Some(0)));
            }
            let _ = sender.send(finished(FinishReason::Stop, text.len() as u32 + 1));
        }
    }

    /// Takes so many requests and refuses the rest as busy.
    pub(crate) fn refuse_after(&self, most: usize) {
        self.log.0.lock().expect("lock").most = Some(most);
    }

    /// Fails one held request.
    pub(crate) fn fail_one(&self) {
        let sender = self.log.0.lock().expect("lock").open.remove(0);
        let fault = Fault::new(Scope::Row, FaultKind::NonFinite, "asked for");
        sender.send(Event::Failed(fault)).expect("it is held");
    }

    fn wait(&self, until: impl Fn(&Log) -> bool) {
        let (lock, told) = &*self.log;
        let guard = lock.lock().expect("lock");
        let limit = Duration::from_secs(10);
        let (_guard, late) = told
            .wait_timeout_while(guard, limit, |log| !until(log))
            .expect("lock");
        assert!(!late.timed_out(), "nothing came for {limit:?}");
    }

    fn note(log: &(Mutex<Log>, Condvar), change: impl FnOnce(&mut Log)) {
        change(&mut log.0.lock().expect("lock"));
        log.1.notify_all();
    }
}

/// A token with logprob -(id mod 7)/4 - 1/8, and alternatives id+1, id+2, ... each 1 lower.
fn token(id: u32, top: Option<u32>) -> Event {
    let logprob = -((id % 7) as f32) / 4.0 - 0.125;
    Event::Token {
        token: id,
        logprob,
        top: alternatives(id, logprob, top),
        row_hash: None,
    }
}

fn alternatives(id: u32, logprob: f32, top: Option<u32>) -> Vec<(u32, f32)> {
    (0..top.unwrap_or(0))
        .map(|i| ((id + i) % 260, logprob - i as f32))
        .collect()
}

fn finished(reason: FinishReason, completion_tokens: u32) -> Event {
    Event::Finished {
        reason,
        stop_token: None,
        usage: Usage {
            completion_tokens,
            ..Usage::default()
        },
    }
}

impl Engine for ScriptedEngine {
    fn generate(&self, request: Request) -> Result<EventStream, Refusal> {
        let script = self.script.lock().expect("lock").clone();
        let busy = Refusal::Busy {
            queued: 8,
            limit: 8,
        };
        let (sender, receiver) = unbounded_channel();
        let log = self.log.0.lock().expect("lock");
        if log.most.is_some_and(|most| log.requests.len() >= most) {
            return Err(busy);
        }
        drop(log);
        let say = |event| sender.send(event).expect("the receiver is here");
        let tokens = match &script {
            Script::Busy => return Err(busy),
            Script::Panic => panic!("asked for"),
            Script::Say(t) | Script::Hold(t) | Script::Fail(t, _) | Script::Vanish(t) => t.clone(),
        };
        say(Event::Admitted { cached_tokens: 3 });
        if let Some(top) = request.prompt_logprobs {
            for (position, id) in request.prompt.iter().enumerate().skip(1) {
                say(Event::Prompt {
                    position: position as u32,
                    token: *id,
                    logprob: -0.25,
                    top: alternatives(*id, -0.25, Some(top)),
                });
            }
        }
        let most = request.max_tokens as usize;
        for id in tokens.iter().take(most) {
            say(token(*id, request.logprobs));
        }
        let keep = match script {
            Script::Say(_) if tokens.len() >= most => {
                say(finished(FinishReason::Length, request.max_tokens));
                None
            }
            Script::Say(_) => {
                say(finished(FinishReason::Stop, tokens.len() as u32 + 1));
                None
            }
            Script::Fail(_, kind) => {
                say(Event::Failed(Fault::new(Scope::Request, kind, "asked for")));
                None
            }
            Script::Hold(_) => Some(sender),
            _ => None,
        };
        Self::note(&self.log, |log| {
            log.requests.push(request);
            log.open.extend(keep);
        });
        let log = Arc::clone(&self.log);
        Ok(EventStream::new(receiver, move || {
            Self::note(&log, |log| log.cancelled += 1);
        }))
    }

    fn shut_down(&self) {
        let open = std::mem::take(&mut self.log.0.lock().expect("lock").open);
        for sender in open {
            let fault = Fault::new(Scope::Request, FaultKind::Shutdown, "shut down");
            // A cancelled one has no receiver.
            let _ = sender.send(Event::Failed(fault));
        }
    }

    fn state(&self) -> EngineState {
        self.state.lock().expect("lock").clone()
    }

    fn stats(&self) -> EngineStats {
        EngineStats {
            running: 2,
            waiting: 5,
            kv_blocks_used: 25,
            kv_blocks: 100,
            block_tokens: 16,
            prefix_queries: 40,
            prefix_hits: 30,
            preemptions: 1,
            drafted: 9,
            accepted: 4,
            steps: 9,
            restarts: 0,
        }
    }
}
