// SPDX-License-Identifier: MIT OR Apache-2.0
//! SURVIVAL 1 to 4, 6, 8 and 9: bytes that no client of good will sends.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{Reply, Script, Server, config, raw, send};

const HEAD: &str = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n";

fn status(bytes: &[u8]) -> u16 {
    Reply::read(bytes).status
}

/// The server still answers, and nothing is left in the engine.
fn fine(server: &Server) {
    server.complete(&json!({})).ok();
}

#[test]
fn survival_01_headers_too_large_too_many_or_never_finished() {
    let server = Server::saying("x");
    let huge = format!(
        "GET /health HTTP/1.1\r\nhost: localhost\r\na: {}\r\n\r\n",
        "x".repeat(1 << 20)
    );
    assert_eq!(status(&raw(server.addr, &[huge.as_bytes()])), 431);
    let many = format!(
        "GET /health HTTP/1.1\r\nhost: localhost\r\n{}\r\n",
        "a: b\r\n".repeat(100_000)
    );
    assert_eq!(status(&raw(server.addr, &[many.as_bytes()])), 431);
    let path = format!(
        "GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "x".repeat(1 << 20)
    );
    assert!(matches!(
        status(&raw(server.addr, &[path.as_bytes()])),
        414 | 431
    ));
    // Never finished: closed by the server, soon.
    let start = Instant::now();
    raw(server.addr, &[b"GET /health HTTP/1.1\r\nhost: loc"]);
    raw(server.addr, &[b""]);
    assert!(start.elapsed() < Duration::from_secs(10));
    for garbage in [
        &b"\x16\x03\x01\x02\x00\x01\x00"[..],
        b"GET\r\n\r\n",
        b"\0\0\0\0\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
    ] {
        assert_eq!(
            status(&raw(server.addr, &[garbage])),
            400,
            "{}",
            garbage.escape_ascii()
        );
    }
    fine(&server);
}

#[test]
fn survival_02_chunked_bodies() {
    let server = Server::saying("x");
    let head = format!("{HEAD}transfer-encoding: chunked\r\n\r\n");
    let body = br#"{"prompt": "hi"}"#;
    let mut bytewise: Vec<u8> = head.clone().into_bytes();
    for byte in body {
        bytewise.extend_from_slice(b"1\r\n");
        bytewise.push(*byte);
        bytewise.extend_from_slice(b"\r\n");
    }
    bytewise.extend_from_slice(b"0\r\n\r\n");
    assert_eq!(status(&raw(server.addr, &[&bytewise])), 200);
    for chunk in [
        "ffffffffffffffffff\r\nx",
        "-1\r\nx",
        "zz\r\nx",
        "10000000000000000\r\nx",
    ] {
        let bytes = raw(server.addr, &[head.as_bytes(), chunk.as_bytes()]);
        assert!(matches!(status(&bytes), 400 | 413), "{chunk}");
    }
    // A body of both lengths.
    let both = format!("{HEAD}content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n");
    assert_eq!(status(&raw(server.addr, &[both.as_bytes()])), 400);
    // An endless chunk stream is cut at the limit.
    let mut config = config();
    config.limits.body_bytes = 1 << 20;
    let small = Server::new(config, Script::say("x"));
    let chunk = format!("10000\r\n{}\r\n", " ".repeat(0x10000)).repeat(32);
    let bytes = raw(small.addr, &[head.as_bytes(), chunk.as_bytes()]);
    assert_eq!(status(&bytes), 413);
    fine(&server);
}

#[test]
fn survival_03_slow_senders_and_idle_connections() {
    let mut config = config();
    config.limits.connections = 64;
    config.limits.header_timeout = Duration::from_secs(60);
    let server = Server::new(config, Script::say("x"));
    // A body that stops coming.
    let head = format!("{HEAD}content-length: 100\r\n\r\n{{");
    let reply = Reply::read(&raw(server.addr, &[head.as_bytes()]));
    assert_eq!(
        reply.error(),
        (408, "request_timeout".into(), String::new())
    );
    // Far more idle connections than places, which would idle for a minute: the newest request is served.
    let idle: Vec<TcpStream> = (0..400)
        .map(|_| TcpStream::connect(server.addr).expect("connect"))
        .collect();
    fine(&server);
    // And as many that have begun their headers and never end them.
    let begun: Vec<TcpStream> = (0..64)
        .map(|_| {
            let mut stream = TcpStream::connect(server.addr).expect("connect");
            stream.write_all(b"GET /hea").expect("write");
            stream
        })
        .collect();
    fine(&server);
    fine(&server);
    drop((idle, begun));
    fine(&server);
}

