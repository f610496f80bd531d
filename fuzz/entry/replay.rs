// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs an entry over its kept seeds and regressions, and over mutations of them, without a fuzzer.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

/// Numbers that counts, offsets and lengths break at.
const EDGES: [u64; 10] = [
    0,
    1,
    7,
    32,
    0xff,
    1 << 31,
    u32::MAX as u64,
    1 << 61,
    1 << 63,
    u64::MAX,
];

/// Runs `entry` over every file of `fuzz/seeds/TARGET` and `fuzz/regressions/TARGET`, then over `mutations` of each.
/// An input that panics is printed as hex, so that it can be kept as a regression. Mutations come from a fixed
/// generator: a failure repeats.
pub fn replay(fuzz: &Path, target: &str, mutations: u32, entry: fn(&[u8])) {
    let files = inputs(fuzz, target);
    assert!(!files.is_empty(), "no seeds for {target}");
    let contents: Vec<Vec<u8>> = files.iter().map(|f| std::fs::read(f).unwrap()).collect();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for (file, bytes) in files.iter().zip(&contents) {
        attempt(file, bytes, entry);
        for _ in 0..mutations {
            let mut mutant = bytes.clone();
            for _ in 0..=random.below(3) {
                mutate(&mut mutant, &contents, &mut random);
            }
            attempt(file, &mutant, entry);
        }
    }
}

fn inputs(fuzz: &Path, target: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for kind in ["seeds", "regressions"] {
        let Ok(folder) = std::fs::read_dir(fuzz.join(kind).join(target)) else {
            continue;
        };
        files.extend(folder.map(|entry| entry.unwrap().path()));
    }
    files.sort();
    files
}

fn attempt(file: &Path, bytes: &[u8], entry: fn(&[u8])) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| entry(bytes))) {
        let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        eprintln!("from {}: {hex}", file.display());
        resume_unwind(panic);
    }
}

fn mutate(bytes: &mut Vec<u8>, others: &[Vec<u8>], random: &mut Random) {
    let at = random.below(bytes.len() as u64 + 1) as usize;
    match random.below(6) {
        0 => bytes.truncate(at),
        1 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
        2 if at < bytes.len() => bytes[at] = random.next() as u8,
        3 => {
            let edge = EDGES[random.below(EDGES.len() as u64) as usize].to_le_bytes();
            for (byte, new) in bytes[at..].iter_mut().zip(edge) {
                *byte = new;
            }
        }
        4 => {
            let other = &others[random.below(others.len() as u64) as usize];
            let from = random.below(other.len() as u64 + 1) as usize;
            bytes.truncate(at);
            bytes.extend(&other[from..]);
        }
        _ => {
            let end = at + random.below(16).min((bytes.len() - at) as u64) as usize;
            let piece = bytes[at..end].to_vec();
            bytes.splice(at..at, piece);
        }
    }
}

/// xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 32) % n.max(1)
    }
}
