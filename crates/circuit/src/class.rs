// SPDX-License-Identifier: MIT OR Apache-2.0
//! A hardware class with its inheritance applied: points, packed formats, fusions.

use std::collections::BTreeMap;

use metrale_core::{Elem, PointId, RowRange};

use crate::expr::{Expr, Value};
use crate::manifest::LibraryError;
use crate::manifest::class::{
    FusionFile, FusionsFile, HardwareFile, Numerics, PointFile, PointsFile,
};
use crate::manifest::families::{ArgSig, Families};
use crate::manifest::ops::Ops;

#[derive(Clone, Debug)]
pub(crate) struct Class {
    pub(crate) name: String,
    pub(crate) serves: Vec<String>,
    pub(crate) points: Vec<Point>,
    pub(crate) formats: BTreeMap<Elem, Packed>,
    /// Layouts beside the formats' own, by name.
    pub(crate) layouts: BTreeMap<String, (Elem, Packed)>,
    /// Pack points of vectors, by disk format.
    pub(crate) vectors: BTreeMap<Elem, PointId>,
    pub(crate) fusions: Vec<Fusion>,
}

#[derive(Clone, Debug)]
pub(crate) struct Point {
    pub(crate) id: PointId,
    pub(crate) spec: String,
    pub(crate) elems: BTreeMap<String, Elem>,
    /// Layouts of its matrices, by argument.
    pub(crate) layouts: BTreeMap<String, String>,
    /// How the KV pool lies; `None` is the plain way.
    pub(crate) pool: Option<String>,
    pub(crate) when: Option<Expr>,
    /// Ops whose results it converts; empty is all.
    pub(crate) after: Vec<String>,
    pub(crate) rows: RowRange,
    pub(crate) scratch: BTreeMap<String, Expr>,
    pub(crate) peak: String,
    /// Classes between this one and the one that states it: a class's own points are taken before inherited ones.
    pub(crate) depth: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct Packed {
    pub(crate) pack: PointId,
    pub(crate) bytes: Expr,
    /// Pack points that quantize, by disk format.
    pub(crate) from: BTreeMap<Elem, PointId>,
}

/// An operand of the n-th op of a fusion.
pub(crate) type Place = (usize, String);

#[derive(Clone, Debug)]
pub(crate) struct Fusion {
    pub(crate) family: String,
    pub(crate) ops: Vec<String>,
    pub(crate) links: Vec<(Place, Place)>,
    pub(crate) internal: Vec<Place>,
    pub(crate) bind: BTreeMap<String, Place>,
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
            layouts: BTreeMap::new(),
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
        for (depth, (dir, hardware, points, fusions)) in chain.into_iter().enumerate().rev() {
            if let Some(circuits) = &hardware.circuits {
                class.serves = circuits.serves.clone();
            }
            let path = format!("{dir}/KERNEL_FAMILIES.toml");
            class.add_formats(&path, points)?;
            class.add_points(&path, points, families, depth)?;
            let named = points.point.iter().flat_map(|p| &p.after);
            if let Some(op) = named.into_iter().find(|op| !ops.contains_key(*op)) {
                return Err(LibraryError::new(
                    &path,
                    format!("after: there is no op `{op}`"),
                ));
            }
            class.add_fusions(&format!("{dir}/FUSIONS.toml"), fusions, families, ops)?;
        }
        Ok(class)
    }

    fn add_formats(&mut self, path: &str, file: &PointsFile) -> Result<(), LibraryError> {
        let at = |what: String| LibraryError::new(path, what);
        let id_of =
            |text: &str| PointId::parse(text).ok_or_else(|| at(format!("`{text}` is no point id")));
        let elem_of =
            |n: &str| Elem::from_name(n).ok_or_else(|| at(format!("`{n}` is no element format")));
        let from_of = |from: &BTreeMap<String, String>| {
            let pairs = from.iter().map(|(n, id)| Ok((elem_of(n)?, id_of(id)?)));
            pairs.collect::<Result<BTreeMap<Elem, PointId>, LibraryError>>()
        };
        for (name, f) in &file.formats {
            let packed = Packed {
                pack: id_of(&f.pack)?,
                bytes: f.packed.clone(),
                from: from_of(&f.from)?,
            };
            self.formats.insert(elem_of(name)?, packed);
        }
        for (name, f) in &file.layouts {
            let packed = Packed {
                pack: id_of(&f.pack)?,
                bytes: f.packed.clone(),
                from: from_of(&f.from)?,
            };
            self.layouts.insert(name.clone(), (f.elem, packed));
        }
        for (name, pack) in &file.vectors {
            self.vectors.insert(elem_of(name)?, id_of(pack)?);
        }
        Ok(())
    }

    fn add_points(
        &mut self,
        path: &str,
        file: &PointsFile,
        families: &Families,
        depth: usize,
    ) -> Result<(), LibraryError> {
        let mut own: Vec<Point> = Vec::new();
        for p in &file.points() {
            let point = self
                .point(p, families, depth)
                .map_err(|what| LibraryError::new(path, format!("{}: {what}", p.id)))?;
            own.retain(|old| old.id != point.id);
            own.push(point);
        }
        self.points.retain(|old| own.iter().all(|p| p.id != old.id));
        own.append(&mut self.points);
        self.points = own;
        Ok(())
    }

