// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a GGUF header was refused. The blame is always the file's, except for [`GgufError::Io`].

use thiserror::Error;

/// A GGUF header that cannot be used. Offsets are bytes from the start of the file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The file does not begin with the four bytes `GGUF`.
    #[error(
        "not a GGUF file: it begins with {found:02x?} instead of \"GGUF\"; is it a download error page or another format?"
    )]
    Magic {
        /// The first bytes of the file (fewer than four if it is shorter).
        found: Vec<u8>,
    },
    /// A version that this reader does not know.
    #[error(
        "GGUF version {version} is not supported (2 and 3 are); convert the file again with a current converter"
    )]
    Version {
        /// The version as read, little-endian.
        version: u32,
    },
    /// A big-endian file: the version reads as a small number only with its bytes swapped.
    #[error(
        "this GGUF file is big-endian (version {version}); only little-endian files are supported, convert it again"
    )]
    BigEndian {
        /// The version in the file's own byte order.
        version: u32,
    },
    /// The file ends before what the header declares.
    #[error(
        "GGUF file is truncated: {what} at byte {offset} needs {needs} bytes, the file has {file_len}; fetch it again"
    )]
    Truncated {
        /// Which key, value or tensor.
        what: String,
        /// Where it begins.
        offset: u64,
        /// How many bytes it takes at least.
        needs: u64,
        /// Length of the file.
        file_len: u64,
    },
    /// A count or length above [`GgufLimits`](super::GgufLimits).
    #[error(
        "GGUF header: {what} at byte {offset} declares {value}, above the limit {limit} ({field})"
    )]
    Limit {
        /// Which key, value or tensor.
        what: String,
        /// Where it was read.
        offset: u64,
        /// The declared value.
        value: u64,
        /// The bound.
        limit: u64,
        /// The field of `GgufLimits` that set it.
        field: &'static str,
    },
    /// Bytes that should be UTF-8 are not.
    #[error("GGUF header: {what} at byte {offset} is not UTF-8")]
    Utf8 {
        /// Which key, value or tensor.
        what: String,
        /// Where the string begins.
        offset: u64,
    },
    /// A metadata value type outside the specification.
    #[error(
        "GGUF header: {what} at byte {offset} has value type {found}, which the format does not define"
    )]
    ValueType {
        /// Which key.
        what: String,
        /// Where the type stands.
        offset: u64,
        /// The type as read.
        found: u32,
    },
    /// A boolean that is neither 0 nor 1.
    #[error("GGUF header: {what} at byte {offset} is a boolean with value {found}")]
    Bool {
        /// Which key.
        what: String,
        /// Where it stands.
        offset: u64,
        /// The byte as read.
        found: u8,
    },
    /// One key, or one tensor name, twice.
    #[error("GGUF header: {what} occurs twice")]
    Duplicate {
        /// Which key or tensor.
        what: String,
    },
    /// A known key with a value of another type or outside its range.
    #[error("GGUF key `{key}` {why}")]
    Key {
        /// The key.
        key: String,
        /// What is wrong and what was expected, as a predicate ("is 0, expected ...").
        why: String,
    },
    /// A tensor whose type this engine does not read.
    #[error(
        "GGUF tensor `{tensor}` has ggml type {id}{name}, which is not supported; use another quantization of the model"
    )]
    TensorType {
        /// The tensor.
        tensor: String,
        /// The ggml type number.
        id: u32,
        /// Its name in parentheses, or empty if unknown.
        name: String,
    },
    /// A tensor whose dimensions cannot be right.
    #[error("GGUF tensor `{tensor}`, dimensions {dims:?} (innermost first): {why}")]
    TensorShape {
        /// The tensor.
        tensor: String,
        /// As in the file: innermost first.
        dims: Vec<u64>,
        /// What is wrong.
        why: String,
    },
    /// A tensor whose bytes are not where they can be.
    #[error(
        "GGUF tensor `{tensor}`, {bytes} bytes at offset {offset} of the data section (byte {data_offset}): {why}"
    )]
    TensorOffset {
        /// The tensor.
        tensor: String,
        /// Offset from the start of the data section.
        offset: u64,
        /// Bytes of the tensor.
        bytes: u64,
        /// Where the data section begins in the file.
        data_offset: u64,
        /// What is wrong.
        why: String,
    },
    /// Reading failed.
    #[error("reading the GGUF header at byte {offset}: {source}")]
    Io {
        /// Where.
        offset: u64,
        /// The reader's error.
        source: std::io::Error,
    },
}
