// SPDX-License-Identifier: MIT OR Apache-2.0
//! The one driver loop: inbox, plan, device, effects.
//!
//! [`Driver::spawn`] gives it a thread that parks when there is nothing to do; a test calls [`Driver::turn`] by hand.
//!
//! Faults end where their scope says. A panic in a sink ends its request. A fault of scope `Step` or `Device`, or a panic
//! in planner, cache or router, fails all that run, and the loop goes on with the rest if [`DeviceRouter::recover`] says
//! that the device is fit; if not, everything fails and health says so.
//!
//! [`DeviceRouter::recover`]: crate::DeviceRouter::recover

use std::collections::{HashMap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::effect::Effect;
use crate::event::{Delivery, Event, EventSink, FinishReason};
use crate::fault::{Fault, FaultKind, Scope, message_of};
use crate::handle::{Handle, Health, Message, Shared, Stats};
use crate::kv::KvAccounts;
use crate::limits::{LimitsError, PlannerLimits};
use crate::outcome::StepOutcome;
use crate::planner::Planner;
use crate::request::{Refusal, RequestId};
use crate::router::{Lookahead, Progress, Router};

/// Longest wait for the device before the wait is begun again; bounds nothing but the router's call.
const WAIT: Duration = Duration::from_millis(250);
/// How often the loop looks again while requests wait for blocks that nothing running will free (the pool is still being
/// populated).
const LOOK: Duration = Duration::from_millis(2);

/// Joins a planner, a router and the KV accounts.
pub struct Driver<R: Router, K> {
    planner: Planner<R::Sampling>,
    router: R,
    kv: K,
    sinks: HashMap<RequestId, Box<dyn EventSink>>,
    shared: Arc<Shared<R::Sampling>>,
    stats: Stats,
    /// Steps submitted and not applied.
    flying: u32,
    // Buffers of a turn.
    messages: VecDeque<Message<R::Sampling>>,
    effects: Vec<Effect>,
    outcome: StepOutcome,
}

/// What a turn of the loop did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// A step ran, or failed.
    Ran,
    /// Requests wait, and none can run now.
    Waiting,
    /// There is no request.
    Idle,
    /// Drained or shut down: nothing will happen any more.
    Stopped,
}

impl<R: Router, K: KvAccounts> Driver<R, K> {
    /// A driver without requests.
    ///
    /// # Errors
    /// [`LimitsError`] if the limits contradict each other.
    pub fn new(limits: PlannerLimits, router: R, kv: K) -> Result<Driver<R, K>, LimitsError> {
        let planner = Planner::new(limits, &kv)?;
        let shared = Shared::new(planner.limits().clone(), planner.capacity());
        Ok(Driver {
            planner,
            router,
            kv,
            sinks: HashMap::new(),
            shared: Arc::new(shared),
            stats: Stats::default(),
            flying: 0,
            messages: VecDeque::new(),
            effects: Vec::new(),
            outcome: StepOutcome::default(),
        })
    }

    /// A handle for other threads. When the last one is dropped the driver drains.
    #[must_use]
    pub fn handle(&self) -> Handle<R::Sampling> {
        Handle::new(Arc::clone(&self.shared))
    }

