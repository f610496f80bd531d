// SPDX-License-Identifier: MIT OR Apache-2.0
//! The manifests under `kernels/`, as parsed. Unknown fields are errors: a misspelt line must not be silence.

pub(crate) mod circuit;
pub(crate) mod class;
pub(crate) mod devices;
pub(crate) mod families;
pub(crate) mod map;
pub(crate) mod ops;

use std::collections::BTreeMap;

use metrale_core::Elem;
use serde::{Deserialize, Deserializer};

/// Why the kernel tree's manifests cannot be used: a fault of the build, never of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {what}; the kernel tree this binary was built with is broken, build it again")]
pub struct LibraryError {
    /// The manifest.
    pub path: String,
    /// What is wrong with it.
    pub what: String,
}

impl LibraryError {
    pub(crate) fn new(path: &str, what: impl ToString) -> LibraryError {
        LibraryError {
            path: path.to_owned(),
            what: what.to_string(),
        }
    }
}

/// Parses one manifest.
pub(crate) fn read<T: serde::de::DeserializeOwned>(
    path: &str,
    text: &str,
) -> Result<T, LibraryError> {
    toml::from_str(text).map_err(|e| LibraryError::new(path, e.to_string().trim_end()))
}

/// Parses a manifest of a model family. `extends = ["llama/circuit.toml", ..]` names manifests below `circuits/` that it
/// starts from, one laid over another, itself over all: tables join, anything else replaces, and `false` in the place of
/// anything but a switch removes it.
pub(crate) fn read_extending<T: serde::de::DeserializeOwned>(
    path: &str,
    text: &dyn Fn(&str) -> Result<String, LibraryError>,
) -> Result<T, LibraryError> {
    let table = extended(path, text, 0)?;
    T::deserialize(table).map_err(|e| LibraryError::new(path, e.to_string().trim_end()))
}

/// Deep enough for any chain, and an end for a circle.
const MAX_EXTENDS: u32 = 8;

fn extended(
    path: &str,
    text: &dyn Fn(&str) -> Result<String, LibraryError>,
    depth: u32,
) -> Result<toml::Table, LibraryError> {
    if depth > MAX_EXTENDS {
        return Err(LibraryError::new(path, "`extends` runs in a circle"));
    }
    let mut own: toml::Table = read(path, &text(path)?)?;
    let mut out = toml::Table::new();
    if let Some(bases) = own.remove("extends") {
        let bases: Vec<String> = bases
            .try_into()
            .map_err(|_| LibraryError::new(path, "`extends` is no list of manifests"))?;
        for base in bases {
            lay_over(
                &mut out,
                extended(&format!("circuits/{base}"), text, depth + 1)?,
            );
        }
    }
    lay_over(&mut out, own);
    Ok(out)
}

fn lay_over(base: &mut toml::Table, over: toml::Table) {
    for (key, value) in over {
        match (base.get_mut(&key), value) {
            (Some(toml::Value::Table(old)), toml::Value::Table(new)) => lay_over(old, new),
            (Some(old), toml::Value::Boolean(false)) if !old.is_bool() => {
                base.remove(&key);
            }
            (_, value) => {
                base.insert(key, value);
            }
        }
    }
}

/// One text or a list of them.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    pub(crate) fn as_slice(&self) -> &[String] {
        match self {
            OneOrMany::One(s) => std::slice::from_ref(s),
            OneOrMany::Many(v) => v,
        }
    }
}

/// An element format by its name.
pub(crate) fn elem<'de, D: Deserializer<'de>>(d: D) -> Result<Elem, D::Error> {
    let name = String::deserialize(d)?;
    Elem::from_name(&name)
        .ok_or_else(|| serde::de::Error::custom(format!("`{name}` is no element format")))
}

/// A table from names to element formats.
pub(crate) fn elems<'de, D: Deserializer<'de>>(d: D) -> Result<BTreeMap<String, Elem>, D::Error> {
    #[derive(Deserialize)]
    struct Wrapped(#[serde(deserialize_with = "elem")] Elem);
    let map = BTreeMap::<String, Wrapped>::deserialize(d)?;
    Ok(map.into_iter().map(|(k, v)| (k, v.0)).collect())
}

pub(crate) fn f32_elem() -> Elem {
    Elem::F32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(path: &str) -> Result<String, LibraryError> {
        let text = match path {
            "circuits/base.toml" => "list = [1, 2]\nkept = 'a'\n[t]\nx = 1\ny = { d = 2, e = 3 }\n",
            "circuits/foo.toml" => {
                "extends = ['base.toml']\nlist = [3]\n[t]\nx = false\ny = { d = false }\nz = false\n"
            }
            "circuits/circle.toml" => "extends = ['circle.toml']\n",
            other => return Err(LibraryError::new(other, "missing")),
        };
        Ok(text.to_owned())
    }

    #[test]
    fn tables_join_lists_are_replaced_and_false_removes() {
        let got: toml::Table = read_extending("circuits/foo.toml", &files).unwrap();
        let want: toml::Table =
            toml::from_str("list = [3]\nkept = 'a'\n[t]\ny = { e = 3 }\nz = false\n").unwrap();
        assert_eq!(got, want);
        let circle = read_extending::<toml::Table>("circuits/circle.toml", &files);
        assert!(circle.unwrap_err().to_string().contains("circle"));
        assert!(read_extending::<toml::Table>("circuits/none.toml", &files).is_err());
    }
}
