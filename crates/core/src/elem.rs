// SPDX-License-Identifier: MIT OR Apache-2.0
//! Element formats: how the values of a tensor lie in bytes, on disk or in an arena.
//!
//! A format is a block of `elems` values in `bytes` bytes; plain types are blocks of one. The ggml block formats follow
//! the GGUF specification (ggml/docs/gguf.md) and the sizes published with it.

use std::fmt;

/// One element format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)] // the variants are the field's own names; `TABLE` states their layout
pub enum Elem {
    F32,
    F16,
    BF16,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    U32,
    F8E4M3,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Iq4Nl,
    Iq4Xs,
    Mxfp4,
    /// Activations of class cpu: per 32 values an f32 scale, an f32 sum (scale times the integer sum) and 32 int16.
    A16,
    /// A row of e4m3 values with one f32 scale ([`crate::fp8`]).
    F8Row,
    /// A row of e4m3 values with an f32 scale per 128 columns ([`crate::fp8`]).
    F8Block,
}

struct Row {
    elem: Elem,
    name: &'static str,
    elems: u32,
    bytes: u32,
    ggml: Option<u32>,
    safetensors: Option<&'static str>,
}

const fn row(
    elem: Elem,
    name: &'static str,
    elems: u32,
    bytes: u32,
    ggml: Option<u32>,
    safetensors: Option<&'static str>,
) -> Row {
    Row {
        elem,
        name,
        elems,
        bytes,
        ggml,
        safetensors,
    }
}

/// In the order of the enum: a test holds that.
const TABLE: &[Row] = &[
    row(Elem::F32, "f32", 1, 4, Some(0), Some("F32")),
    row(Elem::F16, "f16", 1, 2, Some(1), Some("F16")),
    row(Elem::BF16, "bf16", 1, 2, Some(30), Some("BF16")),
    row(Elem::F64, "f64", 1, 8, Some(28), Some("F64")),
    row(Elem::I8, "i8", 1, 1, Some(24), Some("I8")),
    row(Elem::I16, "i16", 1, 2, Some(25), Some("I16")),
    row(Elem::I32, "i32", 1, 4, Some(26), Some("I32")),
    row(Elem::I64, "i64", 1, 8, Some(27), Some("I64")),
    row(Elem::U8, "u8", 1, 1, None, Some("U8")),
    row(Elem::U32, "u32", 1, 4, None, Some("U32")),
    row(Elem::F8E4M3, "f8_e4m3", 1, 1, None, Some("F8_E4M3")),
    row(Elem::Q4_0, "q4_0", 32, 18, Some(2), None),
    row(Elem::Q4_1, "q4_1", 32, 20, Some(3), None),
    row(Elem::Q5_0, "q5_0", 32, 22, Some(6), None),
    row(Elem::Q5_1, "q5_1", 32, 24, Some(7), None),
    row(Elem::Q8_0, "q8_0", 32, 34, Some(8), None),
    row(Elem::Q2K, "q2_k", 256, 84, Some(10), None),
    row(Elem::Q3K, "q3_k", 256, 110, Some(11), None),
    row(Elem::Q4K, "q4_k", 256, 144, Some(12), None),
    row(Elem::Q5K, "q5_k", 256, 176, Some(13), None),
    row(Elem::Q6K, "q6_k", 256, 210, Some(14), None),
    row(Elem::Iq4Nl, "iq4_nl", 32, 18, Some(20), None),
    row(Elem::Iq4Xs, "iq4_xs", 256, 136, Some(23), None),
    row(Elem::Mxfp4, "mxfp4", 32, 17, Some(39), None),
    row(Elem::A16, "a16", 32, 72, None, None),
    row(Elem::F8Row, "f8_row", 1, 1, None, None),
    row(Elem::F8Block, "f8_block", 1, 1, None, None),
];

impl Elem {
    /// Every format, in the order of the enum.
    pub fn all() -> impl Iterator<Item = Elem> {
        TABLE.iter().map(|r| r.elem)
    }

    fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }

    /// The lower-case name used in manifests, point ids and messages (`q4_1`, `bf16`).
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Values in one block (1 for plain types).
    #[must_use]
    pub fn block_elems(self) -> u32 {
        self.row().elems
    }

    /// Bytes of one block.
    #[must_use]
    pub fn block_bytes(self) -> u32 {
        self.row().bytes
    }

    /// Bytes of `elems` values; `None` if they are no whole number of blocks, or if the size overflows. Formats with
    /// scales behind a row's values ([`crate::fp8`]) count `elems` as one row.
    #[must_use]
    pub fn bytes_for(self, elems: u64) -> Option<u64> {
        if let Some(scales) = crate::fp8::scales(self, elems) {
            return crate::fp8::pitch(elems, scales);
        }
        let block = u64::from(self.block_elems());
        if !elems.is_multiple_of(block) {
            return None;
        }
        (elems / block).checked_mul(u64::from(self.block_bytes()))
    }

    /// The format of a GGUF tensor type id.
    #[must_use]
    pub fn from_ggml(id: u32) -> Option<Elem> {
        TABLE.iter().find(|r| r.ggml == Some(id)).map(|r| r.elem)
    }

    /// The format of a safetensors dtype (`"BF16"`).
    #[must_use]
    pub fn from_safetensors(dtype: &str) -> Option<Elem> {
        TABLE
            .iter()
            .find(|r| r.safetensors == Some(dtype))
            .map(|r| r.elem)
    }

    /// The format of a manifest name (`"q4_1"`).
    #[must_use]
    pub fn from_name(name: &str) -> Option<Elem> {
        TABLE.iter().find(|r| r.name == name).map(|r| r.elem)
    }

    /// Whether values are stored in quantized blocks.
    #[must_use]
    pub fn is_block(self) -> bool {
        self.block_elems() > 1
    }
}

impl fmt::Display for Elem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_enum() {
        for (i, r) in TABLE.iter().enumerate() {
            assert_eq!(r.elem as usize, i, "{}", r.name);
            assert_eq!(Elem::from_name(r.name), Some(r.elem));
        }
    }

    #[test]
    fn sizes_of_whole_blocks_only() {
        assert_eq!(Elem::Q4_1.bytes_for(576), Some(576 / 32 * 20));
        assert_eq!(Elem::Q6K.bytes_for(256), Some(210));
        assert_eq!(Elem::Q6K.bytes_for(255), None);
        assert_eq!(Elem::F64.bytes_for(u64::MAX), None);
        assert_eq!(Elem::F8Row.bytes_for(4096), Some(4096 + 128));
        assert_eq!(Elem::F8Block.bytes_for(12288), Some(12288 + 3 * 128));
        assert_eq!(Elem::F8Block.bytes_for(130), Some(256 + 128));
        assert_eq!(Elem::F8Row.bytes_for(u64::MAX), None);
        assert_eq!(Elem::from_ggml(3), Some(Elem::Q4_1));
        assert_eq!(Elem::from_ggml(4), None); // the withdrawn Q4_2
    }
}
