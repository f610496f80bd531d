// SPDX-License-Identifier: MIT OR Apache-2.0
//! A stand-in for the hub: HTTP/1.1 on 127.0.0.1, one request a connection, answers made by a closure.

#![allow(dead_code, reason = "each test binary uses its part of this module")]

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, v)| v.as_str())
    }

    /// The first byte of `Range: bytes=N-`.
    pub(crate) fn from(&self) -> u64 {
        self.header("range").map_or(0, |r| {
            r.trim_start_matches("bytes=")
                .trim_end_matches('-')
                .parse()
                .unwrap()
        })
    }
}

/// An answer. `Content-Length` is the body's unless given; `cut` ends the connection after so many bytes of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) cut: Option<usize>,
    /// Keep the connection open after the cut, sending nothing.
    pub(crate) stall: bool,
}

impl Answer {
    pub(crate) fn status(status: u16) -> Self {
        Self {
            status,
            ..Self::default()
        }
    }
}

/// A running server; requests are kept.
pub(crate) struct Server {
    pub(crate) url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Server {
    pub(crate) fn start(answer: impl Fn(&Seen) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (kept, answer) = (Arc::clone(&seen), Arc::new(answer));
        // The thread ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (kept, answer) = (Arc::clone(&kept), Arc::clone(&answer));
                std::thread::spawn(move || serve(&stream, &kept, answer.as_ref()));
            }
        });
        Self { url, seen }
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn count(&self, method: &str) -> usize {
        self.seen().iter().filter(|s| s.method == method).count()
    }
}

fn serve(stream: &TcpStream, kept: &Mutex<Vec<Seen>>, answer: &dyn Fn(&Seen) -> Answer) {
    let mut lines = BufReader::new(stream).lines();
    let Some(Ok(first)) = lines.next() else {
        return;
    };
    let mut words = first.split(' ').map(str::to_owned);
    let (method, path) = (
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default(),
    );
    let headers = lines
        .map_while(Result::ok)
        .take_while(|l| !l.is_empty())
        .filter_map(|l| {
            l.split_once(": ")
                .map(|(n, v)| (n.to_ascii_lowercase(), v.to_owned()))
        })
        .collect();
    let request = Seen {
        method,
        path,
        headers,
    };
    kept.lock().unwrap().push(request.clone());
    let answer = answer(&request);
    let mut head = format!("HTTP/1.1 {} X\r\nConnection: close\r\n", answer.status);
    if !answer.headers.iter().any(|(n, _)| *n == "Content-Length") {
        head += &format!("Content-Length: {}\r\n", answer.body.len());
    }
    for (name, value) in &answer.headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += "\r\n";
    let body = match (request.method.as_str(), answer.cut) {
        ("HEAD", _) => &[][..],
        (_, Some(cut)) => &answer.body[..cut.min(answer.body.len())],
        _ => &answer.body[..],
    };
    let mut stream = stream;
    // A client that goes away is one of the cases.
    let _ = stream
        .write_all(head.as_bytes())
        .and_then(|()| stream.write_all(body))
        .and_then(|()| stream.flush());
    if answer.stall {
        std::thread::park();
    }
}
