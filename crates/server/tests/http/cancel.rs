// SPDX-License-Identifier: MIT OR Apache-2.0
//! SURVIVAL 5: clients that go away.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use serde_json::json;

use crate::support::{Script, Server, config};

fn open(server: &Server, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.addr).expect("connect");
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).expect("write");
    stream
}

#[test]
fn survival_05_a_client_gone_in_prefill_is_cancelled() {
    for body in [r#"{"prompt": "hi"}"#, r#"{"prompt": "hi", "stream": true}"#] {
        let server = Server::new(config(), Script::hold(""));
        let stream = open(&server, body);
        server.engine.wait_requests(1);
        assert_eq!(server.engine.cancelled(), 0);
        drop(stream);
        server.engine.wait_cancelled(1);
        server.engine.follow(Script::say("x"));
        server.complete(&json!({})).ok();
    }
}

#[test]
fn survival_05_a_client_gone_in_the_stream_is_cancelled() {
    let server = Server::new(config(), Script::hold("some text"));
    let mut stream = open(&server, r#"{"prompt": "hi", "stream": true, "n": 3}"#);
    let mut first = [0; 64];
    stream.read_exact(&mut first).expect("the head");
    drop(stream);
    server.engine.wait_cancelled(3);
}

#[test]
fn survival_05_a_client_gone_while_it_waits_for_a_whole_answer() {
    let server = Server::new(config(), Script::hold("some text"));
    let stream = open(&server, r#"{"prompt": ["a", "b"], "n": 2}"#);
    server.engine.wait_requests(4);
    stream.shutdown(Shutdown::Both).expect("shutdown");
    server.engine.wait_cancelled(4);
}

#[test]
fn a_finished_answer_is_not_cancelled() {
    let server = Server::saying("x");
    server.complete(&json!({"n": 2})).ok();
    server.complete(&json!({"stream": true})).events();
    assert_eq!(server.engine.cancelled(), 0);
}

#[test]
fn a_refusal_of_one_choice_cancels_the_others() {
    let server = Server::new(config(), Script::hold("a"));
    server.engine.refuse_after(2);
    let reply = server.complete(&json!({"n": 4}));
    assert_eq!(
        reply.error(),
        (429, "rate_limit_exceeded".into(), String::new())
    );
    assert_eq!(reply.header("retry-after"), Some("1"));
    server.engine.wait_cancelled(2);
}
