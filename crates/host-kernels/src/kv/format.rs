// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pool's formats: what one head of one block holds ([`metrale_core::kv`] draws it), how a token is stored there and
//! how tokens are read.

use metrale_core::numeric::half::{f8e4m3_from_f32, f8e4m3_to_f32};
use metrale_core::{Elem, KV_BLOCK, kv};

use crate::args::Plain;
use crate::isa::{Isa, on_isa};
use crate::lanes::{bf16_to_f32, f16_to_f32};

/// Tokens of a block.
const TOKENS: usize = KV_BLOCK as usize;

/// A format that the pool may hold.
pub(crate) trait KvElem: 'static {
    /// What its spans are read as.
    type Raw: Plain;
    const ELEM: Elem;
    /// Elements of one head of a block, keys or values.
    fn head_len(dim: usize) -> usize;
    /// Stores a token's values of one head.
    fn store(isa: Isa, head: &mut [Self::Raw], offset: usize, x: &[f32]);
    /// Widens the first `to.len() / dim` tokens of one head.
    fn load(isa: Isa, to: &mut [f32], head: &[Self::Raw], dim: usize);
}

/// A type whose values stand alone.
pub(crate) trait KvValue: Plain {
    const ELEM: Elem;
    fn to_f32(self) -> f32;
    fn from_f32(v: f32) -> Self;
    /// Widens equally many values.
    fn widen(isa: Isa, to: &mut [f32], from: &[Self]);
}

impl<T: KvValue> KvElem for T {
    type Raw = T;
    const ELEM: Elem = T::ELEM;

    fn head_len(dim: usize) -> usize {
        TOKENS * dim
    }

    fn store(_: Isa, head: &mut [T], offset: usize, x: &[f32]) {
        let to = &mut head[offset * x.len()..][..x.len()];
        for (t, x) in to.iter_mut().zip(x) {
            *t = T::from_f32(*x);
        }
    }

    fn load(isa: Isa, to: &mut [f32], head: &[T], _: usize) {
        T::widen(isa, to, &head[..to.len()]);
    }
}

#[inline(always)]
fn widen<T: KvValue>(to: &mut [f32], from: &[T]) {
    for (t, f) in to.iter_mut().zip(from) {
        *t = f.to_f32();
    }
}

impl KvValue for f32 {
    const ELEM: Elem = Elem::F32;
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    fn from_f32(v: f32) -> f32 {
        v
    }
    fn widen(isa: Isa, to: &mut [f32], from: &[f32]) {
        on_isa!(isa, widen::<f32>, (to: &mut [f32] = to, from: &[f32] = from));
    }
}

/// bfloat16 by its bits.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Bf16(u16);
// SAFETY: a transparent u16.
unsafe impl Plain for Bf16 {}

impl KvValue for Bf16 {
    const ELEM: Elem = Elem::BF16;
    #[inline(always)]
    fn to_f32(self) -> f32 {
        bf16_to_f32(self.0)
    }
    #[inline(always)]
    fn from_f32(v: f32) -> Bf16 {
        Bf16(half::bf16::from_f32(v).to_bits())
    }
    fn widen(isa: Isa, to: &mut [f32], from: &[Bf16]) {
        on_isa!(isa, widen::<Bf16>, (to: &mut [f32] = to, from: &[Bf16] = from));
    }
}

/// IEEE half by its bits.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct F16(u16);
// SAFETY: a transparent u16.
unsafe impl Plain for F16 {}

impl KvValue for F16 {
    const ELEM: Elem = Elem::F16;
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f16_to_f32(self.0)
    }
    #[inline(always)]
    fn from_f32(v: f32) -> F16 {
        F16(half::f16::from_f32(v).to_bits())
    }
    fn widen(isa: Isa, to: &mut [f32], from: &[F16]) {
        #[cfg(target_arch = "x86_64")]
        if isa.has_avx2() {
            // SAFETY: `Isa` says AVX2 only after the processor said it, with F16C.
            return unsafe { widen_f16c(to, from) };
        }
        let _ = isa;
        widen(to, from);
    }
}

