// SPDX-License-Identifier: MIT OR Apache-2.0
//! SmolLM2's GGUF metadata, from the fixture.

use std::io::{Cursor, Read};
use std::sync::OnceLock;

use metrale_config::gguf::{GgufHeader, GgufLimits};
use metrale_server::tokenizer::Tokenizer;

const ARCHIVE: &[u8] = include_bytes!("../fixtures/smollm2/metadata.gguf.zip");

/// The header.
pub(crate) fn header() -> &'static GgufHeader {
    static HEADER: OnceLock<GgufHeader> = OnceLock::new();
    HEADER.get_or_init(|| {
        let mut archive = zip::ZipArchive::new(Cursor::new(ARCHIVE)).unwrap();
        let mut bytes = Vec::new();
        archive
            .by_name("metadata.gguf")
            .unwrap()
            .read_to_end(&mut bytes)
            .unwrap();
        GgufHeader::from_bytes(&bytes, bytes.len() as u64, &GgufLimits::default()).unwrap()
    })
}

/// The tokenizer, built once a process.
pub(crate) fn tokenizer() -> &'static Tokenizer {
    static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
    TOKENIZER.get_or_init(|| Tokenizer::from_gguf(header()).unwrap())
}

/// The same vocabulary written as tokenizer.json.
#[allow(dead_code, reason = "each test binary uses its part of this module")]
pub(crate) fn tokenizer_json() -> String {
    let strings = |key: &str| {
        header()
            .get(key)
            .unwrap()
            .as_strings()
            .unwrap()
            .iter()
            .map(str::to_owned)
    };
    let tokens: Vec<String> = strings("tokenizer.ggml.tokens").collect();
    let types = header()
        .get("tokenizer.ggml.token_type")
        .unwrap()
        .as_array()
        .unwrap();
    let added: Vec<serde_json::Value> = tokens
        .iter()
        .enumerate()
        .filter(|(id, _)| types.get(*id).unwrap().as_u64() == Some(3))
        .map(|(id, text)| {
            serde_json::json!({"id": id, "content": text, "special": true, "normalized": false,
                "single_word": false, "lstrip": false, "rstrip": false})
        })
        .collect();
    let vocab: serde_json::Map<String, serde_json::Value> = tokens
        .iter()
        .enumerate()
        .map(|(id, t)| (t.clone(), id.into()))
        .collect();
    let merges: Vec<String> = strings("tokenizer.ggml.merges").collect();
    serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": added,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": true},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}]},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": merges}
    })
    .to_string()
}
