// SPDX-License-Identifier: MIT OR Apache-2.0
//! Layers of a target, and what they resolve to.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::error::ClosureError;
use crate::hash::Closure;
use crate::include;
use crate::manifest::{self, Hardware, KernelFile, Point};

const HARDWARE: &str = "HARDWARE.toml";
const KERNEL: &str = "KERNEL.toml";
const COMMON: &str = "common";
/// What a layer may bring besides manifests.
const SOURCES: [&str; 2] = ["cu", "cuh"];

/// A kernel tree on disk.
#[derive(Clone, Debug)]
pub struct Tree {
    root: PathBuf,
}

/// A file of a resolved target.
#[derive(Clone, Debug)]
pub(crate) struct SourceFile {
    pub(crate) path: PathBuf,
    pub(crate) layer: String,
}

/// A point and the layer that declares it.
#[derive(Clone, Debug)]
pub struct ResolvedPoint {
    /// The declaration.
    pub point: Point,
    /// The layer, as a path under the tree's root.
    pub layer: String,
}

/// A target with its layers laid over each other.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The target, as a path under the tree's root.
    pub target: String,
    /// The class.
    pub hardware: Hardware,
    /// Architecture; empty for prebuilt classes.
    pub arch: String,
    /// Compiler flags of all layers, in order.
    pub flags: Vec<String>,
    /// The layers, lowest first, as paths under the tree's root.
    pub layers: Vec<String>,
    /// Points by id.
    pub points: BTreeMap<String, ResolvedPoint>,
    pub(crate) files: BTreeMap<String, SourceFile>,
}

impl Tree {
    /// The tree under `root` (the repository's `kernels/`).
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Tree {
        Tree { root: root.into() }
    }

    /// Hardware classes, by name: the folders that hold a `HARDWARE.toml`.
    ///
    /// # Errors
    /// [`ClosureError`] if the tree cannot be read.
    pub fn classes(&self) -> Result<Vec<Hardware>, ClosureError> {
        folders(&self.root)?
            .into_iter()
            .map(|name| self.root.join(name).join(HARDWARE))
            .filter(|manifest| manifest.is_file())
            .map(|manifest| manifest::read_hardware(&manifest))
            .collect()
    }

    /// Leaves of a class as (model, quant): the folders two below it that hold a `KERNEL.toml`.
    ///
    /// # Errors
    /// [`ClosureError::Io`].
    pub fn leaves(&self, hw: &str) -> Result<Vec<(String, String)>, ClosureError> {
        let mut leaves = Vec::new();
        for model in folders(&self.root.join(hw))? {
            if model == COMMON {
                continue;
            }
            for quant in folders(&self.root.join(hw).join(&model))? {
                if self
                    .root
                    .join(hw)
                    .join(&model)
                    .join(&quant)
                    .join(KERNEL)
                    .is_file()
                {
                    leaves.push((model.clone(), quant));
                }
            }
        }
        Ok(leaves)
    }

    /// The chain of a class, root first.
    ///
    /// # Errors
    /// [`ClosureError`] for a missing class or a cycle.
    pub fn chain(&self, hw: &str) -> Result<Vec<Hardware>, ClosureError> {
        let mut chain: Vec<Hardware> = Vec::new();
        let mut next = Some(hw.to_owned());
        while let Some(name) = next {
            if chain.iter().any(|h| h.name == name) {
                let mut names: Vec<&str> = chain.iter().map(|h| h.name.as_str()).collect();
                names.push(&name);
                let chain = names.join(" -> ");
                return Err(ClosureError::Cycle { class: name, chain });
            }
            let hardware = manifest::read_hardware(&self.root.join(&name).join(HARDWARE))?;
            next = hardware.inherits.clone();
            chain.push(hardware);
        }
        chain.reverse();
        Ok(chain)
    }

    /// Resolves the baseline of a class, or its leaf `(model, quant)`.
    ///
    /// # Errors
    /// [`ClosureError`]: an unreadable tree, an undeclared or vacuous shadow, a point without its source.
    pub fn resolve(&self, hw: &str, leaf: Option<(&str, &str)>) -> Result<Resolved, ClosureError> {
        let chain = self.chain(hw)?;
        let mut layers: Vec<String> = chain
            .iter()
            .map(|h| format!("{}/{COMMON}", h.name))
            .collect();
        layers.retain(|l| self.root.join(l).is_dir());
        let target = match leaf {
            None => format!("{hw}/{COMMON}"),
            Some((model, quant)) => {
                let leaf = format!("{hw}/{model}/{quant}");
                let file = manifest::read_kernel(&self.root.join(&leaf).join(KERNEL))?;
                layers.extend(file.sources.use_);
                layers.push(leaf.clone());
                leaf
            }
        };
        // The class itself ends its own chain.
        let Some(hardware) = chain.into_iter().next_back() else {
            let path = self.root.join(hw);
            return Err(ClosureError::Manifest {
                path,
                message: "no such class".into(),
            });
        };
        let mut resolved = Resolved {
            target,
            arch: hardware.arch.clone().unwrap_or_default(),
            hardware,
            flags: Vec::new(),
            layers: Vec::new(),
            points: BTreeMap::new(),
            files: BTreeMap::new(),
        };
        for layer in layers {
            self.lay(&mut resolved, layer)?;
        }
        for (id, p) in &resolved.points {
            if !resolved.files.contains_key(&p.point.file) {
                return Err(ClosureError::MissingSource {
                    layer: p.layer.clone(),
                    point: id.clone(),
                    file: p.point.file.clone(),
                });
            }
        }
        Ok(resolved)
    }

