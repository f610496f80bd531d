// SPDX-License-Identifier: MIT OR Apache-2.0
//! In which order requests are served.
//!
//! Every policy gives a request one *rank* when it comes, and keeps it: what waits is admitted in order of rank, what runs
//! gets its rows in that order, and what has to go when blocks run out is the last. Ageing needs no clock after that: the
//! rank under `priority` is the time of arrival, put off by its priority, so that all ranks would age at the same speed and
//! none ever passes another. A request waits for those of lower rank alone, and no request that comes later than its rank
//! says can be one of them: waiting is bounded.

use std::time::Duration;

use crate::request::Request;

/// A policy. No policy changes an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// First come, first served.
    #[default]
    Fifo,
    /// By [`Request::priority`], lower first, as in vLLM; among equals first come, first served.
    Priority {
        /// Waiting this long is worth one step of priority. Zero would be no ageing: everybody of a higher number could wait
        /// for ever. [`Policy::PRIORITY`] takes 10 s.
        ageing: Duration,
    },
    /// Keep the time between tokens: prefill rows join decoding ones only as far as the step is expected to end within
    /// `between`; shortest prompt first when there is room (after SLAI, arXiv 2508.01002).
    Slai {
        /// Longest time between two tokens of an answer that is aimed at. [`Policy::SLAI`] takes 50 ms.
        between: Duration,
        /// A prompt token counts as having come this much later, so that long prompts do not wait for ever.
        /// [`Policy::SLAI`] takes 1 ms.
        per_token: Duration,
    },
}

impl Policy {
    /// `priority` with its default ageing.
    pub const PRIORITY: Policy = Policy::Priority {
        ageing: Duration::from_secs(10),
    };
    /// `slai` with its defaults.
    pub const SLAI: Policy = Policy::Slai {
        between: Duration::from_millis(50),
        per_token: Duration::from_millis(1),
    };
    /// The names, as flags spell them.
    pub const NAMES: [&'static str; 3] = ["fifo", "priority", "slai"];

    /// The policy of this name, with its defaults.
    #[must_use]
    pub fn named(name: &str) -> Option<Policy> {
        match name {
            "fifo" => Some(Policy::Fifo),
            "priority" => Some(Policy::PRIORITY),
            "slai" => Some(Policy::SLAI),
            _ => None,
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Policy::Fifo => "fifo",
            Policy::Priority { .. } => "priority",
            Policy::Slai { .. } => "slai",
        }
    }

    /// The rank of a request that comes at `now`, the `arrival`-th of all: lower is served first.
    pub(crate) fn rank<S>(&self, request: &Request<S>, now: Duration, arrival: u64) -> Rank {
        let nanos = |d: Duration| d.as_nanos() as i128;
        let virtual_time = match self {
            Policy::Fifo => 0,
            Policy::Priority { ageing } => {
                nanos(now) + nanos(*ageing) * i128::from(request.priority)
            }
            Policy::Slai { per_token, .. } => {
                nanos(now) + nanos(*per_token) * request.prompt.len() as i128
            }
        };
        (virtual_time, arrival)
    }
}

/// Virtual time of arrival in nanoseconds, then the order of arrival.
pub(crate) type Rank = (i128, u64);

/// How long steps take, learnt from the times at which they were planned: what `slai` cuts prefill by.
#[derive(Default)]
pub(crate) struct Pace {
    /// When the last step was planned, and its prefill rows.
    last: Option<(Duration, u32)>,
    /// Seconds of a step without prefill, and of each prefill row beside it.
    base: Option<f64>,
    row: Option<f64>,
}

/// Weight of the newest step in the averages.
const NEWEST: f64 = 0.2;
/// Prefill rows of a step at least, so that a target which cannot be kept stops no prompt.
const LEAST: u32 = 16;

impl Pace {
    /// The step before was done at `now`.
    pub(crate) fn measure(&mut self, now: Duration) {
        let Some((then, prefill)) = self.last.take() else {
            return;
        };
        let took = now.saturating_sub(then).as_secs_f64();
        let mix = |old: Option<f64>, new: f64| Some(old.map_or(new, |o| o + NEWEST * (new - o)));
        if prefill == 0 {
            self.base = mix(self.base, took);
        } else {
            let rest = (took - self.base.unwrap_or(0.0)).max(0.0);
            self.row = mix(self.row, rest / f64::from(prefill));
        }
    }

    /// A step was planned at `now`.
    pub(crate) fn planned(&mut self, now: Duration, prefill: u32) {
        self.last = Some((now, prefill));
    }

    /// Prefill rows that fit beside decoding ones in a step of `between`; at most `most`.
    pub(crate) fn prefill(&self, between: Duration, most: u32) -> u32 {
        let Some(row) = self.row.filter(|row| *row > 0.0) else {
            return most;
        };
        let room = between.as_secs_f64() - self.base.unwrap_or(0.0);
        // A float beyond the integers saturates.
        ((room / row).max(0.0) as u32).clamp(LEAST.min(most), most)
    }
}
