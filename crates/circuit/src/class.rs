// SPDX-License-Identifier: MIT OR Apache-2.0
//! A hardware class with its inheritance applied: points, packed formats, fusions.

use std::collections::BTreeMap;

use metrale_core::{Elem, PointId, RowRange};

use crate::expr::{Expr, Value};
use crate::manifest::LibraryError;
use crate::manifest::class::{FusionFile, FusionsFile, HardwareFile, Numerics, PointsFile};
use crate::manifest::families::{ArgSig, Families};
use crate::manifest::ops::Ops;

#[derive(Clone, Debug)]
pub(crate) struct Class {
    pub(crate) name: String,
    pub(crate) serves: Vec<String>,
    pub(crate) points: Vec<Point>,
    pub(crate) formats: BTreeMap<Elem, Packed>,
    /// Pack points of vectors, by disk format.
    pub(crate) vectors: BTreeMap<Elem, PointId>,
    pub(crate) fusions: Vec<Fusion>,
}

#[derive(Clone, Debug)]
pub(crate) struct Point {
    pub(crate) id: PointId,
    pub(crate) spec: String,
    pub(crate) elems: BTreeMap<String, Elem>,
    pub(crate) rows: RowRange,
    pub(crate) peak: String,
}

#[derive(Clone, Debug)]
pub(crate) struct Packed {
    pub(crate) pack: PointId,
    pub(crate) bytes: Expr,
}

/// An operand of the n-th op of a fusion.
pub(crate) type Place = (usize, String);

#[derive(Clone, Debug)]
pub(crate) struct Fusion {
    pub(crate) family: String,
    pub(crate) ops: Vec<String>,
    pub(crate) links: Vec<(Place, Place)>,
    pub(crate) internal: Vec<Place>,
    pub(crate) numerics: Numerics,
}

type Files = BTreeMap<String, (String, HardwareFile, PointsFile, FusionsFile)>;

impl Class {
    pub(crate) fn resolve(
        name: &str,
        files: &Files,
        families: &Families,
        ops: &Ops,
    ) -> Result<Class, LibraryError> {
        let mut class = Class {
            name: name.to_owned(),
            serves: Vec::new(),
            points: Vec::new(),
            formats: BTreeMap::new(),
            vectors: BTreeMap::new(),
            fusions: Vec::new(),
        };
        // Root first, so that a class overrides what it inherits.
        let mut chain = Vec::new();
        let mut next = Some(name.to_owned());
        while let Some(n) = next {
            let at = |what: String| LibraryError::new(&format!("{name}/HARDWARE.toml"), what);
            let file = files
                .get(&n)
                .ok_or_else(|| at(format!("there is no class `{n}`")))?;
            if chain.len() > files.len() {
                return Err(at("inheritance runs in a circle".into()));
            }
            next = file.1.hardware.inherits.clone();
            chain.push(file);
        }
        for (dir, hardware, points, fusions) in chain.into_iter().rev() {
            if let Some(circuits) = &hardware.circuits {
                class.serves = circuits.serves.clone();
            }
            class.add_points(&format!("{dir}/KERNEL_FAMILIES.toml"), points, families)?;
            class.add_fusions(&format!("{dir}/FUSIONS.toml"), fusions, families, ops)?;
        }
        Ok(class)
    }

