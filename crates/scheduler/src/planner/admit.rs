// SPDX-License-Identifier: MIT OR Apache-2.0
//! From the head of the queue to a slot.

use super::{Planner, Seq};
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
            let Some(attached) = kv.admit(slot, &admission) else {
                return;
            };
            let Some(mut seq) = self.waiting.pop_front() else {
                return;
            };
            seq.drafting = self.limits.max_drafts > 0
                && kv.snapshot_every().is_none()
                && !seq.request.history
                && seq.request.bias.is_empty();
            seq.make_room(self.capacity, self.limits.max_drafts);
            seq.computed = attached.cached;
            seq.published = seq.computed / self.block;
            let state = attached.state.map(|place| StateRestore { slot, place });
            self.plan.restores.extend(state);
            seq.fresh = true;
            if !restore(&mut seq, slot, kv, spill, self.block) {
                self.plan.copies.extend(attached.copy);
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
}

/// Brings spilled KV back behind the cached prefix. Whether it did.
fn restore<S: Clone>(
    seq: &mut Seq<S>,
    slot: u32,
    kv: &mut dyn KvAccounts,
    spill: &mut dyn SpillRouter,
    block: u32,
) -> bool {
    let Some(kept) = seq.spilled.take() else {
        return false;
    };
    let first = seq.computed / block;
    let used = kept.div_ceil(block);
    let gained = kept > seq.computed
        && spill.restore(
            seq.request.id.0,
            first,
            &kv.table(slot)[first as usize..used as usize],
        );
    if gained {
        seq.computed = kept;
    } else {
        spill.discard(seq.request.id.0);
    }
    gained
}
