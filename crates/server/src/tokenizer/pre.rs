// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pre-tokenizers that `tokenizer.ggml.pre` names, as data.
//!
//! Byte-level BPE vocabularies share one algorithm and differ in how text is cut into words before it. Each row states what
//! the published tokenizer.json of those models states. A name that is not here is refused: with another cut the ids would
//! be wrong in some texts only, which nobody notices.

use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{NormalizerWrapper, SplitDelimiterBehavior};

use super::TokenizerError;

/// How a text is cut into words.
#[derive(Clone, Copy, Debug)]
enum Cut {
    /// GPT-2's pattern.
    Gpt2,
    /// Each digit by itself, then GPT-2's pattern.
    DigitsThenGpt2,
    /// A pattern of the model's own.
    Pattern(&'static str),
}

/// One row of the table.
#[derive(Debug)]
struct Row {
    names: &'static [&'static str],
    cut: Cut,
    /// A word that is a token of the vocabulary is that token, whatever the merges would make of it.
    whole_words: bool,
    /// Text is brought to Unicode's NFC first.
    nfc: bool,
}

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const TABLE: &[Row] = &[
    Row {
        names: &["gpt-2", "gpt2", "phi-2", "mpt", "olmo"],
        cut: Cut::Gpt2,
        whole_words: false,
        nfc: false,
    },
    Row {
        names: &["smollm", "starcoder", "refact", "command-r"],
        cut: Cut::DigitsThenGpt2,
        whole_words: false,
        nfc: false,
    },
    Row {
        names: &["llama-bpe", "llama3", "llama-v3"],
        cut: Cut::Pattern(LLAMA3),
        whole_words: true,
        nfc: false,
    },
    Row {
        names: &["qwen2", "deepseek-r1-qwen"],
        cut: Cut::Pattern(QWEN2),
        whole_words: false,
        nfc: true,
    },
];

/// What a name of the table stands for.
pub(super) struct Pre {
    pub(super) pre_tokenizer: PreTokenizerWrapper,
    pub(super) normalizer: Option<NormalizerWrapper>,
    pub(super) whole_words: bool,
}

/// Looks `name` up.
pub(super) fn find(name: &str) -> Result<Pre, TokenizerError> {
    let row = TABLE
        .iter()
        .find(|r| r.names.contains(&name))
        .ok_or_else(|| TokenizerError::UnknownPre {
            pre: name.to_owned(),
            known: TABLE
                .iter()
                .flat_map(|r| r.names)
                .copied()
                .collect::<Vec<_>>()
                .join(", "),
        })?;
    let byte_level =
        |use_regex| PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, false, use_regex));
    let pre_tokenizer = match row.cut {
        Cut::Gpt2 => byte_level(true),
        Cut::DigitsThenGpt2 => sequence(
            PreTokenizerWrapper::Digits(Digits::new(true)),
            byte_level(true),
        ),
        Cut::Pattern(p) => {
            let split = Split::new(
                SplitPattern::Regex(p.to_owned()),
                SplitDelimiterBehavior::Isolated,
                false,
            )
            .map_err(|e| TokenizerError::invalid("tokenizer.ggml.pre", e.to_string()))?;
            sequence(PreTokenizerWrapper::Split(split), byte_level(false))
        }
    };
    Ok(Pre {
        pre_tokenizer,
        normalizer: row.nfc.then_some(NormalizerWrapper::NFC(NFC)),
        whole_words: row.whole_words,
    })
}

fn sequence(first: PreTokenizerWrapper, then: PreTokenizerWrapper) -> PreTokenizerWrapper {
    PreTokenizerWrapper::Sequence(Sequence::new(vec![first, then]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

    fn words(pre: &str, text: &str) -> Vec<String> {
        let mut s = PreTokenizedString::from(text);
        find(pre)
            .unwrap()
            .pre_tokenizer
            .pre_tokenize(&mut s)
            .unwrap();
        s.get_splits(OffsetReferential::Normalized, OffsetType::Byte)
            .iter()
            .map(|(w, _, _)| (*w).to_owned())
            .collect()
    }

    #[test]
    fn every_row_builds_and_names_are_unique() {
        let mut names: Vec<&str> = TABLE.iter().flat_map(|r| r.names).copied().collect();
        for n in &names {
            assert!(find(n).is_ok(), "{n}");
        }
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn digits_are_cut_as_the_model_was_trained() {
        assert_eq!(words("gpt-2", "a 12345"), ["a", "Ġ12345"]);
        assert_eq!(words("smollm", "a 123"), ["a", "Ġ", "1", "2", "3"]);
        assert_eq!(words("llama-bpe", "a 12345"), ["a", "Ġ", "123", "45"]);
        assert_eq!(words("qwen2", "a 12"), ["a", "Ġ", "1", "2"]);
    }

    #[test]
    fn an_unknown_name_is_refused_by_name() {
        let e = find("made-up").map(|_| ()).unwrap_err().to_string();
        assert!(e.contains("`made-up`") && e.contains("smollm"), "{e}");
    }
}
