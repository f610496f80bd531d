// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a row of a name table to the pieces of tensors that make up one weight.

use metrale_circuit::{Expr, Instance, Value, WeightDecl, WeightKey};

use super::{How, NameRow, Transform};

/// Where one weight comes from: the pieces give its rows, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// At least one.
    pub pieces: Vec<Piece>,
}

/// Rows of a weight from one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The tensor's full name.
    pub tensor: String,
    /// The tensor's dimensions, outermost first.
    pub shape: Vec<u64>,
    /// Rows of the weight that it gives.
    pub rows: u64,
    /// How.
    pub transform: Transform,
}

impl Recipe {
    /// Every tensor it reads, with its dimensions.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, Vec<u64>)> {
        self.pieces.iter().flat_map(|p| {
            let scales = match &p.transform {
                Transform::Mxfp4 { scales, .. } => {
                    let shape = &p.shape[..p.shape.len() - 1];
                    Some((scales.as_str(), shape.to_vec()))
                }
                Transform::Fp8 { scales, shape, .. } => Some((scales.as_str(), shape.clone())),
                _ => None,
            };
            std::iter::once((p.tensor.as_str(), p.shape.clone())).chain(scales)
        })
    }

    /// The tensor that comes first: it stands for all in messages, and its format is theirs.
    #[must_use]
    pub fn first(&self) -> &Piece {
        &self.pieces[0]
    }
}

/// The recipe of `weight` by name tables, the first row that counts; `None` if they have no row for it, or a row that the instance's params do
/// not fit.
#[must_use]
pub fn recipe(tables: &[&[NameRow]], instance: &Instance, weight: &WeightDecl) -> Option<Recipe> {
    let scope = Scope {
        instance,
        layer: weight.key.layer,
    };
    let row = tables
        .iter()
        .flat_map(|table| table.iter())
        .find(|row| row.weight == weight.key.name && scope.counts(row))?;
    let tensor = match weight.key.layer {
        Some(layer) => row.tensor.replace("{}", &layer.to_string()),
        None => row.tensor.to_owned(),
    };
    let one = |shape: Vec<u64>, transform: Transform| Recipe {
        pieces: vec![Piece {
            tensor: tensor.clone(),
            shape,
            rows: weight.rows(),
            transform,
        }],
    };
    let same = weight.shape.clone();
    Some(match row.how {
        How::Whole => one(same, Transform::Rows { first: 0 }),
        How::Shaped(shape) => one(scope.numbers(shape)?, Transform::Rows { first: 0 }),
        How::PlusOne => one(same, Transform::PlusOne),
        How::LogOfNegative(shape) => one(scope.numbers(shape)?, Transform::LogOfNegative),
        How::Among(weights) => {
            let (first, rows) = scope.among(weight, weights)?;
            let mut shape = same;
            shape[0] = rows;
            one(shape, Transform::Rows { first })
        }
        How::Experts => {
            let (experts, shape) = same.split_first()?;
            let rows = weight.rows() / experts;
            let piece = |e: u64| Piece {
                tensor: tensor.replace("{e}", &e.to_string()),
                shape: shape.to_vec(),
                rows,
                transform: Transform::Rows { first: 0 },
            };
            Recipe {
                pieces: (0..*experts).map(piece).collect(),
            }
        }
        How::Pairs(period, skip) => {
            let (period, skip) = (scope.number(period)?, scope.number(skip)?);
            one(same, Transform::Pairs { period, skip })
        }
        How::Blocks {
            shape,
            take,
            period,
            first,
        } => {
            let transform = Transform::Blocks {
                take: scope.number(take)?,
                period: scope.number(period)?,
                first: scope.number(first)?,
            };
            one(scope.numbers(shape)?, transform)
        }
        How::Transposed {
            shape,
            disk_rows,
            first,
            step,
        } => {
            let shape = scope.numbers(shape)?;
            let transform = Transform::Transposed {
                rows: weight.outputs(),
                disk_rows: scope.number(disk_rows)?,
                disk_cols: *shape.last()?,
                first,
                step,
            };
            one(shape, transform)
        }
        How::Mxfp4 { shape, first, step } => {
            let mut shape = scope.numbers(shape)?;
            shape.extend([weight.cols() / 32, 16]);
            let transform = Transform::Mxfp4 {
                scales: format!("{}_scales", tensor.strip_suffix("_blocks")?),
                first,
                step,
            };
            one(shape, transform)
        }
    })
}

/// What a row's expressions may name.
struct Scope<'a> {
    instance: &'a Instance,
    layer: Option<u32>,
}

impl Scope<'_> {
    fn counts(&self, row: &NameRow) -> bool {
        row.when.is_none_or(|(switch, value)| {
            self.instance.param(switch, self.layer) == Some(Value::Bool(value))
        })
    }

    fn number(&self, text: &str) -> Option<u64> {
        let expr = Expr::parse(text).ok()?;
        expr.count(&|name| self.instance.param(name, self.layer))
            .ok()
    }

    fn numbers(&self, texts: &[&str]) -> Option<Vec<u64>> {
        texts.iter().map(|t| self.number(t)).collect()
    }

    /// Where a weight's rows begin among those of `weights`, and how many they are together.
    fn among(&self, weight: &WeightDecl, weights: &[&str]) -> Option<(u64, u64)> {
        let (mut first, mut rows) = (None, 0);
        for name in weights {
            let key = WeightKey {
                name: (*name).to_owned(),
                layer: weight.key.layer,
            };
            if key == weight.key {
                first = Some(rows);
            }
            let other = self.instance.weights().iter().find(|w| w.key == key)?;
            rows += other.shape.first()?;
        }
        Some((first?, rows))
    }
}