    fn point(&self, p: &PointFile, families: &Families, depth: usize) -> Result<Point, String> {
        let id = PointId::parse(&p.id).ok_or("this is no point id")?;
        let family = families.get(id.family()).ok_or("there is no such family")?;
        if !family.specs.contains_key(&p.spec) {
            return Err(format!("family {} has no spec `{}`", id.family(), p.spec));
        }
        let is_buf = |n: &String| {
            family
                .args
                .iter()
                .any(|a| matches!(a, ArgSig::Buf { name, .. } if name == n))
        };
        let mut named = p
            .elems
            .keys()
            .chain(p.layouts.keys())
            .chain(p.scratch.keys());
        if let Some(n) = named.find(|n| !is_buf(n)) {
            return Err(format!("`{n}` is no buffer of the family"));
        }
        if let Some(l) = p.layouts.values().find(|l| !self.layouts.contains_key(*l)) {
            return Err(format!("there is no layout `{l}`"));
        }
        Ok(Point {
            id,
            spec: p.spec.clone(),
            elems: p.elems.clone(),
            layouts: p.layouts.clone(),
            pool: p.pool.clone(),
            when: p.when.clone(),
            after: p.after.clone(),
            rows: p
                .rows
                .map_or(RowRange::ALL, |[min, max]| RowRange { min, max }),
            scratch: p.scratch.clone(),
            peak: p.peak.clone(),
            depth,
        })
    }

    fn add_fusions(
        &mut self,
        path: &str,
        file: &FusionsFile,
        families: &Families,
        ops: &Ops,
    ) -> Result<(), LibraryError> {
        let mut own: Vec<Fusion> = Vec::new();
        for f in &file.fusion {
            let fusion = fusion(f, families, ops)
                .map_err(|what| LibraryError::new(path, format!("fusion {}: {what}", f.family)))?;
            own.push(fusion);
        }
        self.fusions.retain(|old| {
            own.iter()
                .all(|f| (&f.family, &f.ops) != (&old.family, &old.ops))
        });
        own.append(&mut self.fusions);
        self.fusions = own;
        Ok(())
    }

    /// Bytes of a packed `[n, k]` tensor; `None` for a format without a layout, or rows that are no whole blocks.
    pub(crate) fn packed_bytes(
        &self,
        layout: Option<&str>,
        elem: Elem,
        n: u64,
        k: u64,
    ) -> Option<u64> {
        let names = |name: &str| match name {
            "n" => Some(Value::Count(n)),
            "k" => Some(Value::Count(k)),
            _ => None,
        };
        self.packed(layout, elem)?.bytes.count(&names).ok()
    }

    /// How a matrix of a format lies in a layout, or in the format's own where none is named; `None` if the class has no
    /// such layout of the format.
    pub(crate) fn packed(&self, layout: Option<&str>, elem: Elem) -> Option<&Packed> {
        match layout {
            None => self.formats.get(&elem),
            Some(name) => {
                let (of, packed) = self.layouts.get(name)?;
                (*of == elem).then_some(packed)
            }
        }
    }

    /// Indices of the points of `family` whose formats agree with `elem_of` (which knows some arguments' formats) and
    /// which take the shapes that `names` gives.
    pub(crate) fn matching<'a>(
        &'a self,
        family: &'a str,
        elem_of: impl Fn(&str) -> Option<Elem> + 'a,
        names: &'a dyn Fn(&str) -> Option<Value>,
    ) -> impl Iterator<Item = usize> + 'a {
        let fits = move |p: &Point| {
            p.id.family() == family
                && p.elems
                    .iter()
                    .all(|(arg, want)| elem_of(arg).is_none_or(|have| have == *want))
                // A condition over what the shapes do not say (a number that overflows) takes none.
                && p.when.as_ref().is_none_or(|w| w.truth(names) == Ok(true))
        };
        let points = self.points.iter().enumerate();
        points.filter(move |(_, p)| fits(p)).map(|(i, _)| i)
    }

    /// The first of `candidates` (in order of preference) that together with the others of its formats, layouts and
    /// spec takes every row count: its points by row range, ascending. Where several take a row count, the first does.
    pub(crate) fn cover(&self, candidates: &[usize]) -> Option<Vec<(RowRange, usize)>> {
        candidates.iter().find_map(|best| {
            let best = &self.points[*best];
            let alike = |i: &&usize| {
                let p = &self.points[**i];
                (&p.elems, &p.layouts, &p.pool, &p.spec)
                    == (&best.elems, &best.layouts, &best.pool, &best.spec)
            };
            let group: Vec<usize> = candidates.iter().filter(alike).copied().collect();
            self.cover_all(&group)
        })
    }

    fn cover_all(&self, group: &[usize]) -> Option<Vec<(RowRange, usize)>> {
        let mut out: Vec<(RowRange, usize)> = Vec::new();
        let mut min = 0;
        loop {
            let range = |i: &usize| self.points[*i].rows;
            let n = group.iter().position(|i| range(i).contains(min))?;
            // Up to its end, or to where a preferred point begins.
            let preferred = group[..n].iter().map(range).filter(|r| r.min > min);
            let end = preferred.map(|r| r.min - 1).min();
            let max = range(&group[n]).max.min(end.unwrap_or(u32::MAX));
            match out.last_mut() {
                Some((last, point)) if *point == group[n] => last.max = max,
                _ => out.push((RowRange { min, max }, group[n])),
            }
            match max.checked_add(1) {
                Some(next) => min = next,
                None => return Some(out),
            }
        }
    }
}

fn fusion(f: &FusionFile, families: &Families, ops: &Ops) -> Result<Fusion, String> {
    if !families.contains_key(&f.family) {
        return Err("there is no such kernel family".into());
    }
    if f.ops.is_empty() {
        return Err("it joins no ops".into());
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
    let mut bind = BTreeMap::new();
    for (arg, text) in &f.bind {
        let named = |a: &ArgSig| matches!(a, ArgSig::Buf { name, .. } if name == arg);
        if !families[&f.family].args.iter().any(named) {
            return Err(format!("`{arg}` is no buffer of the family"));
        }
        bind.insert(arg.clone(), place(text)?);
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
        bind,
        numerics: f.numerics,
    })
}
