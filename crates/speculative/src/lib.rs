// SPDX-License-Identifier: MIT OR Apache-2.0
//! The policy of speculative decoding: who guesses the tokens that may follow a text, and how far.
//!
//! A guess never changes an answer: the scheduler keeps a draft only if it is the token that would have been drawn at its
//! place. So a drafter may be as simple as [`ngram`], which needs no model.
//!
//! ```
//! let mut drafts = Vec::new();
//! // What followed "7 8" the last time follows it again, perhaps.
//! metrale_speculative::ngram(&[1, 7, 8, 9, 3, 7, 8], 2, &mut drafts);
//! assert_eq!(drafts, [9, 3]);
//! ```

#![forbid(unsafe_code)]

/// Last tokens of a text that an earlier place must share to be of any use. A single one is too often chance.
const LEAST: usize = 2;
/// Of places that share this many or more, the last one is taken.
const ENOUGH: usize = 4;

/// Prompt lookup: appends at most `most` tokens that followed the last tokens of `text` where they stood before: the place
/// that shares most of them (from 2 to 4), of equal ones the last. Where the text ends before `most`, the drafts go on
/// with themselves, so that a text that repeats itself is guessed in full. Nothing is appended where there is no such place.
///
/// Time: one pass over `text`; no allocation beyond `drafts`. Source: Saxena, "Prompt Lookup Decoding", 2023.
pub fn ngram(text: &[u32], most: u32, drafts: &mut Vec<u32>) {
    let Some(place) = earlier(text) else {
        return;
    };
    let period = text.len() - place;
    for ahead in 0..most as usize {
        drafts.push(text[place + ahead % period]);
    }
}

/// The index behind the earlier place.
fn earlier(text: &[u32]) -> Option<usize> {
    let last = text.last()?;
    let (mut best, mut place) = (LEAST - 1, None);
    for end in (LEAST..text.len()).rev() {
        if text[end - 1] != *last {
            continue;
        }
        let before = text[..end].iter().rev();
        let shared = before
            .zip(text.iter().rev())
            .take(ENOUGH)
            .take_while(|(a, b)| a == b)
            .count();
        if shared > best {
            (best, place) = (shared, Some(end));
        }
        if best == ENOUGH {
            break;
        }
    }
    place
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drafts(text: &[u32], most: u32) -> Vec<u32> {
        let mut drafts = Vec::new();
        ngram(text, most, &mut drafts);
        drafts
    }

    #[test]
    fn the_place_that_shares_most_is_taken_and_of_equal_ones_the_last() {
        // "2 3" stands thrice; before the first one stands the same 1 as at the end.
        assert_eq!(drafts(&[1, 2, 3, 40, 9, 2, 3, 50, 1, 2, 3], 1), [40]);
        assert_eq!(drafts(&[8, 2, 3, 40, 9, 2, 3, 50, 1, 2, 3], 1), [50]);
        // More than four shared tokens count as four: the last place wins.
        let text = [5, 1, 2, 3, 4, 60, 6, 1, 2, 3, 4, 70, 5, 1, 2, 3, 4];
        assert_eq!(drafts(&text, 2), [70, 5]);
    }

    #[test]
    fn a_text_that_repeats_itself_is_guessed_beyond_its_end() {
        assert_eq!(drafts(&[9, 4, 4, 4], 5), [4; 5]);
        assert_eq!(drafts(&[1, 2, 3, 1, 2, 3], 7), [1, 2, 3, 1, 2, 3, 1]);
    }

    #[test]
    fn a_new_text_is_not_guessed() {
        for text in [&[][..], &[1], &[1, 1], &[1, 2, 3, 4], &[7, 1, 8, 1]] {
            assert_eq!(drafts(text, 4), [0; 0], "{text:?}");
        }
        assert_eq!(drafts(&[1, 2, 1, 2], 0), [0; 0]);
    }
}
