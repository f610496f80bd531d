// SPDX-License-Identifier: MIT OR Apache-2.0
//! A fused point has the bits of its parts.
#![allow(clippy::unwrap_used)]

mod common;

use common::{A, Rng, buf, call_all, f32s, raw, read, rows, write};
use metrale_core::{Access, Elem, Unit};

const ROWS: usize = 5;

fn a16(cols: usize) -> A {
    raw(
        Access::Write,
        Elem::A16,
        Unit::Row,
        cols,
        vec![0; ROWS * cols / 32 * 72],
    )
}

fn quantized(x: &[f32], cols: usize) -> Vec<u8> {
    let args = [
        read(Unit::Row, cols, x),
        a16(cols),
        A::U(cols),
        A::U(0),
        A::Step,
    ];
    call_all("quantize/a16", &args, &rows(ROWS, 0))
        .pop()
        .unwrap()
}

#[test]
fn norms_and_their_quantization() {
    let cols = 576;
    let mut rng = Rng::new(1);
    let (x, delta, w) = (
        rng.normals(ROWS * cols),
        rng.normals(ROWS * cols),
        rng.normals(cols),
    );
    let norm = |x: &[f32], y: A, point: &str| {
        let args = [
            read(Unit::Row, cols, x),
            read(Unit::One, cols, &w),
            y,
            A::U(cols),
            A::F(1e-5),
            A::U(0),
            A::Step,
        ];
        call_all(point, &args, &rows(ROWS, 0)).pop().unwrap()
    };
    let y = f32s(&norm(&x, write(Unit::Row, cols, ROWS), "rmsnorm/f32"));
    assert_eq!(
        norm(&x, a16(cols), "rmsnorm_quantize/a16"),
        quantized(&y, cols)
    );

    let added = |y: A, point: &str| {
        let args = [
            buf(Access::ReadWrite, Unit::Row, cols, &x),
            read(Unit::Row, cols, &delta),
            read(Unit::One, cols, &w),
            y,
            A::U(cols),
            A::F(1e-5),
            A::Step,
        ];
        call_all(point, &args, &rows(ROWS, 0))
    };
    let args = [
        buf(Access::ReadWrite, Unit::Row, cols, &x),
        read(Unit::Row, cols, &delta),
        A::U(cols),
        A::Step,
    ];
    let sum = call_all("add/f32", &args, &rows(ROWS, 0)).swap_remove(0);
    let plain = added(write(Unit::Row, cols, ROWS), "add_rmsnorm/f32");
    let y = norm(&f32s(&sum), write(Unit::Row, cols, ROWS), "rmsnorm/f32");
    assert_eq!((&plain[0], &plain[3]), (&sum, &y));
    let fused = added(a16(cols), "add_rmsnorm_quantize/a16");
    assert_eq!((&fused[0], &fused[3]), (&sum, &quantized(&f32s(&y), cols)));
}

#[test]
fn swiglu_and_its_quantization() {
    for ffn in [32, 1536, 2080] {
        let gu = Rng::new(2).normals(ROWS * 2 * ffn);
        let run = |y: A, point: &str| {
            let args = [read(Unit::Row, 2 * ffn, &gu), y, A::U(ffn), A::Step];
            call_all(point, &args, &rows(ROWS, 0)).pop().unwrap()
        };
        let h = f32s(&run(write(Unit::Row, ffn, ROWS), "swiglu/f32"));
        assert_eq!(run(a16(ffn), "swiglu_quantize/a16"), quantized(&h, ffn));
    }
}

#[test]
fn a_bad_activation_reaches_the_output_of_its_row_alone() {
    let (n, k) = (8, 64);
    for bad in [f32::NAN, f32::INFINITY] {
        let mut x = Rng::new(3).normals(ROWS * k);
        x[2 * k + 40] = bad;
        let disk: Vec<u8> = (0..n * k / 32 * 34)
            .map(|i| if i % 34 == 1 { 0x2c } else { 3 })
            .collect();
        let bytes = metrale_host_kernels::packed_bytes(Elem::Q8_0, n as u64, k as u64).unwrap();
        let args = [
            raw(Access::Read, Elem::U8, Unit::One, 0, disk),
            raw(
                Access::Write,
                Elem::Q8_0,
                Unit::One,
                n * k,
                vec![0; bytes as usize],
            ),
            A::U(n),
            A::U(k),
            A::U(0),
            A::U(n),
        ];
        let packed = call_all("pack/q8_0", &args, &rows(0, 0)).pop().unwrap();
        let args = [
            raw(Access::Read, Elem::A16, Unit::Row, k, quantized(&x, k)),
            raw(Access::Read, Elem::Q8_0, Unit::One, n * k, packed),
            read(Unit::One, 0, &[0.0]),
            write(Unit::Row, n, ROWS),
            A::U(k),
            A::U(n),
            A::U(0),
            A::U(n),
            A::U(0),
            A::U(0),
            A::Step,
        ];
        let y = f32s(&call_all("linear/q8_0", &args, &rows(ROWS, 0))[3]);
        for (r, row) in y.chunks(n).enumerate() {
            assert!(
                row.iter().all(|v| v.is_finite() == (r != 2)),
                "row {r}: {row:?}"
            );
        }
    }
}
