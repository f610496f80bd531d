// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes `registry.rs`, and checks what the manifests say on the way.

use std::fmt::Write as _;

use metrale_closure::{Map, Resolved, ResolvedPoint};
use metrale_core::{Elem, KernelTarget};

use super::super::Result;
use super::super::formula::{Formula, Op, Var};
use super::compile::{Compiled, ImageFile};
use super::families::{Arg, Families};

/// The whole file.
pub(crate) fn registry(
    status: &str,
    compiled: &[Compiled<'_>],
    families: &Families,
) -> Result<String> {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "/// What the build did about kernels, in words.\npub const STATUS: &str = {status:?};\n\
         static TARGETS: &[Target] = &["
    );
    for c in compiled {
        let (target, id) = (c.target, id(c.target));
        let capabilities: Vec<_> = target
            .hardware
            .capabilities
            .iter()
            .map(|[a, b]| (a, b))
            .collect();
        let _ = writeln!(
            text,
            "Target {{ id: KernelTarget {{ hw: {:?}, model: {:?}, quant: {:?} }}, arch: {:?}, capabilities: &{:?}, \
             driver: {}, images: &[",
            id.hw,
            id.model,
            id.quant,
            target.arch,
            capabilities,
            target.hardware.driver.unwrap_or(0)
        );
        for image in &c.images {
            let _ = writeln!(
                text,
                "Image {{ file: {:?}, closure: {:?}, bytes: &{{ static BYTES: &Aligned<[u8]> = \
                 &Aligned(*include_bytes!({:?})); BYTES }}.0 }},",
                image.source, image.closure, image.path
            );
        }
        let _ = writeln!(
            text,
            "], points: &[\n{}] }},",
            points(target, families, &c.images)?
        );
    }
    text.push_str("];\n");
    Ok(text)
}

/// The points of a target as Rust; without images the text is only good for checking.
pub(crate) fn points(
    target: &Resolved,
    families: &Families,
    images: &[ImageFile],
) -> Result<String> {
    let mut text = String::new();
    for (id, p) in &target.points {
        let line = point(p, families, images)
            .map_err(|e| format!("{}/KERNEL.toml, point {id}: {e}", p.layer))?;
        text.push_str(&line);
    }
    Ok(text)
}

fn point(resolved: &ResolvedPoint, families: &Families, images: &[ImageFile]) -> Result<String> {
    let p = &resolved.point;
    let family =
        p.id.split_once('/')
            .map(|(family, _)| family)
            .ok_or("an id is `family/point`")?;
    let args = families
        .get(family)
        .ok_or("FAMILIES.toml has no such family")?;
    let names: Vec<Option<&str>> = args
        .iter()
        .map(|a| match a {
            Arg::U32(name) => Some(name.as_str()),
            _ => None,
        })
        .collect();
    if p.block == 0 || p.block > 1024 || !p.block.is_multiple_of(32) {
        return Err("a block has 32 to 1024 threads, in whole warps".into());
    }
    if p.grid.is_empty() || p.grid.len() > 3 {
        return Err("a grid has one to three dimensions".into());
    }
    let formula = |text: &str| Formula::parse(text, &names).map(|f| rust(&f));
    let mut grid = Vec::new();
    for i in 0..3 {
        let text = p.grid.get(i).map_or("1", String::as_str);
        grid.push(formula(text).map_err(|e| format!("grid: {e}"))?);
    }
    if p.cluster.len() > 3 {
        return Err("cluster: at most three dimensions".into());
    }
    let mut cluster = Vec::new();
    for i in 0..3 {
        let text = p.cluster.get(i).map_or("1", String::as_str);
        cluster.push(formula(text).map_err(|e| format!("cluster: {e}"))?);
    }
    let maps = p.maps.iter().enumerate().map(|(i, m)| {
        map(m, args, &names).map_err(|e| format!("maps, the {}. ({}): {e}", i + 1, m.buffer))
    });
    let maps = maps.collect::<Result<Vec<_>>>()?;
    let mut needs = Vec::new();
    for (i, arg) in args.iter().enumerate() {
        if let Arg::Buf(name, _) = arg {
            let need = p
                .needs
                .get(name)
                .ok_or_else(|| format!("needs.{name} is missing"))?;
            needs.push(format!(
                "({i}, {})",
                formula(need).map_err(|e| format!("needs.{name}: {e}"))?
            ));
        }
    }
    if needs.len() != p.needs.len() {
        return Err("needs names what is no buffer of the family".into());
    }
    let args: Vec<String> = args
        .iter()
        .map(|a| match a {
            Arg::Buf(name, access) => {
                format!("ArgDecl::Buf {{ name: {name:?}, access: metrale_core::Access::{access} }}")
            }
            Arg::U32(name) => format!("ArgDecl::U32({name:?})"),
            Arg::F32(name) => format!("ArgDecl::F32({name:?})"),
            Arg::Step => "ArgDecl::Step".to_owned(),
        })
        .collect();
    let image = images.iter().position(|i| i.source == p.file).unwrap_or(0);
    Ok(format!(
        "Point {{ id: {:?}, image: {image}, entry: {:?}, block: {}, grid: [{}], shared: {}, pdl: {}, cluster: [{}], \
         maps: &[{}], args: &[{}], needs: &[{}] }},\n",
        p.id,
        p.entry,
        p.block,
        grid.join(", "),
        formula(p.shared.as_deref().unwrap_or("0")).map_err(|e| format!("shared: {e}"))?,
        formula(p.pdl.text()).map_err(|e| format!("pdl: {e}"))?,
        cluster.join(", "),
        maps.join(", "),
        args.join(", "),
        needs.join(", ")
    ))
}

