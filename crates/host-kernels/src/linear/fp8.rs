// SPDX-License-Identifier: MIT OR Apache-2.0
//! `linear` for e4m3 weights with f32 activations. The spec stands in [`super`].

use super::{Work, point, run_with};
use crate::formats;
use crate::formats::fp8::{COLUMNS, HEAD, PACKED, scale};
use crate::lanes::{F8, f16_to_f32};
use crate::layout::GROUP;
use crate::point::HostPoint;

/// What scales are multiplied by, values being converted to their 256th part.
pub(super) const SCALED: f32 = 256.0;

/// A 256th of an e4m3 value: its bits are those of an f16 of another bias. (A NaN is none here; packing refuses it.)
#[inline(always)]
fn part(value: u8) -> f32 {
    let bits = u16::from(value);
    f16_to_f32((bits & 0x7f) << 7 | (bits & 0x80) << 8)
}

/// The portable path: output by output as the spec says it.
fn portable(work: &mut Work<'_, f32>) {
    for row in work.rows.clone() {
        for group in 0..work.groups {
            let mut total = F8::ZERO;
            let blocks = work.w(group).chunks_exact(PACKED);
            for (packed, x) in blocks.zip(work.x(row).chunks(COLUMNS)) {
                let mut acc = F8::ZERO;
                for (w, x) in packed[HEAD..].chunks_exact(GROUP).zip(x) {
                    for o in 0..GROUP {
                        acc.0[o] = part(w[o]).mul_add(*x, acc.0[o]);
                    }
                }
                for o in 0..GROUP {
                    total.0[o] = acc.0[o].mul_add(SCALED * scale(packed, o), total.0[o]);
                }
            }
            work.store(row, group, total);
        }
    }
}

macro_rules! fp8_point {
    ($id:literal, $format:ty) => {
        point::<$format>($id, false, |t, _, _| {
            let (isa, k) = (t.args().isa, t.args().u32(4));
            run_with::<$format, f32>(t, k, |work| {
                #[cfg(target_arch = "x86_64")]
                if isa.has_avx512() {
                    return super::avx512_fp8::tile(work);
                }
                #[cfg(target_arch = "x86_64")]
                if isa.has_avx2() {
                    return super::avx2_fp8::tile(work, 0);
                }
                let _ = isa;
                portable(work);
            })
        })
    };
}

pub(crate) static POINTS: [HostPoint; 2] = [
    fp8_point!("linear/f8_row", formats::F8Row),
    fp8_point!("linear/f8_block", formats::F8Block),
];
