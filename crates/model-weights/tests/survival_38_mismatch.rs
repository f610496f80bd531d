// SPDX-License-Identifier: MIT OR Apache-2.0
//! SURVIVAL 38: a checkpoint whose parts do not fit each other.

#![allow(clippy::expect_used, clippy::unwrap_used)] // helpers of tests

mod common;

use common::{CONFIG, Scratch, bytes_file};
use metrale_core::Elem;
use metrale_model_weights::{Checkpoint, Expected, Problem, WeightsError, preflight};

const INDEX: &str = "model.safetensors.index.json";

fn refuse(folder: &Scratch) -> WeightsError {
    Checkpoint::open(folder.path()).expect_err("a bad checkpoint was taken")
}

#[test]
fn survival_38_missing_shard() {
    let folder = Scratch::new();
    folder.put("config.json", CONFIG);
    folder.put("s1.safetensors", bytes_file(&[("a", &[1])]));
    folder.put(
        INDEX,
        r#"{"weight_map": {"a": "s1.safetensors", "c": "s2.safetensors", "b": "s2.safetensors"}}"#,
    );
    match refuse(&folder) {
        WeightsError::MissingShard {
            path,
            tensors,
            example,
        } => {
            assert_eq!(path, folder.path().join("s2.safetensors"));
            assert_eq!((tensors, example.as_str()), (2, "b"));
        }
        e => panic!("{e}"),
    }
    folder.put("s2.safetensors", bytes_file(&[("b", &[1])]));
    match refuse(&folder) {
        WeightsError::NotInShard { tensor, .. } => assert_eq!(tensor, "c"),
        e => panic!("{e}"),
    }
    // A tensor that the index does not place there is passed over.
    folder.put(
        "s2.safetensors",
        bytes_file(&[("b", &[1]), ("c", &[2]), ("a", &[9])]),
    );
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let store = checkpoint.store.as_ref().unwrap();
    assert_eq!(store.read(store.get("a").unwrap()).unwrap(), [1]);
}

#[test]
fn survival_38_bad_index() {
    let folder = Scratch::new();
    folder.put("config.json", CONFIG);
    for index in ["{}", r#"{"weight_map": []}"#, r#"{"weight_map": {"a": 1}}"#] {
        folder.put(INDEX, index);
        assert!(
            matches!(refuse(&folder), WeightsError::Index { .. }),
            "{index}"
        );
    }
    folder.put(INDEX, r#"{"weight_map": {"a": "x", "a": "y"}}"#);
    assert!(matches!(refuse(&folder), WeightsError::IndexJson { .. }));
}

#[test]
fn survival_38_bad_config() {
    let folder = Scratch::new();
    let why = |config: &str| {
        folder.put("config.json", config);
        refuse(&folder).to_string()
    };
    assert!(why("{}").contains("config.json: key `model_type` is missing"));
    assert!(why("[]").contains("config.json: a configuration is a JSON object"));
    assert!(why(r#"{"model_type": "a", "model_type": "b"}"#).contains("occurs twice"));
    assert!(why(r#"{"model_type": "a", "vocab_size": -1}"#).contains("`vocab_size`"));
    let eos = why(r#"{"model_type": "a", "vocab_size": 8, "eos_token_id": [1, 8]}"#);
    assert!(
        eos.contains("`eos_token_id` is 8, outside of the vocabulary of 8"),
        "{eos}"
    );
    let eos = why(r#"{"model_type": "a", "eos_token_id": 4294967296}"#);
    assert!(eos.contains("expected a token id"), "{eos}");
    folder.put("generation_config.json", r#"{"temperature": -1}"#);
    let message = why(CONFIG);
    assert!(
        message.contains("generation_config.json: key `temperature` is -1"),
        "{message}"
    );
}

#[test]
fn survival_38_preflight_lists_every_problem() {
    let folder = Scratch::new();
    folder.put("config.json", CONFIG);
    folder.put(
        "model.safetensors",
        bytes_file(&[
            ("a", &[1, 2]),
            ("b", &[1, 2, 3]),
            ("model.layers.0.self_attn.rotary_emb.inv_freq", &[0]),
            ("mtp.0.weight", &[0]),
            ("stray.bias", &[0]),
        ]),
    );
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let store = checkpoint.store.as_ref().unwrap();
    let want = |name, shape, formats, optional| Expected {
        name,
        shape,
        formats,
        optional,
    };
    let file = folder.path().join("model.safetensors");

    let expected = [
        want("a", &[2], &[Elem::U8], false),
        want("b", &[3, 1], &[Elem::BF16, Elem::F32], false),
        want("c", &[4], &[], false),
        want("lm_head.weight", &[4], &[], true),
    ];
    let e = preflight(expected, &["mtp.*"], store).unwrap_err();
    assert_eq!(
        e.problems,
        [
            Problem::Misshapen {
                file: file.clone(),
                tensor: "b".into(),
                found: vec![3],
                expected: vec![3, 1]
            },
            Problem::Format {
                file: file.clone(),
                tensor: "b".into(),
                found: Elem::U8,
                allowed: vec![Elem::BF16, Elem::F32]
            },
            Problem::Missing {
                tensor: "c".into(),
                shape: vec![4]
            },
            Problem::Unexpected {
                file,
                tensor: "stray.bias".into(),
                shape: vec![1]
            },
        ]
    );
    let message = e.to_string();
    assert!(
        message.contains("4 problem(s)") && message.contains("bf16, f32 only"),
        "{message}"
    );

    let fits = [
        want("a", &[2], &[], false),
        want("b", &[3], &[Elem::U8], false),
    ];
    let unread = preflight(fits, &["mtp.*", "stray.bias"], store).unwrap();
    assert_eq!(unread.len(), 3);
}
