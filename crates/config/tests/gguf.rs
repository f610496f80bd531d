// SPDX-License-Identifier: MIT OR Apache-2.0
//! The GGUF header: what right files give.

#![allow(clippy::expect_used, clippy::unwrap_used)] // helpers of tests

mod common {
    pub mod gguf;
}

use common::gguf::{Gguf, string};
use metrale_config::gguf::{GgufArray, GgufError, GgufHeader, GgufLimits, GgufValue};
use metrale_config::{ConfigSource, gguf_config};
use metrale_core::{Elem, Scalar};

fn read(bytes: &[u8]) -> Result<GgufHeader, GgufError> {
    GgufHeader::from_bytes(bytes, bytes.len() as u64, &GgufLimits::default())
}

#[test]
fn every_value_type_is_read() {
    let nested: Vec<u8> = [4u32.to_le_bytes().to_vec(), 2u64.to_le_bytes().to_vec()]
        .concat()
        .into_iter()
        .chain([1, 0, 0, 0, 2, 0, 0, 0])
        .collect();
    let header = read(
        &Gguf::default()
            .entry("u8", 0, &[200])
            .entry("i8", 1, &[0xff])
            .entry("u16", 2, &[1, 2])
            .entry("i16", 3, &[0xfe, 0xff])
            .u32("u32", 7)
            .entry("i32", 5, &(-7i32).to_le_bytes())
            .entry("f32", 6, &1.5f32.to_le_bytes())
            .entry("bool", 7, &[1])
            .str("str", "né")
            .entry("u64", 10, &u64::MAX.to_le_bytes())
            .entry("i64", 11, &i64::MIN.to_le_bytes())
            .entry("f64", 12, &2.5f64.to_le_bytes())
            .strs("strs", &["a", "", "bc"])
            .array("bools", 7, 2, &[0, 1])
            .array("i32s", 5, 2, &[1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff])
            .array("nested", 9, 1, &nested)
            .bytes(),
    )
    .unwrap();
    let get = |key: &str| header.get(key).unwrap();
    assert_eq!(*get("u8"), GgufValue::U8(200));
    assert_eq!(*get("i8"), GgufValue::I8(-1));
    assert_eq!(*get("u16"), GgufValue::U16(0x201));
    assert_eq!(*get("i16"), GgufValue::I16(-2));
    assert_eq!(get("u32").as_u64(), Some(7));
    assert_eq!(get("i32").as_i64(), Some(-7));
    assert_eq!(get("i32").as_u64(), None);
    assert_eq!(get("f32").as_f64(), Some(1.5));
    assert_eq!(get("bool").as_bool(), Some(true));
    assert_eq!(get("str").as_str(), Some("né"));
    assert_eq!(get("u64").as_u64(), Some(u64::MAX));
    assert_eq!(get("u64").as_i64(), None);
    assert_eq!(get("i64").as_i64(), Some(i64::MIN));
    assert_eq!(get("f64").as_f64(), Some(2.5));
    let shown: Vec<String> = ["i32", "f32", "str", "bools"]
        .map(|k| get(k).to_string())
        .into();
    assert_eq!(shown, ["-7", "1.5", "\"né\"", "an array of 2"]);
    let strs = get("strs").as_strings().unwrap();
    assert_eq!(strs.iter().collect::<Vec<_>>(), ["a", "", "bc"]);
    assert_eq!((strs.get(2), strs.get(3)), (Some("bc"), None));
    assert_eq!(
        *get("bools"),
        GgufValue::Array(GgufArray::Bool(vec![false, true]))
    );
    assert_eq!(*get("i32s"), GgufValue::Array(GgufArray::I32(vec![1, -1])));
    let inner = GgufArray::Array(vec![GgufArray::U32(vec![1, 2])]);
    assert_eq!(*get("nested"), GgufValue::Array(inner));
}

#[test]
fn tensors_are_placed_and_their_shape_turned() {
    let file = Gguf::new()
        .tensor("a", &[64, 3], 2, &[1; 3 * 2 * 18])
        .tensor("b", &[5], 0, &[2; 20])
        .tensor("scalar", &[], 0, &[3; 4]);
    for version in [2, 3] {
        let bytes = Gguf {
            version,
            ..file.clone()
        }
        .bytes();
        let header = read(&bytes).unwrap();
        assert_eq!(header.version(), version);
        let [a, b, scalar] = header.tensors() else {
            panic!()
        };
        assert_eq!(
            (a.elem, a.shape.as_slice(), a.bytes),
            (Elem::Q4_0, [3, 64].as_slice(), 108)
        );
        assert_eq!(
            (b.elem, b.shape.as_slice(), b.bytes),
            (Elem::F32, [5].as_slice(), 20)
        );
        assert!(scalar.shape.is_empty() && scalar.bytes == 4);
        for (tensor, fill) in [(a, 1), (b, 2), (scalar, 3)] {
            let data = &bytes[tensor.offset as usize..][..tensor.bytes as usize];
            assert!(data.iter().all(|x| *x == fill), "{}", tensor.name);
        }
    }
}