    fn add_points(
        &mut self,
        path: &str,
        file: &PointsFile,
        families: &Families,
    ) -> Result<(), LibraryError> {
        let at = |what: String| LibraryError::new(path, what);
        let id_of =
            |text: &str| PointId::parse(text).ok_or_else(|| at(format!("`{text}` is no point id")));
        let elem_of =
            |n: &str| Elem::from_name(n).ok_or_else(|| at(format!("`{n}` is no element format")));
        for p in &file.point {
            let id = id_of(&p.id)?;
            let family = families.get(id.family());
            let family = family.ok_or_else(|| at(format!("{id}: there is no such family")))?;
            if !family.specs.contains_key(&p.spec) {
                return Err(at(format!(
                    "{id}: family {} has no spec `{}`",
                    id.family(),
                    p.spec
                )));
            }
            let is_buf = |n: &String| {
                family
                    .args
                    .iter()
                    .any(|a| matches!(a, ArgSig::Buf { name, .. } if name == n))
            };
            if let Some(n) = p.elems.keys().find(|n| !is_buf(n)) {
                return Err(at(format!("{id}: `{n}` is no buffer of the family")));
            }
            let rows = p
                .rows
                .map_or(RowRange::ALL, |[min, max]| RowRange { min, max });
            let point = Point {
                id,
                spec: p.spec.clone(),
                elems: p.elems.clone(),
                rows,
                peak: p.peak.clone(),
            };
            self.points.retain(|old| old.id != point.id);
            self.points.push(point);
        }
        for (name, f) in &file.formats {
            let packed = Packed {
                pack: id_of(&f.pack)?,
                bytes: f.packed.clone(),
            };
            self.formats.insert(elem_of(name)?, packed);
        }
        for (name, pack) in &file.vectors {
            self.vectors.insert(elem_of(name)?, id_of(pack)?);
        }
        Ok(())
    }

    fn add_fusions(
        &mut self,
        path: &str,
        file: &FusionsFile,
        families: &Families,
        ops: &Ops,
    ) -> Result<(), LibraryError> {
        for f in &file.fusion {
            let fusion = fusion(f, families, ops)
                .map_err(|what| LibraryError::new(path, format!("fusion {}: {what}", f.family)))?;
            self.fusions
                .retain(|old| old.family != fusion.family || old.ops != fusion.ops);
            self.fusions.push(fusion);
        }
        Ok(())
    }

    /// Bytes of a packed `[n, k]` tensor; `None` for a format without a layout, or rows that are no whole blocks.
    pub(crate) fn packed_bytes(&self, elem: Elem, n: u64, k: u64) -> Option<u64> {
        let names = |name: &str| match name {
            "n" => Some(Value::Count(n)),
            "k" => Some(Value::Count(k)),
            _ => None,
        };
        self.formats.get(&elem)?.bytes.count(&names).ok()
    }

    /// The points of `family` whose formats agree with `elem_of` (which knows some arguments' formats), ascending by rows.
    pub(crate) fn matching<'a>(
        &'a self,
        family: &'a str,
        elem_of: impl Fn(&str) -> Option<Elem> + 'a,
    ) -> impl Iterator<Item = &'a Point> + 'a {
        self.points.iter().filter(move |p| {
            p.id.family() == family
                && p.elems
                    .iter()
                    .all(|(arg, want)| elem_of(arg).is_none_or(|have| have == *want))
        })
    }
}

fn fusion(f: &FusionFile, families: &Families, ops: &Ops) -> Result<Fusion, String> {
    if !families.contains_key(&f.family) {
        return Err("there is no such kernel family".into());
    }
    if f.ops.len() < 2 {
        return Err("it joins fewer than two ops".into());
    }
    let place = |text: &str| -> Result<Place, String> {
        let wrong = || format!("`{text}` is no operand of its ops");
        let (index, operand) = text.trim().split_once('.').ok_or_else(wrong)?;
        let index: usize = index.parse().map_err(|_| wrong())?;
        let sig = f
            .ops
            .get(index)
            .and_then(|op| ops.get(op))
            .ok_or_else(wrong)?;
        if !sig.edges.iter().any(|e| e.name == operand) {
            return Err(wrong());
        }
        Ok((index, operand.to_owned()))
    };
    let mut links = Vec::new();
    for link in &f.links {
        let (a, b) = link
            .split_once('=')
            .ok_or_else(|| format!("`{link}` is no link"))?;
        links.push((place(a)?, place(b)?));
    }
    Ok(Fusion {
        family: f.family.clone(),
        ops: f.ops.clone(),
        links,
        internal: f
            .internal
            .iter()
            .map(|p| place(p))
            .collect::<Result<_, _>>()?,
        numerics: f.numerics,
    })
}