/// [`widen`] by F16C: exact, so the same bits.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn widen_f16c(to: &mut [f32], from: &[F16]) {
    use std::arch::x86_64::*;
    let whole = to.len().min(from.len()) / 8 * 8;
    for i in (0..whole).step_by(8) {
        // SAFETY: eight values from `i` on, in both; `F16` is a transparent u16.
        unsafe {
            let halves = _mm_loadu_si128(from.as_ptr().add(i).cast());
            _mm256_storeu_ps(to.as_mut_ptr().add(i), _mm256_cvtph_ps(halves));
        }
    }
    widen(&mut to[whole..], &from[whole..]);
}

/// int8 with a scale per token and head.
#[derive(Clone, Copy)]
pub(crate) struct Int8;

/// e4m3 with a scale per token and head.
#[derive(Clone, Copy)]
pub(crate) struct E4m3;

/// What the two scaled formats differ in.
pub(crate) trait Scaled: 'static {
    const ELEM: Elem;
    fn to_f32(q: u8) -> f32;
    fn from_f32(x: f32) -> u8;
}

impl Scaled for Int8 {
    const ELEM: Elem = Elem::I8;
    #[inline(always)]
    fn to_f32(q: u8) -> f32 {
        f32::from(q as i8)
    }
    #[inline(always)]
    fn from_f32(x: f32) -> u8 {
        kv::i8_from_f32(x) as u8
    }
}

impl Scaled for E4m3 {
    const ELEM: Elem = Elem::F8E4M3;
    #[inline(always)]
    fn to_f32(q: u8) -> f32 {
        f8e4m3_to_f32(q)
    }
    #[inline(always)]
    fn from_f32(x: f32) -> u8 {
        f8e4m3_from_f32(x)
    }
}

macro_rules! scaled_format {
    ($format:ty) => {
        impl KvElem for $format {
            type Raw = u8;
            const ELEM: Elem = <$format as Scaled>::ELEM;

            fn head_len(dim: usize) -> usize {
                TOKENS * (dim + 4)
            }

            fn store(isa: Isa, head: &mut [u8], offset: usize, x: &[f32]) {
                on_isa!(isa, store::<$format>, (head: &mut [u8] = head, offset: usize = offset, x: &[f32] = x));
            }

            fn load(isa: Isa, to: &mut [f32], head: &[u8], dim: usize) {
                on_isa!(isa, load::<$format>, (to: &mut [f32] = to, head: &[u8] = head, dim: usize = dim));
            }
        }
    };
}
scaled_format!(Int8);
scaled_format!(E4m3);

#[inline(always)]
fn store<S: Scaled>(head: &mut [u8], offset: usize, x: &[f32]) {
    let dim = x.len();
    let (values, scales) = head.split_at_mut(TOKENS * dim);
    let (scale, inverse) = kv::scale(S::ELEM, crate::fp8::largest(x));
    scales[4 * offset..4 * offset + 4].copy_from_slice(&scale.to_le_bytes());
    let to = &mut values[offset * dim..][..dim];
    if inverse == 0.0 {
        to.fill(0);
        return;
    }
    for (to, x) in to.iter_mut().zip(x) {
        *to = S::from_f32(*x * inverse);
    }
}

#[inline(always)]
fn load<S: Scaled>(to: &mut [f32], head: &[u8], dim: usize) {
    let (values, scales) = head.split_at(TOKENS * dim);
    let tokens = to.chunks_exact_mut(dim).zip(values.chunks_exact(dim));
    for ((to, from), scale) in tokens.zip(scales.as_chunks::<4>().0) {
        let scale = f32::from_le_bytes(*scale);
        for (to, q) in to.iter_mut().zip(from) {
            *to = S::to_f32(*q) * scale;
        }
    }
}
