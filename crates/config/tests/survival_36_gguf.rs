// SPDX-License-Identifier: MIT OR Apache-2.0
//! SURVIVAL 36: hostile GGUF headers give a typed error that names the place.

#![allow(clippy::expect_used, clippy::unwrap_used)] // helpers of tests

mod common {
    pub mod gguf;
}

use common::gguf::Gguf;
use metrale_config::gguf::{GgufError, GgufHeader, GgufLimits};
use metrale_config::{ConfigError, gguf_config};

fn refuse(bytes: &[u8]) -> GgufError {
    let limits = GgufLimits::default();
    GgufHeader::from_bytes(bytes, bytes.len() as u64, &limits).expect_err("a bad header was taken")
}

/// As if the bytes began a file of any length: the check against the file's end does not hide the others.
fn refuse_in_endless_file(bytes: &[u8]) -> GgufError {
    let limits = GgufLimits::default();
    GgufHeader::from_bytes(bytes, u64::MAX, &limits).expect_err("a bad header was taken")
}

#[test]
fn survival_36_gguf_count_overflow() {
    for count in [u64::MAX, 1 << 63, u64::MAX / 13 + 1, u64::MAX / 24 + 1] {
        let metadata = Gguf {
            metadata_count: count,
            ..Gguf::new()
        }
        .bytes();
        let tensors = Gguf {
            tensor_count: count,
            ..Gguf::new()
        }
        .bytes();
        assert!(
            matches!(refuse(&metadata), GgufError::Truncated { .. }),
            "{count}"
        );
        assert!(
            matches!(refuse(&tensors), GgufError::Truncated { .. }),
            "{count}"
        );
        for bytes in [&metadata, &tensors] {
            let e = refuse_in_endless_file(bytes);
            assert!(
                matches!(e, GgufError::Truncated { .. } | GgufError::Limit { .. }),
                "{e}"
            );
        }
    }
    for ty in [0, 4, 7, 8, 9, 10] {
        for count in [u64::MAX, 1 << 61, 1 << 40] {
            let bytes = Gguf::new().array("k", ty, count, &[]).bytes();
            let e = refuse(&bytes);
            assert!(e.to_string().contains("`k`"), "{e}");
            let e = refuse_in_endless_file(&bytes);
            assert!(
                matches!(e, GgufError::Truncated { .. } | GgufError::Limit { .. }),
                "{e}"
            );
        }
    }
}

#[test]
fn survival_36_gguf_string_of_2_to_63() {
    let huge = (1u64 << 63).to_le_bytes();
    let value = Gguf::new().entry("k", 8, &huge).bytes();
    assert!(matches!(
        refuse(&value),
        GgufError::Truncated { needs, .. } if needs == 1 << 63
    ));
    assert!(matches!(
        refuse_in_endless_file(&value),
        GgufError::Limit { .. }
    ));
    let key = Gguf {
        metadata: huge.to_vec(),
        metadata_count: 1,
        ..Gguf::default()
    }
    .bytes();
    let key = [key, vec![0; 64]].concat();
    assert!(matches!(refuse(&key), GgufError::Truncated { .. }));
    let name = Gguf {
        tensors: huge.to_vec(),
        tensor_count: 1,
        ..Gguf::new()
    }
    .bytes();
    let name = [name, vec![0; 64]].concat();
    assert!(matches!(refuse(&name), GgufError::Truncated { .. }));
}

#[test]
fn survival_36_gguf_limits_name_their_field() {
    let bytes = Gguf::new()
        .strs("tokens", &["abcdef", "g"])
        .tensor("t", &[1], 0, &[0; 4])
        .bytes();
    let field = |change: fn(&mut GgufLimits)| {
        let mut limits = GgufLimits::default();
        change(&mut limits);
        match GgufHeader::from_bytes(&bytes, bytes.len() as u64, &limits).unwrap_err() {
            GgufError::Limit { field, .. } => field,
            e => panic!("{e}"),
        }
    };
    assert_eq!(field(|l| l.header_bytes = 40), "header_bytes");
    assert_eq!(field(|l| l.metadata_entries = 1), "metadata_entries");
    assert_eq!(field(|l| l.tensors = 0), "tensors");
    assert_eq!(field(|l| l.name_bytes = 5), "name_bytes");
    assert_eq!(field(|l| l.string_bytes = 5), "string_bytes");
    assert_eq!(field(|l| l.array_elements = 1), "array_elements");
    assert_eq!(field(|l| l.array_depth = 0), "array_depth");
}

