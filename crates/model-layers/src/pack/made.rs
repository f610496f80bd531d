// SPDX-License-Identifier: MIT OR Apache-2.0
//! Weights that no file holds, for benchmarks and trials: fill launches into staging, which are then packed as if they had
//! been read.
//!
//! Matrices are bell-shaped around 0 with standard deviation `1 / sqrt(k)`, so that activations keep their size through
//! any number of layers, a router's logits differ by about one, and no value of a row is so small beside the others that
//! an 8-bit format would lose it. Norm weights lie near 1, biases near 0.

use metrale_circuit::{WeightKey, WeightPart, WeightSlot};
use metrale_core::{Access, Arg};
use metrale_gpu_runtime::Kernel;

use super::{PackError, Packer, row_bytes};

/// Standard deviation of what a fill launch makes at scale 1: four bytes added up.
const BELL: f64 = 147.799;
/// Standard deviation of vectors.
const VECTOR: f64 = 0.05;

/// How one weight is made.
struct Filler {
    kernel: Kernel,
    seed: u64,
    mean: f32,
    scale: f32,
}

impl Packer<'_> {
    /// Makes and packs the rows of `part`.
    pub(super) fn made(
        &self,
        slot: &WeightSlot,
        part: &WeightPart,
        pack: Kernel,
        seed: u64,
        progress: &mut impl FnMut(u64),
    ) -> Result<(), PackError> {
        let fill = self.filler(slot, part, seed)?;
        let row_bytes = row_bytes(slot, part);
        let per_piece = self.per_piece(&part.key.to_string(), row_bytes)?;
        let mut row = 0;
        while row < part.rows {
            let rows = per_piece.min(part.rows - row);
            self.make(&fill, part, row * slot.cols, rows * slot.cols)?;
            self.pack(slot, part, pack, row, rows)?;
            progress(rows * row_bytes);
            row += rows;
        }
        Ok(())
    }

    fn filler(&self, slot: &WeightSlot, part: &WeightPart, seed: u64) -> Result<Filler, PackError> {
        let point = part.fill.as_ref().ok_or_else(|| PackError::NoFill {
            weight: part.key.clone(),
            format: part.format,
        })?;
        let (mean, deviation) = spread(&part.key, slot.cols);
        Ok(Filler {
            kernel: self.resolve(part, point)?,
            seed: stream(seed, &part.key),
            mean: mean as f32,
            scale: (deviation / BELL) as f32,
        })
    }

    /// Makes `count` values from value `first` of the weight on, in staging.
    fn make(
        &self,
        fill: &Filler,
        part: &WeightPart,
        first: u64,
        count: u64,
    ) -> Result<(), PackError> {
        // The counter has 32 bits: what lies beyond is another stream.
        let seed = fill.seed.wrapping_add(first >> 32);
        let args = [
            Arg::Buf {
                span: self.plan.staging,
                access: Access::Write,
            },
            Arg::U32(count as u32),
            Arg::U32(first as u32),
            Arg::U32((seed ^ seed >> 32) as u32),
            Arg::F32(fill.mean),
            Arg::F32(fill.scale),
        ];
        self.launch(part, fill.kernel, &args)
    }
}

/// Mean and standard deviation of a weight with `cols` values a row, 1 for vectors.
fn spread(key: &WeightKey, cols: u64) -> (f64, f64) {
    match cols {
        1 if key.name.ends_with("bias") => (0.0, VECTOR),
        1 => (1.0, VECTOR),
        k => (0.0, (k as f64).sqrt().recip()),
    }
}

/// The seed of a weight: FNV-1a of its name, from the model's seed on.
fn stream(seed: u64, key: &WeightKey) -> u64 {
    let name = key.to_string();
    let start = 0xcbf2_9ce4_8422_2325 ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    name.bytes().fold(start, |h, byte| {
        (h ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str, layer: u32) -> WeightKey {
        WeightKey {
            name: name.into(),
            layer: Some(layer),
        }
    }

    #[test]
    fn norms_lie_near_one_and_matrices_shrink_with_their_rows() {
        assert_eq!(spread(&key("q_norm", 0), 1).0, 1.0);
        assert_eq!(spread(&key("q_bias", 0), 1).0, 0.0);
        assert_eq!(spread(&key("q_proj", 0), 4096), (0.0, 1.0 / 64.0));
    }

    #[test]
    fn every_weight_has_a_stream_of_its_own() {
        let names = ["q_proj", "k_proj", "q_norm"];
        let mut seen = std::collections::BTreeSet::new();
        for seed in [0, 1, 2, u64::MAX] {
            for layer in 0..64 {
                seen.extend(names.map(|n| {
                    let s = stream(seed, &key(n, layer));
                    (s ^ s >> 32) as u32
                }));
            }
        }
        assert_eq!(seen.len(), 4 * 64 * 3);
    }
}
