// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the host backend knows: handles, and who used what last.

use std::collections::HashMap;
use std::sync::Arc;

use metrale_core::{ArenaKind, MemoryPlan};
use metrale_host_kernels::team::Ticket;

use super::arenas::Arenas;
use super::bind::Bound;
use super::run::{Recorded, Runs};

/// Handles, and who used what last.
#[derive(Debug, Default)]
pub(super) struct State {
    next: u32,
    pub(super) arenas: HashMap<u32, (Arc<Arenas>, LastUse)>,
    pub(super) launches: HashMap<u32, Arc<Bound>>,
    pub(super) programs: HashMap<u32, Arc<Recorded>>,
    pub(super) runs: Runs,
}

impl State {
    /// A number that was never given before.
    pub(super) fn id(&mut self) -> u32 {
        self.next += 1;
        self.next
    }
}

/// The last work that used and that wrote each span.
#[derive(Debug)]
pub(super) struct LastUse {
    pub(super) used: Vec<Ticket>,
    pub(super) wrote: Vec<Ticket>,
    /// Span to entry: itself, or one for all activations.
    pub(super) entry: Vec<usize>,
}

impl LastUse {
    pub(super) fn new(plan: &MemoryPlan) -> LastUse {
        let shared = plan
            .spans
            .iter()
            .position(|s| s.arena == ArenaKind::Activations);
        let entry = plan.spans.iter().enumerate().map(|(i, span)| match shared {
            Some(first) if span.arena == ArenaKind::Activations => first,
            _ => i,
        });
        let none = vec![0; plan.spans.len()];
        LastUse {
            used: none.clone(),
            wrote: none,
            entry: entry.collect(),
        }
    }

    pub(super) fn mark(&mut self, span: u32, wrote: bool, ticket: Ticket) {
        let entry = self.entry[span as usize];
        self.used[entry] = ticket;
        if wrote {
            self.wrote[entry] = ticket;
        }
    }
}
