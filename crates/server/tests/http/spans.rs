// SPDX-License-Identifier: MIT OR Apache-2.0
//! The stages of a request as tracing spans.

use std::sync::{Arc, Mutex};

use serde_json::json;
use tracing::span::{Attributes, Id};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use crate::support::Server;

/// Spans that closed, in that order: name, the one it lies in, and the `id` of a request.
type Closed = Arc<Mutex<Vec<(&'static str, Option<&'static str>, String)>>>;

struct Recorder(Closed);

/// The text of a span's fields.
struct Fields(String);

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Recorder {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut text = String::new();
        attributes.record(
            &mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
                text += &format!("{field}={value:?} ");
            },
        );
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(Fields(text));
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let span = context.span(&id).expect("it lives");
        let parent = span.parent();
        let fields = match &parent {
            Some(parent) => parent.extensions().get::<Fields>().map(|f| f.0.clone()),
            None => span.extensions().get::<Fields>().map(|f| f.0.clone()),
        };
        let closed = (
            span.name(),
            parent.map(|p| p.name()),
            fields.unwrap_or_default(),
        );
        self.0.lock().expect("lock").push(closed);
    }
}

#[test]
fn the_stages_of_a_request_are_spans_within_it() {
    let closed = Closed::default();
    let subscriber = tracing_subscriber::registry().with(Recorder(Arc::clone(&closed)));
    tracing::subscriber::set_global_default(subscriber).expect("the only one of this process");
    let server = Server::saying("abc");
    let answer = server.complete(&json!({})).ok();
    let id = answer["id"].as_str().expect("an id");
    // The answer is sent before what made it is dropped.
    let mine = loop {
        let closed = closed.lock().expect("lock").clone();
        let mine = closed.into_iter().filter(|c| c.2.contains(id));
        let mine: Vec<_> = mine.map(|c| (c.0, c.1)).collect();
        if mine.iter().any(|c| c.0 == "request") {
            break mine;
        }
        std::thread::yield_now();
    };
    let stage = |name| (name, Some("request"));
    assert_eq!(
        mine,
        [
            stage("queue"),
            stage("prefill"),
            stage("decode"),
            ("request", None)
        ]
    );
}
