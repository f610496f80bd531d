// SPDX-License-Identifier: MIT OR Apache-2.0
//! The effect trace: what a driver did to the outside and what the outside answered, in order.
//!
//! [`Traced`] records it around any router. [`Trace::difference`] compares two schedulers effect by effect. [`Replay`]
//! answers from a trace, so that a run can be repeated without its device, and notes where the scheduler does otherwise.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::effect::Effect;
use crate::fault::{Fault, FaultKind, Scope};
use crate::outcome::StepOutcome;
use crate::plan::{StepPlan, TableDelta};
use crate::request::RequestId;
use crate::router::{
    ClockRouter, DeviceRouter, DraftRouter, Lookahead, Progress, Router, SpillRouter,
};

/// One crossing of the border.
#[derive(Clone, Debug, PartialEq)]
pub enum Entry<S> {
    /// The time that was told.
    Now(Duration),
    /// A step and how its submission ended.
    Submit(StepPlan<S>, Result<(), Fault>),
    /// A finished step, or the fault instead of it.
    Outcome(Result<StepOutcome, Fault>),
    /// A recovery: the fault, and how it ended.
    Recover(Fault, Result<(), Fault>),
    /// Blocks offered to the spill router, and whether it kept them.
    Spill(u64, Vec<TableDelta>, bool),
    /// Blocks wanted back, and whether they came.
    Restore(u64, Vec<TableDelta>, bool),
    /// Spilled blocks given up.
    Discard(u64),
    /// A request's drafts.
    Draft(RequestId, Vec<u32>),
    /// An effect of the planner.
    Effect(Effect),
}

/// Entries in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace<S> {
    /// The entries.
    pub entries: Vec<Entry<S>>,
}

/// The first place at which two traces differ. `None`: that trace has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference<S> {
    /// Index of the entry.
    pub at: usize,
    /// In the first trace.
    pub left: Option<Entry<S>>,
    /// In the second.
    pub right: Option<Entry<S>>,
}

impl<S: Clone + PartialEq> Trace<S> {
    /// The first difference to `other`; `None` if they are equal.
    #[must_use]
    pub fn difference(&self, other: &Trace<S>) -> Option<Difference<S>> {
        let most = self.entries.len().max(other.entries.len());
        (0..most)
            .find(|i| self.entries.get(*i) != other.entries.get(*i))
            .map(|at| Difference {
                at,
                left: self.entries.get(at).cloned(),
                right: other.entries.get(at).cloned(),
            })
    }
}

/// Records all that passes through a router.
pub struct Traced<R: Router> {
    inner: R,
    trace: TraceHandle<R::Sampling>,
}

/// Reads a trace that is being recorded.
pub struct TraceHandle<S>(Arc<Mutex<Vec<Entry<S>>>>);

impl<S> Clone for TraceHandle<S> {
    fn clone(&self) -> Self {
        TraceHandle(Arc::clone(&self.0))
    }
}

impl<S> TraceHandle<S> {
    /// Takes what was recorded so far.
    #[must_use]
    pub fn take(&self) -> Trace<S> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Trace {
            entries: std::mem::take(&mut entries),
        }
    }

    fn push(&self, entry: Entry<S>) {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.push(entry);
    }
}

impl<R: Router> Traced<R> {
    /// Records around `inner`.
    pub fn new(inner: R) -> (Traced<R>, TraceHandle<R::Sampling>) {
        let trace = TraceHandle(Arc::default());
        let traced = Traced {
            inner,
            trace: trace.clone(),
        };
        (traced, trace)
    }

    /// The router within.
    pub fn inner(&self) -> &R {
        &self.inner
    }
}

impl<R: Router> DeviceRouter for Traced<R> {
    type Sampling = R::Sampling;

    fn submit(&mut self, plan: &StepPlan<R::Sampling>) -> Result<(), Fault> {
        let result = self.inner.submit(plan);
        self.trace.push(Entry::Submit(plan.clone(), result.clone()));
        result
    }

    fn wait(&mut self, timeout: Duration, outcome: &mut StepOutcome) -> Result<Progress, Fault> {
        let result = self.inner.wait(timeout, outcome);
        match &result {
            Ok(Progress::Done) => self.trace.push(Entry::Outcome(Ok(outcome.clone()))),
            // How often the wait was begun again is the wall clock's doing.
            Ok(Progress::Running) => {}
            Err(fault) => self.trace.push(Entry::Outcome(Err(fault.clone()))),
        }
        result
    }

    fn lookahead(&self) -> Lookahead {
        self.inner.lookahead()
    }

    fn recover(&mut self, fault: &Fault) -> Result<(), Fault> {
        let result = self.inner.recover(fault);
        self.trace
            .push(Entry::Recover(fault.clone(), result.clone()));
        result
    }
}

impl<R: Router> ClockRouter for Traced<R> {
    fn now(&mut self) -> Duration {
        let now = self.inner.now();
        self.trace.push(Entry::Now(now));
        now
    }
}

impl<R: Router> SpillRouter for Traced<R> {
    fn spill(&mut self, key: u64, entries: &[TableDelta]) -> bool {
        let kept = self.inner.spill(key, entries);
        self.trace.push(Entry::Spill(key, entries.to_vec(), kept));
        kept
    }

    fn restore(&mut self, key: u64, entries: &[TableDelta]) -> bool {
        let came = self.inner.restore(key, entries);
        self.trace.push(Entry::Restore(key, entries.to_vec(), came));
        came
    }

    fn discard(&mut self, key: u64) {
        self.inner.discard(key);
        self.trace.push(Entry::Discard(key));
    }
}