    /// Lays one layer over what is resolved so far.
    fn lay(&self, resolved: &mut Resolved, layer: String) -> Result<(), ClosureError> {
        let folder = self.root.join(&layer);
        let KernelFile {
            compile,
            shadow,
            mut point,
            like,
            sources,
        } = manifest::read_kernel(&folder.join(KERNEL))?;
        let wrong = |message| ClosureError::Manifest {
            path: folder.join(KERNEL),
            message,
        };
        for like in like {
            let more = like.points(&point).map_err(wrong)?;
            point.extend(more);
        }
        let leaf = layer == resolved.target && !layer.ends_with(&format!("/{COMMON}"));
        if !sources.use_.is_empty() && !leaf {
            return Err(ClosureError::Manifest {
                path: folder.join(KERNEL),
                message:
                    "[sources] use stands in a leaf that is a target, not in a layer under one"
                        .into(),
            });
        }
        resolved.flags.extend(compile.flags);

        let mut brought: BTreeMap<String, SourceFile> = BTreeMap::new();
        for path in entries(&folder)? {
            let name = path
                .file_name()
                .and_then(|n| n.to_str())
                .unwrap_or_default()
                .to_owned();
            let source = path
                .extension()
                .and_then(|e| e.to_str())
                .is_some_and(|e| SOURCES.contains(&e));
            if path.is_file() && source {
                brought.insert(
                    name,
                    SourceFile {
                        path,
                        layer: layer.clone(),
                    },
                );
            }
        }
        let below = |name: &str| resolved.files.get(name).map(|f| f.layer.clone());
        check(&layer, "file", brought.keys(), &shadow.files, below)?;

        let mut points: BTreeMap<String, ResolvedPoint> = BTreeMap::new();
        for point in point {
            let id = point.id.clone();
            if points
                .insert(
                    id.clone(),
                    ResolvedPoint {
                        point,
                        layer: layer.clone(),
                    },
                )
                .is_some()
            {
                return Err(wrong(format!("the point {id} is declared twice")));
            }
        }
        let below = |id: &str| resolved.points.get(id).map(|p| p.layer.clone());
        check(&layer, "point", points.keys(), &shadow.points, below)?;

        resolved.files.extend(brought);
        resolved.points.extend(points);
        resolved.layers.push(layer);
        Ok(())
    }
}

/// Holds what a layer brings against what it says that it shadows.
fn check<'a>(
    layer: &str,
    kind: &'static str,
    brought: impl Iterator<Item = &'a String>,
    declared: &[String],
    below: impl Fn(&str) -> Option<String>,
) -> Result<(), ClosureError> {
    let brought: Vec<&String> = brought.collect();
    for name in &brought {
        if let Some(below) = below(name)
            && !declared.contains(name)
        {
            let (layer, name) = (layer.to_owned(), (*name).clone());
            return Err(ClosureError::UndeclaredShadow {
                layer,
                kind,
                name,
                below,
            });
        }
    }
    for name in declared {
        let why = if !brought.contains(&name) {
            "it does not bring it"
        } else if below(name).is_none() {
            "no earlier layer has it"
        } else {
            continue;
        };
        return Err(ClosureError::VacuousShadow {
            layer: layer.into(),
            kind,
            name: name.clone(),
            why,
        });
    }
    Ok(())
}

impl Resolved {
    /// Names of the sources that points need, each once.
    #[must_use]
    pub fn sources(&self) -> Vec<&str> {
        let mut files: Vec<&str> = self
            .points
            .values()
            .map(|p| p.point.file.as_str())
            .collect();
        files.sort_unstable();
        files.dedup();
        files
    }

    /// Every file of the target: name and path.
    pub fn files(&self) -> impl Iterator<Item = (&str, &Path)> {
        self.files
            .iter()
            .map(|(name, f)| (name.as_str(), f.path.as_path()))
    }

    /// The include closure of one source.
    ///
    /// # Errors
    /// [`ClosureError`] for a quoted include that the target lacks, or an unreadable file.
    pub fn closure(&self, source: &str) -> Result<Closure, ClosureError> {
        include::closure(self, source)
    }
}

/// Names of the folders in `path`, sorted.
fn folders(path: &Path) -> Result<Vec<String>, ClosureError> {
    let folders = entries(path)?.into_iter().filter(|p| p.is_dir());
    Ok(folders
        .filter_map(|p| p.file_name()?.to_str().map(str::to_owned))
        .collect())
}

fn entries(path: &Path) -> Result<Vec<PathBuf>, ClosureError> {
    let error = |source| ClosureError::Io {
        path: path.into(),
        source,
    };
    let mut paths = std::fs::read_dir(path)
        .and_then(|entries| {
            entries
                .map(|e| e.map(|e| e.path()))
                .collect::<Result<Vec<_>, _>>()
        })
        .map_err(error)?;
    paths.sort();
    Ok(paths)
}
