// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads rows of a weight from a piece of a checkpoint, in the order and the values that its transform says.

use metrale_core::{Elem, fp8, numeric};
use metrale_model_weights::{StoredTensor, WeightStore, WeightsError};

use super::PackError;
use crate::weight_map::{Piece, Transform};

/// Rows of one piece.
pub(super) struct Rows<'a> {
    pub(super) store: &'a WeightStore,
    pub(super) tensor: &'a StoredTensor,
    pub(super) piece: &'a Piece,
    /// Values of a row of the weight.
    pub(super) cols: u64,
    /// Bytes of a row as the pack point takes it.
    pub(super) row_bytes: u64,
}

impl Rows<'_> {
    /// Rows `first..first + rows` of the piece into `out`.
    pub(super) fn read(&self, first: u64, rows: u64, out: &mut Vec<u8>) -> Result<(), PackError> {
        out.resize((rows * self.row_bytes) as usize, 0);
        match &self.piece.transform {
            Transform::Rows { first: begin } => {
                let at = (begin + first) * self.row_bytes;
                Ok(self.store.read_at(self.tensor, at, out)?)
            }
            Transform::Blocks { .. } | Transform::Pairs { .. } => {
                Ok(self.gather(self.tensor, self.row_bytes, first, out)?)
            }
            Transform::PlusOne => self.values(first, rows, out, |v| v + 1.0),
            Transform::LogOfNegative => self.values(first, rows, out, |v| (-v).ln()),
            Transform::Mxfp4 { scales, .. } => self.mxfp4(scales, first, rows, out),
            Transform::Fp8 { scales, blocks, .. } => self.fp8(scales, *blocks, first, rows, out),
            Transform::Transposed {
                rows: stack,
                disk_rows,
                disk_cols,
                first: begin,
                step,
            } => {
                let view = Stack {
                    rows: *stack,
                    disk_bytes: disk_rows * disk_cols * self.elem_bytes(),
                    disk_cols: *disk_cols,
                    first: *begin,
                    step: *step,
                };
                self.transposed(&view, first, out)
            }
        }
    }

    /// Rows that move whole, from a window that covers them where they lie close together.
    fn gather(
        &self,
        tensor: &StoredTensor,
        row_bytes: u64,
        first: u64,
        out: &mut [u8],
    ) -> Result<(), WeightsError> {
        let size = row_bytes as usize;
        for (chunk, rows) in out.chunks_mut(size * WINDOW).enumerate() {
            let disk = |i: usize| {
                let row = first + (chunk * WINDOW + i) as u64;
                self.piece.transform.disk_row(row)
            };
            let count = rows.len() / size;
            let (Some(low), Some(high)) = ((0..count).map(disk).min(), (0..count).map(disk).max())
            else {
                continue;
            };
            if high - low >= 4 * count as u64 {
                for (i, row) in rows.chunks_exact_mut(size).enumerate() {
                    self.store.read_at(tensor, disk(i) * row_bytes, row)?;
                }
                continue;
            }
            let mut window = vec![0; (high - low + 1) as usize * size];
            self.store.read_at(tensor, low * row_bytes, &mut window)?;
            for (i, row) in rows.chunks_exact_mut(size).enumerate() {
                let at = (disk(i) - low) as usize * size;
                row.copy_from_slice(&window[at..at + size]);
            }
        }
        Ok(())
    }

    /// Each value in f32, changed by `change`.
    fn values(
        &self,
        first: u64,
        rows: u64,
        out: &mut [u8],
        change: impl Fn(f32) -> f32,
    ) -> Result<(), PackError> {
        let values = (rows * self.cols) as usize;
        let mut raw = vec![0; values * self.elem_bytes() as usize];
        let at = first * self.cols * self.elem_bytes();
        self.store.read_at(self.tensor, at, &mut raw)?;
        let mut plain = vec![0.0; values];
        numeric::dequantize(self.tensor.elem, &raw, &mut plain).map_err(|source| {
            PackError::Values {
                tensor: self.tensor.name.clone(),
                source,
            }
        })?;
        for (at, (to, value)) in out.chunks_exact_mut(4).zip(plain).enumerate() {
            let changed = change(value);
            if !changed.is_finite() {
                return Err(PackError::Changed {
                    tensor: self.tensor.name.clone(),
                    index: first * self.cols + at as u64,
                    value,
                });
            }
            to.copy_from_slice(&changed.to_le_bytes());
        }
        Ok(())
    }

    /// Blocks and scales into the blocks of GGUF's `mxfp4`: the scale, then 16 bytes whose low halves are values 0..16.
    fn mxfp4(&self, scales: &str, first: u64, rows: u64, out: &mut [u8]) -> Result<(), PackError> {
        let no_tensor = || PackError::NoScales(scales.to_owned());
        let scale_tensor = self.store.get(scales).ok_or_else(no_tensor)?;
        let blocks = self.cols / 32;
        let mut q = vec![0; (rows * blocks * 16) as usize];
        self.gather(self.tensor, blocks * 16, first, &mut q)?;
        let mut s = vec![0; (rows * blocks) as usize];
        self.gather(scale_tensor, blocks, first, &mut s)?;
        for ((to, q), scale) in out.chunks_exact_mut(17).zip(q.chunks_exact(16)).zip(s) {
            to[0] = scale;
            let value = |i: usize| q[i / 2] >> (4 * (i % 2)) & 15;
            for j in 0..16 {
                to[1 + j] = value(j) | value(j + 16) << 4;
            }
        }
        Ok(())
    }

    /// Values and scales into rows of [`metrale_core::fp8`].
    fn fp8(
        &self,
        scales: &str,
        blocks: bool,
        first: u64,
        rows: u64,
        out: &mut [u8],
    ) -> Result<(), PackError> {
        let scale_tensor = self.store.get(scales);
        let scale_tensor = scale_tensor.ok_or_else(|| PackError::NoScales(scales.to_owned()))?;
        let s = self.scales(scale_tensor)?;
        let cols = self.cols as usize;
        let mut q = vec![0; rows as usize * cols];
        self.gather(self.tensor, self.cols, first, &mut q)?;
        let tail = cols.next_multiple_of(fp8::BLOCK as usize);
        let per_row = cols.div_ceil(fp8::BLOCK as usize);
        let rows = out.chunks_exact_mut(self.row_bytes as usize);
        for ((to, q), row) in rows.zip(q.chunks_exact(cols)).zip(first..) {
            let disk = self.piece.transform.disk_row(row);
            if q.iter().fold(false, |bad, v| bad | (v & 0x7f == 0x7f)) {
                return Err(PackError::NoNumber {
                    tensor: self.tensor.name.clone(),
                    row: disk,
                });
            }
            to.fill(0);
            to[..cols].copy_from_slice(q);
            let of_row = match (blocks, s.len()) {
                (true, _) => &s[(disk / fp8::BLOCK) as usize * per_row..][..per_row],
                (false, 1) => &s[..],
                (false, _) => &s[disk as usize..][..1],
            };
            for (to, scale) in to[tail..].chunks_exact_mut(4).zip(of_row) {
                to.copy_from_slice(&scale.to_le_bytes());
            }
        }
        Ok(())
    }

    /// The scales of a tensor of them, each looked at.
    fn scales(&self, tensor: &StoredTensor) -> Result<Vec<f32>, PackError> {
        let mut values = vec![0.0; tensor.elems() as usize];
        let raw = self.store.read(tensor)?;
        numeric::dequantize(tensor.elem, &raw, &mut values).map_err(|source| {
            PackError::Values {
                tensor: tensor.name.clone(),
                source,
            }
        })?;
        match values.iter().position(|s| !s.is_finite() || *s < 0.0) {
            None => Ok(values),
            Some(index) => Err(PackError::Scale {
                tensor: tensor.name.clone(),
                index,
                value: values[index],
            }),
        }
    }

    fn transposed(&self, s: &Stack, first: u64, out: &mut [u8]) -> Result<(), PackError> {
        let size = self.elem_bytes() as usize;
        let mut disk = vec![0; s.disk_bytes as usize];
        let mut loaded = None;
        for (i, row) in out.chunks_exact_mut(self.row_bytes as usize).enumerate() {
            let row_index = first + i as u64;
            let (stack, within) = (row_index / s.rows, row_index % s.rows);
            if loaded != Some(stack) {
                loaded = Some(stack);
                self.store
                    .read_at(self.tensor, stack * s.disk_bytes, &mut disk)?;
            }
            let col = s.first + within * s.step;
            for (c, value) in row.chunks_exact_mut(size).enumerate() {
                let at = (c * s.disk_cols as usize + col as usize) * size;
                value.copy_from_slice(&disk[at..at + size]);
            }
        }
        Ok(())
    }

    /// Bytes of a value; transforms of values are for plain formats.
    fn elem_bytes(&self) -> u64 {
        match self.tensor.elem {
            Elem::F32 => 4,
            Elem::F16 | Elem::BF16 => 2,
            _ => 1,
        }
    }
}

/// Rows that are gathered from one window.
const WINDOW: usize = 256;

/// A stack of transposed matrices on disk.
struct Stack {
    rows: u64,
    disk_bytes: u64,
    disk_cols: u64,
    first: u64,
    step: u64,
}