impl<R: Router> DraftRouter for Traced<R> {
    fn draft(&mut self, request: RequestId, text: &[u32], most: u32, drafts: &mut Vec<u32>) {
        self.inner.draft(request, text, most, drafts);
        self.trace.push(Entry::Draft(request, drafts.clone()));
    }
}

impl<R: Router> Router for Traced<R> {
    fn observe(&mut self, effect: &Effect) {
        self.inner.observe(effect);
        self.trace.push(Entry::Effect(effect.clone()));
    }
}

/// A router that answers from a trace.
pub struct Replay<S> {
    trace: Trace<S>,
    at: usize,
    now: Duration,
    lookahead: Lookahead,
    difference: Option<Difference<S>>,
}

impl<S: Clone + PartialEq> Replay<S> {
    /// Answers from `trace`.
    #[must_use]
    pub fn new(trace: Trace<S>) -> Replay<S> {
        Replay {
            trace,
            at: 0,
            now: Duration::ZERO,
            lookahead: Lookahead::None,
            difference: None,
        }
    }

    /// As the router did whose trace it is.
    #[must_use]
    pub fn with_lookahead(self, lookahead: Lookahead) -> Replay<S> {
        Replay { lookahead, ..self }
    }

    /// Where the scheduler first did otherwise than the trace says. `None` so far: it did the same.
    #[must_use]
    pub fn difference(&self) -> Option<&Difference<S>> {
        self.difference.as_ref()
    }

    /// Entries of the trace that have not been played.
    #[must_use]
    pub fn left(&self) -> usize {
        self.trace.entries.len() - self.at
    }

    /// The next entry if `fits` takes an answer from it; else notes the difference to `done`.
    fn next<T>(&mut self, done: Entry<S>, fits: impl Fn(&Entry<S>) -> Option<T>) -> Option<T> {
        if self.difference.is_some() {
            return None;
        }
        let answer = self.trace.entries.get(self.at).and_then(fits);
        if answer.is_some() {
            self.at += 1;
        } else {
            self.difference = Some(Difference {
                at: self.at,
                left: self.trace.entries.get(self.at).cloned(),
                right: Some(done),
            });
        }
        answer
    }

    fn diverged(&self) -> Fault {
        let what = format!("the replay left its trace at entry {}", self.at);
        Fault::new(Scope::Device, FaultKind::Internal, what)
    }
}

impl<S: Clone + PartialEq> DeviceRouter for Replay<S> {
    type Sampling = S;

    fn submit(&mut self, plan: &StepPlan<S>) -> Result<(), Fault> {
        let answer = self.next(Entry::Submit(plan.clone(), Ok(())), |e| match e {
            Entry::Submit(p, r) if p == plan => Some(r.clone()),
            _ => None,
        });
        answer.unwrap_or_else(|| Err(self.diverged()))
    }

    fn wait(&mut self, _timeout: Duration, outcome: &mut StepOutcome) -> Result<Progress, Fault> {
        let answer = self.next(Entry::Outcome(Ok(StepOutcome::default())), |e| match e {
            Entry::Outcome(r) => Some(r.clone()),
            _ => None,
        });
        *outcome = answer.unwrap_or_else(|| Err(self.diverged()))?;
        Ok(Progress::Done)
    }

    fn lookahead(&self) -> Lookahead {
        self.lookahead
    }

    fn recover(&mut self, fault: &Fault) -> Result<(), Fault> {
        let answer = self.next(Entry::Recover(fault.clone(), Ok(())), |e| match e {
            Entry::Recover(f, r) if f == fault => Some(r.clone()),
            _ => None,
        });
        answer.unwrap_or_else(|| Err(self.diverged()))
    }
}

impl<S: Clone + PartialEq> ClockRouter for Replay<S> {
    fn now(&mut self) -> Duration {
        let answer = self.next(Entry::Now(self.now), |e| match e {
            Entry::Now(t) => Some(*t),
            _ => None,
        });
        self.now = answer.unwrap_or(self.now);
        self.now
    }
}

impl<S: Clone + PartialEq> SpillRouter for Replay<S> {
    fn spill(&mut self, key: u64, entries: &[TableDelta]) -> bool {
        self.next(Entry::Spill(key, entries.to_vec(), false), |e| match e {
            Entry::Spill(k, b, kept) if *k == key && b == entries => Some(*kept),
            _ => None,
        })
        .unwrap_or(false)
    }

    fn restore(&mut self, key: u64, entries: &[TableDelta]) -> bool {
        let done = Entry::Restore(key, entries.to_vec(), false);
        self.next(done, |e| match e {
            Entry::Restore(k, b, came) if *k == key && b == entries => Some(*came),
            _ => None,
        })
        .unwrap_or(false)
    }

    fn discard(&mut self, key: u64) {
        self.next(Entry::Discard(key), |e| {
            matches!(e, Entry::Discard(k) if *k == key).then_some(())
        });
    }
}

impl<S: Clone + PartialEq> DraftRouter for Replay<S> {
    fn draft(&mut self, request: RequestId, _text: &[u32], _most: u32, drafts: &mut Vec<u32>) {
        let answer = self.next(Entry::Draft(request, Vec::new()), |e| match e {
            Entry::Draft(r, tokens) if *r == request => Some(tokens.clone()),
            _ => None,
        });
        drafts.extend(answer.unwrap_or_default());
    }
}

impl<S: Clone + PartialEq> Router for Replay<S> {
    fn observe(&mut self, effect: &Effect) {
        self.next(Entry::Effect(effect.clone()), |e| {
            matches!(e, Entry::Effect(was) if was == effect).then_some(())
        });
    }
}
