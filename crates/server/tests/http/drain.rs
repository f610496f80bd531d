// SPDX-License-Identifier: MIT OR Apache-2.0
//! SURVIVAL 48: the first signal drains, the second one stops.

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::thread::JoinHandle;

use metrale_server::http::Ended;
use serde_json::json;

use crate::support::{Reply, Script, Server, config, send};

/// A client that asks for a completion: what it has read when its connection ends.
fn asks(addr: SocketAddr) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 16\r\n\r\n{\"prompt\": \"hi\"}";
        crate::support::raw(addr, &[head.as_bytes()])
    })
}

/// The replies to a completion that is asked for whole, and to one that is streamed.
fn whole_and_stream(addr: SocketAddr) -> [JoinHandle<Reply>; 2] {
    [r#"{"prompt": "hi"}"#, r#"{"prompt": "hi", "stream": true}"#].map(|body| {
        std::thread::spawn(move || {
            let json = ("content-type", "application/json");
            send(addr, "POST", "/v1/completions", &[json], body.as_bytes())
        })
    })
}

#[test]
fn survival_48_a_drain_finishes_what_runs_and_takes_nothing_new() {
    let mut server = Server::new(config(), Script::hold("be"));
    let addr = server.addr;
    let [whole, stream] = whole_and_stream(addr);
    let mut idle = TcpStream::connect(addr).expect("connect");
    server.engine.wait_requests(2);
    server.signal_drain();
    while server.get("/ready").status == 200 {}
    assert_eq!(server.get("/health").json()["status"], "draining");
    assert_eq!(server.get("/health/live").status, 200);
    let late = server.complete(&json!({}));
    assert_eq!(late.error(), (503, "shutting_down".into(), String::new()));
    assert_eq!(late.header("retry-after"), Some("1"));
    server.engine.release("gun");
    assert_eq!(
        whole.join().expect("a reply").ok()["choices"][0]["text"],
        "begun"
    );
    let events = stream.join().expect("a reply").events();
    assert_eq!(
        events.last().expect("events")["choices"][0]["finish_reason"],
        "stop"
    );
    assert_eq!(server.ended(), Ended::Drained);
    // Idle connections are closed, and nobody listens.
    assert_eq!(idle.read(&mut [0; 1]).expect("the end"), 0);
    assert!(TcpStream::connect(addr).is_err());
}

#[test]
fn survival_48_the_second_signal_stops_at_once() {
    let mut server = Server::new(config(), Script::hold("be"));
    let client = asks(server.addr);
    server.engine.wait_requests(1);
    server.signal_drain();
    server.signal_stop();
    assert_eq!(server.ended(), Ended::Cut);
    server.engine.wait_cancelled(1);
    assert_eq!(client.join().expect("a client"), b"");
}

#[test]
fn a_drain_that_takes_too_long_is_cut() {
    let mut config = config();
    config.limits.drain = std::time::Duration::from_millis(100);
    let mut server = Server::new(config, Script::hold("be"));
    let [whole, stream] = whole_and_stream(server.addr);
    server.engine.wait_requests(2);
    server.signal_drain();
    assert_eq!(server.ended(), Ended::Cut);
    // Both are told.
    let whole = whole.join().expect("a reply");
    assert_eq!(whole.error(), (503, "shutting_down".into(), String::new()));
    let stream = stream.join().expect("a reply");
    assert_eq!(stream.status, 200);
    assert!(stream.text().contains(r#""code":"shutting_down""#));
    assert!(!stream.text().contains("[DONE]"));
}

#[test]
fn a_server_that_leaves_answers_what_it_accepted() {
    let mut server = Server::new(config(), Script::hold("be"));
    let addr = server.addr;
    // Before the other, so that it is accepted when the other's request has come in.
    let mut idle = TcpStream::connect(addr).expect("connect");
    let client = std::thread::spawn(move || {
        let json = ("content-type", "application/json");
        let body = br#"{"prompt": "hi"}"#;
        crate::support::send(addr, "POST", "/v1/completions", &[json], body)
    });
    server.engine.wait_requests(1);
    server.signal_leave();
    // Closed at once, while the other is still answered.
    assert_eq!(idle.read(&mut [0; 1]).expect("the end"), 0);
    server.engine.release("gun");
    let answer = client.join().expect("a reply").ok();
    assert_eq!(answer["choices"][0]["text"], "begun");
    assert_eq!(server.ended(), Ended::Left);
}

#[test]
fn a_server_that_leaves_waits_half_a_second_at_most() {
    let mut server = Server::new(config(), Script::hold("be"));
    let client = asks(server.addr);
    server.engine.wait_requests(1);
    server.signal_leave();
    assert_eq!(server.ended(), Ended::Left);
    server.engine.wait_cancelled(1);
    assert_eq!(client.join().expect("a client"), b"");
}
