// SPDX-License-Identifier: MIT OR Apache-2.0
//! SURVIVAL 38: configurations that cannot be served are refused by name, with the reason and the remedy.

use std::collections::BTreeSet;

use metrale_circuit::{ConfigInput, Refusal, Source};

use crate::common::{TINY_LLAMA, flat, gguf, hf, library, scalar};

/// The refusal of the tiny llama with one key changed.
fn with(key: &str, value: &str) -> Refusal {
    let mut config = flat(TINY_LLAMA);
    config.insert(key.to_owned(), scalar(value));
    hf(&config).unwrap_err()
}

/// The message names the key, the reason and the remedy.
fn says(refusal: &Refusal, words: &[&str]) {
    let message = refusal.to_string();
    for word in words {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
}

#[test]
fn survival_38_counts_of_zero_and_beyond_reason() {
    for (key, value) in [
        ("num_attention_heads", "0"),
        ("num_key_value_heads", "0"),
        ("head_dim", "0"),
        ("num_hidden_layers", "0"),
        ("num_hidden_layers", "1000000000"),
        ("hidden_size", "0"),
        ("hidden_size", "9223372036854775807"),
        ("intermediate_size", "1000000000000"),
        ("vocab_size", "0"),
        ("vocab_size", "4294967296"),
        ("max_position_embeddings", "0"),
        ("rms_norm_eps", "-1.0"),
        ("rope_parameters.rope_theta", "0.0"),
    ] {
        let refusal = with(key, value);
        assert!(
            matches!(refusal, Refusal::OutOfRange { .. }),
            "{key} = {value}: {refusal}"
        );
        says(&refusal, &[key, "at least", "at most", "correct it"]);
    }
}

#[test]
fn values_of_the_wrong_type() {
    for (key, value, wanted) in [
        ("num_attention_heads", "-4", "a whole number"),
        ("num_attention_heads", "4.5", "a whole number"),
        ("num_attention_heads", "[4, 4]", "a whole number"),
        ("hidden_size", "\"64\"", "a whole number"),
        ("rms_norm_eps", "\"NaN\"", "a number"),
        ("attention_bias", "1", "true or false"),
        ("rope_parameters.rope_type", "7", "text"),
    ] {
        let refusal = with(key, value);
        assert!(
            matches!(refusal, Refusal::WrongType { .. }),
            "{key} = {value}: {refusal}"
        );
        says(&refusal, &[key, wanted, "correct it"]);
    }
    // JSON writers emit 4.0 for 4.
    let mut config = flat(TINY_LLAMA);
    config.insert("num_attention_heads".into(), scalar("4.0"));
    assert_eq!(hf(&config).unwrap().count("heads"), Some(4));
}

#[test]
fn values_that_contradict_each_other() {
    let refusal = with("num_key_value_heads", "3");
    assert!(matches!(&refusal, Refusal::Inconsistent { key, .. } if key == "num_key_value_heads"));
    says(
        &refusal,
        &["heads = 4", "kv_heads = 3", "heads % kv_heads == 0"],
    );
    says(&with("head_dim", "15"), &["rot = 15", "pairs of columns"]);
    // Without head_dim it is hidden / heads, which must be whole.
    let mut config = flat(TINY_LLAMA);
    config.remove("head_dim");
    assert_eq!(hf(&config).unwrap().count("head_dim"), Some(16));
    config.insert("hidden_size".into(), scalar("66"));
    let refusal = hf(&config).unwrap_err();
    assert!(matches!(&refusal, Refusal::Inconsistent { key, .. } if key == "head_dim"));
    says(&refusal, &["hidden = 66", "heads = 4", "no whole number"]);
}

#[test]
fn sizes_that_overflow_are_refused_before_anything_is_allocated() {
    let mut config = flat(TINY_LLAMA);
    for (key, value) in [
        ("num_attention_heads", "65536"),
        ("num_key_value_heads", "65536"),
        ("head_dim", "65536"),
        ("hidden_size", "1048576"),
        ("num_hidden_layers", "1024"),
    ] {
        config.insert(key.into(), scalar(value));
    }
    let refusal = hf(&config).unwrap_err();
    assert!(matches!(refusal, Refusal::TooLarge { .. }), "{refusal}");
    says(&refusal, &["weight k_proj", "2^46", "correct it"]);
}

#[test]
fn unknown_keys_are_refused_with_the_near_one() {
    let refusal = with("num_atention_heads", "4");
    let Refusal::UnknownKey { near, .. } = &refusal else {
        panic!("{refusal}")
    };
    assert_eq!(near.as_deref(), Some("num_attention_heads"));
    says(
        &refusal,
        &["num_atention_heads", "--accept-key num_atention_heads"],
    );
    let refusal = with("altup_coef_clip", "120.0");
    assert!(
        matches!(refusal, Refusal::UnknownKey { near: None, .. }),
        "{refusal}"
    );
    // A nested key that this version does not know.
    says(
        &with("rope_parameters.mrope_section", "[2, 1, 1]"),
        &["rope_parameters.mrope_section"],
    );
}

#[test]
fn an_accepted_key_is_passed_over_and_remembered() {
    let mut config = flat(TINY_LLAMA);
    config.insert("altup_coef_clip".into(), scalar("120.0"));
    config.insert("sliding_window".into(), scalar("4096"));
    let accept = [
        "altup_coef_clip".to_owned(),
        "sliding_window".to_owned(),
        "absent".to_owned(),
    ];
    let input = ConfigInput {
        flat: &config,
        source: Source::Hf,
        nulls: None,
        tensors: None,
        accept: &accept,
    };
    let instance = library().instantiate(&input).unwrap();
    assert_eq!(instance.accepted(), ["altup_coef_clip", "sliding_window"]);
    assert!(
        instance
            .show()
            .contains("accepted by the user: altup_coef_clip, sliding_window")
    );
}

#[test]
fn what_the_circuit_has_not_is_refused_by_name() {
    let refusal = with("sliding_window", "4096");
    says(
        &refusal,
        &[
            "sliding_window",
            "4096",
            "windowed attention",
            "--accept-key",
        ],
    );
    let mut config = flat(TINY_LLAMA);
    config.insert("sliding_window".into(), scalar("false"));
    config.insert(
        "layer_types".into(),
        scalar("[\"full_attention\", \"full_attention\"]"),
    );
    assert!(hf(&config).is_ok());
    says(
        &with("hidden_act", "\"gelu\""),
        &["hidden_act", "gelu", "silu", "SwiGLU"],
    );
    says(
        &with("layer_types", "[\"full_attention\", \"sliding_attention\"]"),
        &["layer_types", "sliding_attention", "full_attention"],
    );
}

#[test]
fn rope_kinds_are_refused_by_their_name_and_not_by_their_companions() {
    for kind in ["yarn", "dynamic", "longrope", "su", "proportional"] {
        let mut config = flat(TINY_LLAMA);
        config.insert(
            "rope_parameters.rope_type".into(),
            scalar(&format!("\"{kind}\"")),
        );
        config.insert("rope_parameters.beta_fast".into(), scalar("32.0"));
        let refusal = hf(&config).unwrap_err();
        assert!(matches!(refusal, Refusal::WrongValue { .. }), "{refusal}");
        says(
            &refusal,
            &[
                "rope_parameters.rope_type",
                kind,
                "default or linear or llama3",
            ],
        );
    }
    says(
        &with("rope_parameters.rope_type", "\"linear\""),
        &["factor", "rope_factor = 0"],
    );
    let mut config = flat(TINY_LLAMA);
    config.insert("rope_parameters.rope_type".into(), scalar("\"llama3\""));
    config.insert("rope_parameters.factor".into(), scalar("8.0"));
    config.insert("rope_parameters.high_freq_factor".into(), scalar("1.0"));
    says(
        &hf(&config).unwrap_err(),
        &["rope_parameters.high_freq_factor", "rope_high > rope_low"],
    );
}

#[test]
fn two_spellings_of_one_param_must_agree() {
    let mut config = flat(TINY_LLAMA);
    config.insert("rope_theta".into(), scalar("10000"));
    assert!(hf(&config).is_ok());
    config.insert("rope_theta".into(), scalar("500000.0"));
    let refusal = hf(&config).unwrap_err();
    assert!(matches!(refusal, Refusal::Conflict { .. }), "{refusal}");
    says(
        &refusal,
        &[
            "rope_theta",
            "rope_parameters.rope_theta",
            "500000",
            "remove one",
        ],
    );
}

#[test]
fn missing_keys_and_families() {
    let mut config = flat(TINY_LLAMA);
    config.remove("hidden_size");
    says(
        &hf(&config).unwrap_err(),
        &["`hidden_size` is missing", "add it"],
    );
    config.remove("model_type");
    assert_eq!(
        hf(&config).unwrap_err(),
        Refusal::NoFamily { key: "model_type" }
    );
    let refusal = with("model_type", "\"llama9\"");
    says(&refusal, &["model_type", "llama9", "known: "]);
    let gguf = gguf(&flat("general.architecture = \"mamba\""), &BTreeSet::new());
    says(
        &gguf.unwrap_err(),
        &["general.architecture", "mamba", "known: "],
    );
}

#[test]
fn a_long_value_does_not_fill_the_message() {
    let refusal = with("mystery", &format!("\"{}\"", "x".repeat(1 << 20)));
    assert!(refusal.to_string().len() < 400);
    let refusal = with(&"k".repeat(100), "1");
    assert!(matches!(refusal, Refusal::UnknownKey { near: None, .. }));
}
