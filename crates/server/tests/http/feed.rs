// SPDX-License-Identifier: MIT OR Apache-2.0
//! GET /v1/events: what is told, and what is not.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Script, Server, config};

/// A reader of the events.
struct Feed(BufReader<TcpStream>);

impl Feed {
    fn open(server: &Server) -> Feed {
        let mut stream = TcpStream::connect(server.addr).expect("connect");
        let limit = Duration::from_secs(20);
        stream.set_read_timeout(Some(limit)).expect("timeout");
        let ask = format!("GET /v1/events HTTP/1.1\r\nhost: {}\r\n\r\n", server.addr);
        stream.write_all(ask.as_bytes()).expect("write");
        Feed(BufReader::new(stream))
    }

    /// The next event; `None` at the end of the stream.
    fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        while self.0.read_line(&mut line).expect("a line") > 0 {
            if let Some(data) = line.strip_prefix("data: ") {
                return Some(serde_json::from_str(data).expect("JSON"));
            }
            line.clear();
        }
        None
    }

    /// Events until one of this kind, that one last.
    fn until(&mut self, kind: &str) -> Vec<Value> {
        let mut all = Vec::new();
        loop {
            all.push(self.next().unwrap_or_else(|| panic!("no {kind}: {all:?}")));
            if all.last().expect("one")["event"] == kind {
                return all;
            }
        }
    }
}

#[test]
fn a_request_is_told_from_its_start_to_its_end() {
    let server = Server::saying("secret words");
    let mut feed = Feed::open(&server);
    let first = feed.next().expect("an event");
    assert_eq!(
        (first["event"].as_str(), first["state"].as_str()),
        (Some("engine"), Some("ready"))
    );
    assert_eq!(first["kv_blocks_used"], 25);
    let answer = server.complete(&json!({"prompt": "my secret"})).ok();
    let events = feed.until("request.finished");
    let of = |kind: &str| {
        let found = events.iter().find(|e| e["event"] == kind);
        found.unwrap_or_else(|| panic!("no {kind}: {events:?}"))
    };
    for kind in ["request.started", "request.first_token", "request.finished"] {
        assert_eq!(of(kind)["id"], answer["id"], "{kind}");
    }
    let tokens = &answer["usage"]["completion_tokens"];
    assert_eq!(&of("request.finished")["completion_tokens"], tokens);
    assert!(!format!("{events:?}").contains("secret"), "{events:?}");
}

#[test]
fn a_client_that_leaves_is_told_as_such() {
    let server = Server::new(config(), Script::hold("some text"));
    let mut feed = Feed::open(&server);
    feed.next().expect("an event");
    let body = json!({"prompt": "a", "stream": true}).to_string();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        server.addr,
        body.len()
    );
    let mut stream = TcpStream::connect(server.addr).expect("connect");
    stream.write_all(head.as_bytes()).expect("write");
    feed.until("request.started");
    drop(stream);
    let events = feed.until("request.failed");
    assert_eq!(events.last().expect("one")["code"], "client_left");
}

#[test]
fn a_reader_of_events_does_not_hold_up_a_drain() {
    let mut server = Server::saying("x");
    let mut feed = Feed::open(&server);
    feed.next().expect("an event");
    server.signal_drain();
    server.ended();
    let mut last = Value::Null;
    while let Some(event) = feed.next() {
        last = event;
    }
    assert_eq!(last["state"], "draining");
}
