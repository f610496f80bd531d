// SPDX-License-Identifier: MIT OR Apache-2.0
//! `HARDWARE.toml` and `KERNEL.toml`.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::error::ClosureError;

/// `[hardware]` of a class. Other tables of the file belong to other readers (the circuit compiler).
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hardware {
    /// The class's name, equal to its folder's.
    pub name: String,
    /// Who makes it.
    pub vendor: String,
    /// What compiles it (`cuda`, `prebuilt`).
    pub target: String,
    /// The class whose layers come first.
    pub inherits: Option<String>,
    /// Architecture that the compiler is told (`sm_90a`); none for prebuilt classes.
    pub arch: Option<String>,
    /// Compute capabilities `[major, minor]` that the images run on.
    #[serde(default)]
    pub capabilities: Vec<[u32; 2]>,
    /// The oldest driver, as the driver API states it (13000 = CUDA 13.0).
    pub driver: Option<u32>,
    /// Instruction sets of a processor, among which its backend chooses.
    #[serde(default)]
    pub isa: Vec<String>,
}

#[derive(Deserialize)]
struct HardwareFile {
    hardware: Hardware,
}

/// `KERNEL.toml` of a layer.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct KernelFile {
    #[serde(default)]
    pub(crate) compile: Compile,
    #[serde(default)]
    pub(crate) sources: Sources,
    #[serde(default)]
    pub(crate) shadow: Shadow,
    #[serde(default)]
    pub(crate) point: Vec<Point>,
    #[serde(default)]
    pub(crate) like: Vec<Like>,
}

/// `[[like]]`: the file's points of one family once more as points of another, whose kernels differ in how they end. Entries
/// begin with the family's name.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Like {
    /// The family that gets them.
    pub(crate) family: String,
    /// The family whose they are.
    pub(crate) of: String,
    /// Points that it does not have, without the family's name.
    #[serde(default)]
    pub(crate) except: Vec<String>,
    /// Buffers that it does not have.
    #[serde(default)]
    pub(crate) without: Vec<String>,
    /// Bytes of buffers that the other does not have.
    #[serde(default)]
    pub(crate) needs: BTreeMap<String, String>,
}

impl Like {
    /// Its points.
    ///
    /// # Errors
    /// A point to be left out that there is not, or an entry without the family's name.
    pub(crate) fn points(&self, all: &[Point]) -> Result<Vec<Point>, String> {
        let prefix = format!("{}/", self.of);
        let name = |p: &Point| p.id.strip_prefix(&prefix).map(str::to_owned);
        let names: Vec<String> = all.iter().filter_map(name).collect();
        if let Some(lost) = self.except.iter().find(|e| !names.contains(e)) {
            return Err(format!("like {}: no point {prefix}{lost}", self.family));
        }
        let mut out = Vec::new();
        for point in all {
            let Some(name) = name(point).filter(|n| !self.except.contains(n)) else {
                continue;
            };
            let mut point = point.clone();
            let rest = point.entry.strip_prefix(&format!("{}_", self.of));
            let rest = rest.ok_or_else(|| {
                format!(
                    "like {}: the entry {} does not begin with {}_",
                    self.family, point.entry, self.of
                )
            })?;
            point.entry = format!("{}_{rest}", self.family);
            point.id = format!("{}/{name}", self.family);
            point
                .needs
                .retain(|buffer, _| !self.without.contains(buffer));
            point.needs.extend(self.needs.clone());
            out.push(point);
        }
        Ok(out)
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Compile {
    /// Appended to the flags of earlier layers.
    #[serde(default)]
    pub(crate) flags: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sources {
    /// Folders under the tree's root.
    #[serde(default, rename = "use")]
    pub(crate) use_: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Shadow {
    #[serde(default)]
    pub(crate) files: Vec<String>,
    #[serde(default)]
    pub(crate) points: Vec<String>,
}

/// `[[point]]`: where a point's code is and how it is launched. The formulas are texts here; who compiles them knows the
/// family's argument names.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// `family/point`.
    pub id: String,
    /// Its source.
    pub file: String,
    /// The entry's unmangled name.
    pub entry: String,
    /// Threads of a block, x only.
    pub block: u32,
    /// Blocks in x, y, z: one to three formulas.
    pub grid: Vec<String>,
    /// Dynamic shared memory in bytes; 0 unless stated.
    pub shared: Option<String>,
    /// Whether it may start while the launch before it ends (programmatic dependent launch): its kernel waits before it
    /// touches what that one wrote. A formula says for which launches: 0 is no.
    #[serde(default)]
    pub pdl: Switch,
    /// Blocks of a cluster in x, y, z: formulas; one block unless stated.
    #[serde(default)]
    pub cluster: Vec<String>,
    /// Tensor maps: hidden parameters after the family's arguments, in this order.
    #[serde(default)]
    pub maps: Vec<Map>,
    /// Bytes that each buffer argument must hold at least, by name.
    #[serde(default)]
    pub needs: BTreeMap<String, String>,
}

/// True, false, or a formula that gives 0 for false.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Switch {
    /// For every launch.
    Always(bool),
    /// By the launch's arguments.
    Formula(String),
}

impl Default for Switch {
    fn default() -> Switch {
        Switch::Always(false)
    }
}

impl Switch {
    /// As a formula.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Switch::Always(false) => "0",
            Switch::Always(true) => "1",
            Switch::Formula(text) => text,
        }
    }
}

/// A tensor map over a buffer of the point.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Map {
    /// The buffer argument's name.
    pub buffer: String,
    /// Bytes from the buffer's begin to the map's: a formula; 0 unless stated.
    pub offset: Option<String>,
    /// Format of its values, by name.
    pub elem: String,
    /// Values in each dimension, the innermost first: formulas.
    pub dims: Vec<String>,
    /// Bytes from one index to the next, of each dimension but the innermost: formulas.
    #[serde(default)]
    pub strides: Vec<String>,
    /// Values of the box that one copy takes, in each dimension: formulas.
    pub tile: Vec<String>,
    /// Bytes of the swizzle pattern: 0 (none), 32, 64 or 128.
    #[serde(default)]
    pub swizzle: u32,
}

pub(crate) fn read_hardware(path: &Path) -> Result<Hardware, ClosureError> {
    let file: HardwareFile = read(path)?;
    let h = file.hardware;
    let folder = path
        .parent()
        .and_then(Path::file_name)
        .and_then(|n| n.to_str());
    if folder != Some(&h.name) {
        let message = format!("name = {:?} is not the folder's name", h.name);
        return Err(ClosureError::Manifest {
            path: path.into(),
            message,
        });
    }
    Ok(h)
}

/// The manifest of a layer, or an empty one where the folder has none.
pub(crate) fn read_kernel(path: &Path) -> Result<KernelFile, ClosureError> {
    if path.is_file() {
        read(path)
    } else {
        Ok(KernelFile::default())
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<T, ClosureError> {
    let text = std::fs::read_to_string(path).map_err(|source| ClosureError::Io {
        path: path.into(),
        source,
    })?;
    toml::from_str(&text).map_err(|e| ClosureError::Manifest {
        path: path.into(),
        message: e.to_string(),
    })
}