#[test]
fn general_alignment_moves_the_data() {
    let file = Gguf {
        alignment: 256,
        ..Gguf::new()
    };
    let bytes = file
        .u32("general.alignment", 256)
        .tensor("a", &[2], 0, &[9; 8])
        .bytes();
    let header = read(&bytes).unwrap();
    assert_eq!(header.data_offset() % 256, 0);
    assert_eq!(bytes[header.tensors()[0].offset as usize..], [9; 8]);
}

#[test]
fn a_reader_that_gives_one_byte_at_a_time_gives_the_same() {
    struct OneByte<'a>(&'a [u8]);
    impl std::io::Read for OneByte<'_> {
        fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
            let n = self.0.len().min(1);
            out[..n].copy_from_slice(&self.0[..n]);
            self.0 = &self.0[n..];
            Ok(n)
        }
    }
    let bytes = Gguf::new()
        .strs("tokenizer.ggml.tokens", &["a", "bc"])
        .array("x", 12, 3, &[0; 24])
        .tensor("t", &[32], 8, &[0; 34])
        .bytes();
    let slow = GgufHeader::read(OneByte(&bytes), bytes.len() as u64, &GgufLimits::default());
    let (slow, fast) = (slow.unwrap(), read(&bytes).unwrap());
    assert_eq!(slow.metadata(), fast.metadata());
    assert_eq!(slow.tensors(), fast.tensors());
}

#[test]
fn the_configuration_of_a_header() {
    let bytes = Gguf::new()
        .str("general.name", "Tiny")
        .u32("llama.context_length", 2048)
        .entry(
            "llama.attention.layer_norm_rms_epsilon",
            6,
            &1e-5f32.to_le_bytes(),
        )
        .entry("general.sampling.temp", 6, &0.5f32.to_le_bytes())
        .array("llama.heads", 5, 2, &[1, 0, 0, 0, 2, 0, 0, 0])
        .strs("tokenizer.ggml.tokens", &["<s>", "</s>", "<end>", "<pad>"])
        .u32("tokenizer.ggml.bos_token_id", 0)
        .u32("tokenizer.ggml.eos_token_id", 1)
        .u32("tokenizer.ggml.eot_token_id", 2)
        .u32("tokenizer.ggml.eom_token_id", 2)
        .u32("tokenizer.ggml.padding_token_id", 3)
        .str("tokenizer.chat_template", "T")
        .str("tokenizer.chat_template.tool_use", "U")
        .bytes();
    let header = read(&bytes).unwrap();
    let config = gguf_config::from_gguf("x.gguf", &header).unwrap();
    assert_eq!(
        (config.architecture.as_str(), config.source),
        ("llama", ConfigSource::Gguf)
    );
    assert_eq!(config.name.as_deref(), Some("Tiny"));
    assert_eq!(config.context_length, Some(2048));
    assert_eq!(
        (config.bos, config.eos.as_slice(), config.pad),
        (Some(0), [1, 2].as_slice(), Some(3))
    );
    assert_eq!(config.generation.temperature, Some(0.5));
    assert_eq!(config.chat_template("default").unwrap().text, "T");
    assert_eq!(config.chat_template("tool_use").unwrap().text, "U");
    let heads = Scalar::List(vec![Scalar::Int(1), Scalar::Int(2)]);
    assert_eq!(config.flat["llama.heads"], heads);
    // The f32 is widened, not parsed again: its nearest double is not 1e-5.
    let epsilon = Scalar::Float(f64::from(1e-5f32));
    assert_eq!(
        config.flat["llama.attention.layer_norm_rms_epsilon"],
        epsilon
    );
    assert!(config.flat.keys().all(|key| !key.starts_with("tokenizer.")));
    assert_eq!(header.tokenizer().count(), 8);
}

#[test]
fn a_header_without_an_architecture_has_no_configuration() {
    let header = read(&Gguf::default().str("general.name", "x").bytes()).unwrap();
    let e = gguf_config::from_gguf("x.gguf", &header).unwrap_err();
    assert_eq!(e.to_string(), "GGUF key `general.architecture` is missing");
    assert_eq!(string("ab"), [2, 0, 0, 0, 0, 0, 0, 0, b'a', b'b']);
}
