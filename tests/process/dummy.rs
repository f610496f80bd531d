// SPDX-License-Identifier: MIT OR Apache-2.0
//! `--load-format dummy`: a model from a config.json alone, served by token ids.

use std::path::PathBuf;

use serde_json::json;

use crate::checkpoints::fixture;
use crate::met::{Met, folder, run};

/// A folder with the configuration of a fixture and nothing else.
fn bare() -> PathBuf {
    let to = folder("bare");
    std::fs::copy(fixture("llama").join("config.json"), to.join("config.json")).unwrap();
    to
}

#[test]
fn token_ids_are_answered_by_token_ids_and_text_is_refused_by_name() {
    let flags = ["--load-format", "dummy", "--kv-cache-bytes", "2000000"];
    let met = Met::ready(&bare(), &flags);
    let ask = json!({"prompt": [5, 6, 7], "max_tokens": 6, "temperature": 0, "ignore_eos": true});
    let first = met.post("/v1/completions", &ask).ok();
    let text = first["choices"][0]["text"].as_str().unwrap();
    let ids: Vec<u32> = text
        .split_whitespace()
        .map(|id| id.parse().unwrap())
        .collect();
    assert_eq!(ids.len(), 6, "{text}");
    assert!(ids.iter().all(|id| *id < 320));
    assert_eq!(
        met.post("/v1/completions", &ask).ok()["choices"],
        first["choices"]
    );
    let other = Met::ready(&bare(), &flags);
    let again = other.post("/v1/completions", &ask).ok();
    assert_eq!(again["choices"], first["choices"], "made of the same seed");
    assert_eq!(again["system_fingerprint"], first["system_fingerprint"]);

    let said = met.post(
        "/v1/completions",
        &json!({"prompt": "text", "max_tokens": 1}),
    );
    assert_eq!(said.status, 400);
    assert!(
        said.text.contains("no tokenizer") && said.text.contains("token ids"),
        "{}",
        said.text
    );
    let chat = json!({"messages": [{"role": "user", "content": "hi"}]});
    let said = met.post("/v1/chat/completions", &chat);
    assert_eq!(said.status, 400);
    assert!(said.text.contains("chat template"), "{}", said.text);
    let said = met.post("/tokenize", &json!({"prompt": "text"}));
    assert_eq!(said.status, 400, "{}", said.text);
}

#[test]
fn what_is_missing_without_it_is_told() {
    let bare = bare();
    let bare = bare.to_str().unwrap();
    let (code, _, err) = run(&["run", bare, "hello"]);
    assert_eq!(code, 3);
    assert!(err.contains("tokenizer.json"), "{err}");
    let (code, _, err) = run(&["bench", bare, "--prompts", "64"]);
    assert_eq!(code, 3);
    assert!(
        err.contains("tokenizer.json") || err.contains("--load-format dummy"),
        "{err}"
    );
    let (code, _, err) = run(&["run", bare, "hello", "--load-format", "dummy"]);
    assert_eq!(code, 2);
    assert!(
        err.contains("token ids") || err.contains("chat template"),
        "{err}"
    );
    // A quantized file's formats cannot be made.
    let gguf = fixture("llama-gguf-q8_0/model.gguf");
    let gguf = gguf.to_str().unwrap();
    let (code, _, err) = run(&["bench", gguf, "--load-format", "dummy", "--prompts", "64"]);
    assert_eq!(code, 3, "{err}");
    assert!(err.contains("q8_0") && err.contains("bfloat16"), "{err}");
}

#[test]
fn a_configuration_of_mets_own_needs_no_file() {
    let (code, out, err) = run(&["circuit", "plan", "qwen3-8b", "--hardware", "hopper"]);
    assert_eq!(code, 0, "{err}");
    assert!(
        out.contains("qwen3") && out.contains("class hopper"),
        "{out}"
    );
    let (code, _, err) = run(&["serve", "qwen3-0.6b", "--port", "0"]);
    assert_eq!(code, 3);
    assert!(err.contains("tokenizer.json"), "{err}");
}
