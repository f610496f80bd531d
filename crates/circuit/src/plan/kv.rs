// SPDX-License-Identifier: MIT OR Apache-2.0
//! The KV of a plan: its formats by layer, and its groups.
//!
//! A *group* is the layers that share block tables and a pool of blocks. The first one holds all keys of its layers, and its
//! blocks are what admission counts. A further one belongs to the layers of one window: they read no key older than that,
//! so a sequence holds a window of blocks there, however long it is. A window without a pool of its own
//! ([`super::PlanRequest::windows`]) costs what full attention does: its layers are in the first group. Where every layer
//! has a window, the first group has no layer, and its blocks cost nothing: they are the accounts of what is cached.

use std::collections::BTreeMap;
use std::fmt;

use metrale_core::{Elem, SpanId, kv as core_kv};

use super::Plan;
use crate::instance::{Attr, Instance, State, Use};

/// Formats of the KV pools: one for all layers, but for those named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvFormats {
    /// Of every layer that is not named.
    pub all: Elem,
    /// By layer, from 0.
    pub layers: BTreeMap<u32, Elem>,
}

impl KvFormats {
    /// One format for all layers.
    #[must_use]
    pub const fn all(elem: Elem) -> KvFormats {
        KvFormats {
            all: elem,
            layers: BTreeMap::new(),
        }
    }

    /// The format of every layer that is not named, in the words of the command line.
    #[must_use]
    pub fn plain(&self) -> &'static str {
        name(self.all)
    }

    /// The layers that have another, as the command line takes them: `0-3=f16,11=f32`.
    #[must_use]
    pub fn others(&self) -> String {
        self.runs("=").join(",")
    }

    fn runs(&self, between: &str) -> Vec<String> {
        let others = self.layers.iter().filter(|(_, e)| **e != self.all);
        let others: Vec<(u32, Elem)> = others.map(|(layer, elem)| (*layer, *elem)).collect();
        let runs = others.chunk_by(|a, b| a.0 + 1 == b.0 && a.1 == b.1);
        let text = |run: &[(u32, Elem)]| match run {
            [(layer, elem)] => format!("{layer}{between}{}", name(*elem)),
            [(first, elem), .., (last, _)] => format!("{first}-{last}{between}{}", name(*elem)),
            [] => String::new(),
        };
        runs.map(text).collect()
    }

    /// The format of a layer.
    #[must_use]
    pub fn of(&self, layer: u32) -> Elem {
        self.layers.get(&layer).copied().unwrap_or(self.all)
    }
}

impl From<Elem> for KvFormats {
    fn from(elem: Elem) -> KvFormats {
        KvFormats::all(elem)
    }
}

/// `bf16`, or `bf16 (0-3 f16, 11 f32)`.
impl fmt::Display for KvFormats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.plain())?;
        let runs = self.runs(" ");
        match runs.is_empty() {
            true => Ok(()),
            false => write!(f, " ({})", runs.join(", ")),
        }
    }
}

/// A KV format in the words of the command line.
fn name(elem: Elem) -> &'static str {
    match elem {
        Elem::I8 => "int8",
        Elem::F8E4M3 => "fp8",
        other => other.name(),
    }
}

/// A pool of blocks for the layers of one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WindowPool {
    /// Keys that a row of these layers sees, its own included.
    pub tokens: u32,
    /// Blocks of the pool.
    pub blocks: u64,
}

/// Layers that share block tables and a pool of blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvGroup {
    /// Keys that a row of its layers sees; `None` in the first group, which holds all.
    pub window: Option<u32>,
    /// Blocks of its pool.
    pub blocks: u64,
    /// Its block tables, u32 `[slots, blocks_per_slot]`.
    pub tables: SpanId,
    /// The streams (K, V) of its layers, with the bytes of one block in each.
    pub streams: Vec<(SpanId, u64)>,
    /// How many layers it has.
    pub layers: u32,
}

impl KvGroup {
    /// Bytes of a block over all layers of the group.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.streams.iter().map(|(_, bytes)| bytes).sum()
    }
}

impl Plan {
    /// Bytes of one block of the first group.
    #[must_use]
    pub fn kv_bytes_per_block(&self) -> u64 {
        self.kv_groups.first().map_or(0, KvGroup::block_bytes)
    }

    /// What the KV would take if all layers kept every block, over what it takes: 0 without groups of windows.
    #[must_use]
    pub fn kv_saved_bytes(&self) -> u64 {
        let windows = self.kv_groups.iter().skip(1);
        windows
            .map(|g| self.kv_blocks.saturating_sub(g.blocks) * g.block_bytes())
            .sum()
    }
}

impl Instance {
    /// Keys that a row of `layer` sees, its own included; `None`: all of them, or the layer has no KV.
    #[must_use]
    pub fn window(&self, layer: u32) -> Option<u32> {
        let is_kv = |id: &u32| matches!(self.states[*id as usize], State::Kv { .. });
        // What reads the pool gives an edge; what writes it gives none.
        let readers = self.ops.iter().filter(|op| {
            op.layer == Some(layer)
                && op.states.iter().any(|(_, id)| is_kv(id))
                && op.edges.iter().any(|o| o.used == Use::Out)
        });
        let windows: Option<Vec<u32>> = readers
            .map(|op| match op.attr("window") {
                Some(Attr::U32(tokens)) if tokens > 0 => Some(tokens),
                _ => None,
            })
            .collect();
        windows?.into_iter().max()
    }

    /// Bytes of one KV block by window, those of the layers that see all keys (`None`) first; only what there is.
    #[must_use]
    pub fn kv_shares(&self, formats: &KvFormats) -> BTreeMap<Option<u32>, u64> {
        let mut shares = BTreeMap::new();
        for state in &self.states {
            if let State::Kv { layer, .. } = state {
                let bytes = state.block_bytes(formats.of(*layer)).unwrap_or(0);
                *shares.entry(self.window(*layer)).or_insert(0) += bytes;
            }
        }
        shares
    }

    /// Bytes of one KV block over all layers.
    #[must_use]
    pub fn kv_bytes_per_block(&self, formats: &KvFormats) -> u64 {
        self.kv_shares(formats).values().sum()
    }

    /// Layers that have KV, ascending.
    #[must_use]
    pub fn kv_layers(&self) -> Vec<u32> {
        let layers = self.states.iter().filter_map(|s| match s {
            State::Kv { layer, .. } => Some(*layer),
            State::Tables | State::Slot { .. } => None,
        });
        let mut layers: Vec<u32> = layers.collect();
        layers.dedup();
        layers
    }
}

impl State {
    /// Elements of a block of a KV stream in `format`, scales included; `None` if it is no such stream, or they are too many.
    pub(super) fn block_elems(&self, format: Elem) -> Option<u64> {
        match self {
            State::Kv { cols, heads, .. } => core_kv::block_elems(format, *heads, cols / heads),
            State::Tables | State::Slot { .. } => None,
        }
    }

    /// Their bytes.
    pub(super) fn block_bytes(&self, format: Elem) -> Option<u64> {
        format.bytes_for(self.block_elems(format)?)
    }
}
