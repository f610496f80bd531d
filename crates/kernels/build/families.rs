// SPDX-License-Identifier: MIT OR Apache-2.0
//! Argument lists of the kernel families, from `kernels/circuits/FAMILIES.toml`.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use super::super::Result;

/// By family name.
pub(crate) type Families = BTreeMap<String, Vec<Arg>>;

/// One argument.
pub(crate) enum Arg {
    /// Name and the name of its `Access`.
    Buf(String, &'static str),
    U32(String),
    F32(String),
    Step,
}

#[derive(Deserialize)]
struct Family {
    args: Vec<String>,
}

pub(crate) fn read(path: &Path) -> Result<Families> {
    let at = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let text = std::fs::read_to_string(path).map_err(|e| at(&e))?;
    let families: BTreeMap<String, Family> = toml::from_str(&text).map_err(|e| at(&e))?;
    families
        .into_iter()
        .map(|(name, family)| {
            let args = family.args.iter().map(|text| {
                parse(text).ok_or_else(|| at(&format!("{name}: `{text}` is no argument")))
            });
            Ok((name.clone(), args.collect::<Result<_>>()?))
        })
        .collect()
}

fn parse(text: &str) -> Option<Arg> {
    let words: Vec<&str> = text.split_whitespace().collect();
    Some(match words[..] {
        ["step"] => Arg::Step,
        ["u32", name] => Arg::U32(name.into()),
        ["f32", name] => Arg::F32(name.into()),
        [name, "r"] => Arg::Buf(name.into(), "Read"),
        [name, "w"] => Arg::Buf(name.into(), "Write"),
        [name, "rw"] => Arg::Buf(name.into(), "ReadWrite"),
        _ => return None,
    })
}
