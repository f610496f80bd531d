// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a circuit and its params to an instance: weights are shaped, layers unrolled; `bind` binds operands and types edges.

mod bind;

use std::collections::{BTreeMap, BTreeSet};

use crate::config_map::Params;
use crate::expr::{Expr, ExprError, Value};
use crate::instance::{
    ConstantDecl, EdgeId, Instance, Phase, Source, State, WeightDecl, WeightKey,
};
use crate::manifest::circuit::{
    BlockLine, CircuitFile, LayerLine, OpLine, Per, StatePer, WeightFile,
};
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
            let mut params = Params::new();
            for (param, expr) in &c.params {
                let value = expr.eval(&|n| self.out.param(n, None));
                let value = value.map_err(|e| self.size_error(&format!("constant {name}"), &e))?;
                params.insert(param.clone(), value);
            }
            self.out.constants.push(ConstantDecl {
                name: name.clone(),
                make: c.make.clone(),
                divide_by: divide_by.filter(|k| self.weight_ids.contains_key(k)),
                params,
            });
        }
        self.block(&self.circuit.prelude, Phase::Forward, None)?;
        for layer in 0..layers {
            let carry = &self.circuit.carry;
            self.bound.retain(|name, _| carry.contains(name));
            self.states(layer)?;
            self.layer(layer)?;
        }
        self.bound
            .retain(|name, _| self.circuit.carry.contains(name));
        self.block(&self.circuit.postlude, Phase::Forward, None)?;
        self.block(&self.circuit.sample, Phase::Sample, None)?;
        self.every_weight_is_read()?;
        for name in &self.circuit.outputs {
            let edge = self.bound.get(name).copied();
            let edge = edge.ok_or_else(|| self.fault(name, "no op writes this output"))?;
            self.out.outputs.push((name.clone(), edge));
        }
        Ok(())
    }

    /// A weight that no op reads would be a part of the model left out in silence.
    fn every_weight_is_read(&self) -> Result<(), Refusal> {
        let ops = self.out.ops.iter().flat_map(|op| &op.weights);
        let read: BTreeSet<u32> = ops.flat_map(|(_, ids)| ids.iter().copied()).collect();
        let unread = (0..)
            .zip(&self.out.weights)
            .find(|(id, w)| !w.constant && !read.contains(id));
        match unread {
            Some((_, w)) => Err(self.fault("weights", format!("no op reads {}", w.key))),
            None => Ok(()),
        }
    }

    fn fault(&self, op: &str, what: impl ToString) -> Refusal {
        Refusal::Circuit {
            family: self.circuit.family.clone(),
            op: op.to_owned(),
            what: what.to_string(),
        }
    }

    /// A name's value in a layer: `layer` itself, a layer param's value there, or a param's.
    fn named(&self, name: &str, layer: Option<u32>) -> Option<Value> {
        match (name, layer) {
            ("layer", Some(layer)) => Some(Value::Count(u64::from(layer))),
            _ => self.out.param(name, layer),
        }
    }

    /// A size that params determine: an overflow is the configuration's fault.
    fn size(&self, what: &str, expr: &Expr, layer: Option<u32>) -> Result<u64, Refusal> {
        let value = expr.count(&|n| self.named(n, layer));
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
            let keys: Vec<Option<u32>> = match file.per {
                Per::Model => vec![None],
                Per::Layer => (0..layers).map(Some).collect(),
            };
            let mut total = 0u64;
            for layer in keys {
                if !self.holds(file.when.as_ref(), name, layer)? {
                    continue;
                }
                let mut shape = Vec::new();
                for dim in &file.shape {
                    shape.push(self.size(&format!("weight {name}"), dim, layer)?);
                }
                // Bytes of the widest format and every sum over layers stay far from overflow.
                let elems = shape.iter().try_fold(1u64, |a, d| a.checked_mul(*d));
                total = elems
                    .and_then(|e| e.checked_add(total))
                    .filter(|t| *t <= 1 << 46)
                    .ok_or_else(|| Refusal::TooLarge {
                        what: format!("weight {name}, {shape:?} and its like in other layers"),
                        why: "more than 2^46 values".into(),
                    })?;
                self.weight(name, file, shape, layer)?;
            }
        }
        Ok(())
    }

    fn weight(
        &mut self,
        name: &str,
        file: &WeightFile,
        shape: Vec<u64>,
        layer: Option<u32>,
    ) -> Result<(), Refusal> {
        let key = |name: &str| WeightKey {
            name: name.to_owned(),
            layer,
        };
        let alias_of = match &file.alias {
            Some(other) if self.holds(file.alias_when.as_ref(), name, layer)? => Some(key(other)),
            _ => None,
        };
        self.weight_ids
            .insert(key(name), self.out.weights.len() as u32);
        self.out.weights.push(WeightDecl {
            key: key(name),
            shape,
            alias_of,
            constant: file.constant,
        });
        Ok(())
    }

    fn holds(&self, when: Option<&Expr>, what: &str, layer: Option<u32>) -> Result<bool, Refusal> {
        let names = |n: &str| self.named(n, layer);
        when.map_or(Ok(true), |w| w.truth(&names))
            .map_err(|e| self.fault(what, e))
    }

    fn states(&mut self, layer: u32) -> Result<(), Refusal> {
        for (name, file) in &self.circuit.state {
            if !self.holds(file.when.as_ref(), name, Some(layer))? {
                continue;
            }
            let cols = self.size(&format!("state {name}"), &file.cols, Some(layer))?;
            let heads = match &file.heads {
                Some(heads) => self.size(&format!("heads of state {name}"), heads, Some(layer))?,
                None => 1,
            };
            if heads == 0 || !cols.is_multiple_of(heads) {
                return Err(self.fault(name, format!("{cols} columns are not {heads} heads")));
            }
            let name = name.clone();
            self.out.states.push(match file.per {
                StatePer::Token => State::Kv {
                    stream: name,
                    layer,
                    cols,
                    heads,
                },
                StatePer::Slot => State::Slot {
                    name,
                    layer,
                    elems: cols,
                },
            });
        }
        Ok(())
    }

    fn layer(&mut self, layer: u32) -> Result<(), Refusal> {
        let circuit = self.circuit;
        for line in &circuit.layer {
            match line {
                LayerLine::Op(op) => {
                    self.block(std::slice::from_ref(op), Phase::Forward, Some(layer))?
                }
                LayerLine::Block(BlockLine { block, when }) => {
                    if self.holds(when.as_ref(), block, Some(layer))? {
                        let ops = circuit.blocks.get(block);
                        let ops = ops.ok_or_else(|| self.fault(block, "no such block"))?;
                        self.block(ops, Phase::Forward, Some(layer))?;
                    }
                }
            }
        }
        Ok(())
    }

    fn block(&mut self, lines: &[OpLine], phase: Phase, layer: Option<u32>) -> Result<(), Refusal> {
        for line in lines {
            if self.holds(line.when.as_ref(), &line.op, layer)? {
                self.op(line, phase, layer)?;
            }
        }
        Ok(())
    }
}
