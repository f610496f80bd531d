// SPDX-License-Identifier: MIT OR Apache-2.0
//! One sequence between submission and its last event.

use std::sync::Arc;
use std::time::Duration;

use super::constrained::Constrained;
use super::history::History;
use crate::constraint::{Text, TokenMask};
use crate::event::Usage;
use crate::fault::Fault;
use crate::plan::{HistoryEntry, LogitRow};
use crate::policy::Rank;
use crate::request::Request;

/// A sequence. `tokens` are known (prompt, then generated); KV is stored for the first `computed` of them.
pub(super) struct Seq<S> {
    pub(super) request: Request<S>,
    /// Its place among all, see [`Policy`](crate::Policy).
    pub(super) rank: Rank,
    /// When it fails, on the driver's clock.
    pub(super) deadline: Option<Duration>,
    pub(super) tokens: Vec<u32>,
    pub(super) computed: u32,
    /// Full blocks that were published.
    pub(super) published: u32,
    pub(super) generated: u32,
    pub(super) history: Option<History>,
    /// Taken from the request.
    pub(super) constraint: Option<Constrained>,
    /// The next prompt token whose logprob is to be reported.
    pub(super) next_prompt: u32,
    /// Prompt tokens found cached at the first admission; `None` before it.
    pub(super) cached: Option<u32>,
    /// Rows of it in steps that are planned and not applied.
    pub(super) flying_rows: u32,
    /// Tokens that these steps draw.
    pub(super) flying_draws: u32,
    /// Whether it may bring drafts: then its next row is planned when its text is known.
    pub(super) drafting: bool,
    /// Tokens that may follow, for the next step.
    pub(super) drafts: Vec<u32>,
    /// No step of it has been applied since its admission: a block copy for it may not have been done.
    pub(super) fresh: bool,
    /// Tokens that the spill router keeps for it.
    pub(super) spilled: Option<u32>,
    /// The caller wants no more of it.
    pub(super) cancelled: bool,
}

impl<S: Clone> Seq<S> {
    pub(super) fn new(mut request: Request<S>, now: Duration, rank: Rank) -> Result<Seq<S>, Fault> {
        let constraint = request.constraint.take().map(Constrained::new);
        Ok(Seq {
            constraint: constraint.transpose()?,
            rank,
            deadline: request.deadline.map(|d| now.saturating_add(d)),
            tokens: request.prompt.to_vec(),
            computed: 0,
            published: 0,
            generated: 0,
            history: request.history.then(|| History::new(&request.prompt)),
            next_prompt: 1,
            cached: None,
            flying_rows: 0,
            flying_draws: 0,
            drafting: false,
            drafts: Vec::new(),
            fresh: false,
            spilled: None,
            cancelled: false,
            request,
        })
    }

    /// Room for every token it may get, so that no step moves the text.
    pub(super) fn make_room(&mut self, capacity: u32, drafts: u32) {
        if self.drafting {
            self.drafts.reserve_exact(drafts as usize);
        }
        let more = self.request.max_tokens - self.generated;
        let most = self.len().saturating_add(more).min(capacity);
        self.tokens.reserve_exact((most - self.len()) as usize);
    }

    pub(super) fn len(&self) -> u32 {
        self.tokens.len() as u32
    }

    /// Known tokens without KV.
    pub(super) fn pending(&self) -> u32 {
        self.len() - self.computed
    }

    /// Tokens once the steps in flight are applied.
    pub(super) fn known(&self) -> u32 {
        self.len() + self.flying_draws
    }

    /// Position of the first row that is in no step yet.
    pub(super) fn next_row(&self) -> u32 {
        self.computed + self.flying_rows
    }

    /// Known tokens that are in no step yet.
    pub(super) fn todo(&self) -> u32 {
        self.known() - self.next_row()
    }

    /// Whether its text goes on behind the tokens that are being drawn.
    pub(super) fn goes_on(&self, capacity: u32) -> bool {
        self.flying_draws == 0 || self.draws() && self.known() < capacity
    }

    /// Whether its mask follows from its tokens.
    pub(super) fn has_moving_mask(&self) -> bool {
        self.constraint.as_ref().is_some_and(|c| !c.is_fixed())
    }

