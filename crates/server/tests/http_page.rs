// SPDX-License-Identifier: MIT OR Apache-2.0
//! `docs/http.md` is what the code's tables say.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::fs;

use metrale_server::api::page::reference;

#[test]
fn the_page_is_that_of_the_tables() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/http.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(path, reference()).unwrap();
    }
    assert_eq!(
        fs::read_to_string(path).unwrap_or_default(),
        reference(),
        "docs/http.md is old: UPDATE_DOCS=1 cargo test -p metrale-server --test http_page"
    );
}
