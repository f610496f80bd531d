// SPDX-License-Identifier: MIT OR Apache-2.0
//! The constraint of a sequence, and the mask of its next token: filled when the token before is known.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::constraint::{ConstraintError, Text, TokenConstraint, TokenMask};
use crate::fault::{Fault, FaultKind, Scope, message_of};

/// A constraint whose state is that of the known text.
pub(super) struct Constrained {
    state: Box<dyn TokenConstraint>,
    fixed: bool,
    /// Of the token behind the known text; `None` where nothing will be drawn there.
    mask: Option<TokenMask>,
}

impl Constrained {
    /// In front of the first token.
    pub(super) fn new(state: Box<dyn TokenConstraint>) -> Result<Constrained, Fault> {
        let mut constrained = Constrained {
            fixed: guarded("was asked", || Ok(state.is_fixed()))?,
            state,
            mask: None,
        };
        constrained.fill()?;
        Ok(constrained)
    }

    /// Whether its mask is known before the tokens are.
    pub(super) fn is_fixed(&self) -> bool {
        self.fixed
    }

    /// The mask of the token behind the known text.
    pub(super) fn mask(&self) -> Option<TokenMask> {
        self.mask.clone()
    }

    /// Takes a token of the text. No step plan holds the mask it was drawn under any more.
    pub(super) fn accept(&mut self, token: u32) -> Result<Text, Fault> {
        if self.fixed {
            return Ok(Text::Open);
        }
        self.mask = None;
        guarded("took a token", || self.state.accept(token))
    }

    /// Makes the mask of the next token.
    pub(super) fn fill(&mut self) -> Result<(), Fault> {
        if self.fixed && self.mask.is_some() {
            return Ok(());
        }
        let mask = guarded("made a mask", || self.state.mask())?;
        if mask.is_empty() {
            let what = "its constraint allows no token here";
            return Err(Fault::new(Scope::Request, FaultKind::NoToken, what));
        }
        self.mask = Some(mask);
        Ok(())
    }
}

/// An error or a panic of the constraint is a fault of its request.
fn guarded<T>(when: &str, call: impl FnOnce() -> Result<T, ConstraintError>) -> Result<T, Fault> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(failed(format!(
            "the request's constraint failed when it {when}: {error}"
        ))),
        Err(panic) => Err(failed(format!(
            "the request's constraint panicked when it {when}: {}",
            message_of(&*panic)
        ))),
    }
}

fn failed(what: String) -> Fault {
    Fault::new(Scope::Request, FaultKind::Constraint, what)
}
