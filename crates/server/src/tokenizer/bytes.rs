// SPDX-License-Identifier: MIT OR Apache-2.0
//! The exact bytes of every token.
//!
//! A vocabulary spells its tokens in one of two alphabets. Byte-level BPE maps each of the 256 bytes to one printable
//! character (GPT-2's `bytes_to_unicode`); SentencePiece writes a space as `▁` and a lone byte as `<0xNN>`. Text that the
//! model writes is the concatenation of its tokens' bytes; one token need not end at a character's border.

/// In which alphabet a vocabulary spells its ordinary tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// GPT-2's byte alphabet.
    ByteLevel,
    /// SentencePiece: `▁` is a space, `<0xNN>` a byte.
    SentencePiece,
    /// The token's text as it stands.
    Plain,
}

/// The bytes of all tokens in one allocation.
#[derive(Debug)]
pub(super) struct TokenBytes {
    data: Vec<u8>,
    ends: Vec<u32>,
}

impl TokenBytes {
    pub(super) fn with_capacity(tokens: usize) -> Self {
        Self {
            data: Vec::with_capacity(tokens * 6),
            ends: Vec::with_capacity(tokens),
        }
    }

    /// Appends the next token, spelt as `text`.
    pub(super) fn push(&mut self, text: &str, spelling: Spelling) {
        match spelling {
            Spelling::ByteLevel => push_byte_level(text, &mut self.data),
            Spelling::SentencePiece => push_sentence_piece(text, &mut self.data),
            Spelling::Plain => self.data.extend_from_slice(text.as_bytes()),
        }
        // A vocabulary's text is read from a file of at most 4 GiB of metadata (limit of the readers), so it fits.
        self.ends
            .push(u32::try_from(self.data.len()).unwrap_or(u32::MAX));
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn get(&self, id: u32) -> Option<&[u8]> {
        let i = id as usize;
        let end = *self.ends.get(i)? as usize;
        let start = if i == 0 { 0 } else { self.ends[i - 1] as usize };
        self.data.get(start..end)
    }
}

/// The byte that a character of GPT-2's alphabet stands for. Printable Latin-1 characters stand for themselves; the 68
/// other bytes are numbered upward from U+0100 in byte order.
fn byte_of(c: char) -> Option<u8> {
    let printable = |b: u32| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let code = c as u32;
    if printable(code) {
        return u8::try_from(code).ok();
    }
    let rank = code.checked_sub(0x100)? as usize;
    (0u32..256)
        .filter(|&b| !printable(b))
        .nth(rank)
        .and_then(|b| u8::try_from(b).ok())
}

fn push_byte_level(text: &str, out: &mut Vec<u8>) {
    let start = out.len();
    for c in text.chars() {
        match byte_of(c) {
            Some(b) => out.push(b),
            None => {
                // Not of the alphabet: a token added as plain text.
                out.truncate(start);
                out.extend_from_slice(text.as_bytes());
                return;
            }
        }
    }
}

fn push_sentence_piece(text: &str, out: &mut Vec<u8>) {
    match byte_token(text) {
        Some(b) => out.push(b),
        None => out.extend_from_slice(text.replace('\u{2581}', " ").as_bytes()),
    }
}

/// The byte of a `<0xNN>` token.
pub(super) fn byte_token(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() == 2 {
        u8::from_str_radix(hex, 16).ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_is_that_of_the_tokenizers_library() {
        let ours: Vec<u8> = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet()
            .into_iter()
            .map(|c| byte_of(c).expect("a character of the alphabet"))
            .collect();
        let mut sorted = ours.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..=255).collect::<Vec<u8>>(), "each byte once");
        assert_eq!(byte_of('Ġ'), Some(b' '));
        assert_eq!(byte_of('Ċ'), Some(b'\n'));
        assert_eq!(byte_of('\u{2581}'), None);
    }

    #[test]
    fn spellings_differ() {
        let mut t = TokenBytes::with_capacity(4);
        t.push("ĠHello", Spelling::ByteLevel);
        t.push("▁Hello", Spelling::SentencePiece);
        t.push("<0xE2>", Spelling::SentencePiece);
        t.push("<|im_end|>", Spelling::Plain);
        assert_eq!(t.get(0), Some(&b" Hello"[..]));
        assert_eq!(t.get(1), Some(&b" Hello"[..]));
        assert_eq!(t.get(2), Some(&[0xe2][..]));
        assert_eq!(t.get(3), Some(&b"<|im_end|>"[..]));
        assert_eq!(t.get(4), None);
    }
}
