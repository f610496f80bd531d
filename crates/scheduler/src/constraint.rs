// SPDX-License-Identifier: MIT OR Apache-2.0
//! Constraints: which tokens may come next in a text.
//!
//! A [`TokenConstraint`] is the state of one text. It gives a mask for the next token, is told each token that was taken, and
//! may say that the text is complete. Masks cross to the device as data of the step plan; what they are made from (a list, a
//! grammar) is not known here.
//!
//! The mask of a position follows from the tokens before it, so a row of such a text is planned when its token is known: one
//! step ahead it waits, and the others go on. It brings no drafts. A constraint that [is fixed](TokenConstraint::is_fixed) is
//! asked once and costs neither.

use std::fmt;
use std::sync::Arc;

/// Which tokens are allowed: bit `id % 32` of word `id / 32`. Clones share the words.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenMask(Arc<[u32]>);

impl TokenMask {
    /// Allows what the bits say; tokens beyond the words are not allowed.
    pub fn new(words: impl Into<Arc<[u32]>>) -> TokenMask {
        TokenMask(words.into())
    }

    /// Allows all tokens below `vocab`.
    #[must_use]
    pub fn all(vocab: u32) -> TokenMask {
        let mut words = vec![u32::MAX; vocab.div_ceil(32) as usize];
        if let Some(last) = words.last_mut()
            && !vocab.is_multiple_of(32)
        {
            *last = u32::MAX >> (32 - vocab % 32);
        }
        TokenMask::new(words)
    }

    /// Allows these tokens alone; those from `vocab` on are left out.
    #[must_use]
    pub fn only(vocab: u32, tokens: &[u32]) -> TokenMask {
        let mut words = vec![0; vocab.div_ceil(32) as usize];
        for token in tokens.iter().filter(|t| **t < vocab) {
            words[(token / 32) as usize] |= 1 << (token % 32);
        }
        TokenMask::new(words)
    }

    /// The words.
    #[must_use]
    pub fn words(&self) -> &[u32] {
        &self.0
    }

    /// The words, to be changed; copied first if a clone of this mask lives.
    pub fn words_mut(&mut self) -> &mut [u32] {
        Arc::make_mut(&mut self.0)
    }

    /// Takes a token out; copies the words first if a clone of this mask lives.
    pub fn forbid(&mut self, token: u32) {
        if self.allows(token) {
            self.words_mut()[(token / 32) as usize] &= !(1 << (token % 32));
        }
    }

    /// Whether a token is allowed.
    #[must_use]
    pub fn allows(&self, token: u32) -> bool {
        let word = self.0.get((token / 32) as usize);
        word.is_some_and(|word| word >> (token % 32) & 1 == 1)
    }

    /// Whether no token is allowed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Whether both are clones of one mask, so that one copy of it serves both.
    #[must_use]
    pub fn shares(&self, other: &TokenMask) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for TokenMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let allowed: u32 = self.0.iter().map(|word| word.count_ones()).sum();
        write!(f, "TokenMask({allowed} of {} allowed)", self.0.len() * 32)
    }
}

/// What the next token of one text may be. Called on the driver's thread, while the device works on another step where one is
/// taken ahead. An error or a panic in it fails its request and no other.
pub trait TokenConstraint: Send + fmt::Debug {
    /// The mask of the next token. What was given before has been let go by then, so one buffer can serve for all positions
    /// without being copied; clones of a mask that others have too are sent to the device once.
    ///
    /// # Errors
    /// [`ConstraintError`]: the request fails. So it does if the mask allows nothing.
    fn mask(&mut self) -> Result<TokenMask, ConstraintError>;

    /// Takes the token that was drawn under the last mask. A stop token ends the text before it comes here.
    ///
    /// # Errors
    /// [`ConstraintError`]: the request fails.
    fn accept(&mut self, token: u32) -> Result<Text, ConstraintError>;

    /// Whether the mask is the same at every position, and never completes the text: it is then asked once, and told nothing.
    fn is_fixed(&self) -> bool {
        false
    }

    /// Another one in the state of this one, for another choice of the same answer.
    fn fork(&self) -> Box<dyn TokenConstraint>;
}

impl Clone for Box<dyn TokenConstraint> {
    fn clone(&self) -> Self {
        self.fork()
    }
}

/// Whether a text goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Text {
    /// There are tokens that may come next.
    Open,
    /// It is complete: the answer ends with the token just taken, as by a stop token.
    Complete,
}

/// Why a constraint cannot go on, for a person.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConstraintError(pub String);

/// The same mask at every position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedMask(pub TokenMask);

impl TokenConstraint for FixedMask {
    fn mask(&mut self) -> Result<TokenMask, ConstraintError> {
        Ok(self.0.clone())
    }

    fn accept(&mut self, _token: u32) -> Result<Text, ConstraintError> {
        Ok(Text::Open)
    }

    fn is_fixed(&self) -> bool {
        true
    }

    fn fork(&self) -> Box<dyn TokenConstraint> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_hold_what_is_allowed_and_nothing_beyond_the_vocabulary() {
        let all = TokenMask::all(70);
        assert_eq!(all.words(), [u32::MAX, u32::MAX, 0x3f]);
        assert!(all.allows(69) && !all.allows(70) && !all.allows(u32::MAX));
        assert_eq!(TokenMask::all(64).words(), [u32::MAX; 2]);
        let some = TokenMask::only(70, &[0, 33, 69, 70, 95, u32::MAX]);
        assert_eq!(some.words(), [1, 2, 1 << 5]);
        assert!(TokenMask::only(70, &[70]).is_empty() && !some.is_empty());
        assert!(TokenMask::all(0).is_empty());
    }

    #[test]
    fn a_changed_clone_is_a_mask_of_its_own() {
        let first = TokenMask::all(40);
        let mut second = first.clone();
        second.forbid(50);
        assert!(second.shares(&first));
        second.forbid(39);
        assert!(first.allows(39) && !second.allows(39) && !second.shares(&first));
        let at = second.words().as_ptr();
        second.forbid(38);
        assert_eq!(second.words().as_ptr(), at, "nobody else has it");
    }
}
