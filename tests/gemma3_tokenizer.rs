// SPDX-License-Identifier: MIT OR Apache-2.0
//! The SentencePiece tokenizer of a real GGUF (Gemma 3 270M) against llama.cpp's ids (tests/goldens/README.md).
//!
//! Runs where the file is: `METRALE_TEST_GEMMA3`, or what `met pull gemma3-270m` fetched.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use metrale_model_weights::Checkpoint;
use metrale_server::cli::{Console, Machine};
use metrale_server::recipe;
use metrale_server::tokenizer::{Specials, Tokenizer};
use serde_json::Value;

const MODES: [(&str, Specials, bool); 4] = [
    ("plain", Specials::AsText, false),
    ("plain_add_special", Specials::AsText, true),
    ("parse_special", Specials::Parse, false),
    ("parse_special_add_special", Specials::Parse, true),
];

fn file() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("METRALE_TEST_GEMMA3").filter(|v| !v.is_empty()) {
        let path = PathBuf::from(path);
        assert!(
            path.is_file(),
            "METRALE_TEST_GEMMA3: no file {}",
            path.display()
        );
        return Some(path);
    }
    let console = Arc::new(Console::standard(false));
    let machine = Machine::new(std::env::vars_os(), console).unwrap();
    let recipe = recipe::find("gemma3-270m").unwrap().unwrap();
    recipe
        .local(&machine.home(), &machine.hub().unwrap())
        .unwrap()
}

#[test]
fn ids_equal_llama_cpp() {
    let Some(path) = file() else {
        println!("gemma3-270m is not on this machine: nothing to compare");
        return;
    };
    let checkpoint = Checkpoint::open(&path).unwrap();
    let tokenizer = Tokenizer::from_checkpoint(&checkpoint).unwrap();
    assert_eq!(tokenizer.vocab_size(), 262_144);
    let goldens =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/tokenizer_cases.json");
    let all: Value = serde_json::from_slice(&std::fs::read(goldens).unwrap()).unwrap();
    let mut texts = 0;
    for case in all["cases"].as_array().unwrap() {
        let Some(text) = case["text"].as_str() else {
            continue;
        };
        for (field, specials, frame) in MODES {
            let want: Vec<u32> = case["gemma3_270m"][field]
                .as_array()
                .unwrap()
                .iter()
                .map(|v| v.as_u64().unwrap() as u32)
                .collect();
            let got = tokenizer.encode(text, specials, frame).unwrap();
            assert_eq!(got, want, "{} {field}", case["name"]);
        }
        // `▁` in a text is a space in this format; every other text comes back.
        let ids = tokenizer.encode(text, Specials::AsText, false).unwrap();
        let back = tokenizer.decode(&ids, true).unwrap();
        assert_eq!(back, text.replace('\u{2581}', " "), "{}", case["name"]);
        texts += 1;
    }
    assert_eq!(texts, 32);
}
