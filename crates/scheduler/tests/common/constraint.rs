// SPDX-License-Identifier: MIT OR Apache-2.0
//! A constraint whose mask follows from the last token, and that ends, fails or panics where it is told to.

use metrale_scheduler::{ConstraintError, Text, TokenConstraint, TokenMask};

use super::VOCAB;

/// How it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Never,
    /// The text is complete with the token of this number.
    Complete(u32),
    /// That token is not taken.
    Fails(u32),
    /// That token ends in a panic.
    Panics(u32),
    /// Behind that token nothing is allowed.
    Empty(u32),
    /// Behind that token there is no mask.
    Maskless(u32),
}

/// Never two tokens in a row of the same remainder by three.
#[derive(Debug)]
pub struct Alternating {
    last: u32,
    taken: u32,
    pub ending: Ending,
    mask: TokenMask,
}

impl Alternating {
    pub fn new(ending: Ending) -> Alternating {
        Alternating {
            last: 0,
            taken: 0,
            ending,
            mask: TokenMask::all(VOCAB),
        }
    }
}

impl TokenConstraint for Alternating {
    fn mask(&mut self) -> Result<TokenMask, ConstraintError> {
        if self.ending == Ending::Maskless(self.taken) {
            return Err(ConstraintError("no mask".to_owned()));
        }
        let empty = self.ending == Ending::Empty(self.taken);
        let last = self.last;
        let words = self.mask.words_mut();
        words.fill(0);
        for token in (0..VOCAB).filter(|t| !empty && t % 3 != last % 3) {
            words[(token / 32) as usize] |= 1 << (token % 32);
        }
        Ok(self.mask.clone())
    }

    fn accept(&mut self, token: u32) -> Result<Text, ConstraintError> {
        assert_ne!(token % 3, self.last % 3, "drawn under its mask");
        (self.last, self.taken) = (token, self.taken + 1);
        match self.ending {
            Ending::Complete(n) if n == self.taken => Ok(Text::Complete),
            Ending::Fails(n) if n == self.taken => Err(ConstraintError("no such token".into())),
            Ending::Panics(n) if n == self.taken => panic!("scripted"),
            _ => Ok(Text::Open),
        }
    }

    fn fork(&self) -> Box<dyn TokenConstraint> {
        Box::new(Alternating {
            mask: TokenMask::all(VOCAB),
            ..*self
        })
    }
}
