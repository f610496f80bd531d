// SPDX-License-Identifier: MIT OR Apache-2.0
//! `read` and `peak`: launches that measure what the machine can do, so that a benchmark can say what share of it a model
//! reaches. They compute something that can be checked, so that nothing of them can be left out.
//!
//! *Spec* of `read`: `out[i]` is the exclusive or of the u32 words of the i-th 65,536 bytes of `src`. *Spec* of `peak`:
//! `out[i]` is the sum, in 32 bits that wrap, over `round < rounds` of the 512 products `a * b` of 16-bit integers with
//! `a = (lane + i) mod 128` and `b = round mod 128`, `lane` from 0 to 511. It is the peak of the vector units: many rows can pass
//! it where AMX tiles multiply them. In f32 each lane is a chain of fma with `b = round mod 2`, exact, and the lanes are added
//! as integers.

use crate::args::{Args, Grid, RowShape, Tile};
use crate::decl;
use crate::isa::{Isa, on_isa};
use crate::point::{BadConstants, HostPoint, Need, positive};

/// Words of a chunk of `read`.
const CHUNK: usize = 16 * 1024;
/// Products of one round of `peak`.
const LANES: usize = 512;

pub(crate) static READ: HostPoint = HostPoint {
    id: "read/xor",
    args: decl::READ,
    needs: |a| {
        let quads = a.u32(2);
        positive(&[("quads", quads)])?;
        Ok(vec![
            Need::Bytes {
                bytes: quads as u64 * 16,
            },
            Need::Bytes {
                bytes: (quads * 4).div_ceil(CHUNK) as u64 * 4,
            },
        ])
    },
    grid: |a, _| Grid::rows((a.u32(2) * 4).div_ceil(CHUNK) as u32, 8),
    run: |tile, _, _| {
        let args = tile.args();
        let src = &tile.input::<u32>(0)[..args.u32(2) * 4];
        let mut out = tile.output::<u32>(1, RowShape::whole(1));
        for r in tile.rows() {
            let words = &src[r * CHUNK..src.len().min((r + 1) * CHUNK)];
            out.row(r)[0] = on_isa!(args.isa, xor, (words: &[u32] = words) -> u32);
        }
        Ok(())
    },
};

/// Rounds up to which a lane's sum in f32 is exact.
const EXACT: usize = (1 << 24) / 127;

pub(crate) static PEAKS: [HostPoint; 2] = [
    HostPoint {
        id: "peak/i16",
        args: decl::PEAK,
        needs: peak_needs,
        grid: |a, _| Grid::rows(a.u32(2) as u32, 1),
        run: |tile, _, _| {
            cells(tile, |first, rounds, isa| {
                let a: [i16; LANES] = std::array::from_fn(|lane| ((lane + first) % 128) as i16);
                #[cfg(target_arch = "x86_64")]
                if isa.has_avx512() {
                    // SAFETY: `Isa` says AVX-512 only after the processor said it.
                    return unsafe { products_avx512(&a, rounds) };
                }
                #[cfg(target_arch = "x86_64")]
                if isa.has_avx2() {
                    // SAFETY: `Isa` says AVX2 only after the processor said it.
                    return unsafe { products_avx2(&a, rounds) };
                }
                let _ = isa;
                products(&a, rounds)
            });
            Ok(())
        },
    },
    HostPoint {
        id: "peak/f32",
        args: decl::PEAK,
        needs: |a| {
            if a.u32(1) > EXACT {
                let what = format!("{} rounds, of which {EXACT} are exact", a.u32(1));
                return Err(BadConstants::new(what));
            }
            peak_needs(a)
        },
        grid: |a, _| Grid::rows(a.u32(2) as u32, 1),
        run: |tile, _, _| {
            cells(tile, |first, rounds, isa| {
                let mut a: [f32; LANES] = std::array::from_fn(|lane| ((lane + first) % 128) as f32);
                #[cfg(target_arch = "x86_64")]
                if isa.has_avx512() {
                    // SAFETY: `Isa` says AVX-512 only after the processor said it.
                    unsafe { chains_avx512(&mut a, rounds) };
                    return total(&a);
                }
                #[cfg(target_arch = "x86_64")]
                if isa.has_avx2() {
                    // SAFETY: `Isa` says AVX2 only after the processor said it, with FMA.
                    unsafe { chains_avx2(&mut a, rounds) };
                    return total(&a);
                }
                let _ = isa;
                chains(&mut a, rounds);
                total(&a)
            });
            Ok(())
        },
    },
];

fn peak_needs(a: &Args) -> Result<Vec<Need>, BadConstants> {
    positive(&[("rounds", a.u32(1)), ("cells", a.u32(2))])?;
    Ok(vec![Need::Bytes {
        bytes: a.u32(2) as u64 * 4,
    }])
}

/// Fills the tile's cells: `cell(i, rounds, isa)`.
fn cells(tile: &mut Tile<'_>, cell: impl Fn(usize, u32, Isa) -> u32) {
    let args = tile.args();
    let mut out = tile.output::<u32>(0, RowShape::whole(1));
    for r in tile.rows() {
        out.row(r)[0] = cell(r, args.u32(1) as u32, args.isa);
    }
}

/// The lanes' sums, which are whole numbers.
fn total(sums: &[f32; LANES]) -> u32 {
    sums.iter().fold(0, |t, s| t.wrapping_add(*s as u32))
}

