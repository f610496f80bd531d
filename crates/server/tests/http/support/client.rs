// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client that shows what is on the wire.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// A response.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

/// A request on a connection of its own; a `host` header among `headers` replaces the usual one.
pub(crate) fn send(
    addr: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Reply {
    let mut head = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
    if headers.iter().all(|(name, _)| *name != "host") {
        head += &format!("host: {addr}\r\n");
    }
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += &format!("content-length: {}\r\n\r\n", body.len());
    let bytes = raw(addr, &[head.as_bytes(), body]);
    Reply::read(&bytes)
}

/// Sends bytes as they are and reads until the server closes.
pub(crate) fn raw(addr: SocketAddr, pieces: &[&[u8]]) -> Vec<u8> {
    let mut stream = TcpStream::connect(addr).expect("connect");
    let limit = Duration::from_secs(20);
    stream.set_read_timeout(Some(limit)).expect("timeout");
    for piece in pieces {
        // The server may close before it has read everything.
        if stream.write_all(piece).is_err() {
            break;
        }
    }
    let mut bytes = Vec::new();
    // A reset after the response still leaves what was read.
    if let Err(e) = stream.read_to_end(&mut bytes) {
        assert_ne!(
            e.kind(),
            std::io::ErrorKind::WouldBlock,
            "no answer for {limit:?}"
        );
    }
    bytes
}

impl Reply {
    /// Parses a response.
    pub(crate) fn read(bytes: &[u8]) -> Reply {
        let end = bytes
            .windows(4)
            .position(|w| w == b"\r\n\r\n")
            .unwrap_or_else(|| panic!("no response: {}", bytes.escape_ascii()));
        let head = std::str::from_utf8(&bytes[..end]).expect("text");
        let mut lines = head.split("\r\n");
        let status = lines.next().and_then(|l| l.get(9..12)).expect("status");
        let headers: Vec<(String, String)> = lines
            .filter_map(|l| l.split_once(": "))
            .map(|(n, v)| (n.to_ascii_lowercase(), v.to_owned()))
            .collect();
        let body = &bytes[end + 4..];
        let chunked = headers.iter().any(|(n, _)| n == "transfer-encoding");
        Reply {
            status: status.parse().expect("a number"),
            headers,
            body: if chunked {
                unchunk(body)
            } else {
                body.to_vec()
            },
        }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(n, _)| n == name);
        found.map(|(_, v)| v.as_str())
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("utf-8")
    }

    /// The body as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    /// The body as JSON, which is a success.
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        self.json()
    }

    /// Status and `code` of the error, and the field it names.
    pub(crate) fn error(&self) -> (u16, String, String) {
        let json = self.json();
        let text = |name: &str| json["error"][name].as_str().unwrap_or("").to_owned();
        (self.status, text("code"), text("param"))
    }

    /// The events of a stream, without `[DONE]`, which must come last.
    pub(crate) fn events(&self) -> Vec<Value> {
        let mut events = self.all_events();
        assert_eq!(events.pop(), Some(Value::from("[DONE]")), "{}", self.text());
        events
    }

    /// The events of a stream as they are.
    pub(crate) fn all_events(&self) -> Vec<Value> {
        assert_eq!(
            self.header("content-type"),
            Some("text/event-stream"),
            "{}",
            self.text()
        );
        let data = self
            .text()
            .split("\n\n")
            .filter_map(|e| e.strip_prefix("data: "));
        data.map(|d| match d {
            "[DONE]" => Value::from(d),
            json => serde_json::from_str(json).expect("JSON"),
        })
        .collect()
    }
}

fn unchunk(mut bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(at) = bytes.windows(2).position(|w| w == b"\r\n") {
        let size = std::str::from_utf8(&bytes[..at]).expect("a size");
        let size = usize::from_str_radix(size, 16).expect("hexadecimal");
        let rest = &bytes[at + 2..];
        out.extend_from_slice(&rest[..size.min(rest.len())]);
        bytes = rest.get(size + 2..).unwrap_or_default();
    }
    out
}
