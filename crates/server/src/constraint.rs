// SPDX-License-Identifier: MIT OR Apache-2.0
//! Constraints that requests bring: `allowed_token_ids` and `bad_words`.
//!
//! What holds at every position (the allowed tokens, bad words of one token) is one mask, made once and shared by all answers.
//! A bad word of several tokens is kept out by its last one, where the answer ends with those before it: the mask then
//! follows the text.

use std::sync::Arc;

use metrale_scheduler::{ConstraintError, FixedMask, Text, TokenConstraint, TokenMask};

use crate::text_face::{EncodeError, Specials, TextModel};

/// No token is left that an answer could begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoneLeft;

/// The tokens of each word, as it stands alone and behind a space; the second only where it does not end as the first.
pub(crate) fn spellings(
    text: &dyn TextModel,
    words: &[String],
) -> Result<Vec<Vec<u32>>, EncodeError> {
    let mut all = Vec::new();
    for word in words {
        let word = word.trim_start();
        let alone = text.encode(word, Specials::Parse)?;
        let spaced = text.encode(&format!(" {word}"), Specials::Parse)?;
        if !spaced.ends_with(&alone) {
            all.push(spaced);
        }
        all.push(alone);
    }
    Ok(all)
}

/// Allows the tokens below `vocab`, of these `allowed` alone if it says so, and no sequence of `bad`. `None`: that is no
/// constraint.
pub(crate) fn constraint(
    vocab: u32,
    allowed: Option<&[u32]>,
    mut bad: Vec<Vec<u32>>,
) -> Result<Option<Box<dyn TokenConstraint>>, NoneLeft> {
    bad.retain(|sequence| !sequence.is_empty());
    if allowed.is_none() && bad.is_empty() {
        return Ok(None);
    }
    let mut base = match allowed {
        Some(tokens) => TokenMask::only(vocab, tokens),
        None => TokenMask::all(vocab),
    };
    bad.retain(|sequence| match **sequence {
        [token] => {
            base.forbid(token);
            false
        }
        _ => true,
    });
    if base.is_empty() {
        return Err(NoneLeft);
    }
    Ok(Some(match bad.is_empty() {
        true => Box::new(FixedMask(base)),
        false => Box::new(BadWords::new(base, bad)),
    }))
}

/// A base less the tokens that would complete a bad word.
#[derive(Debug)]
struct BadWords {
    base: TokenMask,
    /// At least two tokens each, ordered by the last but one.
    words: Arc<[Vec<u32>]>,
    /// The end of the answer, as long as the longest word less its last token.
    tail: Vec<u32>,
    longest: usize,
    /// Where the base will not do.
    mask: TokenMask,
}

impl BadWords {
    fn new(base: TokenMask, mut words: Vec<Vec<u32>>) -> BadWords {
        words.sort_unstable_by_key(|word| before(word).last().copied());
        words.dedup();
        let longest = words.iter().map(|word| word.len() - 1).max().unwrap_or(0);
        BadWords::at(base, words.into(), &[], longest)
    }

    fn at(base: TokenMask, words: Arc<[Vec<u32>]>, text: &[u32], longest: usize) -> BadWords {
        let mut tail = Vec::with_capacity(longest);
        tail.extend_from_slice(text);
        BadWords {
            mask: TokenMask::new(base.words()),
            base,
            words,
            tail,
            longest,
        }
    }
}

/// All but the last token.
fn before(word: &[u32]) -> &[u32] {
    &word[..word.len() - 1]
}

impl TokenConstraint for BadWords {
    fn mask(&mut self) -> Result<TokenMask, ConstraintError> {
        let (tail, mask) = (&self.tail, &mut self.mask);
        let last = tail.last();
        let first = self.words.partition_point(|w| before(w).last() < last);
        let candidates = self.words[first..].iter();
        let candidates = candidates.take_while(|w| before(w).last() == last);
        let mut changed = false;
        for word in candidates.filter(|w| tail.ends_with(before(w))) {
            if !changed {
                mask.words_mut().copy_from_slice(self.base.words());
                changed = true;
            }
            word.last()
                .into_iter()
                .for_each(|token| mask.forbid(*token));
        }
        Ok(if changed { mask } else { &self.base }.clone())
    }

    fn accept(&mut self, token: u32) -> Result<Text, ConstraintError> {
        if self.tail.len() == self.longest {
            self.tail.remove(0);
        }
        self.tail.push(token);
        Ok(Text::Open)
    }

