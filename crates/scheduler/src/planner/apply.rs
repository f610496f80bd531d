// SPDX-License-Identifier: MIT OR Apache-2.0
//! From the device's outcome to events.

use super::{Planner, Seq};
use crate::constraint::Text;
use crate::effect::Effect;
use crate::event::{Event, FinishReason};
use crate::fault::{Fault, FaultKind, Scope};
use crate::kv::KvAccounts;
use crate::outcome::{RowOutcome, RowStatus, StepOutcome};
use crate::plan::{LogitRow, Segment};
use crate::request::RequestId;

impl<S: Clone> Planner<S> {
    /// Takes the outcome of the plan in flight.
    ///
    /// # Errors
    /// A fault of scope [`Scope::Device`] if the outcome does not have one row per logits row: the router broke its
    /// contract, nothing was applied, and the caller fails what runs.
    pub fn apply(
        &mut self,
        outcome: &StepOutcome,
        kv: &mut dyn KvAccounts,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Fault> {
        if outcome.rows.len() != self.plan.logits.len() {
            let what = format!(
                "the device answered {} logits rows of a step that has {}",
                outcome.rows.len(),
                self.plan.logits.len()
            );
            return Err(Fault::new(Scope::Device, FaultKind::Internal, what));
        }
        self.in_flight = false;
        let mut plan = std::mem::take(&mut self.plan);
        let mut rows = plan.logits.iter_mut().zip(&outcome.rows).peekable();
        for segment in &plan.segments {
            let slot = segment.slot;
            self.stored(segment, kv);
            let (mut counts, mut accepted) = (true, 0);
            while let Some((asked, got)) =
                rows.next_if(|(asked, _)| segment.rows.contains(&asked.row))
            {
                if !counts {
                    continue; // Behind a draft that was not drawn.
                }
                if let Some(last) = self.apply_row(asked, got, outcome, effects) {
                    let trusted = !matches!(last, Event::Failed(_));
                    self.end(slot, last, trusted, kv, effects);
                }
                let next = asked.row + 1;
                if (segment.known().end..segment.rows.end).contains(&next) {
                    counts = plan.tokens[next as usize] == got.token && self.accept(segment);
                    accepted += u32::from(counts);
                }
            }
            if segment.drafts > 0 {
                self.verified(segment, accepted, kv, effects);
            }
            self.after_segment(segment, kv, effects);
        }
        drop(rows);
        self.plan = plan;
        if std::mem::take(&mut self.ahead) {
            std::mem::swap(&mut self.plan, &mut self.next);
            self.in_flight = true;
        }
        Ok(())
    }

    /// Counts and publishes what a segment stored.
    fn stored(&mut self, segment: &Segment, kv: &mut dyn KvAccounts) {
        let slot = segment.slot;
        let Some(seq) = self.of(slot, segment.request) else {
            segment.save.into_iter().for_each(|p| kv.drop_snapshot(p));
            return;
        };
        seq.computed += segment.known().len() as u32;
        seq.flying_rows -= segment.known().len() as u32;
        seq.fresh = false;
        let computed = seq.computed;
        self.publish(slot, kv);
        if let Some(place) = segment.save {
            kv.keep_snapshot(slot, computed, place);
        }
    }

    /// Gives full blocks to the prefix cache.
    fn publish(&mut self, slot: u32, kv: &mut dyn KvAccounts) {
        if let Some(seq) = &mut self.slots[slot as usize]
            && seq.computed / self.block > seq.published
        {
            seq.published = seq.computed / self.block;
            let stored = &seq.tokens[..seq.computed as usize];
            kv.publish(slot, stored, &mut self.moved);
        }
    }

    /// The next draft is the token that was drawn: its row counts. False if the sequence has ended.
    fn accept(&mut self, segment: &Segment) -> bool {
        let seq = self.of(segment.slot, segment.request);
        seq.filter(|s| !s.cancelled).is_some_and(|seq| {
            seq.computed += 1;
            seq.flying_draws += 1;
            true
        })
    }

    /// Keeps what the accepted drafts stored, and takes back the blocks that only the others had.
    fn verified(
        &mut self,
        segment: &Segment,
        accepted: u32,
        kv: &mut dyn KvAccounts,
        effects: &mut Vec<Effect>,
    ) {
        let (slot, block) = (segment.slot, self.block);
        if let Some(len) = self.of(slot, segment.request).map(|s| s.len()) {
            self.publish(slot, kv);
            kv.shrink(slot, len.div_ceil(block));
        }
        effects.push(Effect::Verified {
            request: segment.request,
            drafted: segment.drafts,
            accepted,
        });
    }

    /// The sequence in `slot`, if it is still that of `request`: of a step that was submitted ahead, rows may have ended.
    fn of(&mut self, slot: u32, request: RequestId) -> Option<&mut Seq<S>> {
        let seq = self.slots[slot as usize].as_mut();
        seq.filter(|s| s.request.id == request)
    }

    /// One logits row. `Some` if it was the request's last.
    fn apply_row(
        &mut self,
        asked: &mut LogitRow<S>,
        got: &RowOutcome,
        outcome: &StepOutcome,
        effects: &mut Vec<Effect>,
    ) -> Option<Event> {
        // So that the sequence is the only holder of these, and they change in place.
        (asked.history, asked.mask) = (None, None);
        let capacity = self.capacity;
        let seq = self.of(asked.slot, asked.request)?;
        if asked.forced.is_none() {
            seq.flying_draws -= 1;
        }
        if seq.cancelled {
            return None; // The next plan reaps it.
        }
        if let Some(fault) = broken(got, asked.position) {
            return Some(Event::Failed(fault));
        }
        let (token, logprob) = (got.token, got.logprob);
        let top = || outcome.top_of(got).to_vec();
        let request = asked.request;
        let emit = |effects: &mut Vec<Effect>, event| effects.push(Effect::Emit { request, event });
        if let Some(token) = asked.forced {
            seq.next_prompt = asked.position + 1;
            let position = asked.position;
            emit(
                effects,
                Event::Prompt {
                    position,
                    token,
                    logprob,
                    top: top(),
                },
            );
            return None;
        }
        seq.generated += 1;
        let finished = |reason, stop_token, usage| Event::Finished {
            reason,
            stop_token,
            usage,
        };
        if seq.request.stop_tokens.contains(&token) {
            return Some(finished(FinishReason::Stop, Some(token), seq.usage()));
        }
        seq.tokens.push(token);
        if let Some(history) = &mut seq.history {
            history.push(token);
        }
        let row_hash = got.row_hash;
        emit(
            effects,
            Event::Token {
                token,
                logprob,
                top: top(),
                row_hash,
            },
        );
        let full = seq.generated >= seq.request.max_tokens || seq.len() >= capacity;
        let went = seq.constrain(token, !full);
        match went {
            Err(fault) => Some(Event::Failed(fault)),
            Ok(Text::Complete) => Some(finished(FinishReason::Stop, None, seq.usage())),
            Ok(Text::Open) => full.then(|| finished(FinishReason::Length, None, seq.usage())),
        }
    }

    /// Ends a request that only wanted its prompt run.
    fn after_segment(
        &mut self,
        segment: &Segment,
        kv: &mut dyn KvAccounts,
        effects: &mut Vec<Effect>,
    ) {
        let slot = segment.slot;
        let Some(seq) = self.of(slot, segment.request) else {
            return;
        };
        if seq.pending() == 0 && !seq.cancelled {
            let last = Event::Finished {
                reason: FinishReason::Length,
                stop_token: None,
                usage: seq.usage(),
            };
            self.end(slot, last, true, kv, effects);
        }
    }
}

/// Why a row cannot be used.
fn broken(row: &RowOutcome, position: u32) -> Option<Fault> {
    let (kind, why) = match row.status {
        RowStatus::Ok => return None,
        RowStatus::NonFinite => (FaultKind::NonFinite, "the logits hold a NaN or an infinity"),
        RowStatus::Empty => (
            FaultKind::NoToken,
            "every token is banned (logit_bias, min_tokens) or masked, none is left to draw",
        ),
    };
    let what = format!("no token can be drawn at position {position}: {why}");
    Some(Fault::new(Scope::Row, kind, what))
}