#[test]
fn survival_36_gguf_dimension_overflow() {
    let why =
        |dims: &[u64], ty: u32| match refuse(&Gguf::new().tensor_entry("w", dims, ty, 0).bytes()) {
            GgufError::TensorShape { tensor, why, .. } => {
                assert_eq!(tensor, "w");
                why
            }
            e => panic!("{e}"),
        };
    assert!(why(&[1 << 32, 1 << 32], 0).contains("overflows"));
    assert!(why(&[u64::MAX], 0).contains("overflows"));
    assert!(why(&[1 << 16, 1 << 16, 1 << 16, 1 << 16], 24).contains("overflows"));
    assert!(why(&[1 << 63, 4], 2).contains("overflows"));
    assert!(why(&[32, 0], 2).contains("is 0"));
    assert!(why(&[33, 2], 2).contains("whole number"));
    assert!(why(&[1; 5], 0).contains("at most 4"));
    let many = Gguf::new();
    let mut many = Gguf {
        tensor_count: 1,
        ..many
    };
    many.tensors.extend([1u8, 0, 0, 0, 0, 0, 0, 0, b'w']);
    many.tensors.extend(u32::MAX.to_le_bytes());
    many.data = vec![0; 64];
    assert!(matches!(
        refuse(&many.bytes()),
        GgufError::TensorShape { .. }
    ));
}

#[test]
fn survival_36_gguf_offset_overflow_and_past_the_end() {
    let why = |offset: u64| {
        let file = Gguf::new().tensor_entry("w", &[8], 0, offset);
        let bytes = Gguf {
            data: vec![0; 32],
            ..file
        }
        .bytes();
        match refuse(&bytes) {
            GgufError::TensorOffset { tensor, why, .. } => {
                assert_eq!(tensor, "w");
                why
            }
            e => panic!("{e}"),
        }
    };
    assert!(why(u64::MAX - 31).contains("overflows"));
    assert!(why(1 << 40).contains("the file has"));
    assert!(why(32).contains("the file has"));
    assert!(why(4).contains("alignment"));
}

#[test]
fn survival_36_gguf_overlap() {
    let file = Gguf::new()
        .tensor_entry("a", &[16], 0, 0)
        .tensor_entry("b", &[8], 0, 32);
    let bytes = Gguf {
        data: vec![0; 64],
        ..file
    }
    .bytes();
    match refuse(&bytes) {
        GgufError::TensorOffset { tensor, why, .. } => {
            assert_eq!(
                (tensor.as_str(), why.as_str()),
                ("b", "it overlaps tensor `a`")
            );
        }
        e => panic!("{e}"),
    }
}

#[test]
fn survival_36_gguf_alignment() {
    for alignment in [0, 1, 7, 33, 1 << 21] {
        let e = refuse(&Gguf::new().u32("general.alignment", alignment).bytes());
        assert!(e.to_string().contains("`general.alignment`"), "{e}");
    }
    let e = refuse(&Gguf::new().str("general.alignment", "32").bytes());
    assert!(matches!(e, GgufError::Key { .. }), "{e}");
}

#[test]
fn survival_36_gguf_token_id_out_of_range() {
    for key in ["bos", "eos", "eot", "unknown", "padding", "fim_pre"] {
        let key = format!("tokenizer.ggml.{key}_token_id");
        for id in [3, u32::MAX] {
            let bytes = Gguf::new()
                .strs("tokenizer.ggml.tokens", &["a", "b", "c"])
                .u32(&key, id)
                .bytes();
            let limits = GgufLimits::default();
            let header = GgufHeader::from_bytes(&bytes, bytes.len() as u64, &limits).unwrap();
            match gguf_config::from_gguf("x", &header).unwrap_err() {
                ConfigError::Gguf(GgufError::Key { key: named, why }) => {
                    assert_eq!(named, key);
                    assert!(why.contains("vocabulary of 3 tokens"), "{why}");
                }
                e => panic!("{e}"),
            }
        }
    }
}

