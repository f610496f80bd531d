// SPDX-License-Identifier: MIT OR Apache-2.0
//! The key-value section.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::Read;

use super::cursor::{At, Cursor};
use super::{GgufArray, GgufError, GgufValue, StrTable};

/// Least bytes of an entry: an empty key (8), a type (4), a value (1).
const MIN_ENTRY: u64 = 13;
/// Least bytes of a string.
const MIN_STRING: u64 = 8;
/// Least bytes of a nested array: element type and count.
const MIN_ARRAY: u64 = 12;

pub(super) fn read<R: Read>(
    cursor: &mut Cursor<'_, R>,
    count: u64,
) -> Result<BTreeMap<String, GgufValue>, GgufError> {
    let at = At::Field("the metadata");
    cursor.need(count.saturating_mul(MIN_ENTRY), at)?;
    cursor.within(
        count,
        cursor.limits.metadata_entries,
        "metadata_entries",
        at,
    )?;
    let mut map = BTreeMap::new();
    let mut text = Vec::new();
    for n in 0..count {
        let key = string(cursor, &mut text, Kind::Name, At::Key(n))?.to_owned();
        let ty = cursor.u32(At::Value(&key))?;
        let value = read_value(cursor, ty, &key, &mut text)?;
        match map.entry(key) {
            Entry::Vacant(slot) => slot.insert(value),
            Entry::Occupied(slot) => {
                let what = format!("key `{}`", slot.key());
                return Err(GgufError::Duplicate { what });
            }
        };
    }
    Ok(map)
}

#[derive(Clone, Copy)]
pub(super) enum Kind {
    Name,
    Value,
}

/// A string into `text`, given back as the `str` it was checked to be.
pub(super) fn string<'t, R: Read>(
    cursor: &mut Cursor<'_, R>,
    text: &'t mut Vec<u8>,
    kind: Kind,
    at: At<'_>,
) -> Result<&'t str, GgufError> {
    let (limit, field) = match kind {
        Kind::Name => (cursor.limits.name_bytes, "name_bytes"),
        Kind::Value => (cursor.limits.string_bytes, "string_bytes"),
    };
    let offset = cursor.offset();
    cursor.string(text, limit, field, at)?;
    std::str::from_utf8(text).map_err(|_| GgufError::Utf8 {
        what: at.to_string(),
        offset,
    })
}

fn read_value<R: Read>(
    cursor: &mut Cursor<'_, R>,
    ty: u32,
    key: &str,
    text: &mut Vec<u8>,
) -> Result<GgufValue, GgufError> {
    let at = At::Value(key);
    Ok(match ty {
        0 => GgufValue::U8(u8::from_le_bytes(cursor.array(at)?)),
        1 => GgufValue::I8(i8::from_le_bytes(cursor.array(at)?)),
        2 => GgufValue::U16(u16::from_le_bytes(cursor.array(at)?)),
        3 => GgufValue::I16(i16::from_le_bytes(cursor.array(at)?)),
        4 => GgufValue::U32(cursor.u32(at)?),
        5 => GgufValue::I32(i32::from_le_bytes(cursor.array(at)?)),
        6 => GgufValue::F32(f32::from_le_bytes(cursor.array(at)?)),
        7 => {
            let offset = cursor.offset();
            match cursor.array(at)? {
                [0] => GgufValue::Bool(false),
                [1] => GgufValue::Bool(true),
                [found] => {
                    return Err(GgufError::Bool {
                        what: at.to_string(),
                        offset,
                        found,
                    });
                }
            }
        }
        8 => GgufValue::Str(string(cursor, text, Kind::Value, at)?.to_owned()),
        9 => GgufValue::Array(read_array(cursor, key, text, 1)?),
        10 => GgufValue::U64(cursor.u64(at)?),
        11 => GgufValue::I64(i64::from_le_bytes(cursor.array(at)?)),
        12 => GgufValue::F64(f64::from_le_bytes(cursor.array(at)?)),
        found => {
            let offset = cursor.offset() - 4;
            return Err(GgufError::ValueType {
                what: at.to_string(),
                offset,
                found,
            });
        }
    })
}

fn read_array<R: Read>(
    cursor: &mut Cursor<'_, R>,
    key: &str,
    text: &mut Vec<u8>,
    depth: u32,
) -> Result<GgufArray, GgufError> {
    let at = At::Value(key);
    let limit = u64::from(cursor.limits.array_depth);
    cursor.within(depth.into(), limit, "array_depth", at)?;
    let type_offset = cursor.offset();
    let ty = cursor.u32(at)?;
    let count = cursor.u64(at)?;
    cursor.need(count, at)?;
    cursor.within(count, cursor.limits.array_elements, "array_elements", at)?;
    Ok(match ty {
        0 => GgufArray::U8(cursor.elements(count, at, u8::from_le_bytes)?),
        1 => GgufArray::I8(cursor.elements(count, at, i8::from_le_bytes)?),
        2 => GgufArray::U16(cursor.elements(count, at, u16::from_le_bytes)?),
        3 => GgufArray::I16(cursor.elements(count, at, i16::from_le_bytes)?),
        4 => GgufArray::U32(cursor.elements(count, at, u32::from_le_bytes)?),
        5 => GgufArray::I32(cursor.elements(count, at, i32::from_le_bytes)?),
        6 => GgufArray::F32(cursor.elements(count, at, f32::from_le_bytes)?),
        7 => GgufArray::Bool(read_bools(cursor, key, count)?),
        8 => GgufArray::Str(read_strings(cursor, key, count, text)?),
        9 => {
            cursor.need(count.saturating_mul(MIN_ARRAY), at)?;
            let mut out = Vec::new();
            for _ in 0..count {
                out.push(read_array(cursor, key, text, depth + 1)?);
            }
            GgufArray::Array(out)
        }
        10 => GgufArray::U64(cursor.elements(count, at, u64::from_le_bytes)?),
        11 => GgufArray::I64(cursor.elements(count, at, i64::from_le_bytes)?),
        12 => GgufArray::F64(cursor.elements(count, at, f64::from_le_bytes)?),
        found => {
            let what = format!("the element type of {at}");
            return Err(GgufError::ValueType {
                what,
                offset: type_offset,
                found,
            });
        }
    })
}

fn read_bools<R: Read>(
    cursor: &mut Cursor<'_, R>,
    key: &str,
    count: u64,
) -> Result<Vec<bool>, GgufError> {
    let start = cursor.offset();
    let bytes = cursor.elements(count, At::Value(key), u8::from_le_bytes)?;
    if let Some((n, &found)) = bytes.iter().enumerate().find(|(_, b)| **b > 1) {
        let what = At::Element(key, n as u64).to_string();
        return Err(GgufError::Bool {
            what,
            offset: start + n as u64,
            found,
        });
    }
    Ok(bytes.into_iter().map(|b| b == 1).collect())
}

fn read_strings<R: Read>(
    cursor: &mut Cursor<'_, R>,
    key: &str,
    count: u64,
    text: &mut Vec<u8>,
) -> Result<StrTable, GgufError> {
    cursor.need(count.saturating_mul(MIN_STRING), At::Value(key))?;
    let mut table = StrTable::default();
    for n in 0..count {
        let at = At::Element(key, n);
        let s = string(cursor, text, Kind::Value, at)?;
        if !table.push(s) {
            return Err(GgufError::Limit {
                what: at.to_string(),
                offset: cursor.offset(),
                value: u64::from(u32::MAX) + 1,
                limit: u64::from(u32::MAX),
                field: "bytes of one array of strings",
            });
        }
    }
    Ok(table)
}
