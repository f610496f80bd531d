// SPDX-License-Identifier: MIT OR Apache-2.0
//! Plans as text. Layers whose groups are alike stand once, with their count.

use std::fmt::Write;

use metrale_core::ArenaKind;

use super::{Group, Plan, Workload};
use crate::instance::Phase;
use crate::text::{bytes, number, seconds, table};

impl Plan {
    /// The launches of a step and what the device's peaks allow for them: a table for people.
    #[must_use]
    pub fn show(&self, w: &Workload) -> String {
        let mut out = String::new();
        let _ = writeln!(
            out,
            "plan of family {} on class {}, digest {}",
            self.family,
            self.class,
            self.digest.short()
        );
        let _ = match &self.device {
            Some((name, device)) => writeln!(out, "peaks of {name}: {}", device.source),
            None => writeln!(out, "no device is named, so no time is given"),
        };
        let _ = writeln!(
            out,
            "step: {} rows, {} logits rows, {} sequences of {} tokens of context; KV {}",
            w.rows, w.logits_rows, w.sequences, w.context, self.kv
        );
        for phase in [Phase::Forward, Phase::Sample] {
            let groups: Vec<&Group> = self.groups_of(phase).collect();
            let _ = writeln!(out, "\n{phase}: {} launches", groups.len());
            out.push_str(&self.phase_table(&groups, w));
        }
        let total: f64 = self
            .groups
            .iter()
            .filter_map(|g| self.group_seconds(g, w))
            .sum();
        let add = |f: &dyn Fn(&Group) -> u64| {
            self.groups
                .iter()
                .fold(0u64, |sum, g| sum.saturating_add(f(g)))
        };
        let moved = add(&|g| g.cost.bytes(rows(g.phase, w), w));
        let flops = add(&|g| g.cost.flops(rows(g.phase, w), w));
        let _ = write!(
            out,
            "\nstep: {} moved, {} operations",
            bytes(moved),
            number(flops)
        );
        if let Some((name, _)) = &self.device {
            let _ = write!(out, "; {} at the peaks of {name}", seconds(total));
        }
        out.push('\n');
        out
    }

    /// Seconds that the device's peaks allow for a step; `None` without a device.
    #[must_use]
    pub fn roofline_seconds(&self, w: &Workload) -> Option<f64> {
        self.groups.iter().map(|g| self.group_seconds(g, w)).sum()
    }

    fn group_seconds(&self, g: &Group, w: &Workload) -> Option<f64> {
        let (_, device) = self.device.as_ref()?;
        Some(g.cost.seconds(rows(g.phase, w), w, device, &g.peak))
    }

    fn phase_table(&self, groups: &[&Group], w: &Workload) -> String {
        let mut lines =
            vec![["group", "point", "shape", "moved", "operations", "time"].map(str::to_owned)];
        let mut at = 0;
        while at < groups.len() {
            let (len, times) = repeats(&groups[at..]);
            for g in &groups[at..at + len] {
                let times_text = if times > 1 {
                    format!(" x{times}")
                } else {
                    String::new()
                };
                let r = rows(g.phase, w);
                lines.push([
                    format!("{}{times_text}", g.name),
                    point_text(g, r),
                    g.shape.clone(),
                    bytes(g.cost.bytes(r, w)),
                    number(g.cost.flops(r, w)),
                    self.group_seconds(g, w).map_or("-".to_owned(), seconds),
                ]);
            }
            at += len * times;
        }
        table(&lines)
    }

    /// What lies where: bytes of each arena and of the pool's block.
    #[must_use]
    pub fn memory_text(&self) -> String {
        let mut lines = vec![["arena", "bytes", "spans", "holds"].map(str::to_owned)];
        for kind in ArenaKind::ALL {
            let count = self.memory.spans.iter().filter(|s| s.arena == kind).count();
            lines.push([
                kind.name().to_owned(),
                bytes(self.memory.arena_bytes(kind)),
                count.to_string(),
                self.holds(kind),
            ]);
        }
        lines.push([
            "total".to_owned(),
            bytes(self.memory.total_bytes()),
            self.memory.spans.len().to_string(),
            String::new(),
        ]);
        table(&lines)
    }

    fn holds(&self, kind: ArenaKind) -> String {
        let l = &self.limits;
        match kind {
            ArenaKind::Weights => {
                let packed = self.weights.iter().map(|w| w.parts.len()).sum::<usize>();
                format!("{packed} tensors in {} packed ones", self.weights.len())
            }
            ArenaKind::Activations => format!("a step of {} rows; spans share bytes", l.rows),
            ArenaKind::Kv => {
                let windows = self.kv_groups.iter().skip(1).map(|g| {
                    format!(
                        "; window of {}: {} layers, {} blocks of {}",
                        g.window.unwrap_or(0),
                        g.layers,
                        g.blocks,
                        bytes(g.block_bytes())
                    )
                });
                let saved = match self.kv_saved_bytes() {
                    0 => String::new(),
                    saved => format!("; {} less than without windows", bytes(saved)),
                };
                format!(
                    "{} blocks of {} ({} tokens in {}){}{saved}",
                    self.kv_blocks,
                    bytes(self.kv_bytes_per_block()),
                    self.kv_blocks * u64::from(metrale_core::KV_BLOCK),
                    self.kv,
                    windows.collect::<String>()
                )
            }
            ArenaKind::State => {
                let tables = l.slots * l.tables;
                format!("{tables} block tables of {} entries", l.blocks_per_slot)
            }
            ArenaKind::Outputs => format!("{} logits rows", l.logits_rows),
            ArenaKind::Staging => "disk rows on their way into packing".to_owned(),
        }
    }
}

/// The point that takes that many rows, and how many others there are.
fn point_text(g: &Group, rows: u64) -> String {
    let rows = u32::try_from(rows).unwrap_or(u32::MAX);
    let point = g.points.iter().find(|(range, _)| range.contains(rows));
    let name = point.map_or("-".to_owned(), |(_, p)| p.to_string());
    match g.points.len() {
        0 | 1 => name,
        n => format!("{name} +{}", n - 1),
    }
}

fn rows(phase: Phase, w: &Workload) -> u64 {
    match phase {
        Phase::Forward => w.rows,
        Phase::Sample => w.logits_rows,
    }
}

/// Groups of the first layer, and how many layers in a row are like it; one group outside of layers.
fn repeats(groups: &[&Group]) -> (usize, usize) {
    let Some(first) = groups.first() else {
        return (0, 0);
    };
    if first.layer.is_none() {
        return (1, 1);
    }
    let len = groups.iter().take_while(|g| g.layer == first.layer).count();
    let alike = |a: &Group, b: &Group| {
        a.points == b.points
            && a.shape == b.shape
            && a.cost == b.cost
            && a.args.len() == b.args.len()
    };
    let same = |chunk: &[&Group]| {
        chunk.len() == len
            && chunk
                .iter()
                .all(|g| g.layer == chunk[0].layer && g.layer.is_some())
            && chunk.iter().zip(groups).all(|(a, b)| alike(a, b))
    };
    (len, groups.chunks(len).take_while(|c| same(c)).count())
}