#[test]
fn survival_36_gguf_duplicates_types_and_text() {
    let twice = Gguf::new().u32("k", 1).u32("k", 2).bytes();
    assert_eq!(
        refuse(&twice).to_string(),
        "GGUF header: key `k` occurs twice"
    );
    let file = Gguf::new()
        .tensor("t", &[1], 0, &[0; 4])
        .tensor("t", &[1], 0, &[0; 4]);
    assert_eq!(
        refuse(&file.bytes()).to_string(),
        "GGUF header: tensor `t` occurs twice"
    );

    let ty = Gguf::new().entry("k", 13, &[0; 8]).bytes();
    assert!(matches!(
        refuse(&ty),
        GgufError::ValueType { found: 13, .. }
    ));
    let ty = Gguf::new().array("k", 77, 1, &[0; 8]).bytes();
    assert!(matches!(
        refuse(&ty),
        GgufError::ValueType { found: 77, .. }
    ));
    let boolean = Gguf::new().array("k", 7, 3, &[0, 1, 2]).bytes();
    assert!(matches!(refuse(&boolean), GgufError::Bool { found: 2, .. }));
    let text = Gguf::new()
        .entry("k", 8, &[1, 0, 0, 0, 0, 0, 0, 0, 0xff])
        .bytes();
    assert!(matches!(refuse(&text), GgufError::Utf8 { .. }));

    let format = Gguf::new().tensor_entry("w", &[256], 16, 0).bytes();
    let message = refuse(&format).to_string();
    assert!(
        message.contains("`w` has ggml type 16 (IQ2_XXS)"),
        "{message}"
    );
    let mut depth = vec![];
    for _ in 0..1000 {
        depth.extend(9u32.to_le_bytes());
        depth.extend(1u64.to_le_bytes());
    }
    let deep = Gguf::new().array("k", 9, 1, &depth).bytes();
    assert!(matches!(
        refuse(&deep),
        GgufError::Limit {
            field: "array_depth",
            ..
        }
    ));
}

#[test]
fn survival_36_gguf_magic_and_version() {
    assert!(matches!(refuse(b""), GgufError::Magic { found } if found.is_empty()));
    assert!(matches!(refuse(b"<html>"), GgufError::Magic { .. }));
    assert!(matches!(
        refuse(b"GGUF\x01\0\0\0"),
        GgufError::Version { version: 1 }
    ));
    assert!(matches!(
        refuse(b"GGUF\x04\0\0\0"),
        GgufError::Version { version: 4 }
    ));
    assert!(matches!(
        refuse(b"GGUF\0\0\0\x03"),
        GgufError::BigEndian { version: 3 }
    ));
}

#[test]
fn survival_36_gguf_cut_at_every_byte() {
    let bytes = Gguf::new()
        .strs("tokenizer.ggml.tokens", &["a", "bc"])
        .array("f", 6, 3, &[0; 12])
        .tensor("t", &[32, 2], 8, &[0; 68])
        .tensor("u", &[3], 0, &[0; 12])
        .bytes();
    let limits = GgufLimits::default();
    assert!(GgufHeader::from_bytes(&bytes, bytes.len() as u64, &limits).is_ok());
    for cut in 0..bytes.len() {
        let e = refuse(&bytes[..cut]);
        let typed = matches!(
            e,
            GgufError::Magic { .. } | GgufError::Truncated { .. } | GgufError::TensorOffset { .. }
        );
        assert!(typed, "cut at {cut}: {e}");
    }
    // The reader ends although the file was said to be longer: a file that shrank.
    let header = bytes.len() - 128 - 12;
    for cut in 0..header - 32 {
        let cut_reader = GgufHeader::from_bytes(&bytes[..cut], bytes.len() as u64, &limits);
        assert!(cut_reader.is_err(), "cut at {cut}");
    }
}
