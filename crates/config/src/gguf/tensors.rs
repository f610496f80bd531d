// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tensor table.

use std::collections::HashSet;
use std::io::Read;

use metrale_core::Elem;

use super::cursor::{At, Cursor};
use super::metadata::{Kind, string};
use super::{GgufError, GgufTensor as Tensor};

/// Least bytes of an entry: an empty name (8), dimension count (4), type (4), offset (8).
const MIN_ENTRY: u64 = 24;
/// Dimensions of a tensor, by the specification.
const MAX_DIMS: u32 = 4;

/// One tensor of a GGUF file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GgufTensor {
    /// Its name, e.g. `blk.0.attn_q.weight`.
    pub name: String,
    /// Element format.
    pub elem: Elem,
    /// Dimensions, outermost first: `[rows, cols]` for a matrix that maps `cols` inputs to `rows` outputs.
    /// The file itself lists them innermost first.
    pub shape: Vec<u64>,
    /// First byte of its data, from the start of the file.
    pub offset: u64,
    /// Bytes of its data.
    pub bytes: u64,
}

/// An entry as read, its place not yet checked.
pub(super) struct Entry {
    name: String,
    elem: Elem,
    shape: Vec<u64>,
    bytes: u64,
    relative: u64,
}

pub(super) fn read_table<R: Read>(
    cursor: &mut Cursor<'_, R>,
    count: u64,
) -> Result<Vec<Entry>, GgufError> {
    let at = At::Field("the tensor table");
    cursor.need(count.saturating_mul(MIN_ENTRY), at)?;
    cursor.within(count, cursor.limits.tensors, "tensors", at)?;
    let mut entries = Vec::new();
    let mut text = Vec::new();
    for n in 0..count {
        let name = string(cursor, &mut text, Kind::Name, At::Entry(n))?.to_owned();
        entries.push(read_entry(cursor, name)?);
    }
    let mut names = HashSet::with_capacity(entries.len());
    if let Some(twice) = entries.iter().find(|e| !names.insert(e.name.as_str())) {
        return Err(GgufError::Duplicate {
            what: format!("tensor `{}`", twice.name),
        });
    }
    Ok(entries)
}

fn read_entry<R: Read>(cursor: &mut Cursor<'_, R>, name: String) -> Result<Entry, GgufError> {
    let at = At::Tensor(&name);
    let dim_count = cursor.u32(at)?;
    if dim_count > MAX_DIMS {
        let why = format!("{dim_count} dimensions, at most {MAX_DIMS} are allowed");
        return Err(GgufError::TensorShape {
            tensor: name,
            dims: Vec::new(),
            why,
        });
    }
    let mut dims = Vec::with_capacity(MAX_DIMS as usize);
    for _ in 0..dim_count {
        dims.push(cursor.u64(at)?);
    }
    let id = cursor.u32(at)?;
    let relative = cursor.u64(at)?;
    let Some(elem) = Elem::from_ggml(id) else {
        let known = ggml_name(id).map(|n| format!(" ({n})")).unwrap_or_default();
        return Err(GgufError::TensorType {
            tensor: name,
            id,
            name: known,
        });
    };
    let bytes = match byte_size(elem, &dims) {
        Ok(bytes) => bytes,
        Err(why) => {
            return Err(GgufError::TensorShape {
                tensor: name,
                dims,
                why,
            });
        }
    };
    dims.reverse();
    Ok(Entry {
        name,
        elem,
        shape: dims,
        bytes,
        relative,
    })
}

/// Bytes of a tensor with `dims` innermost first, or what is wrong with them.
fn byte_size(elem: Elem, dims: &[u64]) -> Result<u64, String> {
    if dims.contains(&0) {
        return Err("a dimension is 0".to_owned());
    }
    let overflow = || "its size overflows 64 bits".to_owned();
    let row = dims.first().copied().unwrap_or(1);
    let row_bytes =
        elem.bytes_for(row)
            .ok_or_else(|| match row % u64::from(elem.block_elems()) {
                0 => overflow(),
                _ => format!(
                    "{elem} stores blocks of {}, a row is no whole number",
                    elem.block_elems()
                ),
            })?;
    let bytes = dims
        .iter()
        .skip(1)
        .try_fold(row_bytes, |acc, &d| acc.checked_mul(d));
    let elems = dims.iter().try_fold(1u64, |acc, &d| acc.checked_mul(d));
    elems.and(bytes).ok_or_else(overflow)
}

/// Gives each entry its place in the file, having checked alignment, bounds and overlap.
pub(super) fn place(
    entries: Vec<Entry>,
    data_offset: u64,
    alignment: u64,
    file_len: u64,
) -> Result<Vec<Tensor>, GgufError> {
    let mut tensors = Vec::with_capacity(entries.len());
    for entry in entries {
        let Entry {
            name,
            elem,
            shape,
            bytes,
            relative,
        } = entry;
        let refuse = |why: String| GgufError::TensorOffset {
            tensor: name.clone(),
            offset: relative,
            bytes,
            data_offset,
            why,
        };
        if relative % alignment != 0 {
            return Err(refuse(format!(
                "the offset is no multiple of the alignment {alignment}"
            )));
        }
        let offset = data_offset.checked_add(relative);
        let end = offset.and_then(|o| o.checked_add(bytes));
        let (Some(offset), Some(end)) = (offset, end) else {
            return Err(refuse("its end overflows 64 bits".to_owned()));
        };
        if end > file_len {
            return Err(refuse(format!(
                "it ends at byte {end}, the file has {file_len}; fetch the file again"
            )));
        }
        tensors.push(Tensor {
            name,
            elem,
            shape,
            offset,
            bytes,
        });
    }
    check_overlap(&tensors, data_offset)?;
    Ok(tensors)
}

fn check_overlap(tensors: &[Tensor], data_offset: u64) -> Result<(), GgufError> {
    let mut order: Vec<&Tensor> = tensors.iter().collect();
    order.sort_by_key(|t| t.offset);
    for pair in order.windows(2) {
        let [first, second] = pair else { continue };
        if first.offset + first.bytes > second.offset {
            return Err(GgufError::TensorOffset {
                tensor: second.name.clone(),
                offset: second.offset - data_offset,
                bytes: second.bytes,
                data_offset,
                why: format!("it overlaps tensor `{}`", first.name),
            });
        }
    }
    Ok(())
}

/// Names of ggml types that no [`Elem`] stands for, so that the refusal can say them.
fn ggml_name(id: u32) -> Option<&'static str> {
    Some(match id {
        4 => "Q4_2, withdrawn",
        5 => "Q4_3, withdrawn",
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        21 => "IQ3_S",
        22 => "IQ2_S",
        29 => "IQ1_M",
        31 => "Q4_0_4_4, withdrawn",
        32 => "Q4_0_4_8, withdrawn",
        33 => "Q4_0_8_8, withdrawn",
        34 => "TQ1_0",
        35 => "TQ2_0",
        _ => return None,
    })
}
