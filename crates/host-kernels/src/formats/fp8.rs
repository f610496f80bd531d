// SPDX-License-Identifier: MIT OR Apache-2.0
//! e4m3 weights with f32 scales: a block is 128 columns and their scale, whether the scale is the row's or theirs.

use metrale_core::Elem;
use metrale_core::numeric::half::f8e4m3_to_f32;

use super::{Format, put};
use crate::layout::GROUP;

/// Columns of a block.
pub(crate) const COLUMNS: usize = 128;
/// Where the values of a packed block begin: behind eight scales.
pub(crate) const HEAD: usize = 4 * GROUP;
/// Bytes of a packed block.
pub(crate) const PACKED: usize = HEAD + COLUMNS * GROUP;

/// Either format; what is called a disk block here is 128 values and then their scale.
macro_rules! fp8 {
    ($name:ident, $elem:expr) => {
        pub(crate) struct $name;
        impl Format for $name {
            const ELEM: Elem = $elem;
            const ELEMS: usize = COLUMNS;
            const DISK: usize = COLUMNS + 4;
            const PACKED: usize = PACKED;
            fn pack(disk: &[u8], row: usize, packed: &mut [u8]) {
                put::<4>(packed, row, &disk[COLUMNS..]);
                for (to, value) in packed[HEAD..].chunks_exact_mut(GROUP).zip(disk) {
                    to[row] = *value;
                }
            }
            fn unpack(packed: &[u8], row: usize, out: &mut [f32]) {
                let scale = scale(packed, row);
                for (value, out) in packed[HEAD..].chunks_exact(GROUP).zip(out) {
                    *out = f8e4m3_to_f32(value[row]) * scale;
                }
            }
        }
    };
}

fp8!(F8Row, Elem::F8Row);
fp8!(F8Block, Elem::F8Block);

/// The scale of a row of a packed block.
#[inline(always)]
pub(crate) fn scale(packed: &[u8], row: usize) -> f32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&packed[4 * row..][..4]);
    f32::from_le_bytes(bytes)
}
