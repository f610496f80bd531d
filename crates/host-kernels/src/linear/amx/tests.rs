// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver over the model of the tiles against the portable path, and the processor's tiles against the model.

use std::sync::Arc;

use metrale_core::{Elem, StepBlock, StepLayout, StepLimits};

use super::model::Model;
use super::tiles::{Hardware, Line, ROWS, Tiles};
use super::{Block, Planar, ZERO, all};
use crate::args::{Args, Grid, RawBuf, Value};
use crate::formats;
use crate::isa::Isa;
use crate::linear::{needs_a16, run_with, vector};
use crate::point::{HostLaunch, HostPoint};
use crate::quantize::{A16_BLOCK, A16Block};
use crate::scratch::Scratch;
use crate::{decl, packed_bytes, point};

/// A point whose one tile is the whole launch.
const fn modelled<F: Planar>(id: &'static str) -> HostPoint {
    HostPoint {
        id,
        args: decl::LINEAR,
        needs: needs_a16::<F>,
        grid: |a, counts| Grid {
            rows: counts.rows,
            row_block: counts.rows.max(1),
            cols: a.u32(5).div_ceil(8) as u32,
            col_block: a.u32(5).div_ceil(8) as u32,
        },
        run: |t, _, scratch| {
            let k = t.args().u32(4);
            run_with::<F, A16Block>(t, k / A16_BLOCK, |work| {
                // SAFETY: the model needs no instructions; the test has asked for AVX-512.
                unsafe { all::<F, _>(work, &mut scratch.tiles, &mut Model::new()) };
                if !work.groups.is_multiple_of(2) {
                    vector::tile::<F>(work, work.groups - 1, true);
                }
            })
        },
    }
}

static POINTS: [HostPoint; 13] = [
    modelled::<formats::Q8_0>("linear/q8_0"),
    modelled::<formats::Q4_0>("linear/q4_0"),
    modelled::<formats::Q4_1>("linear/q4_1"),
    modelled::<formats::Q5_0>("linear/q5_0"),
    modelled::<formats::Q5_1>("linear/q5_1"),
    modelled::<formats::Q2K>("linear/q2_k"),
    modelled::<formats::Q3K>("linear/q3_k"),
    modelled::<formats::Q4K>("linear/q4_k"),
    modelled::<formats::Q5K>("linear/q5_k"),
    modelled::<formats::Q6K>("linear/q6_k"),
    modelled::<formats::Iq4Nl>("linear/iq4_nl"),
    modelled::<formats::Iq4Xs>("linear/iq4_xs"),
    modelled::<formats::Mxfp4>("linear/mxfp4"),
];

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }
}

/// How the bits of weights and the steps of activations are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fill {
    Random,
    /// Every byte of the weights, every activation.
    Ends(u8, i16),
}

/// Packed weights with finite scales.
fn weights(elem: Elem, n: usize, k: usize, fill: Fill, rng: &mut Rng) -> Vec<u8> {
    let len = packed_bytes(elem, n as u64, k as u64).unwrap() as usize;
    let mut bytes: Vec<u8> = (0..len)
        .map(|_| match fill {
            Fill::Random => rng.next() as u8,
            Fill::Ends(byte, _) => byte,
        })
        .collect();
    let block = packed_bytes(elem, 8, u64::from(elem.block_elems())).unwrap() as usize;
    let halves = match elem {
        Elem::Mxfp4 => 0,
        Elem::Q4_1 | Elem::Q5_1 | Elem::Q2K | Elem::Q4K | Elem::Q5K => 16,
        _ => 8,
    };
    for block in bytes.chunks_exact_mut(block) {
        for at in 0..halves {
            let v = half::f16::from_f32((rng.next() % 2001) as f32 / 10_000.0 - 0.1);
            block[2 * at..2 * at + 2].copy_from_slice(&v.to_le_bytes());
        }
        if elem == Elem::Mxfp4 {
            for e in &mut block[..8] {
                *e = 118 + *e % 8;
            }
        }
        if elem == Elem::Q3K {
            // Sub-scales have six bits.
            for sub in block[16..].chunks_exact_mut(112) {
                for scale in &mut sub[..16] {
                    *scale = (*scale % 64).wrapping_sub(32);
                }
            }
        }
    }
    bytes
}

