// SPDX-License-Identifier: MIT OR Apache-2.0
//! SURVIVAL 37: hostile and changing safetensors files.

#![allow(clippy::expect_used, clippy::unwrap_used)] // helpers of tests

mod common;

use common::{CONFIG, Scratch, bytes_file, safetensors};
use metrale_model_weights::safetensors::{MAX_HEADER, SafetensorsError, read_header};
use metrale_model_weights::{Checkpoint, WeightsError};

fn refuse(bytes: &[u8]) -> SafetensorsError {
    read_header(bytes, bytes.len() as u64).expect_err("a bad header was taken")
}

fn entry(name: &str, dtype: &str, shape: &str, range: &str) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{range}}}"#)
}

fn header(entries: &[String]) -> String {
    format!("{{{}}}", entries.join(","))
}

#[test]
fn survival_37_header_longer_than_file_or_limit() {
    let mut bytes = safetensors("{}", &[]);
    assert_eq!(read_header(&bytes, bytes.len() as u64), Ok(vec![]));
    bytes[0] = 3;
    assert_eq!(
        refuse(&bytes),
        SafetensorsError::HeaderPastEnd {
            len: 3,
            file_len: 10
        }
    );
    bytes[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_eq!(
        refuse(&bytes),
        SafetensorsError::HeaderTooLong { len: u64::MAX }
    );
    bytes[..8].copy_from_slice(&(MAX_HEADER + 1).to_le_bytes());
    assert_eq!(
        read_header(&bytes, u64::MAX),
        Err(SafetensorsError::HeaderTooLong {
            len: MAX_HEADER + 1
        })
    );
    assert_eq!(
        refuse(&bytes[..7]),
        SafetensorsError::TooShort { file_len: 7 }
    );
}

#[test]
fn survival_37_overlap_and_holes() {
    let a = entry("a", "F32", "[2]", "[0,8]");
    let good = safetensors(
        &header(&[a.clone(), entry("b", "U8", "[4]", "[8,12]")]),
        &[0; 12],
    );
    assert_eq!(read_header(&good, good.len() as u64).unwrap().len(), 2);

    let overlap = safetensors(
        &header(&[a.clone(), entry("b", "U8", "[4]", "[6,10]")]),
        &[0; 10],
    );
    match refuse(&overlap) {
        SafetensorsError::Range { tensor, why, .. } => {
            assert_eq!(
                (tensor.as_str(), why.as_str()),
                ("b", "it overlaps tensor `a`")
            );
        }
        e => panic!("{e}"),
    }
    let same = safetensors(
        &header(&[a.clone(), entry("b", "F32", "[2]", "[0,8]")]),
        &[0; 8],
    );
    assert!(matches!(refuse(&same), SafetensorsError::Range { .. }));
    let hole = safetensors(
        &header(&[a.clone(), entry("b", "U8", "[4]", "[9,13]")]),
        &[0; 13],
    );
    assert_eq!(refuse(&hole), SafetensorsError::Hole { begin: 8, end: 9 });
    let rest = safetensors(&header(&[a]), &[0; 20]);
    assert_eq!(refuse(&rest), SafetensorsError::Hole { begin: 8, end: 20 });
}

#[test]
fn survival_37_shape_dtype_and_range_must_agree() {
    let why = |entry: String, data: usize| match refuse(&safetensors(
        &header(&[entry]),
        &vec![0; data],
    )) {
        SafetensorsError::Range { tensor, why, .. } => {
            assert_eq!(tensor, "w");
            why
        }
        e => panic!("{e}"),
    };
    assert!(why(entry("w", "F32", "[3]", "[0,8]"), 8).contains("takes 12 bytes"));
    assert!(why(entry("w", "BF16", "[2,2]", "[0,16]"), 16).contains("takes 8 bytes"));
    assert!(why(entry("w", "U8", "[4294967296,4294967296]", "[0,8]"), 8).contains("overflows"));
    assert!(why(entry("w", "F64", "[4611686018427387904]", "[0,8]"), 8).contains("overflows"));
    assert!(why(entry("w", "U8", "[4]", "[4,0]"), 4).contains("reversed"));
    assert!(why(entry("w", "U8", "[8]", "[0,8]"), 4).contains("only 4 bytes of data"));
    let max = u64::MAX;
    assert!(why(entry("w", "U8", "[1]", &format!("[{},{max}]", max - 1)), 4).contains("only 4"));

    let unknown = safetensors(&header(&[entry("w", "F4", "[2]", "[0,1]")]), &[0]);
    let want = SafetensorsError::Dtype {
        tensor: "w".into(),
        dtype: "F4".into(),
    };
    assert_eq!(refuse(&unknown), want);
}

#[test]
fn survival_37_header_json() {
    let why = |json: &str| match refuse(&safetensors(json, &[])) {
        SafetensorsError::Json { why, .. } => why,
        e => panic!("{e}"),
    };
    let a = entry("a", "U8", "[0]", "[0,0]");
    assert!(why(&header(&[a.clone(), a.clone()])).contains("\"a\" occurs twice"));
    assert!(why(r#"{"a":{"dtype":"U8","dtype":"U8"}}"#).contains("duplicate field"));
    assert!(why(r#"{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":1}}"#).contains("`x`"));
    assert!(why(r#"{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,0]}}"#).contains("-1"));
    assert!(why(r#"{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0,0]}}"#).contains("trailing"));
    assert!(!why("[]").is_empty() && !why("").is_empty() && !why("{} x").is_empty());
    assert!(!why(&"[".repeat(1 << 20)).is_empty());
    let deep = format!(r#"{{"__metadata__":{}}}"#, "[".repeat(100_000));
    assert!(why(&deep).contains("invalid type"));
    let padded = safetensors(&format!("{{{a}}}     "), &[]);
    assert_eq!(
        read_header(&padded, padded.len() as u64).unwrap()[0].shape,
        [0]
    );
}

#[test]
fn survival_37_truncated_shard() {
    let folder = Scratch::new();
    folder.put("config.json", CONFIG);
    let whole = bytes_file(&[("a", &[7; 100])]);
    for cut in 0..whole.len() {
        let path = folder.put("model.safetensors", &whole[..cut]);
        match Checkpoint::open(folder.path()).unwrap_err() {
            WeightsError::Safetensors { path: named, .. } => assert_eq!(named, path),
            e => panic!("cut at {cut}: {e}"),
        }
    }
}

#[test]
fn survival_37_file_changed_while_read() {
    let folder = Scratch::new();
    folder.put("config.json", CONFIG);
    let path = folder.put(
        "model.safetensors",
        bytes_file(&[("a", &[7; 100]), ("b", &[8; 100])]),
    );
    let file = std::fs::File::options().write(true).open(&path).unwrap();

    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let store = checkpoint.store.as_ref().unwrap();
    let b = store.get("b").unwrap();
    assert_eq!(store.read(b).unwrap(), [8; 100]);
    store.finish().unwrap();

    file.set_modified(std::time::UNIX_EPOCH).unwrap();
    match store.finish().unwrap_err() {
        WeightsError::Changed { path: named, .. } => assert_eq!(named, path),
        e => panic!("{e}"),
    }

    file.set_len(b.offset + 10).unwrap();
    match store.read(b).unwrap_err() {
        WeightsError::Shrunk {
            path: named,
            tensor,
        } => {
            assert_eq!((named, tensor.as_str()), (path.clone(), "b"));
        }
        e => panic!("{e}"),
    }
    let message = store.finish().unwrap_err().to_string();
    assert!(message.contains("bytes then"), "{message}");
}

#[test]
fn survival_37_reads_stay_inside_their_tensor() {
    let folder = Scratch::new();
    folder.put("config.json", CONFIG);
    folder.put(
        "model.safetensors",
        bytes_file(&[("a", &[1, 2, 3, 4]), ("b", &[5, 6])]),
    );
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let store = checkpoint.store.as_ref().unwrap();
    let a = store.get("a").unwrap();
    let mut out = [0; 2];
    store.read_at(a, 2, &mut out).unwrap();
    assert_eq!(out, [3, 4]);
    for offset in [3, 4, u64::MAX - 1] {
        let e = store.read_at(a, offset, &mut out).unwrap_err();
        assert!(matches!(e, WeightsError::OutOfTensor { .. }), "{e}");
    }
    assert_eq!(out, [3, 4]);
}
