// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bytes to text, piece by piece, without splitting a character.

/// Decodes UTF-8 that arrives in pieces: an unfinished character waits for its rest, and what can never be one becomes
/// U+FFFD. The pieces' texts, joined, are `String::from_utf8_lossy` of the bytes joined.
#[derive(Clone, Debug, Default)]
pub struct Utf8Decoder {
    /// The start of an unfinished character, at most 3 bytes.
    pending: Vec<u8>,
}

impl Utf8Decoder {
    /// Appends the text that `bytes` completes.
    pub fn push(&mut self, bytes: &[u8], text: &mut String) {
        self.pending.extend_from_slice(bytes);
        let joined = std::mem::take(&mut self.pending);
        let mut rest = joined.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => return text.push_str(valid),
                Err(e) => {
                    let (valid, after) = rest.split_at(e.valid_up_to());
                    // Valid by `valid_up_to`; the lossy form copies it unchanged.
                    text.push_str(&String::from_utf8_lossy(valid));
                    let Some(bad) = e.error_len() else {
                        self.pending = after.to_vec();
                        return;
                    };
                    text.push('\u{FFFD}');
                    rest = &after[bad..];
                }
            }
        }
    }

    /// Bytes that wait for the rest of their character.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Appends what an unfinished character leaves at the end.
    pub fn flush(&mut self, text: &mut String) {
        if !self.pending.is_empty() {
            text.push_str(&String::from_utf8_lossy(&self.pending));
            self.pending.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `bytes` in pieces cut at every position of `cuts`' bits.
    fn pieces(bytes: &[u8], cuts: u32) -> String {
        let (mut decoder, mut text) = (Utf8Decoder::default(), String::new());
        let mut start = 0;
        for end in 1..=bytes.len() {
            if end == bytes.len() || cuts >> (end - 1) & 1 == 1 {
                decoder.push(&bytes[start..end], &mut text);
                start = end;
            }
        }
        decoder.flush(&mut text);
        text
    }

    #[test]
    fn any_cutting_gives_the_text_of_the_whole() {
        let samples: [&[u8]; 6] = [
            "aé€😀z".as_bytes(),
            b"\xff\xfe\xe2\x82x",
            b"\xf0\x9f\x98",
            b"\xed\xa0\x80a",
            b"\xf0\x9f\xf0\x9f\x98\x80",
            b"\xc3\xc3\xa9\x80",
        ];
        for bytes in samples {
            let whole = String::from_utf8_lossy(bytes);
            for cuts in 0..1_u32 << (bytes.len() - 1) {
                assert_eq!(
                    pieces(bytes, cuts),
                    whole,
                    "{} cut at {cuts:b}",
                    bytes.escape_ascii()
                );
            }
        }
    }

    #[test]
    fn an_unfinished_character_waits() {
        let (mut decoder, mut text) = (Utf8Decoder::default(), String::new());
        decoder.push(b"a\xf0\x9f\x98", &mut text);
        assert_eq!((text.as_str(), decoder.pending()), ("a", 3));
        decoder.push(b"\x80", &mut text);
        assert_eq!((text.as_str(), decoder.pending()), ("a😀", 0));
    }
}
