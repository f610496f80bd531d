// SPDX-License-Identifier: MIT OR Apache-2.0
//! How requests come in, and how they leave before they are done.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Budget, Planner, Seq};
use crate::effect::Effect;
use crate::event::{Event, FinishReason};
use crate::fault::{Fault, FaultKind, Scope};
use crate::kv::KvAccounts;
use crate::limits::{LimitsError, PlannerLimits};
use crate::plan::StepPlan;
use crate::policy::Pace;
use crate::request::{Refusal, Request, RequestId};
use crate::router::{Lookahead, SpillRouter};

impl<S: Clone> Planner<S> {
    /// A planner without requests, for a pool of the size that `kv` states.
    ///
    /// # Errors
    /// [`LimitsError`] if the limits contradict each other.
    pub fn new(limits: PlannerLimits, kv: &dyn KvAccounts) -> Result<Planner<S>, LimitsError> {
        limits.validate()?;
        let block = kv.block_tokens();
        Ok(Planner {
            capacity: limits
                .max_seq_len
                .min(kv.total_blocks().saturating_mul(block)),
            block,
            slots: (0..limits.max_num_seqs).map(|_| None).collect(),
            running: Vec::with_capacity(limits.max_num_seqs as usize),
            waiting: VecDeque::new(),
            plan: StepPlan::default(),
            in_flight: false,
            next: StepPlan::default(),
            ahead: false,
            between: false,
            mode: Lookahead::None,
            left: Budget::default(),
            drafting: false,
            later: false,
            moved: Vec::new(),
            entries: Vec::new(),
            owed: (Vec::new(), Vec::new()),
            arrivals: 0,
            pace: Pace::default(),
            limits,
        })
    }

    /// The limits.
    #[must_use]
    pub fn limits(&self) -> &PlannerLimits {
        &self.limits
    }

    /// Most tokens of a sequence: the context length, or what the whole KV pool holds.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Sequences that run.
    #[must_use]
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Sequences that wait, preempted ones included.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Sequences that wait and were never admitted: what [`PlannerLimits::queue_len`] bounds.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.waiting.iter().filter(|s| s.cached.is_none()).count()
    }

    /// Puts a request into the queue.
    ///
    /// # Errors
    /// [`Refusal`]; nothing of the request is kept.
    pub fn submit(&mut self, request: Request<S>, now: Duration) -> Result<(), Refusal> {
        self.limits.check(self.capacity, &request)?;
        if self.queued() >= self.limits.queue_len {
            return Err(Refusal::Busy {
                queued: self.queued(),
                limit: self.limits.queue_len,
            });
        }
        if self.lives(request.id) {
            return Err(Refusal::DuplicateId(request.id));
        }
        let rank = self.limits.policy.rank(&request, now, self.arrivals + 1);
        let seq = Seq::new(request, now, rank).map_err(Refusal::Constraint)?;
        self.arrivals += 1;
        self.enqueue(seq);
        Ok(())
    }

    /// Puts a sequence at its place in the queue.
    pub(super) fn enqueue(&mut self, seq: Seq<S>) {
        let at = self.waiting.partition_point(|s| s.rank < seq.rank);
        self.waiting.insert(at, seq);
    }

    /// Whether a request of this id runs or waits.
    #[must_use]
    pub fn lives(&self, id: RequestId) -> bool {
        let mut live = self.slots.iter().flatten().chain(&self.waiting);
        live.any(|s| s.request.id == id)
    }

    /// Marks a request as cancelled; the next plan or apply frees it and emits its last event. An unknown id is one that
    /// ended already: nothing happens.
    pub fn cancel(&mut self, id: RequestId) {
        let mut live = self.slots.iter_mut().flatten().chain(&mut self.waiting);
        if let Some(seq) = live.find(|s| s.request.id == id) {
            seq.cancelled = true;
        }
    }

    /// Ends what was cancelled and what is past its deadline. Between [`Planner::apply`] and the next plan; of a step that is
    /// planned ahead, the rows of what ends here count for nothing.
    pub fn reap(
        &mut self,
        now: Duration,
        kv: &mut dyn KvAccounts,
        spill: &mut dyn SpillRouter,
        effects: &mut Vec<Effect>,
    ) {
        let late = |seq: &Seq<S>| seq.deadline.is_some_and(|d| d <= now);
        for slot in 0..self.slots.len() as u32 {
            if let Some(seq) = &self.slots[slot as usize]
                && (seq.cancelled || late(seq))
            {
                let last = farewell(seq);
                self.end(slot, last, true, kv, effects);
            }
        }
        self.waiting.retain(|seq| {
            let ends = seq.cancelled || late(seq);
            if ends {
                leave_queue(seq, farewell(seq), spill, effects);
            }
            !ends
        });
    }

    /// Fails every running request with `fault`; the step in flight counts for nothing. After a fault of scope
    /// [`Scope::Device`] the pool is empty.
    pub fn fail_running(
        &mut self,
        fault: &Fault,
        kv: &mut dyn KvAccounts,
        effects: &mut Vec<Effect>,
    ) {
        let lost = fault.scope >= Scope::Device;
        if lost {
            kv.reset();
        } else {
            let flying = [(self.in_flight, &self.plan), (self.ahead, &self.next)];
            let plans = flying.into_iter().filter(|f| f.0).map(|f| f.1);
            let saves = plans.flat_map(|p| p.segments.iter().filter_map(|s| s.save));
            saves.for_each(|place| kv.drop_snapshot(place));
        }
        (self.in_flight, self.ahead) = (false, false);
        self.running.clear();
        for slot in 0..self.slots.len() as u32 {
            let Some(seq) = self.slots[slot as usize].take() else {
                continue;
            };
            if !lost {
                // Only what was published: of the rest, a block copy may not have been done.
                let stored = seq.published * self.block;
                kv.release(slot, &seq.tokens[..stored as usize]);
            }
            effects.push(Effect::Emit {
                request: seq.request.id,
                event: Event::Failed(fault.clone()),
            });
        }
        self.moved.clear();
        self.owed.0.clear();
        self.owed.1.clear();
    }

    /// Fails every waiting request with `fault`.
    pub fn fail_waiting(
        &mut self,
        fault: &Fault,
        spill: &mut dyn SpillRouter,
        effects: &mut Vec<Effect>,
    ) {
        for seq in std::mem::take(&mut self.waiting) {
            leave_queue(&seq, Event::Failed(fault.clone()), spill, effects);
        }
    }

    /// Frees a running sequence and emits its last event.
    pub(super) fn end(
        &mut self,
        slot: u32,
        last: Event,
        trusted: bool,
        kv: &mut dyn KvAccounts,
        effects: &mut Vec<Effect>,
    ) {
        let Some(seq) = self.slots[slot as usize].take() else {
            return;
        };
        let stored = match trusted {
            false => 0,
            true if seq.fresh => seq.published * self.block,
            true => seq.computed,
        };
        kv.release(slot, &seq.tokens[..stored as usize]);
        self.running.retain(|s| *s != slot);
        self.moved.retain(|t| t.slot != slot);
        effects.push(Effect::Emit {
            request: seq.request.id,
            event: last,
        });
    }
}