/// A tensor map, as far as it can be checked without numbers; the driver checks those.
fn map(map: &Map, args: &[Arg], names: &[Option<&str>]) -> Result<String> {
    let is_buffer = |a: &Arg| matches!(a, Arg::Buf(name, _) if *name == map.buffer);
    let arg = args.iter().position(is_buffer);
    let arg = arg.ok_or("buffer: no buffer of the family")?;
    let elem = Elem::from_name(&map.elem).filter(|e| MAPPED.contains(e));
    let elem = elem.ok_or_else(|| format!("elem: `{}` cannot be mapped", map.elem))?;
    let rank = map.dims.len();
    if rank == 0 || rank > 5 {
        return Err("dims: one to five dimensions".into());
    }
    if map.strides.len() != rank - 1 {
        return Err("strides: one for each dimension but the innermost".into());
    }
    if map.tile.len() != rank {
        return Err("tile: one for each dimension".into());
    }
    if ![0, 32, 64, 128].contains(&map.swizzle) {
        return Err("swizzle: 0, 32, 64 or 128".into());
    }
    let list = |field: &str, texts: &[String]| {
        let parsed = texts.iter().map(|t| {
            let formula = Formula::parse(t, names).map_err(|e| format!("{field}: {e}"))?;
            Ok(rust(&formula))
        });
        parsed.collect::<Result<Vec<_>>>().map(|v| v.join(", "))
    };
    let offset = map.offset.as_deref().unwrap_or("0");
    let offset = Formula::parse(offset, names).map_err(|e| format!("offset: {e}"))?;
    Ok(format!(
        "Map {{ arg: {arg}, offset: {}, elem: Elem::{elem:?}, dims: &[{}], strides: &[{}], tile: &[{}], swizzle: {} }}",
        rust(&offset),
        list("dims", &map.dims)?,
        list("strides", &map.strides)?,
        list("tile", &map.tile)?,
        map.swizzle
    ))
}

/// Formats that a tensor map can state.
const MAPPED: [Elem; 5] = [Elem::U8, Elem::F8E4M3, Elem::F16, Elem::BF16, Elem::F32];

/// The formula as a constant expression.
fn rust(formula: &Formula) -> String {
    let ops: Vec<String> = formula
        .0
        .iter()
        .map(|op| match op {
            Op::Num(n) => format!("formula::Op::Num({n})"),
            Op::Arg(i) => format!("formula::Op::Arg({i})"),
            Op::Var(Var::UnitRows(i)) => format!("formula::Op::Var(Var::UnitRows({i}))"),
            Op::Var(v) => format!("formula::Op::Var(Var::{v:?})"),
            plain => format!("formula::Op::{plain:?}"),
        })
        .collect();
    format!("Formula(std::borrow::Cow::Borrowed(&[{}]))", ops.join(", "))
}

/// The target's id from its path under the tree.
fn id(target: &Resolved) -> KernelTarget<'_> {
    let mut parts = target.target.split('/');
    let hw = parts.next().unwrap_or_default();
    match (parts.next(), parts.next()) {
        (Some(model), Some(quant)) => KernelTarget { hw, model, quant },
        _ => KernelTarget::baseline(hw),
    }
}
