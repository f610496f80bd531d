// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory plan: every byte on the device, decided before anything is loaded.
//!
//! A span is a named range of an arena. Its size is a formula ([`Extent`]) over the plan's limits, so that the same group
//! serves every row bucket. The circuit proves that spans which live at the same time are disjoint, or the same span
//! declared in-place.

use crate::elem::Elem;

/// Index into [`MemoryPlan::spans`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpanId(pub u32);

/// What an arena is for; each is one reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ArenaKind {
    /// Packed weights and constants: written at load, then only read.
    Weights,
    /// Activations of a step: dead between steps.
    Activations,
    /// The paged KV pool.
    Kv,
    /// State that lives across steps and is no KV: block tables.
    State,
    /// What the host reads back after a step.
    Outputs,
    /// Raw disk rows on their way into a pack launch.
    Staging,
}

impl ArenaKind {
    /// Every kind, in a fixed order.
    pub const ALL: [ArenaKind; 6] = [
        ArenaKind::Weights,
        ArenaKind::Activations,
        ArenaKind::Kv,
        ArenaKind::State,
        ArenaKind::Outputs,
        ArenaKind::Staging,
    ];

    /// The name in printed plans.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ArenaKind::Weights => "weights",
            ArenaKind::Activations => "activations",
            ArenaKind::Kv => "kv",
            ArenaKind::State => "state",
            ArenaKind::Outputs => "outputs",
            ArenaKind::Staging => "staging",
        }
    }
}

/// What an extent is counted per.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// Once.
    One,
    /// Per row of the step.
    Row,
    /// Per logits row of the step.
    LogitsRow,
    /// Per KV block of the pool.
    KvBlock,
    /// Per sequence slot.
    Slot,
}

/// `elems` values per `unit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// What it is counted per.
    pub unit: Unit,
    /// Values per unit.
    pub elems: u64,
}

/// One named range of an arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Readable name (`L3.qkv`).
    pub name: String,
    /// Its arena.
    pub arena: ArenaKind,
    /// Offset in bytes from the start of the arena, a multiple of [`MemoryPlan::ALIGN`].
    pub offset: u64,
    /// Size in bytes at the plan's limits.
    pub bytes: u64,
    /// Format of its values; packed weights keep the format they were packed from, their bytes are the class's own.
    pub elem: Elem,
    /// The formula behind `bytes`.
    pub extent: Extent,
    /// First and last group (index in the plan) that touch it; `None` for spans that outlive steps.
    pub live: Option<(u32, u32)>,
}

/// All spans of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// By [`SpanId`].
    pub spans: Vec<Span>,
}

impl MemoryPlan {
    /// Alignment of every span in bytes: enough for any vector load and for CUDA's coalescing.
    pub const ALIGN: u64 = 256;

    /// A span by id.
    ///
    /// # Panics
    /// If the id is of another plan.
    #[must_use]
    pub fn span(&self, id: SpanId) -> &Span {
        &self.spans[id.0 as usize]
    }

    /// A span by name: for tests, taps and printing.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<SpanId> {
        self.spans
            .iter()
            .position(|s| s.name == name)
            .map(|i| SpanId(i as u32))
    }

    /// Bytes of an arena: the end of its last span.
    #[must_use]
    pub fn arena_bytes(&self, kind: ArenaKind) -> u64 {
        self.spans
            .iter()
            .filter(|s| s.arena == kind)
            .map(|s| s.offset + s.bytes)
            .max()
            .unwrap_or(0)
    }

    /// Bytes of all arenas.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        ArenaKind::ALL.iter().map(|k| self.arena_bytes(*k)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arenas_end_at_their_last_span() {
        let span = |name: &str, arena, offset, bytes| Span {
            name: name.into(),
            arena,
            offset,
            bytes,
            elem: Elem::F32,
            extent: Extent {
                unit: Unit::One,
                elems: bytes / 4,
            },
            live: None,
        };
        let plan = MemoryPlan {
            spans: vec![
                span("a", ArenaKind::Activations, 256, 64),
                span("b", ArenaKind::Activations, 0, 1024),
                span("w", ArenaKind::Weights, 512, 4),
            ],
        };
        assert_eq!(plan.arena_bytes(ArenaKind::Activations), 1024);
        assert_eq!(plan.total_bytes(), 1024 + 516);
        assert_eq!(plan.find("w"), Some(SpanId(2)));
    }
}
