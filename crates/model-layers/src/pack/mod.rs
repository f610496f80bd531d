// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packing: each weight is read from disk once and laid out once, by the class's own `pack` points.
//!
//! Rows go through the plan's staging span in pieces of whole rows: `pread` into a host buffer (in the order that the
//! recipe's transform wants), write to staging, one pack launch. A file that shrank is a short read and an error. Nothing
//! of the checkpoint stays in memory but the packed span. Without a checkpoint's weights ([`Source::Made`]) a fill launch
//! takes the place of reading and writing; the rest is the same.

use metrale_circuit::{Plan, WeightKey, WeightPart, WeightSlot};
use metrale_core::numeric::DequantizeError;
use metrale_core::{Access, Arg, Elem, PointId, RowRange, StepBlock, StepLayout};
use metrale_gpu_runtime::{ArenasId, BindError, DeviceFault, GpuBackend, Kernel, Loc, Unresolved};
use metrale_model_weights::{WeightStore, WeightsError};

mod made;
mod read;

use crate::weight_map::{Recipe, Transform};
use read::Rows;

/// A weight could not be brought to the device.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// Reading failed.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// A part has no tensor: preflight was not run on this store.
    #[error("weight {0} has no tensor in the checkpoint")]
    NoTensor(WeightKey),
    /// A tensor of blocks without the one of its scales: preflight was not run on this store.
    #[error("tensor {0} is missing in the checkpoint")]
    NoScales(String),
    /// A tensor whose values are changed on the way is in a format that has none.
    #[error("tensor {tensor}: {source}")]
    Values {
        /// The tensor.
        tensor: String,
        /// Why.
        source: DequantizeError,
    },
    /// A scale that no weight can have.
    #[error(
        "tensor {tensor} holds {value} at value {index}, and a scale is a finite number that is not negative; the checkpoint is damaged: fetch it again"
    )]
    Scale {
        /// The tensor of scales.
        tensor: String,
        /// Which value.
        index: usize,
        /// What it is.
        value: f32,
    },
    /// A value that its transform makes no number of.
    #[error(
        "tensor {tensor} holds {value} at {index}, which no such weight can be (a norm is finite, the A of a state space negative); the checkpoint is damaged: fetch it again"
    )]
    Changed {
        /// The tensor.
        tensor: String,
        /// Which of its values.
        index: u64,
        /// The value.
        value: f32,
    },
    /// A weight that is no number.
    #[error(
        "tensor {tensor} holds a value that is no number (e4m3 0x7f or 0xff) in row {row}; the checkpoint is damaged: fetch it again"
    )]
    NoNumber {
        /// The tensor.
        tensor: String,
        /// Its row.
        row: u64,
    },
    /// One row does not fit into staging.
    #[error("a row of {tensor} takes {row_bytes} bytes and the staging span holds {staging}")]
    RowTooLong {
        /// The tensor.
        tensor: String,
        /// Its bytes a row.
        row_bytes: u64,
        /// The span's bytes.
        staging: u64,
    },
    /// Weights are to be made, and the class makes none of that format.
    #[error(
        "weight {weight}: this device makes no dummy weights in {format}; take a configuration whose dtype is float32, bfloat16 or float16"
    )]
    NoFill {
        /// The weight.
        weight: WeightKey,
        /// Its format.
        format: Elem,
    },
    /// The backend lacks the pack or fill point.
    #[error("weight {weight}: {source}")]
    Unresolved {
        /// The weight.
        weight: WeightKey,
        /// The point.
        source: Unresolved,
    },
    /// The pack launch does not fit.
    #[error("weight {weight}: {source}")]
    Bind {
        /// The weight.
        weight: WeightKey,
        /// Which argument.
        source: Box<BindError>,
    },
    /// The device failed.
    #[error("weight {weight}: {source}")]
    Device {
        /// The weight.
        weight: WeightKey,
        /// How.
        source: DeviceFault,
    },
}

/// Where the values of weights come from.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    /// The checkpoint's tensors.
    Files(&'a WeightStore),
    /// Nowhere: made on the device, a function of this seed, the weight's name and the place in it.
    Made(u64),
}

/// Brings the weights of a plan to the device.
pub struct Packer<'a> {
    /// The device.
    pub backend: &'a dyn GpuBackend,
    /// Arenas of the plan.
    pub arenas: ArenasId,
    /// The plan.
    pub plan: &'a Plan,
    /// Where the values come from.
    pub source: Source<'a>,
    /// Where a weight comes from.
    pub recipe: &'a dyn Fn(&WeightKey) -> Option<&'a Recipe>,
}

