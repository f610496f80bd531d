// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packing: each weight is read from disk once and laid out once, by the class's own `pack` points.
//!
//! Rows go through the plan's staging span in pieces of whole rows: `pread` into a host buffer (in the order that the
//! recipe's transform wants), write to staging, one pack launch. A file that shrank is a short read and an error. Nothing
//! of the checkpoint stays in memory but the packed span.

use metrale_circuit::{Plan, WeightKey, WeightPart, WeightSlot};
use metrale_core::{Access, Arg, RowRange, StepBlock, StepLayout};
use metrale_gpu_runtime::{ArenasId, BindError, DeviceFault, GpuBackend, Kernel, Loc, Unresolved};
use metrale_model_weights::{StoredTensor, WeightStore, WeightsError};

use crate::weight_map::{Recipe, Transform};

/// A weight could not be brought to the device.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// Reading failed.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// A part has no tensor: preflight was not run on this store.
    #[error("weight {0} has no tensor in the checkpoint")]
    NoTensor(WeightKey),
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
    /// Rows of one head: the period of [`Transform::SplitInterleavedPairs`].
    pub head_dim: u64,
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
        let tensor = self.store.get(&recipe.tensor).ok_or_else(no_tensor)?;
        let kernel = self
            .backend
            .resolve(&part.pack)
            .map_err(|source| PackError::Unresolved {
                weight: part.key.clone(),
                source,
            })?;
        let row_bytes = tensor.bytes / part.rows;
        let staging = self.plan.memory.span(self.plan.staging).bytes;
        if row_bytes > staging {
            return Err(PackError::RowTooLong {
                tensor: tensor.name.clone(),
                row_bytes,
                staging,
            });
        }
        let per_piece = staging / row_bytes;
        let mut piece = Vec::new();
        let mut row = 0;
        while row < part.rows {
            let rows = per_piece.min(part.rows - row);
            self.read(tensor, recipe.transform, row, rows, row_bytes, &mut piece)?;
            self.launch(slot, part, kernel, row, rows, &piece)?;
            progress(piece.len() as u64);
            row += rows;
        }
        Ok(())
    }

    /// Rows `first..first + rows` of the weight into `piece`.
    fn read(
        &self,
        tensor: &StoredTensor,
        transform: Transform,
        first: u64,
        rows: u64,
        row_bytes: u64,
        piece: &mut Vec<u8>,
    ) -> Result<(), PackError> {
        piece.resize((rows * row_bytes) as usize, 0);
        if transform == Transform::Whole {
            return Ok(self.store.read_at(tensor, first * row_bytes, piece)?);
        }
        // Heads are read whole, so that one read serves the rows of a head.
        let mut head = vec![0; (self.head_dim * row_bytes) as usize];
        let mut loaded = None;
        for (i, out) in piece.chunks_exact_mut(row_bytes as usize).enumerate() {
            let disk = transform.disk_row(first + i as u64, self.head_dim);
            if loaded != Some(disk / self.head_dim) {
                loaded = Some(disk / self.head_dim);
                self.store.read_at(
                    tensor,
                    disk / self.head_dim * self.head_dim * row_bytes,
                    &mut head,
                )?;
            }
            let at = (disk % self.head_dim * row_bytes) as usize;
            out.copy_from_slice(&head[at..at + row_bytes as usize]);
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
