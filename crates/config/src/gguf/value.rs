// SPDX-License-Identifier: MIT OR Apache-2.0
//! Metadata values of a GGUF header.

use std::fmt;

/// One metadata value, in the type the file gives it.
#[derive(Debug, Clone, PartialEq)]
pub enum GgufValue {
    /// Type 0.
    U8(u8),
    /// Type 1.
    I8(i8),
    /// Type 2.
    U16(u16),
    /// Type 3.
    I16(i16),
    /// Type 4.
    U32(u32),
    /// Type 5.
    I32(i32),
    /// Type 6.
    F32(f32),
    /// Type 7.
    Bool(bool),
    /// Type 8.
    Str(String),
    /// Type 9.
    Array(GgufArray),
    /// Type 10.
    U64(u64),
    /// Type 11.
    I64(i64),
    /// Type 12.
    F64(f64),
}

impl GgufValue {
    /// The value as an unsigned integer, if it is an integer and not negative.
    pub fn as_u64(&self) -> Option<u64> {
        u64::try_from(self.as_i128()?).ok()
    }

    /// The value as a signed integer, if it is an integer that fits.
    pub fn as_i64(&self) -> Option<i64> {
        i64::try_from(self.as_i128()?).ok()
    }

    /// The value as a number; integers are converted.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Self::F32(v) => Some(f64::from(*v)),
            Self::F64(v) => Some(*v),
            _ => self.as_i128().map(|v| v as f64),
        }
    }

    /// The value if it is a boolean.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(v) => Some(*v),
            _ => None,
        }
    }

    /// The value if it is a string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(v) => Some(v),
            _ => None,
        }
    }

    /// The value if it is an array.
    pub fn as_array(&self) -> Option<&GgufArray> {
        match self {
            Self::Array(v) => Some(v),
            _ => None,
        }
    }

    /// The value if it is an array of strings (tokens, merges).
    pub fn as_strings(&self) -> Option<&StrTable> {
        match self {
            Self::Array(GgufArray::Str(v)) => Some(v),
            _ => None,
        }
    }

    /// What the value is, for messages: `u32`, `string`, `array of f32`.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::U8(_) => "u8",
            Self::I8(_) => "i8",
            Self::U16(_) => "u16",
            Self::I16(_) => "i16",
            Self::U32(_) => "u32",
            Self::I32(_) => "i32",
            Self::F32(_) => "f32",
            Self::Bool(_) => "bool",
            Self::Str(_) => "string",
            Self::Array(_) => "array",
            Self::U64(_) => "u64",
            Self::I64(_) => "i64",
            Self::F64(_) => "f64",
        }
    }

    fn as_i128(&self) -> Option<i128> {
        Some(match *self {
            Self::U8(v) => v.into(),
            Self::I8(v) => v.into(),
            Self::U16(v) => v.into(),
            Self::I16(v) => v.into(),
            Self::U32(v) => v.into(),
            Self::I32(v) => v.into(),
            Self::U64(v) => v.into(),
            Self::I64(v) => v.into(),
            _ => return None,
        })
    }
}

impl fmt::Display for GgufValue {
    /// As messages show it: strings quoted, arrays by their length alone.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::F32(v) => write!(f, "{v}"),
            Self::F64(v) => write!(f, "{v}"),
            Self::Bool(v) => write!(f, "{v}"),
            Self::Str(v) => write!(f, "{v:?}"),
            Self::Array(v) => write!(f, "an array of {}", v.len()),
            integer => write!(f, "{}", integer.as_i128().unwrap_or_default()),
        }
    }
}

/// An array value; all elements have one type.
#[derive(Debug, Clone, PartialEq)]
pub enum GgufArray {
    /// Elements of type 0.
    U8(Vec<u8>),
    /// Elements of type 1.
    I8(Vec<i8>),
    /// Elements of type 2.
    U16(Vec<u16>),
    /// Elements of type 3.
    I16(Vec<i16>),
    /// Elements of type 4.
    U32(Vec<u32>),
    /// Elements of type 5.
    I32(Vec<i32>),
    /// Elements of type 6.
    F32(Vec<f32>),
    /// Elements of type 7.
    Bool(Vec<bool>),
    /// Elements of type 8.
    Str(StrTable),
    /// Arrays in an array.
    Array(Vec<GgufArray>),
    /// Elements of type 10.
    U64(Vec<u64>),
    /// Elements of type 11.
    I64(Vec<i64>),
    /// Elements of type 12.
    F64(Vec<f64>),
}

impl GgufArray {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::U8(v) => v.len(),
            Self::I8(v) => v.len(),
            Self::U16(v) => v.len(),
            Self::I16(v) => v.len(),
            Self::U32(v) => v.len(),
            Self::I32(v) => v.len(),
            Self::F32(v) => v.len(),
            Self::Bool(v) => v.len(),
            Self::Str(v) => v.len(),
            Self::Array(v) => v.len(),
            Self::U64(v) => v.len(),
            Self::I64(v) => v.len(),
            Self::F64(v) => v.len(),
        }
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Element `index` as a value of its own (a string or nested array is cloned).
    pub fn get(&self, index: usize) -> Option<GgufValue> {
        Some(match self {
            Self::U8(v) => GgufValue::U8(*v.get(index)?),
            Self::I8(v) => GgufValue::I8(*v.get(index)?),
            Self::U16(v) => GgufValue::U16(*v.get(index)?),
            Self::I16(v) => GgufValue::I16(*v.get(index)?),
            Self::U32(v) => GgufValue::U32(*v.get(index)?),
            Self::I32(v) => GgufValue::I32(*v.get(index)?),
            Self::F32(v) => GgufValue::F32(*v.get(index)?),
            Self::Bool(v) => GgufValue::Bool(*v.get(index)?),
            Self::Str(v) => GgufValue::Str(v.get(index)?.to_owned()),
            Self::Array(v) => GgufValue::Array(v.get(index)?.clone()),
            Self::U64(v) => GgufValue::U64(*v.get(index)?),
            Self::I64(v) => GgufValue::I64(*v.get(index)?),
            Self::F64(v) => GgufValue::F64(*v.get(index)?),
        })
    }

    /// All elements as values of their own.
    pub fn iter(&self) -> impl Iterator<Item = GgufValue> + '_ {
        (0..self.len()).filter_map(|i| self.get(i))
    }
}

/// Many strings in one allocation: a vocabulary of 262,144 tokens is two buffers, not 262,145.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StrTable {
    text: String,
    ends: Vec<u32>,
}

impl StrTable {
    /// Number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no string.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// String `index`.
    pub fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)? as usize;
        let start = match index {
            0 => 0,
            _ => self.ends[index - 1] as usize,
        };
        self.text.get(start..end)
    }

    /// The strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> + '_ {
        let mut start = 0;
        self.ends.iter().map(move |&end| {
            let s = &self.text[start..end as usize];
            start = end as usize;
            s
        })
    }

    /// Appends a string; false if the table would pass 4 GiB.
    pub(super) fn push(&mut self, s: &str) -> bool {
        let Ok(end) = u32::try_from(self.text.len() + s.len()) else {
            return false;
        };
        self.text.push_str(s);
        self.ends.push(end);
        true
    }
}
