// SPDX-License-Identifier: MIT OR Apache-2.0
//! The circuit library: every manifest, read and checked once. All that follows takes it as a value.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use metrale_core::{Access, Elem, FlatMap, PointId, RowRange, Scalar};

use crate::class::Class;
use crate::config_map::MapInput;
use crate::instance::{Instance, Source, Use};
use crate::manifest::circuit::CircuitFile;
use crate::manifest::class::{FusionsFile, HardwareFile, PointsFile};
use crate::manifest::devices::{Device, Devices};
use crate::manifest::families::{ArgSig, Families};
use crate::manifest::map::{IgnoreFile, KeyMap, MapFile};
use crate::manifest::ops::Ops;
use crate::manifest::{LibraryError, read, read_extending};
use crate::refusal::Refusal;
use crate::unroll::unroll;

/// A model family: its circuit and what its config keys mean.
#[derive(Debug)]
pub(crate) struct Family {
    pub(crate) circuit: CircuitFile,
    /// `model_type` or `general.architecture` values it answers to, and the key map, by source.
    pub(crate) maps: BTreeMap<Source, (Vec<String>, KeyMap)>,
}

/// All circuits, kernel families, classes and devices.
#[derive(Debug)]
pub struct CircuitLibrary {
    pub(crate) ops: Ops,
    pub(crate) kernel_families: Families,
    pub(crate) families: BTreeMap<String, Family>,
    shared: IgnoreFile,
    pub(crate) classes: BTreeMap<String, Class>,
    devices: Devices,
}

/// What a checkpoint says about its architecture.
#[derive(Clone, Copy, Debug)]
pub struct ConfigInput<'a> {
    /// The flat map.
    pub flat: &'a FlatMap,
    /// Where it came from.
    pub source: Source,
    /// Keys that the file gives as null; `None` where that is not known, and no key counts as left out.
    pub nulls: Option<&'a BTreeSet<String>>,
    /// Names of the tensors, where they are known: a GGUF file says by an absent `output.weight` that its head is tied,
    /// and by bias tensors that it has biases.
    pub tensors: Option<&'a BTreeSet<String>>,
    /// Keys that the user accepts (`--accept-key`).
    pub accept: &'a [String],
}

impl CircuitLibrary {
    /// Reads manifests: `(path below kernels/, text)`. Files of other kinds are passed over.
    ///
    /// # Errors
    /// [`LibraryError`] names the manifest and what is wrong with it; the built-in tree gives none (a test holds that).
    pub fn new<P: AsRef<str>, T: AsRef<str>>(
        files: impl IntoIterator<Item = (P, T)>,
    ) -> Result<CircuitLibrary, LibraryError> {
        let texts: BTreeMap<String, String> = files
            .into_iter()
            .filter(|(p, _)| p.as_ref().ends_with(".toml"))
            .map(|(p, t)| (p.as_ref().to_owned(), t.as_ref().to_owned()))
            .collect();
        let text = |path: &str| {
            let found = texts.get(path).map(String::as_str);
            found.ok_or_else(|| LibraryError::new(path, "the manifest is missing"))
        };
        let mut library = CircuitLibrary {
            ops: read(OPS, text(OPS)?)?,
            kernel_families: read(FAMILIES, text(FAMILIES)?)?,
            families: BTreeMap::new(),
            shared: read(IGNORE, text(IGNORE)?)?,
            classes: BTreeMap::new(),
            devices: read(DEVICES, text(DEVICES)?)?,
        };
        for path in texts.keys() {
            if let Some(name) = path
                .strip_prefix("circuits/")
                .and_then(|p| p.strip_suffix("/circuit.toml"))
            {
                let owned = |path: &str| text(path).map(str::to_owned);
                let family = read_family(path, &format!("circuits/{name}/map.toml"), &owned)?;
                library.families.insert(name.to_owned(), family);
            }
        }
        library.check_ops()?;
        library.read_classes(&texts)?;
        Ok(library)
    }

