// SPDX-License-Identifier: MIT OR Apache-2.0
//! One op of a circuit: operands bound by name, columns checked, attributes evaluated.

use std::collections::BTreeMap;

use metrale_core::Unit;

use super::Unroller;
use crate::expr::{Expr, Value};
use crate::instance::{Attr, Edge, EdgeId, Op, Operand, Phase, State, Use, WeightKey};
use crate::manifest::circuit::OpLine;
use crate::manifest::ops::{AttrSig, AttrType, EdgeSig, OpSig};
use crate::refusal::Refusal;

impl Unroller<'_> {
    pub(super) fn op(
        &mut self,
        line: &OpLine,
        phase: Phase,
        layer: Option<u32>,
    ) -> Result<(), Refusal> {
        let sig = self.signatures.get(&line.op);
        let sig = sig.ok_or_else(|| self.fault(&line.op, "no such op"))?;
        let place = layer.map_or(String::new(), |l| format!("L{l}."));
        let mut op = Op {
            op: line.op.clone(),
            name: format!("{place}{}", line.op),
            phase,
            layer,
            edges: Vec::new(),
            weights: Vec::new(),
            states: Vec::new(),
            consts: Vec::new(),
            attrs: Vec::new(),
        };
        if let Some(needs) = &sig.needs
            && !self.bound.contains_key(bound_name(line, needs))
        {
            return Ok(());
        }
        // Names in the signature's expressions: columns of edges, dimensions of weights, attributes, then params.
        let mut local: BTreeMap<String, u64> = BTreeMap::new();
        // The line's own attributes, as far as they are counts of params.
        for (name, expr) in &line.attrs {
            if let Ok(Value::Count(c)) = expr.eval(&|n| self.named(n, layer)) {
                local.insert(name.clone(), c);
            }
        }
        for e in sig.edges.iter().filter(|e| e.used != Use::Out) {
            self.read_edge(line, e, &mut op, &mut local)?;
        }
        self.bind_weights(line, sig, &mut op, &mut local)?;
        for e in &sig.edges {
            self.check_cols(e, &op, &local)?;
        }
        for e in sig.edges.iter().filter(|e| e.used == Use::Out) {
            self.write_edge(line, e, &place, &mut op, &local)?;
        }
        op.edges
            .sort_by_key(|o| sig.edges.iter().position(|e| e.name == o.name));
        self.bind_state(line, sig, &mut op)?;
        for attr in &sig.attrs {
            let value = self.attr(line, attr, &op, &local)?;
            op.attrs.push((attr.name.clone(), value));
        }
        let last = op.edges.iter().rev().find(|o| o.used != Use::In);
        if let Some(o) = last {
            let edge = &self.out.edges[o.edge.0 as usize].name;
            op.name = format!("{}.{}", op.name, edge.strip_prefix(&place).unwrap_or(edge));
        }
        let seen = self.op_names.entry(op.name.clone()).or_insert(0);
        *seen += 1;
        if *seen > 1 {
            op.name = format!("{}#{seen}", op.name);
        }
        self.out.ops.push(op);
        Ok(())
    }

    fn read_edge(
        &self,
        line: &OpLine,
        sig: &EdgeSig,
        op: &mut Op,
        local: &mut BTreeMap<String, u64>,
    ) -> Result<(), Refusal> {
        let name = bound_name(line, &sig.name);
        let Some(edge) = self.bound.get(name).copied() else {
            if sig.optional {
                return Ok(());
            }
            return Err(self.fault(&op.name, format!("operand {}: no edge `{name}`", sig.name)));
        };
        local.insert(sig.name.clone(), self.out.edges[edge.0 as usize].cols);
        op.edges.push(Operand {
            name: sig.name.clone(),
            used: sig.used,
            edge,
        });
        Ok(())
    }

    fn bind_weights(
        &self,
        line: &OpLine,
        sig: &OpSig,
        op: &mut Op,
        local: &mut BTreeMap<String, u64>,
    ) -> Result<(), Refusal> {
        for w in &sig.weights {
            let names = match line.bind.get(&w.name) {
                Some(list) => list.as_slice(),
                None => std::slice::from_ref(&w.name),
            };
            let find = |name: &String| {
                let key = |layer| WeightKey {
                    name: name.clone(),
                    layer,
                };
                let id = op.layer.and_then(|l| self.weight_ids.get(&key(Some(l))));
                id.or_else(|| self.weight_ids.get(&key(None))).copied()
            };
            let ids: Vec<u32> = names.iter().filter_map(find).collect();
            if ids.is_empty() && w.optional {
                continue;
            }
            let bad = |what: &str| self.fault(&op.name, format!("operand {}: {what}", w.name));
            if ids.len() != names.len() || (ids.len() != 1 && !w.many) {
                return Err(bad("weights are missing or too many"));
            }
            let mut rows = 0u64;
            for id in &ids {
                let weight = &self.out.weights[*id as usize];
                let &[.., k] = weight.shape.as_slice() else {
                    return Err(bad("a weight without dimensions"));
                };
                let cols = *local.entry(format!("{}.cols", w.name)).or_insert(k);
                let mut agree = weight.shape.len() == w.rank && (w.rank == 1 || cols == k);
                if let [experts, _, _] = weight.shape[..] {
                    let first = local
                        .entry(format!("{}.experts", w.name))
                        .or_insert(experts);
                    agree &= *first == experts;
                }
                if !agree {
                    return Err(bad("weights of the wrong shape"));
                }
                // At most a handful of weights of 2^46 values each.
                rows += weight.outputs();
            }
            local.insert(format!("{}.rows", w.name), rows);
            if w.rank == 1 {
                local.insert(format!("{}.cols", w.name), rows);
            }
            if let Some(expr) = &w.cols {
                let want = self.local_count(expr, op, local)?;
                if want != rows {
                    return Err(bad(&format!("it has {rows} values where {want} belong")));
                }
            }
            op.weights.push((w.name.clone(), ids));
        }
        Ok(())
    }

    fn check_cols(
        &self,
        sig: &EdgeSig,
        op: &Op,
        local: &BTreeMap<String, u64>,
    ) -> Result<(), Refusal> {
        let (Some(expr), Some(edge)) = (&sig.cols, op.edge(&sig.name)) else {
            return Ok(());
        };
        let want = self.local_count(expr, op, local)?;
        let have = self.out.edges[edge.0 as usize].cols;
        if want == have {
            return Ok(());
        }
        Err(self.fault(
            &op.name,
            format!("{} has {have} columns where {want} belong", sig.name),
        ))
    }

    fn write_edge(
        &mut self,
        line: &OpLine,
        sig: &EdgeSig,
        place: &str,
        op: &mut Op,
        local: &BTreeMap<String, u64>,
    ) -> Result<(), Refusal> {
        let cols = match &sig.cols {
            Some(expr) => self.local_count(expr, op, local)?,
            None => return Err(self.fault(&op.name, "an output without columns")),
        };
        let rows = match sig.rows.as_deref() {
            Some("rows") => Unit::Row,
            Some("logits_rows") => Unit::LogitsRow,
            Some(input) => match op.edge(input) {
                Some(edge) => self.out.edges[edge.0 as usize].rows,
                None => return Err(self.fault(&op.name, "an output of unbound rows")),
            },
            None => return Err(self.fault(&op.name, "an output without rows")),
        };
        let name = bound_name(line, &sig.name);
        let edge = EdgeId(self.out.edges.len() as u32);
        let full = format!("{place}{name}");
        self.out.edges.push(Edge {
            name: full,
            elem: sig.elem,
            rows,
            cols,
        });
        self.bound.insert(name.to_owned(), edge);
        op.edges.push(Operand {
            name: sig.name.clone(),
            used: Use::Out,
            edge,
        });
        Ok(())
    }

    fn bind_state(&self, line: &OpLine, sig: &OpSig, op: &mut Op) -> Result<(), Refusal> {
        for s in &sig.state {
            let name = bound_name(line, &s.name);
            let found = self.out.states.iter().rposition(|state| match state {
                State::Tables => name == "tables",
                State::Kv {
                    stream: own, layer, ..
                }
                | State::Slot {
                    name: own, layer, ..
                } => own == name && Some(*layer) == op.layer,
            });
            let id = found.ok_or_else(|| self.fault(&op.name, format!("no state `{name}`")))?;
            op.states.push((s.name.clone(), id as u32));
        }
        for c in &sig.consts {
            let name = bound_name(line, c);
            let found = self.out.constants.iter().position(|k| k.name == name);
            let id = found.ok_or_else(|| self.fault(&op.name, format!("no constant `{name}`")))?;
            op.consts.push((c.clone(), id as u32));
        }
        Ok(())
    }

    fn attr(
        &self,
        line: &OpLine,
        sig: &AttrSig,
        op: &Op,
        local: &BTreeMap<String, u64>,
    ) -> Result<Attr, Refusal> {
        let value = if let Some(expr) = line.attrs.get(&sig.name) {
            // In the circuit's words: its params, then what the op binds.
            let names = |n: &str| {
                let param = self.named(n, op.layer);
                param.or_else(|| local.get(n).copied().map(Value::Count))
            };
            let value = expr.eval(&names);
            value.map_err(|e| self.size_error(&op.name, &e))?
        } else if let Some(expr) = &sig.value {
            self.local_value(expr, op, local)?
        } else if let Some(value) = self.out.param(&sig.name, op.layer) {
            value
        } else if let Some(default) = sig.default {
            Value::Float(default)
        } else {
            return Err(self.fault(&op.name, format!("attribute {} has no value", sig.name)));
        };
        match (sig.is, value) {
            (AttrType::U32, Value::Count(c)) => {
                u32::try_from(c)
                    .map(Attr::U32)
                    .map_err(|_| Refusal::TooLarge {
                        what: format!("{} of op {}", sig.name, op.name),
                        why: format!("{c} is over 2^32"),
                    })
            }
            (AttrType::F32, Value::Count(c)) => Ok(Attr::F32(c as f32)),
            (AttrType::F32, Value::Float(f)) => Ok(Attr::F32(f as f32)),
            (_, v) => Err(self.fault(&op.name, format!("attribute {} = {v}", sig.name))),
        }
    }

    fn local_count(
        &self,
        expr: &Expr,
        op: &Op,
        local: &BTreeMap<String, u64>,
    ) -> Result<u64, Refusal> {
        match self.local_value(expr, op, local)? {
            Value::Count(c) => Ok(c),
            other => Err(self.fault(&op.name, format!("`{}` = {other}", expr.text()))),
        }
    }

    fn local_value(
        &self,
        expr: &Expr,
        op: &Op,
        local: &BTreeMap<String, u64>,
    ) -> Result<Value, Refusal> {
        let names = |n: &str| {
            let here = local.get(n).copied().map(Value::Count);
            here.or_else(|| self.named(n, op.layer))
        };
        expr.eval(&names).map_err(|e| self.size_error(&op.name, &e))
    }
}

/// The circuit's name for an operand that takes one thing: as bound, or the operand's own.
fn bound_name<'a>(line: &'a OpLine, operand: &'a str) -> &'a str {
    line.bind
        .get(operand)
        .and_then(|l| l.as_slice().first())
        .map_or(operand, String::as_str)
}