fn activations(rows: usize, k: usize, fill: Fill, rng: &mut Rng) -> Vec<A16Block> {
    (0..rows * k / A16_BLOCK)
        .map(|_| {
            let q: [i16; A16_BLOCK] = std::array::from_fn(|_| match fill {
                Fill::Random => (rng.next() % 32_767) as i16 - 16_383,
                Fill::Ends(_, step) => step,
            });
            let scale = (rng.next() % 1000) as f32 * 1e-6;
            let sum: i32 = q.iter().map(|q| i32::from(*q)).sum();
            A16Block {
                scale,
                sum: scale * sum as f32,
                q,
            }
        })
        .collect()
}

/// Memory as launches want it.
fn lines(bytes: &[u8]) -> Vec<Line> {
    let mut out = vec![ZERO; bytes.len().div_ceil(64)];
    for (line, from) in out.iter_mut().zip(bytes.chunks(64)) {
        for (word, from) in line.0.iter_mut().zip(from.chunks(4)) {
            let mut four = [0; 4];
            four[..from.len()].copy_from_slice(from);
            *word = u32::from_le_bytes(four);
        }
    }
    out
}

fn bytes(x: &[A16Block]) -> Vec<u8> {
    let head = |x: &A16Block| [x.scale, x.sum].map(f32::to_le_bytes).concat();
    let one = |x: &A16Block| [head(x), x.q.iter().flat_map(|q| q.to_le_bytes()).collect()].concat();
    x.iter().flat_map(one).collect()
}

/// What `point` gives for `rows` rows, as bits.
fn run(
    point: &'static HostPoint,
    isa: Isa,
    (w, x): (&[u8], &[A16Block]),
    (n, k, rows): (usize, usize, usize),
) -> Vec<u32> {
    let mut memory = [
        lines(&bytes(x)),
        lines(w),
        vec![ZERO],
        lines(&vec![0xa5; 4 * n * rows]),
    ];
    let lens = [x.len() * 72, w.len(), 0, 4 * n * rows];
    let mut values: Vec<Value> = memory
        .iter_mut()
        .zip(lens)
        // SAFETY: aligned to 64 bytes, as long as said, and alive until the launch is over.
        .map(|(m, len)| Value::Buf(unsafe { RawBuf::new(m.as_mut_ptr().cast(), len) }))
        .collect();
    values.extend([k, n, 0, n, 0, 0].map(|v| Value::U32(v as u32)));
    values.push(Value::Step);
    let launch = HostLaunch {
        point,
        args: Args::new(point.args, values, isa).unwrap(),
    };
    let mut step = StepBlock::new(Arc::new(StepLayout::new(StepLimits {
        rows: 256,
        logits_rows: 1,
        slots: 1,
        blocks_per_slot: 16,
        tables: 1,
        history: 0,
        bias: 0,
        mask_words: 0,
    })));
    step.push_run(0, 0, &vec![1; rows]).unwrap();
    let mut scratch = Scratch::default();
    for tile in 0..launch.tiles(step.counts()) {
        // SAFETY: buffers as the point needs them; each tile once, one after the other.
        unsafe { launch.run(&step, tile, &mut scratch).unwrap() };
    }
    let out = memory[3].iter().flat_map(|l| l.0);
    out.take(n * rows).collect()
}

