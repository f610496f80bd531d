// SPDX-License-Identifier: MIT OR Apache-2.0
//! Hugging Face configurations: ids, defaults, nesting.

#![allow(clippy::unwrap_used)] // helpers of tests

use metrale_config::hf::{HfFiles, from_hf};
use metrale_config::json::JsonLimits;
use metrale_config::{ConfigError, ModelConfig};
use metrale_core::{Elem, Scalar};

fn read(config: &str, generation: Option<&str>) -> Result<ModelConfig, ConfigError> {
    let files = HfFiles {
        config: config.as_bytes(),
        generation_config: generation.map(str::as_bytes),
        ..HfFiles::default()
    };
    from_hf(&files, &JsonLimits::default())
}

fn fixture(name: &str, file: &str) -> String {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/tiny");
    std::fs::read_to_string(format!("{root}/{name}/{file}")).unwrap()
}

#[test]
fn both_spellings_of_a_configuration_are_kept_as_they_are() {
    let new = read(&fixture("llama3-rope", "config.json"), None).unwrap();
    let old = read(&fixture("llama3-rope", "config.legacy.json"), None).unwrap();
    assert_eq!(new.dtype, Some(Elem::BF16));
    assert_eq!(
        old.dtype,
        Some(Elem::BF16),
        "torch_dtype is dtype's older name"
    );
    assert_eq!(
        new.flat["rope_parameters.rope_theta"],
        Scalar::Float(10_000.0)
    );
    assert_eq!(old.flat["rope_theta"], Scalar::Float(10_000.0));
    assert_eq!(old.flat["rope_scaling.low_freq_factor"], Scalar::Float(1.0));
    assert!(!old.flat.contains_key("rope_parameters.rope_theta"));
}

#[test]
fn end_tokens_of_both_files_are_joined_generation_first() {
    let config = r#"{"model_type": "x", "eos_token_id": 5, "bos_token_id": 1}"#;
    let generation = r#"{"eos_token_id": [7, 5, 7], "bos_token_id": 2, "pad_token_id": 9}"#;
    let both = read(config, Some(generation)).unwrap();
    assert_eq!(both.eos, [7, 5]);
    assert_eq!((both.bos, both.pad), (Some(1), Some(9)));
    assert_eq!(read(config, None).unwrap().eos, [5]);
    let none =
        r#"{"model_type": "x", "eos_token_id": -1, "pad_token_id": null, "bos_token_id": -1}"#;
    let none = read(none, None).unwrap();
    assert_eq!(
        (none.bos, none.eos.as_slice(), none.pad),
        (None, [].as_slice(), None)
    );
}

#[test]
fn a_multimodal_configuration_is_read_through_text_config() {
    let config = r#"{"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"],
        "eos_token_id": [1, 106], "text_config": {"model_type": "gemma3_text", "vocab_size": 300,
        "max_position_embeddings": 131072, "dtype": "bfloat16", "bos_token_id": 2}}"#;
    let config = read(config, None).unwrap();
    assert_eq!(config.architecture, "gemma3");
    assert_eq!(
        config.class.as_deref(),
        Some("Gemma3ForConditionalGeneration")
    );
    assert_eq!(
        (config.context_length, config.dtype),
        (Some(131_072), Some(Elem::BF16))
    );
    assert_eq!(
        (config.bos, config.eos.as_slice()),
        (Some(2), [1, 106].as_slice())
    );
    assert_eq!(config.flat["text_config.vocab_size"], Scalar::Int(300));
}

#[test]
fn generation_defaults_are_what_the_file_says_and_no_more() {
    let config = r#"{"model_type": "x"}"#;
    let defaults = |generation: &str| read(config, Some(generation)).unwrap().generation;
    let silent = defaults(r#"{"transformers_version": "5.24.0", "temperature": null}"#);
    assert_eq!(silent, metrale_config::GenerationDefaults::default());
    assert_eq!(silent.default_temperature(), None);

    let full = defaults(
        r#"{"do_sample": true, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0.0,
            "repetition_penalty": 1.05, "max_new_tokens": 2048}"#,
    );
    assert_eq!(full.default_temperature(), Some(0.7));
    assert_eq!(
        (full.top_p, full.top_k, full.min_p),
        (Some(0.8), Some(20), Some(0.0))
    );
    assert_eq!(
        (full.repetition_penalty, full.max_new_tokens),
        (Some(1.05), Some(2048))
    );

    let greedy = defaults(r#"{"do_sample": false, "temperature": 0.7, "top_k": -1}"#);
    assert_eq!(greedy.default_temperature(), Some(0.0));
    assert_eq!(greedy.top_k, Some(0));
}

#[test]
fn generation_defaults_out_of_range_are_refused_by_name() {
    let bad = [
        ("temperature", "-0.1"),
        ("temperature", "\"hot\""),
        ("temperature", "Infinity"),
        ("top_p", "1.5"),
        ("min_p", "-1"),
        ("top_k", "1.5"),
        ("repetition_penalty", "0"),
        ("max_new_tokens", "-1"),
        ("do_sample", "1"),
        ("eos_token_id", "[\"a\"]"),
    ];
    for (key, value) in bad {
        let generation = format!("{{\"{key}\": {value}}}");
        match read(r#"{"model_type": "x"}"#, Some(&generation)).unwrap_err() {
            ConfigError::Key {
                file, key: named, ..
            } => {
                assert_eq!(
                    (file.as_str(), named.as_str()),
                    ("generation_config.json", key)
                );
            }
            e => panic!("{key}: {e}"),
        }
    }
}
