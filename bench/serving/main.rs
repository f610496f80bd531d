// SPDX-License-Identifier: MIT OR Apache-2.0
//! Numbers of the serving core (issue "serving core"): what a streamed token and a short request cost the server's processor
//! with a device that takes no time, and what a warm prefix costs before its first token.
//!
//! `cargo bench -p metrale-server --bench serving -- MODEL.gguf`
//!
//! The clients are processes of their own, so that their share is not counted.

#![allow(clippy::print_stdout, reason = "a benchmark tells what it measured")]
#![allow(clippy::unwrap_used, reason = "a panic is how a benchmark fails")]

mod http;
mod warm;

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| a != "--bench")
        .collect();
    match arguments.first().map(String::as_str) {
        Some("client") => http::client(&arguments[1..]),
        Some(model) => {
            http::costs(model.as_ref());
            warm::prefix(model.as_ref());
        }
        None => println!("serving: no MODEL given, nothing measured"),
    }
}
