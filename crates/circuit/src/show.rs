// SPDX-License-Identifier: MIT OR Apache-2.0
//! Instances as text: params, weights and ops; layers that are alike stand once.

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
        for w in self
            .weights()
            .iter()
            .filter(|w| w.key.layer.is_none_or(|l| l == 0))
        {
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
        // The second layer stands for all: the first may lack the pending delta.
        let shown = self.layers().min(2).saturating_sub(1);
        for op in self
            .ops()
            .iter()
            .filter(|o| o.layer.is_none_or(|l| l == shown))
        {
            let times = match op.layer {
                Some(_) => format!(" x{}", self.layers()),
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
