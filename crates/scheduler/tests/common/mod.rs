// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the scheduler's tests share: the real cache, a scripted device, a model of the answer, a rig that joins them.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a panic is how a test fails"
)]

pub mod constraint;
pub mod history;
pub mod kv;
pub mod model;
pub mod rig;
pub mod script;

pub const BLOCK: u32 = 16;
/// Token ids are below this.
pub const VOCAB: u32 = 64;
/// The stop token of most requests.
pub const STOP: u32 = 0;

/// A hash of a list of numbers.
pub fn hash(words: impl IntoIterator<Item = u64>) -> u64 {
    words.into_iter().fold(0x9e37_79b9_7f4a_7c15, |h, w| {
        let x = (h ^ w).wrapping_mul(0xff51_afd7_ed55_8ccd);
        (x ^ x >> 29)
            .wrapping_mul(0xc4ce_b9fe_1a85_ec53)
            .rotate_left(23)
    })
}
