// SPDX-License-Identifier: MIT OR Apache-2.0
//! Text from bytes that arrive token by token.

/// Turns bytes into text without ever splitting a character: an unfinished one is held back until its last byte comes.
/// Bytes that can no longer become a character are one U+FFFD for each maximal part, as [`String::from_utf8_lossy`] has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextStream {
    held: Vec<u8>,
}

impl TextStream {
    /// A stream that holds nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the bytes of the next token and gives the text that is now certain (it may be empty).
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.held.extend_from_slice(bytes);
        let mut text = String::new();
        let mut rest: &[u8] = &self.held;
        while !rest.is_empty() {
            match std::str::from_utf8(rest) {
                Ok(all) => {
                    text.push_str(all);
                    rest = &[];
                }
                Err(e) => {
                    let (good, bad) = rest.split_at(e.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(good));
                    match e.error_len() {
                        Some(n) => {
                            text.push(char::REPLACEMENT_CHARACTER);
                            rest = &bad[n..];
                        }
                        None => {
                            rest = bad;
                            break;
                        }
                    }
                }
            }
        }
        self.held = rest.to_vec();
        text
    }

    /// Number of bytes held back (0 to 3).
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Ends the stream: what is held becomes U+FFFD.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.held).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_character_waits_for_its_last_byte() {
        let mut s = TextStream::new();
        assert_eq!(s.push(b"a\xf0\x9f"), "a");
        assert_eq!(s.held(), 2);
        assert_eq!(s.push(b"\x98"), "");
        assert_eq!(s.push(b"\x80b"), "\u{1f600}b");
        assert_eq!(s.push(b"\xe2\x82x"), "\u{fffd}x");
        assert_eq!(s.push(b"\xe2"), "");
        assert_eq!(s.finish(), "\u{fffd}");
    }

    proptest! {
        #[test]
        fn cutting_anywhere_gives_the_whole_text(bytes in proptest::collection::vec(any::<u8>(), 0..64), cut in 0usize..64) {
            let cut = cut.min(bytes.len());
            let mut s = TextStream::new();
            let mut text = s.push(&bytes[..cut]);
            text += &s.push(&bytes[cut..]);
            text += &s.finish();
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes).into_owned());
        }
    }
}