    fn fork(&self) -> Box<dyn TokenConstraint> {
        Box::new(BadWords::at(
            self.base.clone(),
            Arc::clone(&self.words),
            &self.tail,
            self.longest,
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;
    use crate::text_face::SpecialToken;

    /// A word behind a space is one token where it is ` cat`; else tokens are bytes.
    struct Toy;

    impl TextModel for Toy {
        fn encode(&self, text: &str, _: Specials) -> Result<Vec<u32>, EncodeError> {
            Ok(match text {
                " cat" => vec![300],
                _ => text.bytes().map(u32::from).collect(),
            })
        }

        fn token_bytes(&self, _: u32) -> Option<Cow<'_, [u8]>> {
            None
        }

        fn special_tokens(&self) -> &[SpecialToken] {
            &[]
        }

        fn is_special(&self, _: u32) -> bool {
            false
        }

        fn prompt_prefix(&self) -> &[u32] {
            &[]
        }

        fn eos(&self) -> &[u32] {
            &[]
        }

        fn vocab_size(&self) -> u32 {
            301
        }

        fn longest_token(&self) -> usize {
            4
        }
    }

    #[test]
    fn a_word_is_spelt_alone_and_behind_a_space_where_that_differs() {
        let words = ["cat".to_owned(), "  cat".to_owned(), "ab".to_owned()];
        let cat = [vec![300], vec![99, 97, 116]];
        let want = [&cat[..], &cat, &[vec![97, 98]]].concat();
        assert_eq!(spellings(&Toy, &words), Ok(want));
    }

    fn bad(words: &[&[u32]]) -> Box<dyn TokenConstraint> {
        let words = words.iter().map(|w| w.to_vec()).collect();
        constraint(100, None, words).unwrap().unwrap()
    }

    fn banned(constraint: &mut Box<dyn TokenConstraint>) -> Vec<u32> {
        let mask = constraint.mask().unwrap();
        (0..100).filter(|t| !mask.allows(*t)).collect()
    }

    #[test]
    fn a_word_is_kept_out_by_its_last_token_where_the_others_stand() {
        let mut c = bad(&[&[7], &[1, 2, 3], &[2, 3], &[1, 1, 1], &[5, 2, 4], &[]]);
        assert!(!c.is_fixed());
        let mut seen = vec![banned(&mut c)];
        for token in [1, 2, 3, 1, 1, 2, 5, 2] {
            assert_eq!(c.accept(token), Ok(Text::Open));
            seen.push(banned(&mut c));
        }
        let want: [&[u32]; 9] = [
            &[7],
            &[7],
            &[3, 7],
            &[7],
            &[7],
            &[1, 7],
            &[3, 7],
            &[7],
            &[3, 4, 7],
        ];
        assert_eq!(seen, want);
    }

    #[test]
    fn positions_without_a_ban_share_the_base_and_forks_go_their_own_way() {
        let mut a = bad(&[&[1, 2]]);
        let base = a.mask().unwrap();
        let mut b = a.fork();
        a.accept(9).unwrap();
        assert!(a.mask().unwrap().shares(&base) && b.mask().unwrap().shares(&base));
        a.accept(1).unwrap();
        let mut c = a.fork();
        assert_eq!((banned(&mut a), banned(&mut b)), (vec![2], vec![]));
        c.accept(3).unwrap();
        assert_eq!((banned(&mut a), banned(&mut c)), (vec![2], vec![]));
    }

    #[test]
    fn words_of_one_token_and_lists_hold_at_every_position() {
        let fixed = |allowed: Option<&[u32]>, bad: &[&[u32]]| {
            let bad = bad.iter().map(|w| w.to_vec()).collect();
            constraint(40, allowed, bad)
        };
        assert!(fixed(None, &[]).unwrap().is_none());
        let mut c = fixed(Some(&[3, 39, 7]), &[&[7], &[8]]).unwrap().unwrap();
        assert!(c.is_fixed());
        let mask = c.mask().unwrap();
        let allowed: Vec<u32> = (0..64).filter(|t| mask.allows(*t)).collect();
        assert_eq!(allowed, [3, 39]);
        assert_eq!(fixed(Some(&[7]), &[&[7]]).unwrap_err(), NoneLeft);
        // Both: a moving mask on the listed tokens.
        let mut c = fixed(Some(&[3, 4]), &[&[3, 4]]).unwrap().unwrap();
        c.accept(3).unwrap();
        assert_eq!(c.mask().unwrap(), TokenMask::only(40, &[3]));
    }
}
