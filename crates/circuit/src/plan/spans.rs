// SPDX-License-Identifier: MIT OR Apache-2.0
//! The spans of a plan: activations, state, outputs, staging.

use metrale_core::{ArenaKind, Elem, Extent, Span, SpanId, Unit};

use super::args::Launch;
use super::realize::Realizer;
use super::shapes::value;
use super::{KvGroup, OutputSpans, PlanError, STAGING_BYTES, WeightPart, WeightSlot, memory};
use crate::instance::{EdgeId, State};

impl Realizer<'_> {
    pub(super) fn span(
        &mut self,
        name: &str,
        arena: ArenaKind,
        elem: Elem,
        unit: Unit,
        elems: u64,
    ) -> Result<SpanId, PlanError> {
        let too_large = || PlanError::TooLarge {
            what: name.to_owned(),
        };
        let l = &self.job.request.limits;
        let count = match unit {
            Unit::One => 1,
            Unit::Row => u64::from(l.rows),
            Unit::LogitsRow => u64::from(l.logits_rows),
            Unit::KvBlock => self.job.request.kv_blocks,
            Unit::Slot => u64::from(l.slots),
        };
        let bytes = elem
            .bytes_for(elems)
            .and_then(|b| b.checked_mul(count))
            .ok_or_else(too_large)?;
        self.sized_span(name, arena, elem, Extent { unit, elems }, bytes)
    }

    pub(super) fn sized_span(
        &mut self,
        name: &str,
        arena: ArenaKind,
        elem: Elem,
        extent: Extent,
        bytes: u64,
    ) -> Result<SpanId, PlanError> {
        if bytes > memory::MAX_BYTES {
            return Err(PlanError::TooLarge {
                what: name.to_owned(),
            });
        }
        let id = SpanId(self.memory.spans.len() as u32);
        self.memory.spans.push(Span {
            name: name.to_owned(),
            arena,
            offset: 0,
            bytes,
            elem,
            extent,
            live: None,
        });
        Ok(id)
    }

    /// The spans of all states, and the KV groups.
    pub(super) fn states(&mut self) -> Result<(), PlanError> {
        let request = self.job.request;
        let windows = request.windows.iter();
        let pools = windows.map(|w| (Some(w.tokens), w.blocks));
        for (window, blocks) in [(None, request.kv_blocks)].into_iter().chain(pools) {
            self.kv_groups.push(KvGroup {
                window,
                blocks,
                tables: SpanId(0),
                streams: Vec::new(),
                layers: 0,
            });
        }
        for state in self.job.instance.states() {
            let name = state.name();
            let span = match state {
                State::Tables => self.tables(&name)?,
                State::Kv { layer, .. } => self.stream(state, *layer)?,
                State::Slot { elems, .. } => {
                    let request = &self.job.request;
                    let places = u64::from(request.limits.slots) + u64::from(request.snapshots);
                    let bytes = Elem::F32
                        .bytes_for(*elems)
                        .and_then(|b| b.checked_mul(places));
                    let bytes = bytes.ok_or_else(|| PlanError::TooLarge { what: name.clone() })?;
                    let extent = Extent {
                        unit: Unit::Slot,
                        elems: *elems,
                    };
                    self.sized_span(&name, ArenaKind::State, Elem::F32, extent, bytes)?
                }
            };
            self.state_spans.push(span);
        }
        Ok(())
    }

    /// The tables of every group; gives those of the first.
    fn tables(&mut self, name: &str) -> Result<SpanId, PlanError> {
        let entries = u64::from(self.job.request.limits.blocks_per_slot);
        for group in 0..self.kv_groups.len() {
            let name = match self.kv_groups[group].window {
                None => name.to_owned(),
                Some(tokens) => format!("{name}.window{tokens}"),
            };
            let span = self.span(&name, ArenaKind::State, Elem::U32, Unit::Slot, entries)?;
            self.kv_groups[group].tables = span;
        }
        Ok(self.kv_groups[0].tables)
    }

    /// A KV stream, in the pool of its layer's group.
    fn stream(&mut self, state: &State, layer: u32) -> Result<SpanId, PlanError> {
        let (name, elem) = (state.name(), self.job.request.kv.of(layer));
        let too_large = || PlanError::TooLarge { what: name.clone() };
        let group = self.kv_group(Some(layer));
        let block = state.block_bytes(elem).ok_or_else(too_large)?;
        let bytes = block.checked_mul(self.kv_groups[group].blocks);
        let extent = Extent {
            unit: Unit::KvBlock,
            elems: state.block_elems(elem).ok_or_else(too_large)?,
        };
        let bytes = bytes.ok_or_else(too_large)?;
        let span = self.sized_span(&name, ArenaKind::Kv, elem, extent, bytes)?;
        let first = self.kv_spans_of(layer).is_empty();
        let group = &mut self.kv_groups[group];
        group.streams.push((span, block));
        group.layers += u32::from(first);
        Ok(span)
    }

    /// The KV group of a layer: that of its window, where it has a pool.
    pub(super) fn kv_group(&self, layer: Option<u32>) -> usize {
        let window = layer.and_then(|l| self.job.instance.window(l));
        let own = |g: &KvGroup| window.is_some() && g.window == window;
        self.kv_groups.iter().position(own).unwrap_or(0)
    }

    fn kv_spans_of(&self, layer: u32) -> Vec<SpanId> {
        let states = self.job.instance.states().iter().zip(&self.state_spans);
        let own = states.filter(|(s, _)| matches!(s, State::Kv { layer: l, .. } if *l == layer));
        own.map(|(_, span)| *span).collect()
    }

    pub(super) fn kv_spans(&self) -> Vec<Vec<SpanId>> {
        let layers = 0..self.job.instance.layers();
        layers.map(|layer| self.kv_spans_of(layer)).collect()
    }

    /// Values of a token's head in a KV stream, the most of any.
    pub(super) fn kv_head(&self) -> u64 {
        let heads = self.job.instance.states().iter().map(|s| match s {
            State::Kv { cols, heads, .. } => cols / heads,
            State::Tables | State::Slot { .. } => 0,
        });
        heads.max().unwrap_or(0)
    }

    pub(super) fn slot_spans(&self) -> Vec<SpanId> {
        let states = self.job.instance.states().iter().zip(&self.state_spans);
        states
            .filter(|(state, _)| matches!(state, State::Slot { .. }))
            .map(|(_, span)| *span)
            .collect()
    }

    pub(super) fn edge(&mut self, id: EdgeId) -> Result<SpanId, PlanError> {
        if let Some(span) = self.edge_spans.get(&id) {
            return Ok(*span);
        }
        let edge = &self.lowered.edges[id.0 as usize];
        let is_output = self.job.instance.outputs.iter().any(|(_, e)| *e == id);
        let arena = if is_output {
            ArenaKind::Outputs
        } else {
            ArenaKind::Activations
        };
        let span = self.span(&edge.name, arena, edge.elem, edge.rows, edge.cols)?;
        self.edge_spans.insert(id, span);
        Ok(span)
    }

    /// The scratch buffer of a family's argument, if the points of the launch have it: one for all launches, as large as
    /// the largest needs. It lives in the state arena: zero at first, and as launches leave it after that.
    pub(super) fn scratch(
        &mut self,
        launch: &Launch<'_>,
        name: &str,
    ) -> Result<Option<SpanId>, PlanError> {
        let (job, edges) = (self.job, &self.lowered.edges);
        let ops = launch.ops();
        let names = |n: &str| value(job, edges, &ops, true, n);
        let points = launch.points.iter().map(|(_, p)| &job.class.points[*p]);
        let mut bytes = None;
        for formula in points.filter_map(|p| p.scratch.get(name)) {
            let each = formula.count(&names);
            let each = each.map_err(|e| launch.fault(&e.to_string()))?;
            bytes = bytes.max(Some(each));
        }
        let Some(bytes) = bytes else {
            return Ok(None);
        };
        let key = (launch.family.to_owned(), name.to_owned());
        if let Some(id) = self.scratch.get(&key) {
            let span = &mut self.memory.spans[id.0 as usize];
            span.bytes = span.bytes.max(bytes);
            span.extent.elems = span.bytes;
            return Ok(Some(*id));
        }
        let name = format!("{}.{name}", launch.family);
        let id = self.span(&name, ArenaKind::State, Elem::U8, Unit::One, bytes)?;
        self.scratch.insert(key, id);
        Ok(Some(id))
    }

    pub(super) fn outputs(&self) -> Result<OutputSpans, PlanError> {
        let find = |name: &str| {
            let edge = self.job.instance.outputs.iter().find(|(n, _)| n == name);
            let span = edge.and_then(|(_, e)| self.edge_spans.get(e)).copied();
            span.ok_or_else(|| PlanError::Library {
                what: format!(
                    "family {} has no output `{name}`",
                    self.job.instance.family()
                ),
            })
        };
        Ok(OutputSpans {
            logits: find("logits")?,
            token: find("token")?,
            logprob: find("logprob")?,
            top: find("top")?,
            status: find("status")?,
        })
    }

    /// The largest tensor, at most [`STAGING_BYTES`]; but at least eight rows of every tensor, so that a pack launch always
    /// has whole row groups to work on.
    pub(super) fn staging(&mut self) -> Result<SpanId, PlanError> {
        let row = |p: &WeightPart, cols: u64| p.format.bytes_for(cols).unwrap_or(0);
        let parts = || {
            let of = |s: &WeightSlot| {
                s.parts
                    .iter()
                    .map(|p| (row(p, s.cols), p.rows))
                    .collect::<Vec<_>>()
            };
            self.weights.iter().flat_map(of)
        };
        let groups = parts()
            .map(|(row, _)| row.saturating_mul(8))
            .max()
            .unwrap_or(0);
        let largest = parts()
            .map(|(row, rows)| row.saturating_mul(rows))
            .max()
            .unwrap_or(0);
        let bytes = groups.max(largest.min(STAGING_BYTES)).max(1);
        self.span("staging", ArenaKind::Staging, Elem::U8, Unit::One, bytes)
    }
}
