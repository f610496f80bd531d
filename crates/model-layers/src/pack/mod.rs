// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packing: each weight is read from disk once and laid out once, by the class's own `pack` points.
//!
//! Rows go through the plan's staging span in pieces of whole rows: `pread` into a host buffer (in the order that the
//! recipe's transform wants), write to staging, one pack launch. A file that shrank is a short read and an error. Nothing
//! of the checkpoint stays in memory but the packed span.

use metrale_circuit::{Plan, WeightKey, WeightPart, WeightSlot};
use metrale_core::numeric::DequantizeError;
use metrale_core::{Access, Arg, Elem, RowRange, StepBlock, StepLayout};
use metrale_gpu_runtime::{ArenasId, BindError, DeviceFault, GpuBackend, Kernel, Loc, Unresolved};
use metrale_model_weights::{WeightStore, WeightsError};

mod read;

use crate::weight_map::{Piece, Recipe, Transform};
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
    /// The backend lacks the pack point.
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

/// Brings the weights of a plan to the device.
pub struct Packer<'a> {
    /// The device.
    pub backend: &'a dyn GpuBackend,
    /// Arenas of the plan.
    pub arenas: ArenasId,
    /// The plan.
    pub plan: &'a Plan,
    /// The checkpoint's tensors.
    pub store: &'a WeightStore,
    /// Where a weight comes from.
    pub recipe: &'a dyn Fn(&WeightKey) -> Option<&'a Recipe>,
}

impl Packer<'_> {
    /// Packs every weight and writes every constant; `progress` is told the bytes read since it was told last.
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
        self.store.finish()?;
        Ok(())
    }

    fn part(
        &self,
        slot: &WeightSlot,
        part: &WeightPart,
        progress: &mut impl FnMut(u64),
    ) -> Result<(), PackError> {
        let no_tensor = || PackError::NoTensor(part.key.clone());
        let recipe = (self.recipe)(&part.key).ok_or_else(no_tensor)?;
        let kernel = self
            .backend
            .resolve(&part.pack)
            .map_err(|source| PackError::Unresolved {
                weight: part.key.clone(),
                source,
            })?;
        let mut begin = 0;
        for piece in &recipe.pieces {
            self.piece(slot, part, kernel, piece, begin, progress)?;
            begin += piece.rows;
        }
        Ok(())
    }

    /// Packs a piece, whose rows begin at row `begin` of the weight.
    fn piece(
        &self,
        slot: &WeightSlot,
        part: &WeightPart,
        kernel: Kernel,
        piece: &Piece,
        begin: u64,
        progress: &mut impl FnMut(u64),
    ) -> Result<(), PackError> {
        let tensor = self.store.get(&piece.tensor);
        let tensor = tensor.ok_or_else(|| PackError::NoTensor(part.key.clone()))?;
        let row_bytes = part.format.bytes_for(slot.cols).unwrap_or(1);
        let staging = self.plan.memory.span(self.plan.staging).bytes;
        if row_bytes > staging {
            return Err(PackError::RowTooLong {
                tensor: tensor.name.clone(),
                row_bytes,
                staging,
            });
        }
        let rows_of = Rows {
            store: self.store,
            tensor,
            piece,
            cols: slot.cols,
            row_bytes,
        };
        let per_piece = staging / row_bytes;
        let mut bytes = Vec::new();
        let mut row = 0;
        while row < piece.rows {
            let rows = per_piece.min(piece.rows - row);
            rows_of.read(row, rows, &mut bytes)?;
            self.launch(slot, part, kernel, begin + row, rows, &bytes)?;
            progress(bytes.len() as u64);
            row += rows;
        }
        Ok(())
    }

    fn launch(
        &self,
        slot: &WeightSlot,
        part: &WeightPart,
        kernel: Kernel,
        row: u64,
        rows: u64,
        piece: &[u8],
    ) -> Result<(), PackError> {
        let device = |source| PackError::Device {
            weight: part.key.clone(),
            source,
        };
        let staging = Loc {
            span: self.plan.staging,
            offset: 0,
        };
        self.backend
            .write(self.arenas, staging, piece)
            .map_err(device)?;
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
        let launch = self
            .backend
            .bind(self.arenas, &[(RowRange::ALL, kernel)], &args)
            .map_err(|source| PackError::Bind {
                weight: part.key.clone(),
                source: Box::new(source),
            })?;
        let step = StepBlock::new(std::sync::Arc::new(StepLayout::new(NO_ROWS)));
        self.backend.run_once(launch, &step).map_err(device)
    }
}

/// A pack launch looks at no row of a step.
const NO_ROWS: metrale_core::StepLimits = metrale_core::StepLimits {
    rows: 0,
    logits_rows: 0,
    slots: 0,
    blocks_per_slot: 0,
    history: 0,
    bias: 0,
};

/// The format that a weight has for its plan when its tensor has `stored`: transforms of values give another.
#[must_use]
pub fn packed_format(transform: &Transform, stored: Elem) -> Elem {
    match transform {
        Transform::PlusOne => Elem::F32,
        Transform::Mxfp4 { .. } => Elem::Mxfp4,
        _ => stored,
    }
}
