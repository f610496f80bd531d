// SPDX-License-Identifier: MIT OR Apache-2.0
//! The circuit's config map: any flat map goes through to a plan and its text, or to a typed refusal.

use std::sync::OnceLock;

use metrale_circuit::{CircuitLibrary, Source};
use metrale_core::{FlatMap, Scalar};

/// Reads `data` as lines `key = value` and takes them through as a Hugging Face and as a GGUF configuration.
pub fn run(data: &[u8]) {
    static LIBRARY: OnceLock<CircuitLibrary> = OnceLock::new();
    let library =
        LIBRARY.get_or_init(|| CircuitLibrary::new(metrale_kernel_tree::files()).unwrap());
    let text = String::from_utf8_lossy(data);
    let flat: FlatMap = text
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(key, value)| (key.trim().to_owned(), scalar(value.trim())))
        .collect();
    for source in [Source::Hf, Source::Gguf] {
        // A refusal without words would come back false.
        assert!(library.try_config(&flat, source));
    }
}

/// Every text is a value: what is nothing else is a string. Floats are finite, as in every flat map.
fn scalar(text: &str) -> Scalar {
    if let Some(items) = text.strip_prefix('[') {
        return Scalar::List(
            items
                .trim_end_matches(']')
                .split(',')
                .map(|i| leaf(i.trim()))
                .collect(),
        );
    }
    leaf(text)
}

fn leaf(text: &str) -> Scalar {
    match (text.parse(), text.parse(), text.parse::<f64>()) {
        (Ok(b), ..) => Scalar::Bool(b),
        (_, Ok(i), _) => Scalar::Int(i),
        (.., Ok(f)) if f.is_finite() => Scalar::Float(f),
        _ => Scalar::Str(text.trim_matches('"').to_owned()),
    }
}
