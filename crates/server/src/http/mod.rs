// SPDX-License-Identifier: MIT OR Apache-2.0
//! The HTTP side: guards, routes, answers as JSON or as server-sent events, the accept loop.
//!
//! A request passes, in order: the connection's limits ([`serve()`]), the guard (Host, Origin, API key), the body reader
//! (type, size, time, JSON), validation ([`crate::api`]), the prompt (template, tokenizer), the engine, and the stage
//! that makes text of tokens ([`crate::completion`]). A panic anywhere ends its request alone.
//!
//! Invariants, as absences: no task outlives its connection; no path is outside the guard; nothing of a request's text
//! is logged.

pub mod app;
mod ask;
mod blocking;
mod body;
mod chat;
mod completions;
mod connections;
mod constraint;
mod deadline;
mod error;
mod events;
mod feed;
mod generate;
mod guard;
mod health;
mod models;
mod panics;
mod prompt;
mod router;
mod serve;
mod serve_config;
mod shape;
mod slot;
mod stages;
mod stalled;
mod stream;
mod tenant;
mod tokenize;

pub use app::{Ambient, App, HttpConfig, SystemAmbient};
pub use serve::{Ended, Signals, serve};
pub use slot::ModelSlot;
