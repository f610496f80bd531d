// SPDX-License-Identifier: MIT OR Apache-2.0
//! The stages of a request: it waits, its prompt is computed, its answer is decoded. Each is a tracing span inside the
//! request's, and its time goes into the metrics.

use std::time::Instant;

use metrale_telemetry::Stage;
use serde_json::json;
use tracing::Span;

use super::app::App;

/// Where a request is.
pub(super) struct Stages {
    id: String,
    request: Span,
    stage: Stage,
    span: Span,
    since: Instant,
    start: Instant,
    done: bool,
}

impl Stages {
    /// A request that begins to wait.
    pub(super) fn new(app: &App, id: &str, choices: usize, prompt_tokens: u64) -> Stages {
        let request = tracing::debug_span!("request", id, choices, prompt_tokens);
        let span = request.in_scope(|| tracing::debug_span!("queue"));
        app.readers.tell(|| {
            json!({"event": "request.started", "id": id, "choices": choices, "prompt_tokens": prompt_tokens})
        });
        Stages {
            id: id.to_owned(),
            request,
            stage: Stage::Queue,
            span,
            since: Instant::now(),
            start: Instant::now(),
            done: false,
        }
    }

    /// Its first choice was admitted, or its first token came.
    pub(super) fn reach(&mut self, app: &App, stage: Stage) {
        if self.done || stage <= self.stage {
            return;
        }
        self.leave(app);
        self.stage = stage;
        self.span = self.request.in_scope(|| match stage {
            Stage::Queue => tracing::debug_span!("queue"),
            Stage::Prefill => tracing::debug_span!("prefill"),
            Stage::Decode => tracing::debug_span!("decode"),
        });
        if stage == Stage::Decode {
            let (id, seconds) = (&self.id, self.start.elapsed().as_secs_f64());
            app.readers
                .tell(|| json!({"event": "request.first_token", "id": id, "seconds": seconds}));
        }
    }

    /// It ended; `failed` with a code if it did not finish.
    pub(super) fn end(&mut self, app: &App, tokens: u64, failed: Option<&'static str>) {
        if std::mem::replace(&mut self.done, true) {
            return;
        }
        self.leave(app);
        let (id, seconds) = (&self.id, self.start.elapsed().as_secs_f64());
        let event = match failed {
            Some(_) => "request.failed",
            None => "request.finished",
        };
        self.request
            .in_scope(|| tracing::debug!(tokens, seconds, failed, "ended"));
        app.readers.tell(|| {
            json!({"event": event, "id": id, "seconds": seconds, "completion_tokens": tokens, "code": failed})
        });
    }

    fn leave(&mut self, app: &App) {
        self.span = Span::none();
        app.metrics.stage(self.stage, self.since.elapsed());
        self.since = Instant::now();
    }
}
