// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packed tensors: which weights lie together, and from which formats they are packed.

use metrale_core::{ArenaKind, Elem, Extent, PointId, SpanId, Unit};

use super::realize::Realizer;
use super::{PlanError, WeightPart, WeightSlot};
use crate::instance::WeightDecl;

impl Realizer<'_> {
    /// The span of some weights, rows concatenated; made on first use, shared by every other.
    pub(super) fn slot(&mut self, ids: &[u32], layout: Option<&str>) -> Result<SpanId, PlanError> {
        if let Some((slot, lies)) = self.slots.get(ids) {
            let slot = &self.weights[*slot];
            if lies.as_deref() != layout {
                let what = format!("{} is read in two layouts", slot.parts[0].key);
                return Err(PlanError::Library { what });
            }
            return Ok(slot.span);
        }
        let weights: Vec<&WeightDecl> = ids
            .iter()
            .map(|id| &self.job.instance.weights[*id as usize])
            .collect();
        let (mut elem, mut cols, mut rows) = (Elem::F32, 1, 0);
        let mut parts = Vec::new();
        let mut name = String::new();
        for weight in &weights {
            let (format, stored, pack) = self.pack_of(weight, layout)?;
            if weight.shape.len() > 1 {
                (elem, cols) = (format, weight.cols());
            }
            let key = weight.key.clone();
            name = match name.is_empty() {
                true => key.to_string(),
                false => format!("{name}+{}", key.name),
            };
            parts.push(WeightPart {
                key,
                format: stored,
                pack,
                fill: self.fill_of(stored),
                rows: weight.rows(),
                row_offset: rows,
            });
            rows += weight.rows();
        }
        let span = if weights.iter().all(|w| w.shape.len() > 1) {
            let bytes = self
                .job
                .class
                .packed_bytes(layout, elem, rows, cols)
                .ok_or_else(|| PlanError::Library {
                    what: format!("{elem} [{rows}, {cols}] has no packed size"),
                })?;
            let extent = Extent {
                unit: Unit::One,
                elems: rows * cols,
            };
            self.sized_span(&name, ArenaKind::Weights, elem, extent, bytes)?
        } else {
            self.span(&name, ArenaKind::Weights, Elem::F32, Unit::One, rows)?
        };
        let lies = layout.map(str::to_owned);
        self.slots.insert(ids.to_vec(), (self.weights.len(), lies));
        self.weights.push(WeightSlot {
            span,
            elem,
            rows,
            cols,
            parts,
        });
        Ok(span)
    }

    /// The format of a weight, its disk format and the point that packs it.
    fn pack_of(
        &self,
        weight: &WeightDecl,
        layout: Option<&str>,
    ) -> Result<(Elem, Elem, PointId), PlanError> {
        let key = &weight.key;
        let format = self.job.request.formats.get(key).copied();
        let format = format.ok_or_else(|| PlanError::NoFormat { key: key.clone() })?;
        let class = self.job.class;
        if let Some(stored) = self.job.request.stored.get(key) {
            let from = class.packed(layout, format).map(|f| &f.from);
            let pack = from.and_then(|f| f.get(stored)).cloned();
            let pack = pack.ok_or_else(|| PlanError::NoQuantize {
                class: class.name.clone(),
                key: key.clone(),
                stored: *stored,
                format,
            })?;
            return Ok((format, *stored, pack));
        }
        let (pack, packs): (_, Vec<_>) = match weight.shape.len() > 1 {
            true => (
                class.packed(layout, format).map(|f| &f.pack),
                class.formats.keys().collect(),
            ),
            false => (class.vectors.get(&format), class.vectors.keys().collect()),
        };
        let pack = pack.cloned().ok_or_else(|| PlanError::NoPack {
            class: class.name.clone(),
            key: key.clone(),
            format,
            packs: packs.into_iter().map(ToString::to_string).collect(),
        })?;
        Ok((format, format, pack))
    }

    /// The point that makes values of a disk format.
    fn fill_of(&self, format: Elem) -> Option<PointId> {
        let id = PointId::new("fill", format.name());
        let has = self.job.class.points.iter().any(|p| p.id == id);
        has.then_some(id)
    }
}
