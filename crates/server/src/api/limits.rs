// SPDX-License-Identifier: MIT OR Apache-2.0
//! Limits of the HTTP side. Each states its default and what it costs.

use std::time::Duration;

use serde_json::{Value, json};

/// What one client, one connection and one request may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a request body. Default 32 MiB; a body is held whole, and its JSON costs a few times as much.
    pub body_bytes: usize,
    /// Bytes of all bodies that are being read and validated at once. Default 64 MiB; beyond it requests are refused
    /// with 429. With `json_values` it bounds what hostile bodies cost: at most 16 times as much.
    pub bodies_bytes: usize,
    /// Levels of a body's JSON, below 128. Default 100.
    pub json_depth: usize,
    /// Values in a body's JSON, at all levels. Default 1000000; each costs 32 bytes and its content.
    pub json_values: usize,
    /// Header fields of a request. Default 100.
    pub headers: usize,
    /// Bytes of a request's line and header fields, at least 8192. Default 64 KiB, the read buffer of a connection.
    pub header_bytes: usize,
    /// Time from the first byte of a request, or from the end of the one before, to the end of its header fields.
    /// Default 30 s; so long may a connection idle.
    pub header_timeout: Duration,
    /// Time between two pieces of a body. Default 10 s.
    pub body_idle: Duration,
    /// Time for a whole body. Default 120 s.
    pub body_timeout: Duration,
    /// Time in which a client must take 16 KiB of what waits for it, or all of it. Default 30 s; then it is cut.
    pub write_stall: Duration,
    /// Connections at once. Default 1024; beyond it those that have idled longest are closed. Each costs a file
    /// descriptor and its buffers.
    pub connections: usize,
    /// Time from the signal to drain to the end, whatever still runs. Default 30 s.
    pub drain: Duration,
    /// Time without an event after which a stream gets a comment line, so that proxies keep it open. Default 15 s.
    pub keep_alive: Duration,
    /// Answers to one prompt (`n`). Default 128.
    pub n: u32,
    /// Answers of one request over all its prompts. Default 512, what the queue holds.
    pub choices: usize,
    /// Stop texts. Default 32. Each is compared at every token.
    pub stops: usize,
    /// Bytes of a stop text, or of a bad word. Default 1024; so much of an answer may be held back.
    pub stop_bytes: usize,
    /// Entries of `stop_token_ids`. Default 256.
    pub stop_tokens: usize,
    /// Entries of `logit_bias`. Default 1024.
    pub logit_bias: usize,
    /// Texts of `bad_words`. Default 256. Each is tokenized twice; those of several tokens make a mask follow the text.
    pub bad_words: usize,
    /// Messages of a chat. Default 100000.
    pub messages: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            body_bytes: 32 << 20,
            bodies_bytes: 64 << 20,
            json_depth: 100,
            json_values: 1_000_000,
            headers: 100,
            header_bytes: 64 << 10,
            header_timeout: Duration::from_secs(30),
            body_idle: Duration::from_secs(10),
            body_timeout: Duration::from_secs(120),
            write_stall: Duration::from_secs(30),
            connections: 1024,
            drain: Duration::from_secs(30),
            keep_alive: Duration::from_secs(15),
            n: 128,
            choices: 512,
            stops: 32,
            stop_bytes: 1024,
            stop_tokens: 256,
            logit_bias: 1024,
            bad_words: 256,
            messages: 100_000,
        }
    }
}

impl Limits {
    /// Alternatives at one token: what one logits row reports.
    pub const LOGPROBS: i64 = 20;

    /// As /serve-config shows them, times in seconds.
    #[must_use]
    pub fn describe(&self) -> Value {
        json!({
            "body_bytes": self.body_bytes,
            "bodies_bytes": self.bodies_bytes,
            "json_depth": self.json_depth,
            "json_values": self.json_values,
            "headers": self.headers,
            "header_bytes": self.header_bytes,
            "header_timeout": self.header_timeout.as_secs_f64(),
            "body_idle": self.body_idle.as_secs_f64(),
            "body_timeout": self.body_timeout.as_secs_f64(),
            "write_stall": self.write_stall.as_secs_f64(),
            "connections": self.connections,
            "drain": self.drain.as_secs_f64(),
            "keep_alive": self.keep_alive.as_secs_f64(),
            "n": self.n,
            "choices": self.choices,
            "stops": self.stops,
            "stop_bytes": self.stop_bytes,
            "stop_tokens": self.stop_tokens,
            "logit_bias": self.logit_bias,
            "bad_words": self.bad_words,
            "messages": self.messages,
            "logprobs": Limits::LOGPROBS,
        })
    }
}