#[test]
fn survival_03_one_byte_at_a_time_is_cut_in_the_end() {
    let server = Server::saying("x");
    let mut stream = TcpStream::connect(server.addr).expect("connect");
    let head = format!("{HEAD}content-length: 1000\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("write");
    let start = Instant::now();
    while stream.write_all(b" ").is_ok() {
        std::thread::sleep(Duration::from_millis(50));
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "the body limit is 2 s"
        );
    }
    fine(&server);
}

#[test]
fn survival_04_bodies_too_large_compressed_or_cut() {
    let server = Server::saying("x");
    let lie = format!("{HEAD}content-length: 99999999999\r\n\r\n");
    let reply = Reply::read(&raw(server.addr, &[lie.as_bytes()]));
    assert_eq!(
        reply.error(),
        (413, "request_too_large".into(), String::new())
    );
    let large = format!("{{\"prompt\": \"{}\"}}", "a".repeat(17 << 20));
    let json = ("content-type", "application/json");
    let reply = send(
        server.addr,
        "POST",
        "/v1/completions",
        &[json],
        large.as_bytes(),
    );
    assert_eq!(reply.error().0, 413);
    for encoding in ["gzip", "br", "deflate", "gzip, gzip"] {
        let headers = [json, ("content-encoding", encoding)];
        let reply = send(
            server.addr,
            "POST",
            "/v1/completions",
            &headers,
            b"\x1f\x8b\x08",
        );
        assert_eq!(
            reply.error(),
            (415, "unsupported_content_encoding".into(), String::new())
        );
    }
    for length in ["-1", "1x", "0x10", "18446744073709551616", "5, 6"] {
        let bad = format!("{HEAD}content-length: {length}\r\n\r\n");
        assert_eq!(
            status(&raw(server.addr, &[bad.as_bytes()])),
            400,
            "{length}"
        );
    }
    // Closed inside the body.
    let mut stream = TcpStream::connect(server.addr).expect("connect");
    let cut = format!("{HEAD}content-length: 100\r\n\r\n{{\"prompt\":");
    stream.write_all(cut.as_bytes()).expect("write");
    drop(stream);
    assert!(server.engine.requests().is_empty());
    fine(&server);
}

#[test]
fn survival_04_many_bodies_at_once_are_bounded_together() {
    let mut config = config();
    config.limits.bodies_bytes = 1 << 20;
    config.limits.body_idle = Duration::from_secs(30);
    config.limits.body_timeout = Duration::from_secs(30);
    let server = Server::new(config, Script::say("x"));
    let head = format!("{HEAD}content-length: 700001\r\n\r\n");
    let padded = format!("{{\"prompt\": \"hi\"{}}}", " ".repeat(600_000));
    let json = ("content-type", "application/json");
    let post = || {
        send(
            server.addr,
            "POST",
            "/v1/completions",
            &[json],
            padded.as_bytes(),
        )
    };
    // Either of the two may be the one for which there is no room: then there is no first one, and it is tried again.
    let refused = (0..100).find_map(|_| {
        let mut first = TcpStream::connect(server.addr).expect("connect");
        first.write_all(head.as_bytes()).expect("write");
        let _ = first.write_all(&[b' '; 700_000]);
        (0..20).map(|_| post()).find(|reply| reply.status != 200)
    });
    let refused = refused.map(|reply| reply.error());
    assert_eq!(
        refused,
        Some((429, "rate_limit_exceeded".into(), String::new()))
    );
    fine(&server);
    assert!((0..1000).any(|_| post().status == 200));
}

#[test]
fn survival_06_a_reader_that_never_reads_is_cut() {
    // 250,000 events of some 200 bytes: more than any socket buffer holds.
    let server = Server::new(config(), Script::Say(vec![97; 250_000]));
    let mut card = crate::support::served(server.engine.clone());
    card.card.max_model_len = 1_000_000;
    server.app.slot.ready(card);
    let body = br#"{"prompt": "hi", "stream": true, "max_tokens": 500000}"#;
    let head = format!("{HEAD}content-length: {}\r\n\r\n", body.len());
    let mut stream = TcpStream::connect(server.addr).expect("connect");
    stream.write_all(head.as_bytes()).expect("write");
    stream.write_all(body).expect("write");
    // The engine is done; the server drops the request when the connection is cut, which is when it is cancelled.
    server.engine.wait_requests(1);
    server.engine.follow(Script::say("x"));
    server.engine.wait_cancelled(1);
    fine(&server);
    // What comes now is the rest of the buffers and then the end, long before the last event.
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert!(!rest.ends_with(b"[DONE]\n\n\r\n0\r\n\r\n"));
}

