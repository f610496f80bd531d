// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is launched at load or by a benchmark: `fill`, `read`, `peak`, against their specs written out.
#![allow(clippy::unwrap_used)]

mod common;

use common::{A, Rng, call_all, f32s, raw, step, u32s};
use metrale_core::{Access, Elem, Unit};

/// The spec `hash_bell`, in 64 bits.
fn bell(i: u64, seed: u64) -> f64 {
    const LOW: u64 = 0xffff_ffff;
    let mix = |mut x: u64| {
        x ^= x >> 16;
        x = (x * 0x7feb_352d) & LOW;
        x ^= x >> 15;
        x = (x * 0x846c_a68b) & LOW;
        x ^ x >> 16
    };
    let h = mix(mix((i + seed) & LOW) ^ ((seed * 0x9e37_79b9) & LOW));
    (0..4).map(|b| (h >> (8 * b) & 255) as f64).sum::<f64>() - 510.0
}

fn fill(format: &str, elem: Elem, count: usize, first: u32, seed: u32, by: [f32; 2]) -> Vec<u8> {
    // Four bytes of room are not the launch's.
    let room = elem.bytes_for(count as u64).unwrap() as usize + 4;
    let args = [
        raw(Access::Write, Elem::U8, Unit::One, room, vec![0; room]),
        A::U(count),
        A::U(first as usize),
        A::U(seed as usize),
        A::F(by[0]),
        A::F(by[1]),
    ];
    let mut out = call_all(&format!("fill/{format}"), &args, &step()).swap_remove(0);
    out.truncate(room - 4);
    out
}

#[test]
fn fill_is_its_spec_in_every_format() {
    let (count, first, seed, mean, scale) = (40_001, u32::MAX - 7, 0xdead_beef, 1.0f32, 0.01f32);
    let want: Vec<f32> = (0..count as u64)
        .map(|i| {
            (bell((u64::from(first) + i) & 0xffff_ffff, u64::from(seed)) as f32) * scale + mean
        })
        .collect();
    assert_eq!(
        f32s(&fill("f32", Elem::F32, count, first, seed, [mean, scale])),
        want
    );
    let bf16 = fill("bf16", Elem::BF16, count, first, seed, [mean, scale]);
    let f16 = fill("f16", Elem::F16, count, first, seed, [mean, scale]);
    for (i, want) in want.iter().enumerate() {
        let bits = |b: &[u8]| u16::from_le_bytes([b[2 * i], b[2 * i + 1]]);
        assert_eq!(bits(&bf16), half::bf16::from_f32(*want).to_bits());
        assert_eq!(bits(&f16), half::f16::from_f32(*want).to_bits());
    }
}

#[test]
fn fill_is_a_bell_and_seeds_are_streams_of_their_own() {
    let count = 1 << 16;
    let a = f32s(&fill("f32", Elem::F32, count, 0, 1, [0.0, 1.0]));
    let mean = a.iter().map(|v| f64::from(*v)).sum::<f64>() / count as f64;
    let variance = a.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / count as f64;
    // 147.8 of a value: 0.58 of the mean, 0.4 % of the variance.
    assert!(mean.abs() < 3.0, "{mean}");
    assert!((variance.sqrt() - 147.8).abs() < 1.5, "{variance}");
    let correlation = |b: &[f32]| {
        let products = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b));
        products.sum::<f64>() / count as f64 / variance
    };
    for seed in [2, 3, 1 << 31, 0x9e37_79b9] {
        let b = f32s(&fill("f32", Elem::F32, count, 0, seed, [0.0, 1.0]));
        assert!(correlation(&b).abs() < 0.02, "{seed}");
    }
    let next = fill("f32", Elem::F32, count, 1, 1, [0.0, 1.0]);
    assert_eq!(
        f32s(&next)[..count - 1],
        a[1..],
        "a tensor may come in pieces"
    );
    assert!(correlation(&f32s(&next)).abs() < 0.02);
}

#[test]
fn read_folds_each_chunk() {
    let words: Vec<u32> = {
        let mut rng = Rng::new(3);
        (0..16 * 1024 * 2 + 12).map(|_| rng.word()).collect()
    };
    let args = [
        raw(
            Access::Read,
            Elem::U8,
            Unit::One,
            words.len() * 4,
            common::u32_bytes(&words),
        ),
        raw(Access::Write, Elem::U8, Unit::One, 12, vec![0; 12]),
        A::U(words.len() / 4),
    ];
    let out = call_all("read/xor", &args, &step());
    let want = words
        .chunks(16 * 1024)
        .map(|c| c.iter().fold(0, |x, w| x ^ w));
    assert_eq!(u32s(&out[1]), want.collect::<Vec<u32>>());
}

#[test]
fn peak_counts_its_products() {
    let (rounds, cells) = (300u32, 3usize);
    let args = [
        raw(
            Access::Write,
            Elem::U8,
            Unit::One,
            cells * 4,
            vec![0; cells * 4],
        ),
        A::U(rounds as usize),
        A::U(cells),
    ];
    let out = call_all("peak/i16", &args, &step());
    // Each of 128 values of a stands in 512 lanes four times, wherever it begins.
    let of_b: u32 = (0..rounds).map(|r| r % 128).sum();
    assert_eq!(u32s(&out[0]), [of_b * 4 * (127 * 128 / 2); 3]);
    let out = call_all("peak/f32", &args, &step());
    assert_eq!(u32s(&out[0]), [rounds / 2 * 4 * (127 * 128 / 2); 3]);
}
