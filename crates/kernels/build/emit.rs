// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes `registry.rs`, and checks what the manifests say on the way.

use std::fmt::Write as _;

use metrale_closure::{Resolved, ResolvedPoint};

use super::super::formula::{Formula, Op, Var};
use super::super::{Result, id};
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
        grid.push(formula(p.grid.get(i).map_or("1", String::as_str))?);
    }
    let mut needs = Vec::new();
    for (i, arg) in args.iter().enumerate() {
        if let Arg::Buf(name, _) = arg {
            let need = p
                .needs
                .get(name)
                .ok_or_else(|| format!("needs.{name} is missing"))?;
            needs.push(format!("({i}, {})", formula(need)?));
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
        "Point {{ id: {:?}, image: {image}, entry: {:?}, block: {}, grid: [{}], shared: {}, args: &[{}], needs: &[{}] }},\n",
        p.id,
        p.entry,
        p.block,
        grid.join(", "),
        formula(p.shared.as_deref().unwrap_or("0"))?,
        args.join(", "),
        needs.join(", ")
    ))
}

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
            Op::Add => "formula::Op::Add".into(),
            Op::Mul => "formula::Op::Mul".into(),
            Op::Tiles => "formula::Op::Tiles".into(),
        })
        .collect();
    format!("Formula(std::borrow::Cow::Borrowed(&[{}]))", ops.join(", "))
}
