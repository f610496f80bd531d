// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packing, gathering and multiplying quantized weights, against the reference dequantization of core.
#![allow(clippy::unwrap_used)]

mod common;

use common::{A, Rng, call_all, f32s, raw, read, relative, rows, step, write};
use metrale_core::numeric::dequantize::dequantize;
use metrale_core::{Access, Elem, Unit};
use metrale_host_kernels::packed_bytes;

const FORMATS: [Elem; 13] = [
    Elem::Q8_0,
    Elem::Q4_0,
    Elem::Q4_1,
    Elem::Q5_0,
    Elem::Q5_1,
    Elem::Q2K,
    Elem::Q3K,
    Elem::Q4K,
    Elem::Q5K,
    Elem::Q6K,
    Elem::Iq4Nl,
    Elem::Iq4Xs,
    Elem::Mxfp4,
];

/// Where a block's f16 scales are.
fn halves(elem: Elem) -> &'static [usize] {
    match elem {
        Elem::Q4_1 | Elem::Q5_1 | Elem::Q4K | Elem::Q5K => &[0, 2],
        Elem::Q2K => &[80, 82],
        Elem::Q3K => &[108],
        Elem::Q6K => &[208],
        Elem::Mxfp4 => &[],
        _ => &[0],
    }
}

/// Random blocks: every bit of the integers, scales of either sign around 0.05.
fn disk(elem: Elem, rows: usize, k: usize, rng: &mut Rng) -> Vec<u8> {
    let mut bytes = rng.bytes(elem.bytes_for((rows * k) as u64).unwrap() as usize);
    for block in bytes.chunks_exact_mut(elem.block_bytes() as usize) {
        for at in halves(elem) {
            let scale = half::f16::from_f32(rng.normal() * 0.05);
            block[*at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
        if elem == Elem::Mxfp4 {
            block[0] = 118 + block[0] % 8;
        }
    }
    bytes
}

fn values(elem: Elem, disk: &[u8], n: usize) -> Vec<f32> {
    let mut out = vec![0.0; n];
    dequantize(elem, disk, &mut out).unwrap();
    out
}

/// Packs in two launches, the second from the middle of a group.
fn pack(elem: Elem, n: usize, k: usize, disk: &[u8]) -> A {
    let bytes = packed_bytes(elem, n as u64, k as u64).unwrap() as usize;
    let row = disk.len() / n;
    let mut dst = vec![0xa5; bytes];
    let middle = n / 2;
    for (begin, end) in [(0, middle), (middle, n)] {
        if begin == end {
            continue;
        }
        let args = [
            raw(
                Access::Read,
                Elem::U8,
                Unit::One,
                0,
                disk[begin * row..end * row].to_vec(),
            ),
            raw(Access::Write, elem, Unit::One, n * k, dst),
            A::U(end - begin),
            A::U(k),
            A::U(begin),
            A::U(n),
        ];
        dst = call_all(&format!("pack/{elem}"), &args, &step())
            .pop()
            .unwrap();
    }
    raw(Access::Read, elem, Unit::One, n * k, dst)
}

#[test]
fn a_gathered_row_is_the_dequantized_row_to_the_bit() {
    for elem in FORMATS {
        let (vocab, hidden) = (19, 512);
        let mut rng = Rng::new(1);
        let disk = disk(elem, vocab, hidden, &mut rng);
        let want = values(elem, &disk, vocab * hidden);
        let ids: Vec<u32> = (0..vocab as u32).rev().collect();
        let mut step = step();
        step.push_run(0, 0, &ids).unwrap();
        let args = [
            pack(elem, vocab, hidden, &disk),
            write(Unit::Row, hidden, vocab),
            A::U(hidden),
            A::U(vocab),
            A::F(1.0),
            A::Step,
        ];
        let got = f32s(&call_all(&format!("embed/{elem}"), &args, &step)[1]);
        for (row, id) in got.chunks(hidden).zip(ids) {
            assert_eq!(row, &want[id as usize * hidden..][..hidden], "{elem} {id}");
        }
    }
}

/// A16 bytes of `x`, and the values that they stand for.
fn quantize(x: &[f32], k: usize) -> (Vec<u8>, Vec<f64>) {
    let m = x.len() / k;
    let blocks = vec![0; x.len() / 32 * 72];
    let args = [
        read(Unit::Row, k, x),
        raw(Access::Write, Elem::A16, Unit::Row, k, blocks),
        A::U(k),
        A::U(0),
        A::Step,
    ];
    let a16 = call_all("quantize/a16", &args, &rows(m, 0)).pop().unwrap();
    let mut out = Vec::new();
    for block in a16.chunks_exact(72) {
        let scale = f64::from(f32s(&block[..4])[0]);
        let q = block[8..].chunks_exact(2);
        out.extend(q.map(|q| f64::from(i16::from_le_bytes([q[0], q[1]])) * scale));
    }
    (a16, out)
}

#[test]
fn quantization_is_within_half_a_step() {
    let mut rng = Rng::new(2);
    let x = rng.normals(3 * 64);
    let (_, values) = quantize(&x, 64);
    for (x, v) in x.chunks(32).zip(values.chunks(32)) {
        let amax = x.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        for (x, v) in x.iter().zip(v) {
            // Half a step, and the three roundings before q's: 16,383 * 3 * 2^-24 = 0.003 of a step.
            assert!((f64::from(*x) - v).abs() <= f64::from(amax) / 16383.0 * 0.503);
        }
    }
}

#[test]
fn linear_with_quantized_weights() {
    for elem in FORMATS {
        let long = if elem.block_elems() == 256 { 768 } else { 608 };
        let short = elem.block_elems() as usize;
        for (n, k, m) in [
            (1, short, 1),
            (8, long, 2),
            (13, long, 7),
            (72, short, 40),
            (260, long, 1),
        ] {
            let mut rng = Rng::new(3);
            let disk = disk(elem, n, k, &mut rng);
            let w = values(elem, &disk, n * k);
            let (a16, x) = quantize(&rng.normals(m * k), k);
            let args = [
                raw(Access::Read, Elem::A16, Unit::Row, k, a16),
                pack(elem, n, k, &disk),
                read(Unit::One, 0, &[0.0]),
                write(Unit::Row, n, m),
                A::U(k),
                A::U(n),
                A::U(0),
                A::U(n),
                A::U(0),
                A::U(0),
                A::Step,
            ];
            let out = call_all(&format!("linear/{elem}"), &args, &rows(m, 0));
            let mut want = Vec::new();
            for x in x.chunks(k) {
                for w in w.chunks(k) {
                    want.push(x.iter().zip(w).map(|(x, w)| x * f64::from(*w)).sum::<f64>());
                }
            }
            // Three roundings and two fma per block of 32, of terms that the offset makes a few times larger.
            let worst = relative(&f32s(&out[3]), &want);
            assert!(worst < 2e-5, "{elem} {n} x {k}, {m} rows: {worst}");
        }
    }
}

#[test]
fn the_largest_integers_do_not_overflow() {
    // Every weight and every activation at an end of its range.
    for elem in FORMATS {
        let k = elem.block_elems() as usize;
        // The last case is the largest integer of all: q6_k's -32 by its sub-scale -128, 2^31 - 131,072 in a block of 32.
        for (fill, sub_scale) in [
            (0x00, 0x00),
            (0xff, 0xff),
            (0x80, 0x80),
            (0x7f, 0x7f),
            (0x00, 0x80),
        ] {
            let mut disk = vec![fill; elem.block_bytes() as usize];
            if elem == Elem::Q6K {
                disk[192..208].fill(sub_scale);
            }
            if elem == Elem::Mxfp4 {
                disk[0] = 127;
            }
            for at in halves(elem) {
                disk[*at..at + 2].copy_from_slice(&half::f16::ONE.to_le_bytes());
            }
            let w = values(elem, &disk, k);
            for sign in [1.0, -1.0] {
                let (a16, x) = quantize(&vec![sign; k], k);
                let args = [
                    raw(Access::Read, Elem::A16, Unit::Row, k, a16),
                    pack(elem, 1, k, &disk),
                    read(Unit::One, 0, &[0.0]),
                    write(Unit::Row, 1, 1),
                    A::U(k),
                    A::U(1),
                    A::U(0),
                    A::U(1),
                    A::U(0),
                    A::U(0),
                    A::Step,
                ];
                let out = f32s(&call_all(&format!("linear/{elem}"), &args, &rows(1, 0))[3])[0];
                let want: f64 = x.iter().zip(&w).map(|(x, w)| x * f64::from(*w)).sum();
                let size: f64 = x
                    .iter()
                    .zip(&w)
                    .map(|(x, w)| (x * f64::from(*w)).abs())
                    .sum();
                assert!(
                    (f64::from(out) - want).abs() <= 4e-6 * size + 1e-5,
                    "{elem} {fill:x} {out} {want}"
                );
            }
        }
    }
}

#[test]
fn every_e8m0_scale_is_the_power_that_it_names() {
    let (n, k) = (256, 32);
    let mut disk = Vec::new();
    for e in 0..=255u8 {
        disk.push(e);
        disk.extend([0x12; 16]); // 1 and 0.5
    }
    let w = values(Elem::Mxfp4, &disk, n * k);
    let (a16, x) = quantize(&vec![1.0; k], k);
    let args = [
        raw(Access::Read, Elem::A16, Unit::Row, k, a16),
        pack(Elem::Mxfp4, n, k, &disk),
        read(Unit::One, 0, &[0.0]),
        write(Unit::Row, n, 1),
        A::U(k),
        A::U(n),
        A::U(0),
        A::U(n),
        A::U(0),
        A::U(0),
        A::Step,
    ];
    let out = f32s(&call_all("linear/mxfp4", &args, &rows(1, 0))[3]);
    for (e, (out, w)) in out.iter().zip(w.chunks(k)).enumerate() {
        let want: f64 = x.iter().zip(w).map(|(x, w)| x * f64::from(*w)).sum();
        // The scale of the activations times the weights' is rounded where it is subnormal: then the sum is off by as much
        // as the integer times half the smallest number.
        let least = 32.0 * 16383.0 * 3.0 * f64::from(f32::from_bits(1));
        let close = (f64::from(*out) - want).abs() <= want * 1e-6 + least;
        assert!(close || e > 250 && out.is_infinite(), "{e}: {out} {want}");
    }
}

/// A stack of quantized matrices: each (row, slot) pair has the bits of `linear` with its expert's matrix.
#[test]
fn experts_have_the_bits_of_linear() {
    let (experts, n, k, slots, m) = (3, 16, 256, 2, 5);
    for elem in FORMATS {
        let mut rng = Rng::new(12);
        let stack = disk(elem, experts * n, k, &mut rng);
        let (x, _) = quantize(&rng.normals(m * k), k);
        let ids: Vec<u32> = (0..m * slots)
            .map(|_| rng.word() % experts as u32)
            .collect();
        let row = x.len() / m;
        let a16 = |bytes: &[u8]| raw(Access::Read, Elem::A16, Unit::Row, k, bytes.to_vec());
        let args = [
            a16(&x),
            raw(
                Access::Read,
                Elem::U32,
                Unit::Row,
                slots,
                common::u32_bytes(&ids),
            ),
            pack(elem, experts * n, k, &stack),
            read(Unit::One, 0, &[]),
            write(Unit::Row, slots * n, m),
            A::U(k),
            A::U(n),
            A::U(experts),
            A::U(slots),
            A::U(1),
            A::U(k),
            A::U(0),
            A::U(n),
            A::U(1),
            A::U(0),
            A::Step,
        ];
        let got = f32s(&call_all(&format!("expert_linear/{elem}"), &args, &rows(m, 0))[4]);
        for (pair, e) in ids.iter().enumerate() {
            let size = stack.len() / experts;
            let matrix = &stack[*e as usize * size..][..size];
            let args = [
                a16(&x[pair / slots * row..][..row]),
                pack(elem, n, k, matrix),
                read(Unit::One, 0, &[]),
                write(Unit::Row, n, 1),
                A::U(k),
                A::U(n),
                A::U(0),
                A::U(n),
                A::U(0),
                A::U(0),
                A::Step,
            ];
            let want = f32s(&call_all(&format!("linear/{elem}"), &args, &rows(1, 0))[3]);
            assert_eq!(got[pair * n..(pair + 1) * n], want, "{elem}, pair {pair}");
        }
    }
}
