// SPDX-License-Identifier: MIT OR Apache-2.0
//! The checksum of a page: fast enough to run over every byte that is moved.

/// Odd numbers with bits well spread (digits of the golden ratio, pi, e, the root of two).
const PRIMES: [u64; 4] = [
    0x9e37_79b9_7f4a_7c15,
    0x2437_54a5_89a7_9c2f,
    0xb7e1_5162_8aed_2a6b,
    0x6a09_e667_f3bc_c909,
];

/// A checksum against bits that flip or bytes of another page: four lanes, each a chain of steps that are one-to-one in the
/// word they take, so that a change in one word always changes the sum. It does not stop an attacker who can write memory.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u64 {
    let mut lanes = PRIMES;
    let mut blocks = bytes.chunks_exact(32);
    for block in &mut blocks {
        for (lane, word) in block.chunks_exact(8).enumerate() {
            lanes[lane] = step(lanes[lane], word_of(word), PRIMES[lane]);
        }
    }
    for (i, word) in blocks.remainder().chunks(8).enumerate() {
        let mut whole = [0; 8];
        whole[..word.len()].copy_from_slice(word);
        lanes[i] = step(lanes[i], u64::from_le_bytes(whole), PRIMES[i]);
    }
    let length = bytes.len() as u64;
    lanes
        .into_iter()
        .fold(length, |sum, lane| step(sum, lane, PRIMES[0]))
}

fn word_of(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |word, byte| word << 8 | u64::from(*byte))
}

fn step(state: u64, word: u64, prime: u64) -> u64 {
    (state ^ word).wrapping_mul(prime).rotate_left(29)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bit_and_the_length_change_it() {
        for len in [1usize, 7, 8, 31, 32, 33, 64, 100] {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 37) as u8).collect();
            let sum = checksum(&bytes);
            for bit in 0..len * 8 {
                let mut other = bytes.clone();
                other[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(checksum(&other), sum, "bit {bit} of {len} bytes");
            }
            let mut longer = bytes.clone();
            longer.push(0);
            assert_ne!(checksum(&longer), sum);
        }
    }

    #[test]
    fn words_that_change_places_change_it() {
        let mut bytes: Vec<u8> = (0..128u8).collect();
        let sum = checksum(&bytes);
        bytes.rotate_left(32);
        assert_ne!(checksum(&bytes), sum);
    }
}
