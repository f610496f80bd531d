// SPDX-License-Identifier: MIT OR Apache-2.0
//! The safetensors header, read and checked over bytes.
//!
//! A file is eight bytes of header length, a JSON object from tensor name to dtype, shape and byte range, and the data.
//! A header that is returned holds: names are unique, each range is exactly what shape and dtype take, and the ranges
//! cover the data without overlap, hole or rest. Source: the format section of the safetensors repository's README.

use std::collections::{HashMap, HashSet};
use std::fmt;

use metrale_core::Elem;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use thiserror::Error;

/// Bytes of a header at most, as in the reference implementation.
pub const MAX_HEADER: u64 = 100_000_000;
/// Bytes before the header.
pub const PREFIX: u64 = 8;
/// The one key that is no tensor.
const METADATA: &str = "__metadata__";

/// One tensor of a safetensors file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderTensor {
    /// Its name.
    pub name: String,
    /// Element format.
    pub elem: Elem,
    /// Dimensions, outermost first.
    pub shape: Vec<u64>,
    /// First byte of its data, from the start of the file.
    pub offset: u64,
    /// Bytes of its data.
    pub bytes: u64,
}

/// A safetensors header that cannot be used.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum SafetensorsError {
    /// Fewer than eight bytes.
    #[error("not a safetensors file: it has {file_len} bytes, the header length alone takes 8")]
    TooShort {
        /// Bytes of the file.
        file_len: u64,
    },
    /// The header would be longer than allowed.
    #[error(
        "not a safetensors file, or a hostile one: its header would have {len} bytes, the format allows {MAX_HEADER}"
    )]
    HeaderTooLong {
        /// The declared length.
        len: u64,
    },
    /// The header would be longer than the file.
    #[error("truncated: the header has {len} bytes, the file {file_len} in all; fetch it again")]
    HeaderPastEnd {
        /// The declared length.
        len: u64,
        /// Bytes of the file.
        file_len: u64,
    },
    /// The header is not the JSON that it should be.
    #[error("header, line {line}, column {column}: {why}")]
    Json {
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What is wrong.
        why: String,
    },
    /// A dtype that this engine does not read.
    #[error("tensor `{tensor}` has dtype {dtype:?}, which is not supported")]
    Dtype {
        /// The tensor.
        tensor: String,
        /// The dtype as written.
        dtype: String,
    },
    /// Shape, dtype and byte range do not agree.
    #[error("tensor `{tensor}`, {elem} {shape:?} at bytes {begin}..{end} of the data: {why}")]
    Range {
        /// The tensor.
        tensor: String,
        /// Its dtype.
        elem: Elem,
        /// Its shape.
        shape: Vec<u64>,
        /// First byte, from the start of the data.
        begin: u64,
        /// One past the last byte.
        end: u64,
        /// What is wrong.
        why: String,
    },
    /// Bytes of the data that belong to no tensor.
    #[error(
        "bytes {begin}..{end} of the data belong to no tensor; the file is damaged or not safetensors"
    )]
    Hole {
        /// First byte, from the start of the data.
        begin: u64,
        /// One past the last byte.
        end: u64,
    },
}

/// The header's length from the first eight bytes of a file of `file_len` bytes.
///
/// # Errors
/// A length above [`MAX_HEADER`] or past the end of the file.
pub fn header_len(prefix: [u8; 8], file_len: u64) -> Result<u64, SafetensorsError> {
    let len = u64::from_le_bytes(prefix);
    if file_len < PREFIX {
        return Err(SafetensorsError::TooShort { file_len });
    }
    if len > MAX_HEADER {
        return Err(SafetensorsError::HeaderTooLong { len });
    }
    if len > file_len - PREFIX {
        return Err(SafetensorsError::HeaderPastEnd { len, file_len });
    }
    Ok(len)
}

