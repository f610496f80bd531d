// SPDX-License-Identifier: MIT OR Apache-2.0
//! `<class>/HARDWARE.toml`, `<class>/KERNEL_FAMILIES.toml`, `<class>/FUSIONS.toml`.

use std::collections::BTreeMap;

use metrale_core::Elem;
use serde::Deserialize;

use crate::expr::Expr;

/// `HARDWARE.toml`: the facts of a class that plans need.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct HardwareFile {
    pub(crate) hardware: Hardware,
    pub(crate) circuits: Option<Circuits>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Hardware {
    pub(crate) name: String,
    /// The class whose points it starts from.
    pub(crate) inherits: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Circuits {
    /// Families it serves; `*` is all.
    pub(crate) serves: Vec<String>,
}

/// `KERNEL_FAMILIES.toml`: the class's points and packed formats.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PointsFile {
    #[serde(default)]
    pub(crate) formats: BTreeMap<String, FormatFile>,
    #[serde(default)]
    pub(crate) layouts: BTreeMap<String, LayoutFile>,
    #[serde(default)]
    pub(crate) vectors: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) point: Vec<PointFile>,
    #[serde(default)]
    pub(crate) like: Vec<LikeFile>,
}

/// The file's points of one family once more as points of another.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LikeFile {
    pub(crate) family: String,
    pub(crate) of: String,
    /// Points that it does not have, without the family's name.
    #[serde(default)]
    pub(crate) except: Vec<String>,
    /// Arguments that it does not have.
    #[serde(default)]
    pub(crate) without: Vec<String>,
    /// Formats of arguments that the other does not have.
    #[serde(default, deserialize_with = "super::elems")]
    pub(crate) elems: BTreeMap<String, Elem>,
}

impl PointsFile {
    /// All points, those of `like` last.
    pub(crate) fn points(&self) -> Vec<PointFile> {
        let mut all = self.point.clone();
        for like in &self.like {
            let prefix = format!("{}/", like.of);
            for point in &self.point {
                let Some(name) = point.id.strip_prefix(&prefix) else {
                    continue;
                };
                if like.except.iter().any(|e| e == name) {
                    continue;
                }
                let mut point = PointFile {
                    id: format!("{}/{name}", like.family),
                    ..point.clone()
                };
                point.elems.retain(|arg, _| !like.without.contains(arg));
                point.elems.extend(like.elems.clone());
                all.push(point);
            }
        }
        all
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FormatFile {
    /// The pack point.
    pub(crate) pack: String,
    /// Bytes of a packed `[n, k]` tensor.
    pub(crate) packed: Expr,
    /// Pack points that quantize rows of other formats, by their disk format.
    #[serde(default)]
    pub(crate) from: BTreeMap<String, String>,
}

/// A second layout of a format, for the points that name it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LayoutFile {
    /// The format on disk.
    #[serde(deserialize_with = "super::elem")]
    pub(crate) elem: Elem,
    /// The pack point.
    pub(crate) pack: String,
    /// Bytes of a packed `[n, k]` tensor.
    pub(crate) packed: Expr,
    /// Pack points that quantize rows of other formats, by their disk format.
    #[serde(default)]
    pub(crate) from: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PointFile {
    pub(crate) id: String,
    pub(crate) spec: String,
    /// Formats of arguments, by name. What is not named is not constrained.
    #[serde(default, deserialize_with = "super::elems")]
    pub(crate) elems: BTreeMap<String, Elem>,
    /// Layouts of its matrices, by argument; the format's own unless stated.
    #[serde(default)]
    pub(crate) layouts: BTreeMap<String, String>,
    /// How the KV pool lies that it reads or writes; the plain way unless stated.
    pub(crate) pool: Option<String>,
    /// Shapes that it takes: a condition over the u32 arguments of its family; all unless stated.
    pub(crate) when: Option<Expr>,
    /// Ops whose results it converts, and before points that state none; all unless stated.
    #[serde(default)]
    pub(crate) after: Vec<String>,
    /// Row counts `[min, max]` it is chosen for; all unless stated.
    pub(crate) rows: Option<[u32; 2]>,
    /// Bytes of scratch buffers, by argument: over the u32 arguments and the plan's limits.
    #[serde(default)]
    pub(crate) scratch: BTreeMap<String, Expr>,
    /// The arithmetic peak (in DEVICES.toml) that bounds it.
    #[serde(default = "f32_peak")]
    pub(crate) peak: String,
}

fn f32_peak() -> String {
    "f32".to_owned()
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FusionsFile {
    #[serde(default)]
    pub(crate) fusion: Vec<FusionFile>,
}

/// How a fused kernel's bits relate to those of its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Numerics {
    /// It is the definition that others are compared with.
    Reference,
    /// Equal bits: the digest does not see it.
    BitIdentical,
    /// Other bits: the digest holds its spec in the place of its parts'.
    Differs,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FusionFile {
    pub(crate) family: String,
    /// Adjacent ops, in order.
    pub(crate) ops: Vec<String>,
    /// `1.x = 0.y`: operands that must be the same edge.
    pub(crate) links: Vec<String>,
    /// `0.y`: edges that nobody else reads and that disappear.
    #[serde(default)]
    pub(crate) internal: Vec<String>,
    /// Arguments of the family that take another operand than the one of their name.
    #[serde(default)]
    pub(crate) bind: BTreeMap<String, String>,
    pub(crate) numerics: Numerics,
}
