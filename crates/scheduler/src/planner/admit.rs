// SPDX-License-Identifier: MIT OR Apache-2.0
//! From the head of the queue to a slot.

use super::{Planner, Seq, entries_of};
use crate::effect::Effect;
use crate::event::Event;
use crate::kv::{Admission, KvAccounts};
use crate::plan::{StateRestore, TableDelta};
use crate::router::{Lookahead, SpillRouter};

impl<S: Clone> Planner<S> {
    /// Admissions, strictly from the head of the queue.
    pub(super) fn admit(
        &mut self,
        kv: &mut dyn KvAccounts,
        spill: &mut dyn SpillRouter,
        effects: &mut Vec<Effect>,
    ) {
        while self.left.prefill.min(self.left.rows).min(self.left.logits) > 0 {
            let Some(head) = self.waiting.front() else {
                return;
            };
            if self.mode != Lookahead::None && head.cancelled {
                return;
            }
            let Some(slot) = self.slots.iter().position(Option::is_none) else {
                return;
            };
            let reuse = !head.reports_prompt();
            if self.mode != Lookahead::None {
                let (namespace, tokens) = (head.request.namespace, &head.tokens);
                self.between =
                    head.spilled.is_some() || reuse && kv.restorable(namespace, tokens) > 0;
                if self.between {
                    return;
                }
            }
            if self.limits.share_prefill && self.is_being_computed(head, kv) {
                return;
            }
            let admission = Admission {
                namespace: head.request.namespace,
                tokens: &head.tokens,
                reuse,
                spare: self.running.len() as u32,
                restore: self.mode == Lookahead::None,
            };
            let slot = slot as u32;
            let spare = admission.spare;
            let Some(mut attached) = kv.admit(slot, &admission) else {
                return;
            };
            let Some(mut seq) = self.waiting.pop_front() else {
                return;
            };
            seq.drafting = self.limits.max_drafts > 0
                && kv.snapshot_every().is_none()
                && !seq.request.history
                && seq.request.bias.is_empty()
                && !seq.has_moving_mask();
            seq.make_room(self.capacity, self.limits.max_drafts);
            let kept = self.restore(&mut seq, slot, attached.cached, kv, spill);
            if kept.is_none() && self.entries.iter().any(|e| e.slot != slot) {
                // Windows went on to where the kept tokens end; the rows begin at the cached prefix after all.
                kv.release(slot, &[]);
                let admission = Admission {
                    namespace: seq.request.namespace,
                    tokens: &seq.tokens,
                    reuse,
                    spare,
                    restore: self.mode == Lookahead::None,
                };
                let Some(again) = kv.admit(slot, &admission) else {
                    self.waiting.push_front(seq);
                    return;
                };
                attached = again;
            }
            seq.computed = attached.cached;
            seq.published = seq.computed / self.block;
            let state = attached.state.map(|place| StateRestore { slot, place });
            self.plan.restores.extend(state);
            seq.fresh = true;
            match kept {
                Some(tokens) => seq.computed = tokens,
                None => self.plan.copies.extend(attached.copy),
            }
            for (index, block) in kv.table(slot).iter().enumerate() {
                self.plan.tables.push(TableDelta {
                    slot,
                    index: index as u32,
                    block: *block,
                });
            }
            kv.window_entries(slot, &mut self.plan.tables);
            if seq.cached.is_none() {
                seq.cached = Some(attached.cached);
                effects.push(Effect::Emit {
                    request: seq.request.id,
                    event: Event::Admitted {
                        cached_tokens: attached.cached,
                    },
                });
            }
            let pending = seq.todo();
            self.slots[slot as usize] = Some(seq);
            self.run(slot);
            let rows = self.push_rows(slot, pending.min(self.left.prefill), kv);
            self.left.prefill -= rows;
        }
    }

    /// Puts a slot at its place among those that run.
    fn run(&mut self, slot: u32) {
        let rank = self.seq(slot).rank;
        let at = self.running.partition_point(|s| self.seq(*s).rank < rank);
        self.running.insert(at, slot);
    }

    /// Whether a running sequence is about to store more of the first blocks of `head` than the cache holds.
    fn is_being_computed(&self, head: &Seq<S>, kv: &dyn KvAccounts) -> bool {
        if head.reports_prompt() {
            return false;
        }
        let mut cached = None;
        self.running.iter().any(|slot| {
            let other = self.seq(*slot);
            if other.pending() <= 1 || other.request.namespace != head.request.namespace {
                return false;
            }
            let most = (head.len() - 1).min(other.len()) as usize;
            let common = head.tokens[..most]
                .iter()
                .zip(&other.tokens[..most])
                .take_while(|(a, b)| a == b)
                .count() as u32;
            let common = common / self.block * self.block;
            let cached =
                *cached.get_or_insert_with(|| kv.cached(head.request.namespace, &head.tokens));
            common > cached && other.computed < common
        })
    }

    /// Brings spilled KV back behind the cached prefix. How many tokens are stored then; `None` if it did not, and
    /// `self.entries` are those that were wanted.
    fn restore(
        &mut self,
        seq: &mut Seq<S>,
        slot: u32,
        cached: u32,
        kv: &mut dyn KvAccounts,
        spill: &mut dyn SpillRouter,
    ) -> Option<u32> {
        self.entries.clear();
        let kept = seq.spilled.take()?;
        let (first, used) = (cached / self.block, kept.div_ceil(self.block));
        let mut gained = kept > cached;
        if gained {
            let blocks = &kv.table(slot)[first as usize..used as usize];
            entries_of(blocks, slot, first, &mut self.entries);
            // Groups beside the first one: the blocks that the row behind the kept tokens reads.
            gained = kv.prepare(slot, kept, 0, &mut self.entries)
                && spill.restore(seq.request.id.0, &self.entries);
        }
        if !gained {
            spill.discard(seq.request.id.0);
        }
        gained.then_some(kept)
    }
}