#[test]
fn survival_06_a_reader_of_a_few_bytes_at_a_time_is_cut() {
    let server = Server::new(config(), Script::Say(vec![97; 250_000]));
    let mut card = crate::support::served(server.engine.clone());
    card.card.max_model_len = 1_000_000;
    server.app.slot.ready(card);
    let body = br#"{"prompt": "hi", "stream": true, "max_tokens": 500000}"#;
    let head = format!("{HEAD}content-length: {}\r\n\r\n", body.len());
    let mut stream = TcpStream::connect(server.addr).expect("connect");
    stream.write_all(head.as_bytes()).expect("write");
    stream.write_all(body).expect("write");
    // 2 kB/s, where the limit is 16 KiB in 400 ms.
    let start = Instant::now();
    while server.engine.cancelled() == 0 {
        let _ = stream.read(&mut [0; 100]);
        std::thread::sleep(Duration::from_millis(50));
        assert!(start.elapsed() < Duration::from_secs(10));
    }
}

#[test]
fn survival_03_a_full_house_lets_the_next_one_in_when_a_request_ends() {
    let mut config = config();
    config.limits.connections = 2;
    config.limits.header_timeout = Duration::from_secs(60);
    let server = Server::new(config, Script::hold("a"));
    let head = HEAD.replace("connection: close\r\n", "");
    let request = format!("{head}content-length: 16\r\n\r\n{{\"prompt\": \"hi\"}}");
    let mut held: Vec<TcpStream> = (0..2)
        .map(|_| TcpStream::connect(server.addr).expect("connect"))
        .collect();
    for stream in &mut held {
        stream.write_all(request.as_bytes()).expect("write");
    }
    server.engine.wait_requests(2);
    std::thread::scope(|scope| {
        let third = scope.spawn(|| server.get("/health"));
        server.engine.release("b");
        assert_eq!(third.join().expect("a reply").status, 200);
    });
    // Its place came from one of the two, whose answer was complete.
    let mut answer = [0; 12];
    for stream in &mut held {
        stream.read_exact(&mut answer).expect("an answer");
        assert_eq!(&answer, b"HTTP/1.1 200");
    }
}

#[test]
fn survival_08_text_that_is_no_text() {
    let server = Server::saying("x");
    let json = ("content-type", "application/json");
    let post = |body: &[u8]| send(server.addr, "POST", "/v1/completions", &[json], body);
    let bad: [&[u8]; 5] = [
        b"{\"prompt\": \"\xff\xfe\"}",
        b"{\"prompt\": \"\\ud800\"}",
        b"{\"prompt\": \"\\udc00\\ud800\"}",
        b"{\"prompt\": \"a\0b\"}",
        b"\xef\xbb\xbf{\"prompt\": \"a\"}",
    ];
    for body in bad {
        assert_eq!(
            post(body).error().1,
            "invalid_json",
            "{}",
            body.escape_ascii()
        );
    }
    post(b"{\"prompt\": \"a\\u0000b\\ufffd\"}").ok();
    assert_eq!(
        server.engine.request().prompt.to_vec(),
        [256, 97, 0, 98, 0xef, 0xbf, 0xbd]
    );
    let long = format!("{{\"prompt\": \"{}\"}}", "a".repeat(10 << 20));
    assert_eq!(post(long.as_bytes()).error().1, "context_length_exceeded");
    let chat = json!({"messages": [{"role": "user", "content": "a".repeat(10 << 20)}]});
    assert_eq!(
        server.post("/v1/chat/completions", &chat).error().1,
        "context_length_exceeded"
    );
    fine(&server);
}

#[test]
fn survival_09_json_nested_doubled_and_out_of_range() {
    let server = Server::saying("x");
    let json = ("content-type", "application/json");
    let code = |body: String| {
        let reply = send(
            server.addr,
            "POST",
            "/v1/chat/completions",
            &[json],
            body.as_bytes(),
        );
        reply.error().1
    };
    let nest = |open: &str, close: &str| {
        format!(
            "{{\"metadata\": {}1{}}}",
            open.repeat(100_000),
            close.repeat(100_000)
        )
    };
    assert_eq!(code(nest("[", "]")), "nested_too_deep");
    assert_eq!(code(nest("{\"a\":", "}")), "nested_too_deep");
    assert_eq!(code("{\"n\": 1, \"n\": 2}".into()), "duplicate_key");
    assert_eq!(code("{\"temperature\": 1e400}".into()), "invalid_json");
    let message = r#"{"role":"user","content":""}"#;
    let many = format!(
        "{{\"messages\": [{}{message}]}}",
        format!("{message},").repeat(200_000)
    );
    assert_eq!(code(many), "invalid_value");
    let values = format!("{{\"prompt\": [{}1]}}", "1,".repeat(2_000_000));
    assert_eq!(code(values), "too_many_values");
    // Below the limit of messages, beyond the context.
    let many = format!(
        "{{\"messages\": [{}{message}]}}",
        format!("{message},").repeat(90_000)
    );
    assert_eq!(code(many), "context_length_exceeded");
    fine(&server);
}
