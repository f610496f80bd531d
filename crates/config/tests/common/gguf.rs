// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes GGUF headers, right and wrong ones, byte by byte.

#![allow(dead_code, missing_docs, unreachable_pub)] // each test uses a part of it

/// A header under construction. `metadata_count` and `tensor_count` can lie.
#[derive(Clone)]
pub struct Gguf {
    pub version: u32,
    pub metadata_count: u64,
    pub tensor_count: u64,
    pub metadata: Vec<u8>,
    pub tensors: Vec<u8>,
    pub alignment: usize,
    pub data: Vec<u8>,
}

impl Default for Gguf {
    fn default() -> Self {
        Self {
            version: 3,
            metadata_count: 0,
            tensor_count: 0,
            metadata: Vec::new(),
            tensors: Vec::new(),
            alignment: 32,
            data: Vec::new(),
        }
    }
}

impl Gguf {
    /// A header that names an architecture.
    pub fn new() -> Self {
        Self::default().str("general.architecture", "llama")
    }

    pub fn entry(mut self, key: &str, ty: u32, value: &[u8]) -> Self {
        self.metadata.extend(string(key));
        self.metadata.extend(ty.to_le_bytes());
        self.metadata.extend(value);
        self.metadata_count += 1;
        self
    }

    pub fn u32(self, key: &str, value: u32) -> Self {
        self.entry(key, 4, &value.to_le_bytes())
    }

    pub fn str(self, key: &str, value: &str) -> Self {
        self.entry(key, 8, &string(value))
    }

    pub fn strs(self, key: &str, values: &[&str]) -> Self {
        let body: Vec<u8> = values.iter().flat_map(|v| string(v)).collect();
        self.array(key, 8, values.len() as u64, &body)
    }

    pub fn array(self, key: &str, ty: u32, count: u64, body: &[u8]) -> Self {
        let mut value = ty.to_le_bytes().to_vec();
        value.extend(count.to_le_bytes());
        value.extend(body);
        self.entry(key, 9, &value)
    }

    /// A tensor entry as given; `dims` innermost first.
    pub fn tensor_entry(mut self, name: &str, dims: &[u64], ty: u32, offset: u64) -> Self {
        self.tensors.extend(string(name));
        self.tensors.extend((dims.len() as u32).to_le_bytes());
        dims.iter()
            .for_each(|d| self.tensors.extend(d.to_le_bytes()));
        self.tensors.extend(ty.to_le_bytes());
        self.tensors.extend(offset.to_le_bytes());
        self.tensor_count += 1;
        self
    }

    /// A tensor with its data, at the next aligned offset; `dims` innermost first.
    pub fn tensor(mut self, name: &str, dims: &[u64], ty: u32, data: &[u8]) -> Self {
        self.data
            .resize(self.data.len().next_multiple_of(self.alignment), 0);
        let offset = self.data.len() as u64;
        self.data.extend(data);
        self.tensor_entry(name, dims, ty, offset)
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.to_le_bytes());
        out.extend(self.metadata_count.to_le_bytes());
        out.extend(&self.metadata);
        out.extend(&self.tensors);
        out.resize(out.len().next_multiple_of(self.alignment.max(1)), 0);
        out.extend(&self.data);
        out
    }
}

pub fn string(s: &str) -> Vec<u8> {
    let mut out = (s.len() as u64).to_le_bytes().to_vec();
    out.extend(s.as_bytes());
    out
}
