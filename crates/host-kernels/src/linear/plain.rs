// SPDX-License-Identifier: MIT OR Apache-2.0
//! `linear` for f32, bf16 and f16 weights with f32 activations. The spec stands in [`super`].

use super::{Work, experts, point, run_with};
use crate::formats::{self, Format};
use crate::lanes::{F8, Lanes};
use crate::layout::GROUP;
use crate::point::HostPoint;

/// K of one chain.
pub(super) const SEGMENT: usize = 256;

/// The portable path: output by output as the spec says it.
fn portable<F: Format>(work: &mut Work<'_, f32>) {
    for row in work.rows.clone() {
        for group in 0..work.groups {
            let mut total = F8::ZERO;
            let x = work.x(row).chunks(SEGMENT);
            for (x, w) in x.zip(work.w(group).chunks(SEGMENT * F::PACKED)) {
                let mut acc = F8::ZERO;
                for (x, w) in x.iter().zip(w.chunks_exact(F::PACKED)) {
                    for o in 0..GROUP {
                        let mut value = [0.0];
                        F::unpack(w, o, &mut value);
                        acc.0[o] = value[0].mul_add(*x, acc.0[o]);
                    }
                }
                total = total.add(acc);
            }
            work.store(row, group, total);
        }
    }
}

macro_rules! inner {
    ($format:ty, $isa:expr, $work:expr) => {{
        #[cfg(target_arch = "x86_64")]
        if $isa.has_avx512() {
            return super::avx512_plain::tile::<$format>($work);
        }
        #[cfg(target_arch = "x86_64")]
        if $isa.has_avx2() {
            return super::avx2_plain::tile::<$format>($work);
        }
        let _ = $isa;
        portable::<$format>($work);
    }};
}

macro_rules! plain_point {
    ($id:literal, $format:ty) => {
        point::<$format>($id, false, |t, _, _| {
            let (isa, k) = (t.args().isa, t.args().u32(4));
            run_with::<$format, f32>(t, k, |work| inner!($format, isa, work))
        })
    };
}

macro_rules! expert_point {
    ($id:literal, $format:ty) => {
        experts::point::<$format>($id, false, |t, _, scratch| {
            let isa = t.args().isa;
            experts::run::<$format, f32>(t, scratch, 1, |work| inner!($format, isa, work))
        })
    };
}

pub(crate) static EXPERT_POINTS: [HostPoint; 3] = [
    expert_point!("expert_linear/f32", formats::F32),
    expert_point!("expert_linear/bf16", formats::BF16),
    expert_point!("expert_linear/f16", formats::F16),
];

pub(crate) static POINTS: [HostPoint; 3] = [
    plain_point!("linear/f32", formats::F32),
    plain_point!("linear/bf16", formats::BF16),
    plain_point!("linear/f16", formats::F16),
];
