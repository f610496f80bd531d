// SPDX-License-Identifier: MIT OR Apache-2.0
//! The hash that finds a child in the tree. It only speeds the search up: equality is decided by tokens.

use crate::BLOCK;

/// Hash of a full block under its parent, with a key that an outsider should not know (equal hashes cost time).
pub type HashFn = fn(key: u64, parent: u32, tokens: &[u32; BLOCK]) -> u32;

/// The default [`HashFn`]: a chain of folded 128-bit products over pairs of tokens.
#[must_use]
pub fn mix(key: u64, parent: u32, tokens: &[u32; BLOCK]) -> u32 {
    // Digits of the golden ratio and of pi: odd, with bits well spread.
    const A: u64 = 0x9e37_79b9_7f4a_7c15;
    const B: u64 = 0x2437_54a5_89a7_9c2f;
    let mut state = fold(key ^ A, u64::from(parent) ^ B);
    for pair in tokens.chunks_exact(2) {
        let word = u64::from(pair[0]) << 32 | u64::from(pair[1]);
        state = fold(state ^ word, A ^ key.rotate_left(32)) ^ word;
    }
    (state >> 32) as u32 ^ state as u32
}

fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bit_of_any_input_changes_about_half_the_output() {
        let tokens = std::array::from_fn(|i| i as u32 * 17);
        let base = mix(1, 2, &tokens);
        let mut flipped = vec![mix(1 ^ 1 << 40, 2, &tokens), mix(1, 3, &tokens)];
        for i in 0..BLOCK {
            let mut t = tokens;
            t[i] ^= 1;
            flipped.push(mix(1, 2, &t));
        }
        for h in flipped {
            let bits = (h ^ base).count_ones();
            assert!((4..=28).contains(&bits), "{bits} of 32 bits changed");
        }
    }
}
