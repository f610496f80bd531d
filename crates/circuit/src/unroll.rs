// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a circuit and its params to an instance: weights are shaped, layers unrolled; `bind` binds operands and types edges.

mod bind;

use std::collections::BTreeMap;

use crate::config_map::Params;
use crate::expr::{Expr, ExprError};
use crate::instance::{
    ConstantDecl, EdgeId, Instance, Phase, Source, State, WeightDecl, WeightKey,
};
use crate::manifest::circuit::{CircuitFile, OpLine, Per, WeightFile};
use crate::manifest::ops::Ops;
use crate::refusal::Refusal;

pub(crate) fn unroll(
    circuit: &CircuitFile,
    ops: &Ops,
    params: Params,
    source: Source,
    accepted: Vec<String>,
) -> Result<Instance, Refusal> {
    let mut u = Unroller {
        circuit,
        signatures: ops,
        out: Instance {
            family: circuit.family.clone(),
            source,
            params,
            layers: 0,
            ops: Vec::new(),
            edges: Vec::new(),
            weights: Vec::new(),
            states: vec![State::Tables],
            constants: Vec::new(),
            outputs: Vec::new(),
            accepted,
        },
        weight_ids: BTreeMap::new(),
        bound: BTreeMap::new(),
        op_names: BTreeMap::new(),
    };
    u.run()?;
    Ok(u.out)
}

struct Unroller<'a> {
    circuit: &'a CircuitFile,
    signatures: &'a Ops,
    out: Instance,
    weight_ids: BTreeMap<WeightKey, u32>,
    /// Edges in scope, by the circuit's names.
    bound: BTreeMap<String, EdgeId>,
    op_names: BTreeMap<String, u32>,
}

impl Unroller<'_> {
    fn run(&mut self) -> Result<(), Refusal> {
        let layers = self
            .out
            .count(&self.circuit.layers)
            .and_then(|n| u32::try_from(n).ok());
        let layers = layers.ok_or_else(|| self.fault("layers", "the layer param is no count"))?;
        self.out.layers = layers;
        self.weights(layers)?;
        for (name, c) in &self.circuit.constants {
            let key = |name: &String| WeightKey {
                name: name.clone(),
                layer: None,
            };
            let divide_by = c.divide_by.as_ref().map(key);
            self.out.constants.push(ConstantDecl {
                name: name.clone(),
                make: c.make.clone(),
                divide_by: divide_by.filter(|k| self.weight_ids.contains_key(k)),
            });
        }
        self.block(&self.circuit.prelude, Phase::Forward, None)?;
        for layer in 0..layers {
            let carry = &self.circuit.carry;
            self.bound.retain(|name, _| carry.contains(name));
            self.states(layer)?;
            self.block(&self.circuit.layer, Phase::Forward, Some(layer))?;
        }
        self.bound
            .retain(|name, _| self.circuit.carry.contains(name));
        self.block(&self.circuit.postlude, Phase::Forward, None)?;
        self.block(&self.circuit.sample, Phase::Sample, None)?;
        for name in &self.circuit.outputs {
            let edge = self.bound.get(name).copied();
            let edge = edge.ok_or_else(|| self.fault(name, "no op writes this output"))?;
            self.out.outputs.push((name.clone(), edge));
        }
        Ok(())
    }

    fn fault(&self, op: &str, what: impl ToString) -> Refusal {
        Refusal::Circuit {
            family: self.circuit.family.clone(),
            op: op.to_owned(),
            what: what.to_string(),
        }
    }

    /// A size that params determine: an overflow is the configuration's fault.
    fn size(&self, what: &str, expr: &Expr) -> Result<u64, Refusal> {
        let value = expr.count(&|n| self.out.params.get(n).cloned());
        value.map_err(|e| self.size_error(what, &e))
    }

    fn size_error(&self, what: &str, e: &ExprError) -> Refusal {
        match e {
            ExprError::Overflow(_) => Refusal::TooLarge {
                what: what.to_owned(),
                why: e.to_string(),
            },
            _ => self.fault(what, e),
        }
    }

    fn weights(&mut self, layers: u32) -> Result<(), Refusal> {
        for (name, file) in &self.circuit.weights {
            if !self.holds(file.when.as_ref(), name)? {
                continue;
            }
            let mut shape = Vec::new();
            for dim in &file.shape {
                shape.push(self.size(&format!("weight {name}"), dim)?);
            }
            let copies = if file.per == Per::Layer {
                u64::from(layers)
            } else {
                1
            };
            // Bytes of the widest format and every sum over layers stay far from overflow.
            let elems = shape.iter().try_fold(copies, |a, d| a.checked_mul(*d));
            if elems.is_none_or(|e| e > 1 << 46) {
                return Err(Refusal::TooLarge {
                    what: format!("weight {name}, {shape:?} times {copies}"),
                    why: "more than 2^46 values".into(),
                });
            }
            let alias = self.alias(name, file)?;
            let keys = match file.per {
                Per::Model => None..=None,
                Per::Layer => Some(0)..=Some(layers - 1),
            };
            let (first, last) = keys.into_inner();
            let layers = first
                .zip(last)
                .map_or(vec![None], |(a, b)| (a..=b).map(Some).collect());
            for layer in layers {
                let key = WeightKey {
                    name: name.clone(),
                    layer,
                };
                self.weight_ids
                    .insert(key.clone(), self.out.weights.len() as u32);
                self.out.weights.push(WeightDecl {
                    key,
                    shape: shape.clone(),
                    alias_of: alias.clone().map(|name| WeightKey { name, layer }),
                    constant: file.constant,
                });
            }
        }
        Ok(())
    }

    fn alias(&self, name: &str, file: &WeightFile) -> Result<Option<String>, Refusal> {
        match &file.alias {
            Some(other) if self.holds(file.alias_when.as_ref(), name)? => Ok(Some(other.clone())),
            _ => Ok(None),
        }
    }

    fn holds(&self, when: Option<&Expr>, what: &str) -> Result<bool, Refusal> {
        let names = |n: &str| self.out.params.get(n).cloned();
        when.map_or(Ok(true), |w| w.truth(&names))
            .map_err(|e| self.fault(what, e))
    }

    fn states(&mut self, layer: u32) -> Result<(), Refusal> {
        for (stream, file) in &self.circuit.state {
            let cols = self.size(&format!("state {stream}"), &file.cols)?;
            self.out.states.push(State::Kv {
                stream: stream.clone(),
                layer,
                cols,
            });
        }
        Ok(())
    }

    fn block(&mut self, lines: &[OpLine], phase: Phase, layer: Option<u32>) -> Result<(), Refusal> {
        for line in lines {
            if self.holds(line.when.as_ref(), &line.op)? {
                self.op(line, phase, layer)?;
            }
        }
        Ok(())
    }
}
