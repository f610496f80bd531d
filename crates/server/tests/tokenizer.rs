// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tokenizer against llama.cpp's ids on a real vocabulary (SmolLM2's, from its GGUF metadata).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

mod smollm2;

use std::path::Path;

use metrale_server::text_face::Piece;
use metrale_server::tokenizer::{Specials, Tokenizer};
use proptest::prelude::*;
use serde_json::Value;

fn cases() -> Vec<Value> {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/tokenizer_cases.json");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let all: Value = serde_json::from_str(&text).unwrap();
    all["cases"].as_array().unwrap().clone()
}

fn hex(s: &str) -> Vec<u8> {
    (0..s.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&s[i..i + 2], 16).unwrap())
        .collect()
}

fn ids(case: &Value, field: &str) -> Vec<u32> {
    case["smollm2"][field]
        .as_array()
        .unwrap()
        .iter()
        .map(|v| v.as_u64().unwrap() as u32)
        .collect()
}

const MODES: [(&str, Specials, bool); 4] = [
    ("plain", Specials::AsText, false),
    ("plain_add_special", Specials::AsText, true),
    ("parse_special", Specials::Parse, false),
    ("parse_special_add_special", Specials::Parse, true),
];

#[test]
fn ids_equal_llama_cpp() {
    let tokenizer = smollm2::tokenizer();
    let mut texts = 0;
    for case in cases().iter().filter(|c| c["text"].is_string()) {
        let text = case["text"].as_str().unwrap();
        for (field, specials, frame) in MODES {
            assert_eq!(
                tokenizer.encode(text, specials, frame).unwrap(),
                ids(case, field),
                "{} {field}",
                case["name"]
            );
        }
        texts += 1;
    }
    assert_eq!(texts, 32);
}

#[test]
fn ids_give_the_bytes_back() {
    let tokenizer = smollm2::tokenizer();
    for case in cases().iter().filter(|c| c["text"].is_string()) {
        for (field, ..) in MODES {
            let bytes: Vec<u8> = ids(case, field)
                .iter()
                .flat_map(|&id| tokenizer.token_bytes(id).unwrap().to_vec())
                .collect();
            assert_eq!(
                bytes,
                hex(case["hex"].as_str().unwrap()),
                "{} {field}",
                case["name"]
            );
        }
    }
}

/// Bytes that are part of no character are one U+FFFD each, as llama.cpp has it. Two forms differ, by choice: it takes
/// overlong forms and surrogates for characters, which UTF-8 forbids.
#[test]
fn survival_08_invalid_utf8_is_replaced_byte_by_byte() {
    let tokenizer = smollm2::tokenizer();
    let mut seen = 0;
    for case in cases().iter().filter(|c| !c["text"].is_string()) {
        let got = tokenizer
            .encode_bytes(&hex(case["hex"].as_str().unwrap()), Specials::AsText, false)
            .unwrap();
        let expected = match case["name"].as_str().unwrap() {
            "invalid_overlong" => vec![81, 24211, 24211, 82],
            "invalid_surrogate" => vec![24211, 24211, 24211, 104],
            _ => ids(case, "plain"),
        };
        assert_eq!(got, expected, "{}", case["name"]);
        seen += 1;
    }
    assert_eq!(seen, 6);
}

#[test]
fn survival_20_control_tokens_in_user_text_are_text() {
    let tokenizer = smollm2::tokenizer();
    let controls: Vec<String> = tokenizer.control_texts().map(str::to_owned).collect();
    assert!(controls.iter().any(|c| c == "<|im_end|>"), "{controls:?}");
    for text in &controls {
        let plain = tokenizer.encode(text, Specials::AsText, false).unwrap();
        assert!(
            plain.iter().all(|&id| !tokenizer.is_control(id)),
            "{text}: {plain:?}"
        );
        assert_eq!(
            tokenizer.encode(text, Specials::Parse, false).unwrap(),
            [tokenizer.token_id(text).unwrap()]
        );
    }
}

/// Takes hours where each match costs the whole text.
#[test]
fn many_control_tokens_take_linear_time() {
    let tokenizer = smollm2::tokenizer();
    let text = "<|im_end|>x".repeat(100_000);
    let ids = tokenizer.encode(&text, Specials::Parse, false).unwrap();
    assert_eq!(ids.len(), 200_000);
    assert_eq!(ids[..2], [2, 104]);
}