    /// Whether the row that draws wants the tokens before it to be known: for its penalties, or for its mask.
    pub(super) fn waits_for_text(&self) -> bool {
        self.flying_draws > 0 && (self.history.is_some() || self.has_moving_mask())
    }

    /// Tells its constraint the token that was drawn; `more`: another one will be.
    pub(super) fn constrain(&mut self, token: u32, more: bool) -> Result<Text, Fault> {
        let Some(constraint) = &mut self.constraint else {
            return Ok(Text::Open);
        };
        let text = constraint.accept(token)?;
        if more && text == Text::Open {
            constraint.fill()?;
        }
        Ok(text)
    }

    /// The mask of the token behind the known text.
    pub(super) fn mask(&self) -> Option<TokenMask> {
        self.constraint.as_ref().and_then(Constrained::mask)
    }

    /// Drafts that it could bring to its next step, at most `most`.
    pub(super) fn most_drafts(&self, most: u32, capacity: u32) -> u32 {
        let now = self.drafting && !self.cancelled && self.flying_draws == 0;
        if !now || self.todo() != 1 || self.bans() {
            return 0;
        }
        let room = capacity.saturating_sub(self.len() + 1);
        let more = self.request.max_tokens.saturating_sub(self.generated + 1);
        most.min(room).min(more)
    }

    /// Whether the row of its last known token draws one.
    pub(super) fn draws(&self) -> bool {
        self.generated + self.flying_draws < self.request.max_tokens
    }

    /// Whether prompt logprobs are wanted that have not been reported: its prompt is then computed, whatever is cached.
    pub(super) fn reports_prompt(&self) -> bool {
        self.request.prompt_logprobs.is_some()
            && self.next_prompt < self.request.prompt.len() as u32
    }

    /// Whether the row at `position` reports the prompt token after it.
    pub(super) fn row_reports(&self, position: u32) -> bool {
        self.reports_prompt()
            && (self.next_prompt..self.request.prompt.len() as u32).contains(&(position + 1))
    }

    pub(super) fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: self.request.prompt.len() as u32,
            completion_tokens: self.generated,
            cached_tokens: self.cached.unwrap_or(0),
        }
    }

    /// History and bias entries of the row that draws.
    pub(super) fn draw_cost(&self) -> (u32, u32) {
        let history = self
            .history
            .as_ref()
            .map_or(0, |h| h.entries().len() as u32 + self.flying_draws);
        let mut bias = self.request.bias.len() as u32;
        if self.bans() {
            bias += self.request.stop_tokens.len() as u32;
        }
        (history, bias)
    }

    /// Whether stop tokens may not be drawn yet.
    pub(super) fn bans(&self) -> bool {
        self.generated + self.flying_draws < self.request.min_tokens
    }

    /// The penalty history, where it has one.
    pub(super) fn history_entries(&self) -> Option<Arc<Vec<HistoryEntry>>> {
        self.history.as_ref().map(|h| Arc::clone(h.entries()))
    }

    /// The logits row that draws the next token.
    pub(super) fn draw_row(&self, row: u32, slot: u32) -> LogitRow<S> {
        LogitRow {
            // Entries that change before the step runs are filled in then.
            history: self.history_entries().filter(|_| self.flying_draws == 0),
            mask: self.mask().filter(|_| !self.waits_for_text()),
            bias: Arc::clone(&self.request.bias),
            banned: if self.bans() {
                Arc::clone(&self.request.stop_tokens)
            } else {
                Arc::default()
            },
            top: self.request.logprobs.unwrap_or(0),
            ..self.plain_row(row, slot, self.known())
        }
    }

    /// The logits row that reports the prompt token at `position`.
    pub(super) fn prompt_row(&self, row: u32, slot: u32, position: u32) -> LogitRow<S> {
        LogitRow {
            forced: Some(self.tokens[position as usize]),
            top: self.request.prompt_logprobs.unwrap_or(0),
            ..self.plain_row(row, slot, position)
        }
    }

    fn plain_row(&self, row: u32, slot: u32, position: u32) -> LogitRow<S> {
        LogitRow {
            row,
            request: self.request.id,
            slot,
            position,
            choice: self.request.choice,
            sampling: self.request.sampling.clone(),
            forced: None,
            top: 0,
            history: None,
            bias: Arc::default(),
            banned: Arc::default(),
            mask: None,
        }
    }
}
