// SPDX-License-Identifier: MIT OR Apache-2.0
//! The weight map: from a circuit's weights to the tensors of a checkpoint.
//!
//! A family's two name tables (Hugging Face and GGUF) are rows of `(weight, tensor, transform)`; `{}` stands for the layer.
//! A [`Recipe`] is a row applied to one weight. Counts and shapes are never written here: they come from the instance.

mod transform;

pub use transform::Transform;

use metrale_circuit::WeightKey;

/// One row of a name table.
#[derive(Clone, Copy, Debug)]
pub struct NameRow {
    /// The weight's name in the circuit.
    pub weight: &'static str,
    /// The tensor's name in the checkpoint, `{}` for the layer index.
    pub tensor: &'static str,
    /// How its rows become the weight's rows.
    pub transform: Transform,
}

/// A row whose tensor is taken as it is.
#[must_use]
pub const fn whole(weight: &'static str, tensor: &'static str) -> NameRow {
    NameRow {
        weight,
        tensor,
        transform: Transform::Whole,
    }
}

/// A row whose tensor has each head's rotary pairs interleaved.
#[must_use]
pub const fn interleaved(weight: &'static str, tensor: &'static str) -> NameRow {
    NameRow {
        weight,
        tensor,
        transform: Transform::SplitInterleavedPairs,
    }
}

/// Where one weight comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// The tensor's full name.
    pub tensor: String,
    /// How its rows become the weight's rows.
    pub transform: Transform,
}

/// The recipe of `key` in a name table, or `None` if the table has no row for it.
#[must_use]
pub fn recipe(table: &[NameRow], key: &WeightKey) -> Option<Recipe> {
    let row = table.iter().find(|row| row.weight == key.name)?;
    let tensor = match key.layer {
        Some(layer) => row.tensor.replace("{}", &layer.to_string()),
        None => row.tensor.to_owned(),
    };
    Some(Recipe {
        tensor,
        transform: row.transform,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layer_takes_the_place_of_the_braces() {
        let table = [
            whole("embed", "token_embd.weight"),
            interleaved("q_proj", "blk.{}.attn_q.weight"),
        ];
        let key = |name: &str, layer| WeightKey {
            name: name.into(),
            layer,
        };
        assert_eq!(
            recipe(&table, &key("q_proj", Some(12))).unwrap().tensor,
            "blk.12.attn_q.weight"
        );
        assert_eq!(
            recipe(&table, &key("embed", None)).unwrap().transform,
            Transform::Whole
        );
        assert_eq!(recipe(&table, &key("k_proj", Some(0))), None);
    }
}