    /// Runs the loop on a thread of its own until it is drained or shut down.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn spawn(self, name: &str) -> io::Result<JoinHandle<()>>
    where
        R: Send + 'static,
        R::Sampling: Send + 'static,
        K: Send + 'static,
    {
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || self.run())
    }

    /// Runs the loop until it is drained or shut down.
    pub fn run(mut self) {
        loop {
            match self.turn() {
                Turn::Ran => {}
                Turn::Waiting => self.shared.park(Some(LOOK)),
                Turn::Idle => self.shared.park(None),
                Turn::Stopped => return,
            }
        }
    }

    /// One turn: takes the inbox, and runs one step if there is one to run.
    pub fn turn(&mut self) -> Turn {
        let turn = match catch_unwind(AssertUnwindSafe(|| self.try_turn())) {
            Ok(turn) => turn,
            Err(panic) => {
                let what = format!("the engine loop panicked: {}", message_of(&*panic));
                self.fault(&Fault::new(Scope::Device, FaultKind::Internal, what));
                Turn::Ran
            }
        };
        self.report();
        turn
    }

    fn try_turn(&mut self) -> Turn {
        if !self.take_inbox() {
            return Turn::Stopped;
        }
        let done = match self.flying {
            0 => match self.first() {
                Ok(true) => self.step(),
                Ok(false) => {
                    self.deliver();
                    return self.resting();
                }
                Err(fault) => Err(fault),
            },
            _ => self.step(),
        };
        if let Err(fault) = done {
            self.fault(&fault);
        }
        self.deliver(); // While the device works on the next step, if that was submitted.
        Turn::Ran
    }

    /// Plans and submits a step where none is in flight. False: there is none to run.
    fn first(&mut self) -> Result<bool, Fault> {
        self.planner.draft(&mut self.router);
        let now = self.router.now();
        // The planner wants the spill router alone, and the router is one value: both faces of it, one at a time.
        let Some(plan) = self
            .planner
            .plan(now, &mut self.kv, &mut self.router, &mut self.effects)
        else {
            return Ok(false);
        };
        self.stats.rows += u64::from(plan.rows());
        self.stats.steps += 1;
        self.router.submit(plan)?;
        self.flying = 1;
        Ok(true)
    }

    /// Finishes the step in flight; where the router takes steps ahead, with the next one planned meanwhile and submitted.
    fn step(&mut self) -> Result<(), Fault> {
        let lookahead = self.router.lookahead();
        let mut ahead = self.flying > 1;
        if !ahead
            && let Some(plan) = self.planner.plan_ahead(
                lookahead,
                &mut self.kv,
                &mut self.router,
                &mut self.effects,
            )
        {
            ahead = true;
            if lookahead == Lookahead::Slot {
                self.stats.rows += u64::from(plan.rows());
                self.stats.steps += 1;
                self.router.submit(plan)?;
                self.flying = 2;
            }
        }
        self.deliver(); // While the device works.
        self.outcome.clear();
        while self.router.wait(WAIT, &mut self.outcome)? == Progress::Running {}
        self.planner
            .apply(&self.outcome, &mut self.kv, &mut self.effects)?;
        self.flying -= 1;
        if lookahead == Lookahead::None {
            return Ok(()); // The next plan reaps.
        }
        // What came while the device worked need not wait for the step after next.
        if !self.take_inbox() {
            return Ok(());
        }
        let now = self.router.now();
        self.planner
            .reap(now, &mut self.kv, &mut self.router, &mut self.effects);
        let late = ahead && lookahead == Lookahead::Late;
        if late {
            self.planner.draft(&mut self.router);
        }
        let resolved = late
            && self
                .planner
                .resolve(&mut self.kv, &mut self.router, &mut self.effects)
                .is_some();
        self.planner.stepped(now);
        if resolved {
            let plan = self.planner.current();
            self.stats.rows += u64::from(plan.rows());
            self.stats.steps += 1;
            self.router.submit(plan)?;
            self.flying = 1;
        }
        Ok(())
    }

    /// Waits for what is in flight, whose outcome nobody wants any more.
    fn settle(&mut self) {
        for _ in 0..std::mem::take(&mut self.flying) {
            self.outcome.clear();
            while matches!(
                self.router.wait(WAIT, &mut self.outcome),
                Ok(Progress::Running)
            ) {}
        }
    }

    /// Nothing can run: because of what?
    fn resting(&self) -> Turn {
        let mut inbox = self.shared.lock();
        if self.planner.waiting() > 0 || !inbox.messages.is_empty() {
            return Turn::Waiting;
        }
        if inbox.health == Health::Serving {
            return Turn::Idle;
        }
        inbox.health = Health::Stopped;
        Turn::Stopped
    }

    /// Takes what the handles sent. `false`: there is nothing left to do, ever.
    fn take_inbox(&mut self) -> bool {
        let mut messages = std::mem::take(&mut self.messages);
        {
            let mut inbox = self.shared.lock();
            if matches!(inbox.health, Health::Stopped | Health::Failed(_)) {
                return false;
            }
            std::mem::swap(&mut messages, &mut inbox.messages);
            inbox.queued += inbox.submissions;
            inbox.submissions = 0;
        }
        let mut stop = false;
        for message in messages.drain(..) {
            match message {
                Message::Submit(request, sink) => self.take(request, sink),
                Message::Cancel(id) => self.planner.cancel(id),
                Message::Shutdown => stop = true,
            }
        }
        self.messages = messages;
        if stop {
            self.settle();
            let what = "the engine was shut down before the answer was complete";
            let fault = Fault::new(Scope::Request, FaultKind::Shutdown, what);
            self.stop(Health::Stopped, &fault);
        }
        !stop
    }

    /// Fails everything, what still stands in the inbox included, and takes no more.
    fn stop(&mut self, health: Health, fault: &Fault) {
        let rest = {
            let mut inbox = self.shared.lock();
            inbox.health = health;
            std::mem::take(&mut inbox.messages)
        };
        for message in rest {
            if let Message::Submit(request, sink) = message {
                self.take(request, sink);
            }
        }
        self.planner
            .fail_running(fault, &mut self.kv, &mut self.effects);
        self.planner
            .fail_waiting(fault, &mut self.router, &mut self.effects);
        self.deliver();
    }

    fn take(&mut self, request: crate::Request<R::Sampling>, mut sink: Box<dyn EventSink>) {
        let id = request.id;
        let now = self.router.now();
        match self.planner.submit(request, now) {
            Ok(()) => {
                self.sinks.insert(id, sink);
            }
            // The handle checked what can be checked outside: this is a constraint that cannot begin, or a reused id.
            Err(refusal) => {
                let fault = match refusal {
                    Refusal::Constraint(fault) => fault,
                    other => Fault::new(Scope::Request, FaultKind::Internal, other.to_string()),
                };
                tell(&mut *sink, Event::Failed(fault));
            }
        }
    }

    /// A fault of the step or the device, or a panic of ours.
    fn fault(&mut self, fault: &Fault) {
        self.flying = 0;
        self.stats.restarts += 1;
        self.recovering(Some(fault));
        // A panic may have left any of these half changed: what fails here is given up with the rest.
        let Driver {
            planner,
            kv,
            router,
            effects,
            ..
        } = self;
        let recovered = catch_unwind(AssertUnwindSafe(|| {
            planner.fail_running(fault, kv, effects);
            let recovered = router.recover(fault);
            // Who waits and was cancelled ends within this turn too.
            planner.reap(router.now(), kv, router, effects);
            recovered
        }));
        let lost = match recovered {
            Ok(Ok(())) => None,
            Ok(Err(lost)) => Some(lost.what),
            Err(panic) => Some(format!("recovery panicked: {}", message_of(&*panic))),
        };
        self.recovering(None);
        self.deliver();
        self.fail_orphans(fault);
        if let Some(what) = lost {
            let fault = Fault::new(Scope::Device, FaultKind::Device, what.clone());
            self.stop(Health::Failed(what), &fault);
        }
    }

    /// Tells health that a recovery begins, or has ended. A server that drains goes on saying so.
    fn recovering(&self, fault: Option<&Fault>) {
        let mut inbox = self.shared.lock();
        match (fault, &inbox.health) {
            (Some(fault), Health::Serving) => {
                inbox.health = Health::Recovering(fault.what.clone());
            }
            (None, Health::Recovering(_)) => inbox.health = Health::Serving,
            _ => {}
        }
    }

    /// A panic may have dropped a sequence on the way from one place to another: its sink is still owed its last event.
    fn fail_orphans(&mut self, fault: &Fault) {
        let Driver { sinks, planner, .. } = self;
        sinks.retain(|id, sink| {
            let lives = planner.lives(*id);
            if !lives {
                tell(&mut **sink, Event::Failed(fault.clone()));
            }
            lives
        });
    }

    /// Carries the effects out. A sink that is gone cancels its request.
    fn deliver(&mut self) {
        for effect in self.effects.drain(..) {
            self.router.observe(&effect);
            match effect {
                Effect::Preempt { .. } => self.stats.preemptions += 1,
                Effect::Verified {
                    drafted, accepted, ..
                } => {
                    self.stats.drafted += u64::from(drafted);
                    self.stats.accepted += u64::from(accepted);
                }
                Effect::Emit { request, event } => {
                    count(&mut self.stats, &event);
                    let last = event.is_last();
                    let Some(sink) = self.sinks.get_mut(&request) else {
                        continue;
                    };
                    let gone = tell(&mut **sink, event) == Delivery::Gone;
                    if gone || last {
                        self.sinks.remove(&request);
                    }
                    if gone && !last {
                        self.planner.cancel(request);
                    }
                }
            }
        }
    }

    fn report(&mut self) {
        self.stats.running = self.planner.running();
        self.stats.waiting = self.planner.waiting();
        self.stats.kv_blocks = self.kv.total_blocks();
        self.stats.kv_available = self.kv.available_blocks();
        self.stats.kv_used = self.kv.used_blocks();
        let mut inbox = self.shared.lock();
        inbox.stats = self.stats;
        inbox.queued = self.planner.queued();
    }

    /// The KV accounts, for tests.
    #[must_use]
    pub fn kv(&self) -> &K {
        &self.kv
    }

    /// The router, for tests.
    #[must_use]
    pub fn router(&self) -> &R {
        &self.router
    }
}

impl<R: Router, K> Drop for Driver<R, K> {
    fn drop(&mut self) {
        let mut inbox = self.shared.lock();
        if !matches!(inbox.health, Health::Failed(_)) {
            inbox.health = Health::Stopped;
        }
        inbox.messages.clear();
    }
}

/// Gives a sink an event; a panic in it counts as gone.
fn tell(sink: &mut dyn EventSink, event: Event) -> Delivery {
    catch_unwind(AssertUnwindSafe(|| sink.deliver(event))).unwrap_or(Delivery::Gone)
}

fn count(stats: &mut Stats, event: &Event) {
    match event {
        Event::Admitted { cached_tokens } => stats.cached_tokens += u64::from(*cached_tokens),
        Event::Prompt { .. } => {}
        Event::Token { .. } => stats.generated_tokens += 1,
        Event::Failed(_) => stats.failed += 1,
        Event::Finished {
            reason,
            usage,
            stop_token,
        } => {
            stats.prompt_tokens += u64::from(usage.prompt_tokens);
            stats.generated_tokens += u64::from(stop_token.is_some());
            match reason {
                FinishReason::Cancelled => stats.cancelled += 1,
                FinishReason::Stop | FinishReason::Length => stats.finished += 1,
            }
        }
    }
}
