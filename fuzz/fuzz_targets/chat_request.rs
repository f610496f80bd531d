// SPDX-License-Identifier: MIT OR Apache-2.0
#![no_main]

#[path = "../entry/chat_request.rs"]
mod entry;

libfuzzer_sys::fuzz_target!(|data: &[u8]| entry::run(data));