fn compare(modelled: &'static HostPoint, (n, k, rows): (usize, usize, usize), fill: Fill) {
    let elem = Elem::from_name(&modelled.id["linear/".len()..]).unwrap();
    let k = k.next_multiple_of(elem.block_elems() as usize);
    let mut rng = Rng((n * k + rows) as u64);
    let w = weights(elem, n, k, fill, &mut rng);
    let x = activations(rows, k, fill, &mut rng);
    let portable = point(modelled.id).unwrap();
    let want = run(portable, Isa::PORTABLE, (&w, &x), (n, k, rows));
    let got = run(modelled, Isa::avx512().unwrap(), (&w, &x), (n, k, rows));
    assert!(want == got, "{elem} {n} x {k}, {rows} rows, {fill:?}");
    if let Some(amx) = Isa::amx() {
        let got = run(portable, amx, (&w, &x), (n, k, rows));
        assert!(want == got, "amx: {elem} {n} x {k}, {rows} rows, {fill:?}");
    }
}

fn avx512() -> bool {
    let has = Isa::avx512().is_some();
    if !has {
        eprintln!("skipped: no AVX-512");
    }
    has
}

#[test]
fn over_the_model_the_bits_are_the_portable_ones() {
    for point in avx512().then_some(&POINTS).into_iter().flatten() {
        for shape in [
            (16, 32, 16),
            (13, 96, 7),
            (24, 160, 17),
            (40, 288, 33),
            (17, 608, 70),
            (48, 32, 131),
        ] {
            compare(point, shape, Fill::Random);
        }
    }
}

#[test]
fn the_ends_of_every_range_are_exact() {
    for point in avx512().then_some(&POINTS).into_iter().flatten() {
        for byte in [0, 0x0f, 0x7f, 0x80, 0xf0, 0xff] {
            for step in [-16_383, -16_257, -1, 0, 127, 128, 16_383] {
                compare(point, (16, 64, 16), Fill::Ends(byte, step));
            }
        }
    }
}

/// `C + A x B` on fresh tiles.
fn product(tiles: &mut impl Tiles, a: &Block, b: &Block, c: &Block) -> Block {
    let mut out = *c;
    // SAFETY: the caller's instructions, opened and closed; blocks are 16 lines.
    unsafe {
        tiles.open();
        tiles.load::<0>(out.as_ptr());
        tiles.load::<1>(a.as_ptr());
        tiles.load::<2>(b.as_ptr());
        tiles.dot::<0, 1, 2>();
        tiles.store::<0>(out.as_mut_ptr());
        tiles.close();
    }
    out
}

#[test]
fn the_processors_tiles_are_the_models() {
    if Isa::amx().is_none() {
        eprintln!("skipped: no AMX");
        return;
    }
    let mut rng = Rng(9);
    let mut integer = |bits: u32, odd: u32| {
        let one = |rng: &mut Rng| {
            let v = (rng.next() % (2 << bits)) as f32 - (1 << bits) as f32;
            (v * odd as f32).to_bits() >> 16
        };
        [ZERO; ROWS].map(|_| Line(std::array::from_fn(|_| one(&mut rng) | one(&mut rng) << 16)))
    };
    for _ in 0..50 {
        let (a, b) = (integer(7, 128), integer(5, 1));
        let want = product(&mut Model::new(), &a, &b, &[ZERO; ROWS]);
        let got = product(&mut Hardware, &a, &b, &[ZERO; ROWS]);
        assert_eq!(want.map(|l| l.0), got.map(|l| l.0));
    }
    // No spec rests on it, but so it is: values whose sums round, and subnormal ones, are the manual's to the bit.
    for (base, exponents) in [(130, 20), (120, 120)] {
        let mut float = || {
            let one = |rng: &mut Rng| {
                let exponent = base - rng.next() % exponents;
                (rng.next() % 2) << 15 | exponent << 7 | (rng.next() % 128)
            };
            [ZERO; ROWS].map(|_| Line(std::array::from_fn(|_| one(&mut rng) | one(&mut rng) << 16)))
        };
        let (a, b) = (float(), float());
        let want = product(&mut Model::new(), &a, &b, &[ZERO; ROWS]);
        let got = product(&mut Hardware, &a, &b, &[ZERO; ROWS]);
        assert_eq!(want.map(|l| l.0), got.map(|l| l.0));
    }
}