/// Reads the header of a file that begins with `bytes` and has `file_len` bytes.
///
/// # Errors
/// [`SafetensorsError`]; also if `bytes` ends before the header does.
pub fn read_header(bytes: &[u8], file_len: u64) -> Result<Vec<HeaderTensor>, SafetensorsError> {
    let Some((prefix, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(SafetensorsError::TooShort {
            file_len: bytes.len() as u64,
        });
    };
    let len = header_len(*prefix, file_len)?;
    let Some(json) = rest.get(..len as usize) else {
        return Err(SafetensorsError::HeaderPastEnd {
            len,
            file_len: bytes.len() as u64,
        });
    };
    parse_header(json, file_len)
}

/// Checks the JSON of a header, which lies at byte 8 of a file of `file_len` bytes. Tensors come in data order.
///
/// # Errors
/// [`SafetensorsError`].
pub fn parse_header(json: &[u8], file_len: u64) -> Result<Vec<HeaderTensor>, SafetensorsError> {
    let entries = serde_json::from_slice::<Entries>(json).map_err(|e| SafetensorsError::Json {
        line: e.line(),
        column: e.column(),
        why: e.to_string(),
    })?;
    let data = PREFIX + json.len() as u64;
    let data_len = file_len.saturating_sub(data);
    let mut tensors = Vec::with_capacity(entries.0.len());
    for (name, info) in entries.0 {
        tensors.push(check(name, info, data_len)?);
    }
    tensors.sort_by_key(|t| (t.offset, t.bytes));
    check_cover(&tensors, data_len)?;
    for tensor in &mut tensors {
        tensor.offset += data;
    }
    Ok(tensors)
}

/// One entry, its offset still relative to the data.
fn check(name: String, info: Info, data_len: u64) -> Result<HeaderTensor, SafetensorsError> {
    let Info {
        dtype,
        shape,
        data_offsets: (begin, end),
    } = info;
    let Some(elem) = Elem::from_safetensors(&dtype) else {
        return Err(SafetensorsError::Dtype {
            tensor: name,
            dtype,
        });
    };
    let elems = shape.iter().try_fold(1u64, |acc, &d| acc.checked_mul(d));
    let bytes = elems.and_then(|n| elem.bytes_for(n));
    let why = match bytes {
        None => Some("the size of the shape overflows 64 bits".to_owned()),
        Some(_) if begin > end => Some("the range is reversed".to_owned()),
        Some(bytes) if end - begin != bytes => Some(format!("the shape takes {bytes} bytes")),
        Some(_) if end > data_len => Some(format!(
            "the file has only {data_len} bytes of data; fetch it again"
        )),
        Some(_) => None,
    };
    match why {
        Some(why) => Err(SafetensorsError::Range {
            tensor: name,
            elem,
            shape,
            begin,
            end,
            why,
        }),
        None => Ok(HeaderTensor {
            name,
            elem,
            shape,
            offset: begin,
            bytes: end - begin,
        }),
    }
}

/// That the sorted ranges follow each other without a gap from 0 to `data_len`.
fn check_cover(tensors: &[HeaderTensor], data_len: u64) -> Result<(), SafetensorsError> {
    let mut covered = 0;
    let mut last = "";
    for t in tensors {
        if t.offset < covered {
            return Err(SafetensorsError::Range {
                tensor: t.name.clone(),
                elem: t.elem,
                shape: t.shape.clone(),
                begin: t.offset,
                end: t.offset + t.bytes,
                why: format!("it overlaps tensor `{last}`"),
            });
        }
        if t.offset > covered {
            return Err(SafetensorsError::Hole {
                begin: covered,
                end: t.offset,
            });
        }
        covered = t.offset + t.bytes;
        last = &t.name;
    }
    if covered < data_len {
        return Err(SafetensorsError::Hole {
            begin: covered,
            end: data_len,
        });
    }
    Ok(())
}

/// A tensor's entry as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Info {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// The header's object, with duplicate names refused and `__metadata__` left out.
struct Entries(Vec<(String, Info)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(de: D) -> Result<Self, D::Error> {
        struct Header;

        impl<'de> Visitor<'de> for Header {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object from tensor name to dtype, shape and data_offsets")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                let mut seen = HashSet::new();
                while let Some(name) = map.next_key::<String>()? {
                    if !seen.insert(name.clone()) {
                        return Err(A::Error::custom(format_args!(
                            "tensor {name:?} occurs twice"
                        )));
                    }
                    if name == METADATA {
                        map.next_value::<Option<HashMap<String, String>>>()?;
                    } else {
                        entries.push((name, map.next_value::<Info>()?));
                    }
                }
                Ok(Entries(entries))
            }
        }

        de.deserialize_map(Header)
    }
}
