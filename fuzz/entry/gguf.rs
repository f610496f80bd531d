// SPDX-License-Identifier: MIT OR Apache-2.0
//! GGUF header: any bytes give a header that holds its invariants, or a typed error.

use metrale_config::gguf::{GgufHeader, GgufLimits};
use metrale_config::gguf_config;

/// Reads `data` twice: as a whole file, and as the beginning of a long one.
pub fn run(data: &[u8]) {
    for file_len in [data.len() as u64, 1 << 40] {
        match GgufHeader::from_bytes(data, file_len, &GgufLimits::default()) {
            Ok(header) => check(&header, file_len),
            Err(e) => assert!(!e.to_string().is_empty()),
        }
    }
}

fn check(header: &GgufHeader, file_len: u64) {
    let mut places: Vec<_> = header
        .tensors()
        .iter()
        .map(|t| (t.offset, t.bytes))
        .collect();
    places.sort_unstable();
    let mut end = header.data_offset();
    for (offset, bytes) in places {
        assert!(offset >= end && offset % header.alignment() == 0);
        end = offset + bytes;
        assert!(end <= file_len);
    }
    for tensor in header.tensors() {
        let elems = tensor.shape.iter().product();
        assert_eq!(tensor.elem.bytes_for(elems), Some(tensor.bytes));
    }
    for value in header.metadata().values() {
        if let Some(strings) = value.as_strings() {
            assert_eq!(strings.iter().count(), strings.len());
        }
        if let Some(array) = value.as_array() {
            assert_eq!(array.iter().count(), array.len());
        }
    }
    match gguf_config::from_gguf("fuzz", header) {
        Ok(config) => assert!(config.flat.keys().all(|key| !key.starts_with("tokenizer."))),
        Err(e) => assert!(!e.to_string().is_empty()),
    }
}
