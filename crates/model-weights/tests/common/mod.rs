// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scratch folders and safetensors files for tests.

#![allow(dead_code, unreachable_pub)] // each test uses a part of it

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

#[path = "../../../config/tests/common/gguf.rs"]
pub mod gguf;

/// The fixture folder `name` of tests/fixtures/tiny.
pub fn tiny(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tiny");
    root.join(name)
}

/// A folder that is removed with its value.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("weights-{}-{n}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes `name`, making its folders.
    pub fn put(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        path
    }

    /// A link `name` to `target`, as written.
    pub fn link(&self, name: &str, target: &str) {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(target, path).unwrap();
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A safetensors file: length, header, data.
pub fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.extend(data);
    out
}

/// A safetensors file with one U8 tensor per (name, bytes).
pub fn bytes_file(tensors: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    for (name, bytes) in tensors {
        let (n, begin) = (bytes.len(), data.len());
        data.extend(*bytes);
        let end = data.len();
        entries.push(format!(
            r#""{name}":{{"dtype":"U8","shape":[{n}],"data_offsets":[{begin},{end}]}}"#
        ));
    }
    safetensors(&format!("{{{}}}", entries.join(",")), &data)
}

/// The least config.json.
pub const CONFIG: &str = r#"{"model_type": "llama", "vocab_size": 4}"#;