/// A cut keeps a control token from being matched and changes nothing else: words are still found across it.
#[test]
fn a_cut_parts_control_tokens_and_no_words() {
    let tokenizer = smollm2::tokenizer();
    let cut = |s: &str| {
        let pieces: Vec<Piece> = s.split('·').map(Piece::template).collect();
        tokenizer.encode_prompt(&pieces).unwrap()
    };
    let plain = |s: &str| tokenizer.encode(s, Specials::AsText, false).unwrap();
    assert_eq!(cut("<|im_start|>"), [1]);
    assert_eq!(cut("<·|im_start|>"), plain("<|im_start|>"));
    assert_eq!(cut("Hel·lo, wor·ld!"), plain("Hello, world!"));
    let content = [
        Piece::template("user\n"),
        Piece::content("\n<|im_end|>"),
        Piece::template("<|im_end|>"),
    ];
    let mut expected = plain("user\n\n<|im_end|>");
    expected.push(2);
    assert_eq!(tokenizer.encode_prompt(&content).unwrap(), expected);
}

#[test]
fn roles_come_from_the_header() {
    let t = smollm2::tokenizer();
    assert_eq!(
        (t.vocab_size(), t.bos(), t.eos(), t.padding(), t.unknown()),
        (49152, Some(1), Some(2), Some(2), Some(0))
    );
    assert_eq!(t.ends(), [2]);
    assert_eq!(t.token_text(2), Some("<|im_end|>"));
    assert_eq!(t.token_bytes(49152), None);
    assert!(t.decode(&[49152], true).is_err());
    assert_eq!(
        t.decode(&[1, 19556, 28, 905, 17, 2], true).unwrap(),
        "Hello, world!"
    );
}

/// The same vocabulary as tokenizer.json gives the same ids: the two readers agree.
#[test]
fn tokenizer_json_agrees_with_the_header() {
    let header = smollm2::tokenizer();
    let json = smollm2::tokenizer_json();
    let config = br#"{"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}}"#;
    let ours = Tokenizer::from_json(json.as_bytes(), Some(config)).unwrap();
    assert_eq!(
        (ours.bos(), ours.eos(), ours.vocab_size()),
        (Some(1), Some(2), 49152)
    );
    for case in cases().iter().filter(|c| c["text"].is_string()) {
        for (field, specials, frame) in MODES {
            let text = case["text"].as_str().unwrap();
            assert_eq!(
                ours.encode(text, specials, frame).unwrap(),
                ids(case, field),
                "{} {field}",
                case["name"]
            );
        }
    }
    for id in 0..49152 {
        assert_eq!(ours.token_bytes(id), header.token_bytes(id), "{id}");
        assert_eq!(ours.is_control(id), header.is_control(id), "{id}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_comes_back(text in "\\PC{0,40}|[ \\n\\t<|>a-z0-9é\u{0}]{0,60}") {
        let tokenizer = smollm2::tokenizer();
        for specials in [Specials::AsText, Specials::Parse] {
            let ids = tokenizer.encode(&text, specials, false).unwrap();
            prop_assert_eq!(tokenizer.decode(&ids, false).unwrap(), text.clone());
        }
    }

    #[test]
    fn any_bytes_are_taken(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        let tokenizer = smollm2::tokenizer();
        let ids = tokenizer.encode_bytes(&bytes, Specials::Parse, true).unwrap();
        prop_assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
    }
}

/// A second vocabulary, read from tokenizer.json, against Hugging Face's own ids.
#[test]
fn ids_equal_hugging_face_on_the_tiny_tokenizer() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests");
    let read =
        |name: &str| std::fs::read(root.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let config = read("fixtures/tiny/tokenizer/tokenizer_config.json");
    let tokenizer = Tokenizer::from_json(
        &read("fixtures/tiny/tokenizer/tokenizer.json"),
        Some(&config),
    )
    .unwrap();
    let goldens: Value = serde_json::from_slice(&read("goldens/tiny_tokenizer.json")).unwrap();
    let cases = goldens["cases"].as_array().unwrap();
    assert!(cases.len() > 10);
    for case in cases {
        let text = case["text"].as_str().unwrap();
        for (field, specials) in [("ids", Specials::Parse), ("ids_plain", Specials::AsText)] {
            let expected: Vec<u32> = serde_json::from_value(case[field].clone()).unwrap();
            assert_eq!(
                tokenizer.encode(text, specials, false).unwrap(),
                expected,
                "{text:?} {field}"
            );
        }
    }
}
