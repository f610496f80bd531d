// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a GGUF header may ask for.

/// Bounds on a GGUF header, checked before anything is allocated.
///
/// The defaults are far above every published file; a header beyond one of them is refused with
/// [`GgufError::Limit`](super::GgufError::Limit), which names the field here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GgufLimits {
    /// Bytes from the start of the file to the end of the tensor table. Default 512 MiB: the largest
    /// vocabularies (262,144 tokens with scores, or 280,000 merges) take about 10 MB. Bounds the memory
    /// of the whole header, since every element costs at least one byte of file.
    pub header_bytes: u64,
    /// Metadata entries. Default 65,536; real files have under 100.
    pub metadata_entries: u64,
    /// Tensors of one file. Default 262,144; the largest models have a few thousand.
    pub tensors: u64,
    /// Bytes of a metadata key or a tensor name. Default 65,535, the specification's bound for keys.
    pub name_bytes: u64,
    /// Bytes of one string value. Default 16 MiB; the longest in use are chat templates (tens of kB).
    pub string_bytes: u64,
    /// Elements of one array. Default 16,777,216.
    pub array_elements: u64,
    /// Arrays inside arrays. Default 4; no known key nests at all.
    pub array_depth: u32,
    /// `general.alignment` in bytes. Default 1 MiB; files in use have 32 or 64.
    pub alignment: u64,
}

impl Default for GgufLimits {
    fn default() -> Self {
        Self {
            header_bytes: 512 << 20,
            metadata_entries: 65_536,
            tensors: 262_144,
            name_bytes: 65_535,
            string_bytes: 16 << 20,
            array_elements: 1 << 24,
            array_depth: 4,
            alignment: 1 << 20,
        }
    }
}