    /// Every op has a kernel family of its name, whose buffers use the op's operands as the op says.
    fn check_ops(&self) -> Result<(), LibraryError> {
        for (name, op) in &self.ops {
            let at = |what: String| LibraryError::new(OPS, format!("op {name}: {what}"));
            let family = self.kernel_families.get(name);
            let family = family.ok_or_else(|| at("it has no kernel family".into()))?;
            let edges = op.edges.iter().map(|e| (&e.name, e.used));
            let weights = op.weights.iter().map(|w| (&w.name, Use::In));
            let states = op.state.iter().map(|s| (&s.name, s.used));
            let consts = op.consts.iter().map(|c| (c, Use::In));
            let operands: Vec<_> = edges.chain(weights).chain(states).chain(consts).collect();
            for arg in &family.args {
                let ArgSig::Buf {
                    name: buffer,
                    access,
                } = arg
                else {
                    continue;
                };
                let operand = operands.iter().find(|(n, _)| *n == buffer);
                let (_, used) = operand.ok_or_else(|| at(format!("no operand `{buffer}`")))?;
                let agree = match used {
                    Use::In => *access == Access::Read,
                    Use::Out => *access == Access::Write,
                    // A store that touches part of a state writes it; it does not read.
                    Use::InOut => *access != Access::Read,
                };
                if !agree {
                    return Err(at(format!(
                        "family and op disagree on how `{buffer}` is used"
                    )));
                }
            }
        }
        Ok(())
    }

    fn read_classes(&mut self, texts: &BTreeMap<String, String>) -> Result<(), LibraryError> {
        let mut files = BTreeMap::new();
        for (path, body) in texts {
            let Some(dir) = path.strip_suffix("/HARDWARE.toml") else {
                continue;
            };
            let hardware: HardwareFile = read(path, body)?;
            let points: PointsFile = optional(texts, &format!("{dir}/KERNEL_FAMILIES.toml"))?;
            let fusions: FusionsFile = optional(texts, &format!("{dir}/FUSIONS.toml"))?;
            files.insert(
                hardware.hardware.name.clone(),
                (dir.to_owned(), hardware, points, fusions),
            );
        }
        for name in files.keys() {
            let class = Class::resolve(name, &files, &self.kernel_families, &self.ops)?;
            self.classes.insert(name.clone(), class);
        }
        Ok(())
    }

    /// Makes the instance of a checkpoint's configuration.
    ///
    /// # Errors
    /// A [`Refusal`] that names the key, the reason and the remedy.
    pub fn instantiate(&self, input: &ConfigInput<'_>) -> Result<Instance, Refusal> {
        let (family, map) = self.family_of(input)?;
        let shared = match input.source {
            Source::Hf => &self.shared.hf,
            Source::Gguf => &self.shared.gguf,
        };
        let ConfigInput {
            tensors,
            accept,
            nulls,
            ..
        } = *input;
        // What the family takes for a key that the file leaves out: null is an answer of its own.
        let mut flat = Cow::Borrowed(input.flat);
        for (key, value) in &map.absent {
            if nulls.is_some_and(|n| !n.contains(key)) && !flat.contains_key(key) {
                flat.to_mut().insert(key.clone(), value.clone());
            }
        }
        let flat = flat.as_ref();
        let circuit = &family.circuit;
        let params = MapInput {
            circuit,
            map,
            shared,
            flat,
            tensors,
            accept,
        }
        .params()?;
        let accepted = accept
            .iter()
            .filter(|k| flat.contains_key(*k))
            .cloned()
            .collect();
        unroll(circuit, &self.ops, params, input.source, accepted)
    }

    fn family_of(&self, input: &ConfigInput<'_>) -> Result<(&Family, &KeyMap), Refusal> {
        let key = input.source.family_key();
        let value = input.flat.get(key).and_then(Scalar::as_str);
        let value = value.ok_or(Refusal::NoFamily { key })?;
        let of_name = || {
            self.families.values().filter_map(|family| {
                let (names, map) = family.maps.get(&input.source)?;
                names.iter().any(|n| n == value).then_some((family, map))
            })
        };
        // A family that a key tells from another of the same name goes before that other.
        let given = |map: &KeyMap| {
            let key = map.with.as_ref()?.replace("{arch}", value);
            input.flat.get(&key).map(|v| v.as_f64() != Some(0.0))
        };
        let told = of_name().find(|(_, map)| given(map) == Some(true));
        if let Some(found) = told.or_else(|| of_name().find(|(_, map)| map.with.is_none())) {
            return Ok(found);
        }
        let names = self
            .families
            .values()
            .filter_map(|f| f.maps.get(&input.source));
        Err(Refusal::UnknownFamily {
            key,
            value: value.chars().take(80).collect(),
            known: names.flat_map(|(names, _)| names.clone()).collect(),
        })
    }

