// SPDX-License-Identifier: MIT OR Apache-2.0
//! Instances as text: params, weights and ops; layers that are alike stand once.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::instance::{Instance, Op, Source};
use crate::text::{number, table};

impl Instance {
    /// The instance as text for people.
    #[must_use]
    pub fn show(&self) -> String {
        let from = match self.source() {
            Source::Hf => "config.json",
            Source::Gguf => "GGUF metadata",
        };
        let mut out = format!(
            "family {} from {from}: {} layers, {} parameters\n",
            self.family(),
            self.layers(),
            number(self.weight_elems())
        );
        if !self.accepted().is_empty() {
            let _ = writeln!(out, "accepted by the user: {}", self.accepted().join(", "));
        }
        let line = |(name, value): (&String, &crate::Value)| [name.clone(), value.to_string()];
        let mut params = vec![["param".to_owned(), "value".to_owned()]];
        params.extend(self.params().iter().map(line));
        let _ = write!(
            out,
            "\n{}\n{}\n{}",
            table(&params),
            self.weights_text(),
            self.ops_text()
        );
        out
    }

    fn weights_text(&self) -> String {
        let mut lines = vec![["weight", "shape", "count"].map(str::to_owned)];
        let mut seen = BTreeSet::new();
        for w in self.weights().iter().filter(|w| seen.insert(&w.key.name)) {
            let shape: Vec<_> = w.shape.iter().map(ToString::to_string).collect();
            let count = self
                .weights()
                .iter()
                .filter(|o| o.key.name == w.key.name)
                .count();
            let note = w
                .alias_of
                .as_ref()
                .map_or(String::new(), |a| format!(" (= {a})"));
            lines.push([
                w.key.name.clone(),
                shape.join(" x ") + &note,
                count.to_string(),
            ]);
        }
        table(&lines)
    }

    fn ops_text(&self) -> String {
        let mut lines = vec![["op", "edges", "weights"].map(str::to_owned)];
        let kinds = self.layer_kinds();
        for op in self.ops() {
            let times = match op.layer {
                Some(layer) => match kinds.get(&layer) {
                    Some(alike) => format!(" x{alike}"),
                    None => continue,
                },
                None => String::new(),
            };
            lines.push([
                format!("{}{times}", op.name),
                self.edges_text(op),
                self.op_weights(op),
            ]);
        }
        table(&lines)
    }

    /// One layer of each kind, with how many are of it. Later layers stand for the first, which may lack the pending delta.
    fn layer_kinds(&self) -> BTreeMap<u32, usize> {
        let mut kinds: BTreeMap<Vec<String>, Vec<u32>> = BTreeMap::new();
        for layer in 0..self.layers() {
            let place = format!("L{layer}.");
            let ops = self.ops().iter().filter(|op| op.layer == Some(layer));
            let text = ops.map(|op| {
                let edges = op.edges.iter().map(|o| &self.edges()[o.edge.0 as usize]);
                let widths: Vec<_> = edges.map(|e| (e.cols, &*e.name)).collect();
                let own = widths
                    .iter()
                    .map(|(cols, name)| match name.strip_prefix('L') {
                        Some(rest) => {
                            format!("{cols} {}", rest.split_once('.').map_or("", |r| r.1))
                        }
                        None => format!("{cols} {name}"),
                    });
                let name = op.name.strip_prefix(&place).unwrap_or(&op.name);
                let name = name.split('#').next().unwrap_or(name);
                format!("{name} {}", own.collect::<Vec<_>>().join(" "))
            });
            let mut text: Vec<String> = text.collect();
            if text.first().is_some_and(|t| t.starts_with("add.")) {
                text.remove(0);
            }
            kinds.entry(text).or_default().push(layer);
        }
        let shown = kinds.into_values();
        shown.map(|l| (l[1.min(l.len() - 1)], l.len())).collect()
    }

    fn edges_text(&self, op: &Op) -> String {
        let edge = |o: &crate::Operand| {
            let edge = &self.edges()[o.edge.0 as usize];
            format!("{}={} [{}]", o.name, edge.name, edge.cols)
        };
        op.edges.iter().map(edge).collect::<Vec<_>>().join(" ")
    }

    fn op_weights(&self, op: &Op) -> String {
        let ids = op.weights.iter().flat_map(|(_, ids)| ids);
        ids.map(|id| self.weights()[*id as usize].key.to_string())
            .collect::<Vec<_>>()
            .join(" ")
    }
}
