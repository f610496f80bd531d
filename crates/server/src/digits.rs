// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whole numbers as a user writes them.

use std::str::FromStr;

/// The number that `text` is in digits alone: Rust's own parsing would take `+1` too.
pub(crate) fn whole<T: FromStr>(text: &str) -> Option<T> {
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_alone_are_a_number() {
        assert_eq!(whole("017"), Some(17u8));
        for text in ["", "+1", "-1", " 1", "1.0", "0x1", "256", "١"] {
            assert_eq!(whole::<u8>(text), None, "{text}");
        }
    }
}
