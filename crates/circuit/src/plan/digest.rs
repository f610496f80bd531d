// SPDX-License-Identifier: MIT OR Apache-2.0
//! The numerics digest: equal digests promise equal logits bits.
//!
//! It hashes, in order: the params, the checkpoint's fingerprint, the KV format, parallel degrees, the bits of constants,
//! then for each op its attributes, shapes, formats and the text of its reduction spec. Fusions that keep the bits leave
//! it; one that differs puts its own spec in the place of its parts'. Limits, row buckets, paging, class and device are not
//! in it: they change no bits.

use std::fmt;

use metrale_core::RowRange;

use super::Job;
use super::fuse::Fused;
use super::lower::{Lowered, LoweredOp, Run};
use super::realize::Constants;
use crate::expr::Value;
use crate::manifest::class::Numerics;

/// BLAKE3 of what fixes the bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The first 16 hex digits: `system_fingerprint`.
    #[must_use]
    pub fn short(&self) -> String {
        self.to_string()[..16].to_owned()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

struct Hasher<'a> {
    job: Job<'a>,
    blake: blake3::Hasher,
}

pub(super) fn digest(
    job: Job<'_>,
    lowered: &Lowered,
    fused: &[Fused],
    constants: &Constants,
) -> Digest {
    let Job {
        instance, request, ..
    } = job;
    let mut h = Hasher {
        job,
        blake: blake3::Hasher::new(),
    };
    h.field("metrale numerics digest", "1");
    h.field("family", instance.family());
    for (name, value) in instance.params() {
        let value = match value {
            Value::Float(f) => format!("{:016x}", f.to_bits()),
            other => other.to_string(),
        };
        h.field(name, &value);
    }
    h.field("checkpoint", request.checkpoint);
    h.field("kv", &request.kv.to_string());
    h.field("parallel", "tp 1 ep 1");
    for (name, data) in &constants.0 {
        let bits: Vec<u8> = data
            .iter()
            .flat_map(|v| v.to_bits().to_le_bytes())
            .collect();
        h.field("constant", name);
        h.bytes(&bits);
    }
    for f in fused {
        let ops = &lowered.ops[f.first..f.first + f.count];
        let other_bits = f
            .joined
            .as_ref()
            .filter(|j| j.numerics == Numerics::Differs);
        match other_bits {
            Some(joined) => {
                h.spec(joined.points.first());
                ops.iter().for_each(|o| h.shapes(o, lowered, None));
            }
            None => {
                for o in ops {
                    // Where the blocks of a window lie is paging.
                    let runs = o.runs.iter().filter(|r| r.tables.is_none_or(|g| g == 0));
                    runs.for_each(|r| h.shapes(o, lowered, Some(r)));
                }
            }
        }
    }
    Digest(*h.blake.finalize().as_bytes())
}

impl Hasher<'_> {
    /// Every field carries its length, so that no two sequences of fields read alike.
    fn bytes(&mut self, bytes: &[u8]) {
        self.blake.update(&(bytes.len() as u64).to_le_bytes());
        self.blake.update(bytes);
    }

    fn field(&mut self, name: &str, value: &str) {
        self.bytes(name.as_bytes());
        self.bytes(value.as_bytes());
    }

    fn spec(&mut self, point: Option<&(RowRange, usize)>) {
        let Some(point) = point.map(|(_, p)| &self.job.class.points[*p]) else {
            return;
        };
        let family = self.job.library.kernel_families.get(point.id.family());
        let text = family
            .and_then(|f| f.specs.get(&point.spec))
            .cloned()
            .unwrap_or_default();
        self.field(point.id.family(), &point.spec);
        self.bytes(text.as_bytes());
    }

    fn shapes(&mut self, o: &LoweredOp, lowered: &Lowered, run: Option<&Run>) {
        self.field("op", &o.op.op);
        if let Some(run) = run {
            self.spec(run.points.first());
        }
        for (name, attr) in &o.op.attrs {
            let value = match attr {
                crate::instance::Attr::U32(v) => v.to_string(),
                crate::instance::Attr::F32(v) => format!("{:08x}", v.to_bits()),
            };
            self.field(name, &value);
        }
        for run in run
            .into_iter()
            .chain(o.runs.iter().filter(|_| run.is_none()))
        {
            self.field("column", &run.column.to_string());
            for (name, edge) in &run.edges {
                let edge = &lowered.edges[edge.0 as usize];
                self.field(name, &format!("{} {}", edge.elem, edge.cols));
            }
            for (name, ids) in &run.weights {
                let format = run.format.map_or("f32", |f| f.name());
                for id in ids {
                    let weight = &self.job.instance.weights[*id as usize];
                    self.field(name, &format!("{} {format} {:?}", weight.key, weight.shape));
                    if let Some(stored) = self.job.request.stored.get(&weight.key) {
                        self.field("quantized from", stored.name());
                    }
                }
            }
        }
    }
}