impl PlannerLimits {
    /// Checks a request against the limits; `capacity` is [`Planner::capacity`].
    ///
    /// # Errors
    /// [`Refusal`], without looking at the queue.
    pub fn check<S>(&self, capacity: u32, request: &Request<S>) -> Result<(), Refusal> {
        let tokens = request.prompt.len();
        if tokens == 0 {
            return Err(Refusal::EmptyPrompt);
        }
        if tokens >= self.max_seq_len as usize {
            return Err(Refusal::PromptTooLong {
                tokens,
                limit: self.max_seq_len as usize,
            });
        }
        if tokens >= capacity as usize {
            return Err(Refusal::PromptExceedsPool {
                tokens,
                limit: capacity as usize,
            });
        }
        let banned = if request.min_tokens > 0 {
            request.stop_tokens.len()
        } else {
            0
        };
        let entries = request.bias.len() + banned;
        if entries > self.max_bias as usize {
            return Err(Refusal::TooManyBias {
                entries,
                limit: self.max_bias as usize,
            });
        }
        Ok(())
    }
}

fn farewell<S: Clone>(seq: &Seq<S>) -> Event {
    if seq.cancelled {
        Event::Finished {
            reason: FinishReason::Cancelled,
            stop_token: None,
            usage: seq.usage(),
        }
    } else {
        Event::Failed(Fault::new(
            Scope::Request,
            FaultKind::Deadline,
            format!(
                "the request's deadline passed after {} of at most {} tokens",
                seq.generated, seq.request.max_tokens
            ),
        ))
    }
}

fn leave_queue<S>(
    seq: &Seq<S>,
    last: Event,
    spill: &mut dyn SpillRouter,
    effects: &mut Vec<Effect>,
) {
    if seq.spilled.is_some() {
        spill.discard(seq.request.id.0);
    }
    effects.push(Effect::Emit {
        request: seq.request.id,
        event: last,
    });
}
