// SPDX-License-Identifier: MIT OR Apache-2.0
//! The weight map: from a circuit's weights to the tensors of a checkpoint.
//!
//! A family's two name tables (Hugging Face and GGUF) are rows of `(weight, tensor, how)`; `{}` stands for the layer, `{e}`
//! for the expert. A [`Recipe`] is a row applied to one weight: one piece of a tensor, or many. Counts and shapes are
//! never written here: they come from the instance, in expressions over its params.

mod recipe;
mod transform;

pub use recipe::{Piece, Recipe, recipe};
pub use transform::Transform;

/// One row of a name table.
#[derive(Clone, Copy, Debug)]
pub struct NameRow {
    /// The weight's name in the circuit.
    pub weight: &'static str,
    /// The tensor's name in the checkpoint, `{}` for the layer index, `{e}` for the expert.
    pub tensor: &'static str,
    /// How the tensor gives the weight.
    pub how: How,
    /// A switch among the params that must have this value for the row to count.
    pub when: Option<(&'static str, bool)>,
}

/// How a tensor gives a weight. Texts are expressions over the instance's params.
#[derive(Clone, Copy, Debug)]
pub enum How {
    /// It is the weight.
    Whole,
    /// The tensor is the rows of these weights, one after another.
    Among(&'static [&'static str]),
    /// It is the weight, in a tensor of another shape with the values in the same order.
    Shaped(&'static [&'static str]),
    /// One tensor per expert, `{e}` in the name: the weight is their stack.
    Experts,
    /// [`Transform::PlusOne`].
    PlusOne,
    /// [`Transform::LogOfNegative`], of a tensor of the given shape.
    LogOfNegative(&'static [&'static str]),
    /// [`Transform::Pairs`]: rows of a head, rows at its begin that stay.
    Pairs(&'static str, &'static str),
    /// [`Transform::Blocks`], of a tensor of the given shape.
    Blocks {
        /// Dimensions of the tensor.
        shape: &'static [&'static str],
        /// Rows taken of a period.
        take: &'static str,
        /// Disk rows of a period.
        period: &'static str,
        /// Where the rows begin in it.
        first: &'static str,
    },
    /// [`Transform::Transposed`], of a tensor of the given shape.
    Transposed {
        /// Dimensions of the tensor.
        shape: &'static [&'static str],
        /// Disk rows of a stack.
        disk_rows: &'static str,
        /// Disk column of row 0.
        first: u64,
        /// Disk columns from one row to the next.
        step: u64,
    },
    /// [`Transform::Mxfp4`]: the tensor's name ends in `_blocks`, that of the scales in `_scales`.
    Mxfp4 {
        /// Dimensions of the blocks but the last two, which are `cols / 32` and 16.
        shape: &'static [&'static str],
        /// Disk row of row 0.
        first: u64,
        /// Disk rows from one row to the next.
        step: u64,
    },
}

/// A row that counts in every checkpoint.
#[must_use]
pub const fn row(weight: &'static str, tensor: &'static str, how: How) -> NameRow {
    NameRow {
        weight,
        tensor,
        how,
        when: None,
    }
}

/// A row whose tensor is taken as it is.
#[must_use]
pub const fn whole(weight: &'static str, tensor: &'static str) -> NameRow {
    row(weight, tensor, How::Whole)
}

/// A row whose tensor has each head's rotary pairs interleaved.
#[must_use]
pub const fn interleaved(weight: &'static str, tensor: &'static str) -> NameRow {
    row(weight, tensor, How::Pairs("head_dim", "0"))
}

/// A row of a norm that multiplies by one plus what is stored.
#[must_use]
pub const fn plus_one(weight: &'static str, tensor: &'static str) -> NameRow {
    row(weight, tensor, How::PlusOne)
}

/// A row of experts stored one by one.
#[must_use]
pub const fn experts(weight: &'static str, tensor: &'static str) -> NameRow {
    row(weight, tensor, How::Experts)
}

/// A row whose tensor holds the rows of several weights.
#[must_use]
pub const fn among(
    weight: &'static str,
    tensor: &'static str,
    weights: &'static [&'static str],
) -> NameRow {
    row(weight, tensor, How::Among(weights))
}