impl Packer<'_> {
    /// Packs every weight and writes every constant; `progress` is told the bytes read or made since it was told last.
    ///
    /// # Errors
    /// [`PackError`], naming the weight or tensor.
    pub fn run(&self, mut progress: impl FnMut(u64)) -> Result<(), PackError> {
        for constant in &self.plan.constants {
            let bytes: Vec<u8> = constant.data.iter().flat_map(|v| v.to_le_bytes()).collect();
            let loc = Loc {
                span: constant.span,
                offset: 0,
            };
            let key = || WeightKey {
                name: self.plan.memory.span(constant.span).name.clone(),
                layer: None,
            };
            self.backend
                .write(self.arenas, loc, &bytes)
                .map_err(|source| PackError::Device {
                    weight: key(),
                    source,
                })?;
        }
        for slot in &self.plan.weights {
            for part in &slot.parts {
                self.part(slot, part, &mut progress)?;
            }
        }
        match self.source {
            Source::Files(store) => Ok(store.finish()?),
            Source::Made(_) => Ok(()),
        }
    }

    fn part(
        &self,
        slot: &WeightSlot,
        part: &WeightPart,
        progress: &mut impl FnMut(u64),
    ) -> Result<(), PackError> {
        let kernel = self.resolve(part, &part.pack)?;
        let store = match self.source {
            Source::Files(store) => store,
            Source::Made(seed) => return self.made(slot, part, kernel, seed, progress),
        };
        let no_tensor = || PackError::NoTensor(part.key.clone());
        let recipe = (self.recipe)(&part.key).ok_or_else(no_tensor)?;
        let mut begin = 0;
        for piece in &recipe.pieces {
            let tensor = store.get(&piece.tensor).ok_or_else(no_tensor)?;
            let rows_of = Rows {
                store,
                tensor,
                piece,
                cols: slot.cols,
                row_bytes: row_bytes(slot, part),
            };
            self.piece(slot, part, kernel, &rows_of, begin, progress)?;
            begin += piece.rows;
        }
        Ok(())
    }

    fn resolve(&self, part: &WeightPart, point: &PointId) -> Result<Kernel, PackError> {
        self.backend
            .resolve(point)
            .map_err(|source| PackError::Unresolved {
                weight: part.key.clone(),
                source,
            })
    }

    /// Rows that staging holds at once: whole groups of eight where it holds one, since packed scales may be shared by a group.
    fn per_piece(&self, name: &str, row_bytes: u64) -> Result<u64, PackError> {
        let staging = self.plan.memory.span(self.plan.staging).bytes;
        match staging / row_bytes {
            0 => Err(PackError::RowTooLong {
                tensor: name.to_owned(),
                row_bytes,
                staging,
            }),
            rows @ 1..8 => Ok(rows),
            rows => Ok(rows / 8 * 8),
        }
    }

    /// Packs a piece, whose rows begin at row `begin` of the weight.
    fn piece(
        &self,
        slot: &WeightSlot,
        part: &WeightPart,
        kernel: Kernel,
        rows_of: &Rows<'_>,
        begin: u64,
        progress: &mut impl FnMut(u64),
    ) -> Result<(), PackError> {
        let per_piece = self.per_piece(&rows_of.tensor.name, rows_of.row_bytes)?;
        let staging = Loc {
            span: self.plan.staging,
            offset: 0,
        };
        let mut bytes = Vec::new();
        let mut row = 0;
        while row < rows_of.piece.rows {
            let rows = per_piece.min(rows_of.piece.rows - row);
            rows_of.read(row, rows, &mut bytes)?;
            self.backend
                .write(self.arenas, staging, &bytes)
                .map_err(|source| device(part, source))?;
            self.pack(slot, part, kernel, begin + row, rows)?;
            progress(bytes.len() as u64);
            row += rows;
        }
        Ok(())
    }

    /// Packs `rows` staged rows as rows `row..` of the part.
    fn pack(
        &self,
        slot: &WeightSlot,
        part: &WeightPart,
        kernel: Kernel,
        row: u64,
        rows: u64,
    ) -> Result<(), PackError> {
        let args = [
            Arg::Buf {
                span: self.plan.staging,
                access: Access::Read,
            },
            Arg::Buf {
                span: slot.span,
                access: Access::Write,
            },
            Arg::U32(rows as u32),
            Arg::U32(slot.cols as u32),
            Arg::U32((part.row_offset + row) as u32),
            Arg::U32(slot.rows as u32),
        ];
        self.launch(part, kernel, &args)
    }

    fn launch(&self, part: &WeightPart, kernel: Kernel, args: &[Arg]) -> Result<(), PackError> {
        let launch = self
            .backend
            .bind(self.arenas, &[(RowRange::ALL, kernel)], args)
            .map_err(|source| PackError::Bind {
                weight: part.key.clone(),
                source: Box::new(source),
            })?;
        let step = StepBlock::new(std::sync::Arc::new(StepLayout::new(NO_ROWS)));
        self.backend
            .run_once(launch, &step)
            .map_err(|source| device(part, source))
    }
}

fn device(part: &WeightPart, source: DeviceFault) -> PackError {
    PackError::Device {
        weight: part.key.clone(),
        source,
    }
}

/// Bytes of a staged row.
fn row_bytes(slot: &WeightSlot, part: &WeightPart) -> u64 {
    part.format.bytes_for(slot.cols).unwrap_or(1).max(1)
}

/// A launch at load looks at no row of a step.
const NO_ROWS: metrale_core::StepLimits = metrale_core::StepLimits {
    rows: 0,
    logits_rows: 0,
    slots: 0,
    blocks_per_slot: 0,
    tables: 1,
    history: 0,
    bias: 0,
    mask_words: 0,
};

/// The format that a weight has for its plan when its tensor has `stored`: transforms of values give another.
#[must_use]
pub fn packed_format(transform: &Transform, stored: Elem) -> Elem {
    match transform {
        Transform::PlusOne | Transform::LogOfNegative => Elem::F32,
        Transform::Mxfp4 { .. } => Elem::Mxfp4,
        Transform::Fp8 { blocks: true, .. } => Elem::F8Block,
        Transform::Fp8 { blocks: false, .. } => Elem::F8Row,
        _ => stored,
    }
}
