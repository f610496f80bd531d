// SPDX-License-Identifier: MIT OR Apache-2.0
//! Philox4x32-10, the counter generator behind sampling.
//!
//! A draw is a pure function of (seed, choice, position, draw), so that a token never depends on what ran beside it.
//! Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011; the test vectors are the
//! published known answers (Random123, `kat_vectors`).

/// Four 32-bit words for a 128-bit counter and a 64-bit key.
#[must_use]
pub fn philox4x32_10(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    const M0: u32 = 0xD251_1F53;
    const M1: u32 = 0xCD9E_8D57;
    const W0: u32 = 0x9E37_79B9;
    const W1: u32 = 0xBB67_AE85;
    let (mut c, mut k) = (counter, key);
    for round in 0..10 {
        if round > 0 {
            k = [k[0].wrapping_add(W0), k[1].wrapping_add(W1)];
        }
        let p0 = u64::from(M0) * u64::from(c[0]);
        let p1 = u64::from(M1) * u64::from(c[2]);
        c = [
            (p1 >> 32) as u32 ^ c[1] ^ k[0],
            p1 as u32,
            (p0 >> 32) as u32 ^ c[3] ^ k[1],
            p0 as u32,
        ];
    }
    c
}

/// A uniform f32 in `[0, 1)` with 24 random bits, for one draw of one token.
#[must_use]
pub fn uniform(seed: u64, choice: u32, position: u32, draw: u32) -> f32 {
    let word = philox4x32_10(
        [position, choice, draw, 0],
        [seed as u32, (seed >> 32) as u32],
    )[0];
    (word >> 8) as f32 * (1.0 / 16_777_216.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_known_answers() {
        assert_eq!(
            philox4x32_10([0; 4], [0; 2]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            philox4x32_10([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox4x32_10(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn uniform_stays_below_one() {
        let max = (0..10_000)
            .map(|i| uniform(7, 0, i, 0))
            .fold(0.0f32, f32::max);
        assert!(max < 1.0 && max > 0.99, "{max}");
    }
}
