// SPDX-License-Identifier: MIT OR Apache-2.0
//! fp8 weights of a checkpoint: which tensors hold their scales, and which weights are quantized on request.

use std::collections::{BTreeMap, BTreeSet};

use metrale_circuit::{Instance, WeightKey};
use metrale_config::Quantization;
use metrale_core::{Elem, fp8};
use metrale_model_layers::weight_map::{Piece, Recipe, Transform};
use metrale_model_weights::WeightStore;

use crate::prepare::PrepareError;

/// Formats that scales are stored in.
pub(crate) const SCALES: &[Elem] = &[Elem::F32, Elem::BF16, Elem::F16];

/// Joins every e4m3 tensor that a recipe reads with the tensor of its scales.
pub(crate) fn pair(
    recipes: &mut BTreeMap<WeightKey, Recipe>,
    store: &WeightStore,
    scheme: Option<&Quantization>,
) -> Result<(), PrepareError> {
    for piece in recipes.values_mut().flat_map(|r| &mut r.pieces) {
        let stored = store.get(&piece.tensor);
        let Some(stored) = stored.filter(|t| t.elem == Elem::F8E4M3) else {
            continue;
        };
        let (file, tensor) = (
            store.path_of(stored).display().to_string(),
            stored.name.clone(),
        );
        let Some(scheme) = scheme else {
            return Err(PrepareError::NoScheme { file, tensor });
        };
        let moves = matches!(
            piece.transform,
            Transform::Rows { .. } | Transform::Blocks { .. } | Transform::Pairs { .. }
        );
        let (true, &[rows, cols]) = (moves, &piece.shape[..]) else {
            return Err(PrepareError::NoFp8 { file, tensor });
        };
        let stem = module(piece);
        let names = scheme.scale_names.map(|name| format!("{stem}.{name}"));
        let there = names.iter().find(|n| store.get(n).is_some());
        let scales = there.unwrap_or(&names[0]).clone();
        let found = store.get(&scales).map(|t| t.shape.clone());
        let shape = match (scheme.blocks, found) {
            (true, _) => vec![rows.div_ceil(fp8::BLOCK), cols.div_ceil(fp8::BLOCK)],
            (false, Some(s)) if s.is_empty() || s == [1] || s == [rows] => s,
            (false, _) => vec![rows, 1],
        };
        piece.transform = Transform::Fp8 {
            scales,
            shape,
            blocks: scheme.blocks,
            rows: Box::new(piece.transform.clone()),
        };
    }
    Ok(())
}

/// Formats that a tensor of a recipe may have; empty = any.
pub(crate) fn formats(recipe: &Recipe, tensor: &str) -> &'static [Elem] {
    let is_fp8 = |p: &Piece| matches!(p.transform, Transform::Fp8 { .. });
    // Pieces of one weight are packed together: all are fp8 or none.
    match recipe.pieces.iter().any(is_fp8) {
        false => &[],
        true if recipe.pieces.iter().any(|p| p.tensor == tensor) => &[Elem::F8E4M3],
        true => SCALES,
    }
}

/// The weights that fp8 is for: matrices of `linear` but the head, and nothing else (an embedding is gathered from). Routers
/// stay too, and gates of one row: a rounding there chooses other experts, and they have few bytes.
pub(crate) fn linears(instance: &Instance) -> BTreeSet<WeightKey> {
    let weights = instance.weights();
    let read = |op: &'static str| {
        let ops = instance.ops().iter().filter(move |o| o.op == op);
        let lists = ops.flat_map(|o| &o.weights);
        lists.flat_map(|(_, ids)| ids).map(move |id| {
            let weight = &weights[*id as usize];
            weight
                .alias_of
                .clone()
                .unwrap_or_else(|| weight.key.clone())
        })
    };
    let embeds: BTreeSet<WeightKey> = read("embed").collect();
    let matrices = weights
        .iter()
        .filter(|w| matches!(w.shape[..], [rows, _] if rows > 1));
    let matrices: BTreeSet<&WeightKey> = matrices.map(|w| &w.key).collect();
    let ops = instance.ops().iter();
    let chosen: Vec<_> = ops
        .filter(|o| o.op == "router")
        .filter_map(|o| o.edge("logits"))
        .collect();
    let ops = instance.ops().iter();
    let routers: BTreeSet<&WeightKey> = ops
        .filter(|o| o.op == "linear" && o.edge("y").is_some_and(|y| chosen.contains(&y)))
        .flat_map(|o| &o.weights)
        .flat_map(|(_, ids)| ids.iter().map(|id| &weights[*id as usize].key))
        .collect();
    read("linear")
        .filter(|key| matrices.contains(key) && !routers.contains(key))
        .filter(|key| key.name != "lm_head" && !embeds.contains(key))
        .collect()
}

/// The module that a piece's tensor belongs to.
pub(crate) fn module(piece: &Piece) -> &str {
    piece
        .tensor
        .strip_suffix(".weight")
        .unwrap_or(&piece.tensor)
}
