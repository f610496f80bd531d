// SPDX-License-Identifier: MIT OR Apache-2.0
//! GGUF versions 2 and 3: the header, without the tensor data.
//!
//! A GGUF file is a header (magic, version, counts, metadata key-values, tensor table), padding to
//! `general.alignment`, and a data section that the tensor table points into. The reader goes forward over any
//! [`Read`] and is told how long the file is, so it works on a file, on bytes, or on the first
//! megabytes of a download.
//!
//! Nothing in the file is trusted: a count is held against the bytes that can be left and against
//! [`GgufLimits`] before memory is taken for it, products and sums are checked, and a header that is
//! returned has been checked whole. What holds of every [`GgufHeader`]:
//!
//! - keys and tensor names are unique, UTF-8 and within limits;
//! - each tensor's `bytes` is exactly what its shape and type take, and lies inside the file, aligned,
//!   and apart from every other tensor;
//! - each row of a quantized tensor is a whole number of blocks.
//!
//! Source: the GGUF specification (ggml repository, `docs/gguf.md`).

mod cursor;
mod error;
mod limits;
mod metadata;
mod tensors;
mod value;

use std::collections::BTreeMap;
use std::io::Read;

pub use error::GgufError;
pub use limits::GgufLimits;
pub use tensors::GgufTensor;
pub use value::{GgufArray, GgufValue, StrTable};

use cursor::{At, Cursor};

/// Alignment of the data section where the file does not say, in bytes.
const DEFAULT_ALIGNMENT: u64 = 32;

/// A checked GGUF header.
#[derive(Debug, Clone)]
pub struct GgufHeader {
    version: u32,
    metadata: BTreeMap<String, GgufValue>,
    tensors: Vec<GgufTensor>,
    alignment: u64,
    data_offset: u64,
}

impl GgufHeader {
    /// Reads and checks a header from `reader`, which stands at the start of a file of `file_len` bytes.
    ///
    /// Reads in steps of 64 KiB, so it may take up to that much of the data section from the reader.
    ///
    /// # Errors
    /// Every [`GgufError`]; see the module for what is checked.
    pub fn read(reader: impl Read, file_len: u64, limits: &GgufLimits) -> Result<Self, GgufError> {
        let mut cursor = Cursor::new(reader, file_len, limits);
        let version = read_version(&mut cursor, file_len)?;
        let tensor_count = cursor.u64(At::Field("the tensor count"))?;
        let entry_count = cursor.u64(At::Field("the metadata count"))?;
        let metadata = metadata::read(&mut cursor, entry_count)?;
        let alignment = alignment(&metadata, limits)?;
        let table = tensors::read_table(&mut cursor, tensor_count)?;
        let header_end = cursor.offset();
        let data_offset = header_end
            .checked_next_multiple_of(alignment)
            .unwrap_or(u64::MAX);
        let tensors = tensors::place(table, data_offset, alignment, file_len)?;
        Ok(Self {
            version,
            metadata,
            tensors,
            alignment,
            data_offset,
        })
    }

    /// Reads a header from bytes that begin a file and may end anywhere after the header.
    ///
    /// # Errors
    /// As [`GgufHeader::read`].
    pub fn from_bytes(bytes: &[u8], file_len: u64, limits: &GgufLimits) -> Result<Self, GgufError> {
        Self::read(bytes, file_len, limits)
    }

    /// Format version: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// All metadata, by key.
    pub fn metadata(&self) -> &BTreeMap<String, GgufValue> {
        &self.metadata
    }

    /// One metadata value.
    pub fn get(&self, key: &str) -> Option<&GgufValue> {
        self.metadata.get(key)
    }

    /// The `tokenizer.*` entries, which the flat map leaves out.
    pub fn tokenizer(&self) -> impl Iterator<Item = (&str, &GgufValue)> {
        self.metadata
            .range("tokenizer.".to_owned()..)
            .take_while(|(key, _)| key.starts_with("tokenizer."))
            .map(|(key, value)| (key.as_str(), value))
    }

    /// The tensor table in file order.
    pub fn tensors(&self) -> &[GgufTensor] {
        &self.tensors
    }

    /// Alignment of tensors in the data section, bytes.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// Where the data section begins, bytes from the start of the file.
    pub fn data_offset(&self) -> u64 {
        self.data_offset
    }

    /// A required string value.
    ///
    /// # Errors
    /// [`GgufError::Key`] if the key is missing or not a string.
    pub fn require_str(&self, key: &str) -> Result<&str, GgufError> {
        let value = self
            .get(key)
            .ok_or_else(|| key_error(key, "is missing".to_owned()))?;
        value.as_str().ok_or_else(|| {
            key_error(
                key,
                format!("is a {}, expected a string", value.type_name()),
            )
        })
    }

    /// An optional unsigned integer; any integer type is taken.
    ///
    /// # Errors
    /// [`GgufError::Key`] if the key holds something else or a negative number.
    pub fn optional_u64(&self, key: &str) -> Result<Option<u64>, GgufError> {
        self.get(key)
            .map(|value| {
                value.as_u64().ok_or_else(|| {
                    let got = value.type_name();
                    key_error(key, format!("is a {got}, expected a non-negative integer"))
                })
            })
            .transpose()
    }
}

pub(crate) fn key_error(key: &str, why: String) -> GgufError {
    GgufError::Key {
        key: key.to_owned(),
        why,
    }
}

fn read_version<R: Read>(cursor: &mut Cursor<'_, R>, file_len: u64) -> Result<u32, GgufError> {
    let mut magic = Vec::new();
    while magic.len() < 4 && (magic.len() as u64) < file_len {
        let [byte] = cursor.array(At::Field("the magic"))?;
        magic.push(byte);
    }
    if magic != b"GGUF" {
        return Err(GgufError::Magic { found: magic });
    }
    match cursor.u32(At::Field("the version"))? {
        version @ 2..=3 => Ok(version),
        version if version.swap_bytes() <= 0xffff => Err(GgufError::BigEndian {
            version: version.swap_bytes(),
        }),
        version => Err(GgufError::Version { version }),
    }
}

fn alignment(
    metadata: &BTreeMap<String, GgufValue>,
    limits: &GgufLimits,
) -> Result<u64, GgufError> {
    const KEY: &str = "general.alignment";
    let Some(value) = metadata.get(KEY) else {
        return Ok(DEFAULT_ALIGNMENT);
    };
    match value.as_u64() {
        Some(n) if n > 0 && n % 8 == 0 && n <= limits.alignment => Ok(n),
        _ => Err(key_error(
            KEY,
            format!(
                "is {value}, expected a multiple of 8 from 8 to {}",
                limits.alignment
            ),
        )),
    }
}
