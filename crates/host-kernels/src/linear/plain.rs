// SPDX-License-Identifier: MIT OR Apache-2.0
//! `linear` for f32, bf16 and f16 weights with f32 activations. The spec stands in [`super`].

use super::{Work, point, run_with};
use crate::formats::{self, Format};
use crate::isa::on_isa;
use crate::lanes::{F8, bf16_to_f32, f16_to_f32};
use crate::point::HostPoint;

/// K of one chain.
pub(crate) const SEGMENT: usize = 256;

/// Reads eight outputs' weights of one k.
trait Weights: Format {
    fn load(w: &[u8]) -> F8;
}

impl Weights for formats::F32 {
    #[inline(always)]
    fn load(w: &[u8]) -> F8 {
        let mut out = [0.0; 8];
        for i in 0..8 {
            out[i] = f32::from_le_bytes([w[4 * i], w[4 * i + 1], w[4 * i + 2], w[4 * i + 3]]);
        }
        F8(out)
    }
}

impl Weights for formats::BF16 {
    #[inline(always)]
    fn load(w: &[u8]) -> F8 {
        let mut out = [0.0; 8];
        for i in 0..8 {
            out[i] = bf16_to_f32(u16::from_le_bytes([w[2 * i], w[2 * i + 1]]));
        }
        F8(out)
    }
}

impl Weights for formats::F16 {
    #[inline(always)]
    fn load(w: &[u8]) -> F8 {
        let mut out = [0.0; 8];
        for i in 0..8 {
            out[i] = f16_to_f32(u16::from_le_bytes([w[2 * i], w[2 * i + 1]]));
        }
        F8(out)
    }
}

/// `G` groups by `R` rows: each weight vector is read once for `R` rows, each activation once for `G` groups.
#[inline(always)]
fn block<F: Weights, const G: usize, const R: usize>(
    work: &mut Work<'_, f32>,
    row: usize,
    group: usize,
) {
    let mut total = [[F8::ZERO; G]; R];
    {
        let w: [&[u8]; G] = std::array::from_fn(|g| work.w(group + g));
        let x: [&[f32]; R] = std::array::from_fn(|r| work.x(row + r));
        let k = work.ld;
        let mut begin = 0;
        while begin < k {
            let end = k.min(begin + SEGMENT);
            let mut acc = [[F8::ZERO; G]; R];
            for i in begin..end {
                let mut weights = [F8::ZERO; G];
                for g in 0..G {
                    weights[g] = F::load(&w[g][i * F::PACKED..(i + 1) * F::PACKED]);
                }
                for r in 0..R {
                    let x = F8::splat(x[r][i]);
                    for g in 0..G {
                        acc[r][g] = weights[g].fma(x, acc[r][g]);
                    }
                }
            }
            for r in 0..R {
                for g in 0..G {
                    total[r][g] = total[r][g].add(acc[r][g]);
                }
            }
            begin = end;
        }
    }
    for (r, total) in total.iter().enumerate() {
        for (g, total) in total.iter().enumerate() {
            work.store(row + r, group + g, *total);
        }
    }
}

#[inline(always)]
fn tile<F: Weights>(work: &mut Work<'_, f32>) {
    let (rows, groups) = (work.rows.clone(), work.groups);
    let mut row = rows.start;
    while row + 4 <= rows.end {
        let mut g = 0;
        while g + 2 <= groups {
            block::<F, 2, 4>(work, row, g);
            g += 2;
        }
        if g < groups {
            block::<F, 1, 4>(work, row, g);
        }
        row += 4;
    }
    while row < rows.end {
        let mut g = 0;
        while g + 8 <= groups {
            block::<F, 8, 1>(work, row, g);
            g += 8;
        }
        while g < groups {
            block::<F, 1, 1>(work, row, g);
            g += 1;
        }
        row += 1;
    }
}

macro_rules! plain_point {
    ($id:literal, $format:ty) => {
        point::<$format>($id, false, |t, _, _| {
            let (isa, k) = (t.args().isa, t.args().u32(4));
            run_with::<$format, f32>(t, k, |work| {
                on_isa!(isa, tile::<$format>, (work: &mut Work<'_, f32> = work));
            })
        })
    };
}

pub(crate) static POINTS: [HostPoint; 3] = [
    plain_point!("linear/f32", formats::F32),
    plain_point!("linear/bf16", formats::BF16),
    plain_point!("linear/f16", formats::F16),
];
