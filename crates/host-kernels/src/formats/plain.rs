// SPDX-License-Identifier: MIT OR Apache-2.0
//! f32, bf16 and f16 weights: a block is one value.

use metrale_core::Elem;

use super::{Format, put};
use crate::lanes::{bf16_to_f32, f16_to_f32};
use crate::layout::GROUP;

macro_rules! plain {
    ($name:ident, $elem:expr, $bytes:literal, $read:expr) => {
        pub(crate) struct $name;
        impl Format for $name {
            const ELEM: Elem = $elem;
            const ELEMS: usize = 1;
            const DISK: usize = $bytes;
            const PACKED: usize = $bytes * GROUP;
            #[inline(always)]
            fn pack(disk: &[u8], row: usize, packed: &mut [u8]) {
                put::<$bytes>(packed, row, disk);
            }
            #[inline(always)]
            fn unpack(packed: &[u8], row: usize, out: &mut [f32]) {
                let mut value = [0; $bytes];
                value.copy_from_slice(&packed[row * $bytes..][..$bytes]);
                out[0] = $read(value);
            }
        }
    };
}

#[inline(always)]
fn bf16(bytes: [u8; 2]) -> f32 {
    bf16_to_f32(u16::from_le_bytes(bytes))
}

#[inline(always)]
fn f16(bytes: [u8; 2]) -> f32 {
    f16_to_f32(u16::from_le_bytes(bytes))
}

plain!(F32, Elem::F32, 4, f32::from_le_bytes);
plain!(BF16, Elem::BF16, 2, bf16);
plain!(F16, Elem::F16, 2, f16);
