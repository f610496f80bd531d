// SPDX-License-Identifier: MIT OR Apache-2.0
//! `fill`: values made from a counter, for models without weights (`--load-format dummy`).
//!
//! *Spec* `hash_bell`: value `i = first + index` is `h = mix(mix(i + seed) ^ seed * 0x9e3779b9)`, all in 32 bits that wrap,
//! with `mix` the hash `x ^= x >> 16; x *= 0x7feb352d; x ^= x >> 15; x *= 0x846ca68b; x ^= x >> 16` (Wellons, "Prospecting
//! for hash functions", 2018); the sum of the four bytes of `h`, less 510, as f32 times `scale`, plus `mean`, each step
//! rounded to f32; then to nearest even in the format. The sum is bell-shaped within -510..=510, its standard deviation
//! `sqrt(4 * (256^2 - 1) / 12)` = 147.8.

use metrale_core::numeric::half::{bf16_from_f32, f16_from_f32};

use crate::args::{Args, Grid, Plain, RowShape, Tile};
use crate::decl;
use crate::isa::{Isa, on_isa};
use crate::point::{BadConstants, HostPoint, Need, positive};

/// Values of a tile: about 20 us.
const TILE: usize = 16 * 1024;

const fn point<T: Filled>(id: &'static str) -> HostPoint {
    HostPoint {
        id,
        args: decl::FILL,
        needs: needs::<T>,
        grid: |a, _| grid(a),
        run: |tile, _, _| {
            run::<T>(tile);
            Ok(())
        },
    }
}

pub(crate) static POINTS: [HostPoint; 3] = [
    point::<Single>("fill/f32"),
    point::<Brain>("fill/bf16"),
    point::<Half>("fill/f16"),
];

/// A format that can be filled.
trait Filled {
    type Bits: Plain;
    fn fill(isa: Isa, out: &mut [Self::Bits], counter: Counter, mean: f32, scale: f32);
}

/// Where the counter of a tile begins.
#[derive(Clone, Copy)]
struct Counter {
    begin: u32,
    seed: u32,
}

macro_rules! filled {
    ($name:ident, $bits:ty, $convert:expr) => {
        struct $name;
        impl Filled for $name {
            type Bits = $bits;
            fn fill(isa: Isa, out: &mut [$bits], counter: Counter, mean: f32, scale: f32) {
                #[inline(always)]
                fn body(out: &mut [$bits], counter: Counter, mean: f32, scale: f32) {
                    for (at, to) in out.iter_mut().enumerate() {
                        *to = $convert(value(counter, at as u32, mean, scale));
                    }
                }
                on_isa!(isa, body, (out: &mut [$bits] = out, counter: Counter = counter,
                    mean: f32 = mean, scale: f32 = scale));
            }
        }
    };
}
filled!(Single, f32, std::convert::identity);
filled!(Brain, u16, bf16_from_f32);
filled!(Half, u16, f16_from_f32);

fn needs<T: Filled>(a: &Args) -> Result<Vec<Need>, BadConstants> {
    let count = a.u32(1);
    positive(&[("count", count)])?;
    let bytes = (count * size_of::<T::Bits>()) as u64;
    Ok(vec![Need::Bytes { bytes }])
}

fn grid(a: &Args) -> Grid {
    Grid {
        rows: 1,
        row_block: 1,
        cols: a.u32(1).div_ceil(TILE) as u32,
        col_block: 1,
    }
}

fn run<T: Filled>(tile: &mut Tile<'_>) {
    let args = tile.args();
    let count = args.u32(1);
    let shape = RowShape {
        unit: TILE,
        ..RowShape::whole(count)
    };
    let counter = Counter {
        begin: args.u32(2).wrapping_add(tile.cols().start * TILE) as u32,
        seed: args.u32(3) as u32,
    };
    let mut dst = tile.output::<T::Bits>(0, shape);
    T::fill(args.isa, dst.row(0), counter, args.f32(4), args.f32(5));
}

#[inline(always)]
fn value(counter: Counter, at: u32, mean: f32, scale: f32) -> f32 {
    let Counter { begin, seed } = counter;
    let i = begin.wrapping_add(at);
    let h = mix(mix(i.wrapping_add(seed)) ^ seed.wrapping_mul(0x9e37_79b9));
    let sum = (h & 255) + (h >> 8 & 255) + (h >> 16 & 255) + (h >> 24);
    (sum as i32 - 510) as f32 * scale + mean
}

#[inline(always)]
fn mix(mut x: u32) -> u32 {
    x ^= x >> 16;
    x = x.wrapping_mul(0x7feb_352d);
    x ^= x >> 15;
    x = x.wrapping_mul(0x846c_a68b);
    x ^ x >> 16
}
