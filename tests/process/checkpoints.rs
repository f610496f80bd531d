// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checkpoints to serve: the tiny fixtures, and a deep one made of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::{Map, Value, json};

use crate::met::folder;

/// Layers of the deep checkpoint.
const LAYERS: usize = 256;

/// A tiny fixture's folder.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/fixtures/tiny")
        .join(name)
}

/// The fixture `llama` with its two layers repeated 128 times: seconds of loading and of answering for a test to act
/// in, on any machine. Made once for all tests of the process.
pub(crate) fn deep() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let (from, to) = (fixture("llama"), folder("deep"));
        for file in ["tokenizer.json", "tokenizer_config.json"] {
            fs::copy(from.join(file), to.join(file)).unwrap();
        }
        let config = fs::read(from.join("config.json")).unwrap();
        let mut config: Value = serde_json::from_slice(&config).unwrap();
        config["num_hidden_layers"] = json!(LAYERS);
        fs::write(to.join("config.json"), config.to_string()).unwrap();
        let weights = fs::read(from.join("model.safetensors")).unwrap();
        fs::write(to.join("model.safetensors"), deepen(&weights)).unwrap();
        to
    })
}

/// A safetensors file with layer `i` as layers `i`, `i + 2`, ... of the new one.
fn deepen(file: &[u8]) -> Vec<u8> {
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let (header, data) = file[8..].split_at(length);
    let header: Map<String, Value> = serde_json::from_slice(header).unwrap();
    let (mut table, mut bytes) = (Map::new(), Vec::new());
    for (name, entry) in header.iter().filter(|(n, _)| *n != "__metadata__") {
        let offset = |i: usize| entry["data_offsets"][i].as_u64().unwrap() as usize;
        let words: Vec<&str> = name.split('.').collect();
        let names: Vec<String> = match words[..] {
            ["model", "layers", layer, ref rest @ ..] => (layer.parse().unwrap()..LAYERS)
                .step_by(2)
                .map(|layer| format!("model.layers.{layer}.{}", rest.join(".")))
                .collect(),
            _ => vec![name.clone()],
        };
        for name in names {
            let begin = bytes.len();
            bytes.extend_from_slice(&data[offset(0)..offset(1)]);
            let mut entry = entry.clone();
            entry["data_offsets"] = json!([begin, bytes.len()]);
            table.insert(name, entry);
        }
    }
    let table = Value::from(table).to_string();
    let mut out = (table.len() as u64).to_le_bytes().to_vec();
    out.extend_from_slice(table.as_bytes());
    out.append(&mut bytes);
    out
}