/// Each lane's chain, in its place.
fn chains(a: &mut [f32; LANES], rounds: u32) {
    for a in a {
        *a = (0..rounds).fold(0.0, |sum, round| a.mul_add((round % 2) as f32, sum));
    }
}

/// Sixteen chains at a time, all in registers.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn chains_avx512(a: &mut [f32; LANES], rounds: u32) {
    use std::arch::x86_64::*;
    for a in a.as_chunks_mut::<256>().0 {
        let mut sums = [_mm512_setzero_ps(); 16];
        for round in 0..rounds {
            let b = _mm512_set1_ps((round % 2) as f32);
            for (at, sum) in sums.iter_mut().enumerate() {
                // SAFETY: 16 of the chunk's 256 values, `at` from 0 to 15.
                let a = unsafe { _mm512_loadu_ps(a.as_ptr().add(at * 16)) };
                *sum = _mm512_fmadd_ps(a, b, *sum);
            }
        }
        for (at, sum) in sums.into_iter().enumerate() {
            // SAFETY: as above.
            unsafe { _mm512_storeu_ps(a.as_mut_ptr().add(at * 16), sum) };
        }
    }
}

/// Eight chains at a time.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn chains_avx2(a: &mut [f32; LANES], rounds: u32) {
    use std::arch::x86_64::*;
    for a in a.as_chunks_mut::<64>().0 {
        let mut sums = [_mm256_setzero_ps(); 8];
        for round in 0..rounds {
            let b = _mm256_set1_ps((round % 2) as f32);
            for (at, sum) in sums.iter_mut().enumerate() {
                // SAFETY: 8 of the chunk's 64 values, `at` from 0 to 7.
                let a = unsafe { _mm256_loadu_ps(a.as_ptr().add(at * 8)) };
                *sum = _mm256_fmadd_ps(a, b, *sum);
            }
        }
        for (at, sum) in sums.into_iter().enumerate() {
            // SAFETY: as above.
            unsafe { _mm256_storeu_ps(a.as_mut_ptr().add(at * 8), sum) };
        }
    }
}

#[inline(always)]
fn xor(words: &[u32]) -> u32 {
    let mut lanes = [0u32; 64];
    let whole = words.chunks_exact(64);
    let rest = whole.remainder().iter().fold(0, |x, w| x ^ w);
    for chunk in whole {
        for (lane, word) in lanes.iter_mut().zip(chunk) {
            *lane ^= word;
        }
    }
    lanes.iter().fold(rest, |x, lane| x ^ lane)
}

fn products(a: &[i16; LANES], rounds: u32) -> u32 {
    let mut sum = 0u32;
    for round in 0..rounds {
        let b = (round % 128) as i32;
        for a in a {
            sum = sum.wrapping_add((i32::from(*a) * b) as u32);
        }
    }
    sum
}

/// Eight chains of `vpdpwssd`, its operands in the first-level cache.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn products_avx512(a: &[i16; LANES], rounds: u32) -> u32 {
    use std::arch::x86_64::*;
    let mut sums = [_mm512_setzero_si512(); 8];
    for round in 0..rounds {
        let b = _mm512_set1_epi16((round % 128) as i16);
        for a in a.as_chunks::<256>().0 {
            for (at, sum) in sums.iter_mut().enumerate() {
                // SAFETY: 32 of the chunk's 256 values, `at` from 0 to 7.
                let a = unsafe { _mm512_loadu_si512(a.as_ptr().add(at * 32).cast()) };
                *sum = _mm512_dpwssd_epi32(*sum, a, b);
            }
        }
    }
    let total = sums
        .into_iter()
        .fold(_mm512_setzero_si512(), |t, s| _mm512_add_epi32(t, s));
    _mm512_reduce_add_epi32(total) as u32
}

/// Eight chains of `vpmaddwd`, its operands in the first-level cache: what an integer linear kernel does at best.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn products_avx2(a: &[i16; LANES], rounds: u32) -> u32 {
    use std::arch::x86_64::*;
    let zero = _mm256_setzero_si256();
    let mut s = (zero, zero, zero, zero, zero, zero, zero, zero);
    for round in 0..rounds {
        let b = _mm256_set1_epi16((round % 128) as i16);
        for a in a.chunks_exact(128) {
            let step = |sum: __m256i, at: usize| {
                // SAFETY: 16 of the chunk's 128 values, `at` from 0 to 7.
                let a = unsafe { _mm256_loadu_si256(a.as_ptr().add(at * 16).cast()) };
                _mm256_add_epi32(sum, _mm256_madd_epi16(a, b))
            };
            s.0 = step(s.0, 0);
            s.1 = step(s.1, 1);
            s.2 = step(s.2, 2);
            s.3 = step(s.3, 3);
            s.4 = step(s.4, 4);
            s.5 = step(s.5, 5);
            s.6 = step(s.6, 6);
            s.7 = step(s.7, 7);
        }
    }
    let sums = [s.0, s.1, s.2, s.3, s.4, s.5, s.6, s.7];
    let mut words = [0u32; 8];
    let mut total = 0u32;
    for sum in sums {
        // SAFETY: eight words of room.
        unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), sum) };
        total = words.iter().fold(total, |t, w| t.wrapping_add(*w));
    }
    total
}
