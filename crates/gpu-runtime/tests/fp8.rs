// SPDX-License-Identifier: MIT OR Apache-2.0
//! fp8: quantizing activations, packing, gathering and multiplying weights, against core's dequantization and f64.
#![allow(clippy::unwrap_used)]

mod common;

use common::{A, Rng, call_all, f32_bytes, f32s, raw, read, relative, rows, step, write};
use metrale_core::numeric::dequantize::dequantize;
use metrale_core::numeric::half::{f8e4m3_from_f32, f8e4m3_to_f32};
use metrale_core::{Access, Elem, Unit, fp8};
use metrale_host_kernels::packed_bytes;

const FORMATS: [Elem; 2] = [Elem::F8Row, Elem::F8Block];

/// Random rows: every value but NaN, subnormal ones too; scales around 0.002, one of them zero.
fn disk(elem: Elem, n: usize, k: usize, rng: &mut Rng) -> Vec<u8> {
    let pitch = elem.bytes_for(k as u64).unwrap() as usize;
    let mut out = Vec::new();
    for row in 0..n {
        let mut bytes = vec![0; pitch];
        let values = rng.bytes(k);
        for (to, v) in bytes.iter_mut().zip(values) {
            *to = if v & 0x7f == 0x7f { v ^ 1 } else { v };
        }
        let at = fp8::scales_at(k as u64).unwrap() as usize;
        for s in 0..fp8::scales(elem, k as u64).unwrap() as usize {
            let scale = if row == 2 {
                0.0
            } else {
                rng.normal().abs() * 0.002
            };
            bytes[at + 4 * s..][..4].copy_from_slice(&scale.to_le_bytes());
        }
        out.extend(bytes);
    }
    out
}

fn values(elem: Elem, disk: &[u8], k: usize) -> Vec<f32> {
    let pitch = elem.bytes_for(k as u64).unwrap() as usize;
    let mut out = vec![0.0; disk.len() / pitch * k];
    for (row, out) in disk.chunks(pitch).zip(out.chunks_mut(k)) {
        dequantize(elem, row, out).unwrap();
    }
    out
}

/// Packs in two launches, the second from the middle of a group.
fn pack(point: &str, elem: Elem, n: usize, k: usize, disk: &[u8]) -> A {
    let bytes = packed_bytes(elem, n as u64, k as u64).unwrap() as usize;
    let row = disk.len() / n;
    let mut dst = vec![0xa5; bytes];
    for (begin, end) in [(0, n / 2), (n / 2, n)].into_iter().filter(|(b, e)| b < e) {
        let part = disk[begin * row..end * row].to_vec();
        let args = [
            raw(Access::Read, Elem::U8, Unit::One, 0, part),
            raw(Access::Write, elem, Unit::One, n * k, dst),
            A::U(end - begin),
            A::U(k),
            A::U(begin),
            A::U(n),
        ];
        dst = call_all(point, &args, &step()).pop().unwrap();
    }
    raw(Access::Read, elem, Unit::One, n * k, dst)
}

