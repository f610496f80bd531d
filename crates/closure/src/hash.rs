// SPDX-License-Identifier: MIT OR Apache-2.0
//! The hash of a closure.

use std::collections::BTreeMap;

/// A source and everything of the tree that it includes.
#[derive(Clone, Debug)]
pub struct Closure {
    source: String,
    files: BTreeMap<String, Vec<u8>>,
}

impl Closure {
    pub(crate) fn new(source: String, files: BTreeMap<String, Vec<u8>>) -> Closure {
        Closure { source, files }
    }

    /// Names of the files, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// BLAKE3 (64 hex digits) of everything that decides the image: which source, all contents, architecture, flags and
    /// toolchain. Where the files lie does not enter.
    #[must_use]
    pub fn hash(&self, arch: &str, flags: &[String], toolchain: &str) -> String {
        let mut hasher = blake3::Hasher::new();
        // Each part carries its length, so that no two lists of parts read the same.
        let mut part = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        part(b"metrale kernel closure 1");
        part(self.source.as_bytes());
        part(arch.as_bytes());
        part(toolchain.as_bytes());
        part(&(flags.len() as u64).to_le_bytes());
        for flag in flags {
            part(flag.as_bytes());
        }
        for (name, text) in &self.files {
            part(name.as_bytes());
            part(text);
        }
        hasher.finalize().to_hex().to_string()
    }
}