    /// The ops that circuits are written in: name and meaning.
    pub fn ops(&self) -> impl Iterator<Item = (&str, &str)> {
        self.ops
            .iter()
            .map(|(name, op)| (name.as_str(), op.doc.as_str()))
    }

    /// Names of the model families.
    pub fn families(&self) -> impl Iterator<Item = &str> {
        self.families.keys().map(String::as_str)
    }

    /// Names of the hardware classes.
    pub fn classes(&self) -> impl Iterator<Item = &str> {
        self.classes.keys().map(String::as_str)
    }

    /// The devices by name.
    #[must_use]
    pub fn devices(&self) -> &BTreeMap<String, Device> {
        &self.devices
    }

    /// The argument list of a kernel family: what a backend's point must take.
    #[must_use]
    pub fn kernel_args(&self, family: &str) -> Option<&[ArgSig]> {
        self.kernel_families.get(family).map(|f| f.args.as_slice())
    }

    /// Bytes of a packed `[n, k]` tensor on a class; `None` if the class has no layout for the format, or `k` is no whole
    /// number of blocks.
    #[must_use]
    pub fn packed_bytes(&self, class: &str, format: Elem, n: u64, k: u64) -> Option<u64> {
        self.classes.get(class)?.packed_bytes(None, format, n, k)
    }

    /// Every point of a class with its row range: what a backend of the class must resolve.
    ///
    /// Empty for a class that does not exist.
    pub fn points(&self, class: &str) -> impl Iterator<Item = (&PointId, RowRange)> {
        self.classes
            .get(class)
            .into_iter()
            .flat_map(|c| c.points.iter().map(|p| (&p.id, p.rows)))
    }
}

const OPS: &str = "circuits/OPS.toml";
const FAMILIES: &str = "circuits/FAMILIES.toml";
const IGNORE: &str = "circuits/ignore.toml";
const DEVICES: &str = "DEVICES.toml";

fn optional<T: serde::de::DeserializeOwned + Default>(
    texts: &BTreeMap<String, String>,
    path: &str,
) -> Result<T, LibraryError> {
    texts
        .get(path)
        .map_or_else(|| Ok(T::default()), |body| read(path, body))
}

fn read_family(
    path: &str,
    map_path: &str,
    text: &dyn Fn(&str) -> Result<String, LibraryError>,
) -> Result<Family, LibraryError> {
    let circuit: CircuitFile = read_extending(path, text)?;
    let map: MapFile = read_extending(map_path, text)?;
    let mut maps = BTreeMap::new();
    let types = map.hf.model_types.clone();
    maps.insert(Source::Hf, (types, KeyMap::from(map.hf)));
    if let Some(gguf) = map.gguf {
        let names = gguf.architectures.clone();
        let keys = KeyMap::from(gguf).of_architectures(&names);
        maps.insert(Source::Gguf, (names, keys));
    }
    for (_, keys) in maps.values() {
        let targets = keys.params.values().flat_map(|t| t.params());
        let switches = keys.tensors.values().map(|t| &t.param);
        let named = keys.values.keys().chain(keys.defaults.keys());
        for param in targets.chain(switches).chain(named) {
            if circuit.param(param).is_none() {
                return Err(LibraryError::new(
                    map_path,
                    format!("there is no param `{param}`"),
                ));
            }
        }
    }
    if let Some(c) = circuit
        .checks
        .values()
        .find(|c| circuit.param(&c.param).is_none())
    {
        return Err(LibraryError::new(
            path,
            format!("a check blames no param: `{}`", c.param),
        ));
    }
    for constant in circuit.constants.values() {
        if !crate::constants::MAKERS.contains(&constant.make.as_str()) {
            let what = format!("there is no constant maker `{}`", constant.make);
            return Err(LibraryError::new(path, what));
        }
    }
    Ok(Family { circuit, maps })
}