#[test]
fn a_gathered_row_is_the_dequantized_row_to_the_bit() {
    for elem in FORMATS {
        for hidden in [384, 200] {
            let vocab = 19;
            let disk = disk(elem, vocab, hidden, &mut Rng::new(1));
            let want = values(elem, &disk, hidden);
            let ids: Vec<u32> = (0..vocab as u32).rev().collect();
            let mut step = step();
            step.push_run(0, 0, &ids).unwrap();
            let args = [
                pack(&format!("pack/{elem}"), elem, vocab, hidden, &disk),
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
}

fn linear(elem: Elem, w: A, x: &[f32], n: usize, k: usize) -> Vec<f32> {
    let m = x.len() / k;
    let args = [
        read(Unit::Row, k, x),
        w,
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
    f32s(&call_all(&format!("linear/{elem}"), &args, &rows(m, 0))[3])
}

fn product(x: &[f32], w: &[f32], k: usize) -> Vec<f64> {
    let mut out = Vec::new();
    for x in x.chunks(k) {
        for w in w.chunks(k) {
            let products = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
            out.push(products.sum());
        }
    }
    out
}

#[test]
fn linear_with_fp8_weights() {
    for elem in FORMATS {
        for (n, k, m) in [
            (1, 128, 1),
            (8, 512, 2),
            (13, 200, 7),
            (72, 130, 40),
            (260, 384, 1),
            (24, 7, 3),
        ] {
            let mut rng = Rng::new(3);
            let disk = disk(elem, n, k, &mut rng);
            let w = values(elem, &disk, k);
            let x = rng.normals(m * k);
            let packed = pack(&format!("pack/{elem}"), elem, n, k, &disk);
            let got = linear(elem, packed, &x, n, k);
            // Chains of 128 of products whose weights are exact: what is left is f32 rounding.
            let worst = relative(&got, &product(&x, &w, k));
            assert!(worst < 4e-6, "{elem} {n} x {k}, {m} rows: {worst}");
        }
    }
}

#[test]
fn activations_are_quantized_by_the_largest_of_their_row_or_block() {
    for (elem, cols) in [
        (Elem::F8Row, 200),
        (Elem::F8Block, 300),
        (Elem::F8Block, 256),
    ] {
        let mut rng = Rng::new(4);
        let mut x = rng.normals(5 * cols);
        x[cols..2 * cols].fill(0.0);
        x[2 * cols + 3] = f32::NAN;
        x[3 * cols + 1] = f32::NEG_INFINITY;
        let pitch = elem.bytes_for(cols as u64).unwrap() as usize;
        let args = [
            read(Unit::Row, cols, &x),
            raw(Access::Write, elem, Unit::Row, cols, vec![0xa5; 5 * pitch]),
            A::U(cols),
            A::U(0),
            A::Step,
        ];
        let out = call_all(&format!("quantize_{elem}/f32"), &args, &rows(5, 0))
            .pop()
            .unwrap();
        let per = if elem == Elem::F8Row { cols } else { 128 };
        for (row, (bytes, x)) in out.chunks(pitch).zip(x.chunks(cols)).enumerate() {
            let scales = f32s(&bytes[cols.next_multiple_of(128)..]);
            assert!(
                bytes[cols..cols.next_multiple_of(128)]
                    .iter()
                    .all(|b| *b == 0)
            );
            for (b, x) in x.chunks(per).enumerate() {
                let q = &bytes[b * per..][..x.len()];
                let m = x.iter().fold(0.0f32, |m, v| m.max(v.abs()));
                if x.iter().any(|v| !v.is_finite()) {
                    assert!(scales[b].is_nan() && q.iter().all(|q| *q == 0), "{row}");
                    continue;
                }
                assert_eq!(scales[b], m / 448.0);
                let r = if m == 0.0 { 0.0 } else { 1.0 / scales[b] };
                for (q, x) in q.iter().zip(x) {
                    assert_eq!(
                        f8e4m3_to_f32(*q),
                        f8e4m3_to_f32(f8e4m3_from_f32(x * r)),
                        "{row}"
                    );
                }
            }
            assert!(
                scales[cols.div_ceil(per)..]
                    .iter()
                    .all(|s| s.to_bits() == 0)
            );
        }
    }
}

#[test]
fn packing_quantizes_what_is_stored_in_other_formats() {
    let (n, k) = (13, 200);
    let mut rng = Rng::new(5);
    let w: Vec<f32> = rng.normals(n * k).iter().map(|v| v * 0.02).collect();
    for name in ["f32", "bf16", "f16"] {
        let (disk, w): (Vec<u8>, Vec<f32>) = match name {
            "f32" => (f32_bytes(&w), w.clone()),
            "bf16" => {
                let w: Vec<_> = w.iter().map(|v| half::bf16::from_f32(*v)).collect();
                (
                    w.iter().flat_map(|v| v.to_le_bytes()).collect(),
                    w.iter().map(|v| v.to_f32()).collect(),
                )
            }
            _ => {
                let w: Vec<_> = w.iter().map(|v| half::f16::from_f32(*v)).collect();
                (
                    w.iter().flat_map(|v| v.to_le_bytes()).collect(),
                    w.iter().map(|v| v.to_f32()).collect(),
                )
            }
        };
        // The same rows quantized as activations are, then packed as they stand.
        let pitch = Elem::F8Row.bytes_for(k as u64).unwrap() as usize;
        let args = [
            read(Unit::Row, k, &w),
            raw(Access::Write, Elem::F8Row, Unit::Row, k, vec![0; n * pitch]),
            A::U(k),
            A::U(0),
            A::Step,
        ];
        let rows_of = call_all("quantize_f8_row/f32", &args, &rows(n, 0))
            .pop()
            .unwrap();
        let want = pack("pack/f8_row", Elem::F8Row, n, k, &rows_of);
        let got = pack(&format!("pack/{name}_f8_row"), Elem::F8Row, n, k, &disk);
        let (A::Buf { bytes: want, .. }, A::Buf { bytes: got, .. }) = (want, got) else {
            unreachable!()
        };
        assert!(want == got, "{name}");
        let block = pack(&format!("pack/{name}_f8_block"), Elem::F8Block, n, k, &disk);
        let x = rng.normals(k);
        let close = linear(Elem::F8Block, block, &x, n, k);
        assert!(relative(&close, &product(&x, &w, k)) < 0.1, "{name}");
        let close = values(Elem::F8Row, &rows_of, k);
        for (w, q) in w.chunks(k).zip(close.chunks(k)) {
            let m = w.iter().fold(0.0f32, |m, v| m.max(v.abs()));
            // Half a step of four significant bits, or half the smallest step.
            assert!(w.iter().zip(q).all(|(w, q)| (w - q).abs() <= (w.abs() / 16.0).max(m / 448.0 / 1024.0) * 1.001));
        }
    }
}

#[test]
fn a_row_that_is_no_number_stays_none() {
    let mut w = vec![0.5f32; 2 * 128];
    w[5] = f32::NAN;
    let packed = pack("pack/f32_f8_row", Elem::F8Row, 2, 128, &f32_bytes(&w));
    let got = linear(Elem::F8Row, packed, &[1.0; 128], 2, 128);
    assert!(got[0].is_nan() && (got[1] - 64.0).abs() < 1e-4);
}
